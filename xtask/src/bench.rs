//! Ours beside the kernel's, in one run: the numbers of docs/benchmarking.md.
//!
//! The kernel's side is the same server in a network namespace of its own, behind a veth pair; ours
//! is the server under `towpath run`, over TAP or rootless. Client and server share this machine's
//! cores in every case, so ratios mean something and absolute figures little. CPU is what the
//! whole machine spent, in cores, while the client ran.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::figures::{Median, Ratio, Sample};
use crate::running::{Running, ip};

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
    /// Another `towpath`, an earlier build for instance, to measure beside this one instead of the kernel.
    #[arg(long, value_name = "BINARY")]
    beside: Option<PathBuf>,
}

/// Where the server runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// In a namespace behind a veth pair, on the kernel's TCP.
    Kernel,
    /// Under `towpath run --tap`.
    Tap,
    /// Under `towpath run -p`.
    Rootless,
}

/// One row of the table.
struct Case {
    name: &'static str,
    unit: &'static str,
    server: fn(&Path) -> Vec<String>,
    client: fn(&str, u32) -> Vec<String>,
    read: fn(&str) -> Option<f64>,
}

const PORT: u16 = 7900;

const CASES: &[Case] = &[
    Case {
        name: "iperf3 to the program",
        unit: "Gbit/s",
        server: iperf_server,
        client: |h, s| iperf(h, s, &[]),
        read: gbits,
    },
    Case {
        name: "iperf3 from the program",
        unit: "Gbit/s",
        server: iperf_server,
        client: |h, s| iperf(h, s, &["-R"]),
        read: gbits,
    },
    Case {
        name: "nginx, wrk -c64, keep-alive",
        unit: "requests/s",
        server: nginx,
        client: |h, s| wrk(h, s, &[]),
        read: wrk_rate,
    },
    Case {
        name: "nginx, wrk -c64, connection each",
        unit: "requests/s",
        server: nginx,
        client: |h, s| wrk(h, s, &["-H", "Connection: close"]),
        read: wrk_rate,
    },
    Case {
        name: "redis GET, 50 clients",
        unit: "requests/s",
        server: redis,
        client: |h, s| redis_get(h, s, 1),
        read: redis_rate,
    },
    Case {
        name: "redis GET, 50 clients, pipeline 16",
        unit: "requests/s",
        server: redis,
        client: |h, s| redis_get(h, s, 16),
        read: redis_rate,
    },
];

/// Measures and prints the table. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    crate::debian::install()?;
    let status =
        Command::new(env!("CARGO")).args(["build", "--release"]).current_dir(root).status()?;
    ensure!(status.success(), "the release build failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let towpath = target.join("release/towpath");
    if let Some(other) = &options.beside {
        let other = other.canonicalize().with_context(|| other.display().to_string())?;
        return beside(&other, &towpath, options);
    }
    println!(
        "| measurement | unit | kernel (cores) | TAP (cores) | ratio | rootless (cores) | ratio |"
    );
    println!("|---|---|---|---|---|---|---|");
    for case in cases(options) {
        let sides = [Side::Kernel, Side::Tap, Side::Rootless].map(|side| (side, &*towpath));
        let samples = rounds(case, &sides, options)?;
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            case.name,
            case.unit,
            Median::of(&samples[0]),
            Median::of(&samples[1]),
            Ratio::of(&samples[1], &samples[0]),
            Median::of(&samples[2]),
            Ratio::of(&samples[2], &samples[0]),
        );
    }
    idle(&towpath)
}

/// Two builds, each over TAP and rootless.
fn beside(other: &Path, towpath: &Path, options: &Options) -> Result<()> {
    println!("| measurement | unit | side | other (cores) | this (cores) | ratio |");
    println!("|---|---|---|---|---|---|");
    for case in cases(options) {
        for side in [Side::Tap, Side::Rootless] {
            let samples = rounds(case, &[(side, other), (side, towpath)], options)?;
            println!(
                "| {} | {} | {side:?} | {} | {} | {} |",
                case.name,
                case.unit,
                Median::of(&samples[0]),
                Median::of(&samples[1]),
                Ratio::of(&samples[1], &samples[0]),
            );
        }
    }
    idle(other)?;
    idle(towpath)
}

