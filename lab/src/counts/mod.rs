//! Counts the costs of a request, a connection and a byte. Unlike times, counts do not depend on
//! other work on the machine. With `--beside`, compares them with another commit's build,
//! alternating on this machine.
//!
//! Reading order: `workloads` runs the work; `tracer` counts its system calls, `threads` its
//! context switches, and `copies` its copies. `report` formats tables, and `beside` compares.
//! `crate::shards` counts the stack's own instructions.

mod beside;
mod copies;
mod names;
mod report;
mod server;
mod threads;
mod tracer;
mod workloads;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::sides::{Hosting, Side, Uplink};
use crate::interrupt;
use crate::table::progress;
use crate::workspace::{build_lab, build_release};
use beside::{Build, Comparison, Other};
use report::{Counted, Row, Rows};
use workloads::{Programs, WORKLOADS, Workload};

#[derive(clap::Args)]
pub struct Options {
    /// Measure only workloads whose names contain this: "redis GET", "nginx", "bulk",
    /// "instructions".
    #[arg(long, default_value = "")]
    only: String,
    /// Print a JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// List the code that copies, by decreasing number of copied bytes.
    #[arg(long, conflicts_with = "json")]
    copies: bool,
    /// Also build this commit, and report the counts that have risen since. Fails if there are any.
    #[arg(long, value_name = "COMMIT")]
    beside: Option<String>,
    /// Number of runs of each build with --beside. A rise counts only if it exceeds their
    /// variation.
    #[arg(long, default_value_t = 3, requires = "beside")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

const SIDES: [Side; 5] = [
    Side::Kernel,
    Side::Ours(Hosting::Run, Uplink::Tap),
    Side::Ours(Hosting::Run, Uplink::Rootless),
    Side::Ours(Hosting::Inline, Uplink::Tap),
    Side::Ours(Hosting::Inline, Uplink::Rootless),
];
/// Name of the count of the stack's own instructions; the kind of work is appended.
const INSTRUCTIONS: &str = "instructions";

/// Counts, prints tables, and compares builds. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    crate::debian::install()?;
    is_possible()?;
    let is_wanted = |name: &str| name.contains(&options.only);
    let work: Vec<&Workload> = WORKLOADS.iter().filter(|it| is_wanted(it.name)).collect();
    let has_instructions = is_wanted(INSTRUCTIONS);
    ensure!(!work.is_empty() || has_instructions, "{}: there is no such count", options.only);
    let other = options.beside.as_ref().map(|commit| Other::build(root, commit)).transpose()?;
    let mut rows = Rows::new(options.json, options.copies);
    let mut comparison = Comparison::default();
    if !work.is_empty() {
        let counter = Counter::new(root, options, other.as_ref())?;
        for (work, side) in work.iter().flat_map(|&work| SIDES.map(|side| (work, side))) {
            rows.add(counter.count(work, side, &mut comparison)?);
        }
    }
    if has_instructions {
        rows.add_instructions(&instructions(root, other.as_ref(), &mut comparison)?);
    }
    rows.end(other.as_ref().map_or(Value::Null, |_| comparison.json()));
    other.map_or(Ok(()), |other| judge(&other, &comparison))
}

/// Fails if the kernel does not support tracing of system calls, or does not permit SCHED_FIFO to
/// this user.
fn is_possible() -> Result<()> {
    tracer::Tracer::new()?;
    let first = Command::new("chrt").args(["-f", "1", "true"]).status().context("chrt")?;
    ensure!(
        first.success(),
        "counts need SCHED_FIFO, which this user may not set (chrt -f 1 true)"
    );
    Ok(())
}

/// Prints the changed counts. Fails if any has increased.
fn judge(other: &Other, comparison: &Comparison) -> Result<()> {
    let Other { commit, .. } = other;
    let list = |all: Vec<String>| all.join("\n  ");
    let fallen = comparison.fallen();
    if !fallen.is_empty() {
        eprintln!("\nLower than with {commit}:\n  {}", list(fallen));
    }
    let risen = comparison.risen();
    if !risen.is_empty() {
        bail!("higher than with {commit}, beyond what the runs of both differ:\n  {}", list(risen));
    }
    Ok(())
}

/// Counts instructions per packet. Returns those of this build, and adds those of both builds to
/// the comparison.
fn instructions(
    root: &Path,
    other: Option<&Other>,
    comparison: &mut Comparison,
) -> Result<Vec<(&'static str, f64)>> {
    progress(INSTRUCTIONS);
    let counted = |all: &[(&'static str, f64)]| -> Vec<Counted> {
        let what = |name: &str| format!("{INSTRUCTIONS}, {name}");
        all.iter().map(|&(name, each)| Counted { what: what(name), each }).collect()
    };
    if let Some(other) = other {
        let before = crate::shards::instructions(&other.checkout)?;
        comparison.add(Build::Before, counted(&before));
    }
    let now = crate::shards::instructions(root)?;
    comparison.add(Build::Now, counted(&now));
    progress("");
    Ok(now)
}

/// Builds to count, and the number of runs of each.
struct Counter {
    /// `towpath` of this build.
    own: PathBuf,
    /// Directory of `lockstep` and `copies`.
    tools: PathBuf,
    /// `towpath` of the other build.
    other: Option<PathBuf>,
    runs: u32,
    has_copies: bool,
}

impl Counter {
    fn new(root: &Path, options: &Options, other: Option<&Other>) -> Result<Self> {
        let own = build_release(root, &["-p", "towpath-cli"])?.join("towpath");
        let tools = build_lab(root, &["towpath-lab-copies", "towpath-lab-load"])?;
        let copies = copies::is_possible(&tools);
        if let Err(why) = &copies {
            eprintln!("copies are left out, for this machine does not let one count them: {why:#}");
        }
        let other = other.map(Other::towpath);
        let runs = if other.is_some() { options.runs } else { 1 };
        Ok(Self { own, tools, other, runs, has_copies: copies.is_ok() })
    }

    /// Counts a workload on one side, alternating between both builds. Returns the rows of this
    /// build's first run.
    fn count(&self, work: &Workload, side: Side, comparison: &mut Comparison) -> Result<Vec<Row>> {
        let once = |towpath: &Path| -> Result<Vec<Row>> {
            let programs = Programs { towpath, tools: &self.tools };
            Ok(Row::of(work, side, &work.count(side, programs, self.has_copies)?))
        };
        // The kernel's side does not depend on the build.
        let other = self.other.as_ref().filter(|_| side != Side::Kernel);
        let runs = if other.is_some() { self.runs } else { 1 };
        let mut first = None;
        for run in 1..=runs {
            progress(&format!("{}: {side}, run {run} of {runs}", work.name));
            if let Some(other) = other {
                let rows = once(other)?;
                comparison.add(Build::Before, rows.iter().flat_map(Row::counted).collect());
            }
            let rows = once(&self.own)?;
            if other.is_some() {
                comparison.add(Build::Now, rows.iter().flat_map(Row::counted).collect());
            }
            first.get_or_insert(rows);
        }
        progress("");
        Ok(first.unwrap_or_default())
    }
}
