//! Measures several shards of one host, over an in-memory port (`core/stack/examples/shards`). The
//! figures show whether two shards on two processors do twice the work of one. Further figures show
//! whether a packet costs more with more shards.
//!
//! Like a device with several queues, the port puts each packet into the queue of its owner. Shards
//! should therefore hand over no packets, and hand-overs are reported. Each shard's thread also
//! generates the packets of its queue. Figures therefore include stack, device and clients, and are
//! only meaningful in comparison.

mod callgrind;
mod trace;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::figures::{Figure, Interval, Median, Sample};
use crate::table::{Table, progress};
use crate::workspace::build_release;
pub use callgrind::instructions;
use trace::Counts;

#[derive(clap::Args)]
pub struct Options {
    /// Measure only work whose name contains this: requests, datagrams, receive, send.
    #[arg(long, default_value = "")]
    only: String,
    /// Duration of each run in milliseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..))]
    ms: u32,
    /// Number of rounds; medians are reported. With 0, times are not measured.
    #[arg(long, default_value_t = 15)]
    repeat: usize,
    /// Number of turns per shard whose memory accesses are counted under valgrind. With 0, none are
    /// counted.
    #[arg(long, default_value_t = 32)]
    turns: u32,
    /// Print a JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// Kind of work by a program and its peers, and its count.
struct Work {
    name: &'static str,
    unit: &'static str,
    /// Index in the example's output line: packets, requests, bytes, messages between shards.
    field: usize,
    scale: f64,
}

const WORK: &[Work] = &[
    Work { name: "requests", unit: "requests/s", field: 1, scale: 1. },
    Work { name: "datagrams", unit: "requests/s", field: 1, scale: 1. },
    Work { name: "receive", unit: "Gbit/s", field: 2, scale: 8e-9 },
    Work { name: "send", unit: "Gbit/s", field: 2, scale: 8e-9 },
];
const PACKETS: usize = 0;
const MAIL: usize = 3;

/// Number of hosts, and of shards per host. Two independent hosts show the maximum that this
/// machine can do, which two shards cannot exceed.
const SIDES: [(usize, usize); 3] = [(1, 1), (1, 2), (2, 1)];
/// Numbers of shards for which the cost of a packet is counted.
const COUNTS: &[usize] = &[1, 2, 4, 8];

/// Measures and prints the tables.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let example = build(root)?;
    let work: Vec<&Work> = WORK.iter().filter(|it| it.name.contains(&options.only)).collect();
    ensure!(!work.is_empty(), "{}: there is no such work", options.only);
    let mut report = json!({});
    if options.repeat > 0 {
        report["times"] = times(&example, &work, options)?;
    }
    if options.turns > 0 {
        report["packets"] = packets(&example, &work, options)?;
    }
    if options.json {
        println!("{report:#}");
    }
    Ok(())
}

/// Builds the example, and returns its path.
fn build(root: &Path) -> Result<PathBuf> {
    let release = build_release(root, &["-p", "towpath-stack", "--example", "shards"])?;
    Ok(release.join("examples/shards"))
}

/// Measures work per second.
fn times(example: &Path, all: &[&Work], options: &Options) -> Result<Value> {
    let processors = std::thread::available_parallelism()?.get();
    ensure!(processors >= 2, "two shards need two processors; --repeat 0 measures no times");
    let table = Table::new(
        !options.json,
        &[
            "work",
            "unit",
            "1 shard",
            "2 shards",
            "ratio",
            "2 hosts of 1",
            "ratio",
            "packets/s, 1 shard",
            "2 shards",
            "mail a packet",
        ],
    );
    let mut rows = Vec::new();
    for work in all {
        let [one, two, apart] = rounds(example, work, options)?;
        let values = [&one, &two, &apart].map(|side| Median::of(&side.values));
        let packets = [&one, &two].map(|side| Median::of(&side.packets));
        let ratios = [&two, &apart].map(|side| Interval::of_ratios(&side.values, &one.values));
        let mail = two.mail / two.packets.iter().map(|sample| sample.value).sum::<f64>();
        table.row(&[
            &work.name,
            &work.unit,
            &values[0].figure(),
            &values[1].figure(),
            &ratios[0],
            &values[2].figure(),
            &ratios[1],
            &packets[0].figure(),
            &packets[1].figure(),
            &format!("{mail:.3}"),
        ]);
        rows.push(json!({
            "work": work.name,
            "unit": work.unit,
            "one": values[0].json(),
            "two": values[1].json(),
            "two_ratio": ratios[0].json(),
            "apart": values[2].json(),
            "apart_ratio": ratios[1].json(),
            "packets_one": packets[0].json(),
            "packets_two": packets[1].json(),
            "mail_a_packet": mail,
        }));
    }
    Ok(rows.into())
}

/// Results of one of [`SIDES`] in all rounds.
struct Side {
    values: Vec<Sample>,
    packets: Vec<Sample>,
    mail: f64,
}

