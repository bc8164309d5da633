//! Measures the cost of very many idle connections, and their effect on an active one: the table of
//! docs/benchmarking.md.
//!
//! The server (`tests/src/bin/crowd.rs`) runs under `towpath run --tap` in its own network
//! namespace, with the kernel as its peer. Idle connections are opened in steps and stay open.
//! After each step, memory is read once unused FIFOs were freed. Then one more connection sends
//! requests for a while.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::namespace::{Namespace, route_word};
use crate::running::Running;
use crate::{interrupt, workspace};

#[derive(clap::Args)]
pub struct Options {
    /// Total number of connections.
    #[arg(long, default_value_t = 1_000_000)]
    connections: usize,
    /// Number of steps.
    #[arg(long, default_value_t = 4)]
    steps: usize,
    /// Duration of the active connection's requests in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

const PORT: u16 = 7900;
/// Address of the program behind the TAP device.
const HOST: &str = "10.77.0.2";
/// Number of connections from one address, less than the number of its ports.
const A_SOURCE: usize = 30_000;
/// Time until the engine has freed FIFO memory: ten seconds after the last byte, checked once per
/// second.
const SETTLED: Duration = Duration::from_secs(13);

/// Memory in bytes.
#[derive(Clone, Copy, Default)]
struct Memory {
    /// Memory of the engine alone.
    engine: f64,
    /// Memory shared by engine and program.
    shared: f64,
    /// Memory of the program's processes alone.
    program: f64,
}

/// Measures and prints the table. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    let what = ["-p", "towpath-cli", "-p", "towpath-tests", "--bins"];
    let release = workspace::build_release(root, &what)?;
    let binary = |name: &str| release.join(name).display().to_string();
    let (towpath, crowd) = (binary("towpath"), binary("crowd"));
    let world = Namespace::new("host")?;
    let (port, all) = (PORT.to_string(), options.connections.to_string());
    let mut server =
        spawn(&world, &[&towpath, "run", "-q", "--tap", "--", &crowd, "serve", &port, &all])?;
    let ready = server.line()?;
    let program = ready.strip_prefix("ready ").context("the server")?.parse()?;
    let asked = format!("{HOST}:{}", PORT + 1);
    println!(
        "| connections | engine | shared | program | in all, bytes each | p50 µs | p99 µs | \
         opened in |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut holders, mut held, mut first) = (Vec::new(), 0, None);
    for step in 0..=options.steps {
        let (count, start) = (options.connections * step / options.steps - held, Instant::now());
        if count > 0 {
            let sources = add_sources(&world, step, count.div_ceil(A_SOURCE))?;
            let (to, count) = (format!("{HOST}:{PORT}"), count.to_string());
            let mut line = vec![&*crowd, "hold", &to, &count];
            line.extend(sources.iter().map(String::as_str));
            let mut holder = spawn(&world, &line)?;
            ensure!(holder.line()? == "held", "a client");
            holders.push(holder);
        }
        held += count;
        let took = start.elapsed();
        interrupt::sleep(SETTLED)?;
        let memory = Memory::of(server.program.0.id(), program)?;
        let seconds = options.seconds.to_string();
        let mut asks = spawn(&world, &[&crowd, "ask", &asked, &seconds])?;
        let figures = asks.line()?;
        let mut figures = figures.split(' ');
        let before = *first.get_or_insert(memory);
        let each = |part: fn(&Memory) -> f64| match held {
            0 => 0.,
            held => (part(&memory) - part(&before)) / held as f64,
        };
        let parts = [each(|it| it.engine), each(|it| it.shared), each(|it| it.program)];
        println!(
            "| {held} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {} | {:.0} s |",
            parts[0],
            parts[1],
            parts[2],
            parts.iter().sum::<f64>(),
            figures.next().context("p50")?,
            figures.next().context("p99")?,
            took.as_secs_f64(),
        );
    }
    ensure!(server.line()? == "held", "the server");
    Ok(())
}

impl Memory {
    fn of(towpath: u32, program: u32) -> Result<Self> {
        let field = |pid: u32, name: &str| -> Result<f64> {
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let line = text.lines().find(|line| line.starts_with(name)).context("a field")?;
            Ok(line.split_whitespace().nth(1).context("a number")?.parse::<f64>()? * 1024.)
        };
        Ok(Self {
            engine: field(towpath, "Anonymous:")?,
            // The kernel does not report the owner of shared pages. The engine has touched all of
            // them.
            shared: field(towpath, "Rss:")? - field(towpath, "Anonymous:")?,
            program: family(program)?
                .into_iter()
                .map(|pid| field(pid, "Anonymous:"))
                .sum::<Result<_>>()?,
        })
    }
}

/// Returns a process and its children.
fn family(parent: u32) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let children = text.split_whitespace().filter_map(|pid| pid.parse().ok());
    Ok(std::iter::once(parent).chain(children).collect())
}

/// Starts a program that prints its progress.
fn spawn(host: &Namespace, line: &[&str]) -> Result<Told> {
    let mut command = host.command(line);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().context("piped")?).lines();
    Ok(Told { program: Running(child), lines })
}

/// Adds addresses for the kernel's connections to the TAP device.
fn add_sources(host: &Namespace, step: usize, count: usize) -> Result<Vec<String>> {
    let device = route_word(|line| host.command(line), HOST, "dev")?;
    let address = |n| format!("10.77.{step}.{}", 10 + n);
    for n in 0..count {
        host.ip(&format!("addr add {}/32 dev {device}", address(n)))?;
    }
    Ok((0..count).map(address).collect())
}

/// A program that prints its progress.
struct Told {
    program: Running,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Told {
    fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().context("it ended")??)
    }
}
