//! What a request, a connection and a byte cost in things that are counted and not timed, held to the numbers in
//! `xtask/counts.json`: so that it is seen when one of them rises, on a machine that others use as well.
//!
//! Reading order: `workloads` is what is done and counted, with `tracer` for system calls, `threads` for sleeps and `copies`;
//! `report` has the tables, `expected` the numbers. Instructions of the stack alone are counted by `crate::shards`.

mod copies;
mod expected;
mod names;
mod report;
mod server;
mod threads;
mod tracer;
mod workloads;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::bench::sides::{Hosting, Side, Uplink};
use crate::interrupt;
use expected::{Counted, Expected};
use report::{COPIES, Row, Rows};
use workloads::{Unit, WORKLOADS, Workload};

#[derive(clap::Args, Default)]
pub struct Options {
    /// Only what has this in its name: "redis GET", "nginx", "bulk", "instructions".
    #[arg(long, default_value = "")]
    only: String,
    /// One JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Say which code copies, the first that copies the most.
    #[arg(long, conflicts_with = "json")]
    copies: bool,
    /// Write what was counted to xtask/counts.json.
    #[arg(long)]
    update: bool,
}

const SIDES: [Side; 5] = [
    Side::Kernel,
    Side::Ours(Hosting::Run, Uplink::Tap),
    Side::Ours(Hosting::Run, Uplink::Rootless),
    Side::Ours(Hosting::Inline, Uplink::Tap),
    Side::Ours(Hosting::Inline, Uplink::Rootless),
];
/// What is more than expected is counted again so often: something else may have happened on the machine.
const AGAIN: usize = 2;
/// The name of what is counted of the stack alone, and its work behind it.
const INSTRUCTIONS: &str = "instructions";

/// Whether the kernel writes down system calls, and lets this user say who runs first.
pub fn is_possible() -> Result<()> {
    crate::debian::install()?;
    tracer::Tracer::new()?;
    let first = Command::new("chrt").args(["-f", "1", "true"]).status().context("chrt")?;
    ensure!(first.success(), "SCHED_FIFO is refused");
    Ok(())
}

/// Counts, prints tables, and compares with what is expected. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    crate::debian::install()?;
    let mut expected = Expected::read(root)?;
    let is_wanted = |name: &str| name.contains(&options.only);
    let (mut counted, mut rows) = (Vec::new(), Rows::new(options.json, options.copies));
    let mut has_copies = true;
    let work: Vec<&Workload> = WORKLOADS.iter().filter(|it| is_wanted(it.name)).collect();
    ensure!(
        !work.is_empty() || is_wanted(INSTRUCTIONS),
        "{}: there is no such count",
        options.only
    );
    if !work.is_empty() {
        let programs = build(root)?;
        if let Err(why) = copies::is_possible(&programs) {
            eprintln!("copies are left out, for this machine does not let one count them: {why:#}");
            has_copies = false;
            expected.leave_out(&COPIES);
        }
        for (work, side) in work.iter().flat_map(|&work| SIDES.map(|side| (work, side))) {
            progress(&format!("{}: {side}", work.name));
            let (of_work, numbers) = count(work, side, &programs, has_copies, &expected)?;
            progress("");
            rows.add(of_work);
            counted.extend(numbers);
        }
    }
    if is_wanted(INSTRUCTIONS) {
        progress(INSTRUCTIONS);
        let instructions = crate::shards::instructions(root)?;
        progress("");
        rows.add_instructions(&instructions);
        counted.extend(instructions.into_iter().map(|(name, each)| Counted {
            what: format!("{INSTRUCTIONS}, {name}"),
            each,
            unit: Unit::Packet,
            is_kib: false,
        }));
    }
    rows.end();
    let is_all = options.only.is_empty();
    if options.update {
        return expected.update(&counted, is_all);
    }
    compare(&expected, &counted, is_all)
}

/// An error if anything is worse than expected.
fn compare(expected: &Expected, counted: &[Counted], is_all: bool) -> Result<()> {
    let better = expected.better(counted);
    if !better.is_empty() {
        eprintln!(
            "\nThese may be lowered, by `cargo xtask counts --update`:\n  {}",
            better.join("\n  ")
        );
    }
    let mut worse = expected.worse(counted);
    if is_all {
        worse.extend(expected.forgotten(counted));
    }
    if !worse.is_empty() {
        bail!(
            "counts (if it has to be so: `cargo xtask counts --update`):\n  {}",
            worse.join("\n  ")
        );
    }
    Ok(())
}

/// One workload on one side: its rows, and what of them is asserted. The kernel's figures are there to compare with.
fn count(
    work: &Workload,
    side: Side,
    programs: &Path,
    has_copies: bool,
    expected: &Expected,
) -> Result<(Vec<Row>, Vec<Counted>)> {
    let once = || -> Result<(Vec<Row>, Vec<Counted>)> {
        let rows = Row::of(work, side, &work.count(side, programs, has_copies)?);
        let asserted = rows.iter().filter(|_| side != Side::Kernel);
        let counted = asserted.flat_map(|row| row.asserted(work.unit)).collect();
        Ok((rows, counted))
    };
    let mut best = once()?;
    for _ in 0..AGAIN {
        let worse = expected.worse(&best.1).len();
        if worse == 0 {
            break;
        }
        let again = once()?;
        if expected.worse(&again.1).len() < worse {
            best = again;
        }
    }
    Ok(best)
}

/// The folder of what was built. Each by itself: together, their dependencies would have other features, and all of
/// them be built once more.
fn build(root: &Path) -> Result<PathBuf> {
    for package in [&["towpath-cli"][..], &["towpath-tests", "--bins"], &["towpath-bench-copies"]] {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--release", "-p"]).args(package).current_dir(root);
        ensure!(build.status()?.success(), "the release build failed");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    Ok(target.join("release"))
}

fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{what:70}\r");
    }
}
