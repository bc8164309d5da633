//! Random worlds of the simulator, as many as are asked for.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

#[derive(clap::Args)]
pub struct Options {
    /// Number of worlds; a thousand take some seconds.
    #[arg(long, default_value_t = 1_000)]
    scenarios: u64,
    /// Seed of the first world. A world that fails is told with its seed and its scenario.
    #[arg(long, default_value_t = 1_000)]
    seed: u64,
}

/// The test that runs them.
const TEST: &str = "nightly::transfers_arrive_whole_in_many_worlds";

/// Builds the worlds' test and runs it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--package", "towpath-sim", "--test", "random", "--"])
        .args(["--exact", TEST])
        .env("TOWPATH_WORLDS", format!("{}:{}", options.seed, options.scenarios))
        .current_dir(root)
        .status()
        .context("cargo test")?;
    ensure!(status.success(), "a world fails; its seed and its scenario are above");
    println!("sim: {} worlds from seed {} are in order", options.scenarios, options.seed);
    Ok(())
}
