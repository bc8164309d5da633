//! Ours beside the kernel's, in one run: the numbers of docs/benchmarking.md.
//!
//! The kernel's side is the same server in a network namespace of its own, behind a veth pair; ours
//! is the server under `towpath run`, over TAP or rootless. Client and server share this machine's
//! cores in every case, so ratios mean something and absolute figures little. CPU is what the
//! whole machine spent, in cores, while the client ran.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

#[derive(clap::Args)]
pub struct Options {
    /// Seconds per measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Repetitions; the median is reported.
    #[arg(long, default_value_t = 3)]
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

const SIDES: [Side; 3] = [Side::Kernel, Side::Tap, Side::Rootless];

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
    for case in CASES.iter().filter(|c| c.name.contains(&options.only)) {
        let mut samples = [const { Vec::new() }; 3];
        // Interleaved, so that a change of the machine's mood hits all sides alike.
        for _ in 0..options.repeat {
            for (side, samples) in SIDES.iter().zip(&mut samples) {
                samples.push(measure(case, *side, &towpath, options.seconds)?);
            }
        }
        let [kernel, tap, rootless] = samples.map(median);
        println!(
            "| {} | {} | {:.4} ({:.2}) | {:.4} ({:.2}) | {:.2} | {:.4} ({:.2}) | {:.2} |",
            case.name,
            case.unit,
            Figure(kernel.0),
            kernel.1,
            Figure(tap.0),
            tap.1,
            tap.0 / kernel.0,
            Figure(rootless.0),
            rootless.1,
            rootless.0 / kernel.0,
        );
    }
    idle(&towpath)
}

/// Two builds, each over TAP and rootless.
fn beside(other: &Path, towpath: &Path, options: &Options) -> Result<()> {
    println!("| measurement | unit | side | other (cores) | this (cores) | ratio |");
    println!("|---|---|---|---|---|---|");
    for case in CASES.iter().filter(|c| c.name.contains(&options.only)) {
        for side in [Side::Tap, Side::Rootless] {
            let mut samples = [const { Vec::new() }; 2];
            for _ in 0..options.repeat {
                for (binary, samples) in [other, towpath].into_iter().zip(&mut samples) {
                    samples.push(measure(case, side, binary, options.seconds)?);
                }
            }
            let [other, this] = samples.map(median);
            println!(
                "| {} | {} | {side:?} | {:.4} ({:.2}) | {:.4} ({:.2}) | {:.2} |",
                case.name,
                case.unit,
                Figure(other.0),
                other.1,
                Figure(this.0),
                this.1,
                this.0 / other.0,
            );
        }
    }
    idle(other)?;
    idle(towpath)
}

struct Figure(f64);

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 < 1000. { write!(f, "{:.1}", self.0) } else { write!(f, "{:.0}", self.0) }
    }
}

fn median(mut samples: Vec<(f64, f64)>) -> (f64, f64) {
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    samples[samples.len() / 2]
}

fn measure(case: &Case, side: Side, towpath: &Path, seconds: u32) -> Result<(f64, f64)> {
    let world = World::new(side)?;
    let scratch = std::env::temp_dir().join(format!("towpath-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let server = (case.server)(&scratch);
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
    let mut server = Running(world.command(world.server(), &line).spawn().context("server")?);
    let host = world.host();
    wait_for(&world, host)?;
    let before = busy()?;
    let start = Instant::now();
    let client = world
        .command(world.client(), &(case.client)(host, seconds))
        .stdout(Stdio::piped())
        .output()?;
    let cores = (busy()? - before) / start.elapsed().as_secs_f64();
    let text = String::from_utf8_lossy(&client.stdout);
    server.stop();
    std::fs::remove_dir_all(&scratch)?;
    let Some(value) = (case.read)(&text) else {
        bail!(
            "{} ({side:?}): no figure in\n{text}{}",
            case.name,
            String::from_utf8_lossy(&client.stderr)
        );
    };
    Ok((value, cores))
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

/// The namespaces of one measurement; gone with it.
struct World {
    side: Side,
    names: Vec<String>,
}

impl World {
    fn new(side: Side) -> Result<Self> {
        let id = std::process::id();
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

struct Running(Child);

impl Running {
    fn stop(&mut self) {
        let pid = self.0.id().to_string();
        let told = Command::new("kill").arg(&pid).status();
        let end = Instant::now() + Duration::from_secs(5);
        while told.is_ok() && Instant::now() < end {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("server {pid}: {error}");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(arguments).status().context("ip")?;
    ensure!(status.success(), "ip {} failed (root is needed)", arguments.join(" "));
    Ok(())
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
    let n = seconds * 40_000 * pipeline.min(8);
    words(&format!("redis-benchmark -h {host} -p {PORT} -n {n} -c 50 -P {pipeline} -t get --csv"))
}

fn redis_rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|l| l.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}
