//! Runs random worlds of the simulator.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

#[derive(clap::Args)]
pub struct Options {
    /// Number of worlds; a thousand take some ten seconds on one processor.
    #[arg(long, default_value_t = 1_000)]
    scenarios: u64,
    /// Seed of the first world. A violation is reported with the seed and scenario of its world.
    #[arg(long, default_value_t = 1_000)]
    seed: u64,
    /// Number of threads; defaults to the number of processors.
    #[arg(long)]
    jobs: Option<usize>,
    /// Check only the scenario of this file, with the seed in the file.
    #[arg(long, conflicts_with_all = ["scenarios", "seed", "jobs"])]
    file: Option<PathBuf>,
    /// Directory for captures of all links; requires --file.
    #[arg(long, requires = "file")]
    pcap: Option<PathBuf>,
}

/// Builds the program that runs the worlds, with optimization, and runs it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--release", "--package", "towpath-sim"]);
    command.args(["--example", "explore", "--"]).current_dir(root);
    // Make paths absolute, because the program starts in another directory.
    let absolute = |path: &Path| std::path::absolute(path).context("the current folder");
    match &options.file {
        Some(file) => {
            command.arg("--file").arg(absolute(file)?);
            if let Some(folder) = &options.pcap {
                command.arg("--pcap").arg(absolute(folder)?);
            }
        }
        None => {
            command.args(["--scenarios", &options.scenarios.to_string()]);
            command.args(["--seed", &options.seed.to_string()]);
            if let Some(jobs) = options.jobs {
                command.args(["--jobs", &jobs.to_string()]);
            }
        }
    }
    let status = command.status().context("cargo run")?;
    ensure!(status.success(), "a world breaks a rule; its seed and its scenario are above");
    Ok(())
}
