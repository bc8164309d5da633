//! Compares a tokio echo server on Towpath with the same program on the kernel, under
//! `towpath load`.
//!
//! The program is `examples/tokio_echo.rs`. The tester uses the kernel's sockets. The path to the
//! server is the kernel's loopback, a TAP device, or a published port of a rootless stack.
//!
//! In `examples/tokio_both_ends.rs`, clients and server are in one program, and use the loopback
//! interface of the kernel, or of one stack.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bench::cpu;
use crate::echo::{figures_of, memory};
use crate::namespace::{LOOPBACK, Namespace};
use crate::rounds::Rounds;
use crate::running::Running;
use crate::table::Table;
use crate::{interrupt, workspace};

#[derive(clap::Args)]
pub struct Options {
    /// Measure only these loads: echo-1, echo-100, echo-1000, connect, idle, both-1, both-100.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Folder with built programs: `towpath`, `examples/tokio_echo` and `tokio_both_ends`. Builds
    /// them unless given.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    #[command(flatten)]
    rounds: Rounds,
}

/// Loads by name, with the tester's options.
const LOADS: [(&str, &str); 5] = [
    ("echo-1", "--users 1"),
    ("echo-100", "--users 100"),
    ("echo-1000", "--users 1000"),
    ("connect", "--users 20 --shape connect"),
    ("idle", "--users 10000 --shape idle"),
];
/// Loads with clients and server in one program, by name, with the number of connections.
const BOTH_ENDS: [(&str, &str); 2] = [("both-1", "1"), ("both-100", "100")];
const PORT: u16 = 7900;
/// Command that starts a program with 65,536 descriptors, or with its hard limit. The gateway
/// shares its descriptors among kinds of flows and clients, so 10,000 idle connections of one
/// client through it need about 26,000.
const WITH_DESCRIPTORS: [&str; 4] =
    ["sh", "-c", "ulimit -n 65536 2>/dev/null || ulimit -Sn $(ulimit -Hn); exec \"$@\"", "sh"];

/// The stack below the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerStack {
    Kernel,
    Tap,
    Rootless,
}

/// Programs of the measurement.
struct Programs {
    towpath: PathBuf,
    server: PathBuf,
    both_ends: PathBuf,
}

/// Figures of one measurement.
struct Measured {
    /// The tester's own report.
    report: Value,
    /// Number of processors used by the server and its stack. The kernel attributes softirq work to
    /// the process that it interrupts.
    cores: f64,
    /// Peak resident memory of the server in bytes.
    memory: f64,
}

/// Measures and prints the table. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    let known: Vec<&str> = LOADS.iter().chain(&BOTH_ENDS).map(|(name, _)| *name).collect();
    for name in &options.only {
        ensure!(known.contains(&&**name), "{name:?} is not a load; there are {known:?}");
    }
    let is_wanted = |load| options.only.is_empty() || options.only.iter().any(|name| name == load);
    let programs = Programs::new(root, options.programs.as_deref())?;
    let heads =
        ["load", "stack", "answers/s", "p50 ms", "p99 ms", "failures", "cores", "tester", "MiB"];
    let table = Table::new(!options.rounds.json, &heads);
    let mut rows = Vec::new();
    for (load, words) in LOADS {
        if !is_wanted(load) {
            continue;
        }
        let mut all: Vec<Vec<Measured>> = ServerStack::ALL.map(|_| Vec::new()).into();
        for round in 1..=options.rounds.repeat {
            for (stack, measured) in ServerStack::ALL.iter().zip(&mut all) {
                crate::table::progress(&format!("round {round}: {load}, {}", stack.about()));
                let figures = stack.measure(&programs, words, options.rounds.seconds);
                let context = || format!("{load}, {}", stack.about());
                measured.push(figures.with_context(context)?);
                interrupt::check()?;
            }
        }
        crate::table::progress("");
        for (stack, measured) in ServerStack::ALL.iter().zip(&all) {
            let cells = row(load, *stack, measured);
            table.row(&cells.each_ref().map(|cell| cell as &dyn Display));
            let measured: Vec<_> = measured.iter().map(Measured::json).collect();
            rows.push(json!({ "load": load, "stack": stack.about(), "measurements": measured }));
        }
    }
    for (load, connections) in BOTH_ENDS.into_iter().filter(|(load, _)| is_wanted(load)) {
        for (side, about) in [("kernel", "kernel, loopback"), ("stack", "Towpath, loopback")] {
            crate::table::progress(&format!("{load}, {about}"));
            let rates = programs.both_ends(side, connections, &options.rounds)?;
            crate::table::progress("");
            let mut cells = [""; 9].map(str::to_owned);
            (cells[0], cells[1]) = (load.to_owned(), about.to_owned());
            cells[2] = format!("{:.0}", rates[rates.len() / 2]);
            table.row(&cells.each_ref().map(|cell| cell as &dyn Display));
            rows.push(json!({ "load": load, "stack": about, "echoes_per_s": rates }));
        }
    }
    if options.rounds.json {
        println!("{:#}", Value::Array(rows));
    }
    Ok(())
}

