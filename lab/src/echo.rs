//! Compares echo servers under `towpath load`: the experiment of docs/benchmarking.md.
//!
//! The servers run one after the other, each in its own network namespace. The tester reaches a
//! server over the kernel's loopback, directly or through a published port, over a TAP device, or
//! within one run.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bench::cpu;
use crate::bench::peers::{Peer, build_rust};
use crate::namespace::{LOOPBACK, Namespace};
use crate::running::Running;
use crate::table::Table;
use crate::{interrupt, workspace};

#[derive(clap::Args)]
pub struct Options {
    /// Number of connections; each has one request in flight.
    #[arg(long, default_value_t = 1000)]
    users: u32,
    /// Pause of a user between an answer and its next request.
    #[arg(long, default_value = "100ms")]
    interval: String,
    /// Time of each measurement.
    #[arg(long, default_value = "10s")]
    duration: String,
    /// Number of measurements per server, alternating between servers. The table has medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Measure only these servers: go, netpoll, std, tokio, tap, rootless, handlers-tap,
    /// handlers-rootless, both.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Print all measurements as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

const PORT: u16 = 7900;

/// A server and its stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Go,
    Netpoll,
    Std,
    Tokio,
    Tap,
    Rootless,
    HandlersTap,
    HandlersRootless,
    Both,
}

/// Programs of the measurement.
struct Built {
    towpath: PathBuf,
    /// The echo servers of the library.
    ours: PathBuf,
    go: PathBuf,
    rust: PathBuf,
}

/// Figures of one measurement.
struct Measured {
    /// The tester's own report.
    report: Value,
    /// Number of processors used by the server and the stack below it.
    cores: f64,
    /// Peak resident memory of the server and the stack below it, in bytes.
    memory: f64,
}

/// Measures and prints the table. Needs root, Go, and the registries of the peers' languages.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    let sides = wanted(&options.only)?;
    let built = Built::new(root)?;
    let mut all: Vec<Vec<Measured>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..options.repeat {
        for (side, measured) in sides.iter().zip(&mut all) {
            crate::table::progress(&format!("round {}: {}", round + 1, side.about()));
            measured.push(side.measure(&built, options).with_context(|| side.about())?);
            interrupt::check()?;
        }
    }
    crate::table::progress("");
    if options.json {
        let rows = sides.iter().zip(&all).map(|(side, all)| {
            json!({
                "server": side.about(),
                "measurements": all.iter().map(Measured::json).collect::<Vec<_>>(),
            })
        });
        println!("{:#}", Value::Array(rows.collect()));
        return Ok(());
    }
    let heads =
        ["server", "sent", "failures", "avg ms", "p90 ms", "p95 ms", "p99 ms", "cores", "MiB"];
    let table = Table::new(true, &heads);
    for (side, all) in sides.iter().zip(&all) {
        let median = |read: &dyn Fn(&Measured) -> f64| {
            let mut values: Vec<f64> = all.iter().map(read).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let ms = |name: &'static str| {
            let value = median(&move |it| it.report["response"][name].as_f64().unwrap_or(f64::NAN));
            format!("{:.2}", value / 1000.)
        };
        let count = |name: &'static str| {
            format!("{:.0}", median(&move |it| it.report[name].as_f64().unwrap_or(f64::NAN)))
        };
        let cells = [
            side.about().to_owned(),
            count("sent"),
            format!("{:.0}", median(&Measured::failures)),
            ms("mean_us"),
            ms("p90_us"),
            ms("p95_us"),
            ms("p99_us"),
            format!("{:.2}", median(&|it| it.cores)),
            format!("{:.0}", median(&|it| it.memory / f64::from(1 << 20))),
        ];
        table.row(&cells.each_ref().map(|cell| cell as &dyn std::fmt::Display));
    }
    Ok(())
}

impl Side {
    const ALL: [Self; 9] = [
        Self::Go,
        Self::Netpoll,
        Self::Std,
        Self::Tokio,
        Self::Tap,
        Self::Rootless,
        Self::HandlersTap,
        Self::HandlersRootless,
        Self::Both,
    ];

    fn key(self) -> &'static str {
        match self {
            Self::Go => "go",
            Self::Netpoll => "netpoll",
            Self::Std => "std",
            Self::Tokio => "tokio",
            Self::Tap => "tap",
            Self::Rootless => "rootless",
            Self::HandlersTap => "handlers-tap",
            Self::HandlersRootless => "handlers-rootless",
            Self::Both => "both",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Go => "Go net, kernel",
            Self::Netpoll => "netpoll, kernel",
            Self::Std => "std, kernel",
            Self::Tokio => "tokio, kernel",
            Self::Tap => "towpath::net, TAP",
            Self::Rootless => "towpath::net, rootless",
            Self::HandlersTap => "towpath::handler, TAP",
            Self::HandlersRootless => "towpath::handler, rootless",
            Self::Both => "std and tester in one `towpath run`",
        }
    }

    /// Runs the server and the tester once.
    fn measure(self, built: &Built, options: &Options) -> Result<Measured> {
        let world = Namespace::new("host")?;
        world.use_cubic(LOOPBACK)?;
        let (port, at) = (PORT.to_string(), format!("127.0.0.1:{PORT}"));
        let path = |path: &Path| path.display().to_string();
        let (ours, rust, go) = (path(&built.ours), path(&built.rust), path(&built.go));
        let (line, host): (Vec<&str>, _) = match self {
            Self::Go => (vec![&go, "net", &port], at.clone()),
            Self::Netpoll => (vec![&go, "netpoll", &port], at.clone()),
            Self::Std => (vec![&rust, "std", &at], at.clone()),
            Self::Tokio => (vec![&rust, "tokio", &at], at.clone()),
            Self::Tap => (vec![&ours, "std", "tap", "tw0", &port], format!("10.77.0.2:{PORT}")),
            Self::Rootless => (vec![&ours, "std", "rootless", &at, &port], at.clone()),
            Self::HandlersTap => {
                (vec![&ours, "handlers", "tap", "tw0", &port], format!("10.77.0.2:{PORT}"))
            }
            Self::HandlersRootless => (vec![&ours, "handlers", "rootless", &at, &port], at.clone()),
            Self::Both => return measure_both(&world, built, options),
        };
        let server = Running(world.command(&line).spawn().context("the server")?);
        let (address, port) = host.rsplit_once(':').context("a port")?;
        world.wait_for(address, port.parse()?)?;
        if matches!(self, Self::Tap | Self::HandlersTap) {
            world.use_cubic("10.77.0.0/24 dev tw0 src 10.77.0.1")?;
        }
        let pid = server.0.id();
        let (before, start) = (cpu::of_tree(pid)?, Instant::now());
        let tester = world.command(&tester(built, options, &host)).output()?;
        let cores = (cpu::of_tree(pid)? - before) / start.elapsed().as_secs_f64();
        Ok(Measured { report: figures_of(&tester)?, cores, memory: memory(pid)? })
    }
}

