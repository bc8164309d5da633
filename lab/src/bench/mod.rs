//! Compares Towpath with the kernel in one run: the figures of docs/benchmarking.md.
//!
//! The kernel's side is the same server in a separate network namespace, behind a veth pair. Our
//! side is the server under `towpath run`, over TAP or rootless. Client and server share this
//! machine's processors in every case, so compare ratios rather than absolute figures. CPU is the
//! number of processors that the whole machine used while the client ran.
//!
//! Reading order: `sides` defines where servers run, and `peers` other projects' servers. `cases`,
//! `loads` and `losses` define the measurements. `server` runs them in a `world`: in a `pair` if
//! the client is in the same network, or behind a `link` with delay and loss. `comparison` creates
//! the report, and `profile` the flame graphs.

pub mod cases;
mod comparison;
pub mod cpu;
mod link;
mod loads;
mod losses;
mod pair;
pub mod peers;
mod profile;
mod server;
pub mod sides;
mod versions;
pub mod world;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::figures::{Interval, Median, Sample, Spread};
use crate::interrupt;
use crate::report::data::Flame;
use crate::report::flame;
use crate::running::Running;
use crate::workspace;
use cases::{Case, Group};
use server::Server;
use sides::{Hosting, Side, Uplink};
use world::World;

#[derive(clap::Args)]
pub struct Options {
    /// Duration of each client's run in seconds. Default: 1, and 8 for cases of `loss`.
    #[arg(long)]
    seconds: Option<u32>,
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 15)]
    repeat: usize,
    /// Groups to measure, separated by commas. Default: programs.
    #[arg(long, value_enum, value_delimiter = ',')]
    group: Vec<Group>,
    /// Run only measurements whose names contain this, from all groups unless --group is given.
    #[arg(long, default_value = "")]
    only: String,
    /// List the measurements, and measure nothing.
    #[arg(long)]
    list: bool,
    /// Ways to run the engine, separated by commas. Each is compared with the kernel in the same
    /// rounds.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "run")]
    hosting: Vec<Hosting>,
    /// Other stacks and servers to measure in the same rounds, separated by commas: smoltcp, lwip,
    /// netstack-smoltcp, gvisor, go, netpoll, or all. Each is built first, and reported as missing
    /// if its build fails.
    #[arg(long, value_delimiter = ',', conflicts_with = "beside")]
    peers: Vec<String>,
    /// Another `towpath`, such as an earlier build, to compare with this one instead of the kernel.
    #[arg(long, value_name = "BINARY")]
    beside: Option<PathBuf>,
    /// Write all results to this file as JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "beside")]
    json: Option<PathBuf>,
    /// Write a page with plots of the results to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "beside")]
    html: Option<PathBuf>,
    /// Run each measurement once more under perf (root; Debian's linux-perf), and add flame graphs
    /// of all sides to the page. The results exclude the additional round.
    #[arg(long, conflicts_with = "beside")]
    flame: bool,
}

impl Options {
    /// Returns the sides to measure: both uplinks of each hosting, if they take part in any case.
    fn sides(&self) -> impl Iterator<Item = Side> {
        let all = |&hosting: &Hosting| match hosting {
            Hosting::Both => vec![Side::Loopback],
            _ => [Uplink::Tap, Uplink::Rootless].map(|uplink| Side::Ours(hosting, uplink)).to_vec(),
        };
        let has_part = |&side: &Side| self.cases().any(|case| side.lacks(case).is_none());
        self.hosting.iter().flat_map(all).filter(has_part)
    }

    fn seconds(&self, case: &Case) -> u32 {
        self.seconds.unwrap_or(case.seconds())
    }

    fn cases(&self) -> impl Iterator<Item = &'static Case> {
        let groups: &[Group] = match &self.group[..] {
            [] if self.only.is_empty() => &[Group::Programs],
            [] => &[Group::All],
            groups => groups,
        };
        let is_asked = |case: &&Case| groups.contains(&Group::All) || groups.contains(&case.group);
        cases::cases().filter(is_asked).filter(|case| case.name.contains(&self.only))
    }
}

/// Paths of the built programs.
pub struct Built {
    towpath: PathBuf,
    crowd: PathBuf,
    load: PathBuf,
    link: PathBuf,
}

