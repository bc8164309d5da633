//! Ours beside the kernel's, in one run: the numbers of docs/benchmarking.md.
//!
//! The kernel's side is the same server in a network namespace of its own, behind a veth pair; ours
//! is the server under `towpath run`, over TAP or rootless. Client and server share this machine's
//! cores in every case, so ratios mean something and absolute figures little. CPU is what the
//! whole machine spent, in cores, while the client ran.
//!
//! Reading order: `sides` says where servers run, `cases` which, `server` starts and measures them in a `world`.

pub mod cases;
pub mod server;
pub mod sides;
mod world;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::figures::{Median, Ratio, Sample};
use crate::interrupt;
use crate::running::Running;
use cases::{CASES, Case};
use server::Server;
use sides::{Hosting, Side, Uplink};
use world::World;

#[derive(clap::Args)]
pub struct Options {
    /// Seconds of each run of a client.
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// Rounds; medians are reported.
    #[arg(long, default_value_t = 15)]
    repeat: usize,
    /// Only measurements whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Ways to run the engine, each beside the kernel in the same run; several with commas between them.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "run")]
    hosting: Vec<Hosting>,
    /// Another `towpath`, an earlier build for instance, to measure beside this one instead of the kernel.
    #[arg(long, value_name = "BINARY")]
    beside: Option<PathBuf>,
}

impl Options {
    /// Both ways out of each hosting.
    fn sides(&self) -> impl Iterator<Item = Side> {
        let both = |&hosting: &Hosting| {
            [Uplink::Tap, Uplink::Rootless].map(|uplink| Side::Ours(hosting, uplink))
        };
        self.hosting.iter().flat_map(both)
    }

    fn cases(&self) -> impl Iterator<Item = &'static Case> {
        CASES.iter().filter(|case| case.name.contains(&self.only))
    }
}

/// What was built.
struct Built {
    towpath: PathBuf,
    /// The folder of all programs.
    programs: PathBuf,
}

/// Measures and prints the table. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    crate::debian::install()?;
    ensure!(options.cases().next().is_some(), "{}: there is no such measurement", options.only);
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "-p", "towpath", "-p", "towpath-tests", "--bins"]);
    ensure!(build.current_dir(root).status()?.success(), "the release build failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let programs = target.join("release");
    let built = Built { towpath: programs.join("towpath"), programs };
    if let Some(other) = &options.beside {
        let other = other.canonicalize().with_context(|| other.display().to_string())?;
        return beside(&other, &built, options);
    }
    beside_the_kernel(&built, options)
}

fn beside_the_kernel(built: &Built, options: &Options) -> Result<()> {
    let missing = missing(options, &[&built.towpath])?;
    let sides: Vec<Side> = options.sides().collect();
    let heads: String = sides.iter().map(|side| format!(" {side} (cores) | ratio |")).collect();
    println!("| measurement | unit | kernel (cores) |{heads}");
    println!("|---|---|---|{}", "---|---|".repeat(sides.len()));
    for case in options.cases() {
        let there = sides.iter().filter(|side| !is_of(side, &missing));
        let servers: Vec<(Side, &Path)> = std::iter::once(&Side::Kernel)
            .chain(there)
            .map(|&side| (side, &*built.towpath))
            .collect();
        let samples = rounds(case, &servers, built, options)?;
        for (n, reading) in case.readings.iter().enumerate() {
            let kernel = &samples[0][n];
            let cells: String = sides
                .iter()
                .map(|side| match servers.iter().position(|(it, _)| it == side) {
                    Some(at) => {
                        let ours = &samples[at][n];
                        format!(" {} | {} |", Median::of(ours), Ratio::of(ours, kernel))
                    }
                    None => " missing | missing |".to_owned(),
                })
                .collect();
            let (name, which, unit) = (case.name, reading.which, reading.unit);
            println!("| {name}{which} | {unit} | {} |{cells}", Median::of(kernel));
        }
    }
    for &hosting in options.hosting.iter().filter(|it| !missing.contains(it)) {
        idle(&built.towpath, hosting)?;
    }
    Ok(())
}

