//! The nightly: checks that take long, or are judged over several runs. Run it by hand before a
//! larger change is considered finished.
//!
//! A failure does not stop the run, which prints a table at the end, optionally as JSON. `checks`
//! contains the list of checks.

mod busy;
mod checks;
mod dpdk;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::{debian, gate, interrupt};
use checks::{CHECKS, Check, World};
use verdict::Row;

#[derive(clap::Args)]
pub struct Options {
    /// Only these checks, by name, with commas between them.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Names the checks, with what each does, and runs none.
    #[arg(long)]
    list: bool,
    /// Runs of each check whose tests are judged by most of their runs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Seconds of each fuzz target.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    fuzz_seconds: u64,
    /// The commit that counts are compared with [default: the newest one of an earlier day].
    #[arg(long)]
    beside: Option<String>,
    /// Seed of property tests [default: a new one, which is printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Writes the table as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the selected checks, and prints the table. Returns an error if a check fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.list {
        CHECKS.iter().for_each(|check| println!("{:12} {}", check.name, check.about));
        return Ok(());
    }
    let checks = wanted(&options.only)?;
    interrupt::hold()?;
    debian::install_for_nightly()?;
    let world = World::new(root, options)?;
    let mut rows = Vec::new();
    for (n, check) in checks.iter().enumerate() {
        println!("== {} ({} of {}): {}", check.name, n + 1, checks.len(), check.about);
        let start = Instant::now();
        let attempts = (check.work)(&world, check);
        let is_interrupted = interrupt::check().is_err();
        let row = Row::of(check, attempts, start.elapsed());
        let row = if is_interrupted { row.interrupted() } else { row };
        println!("== {}: {}, {:.0} s", check.name, row.verdict(), start.elapsed().as_secs_f32());
        rows.push(row);
        if is_interrupted {
            break;
        }
    }
    verdict::print(&rows);
    if let Some(file) = &options.json {
        let all: Vec<_> = rows.iter().map(Row::json).collect();
        let text = format!("{:#}\n", json!({ "seed": world.seed, "checks": all }));
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    interrupt::check()?;
    let failed: Vec<&str> = rows.iter().filter(|row| row.has_failed()).map(Row::name).collect();
    ensure!(failed.is_empty(), "nightly: {} failed", failed.join(", "));
    Ok(())
}

fn wanted(names: &[String]) -> Result<Vec<&'static Check>> {
    for name in names {
        let known: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        ensure!(
            known.contains(&&**name),
            "{name:?} is not a check of the nightly; there are {}",
            known.join(", ")
        );
    }
    let is_wanted = |check: &&Check| names.is_empty() || names.iter().any(|it| it == check.name);
    Ok(CHECKS.iter().filter(is_wanted).collect())
}

/// Time limit of a test in the nightly.
const TEST_LIMIT: Duration = Duration::from_secs(1200);
/// Time limit of a check that is a single command.
const COMMAND_LIMIT: Duration = Duration::from_secs(4 * 3600);

impl World<'_> {
    fn new<'a>(root: &'a Path, options: &'a Options) -> Result<World<'a>> {
        let builds = gate::binaries::build(root)?;
        let seed = options.seed.map_or_else(new_seed, Ok)?;
        Ok(World { root, options, builds, seed })
    }
}

/// Returns a seed from the current time, which differs between runs.
fn new_seed() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(now.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_check_is_refused_and_the_checks_are_named() {
        let error = wanted(&["looom".into()]).err().expect("no such check").to_string();
        assert!(error.contains("\"looom\"") && error.contains("loom, "), "{error}");
        assert_eq!(wanted(&["loom".into()]).unwrap().len(), 1);
        assert_eq!(wanted(&[]).unwrap().len(), CHECKS.len());
    }
}