fn row(load: &str, stack: ServerStack, all: &[Measured]) -> [String; 9] {
    let median = |read: &dyn Fn(&Measured) -> f64| {
        let mut values: Vec<f64> = all.iter().map(read).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let number = |it: &Measured, key: &str| it.report[key].as_f64().unwrap_or(f64::NAN);
    let ms = |key: &'static str| {
        let us = median(&|it| it.report["response"][key].as_f64().unwrap_or(f64::NAN));
        format!("{:.2}", us / 1000.)
    };
    [
        load.to_owned(),
        stack.about().to_owned(),
        format!("{:.0}", median(&|it| number(it, "received") / number(it, "duration_s"))),
        ms("p50_us"),
        ms("p99_us"),
        format!("{:.0}", median(&Measured::failures)),
        format!("{:.2}", median(&|it| it.cores)),
        format!("{:.2}", median(&|it| number(it, "cpu_s") / number(it, "duration_s"))),
        format!("{:.0}", median(&|it| it.memory / f64::from(1 << 20))),
    ]
}

impl ServerStack {
    const ALL: [Self; 3] = [Self::Kernel, Self::Tap, Self::Rootless];

    fn about(self) -> &'static str {
        match self {
            Self::Kernel => "kernel, loopback",
            Self::Tap => "Towpath, TAP",
            Self::Rootless => "Towpath, rootless",
        }
    }

    /// Runs the server and the tester once.
    fn measure(self, programs: &Programs, load: &str, seconds: u64) -> Result<Measured> {
        let world = Namespace::new("host")?;
        world.use_cubic(LOOPBACK)?;
        world.allow_many_ports()?;
        let (server, port) = (programs.server.display().to_string(), PORT.to_string());
        let local = format!("127.0.0.1:{PORT}");
        let (words, address): (&[&str], _) = match self {
            Self::Kernel => (&["kernel", &local], "127.0.0.1"),
            Self::Tap => (&["tap", "tw0", &port], "10.77.0.2"),
            Self::Rootless => (&["rootless", &local, &port], "127.0.0.1"),
        };
        let line = [&WITH_DESCRIPTORS[..], &[&server], words].concat();
        let server = Running(world.command(&line).spawn().context("the server")?);
        world.wait_for(address, PORT)?;
        if self == Self::Tap {
            world.use_cubic("10.77.0.0/24 dev tw0 src 10.77.0.1")?;
        }
        let pid = server.0.id();
        let (before, start) = (cpu::of_tree(pid)?, Instant::now());
        let tester = programs.tester(address, load, seconds);
        let report = figures_of(&world.command(&tester).output()?)?;
        let cores = (cpu::of_tree(pid)? - before) / start.elapsed().as_secs_f64();
        Ok(Measured { report, cores, memory: memory(pid)? })
    }
}

impl Programs {
    fn new(root: &Path, built: Option<&Path>) -> Result<Self> {
        let folder = match built {
            Some(folder) => folder.to_owned(),
            None => {
                workspace::build_release(root, &["-p", "towpath-cli"])?;
                let examples = ["--example", "tokio_echo", "--example", "tokio_both_ends"];
                let library = ["-p", "towpath", "--features", "tokio"];
                workspace::build_release(root, &[&library[..], &examples].concat())?
            }
        };
        let example = |name: &str| folder.join("examples").join(name);
        let (server, both_ends) = (example("tokio_echo"), example("tokio_both_ends"));
        Ok(Self { towpath: folder.join("towpath"), server, both_ends })
    }

    /// Returns the echoes per second of each round, in ascending order.
    fn both_ends(&self, side: &str, connections: &str, rounds: &Rounds) -> Result<Vec<f64>> {
        let world = Namespace::new("both")?;
        let (program, seconds) = (self.both_ends.display().to_string(), rounds.seconds.to_string());
        let line = [&*program, side, connections, &seconds];
        let mut rates = Vec::new();
        for _ in 0..rounds.repeat {
            interrupt::check()?;
            let output = world.command(&line).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let rate = text.split_whitespace().next().and_then(|rate| rate.parse::<f64>().ok());
            let error = || String::from_utf8_lossy(&output.stderr).into_owned();
            rates.push(rate.with_context(error)?);
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates)
    }

    /// Returns the tester's command.
    fn tester(&self, address: &str, load: &str, seconds: u64) -> Vec<String> {
        let mut line: Vec<String> = WITH_DESCRIPTORS.map(str::to_owned).into();
        line.extend([self.towpath.display().to_string(), "load".to_owned()]);
        let words = format!(
            "--host {address}:{PORT} {load} --warmup 1s --duration {seconds}s --live never -o json"
        );
        line.extend(words.split_whitespace().map(str::to_owned));
        line
    }
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