/// Measures and prints the table. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    ensure!(options.cases().next().is_some(), "{}: there is no such measurement", options.only);
    if options.list {
        options.cases().for_each(|case| println!("{:9} {}", case.group.to_string(), case.name));
        return Ok(());
    }
    ensure!(
        options.sides().next().is_some(),
        "nothing that --hosting names has a part in these measurements"
    );
    interrupt::hold()?;
    crate::debian::install()?;
    if options.flame {
        let is_shown = options.json.is_some() || options.html.is_some();
        ensure!(is_shown, "--flame: flame graphs are in the page or its data: --html or --json");
        profile::is_possible().context("--flame")?;
    }
    if options.cases().any(|case| case.group == Group::Users) {
        allow_many_descriptors();
    }
    let release =
        workspace::build_release(root, &["--bins", "-p", "towpath-cli", "-p", "towpath-tests"])?;
    let own = workspace::build_lab(root, &["towpath-lab-load", "towpath-lab-link"])?;
    let target = workspace::target(root);
    let built = Built {
        towpath: release.join("towpath"),
        crowd: release.join("crowd"),
        load: own.join("load"),
        link: own.join("link"),
    };
    if let Some(other) = &options.beside {
        let other = other.canonicalize().with_context(|| other.display().to_string())?;
        return beside(&other, &built, options);
    }
    comparison::run(root, &target, &built, options)
}

/// Raises the descriptor limit, because ten thousand connections exceed the limit of most shells.
/// If the limit cannot be raised, measurements that need more fail with a message.
fn allow_many_descriptors() {
    // The gateway needs several descriptors per connection.
    const MANY: u64 = 1 << 16;
    let limit = getrlimit(Resource::Nofile);
    let many = Some(limit.maximum.map_or(MANY, |maximum| maximum.max(MANY)));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: many, maximum: many });
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = raised.or_else(|_| setrlimit(Resource::Nofile, most)) {
        eprintln!("the limit of descriptors stays: {error}");
    }
}

/// Compares two builds, each over TAP and rootless.
fn beside(other: &Path, built: &Built, options: &Options) -> Result<()> {
    let missing = missing(options, &[other, &built.towpath])?;
    println!("| measurement | unit | side | other (cores) | this (cores) | ratio |");
    println!("|---|---|---|---|---|---|");
    for case in options.cases() {
        let has_part = |side: &Side| !is_of(side, &missing) && side.lacks(case).is_none();
        for side in options.sides().filter(has_part) {
            let servers = [(side, other), (side, &*built.towpath)];
            let samples = rounds(case, &servers, built, options)?;
            let [theirs, ours] = &samples[..] else { unreachable!("two of them") };
            let ours = ours.as_ref().map_err(|why| anyhow!("{}, {side}: {why}", case.name))?;
            let theirs = theirs.as_ref().map_err(|why| anyhow!("{}, {side}: {why}", case.name))?;
            for (n, reading) in case.readings.iter().enumerate() {
                let (theirs, ours) = (&theirs.samples[n], &ours.samples[n]);
                println!(
                    "| {}{} | {} | {side} | {} | {} | {} |",
                    case.name,
                    reading.which,
                    reading.unit,
                    Median::of(theirs),
                    Median::of(ours),
                    Interval::of_ratios(ours, theirs),
                );
            }
        }
    }
    for hosting in idlers(options).filter(|it| !missing.contains(it)) {
        idle(other, hosting)?;
        idle(&built.towpath, hosting)?;
    }
    Ok(())
}

/// Returns the hostings that a build does not support, and prints them, because they have no
/// figures.
fn missing(options: &Options, builds: &[&Path]) -> Result<Vec<Hosting>> {
    let mut missing = Vec::new();
    for &hosting in &options.hosting {
        for build in builds {
            if !hosting.is_offered(build)? {
                let flags = hosting.flags().join(" ");
                println!("{} has no `run {flags}`: its figures are missing", build.display());
                missing.push(hosting);
            }
        }
    }
    Ok(missing)
}

/// Returns the hostings that are also measured without any client.
fn idlers(options: &Options) -> impl Iterator<Item = Hosting> {
    options.hosting.iter().copied().filter(|&hosting| hosting != Hosting::Both)
}

fn is_of(side: &Side, hostings: &[Hosting]) -> bool {
    match side {
        Side::Ours(hosting, _) => hostings.contains(hosting),
        _ => false,
    }
}

/// Samples of a side in all rounds, or the reason why it failed.
type Outcome = Result<Taken, String>;

#[derive(Clone)]
struct Taken {
    /// Samples by figure and round.
    samples: Vec<Vec<Sample>>,
    /// Distributions of times, from rounds whose client printed them.
    spreads: Vec<Spread>,
}