/// Measures server and tester as programs of one run. The run's CPU time without the tester's
/// counts as the server's.
fn measure_both(world: &Namespace, built: &Built, options: &Options) -> Result<Measured> {
    let at = format!("127.0.0.1:{PORT}");
    let tester = tester(built, options, &at).join(" ");
    let server = format!("{} std {at}", built.rust.display());
    let wait = format!("until (: < /dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.05; done");
    let script = format!("{server} & {wait}; {tester}; kill $!");
    let towpath = built.towpath.display().to_string();
    let mut command = world.command(&[&towpath, "run", "-q", "--", "bash", "-c", &script]);
    let me = std::process::id();
    let (before, start) = (cpu::of_ended_children(me)?, Instant::now());
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (pid, is_over) = (run.id(), AtomicBool::new(false));
    let (output, memory) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0f64;
            while !is_over.load(Relaxed) {
                most = memory(pid).unwrap_or(0.).max(most);
                std::thread::sleep(Duration::from_millis(100));
            }
            most
        });
        let output = run.wait_with_output();
        is_over.store(true, Relaxed);
        (output, watch.join().unwrap_or(0.))
    });
    let report = figures_of(&output?)?;
    let used = cpu::of_ended_children(me)? - before - report["cpu_s"].as_f64().unwrap_or(0.);
    Ok(Measured { report, cores: used / start.elapsed().as_secs_f64(), memory })
}

/// Returns the tester's command.
fn tester(built: &Built, options: &Options, host: &str) -> Vec<String> {
    let (towpath, users) = (built.towpath.display().to_string(), options.users.to_string());
    let words = [
        &*towpath,
        "load",
        "--host",
        host,
        "--users",
        &users,
        "--interval",
        &options.interval,
        "--duration",
        &options.duration,
        "--live",
        "never",
        "-o",
        "json",
    ];
    words.map(str::to_owned).into()
}

/// Returns the figures of the tester's JSON output.
pub fn figures_of(output: &Output) -> Result<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    let document: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the tester gave no figures: {}", said.trim()))?;
    Ok(document["run"].clone())
}

/// Returns the peak resident memory of a process and its descendants except testers, in bytes.
pub fn memory(pid: u32) -> Result<f64> {
    let of_one = |pid: u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if arguments.split(|byte| *byte == 0).nth(1) == Some(b"load") {
            return 0.;
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kib.unwrap_or(0.) * 1024.
    };
    Ok(of_one(pid) + cpu::descendants(pid)?.into_iter().map(of_one).sum::<f64>())
}

impl Measured {
    fn failures(&self) -> f64 {
        let kinds = self.report["failures"].as_array().map_or(&[][..], Vec::as_slice);
        kinds.iter().filter_map(|kind| kind["count"].as_u64()).sum::<u64>() as f64
    }

    fn json(&self) -> Value {
        json!({ "report": self.report, "cores": self.cores, "memory_bytes": self.memory })
    }
}

impl Built {
    fn new(root: &Path) -> Result<Self> {
        let target = workspace::target(root);
        workspace::build_release(root, &["-p", "towpath-cli"])?;
        let example = ["-p", "towpath", "--features", "tokio", "--example", "echoes"];
        let release = workspace::build_release(root, &example)?;
        let program = |name: &str| release.join(name);
        Ok(Self {
            towpath: program("towpath"),
            ours: program("examples/echoes"),
            go: Peer::Go.build(root, &target)?,
            rust: build_rust(root, &target, "rust-echo")?,
        })
    }
}

fn wanted(names: &[String]) -> Result<Vec<Side>> {
    let known = Side::ALL.map(Side::key);
    for name in names {
        ensure!(known.contains(&&**name), "{name:?} is not a server; there are {known:?}");
    }
    let is_wanted = |side: &Side| names.is_empty() || names.iter().any(|it| it == side.key());
    Ok(Side::ALL.into_iter().filter(is_wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_refused_by_name() {
        let error = wanted(&["nginx".into()]).err().expect("no such server").to_string();
        assert!(error.contains("nginx") && error.contains("rootless"), "{error}");
        assert!(wanted(&[]).is_ok_and(|all| all.len() == Side::ALL.len()));
    }
}
