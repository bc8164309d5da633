//! A server on one of the sides, and its clients.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cases::{Case, Group, PORT, Place};
use super::pair::Pair;
use super::profile::{Owners, Profile, Stacks};
use super::sides::Side;
use super::world::{Scratch, World};
use super::{Built, cpu, loads};
use crate::figures::{Parts, Sample, Spread};
use crate::interrupt;
use crate::running::Running;

/// A running server that is ready for its client. Ended when dropped.
pub struct Server<'a> {
    // Dropped first, so that the program ends before its namespaces.
    run: Run,
    world: World,
    scratch: Scratch,
    built: &'a Built,
}

enum Run {
    /// Process of the server, or `towpath`.
    Alone(Running),
    /// A shell that starts both client and server.
    Paired(Pair),
}

/// Results of a client.
pub struct Measured {
    /// Samples, one for each figure of the case.
    pub samples: Vec<Sample>,
    pub spread: Option<Spread>,
}

/// Output of a client.
struct Said {
    out: String,
    errors: String,
}

impl<'a> Server<'a> {
    /// Starts a server using `program`, the `towpath` or the peer. `seed` is that of the link's
    /// random losses.
    pub fn start(
        case: &Case,
        side: Side,
        program: &Path,
        built: &'a Built,
        seed: u64,
    ) -> Result<Self> {
        let mut world = World::new(side)?;
        if let Some(link) = &case.link {
            world.move_client_behind(link, &built.link, seed)?;
        }
        if case.group == Group::Churn {
            world.client().allow_many_ports()?;
        }
        let scratch = Scratch::new(world.client().name())?;
        let place = place(&world, &scratch, built, 0);
        let server = case.server(&place);
        let run = if side.is_loopback() {
            let shell = side.line(program, &case.ports(), vec!["sh".to_owned()])?;
            let shell = world.command(world.server(), &shell);
            Run::Paired(Pair::start(shell, side.is_ours(), &server, &scratch.0)?)
        } else {
            let line = side.line(program, &case.ports(), server)?;
            let mut command = world.command(world.server(), &line);
            command.stderr(std::fs::File::create(scratch.0.join("server-errors"))?);
            Run::Alone(Running(command.spawn().context("server")?))
        };
        let mut server = Self { run, world, scratch, built };
        server.wait()?;
        server.world.use_cubic()?;
        Ok(server)
    }

    /// Measures a sample for each figure of the case. Retries for a while without a figure, because
    /// iperf3's server briefly does not listen after each test.
    pub fn measure(&mut self, case: &Case, seconds: u32) -> Result<Measured> {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            interrupt::check()?;
            let result = self.try_to_measure(case, seconds);
            if result.is_ok() || Instant::now() > end {
                return result;
            }
            interrupt::sleep(Duration::from_millis(50))?;
        }
    }

    fn try_to_measure(&mut self, case: &Case, seconds: u32) -> Result<Measured> {
        let client = case.client(&place(&self.world, &self.scratch, self.built, seconds));
        let (busy, used, start) = (cpu::busy()?, self.used()?, Instant::now());
        let said = self.ask(&client, seconds + PATIENCE)?;
        let took = start.elapsed().as_secs_f64();
        let cores = (cpu::busy()? - busy) / took;
        let parts = Some(cpu::between(used, self.used()?, took));
        let values: Option<Vec<f64>> =
            case.readings.iter().map(|reading| (reading.read)(&said.out)).collect();
        match values {
            Some(values) => {
                let sample = |value| Sample { value, cores, parts };
                let spread = loads::spread(&said.out);
                Ok(Measured { samples: values.into_iter().map(sample).collect(), spread })
            }
            None => bail!("no figure in {:?} {:?}", said.out.trim(), said.errors.trim()),
        }
    }

    /// Ends the server. Fails if its link has lost frames by overload.
    pub fn end(mut self) -> Result<()> {
        self.world.end_link()
    }

    /// Profiles the server while the client runs. Discards the client's figures, because profiling
    /// affects them.
    pub fn profile(&mut self, case: &Case, seconds: u32) -> Result<Stacks> {
        let profile = Profile::begin(&self.scratch.0)?;
        self.measure(case, seconds)?;
        let client = case.client(&place(&self.world, &self.scratch, self.built, seconds));
        profile.end(&self.owners(&client[0])?)
    }

    fn owners(&self, client: &str) -> Result<Owners> {
        let client = client.rsplit('/').next().unwrap_or(client).to_owned();
        let (run, server) = match &self.run {
            Run::Paired(pair) => pair.pids(),
            Run::Alone(run) => (run.0.id(), run.0.id()),
        };
        let mut program: BTreeSet<u32> = cpu::descendants(server)?.into_iter().collect();
        program.insert(server);
        let engine: BTreeSet<u32> = self.world.side.is_ours().then_some(run).into_iter().collect();
        Ok(Owners { program: &program - &engine, engine, client })
    }

    /// Runs a client until it ends, at most `seconds`.
    fn ask(&mut self, client: &[String], seconds: u32) -> Result<Said> {
        let words = ["timeout", "-k", "5", &seconds.to_string()].map(str::to_owned);
        let line = [&words[..], client].concat();
        let command = self.world.command(self.world.client(), &line);
        match &mut self.run {
            Run::Paired(pair) => {
                let (out, errors) = pair.run(&line)?;
                Ok(Said { out, errors })
            }
            Run::Alone(_) => {
                let mut command = command;
                let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                Ok(Said { out: text(&output.stdout), errors: text(&output.stderr) })
            }
        }
    }

    /// Returns the CPU time in seconds that client, server and engine have used so far.
    fn used(&self) -> Result<Parts> {
        let run = match &self.run {
            Run::Paired(pair) => return pair.used(),
            Run::Alone(run) => run.0.id(),
        };
        // Clients are children of this process, which has waited for them.
        let client = cpu::of_ended_children(std::process::id())?;
        Ok(if self.world.side.is_ours() {
            Parts { client, program: cpu::of_descendants(run)?, engine: cpu::of(run)? }
        } else {
            Parts { client, program: cpu::of_tree(run)?, engine: 0. }
        })
    }

    /// Waits until the server accepts connections.
    fn wait(&mut self) -> Result<()> {
        let host = self.world.host();
        let load = self.built.load.display().to_string();
        let line = [load, "reach".to_owned(), format!("{host}:{PORT}")];
        let end = Instant::now() + Duration::from_secs(15);
        while self.ask(&line, PATIENCE)?.out.trim() != "\"there\"" {
            interrupt::check()?;
            let has_ended = match &mut self.run {
                Run::Alone(run) => run.0.try_wait()?.is_some(),
                Run::Paired(_) => false,
            };
            let errors = self.scratch.0.join("server-errors");
            let errors = std::fs::read_to_string(errors).unwrap_or_default();
            ensure!(!has_ended, "the server ended: {}", errors.trim());
            ensure!(Instant::now() < end, "no server on {host}:{PORT}: {}", errors.trim());
            interrupt::sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }
}

/// Additional time in seconds that a client may take.
const PATIENCE: u32 = 60;

fn place<'a>(world: &World, scratch: &'a Scratch, built: &'a Built, seconds: u32) -> Place<'a> {
    let (crowd, load) = (&*built.crowd, &*built.load);
    Place { host: world.host(), seconds, scratch: &scratch.0, crowd, load }
}