/// Returns for each server and figure a sample per round. In a round all servers run, and the
/// client measures them one after the other. The load of other tenants of the machine changes
/// within seconds, and then affects neighbours alike. Every second round has the reverse order, so
/// that no server always follows the same one. Each round starts new servers, because a program's
/// speed varies by a tenth between starts, depending on its memory layout. A failed side is skipped
/// from then on.
fn rounds(
    case: &Case,
    sides: &[(Side, &Path)],
    built: &Built,
    options: &Options,
) -> Result<Vec<Outcome>> {
    let nothing = Taken { samples: vec![Vec::new(); case.readings.len()], spreads: Vec::new() };
    let mut outcomes: Vec<Outcome> = sides.iter().map(|_| Ok(nothing.clone())).collect();
    for round in 0..options.repeat.max(1) {
        if std::io::stderr().is_terminal() {
            eprint!("\r{}: round {} of {} ", case.name, round + 1, options.repeat.max(1));
        }
        let mut servers: Vec<Option<Server<'_>>> = Vec::new();
        for (&(side, program), outcome) in sides.iter().zip(&mut outcomes) {
            let server =
                outcome.is_ok().then(|| Server::start(case, side, program, built, round as u64));
            servers.push(server.and_then(|server| keep(server, outcome)));
            interrupt::check()?;
        }
        let mut order: Vec<usize> = (0..servers.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let Some(server) = &mut servers[at] else { continue };
            let measured = server.measure(case, options.seconds(case));
            interrupt::check()?;
            let measured = keep(measured, &mut outcomes[at]);
            if let (Some(measured), Ok(taken)) = (measured, &mut outcomes[at]) {
                let samples = taken.samples.iter_mut().zip(measured.samples);
                samples.for_each(|(all, sample)| all.push(sample));
                taken.spreads.extend(measured.spread);
            }
        }
        for (server, outcome) in servers.into_iter().zip(&mut outcomes) {
            if let (Some(server), Ok(_)) = (server, &outcome) {
                keep(server.end(), outcome);
            }
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r{:70}\r", "");
    }
    Ok(outcomes)
}

/// Records flame graphs of each side in a separate round, and prints failures.
fn flames(
    case: &Case,
    sides: &[(Side, &Path)],
    built: &Built,
    options: &Options,
) -> Result<Vec<Flame>> {
    let mut flames = Vec::new();
    for &(side, program) in sides {
        if std::io::stderr().is_terminal() {
            eprint!("\r{}: where the time goes: {side:30} ", case.name);
        }
        // Run one server at a time, because timers of other servers would appear in the stacks.
        let stacks = Server::start(case, side, program, built, 0)
            .and_then(|mut server| server.profile(case, options.seconds(case)));
        interrupt::check()?;
        match stacks {
            Ok(stacks) => flames.push(Flame {
                case: case.name.to_owned(),
                side: side.to_string(),
                hz: profile::HZ,
                stacks: flame::pruned(&stacks),
            }),
            Err(why) => eprintln!("\n{}, {side}: no flame graph: {why:#}", case.name),
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r{:70}\r", "");
    }
    Ok(flames)
}

/// Returns the value of a result. Stores an error in the outcome, and returns `None`.
fn keep<T>(result: Result<T>, outcome: &mut Outcome) -> Option<T> {
    result.map_err(|error| *outcome = Err(format!("{error:#}"))).ok()
}

/// Measures the CPU time of `towpath run` and its program while the program sleeps.
fn idle(towpath: &Path, hosting: Hosting) -> Result<()> {
    let side = Side::Ours(hosting, Uplink::Rootless);
    let world = World::new(side)?;
    let server = ["python3", "-m", "http.server", "7900"].map(str::to_owned).to_vec();
    let line = side.line(towpath, &[cases::PORT.to_string()], server)?;
    let mut run = Running(world.command(world.server(), &line).spawn()?);
    interrupt::sleep(Duration::from_secs(2))?;
    let cpu = |run: &Running| -> Result<(f64, f64)> {
        Ok((cpu::of(run.0.id())?, cpu::of_descendants(run.0.id())?))
    };
    let before = cpu(&run)?;
    interrupt::sleep(Duration::from_secs(10))?;
    let after = cpu(&run)?;
    let (used, by_program) = (after.0 - before.0, after.1 - before.1);
    let name = towpath.display();
    println!(
        "\nidle, {side}: {name} used {used:.2} s of CPU in 10 s, what it started {by_program:.2} s"
    );
    run.stop();
    Ok(())
}