/// Two builds, each over TAP and rootless.
fn beside(other: &Path, built: &Built, options: &Options) -> Result<()> {
    let missing = missing(options, &[other, &built.towpath])?;
    println!("| measurement | unit | side | other (cores) | this (cores) | ratio |");
    println!("|---|---|---|---|---|---|");
    for case in options.cases() {
        for side in options.sides().filter(|side| !is_of(side, &missing)) {
            let servers = [(side, other), (side, &*built.towpath)];
            let samples = rounds(case, &servers, built, options)?;
            for (n, reading) in case.readings.iter().enumerate() {
                let (theirs, ours) = (&samples[0][n], &samples[1][n]);
                println!(
                    "| {}{} | {} | {side} | {} | {} | {} |",
                    case.name,
                    reading.which,
                    reading.unit,
                    Median::of(theirs),
                    Median::of(ours),
                    Ratio::of(ours, theirs),
                );
            }
        }
    }
    for &hosting in options.hosting.iter().filter(|it| !missing.contains(it)) {
        idle(other, hosting)?;
        idle(&built.towpath, hosting)?;
    }
    Ok(())
}

/// Hostings that a build does not know. What is not there is said, since it has no figures.
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

fn is_of(side: &Side, hostings: &[Hosting]) -> bool {
    matches!(side, Side::Ours(hosting, _) if hostings.contains(hosting))
}

/// For each server and reading, a sample from each round. In a round all servers run, and the client goes from one to
/// the next: what another tenant of the machine takes changes within seconds, and hits neighbours alike. Every second
/// round goes back the same way, so that none is always behind the same one. Each round has servers of its own: one and
/// the same program differs by a tenth from start to start, by where its memory lies.
fn rounds(
    case: &Case,
    sides: &[(Side, &Path)],
    built: &Built,
    options: &Options,
) -> Result<Vec<Vec<Vec<Sample>>>> {
    let mut samples = vec![vec![Vec::new(); case.readings.len()]; sides.len()];
    for round in 0..options.repeat.max(1) {
        if std::io::stderr().is_terminal() {
            eprint!("\r{}: round {} of {} ", case.name, round + 1, options.repeat.max(1));
        }
        let servers = sides
            .iter()
            .map(|&(side, towpath)| Server::start(case.server, side, towpath, &[], &built.programs))
            .collect::<Result<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..servers.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let measured = servers[at].measure(case, options.seconds)?;
            samples[at].iter_mut().zip(measured).for_each(|(all, sample)| all.push(sample));
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r{:70}\r", "");
    }
    Ok(samples)
}

/// What `towpath run` and its program cost while the program sleeps.
fn idle(towpath: &Path, hosting: Hosting) -> Result<()> {
    let side = Side::Ours(hosting, Uplink::Rootless);
    let world = World::new(side)?;
    let server = ["python3", "-m", "http.server", "7900"].map(str::to_owned).to_vec();
    let line = side.line(towpath, server)?;
    let mut run = Running(world.command(world.server(), &line).spawn()?);
    interrupt::sleep(Duration::from_secs(2))?;
    let cpu = |run: &Running| -> Result<(f64, f64)> {
        Ok((
            cpu_of(run.0.id())?,
            descendants(run.0.id())?.into_iter().map(cpu_of).sum::<Result<_>>()?,
        ))
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

/// Seconds of CPU that one process used so far.
fn cpu_of(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = text.rsplit_once(") ").context("stat")?.1;
    let fields: Vec<&str> = after.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.)
}

/// What a process has started, and what that has, as long as it lives.
pub fn descendants(pid: u32) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    let mut left = vec![pid];
    while let Some(parent) = left.pop() {
        for thread in std::fs::read_dir(format!("/proc/{parent}/task"))? {
            let children = std::fs::read_to_string(thread?.path().join("children"))?;
            left.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        if parent != pid {
            all.push(parent);
        }
    }
    Ok(all)
}
