//! A server on one side, and its client.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cases::{Case, PORT, Place, Words};
use super::sides::Side;
use super::world::{Scratch, World};
use crate::figures::Sample;
use crate::interrupt;
use crate::running::Running;

/// A server that runs on one of the sides, ready for its client. Gone with it.
pub struct Server<'a> {
    // Ends first, its namespaces next.
    run: Running,
    pub world: World,
    scratch: Scratch,
    programs: &'a Path,
}

impl<'a> Server<'a> {
    /// `wrap` is put before its command. `programs` is the folder of `tests/src/bin`, built.
    pub fn start(
        server: Words,
        side: Side,
        towpath: &Path,
        wrap: &[String],
        programs: &'a Path,
    ) -> Result<Self> {
        let world = World::new(side)?;
        let scratch = Scratch::new(&world.names[0])?;
        let place = Place { host: world.host(), seconds: 0, scratch: &scratch.0, programs };
        let line = [wrap, &side.line(towpath, server(&place))?].concat();
        let run = Running(world.command(world.server(), &line).spawn().context("server")?);
        let server = Self { run, world, scratch, programs };
        wait_for(&server.world, server.world.host())?;
        server.world.use_cubic()?;
        Ok(server)
    }

    /// The process that was started: the program, or towpath.
    pub fn pid(&self) -> u32 {
        self.run.0.id()
    }

    /// A sample for each reading of the case. Tried again for a while where there is no figure: iperf3's server does not
    /// listen for a moment after each test.
    pub fn measure(&self, case: &Case, seconds: u32) -> Result<Vec<Sample>> {
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

    fn try_to_measure(&self, case: &Case, seconds: u32) -> Result<Vec<Sample>> {
        let (host, scratch) = (self.world.host(), &self.scratch.0);
        let line = (case.client)(&Place { host, seconds, scratch, programs: self.programs });
        let before = busy()?;
        let start = Instant::now();
        let client =
            self.world.command(self.world.client(), &line).stdout(Stdio::piped()).output()?;
        let cores = (busy()? - before) / start.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&client.stdout);
        let values: Option<Vec<f64>> =
            case.readings.iter().map(|reading| (reading.read)(&text)).collect();
        match values {
            Some(values) => Ok(values.into_iter().map(|value| Sample { value, cores }).collect()),
            None => bail!(
                "{} ({}): no figure in\n{text}{}",
                case.name,
                self.world.side,
                String::from_utf8_lossy(&client.stderr)
            ),
        }
    }
}

fn wait_for(world: &World, host: &str) -> Result<()> {
    let script = format!("import socket; socket.create_connection(('{host}',{PORT}),1).close()");
    let line = ["python3".to_owned(), "-c".to_owned(), script];
    let end = Instant::now() + Duration::from_secs(15);
    while !world.command(world.client(), &line).status()?.success() {
        ensure!(Instant::now() < end, "{}: no server on {host}:{PORT}", world.side);
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

/// Seconds of CPU that this machine spent so far, all cores.
fn busy() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = text
        .lines()
        .next()
        .context("/proc/stat")?
        .split_whitespace()
        .skip(1)
        .filter_map(|f| f.parse().ok())
        .collect();
    let idle = fields.get(3).copied().unwrap_or(0.) + fields.get(4).copied().unwrap_or(0.);
    Ok((fields.iter().take(8).sum::<f64>() - idle) / 100.)
}