/// Runs all sides in turn, in reverse order in every second round, so that other load on the
/// machine affects all of them alike.
fn rounds(example: &Path, work: &Work, options: &Options) -> Result<[Side; SIDES.len()]> {
    let mut sides =
        [const { Side { values: Vec::new(), packets: Vec::new(), mail: 0. } }; SIDES.len()];
    for round in 0..options.repeat {
        progress(&format!("{}: round {} of {}", work.name, round + 1, options.repeat));
        let mut order: Vec<usize> = (0..SIDES.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (hosts, shards) = SIDES[at];
            let words = [hosts.to_string(), shards.to_string(), work.name.to_owned()];
            let mut command = Command::new(example);
            command.arg("time").args(words).arg(options.ms.to_string());
            let output = command.stderr(Stdio::inherit()).output().context("the example")?;
            ensure!(output.status.success(), "{}: {}", work.name, output.status);
            let fields = fields(&String::from_utf8_lossy(&output.stdout))?;
            // The threads of all shards are never idle.
            let cores = (hosts * shards) as f64;
            let side = &mut sides[at];
            side.values.push(Sample { value: fields[work.field] * work.scale, cores, parts: None });
            side.packets.push(Sample { value: fields[PACKETS], cores, parts: None });
            side.mail += fields[MAIL];
        }
    }
    progress("");
    Ok(sides)
}

/// Counts instructions and cache lines per packet, which do not depend on time.
fn packets(example: &Path, all: &[&Work], options: &Options) -> Result<Value> {
    let is_there = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !is_there.is_ok_and(|it| it.success()) {
        eprintln!("no instructions and cache lines are counted: valgrind is not installed");
        return Ok(Value::Null);
    }
    let table = Table::new(
        !options.json,
        &[
            "work",
            "shards",
            "instructions a packet",
            "lines read that another shard wrote, a packet",
            "lines written that another shard has, a packet",
            "mail a packet",
        ],
    );
    let mut rows = Vec::new();
    for work in all {
        for &shards in COUNTS {
            progress(&format!("{}: {shards} shards", work.name));
            let (counts, fields) = traced(example, work, shards, options.turns)?;
            progress("");
            let each = |count: u64| count as f64 / fields[PACKETS];
            let Counts { instructions, lines_read, lines_written } = counts;
            let mail = fields[MAIL] / fields[PACKETS];
            table.row(&[
                &work.name,
                &shards,
                &Figure(each(instructions)),
                &format!("{:.3}", each(lines_read)),
                &format!("{:.3}", each(lines_written)),
                &format!("{mail:.3}"),
            ]);
            rows.push(json!({
                "work": work.name, "shards": shards, "packets": fields[PACKETS],
                "instructions_a_packet": each(instructions),
                "lines_read_a_packet": each(lines_read),
                "lines_written_a_packet": each(lines_written), "mail_a_packet": mail,
            }));
        }
    }
    Ok(rows.into())
}

/// Runs the example under valgrind. Returns the counts, and the totals that the example prints.
fn traced(example: &Path, work: &Work, shards: usize, turns: u32) -> Result<(Counts, Vec<f64>)> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes", "--log-fd=1"]).arg(example);
    command.args(["trace", &shards.to_string(), work.name, &turns.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Traced(command.spawn().context("valgrind")?);
    let trace = BufReader::with_capacity(1 << 20, child.0.stdout.take().context("piped")?);
    let (mut said, mut go) = (
        BufReader::new(child.0.stderr.take().context("piped")?),
        child.0.stdin.take().context("piped")?,
    );
    let marks = OnceLock::new();
    std::thread::scope(|scope| {
        // Read the trace concurrently, because the program blocks when the pipe is full.
        let talk = scope.spawn(|| -> Result<String> {
            let mut line = String::new();
            said.read_line(&mut line)?;
            let at = line.strip_prefix("marks ").with_context(|| line.clone())?;
            marks.get_or_init(|| u64::from_str_radix(at.trim_end(), 16).unwrap_or(0));
            writeln!(go)?;
            line.clear();
            said.read_to_string(&mut line)?;
            Ok(line)
        });
        let counts = trace::read(trace, || marks.get().copied());
        let said = talk.join().expect("it does not panic")?;
        let counts = counts.with_context(|| format!("{}, {shards} shards: {said}", work.name))?;
        Ok((counts, fields(&said)?))
    })
}

/// A process that is killed when dropped.
struct Traced(Child);

impl Drop for Traced {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        if let Err(error) = self.0.wait() {
            eprintln!("valgrind: {error}");
        }
    }
}

fn fields(said: &str) -> Result<Vec<f64>> {
    let line = said.lines().last().unwrap_or_default();
    let fields: Vec<f64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
    ensure!(fields.len() == MAIL + 1, "the example says: {said}");
    Ok(fields)
}