fn cases(options: &Options) -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.name.contains(&options.only))
}

/// For each server, a sample from each round. In a round all servers run, and the client goes from one to the next:
/// what another tenant of the machine takes changes within seconds, and hits neighbours alike. Every second round
/// goes back the same way, so that none is always behind the same one. Each round has servers of its own: one and the
/// same program differs by a tenth from start to start, by where its memory lies.
fn rounds(case: &Case, sides: &[(Side, &Path)], options: &Options) -> Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::new(); sides.len()];
    for round in 0..options.repeat.max(1) {
        if std::io::stderr().is_terminal() {
            eprint!("\r{}: round {} of {} ", case.name, round + 1, options.repeat.max(1));
        }
        let servers = sides
            .iter()
            .map(|&(side, towpath)| Server::start(case, side, towpath))
            .collect::<Result<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..servers.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            samples[at].push(servers[at].measure(case, options.seconds)?);
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r{:70}\r", "");
    }
    Ok(samples)
}

/// A server that runs on one of the sides, ready for its client. Gone with it.
struct Server {
    // Ends first, its namespaces next.
    _run: Running,
    world: World,
    _scratch: Scratch,
}

impl Server {
    fn start(case: &Case, side: Side, towpath: &Path) -> Result<Self> {
        let world = World::new(side)?;
        let scratch = Scratch::new(&world.names[0])?;
        let server = (case.server)(&scratch.0);
        let mut line: Vec<String> = Vec::new();
        if side != Side::Kernel {
            line.extend([towpath.to_str().context("path")?.to_owned(), "run".into(), "-q".into()]);
            match side {
                Side::Tap => line.push("--tap".into()),
                _ => line.extend(["-p".to_owned(), format!("127.0.0.1:{PORT}:{PORT}")]),
            }
            line.push("--".into());
        }
        line.extend(server);
        let run = Running(world.command(world.server(), &line).spawn().context("server")?);
        let server = Self { _run: run, world, _scratch: scratch };
        wait_for(&server.world, server.world.host())?;
        Ok(server)
    }

    /// Tried again for a while where there is no figure: iperf3's server does not listen for a moment after each test.
    fn measure(&self, case: &Case, seconds: u32) -> Result<Sample> {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let result = self.try_to_measure(case, seconds);
            if result.is_ok() || Instant::now() > end {
                return result;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_to_measure(&self, case: &Case, seconds: u32) -> Result<Sample> {
        let before = busy()?;
        let start = Instant::now();
        let line = (case.client)(self.world.host(), seconds);
        let client =
            self.world.command(self.world.client(), &line).stdout(Stdio::piped()).output()?;
        let cores = (busy()? - before) / start.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&client.stdout);
        match (case.read)(&text) {
            Some(value) => Ok(Sample { value, cores }),
            None => bail!(
                "{} ({:?}): no figure in\n{text}{}",
                case.name,
                self.world.side,
                String::from_utf8_lossy(&client.stderr)
            ),
        }
    }
}

/// What `towpath run` costs while its program sleeps.
fn idle(towpath: &Path) -> Result<()> {
    let world = World::new(Side::Rootless)?;
    let path = towpath.to_str().context("path")?.to_owned();
    let line =
        [&path, "run", "-q", "--", "python3", "-m", "http.server", "7900"].map(str::to_owned);
    let mut run = Running(world.command(world.server(), &line).spawn()?);
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu_of(run.0.id())?;
    std::thread::sleep(Duration::from_secs(10));
    let used = cpu_of(run.0.id())? - before;
    println!("\nidle: {path} used {used:.2} s of CPU in 10 s");
    run.stop();
    Ok(())
}

/// A folder for what a server writes.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("towpath-bench-{name}"));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// The namespaces of one measurement; gone with it.
struct World {
    side: Side,
    names: Vec<String>,
}

impl World {
    fn new(side: Side) -> Result<Self> {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
        let names = match side {
            Side::Kernel => vec![format!("tpb-{id}-a"), format!("tpb-{id}-b")],
            _ => vec![format!("tpb-{id}-a")],
        };
        for name in &names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let world = Self { side, names };
        if let [a, b] = &world.names[..] {
            ip(&["-n", a, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", b])?;
            for (name, device, address) in [(a, "v0", "10.78.0.1/24"), (b, "v1", "10.78.0.2/24")] {
                ip(&["-n", name, "addr", "add", address, "dev", device])?;
                ip(&["-n", name, "link", "set", device, "up"])?;
                // Ours is CUBIC; the kernel's default may be anything.
                let net = "10.78.0.0/24";
                ip(&["-n", name, "route", "replace", net, "dev", device, "congctl", "cubic"])?;
            }
        }
        Ok(world)
    }

    fn client(&self) -> &str {
        &self.names[0]
    }

    fn server(&self) -> &str {
        self.names.last().expect("at least one")
    }

    fn host(&self) -> &'static str {
        match self.side {
            Side::Kernel => "10.78.0.2",
            Side::Tap => "10.77.0.2",
            Side::Rootless => "127.0.0.1",
        }
    }

    fn command(&self, name: &str, line: &[String]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).args(line);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = ip(&["netns", "del", name]) {
                eprintln!("{error}");
            }
        }
    }
}

fn wait_for(world: &World, host: &str) -> Result<()> {
    let script = format!("import socket; socket.create_connection(('{host}',{PORT}),1).close()");
    let line = ["python3".to_owned(), "-c".to_owned(), script];
    let end = Instant::now() + Duration::from_secs(15);
    while !world.command(world.client(), &line).status()?.success() {
        ensure!(Instant::now() < end, "the server never answered on {host}:{PORT}");
        std::thread::sleep(Duration::from_millis(50));
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

/// Seconds of CPU that one process used so far.
fn cpu_of(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = text.rsplit_once(") ").context("stat")?.1;
    let fields: Vec<&str> = after.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.)
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn iperf_server(_: &Path) -> Vec<String> {
    words(&format!("iperf3 -s -p {PORT}"))
}

fn iperf(host: &str, seconds: u32, more: &[&str]) -> Vec<String> {
    words(&format!("iperf3 -J -C cubic -c {host} -p {PORT} -t {seconds} {}", more.join(" ")))
}

fn gbits(text: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(report["end"]["sum_received"]["bits_per_second"].as_f64()? / 1e9)
}

fn nginx(scratch: &Path) -> Vec<String> {
    let root = scratch.display();
    let config = format!(
        "daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log; events {{}} \
         http {{ access_log off; keepalive_requests 1000000; \
         client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f; \
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s; \
         server {{ listen {PORT} backlog=1024; location / {{ return 200 'hello from nginx'; }} }} }}"
    );
    let path = scratch.join("nginx.conf");
    std::fs::write(&path, config).expect("scratch file");
    vec!["nginx".into(), "-c".into(), path.to_str().expect("plain").into()]
}

fn wrk(host: &str, seconds: u32, more: &[&str]) -> Vec<String> {
    let mut line = words(&format!("wrk -t1 -c64 -d{seconds}s"));
    line.extend(more.iter().map(|&m| m.to_owned()));
    line.push(format!("http://{host}:{PORT}/"));
    line
}

fn wrk_rate(text: &str) -> Option<f64> {
    text.lines().find_map(|l| l.strip_prefix("Requests/sec:"))?.trim().parse().ok()
}

fn redis(_: &Path) -> Vec<String> {
    words(&format!(
        "redis-server --port {PORT} --bind 0.0.0.0 --protected-mode no --save --appendonly no"
    ))
}

fn redis_get(host: &str, seconds: u32, pipeline: u32) -> Vec<String> {
    let n = seconds * 100_000 * pipeline.min(8);
    words(&format!("redis-benchmark -h {host} -p {PORT} -n {n} -c 50 -P {pipeline} -t get --csv"))
}

fn redis_rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|l| l.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}
