//! The project's own chores: `cargo xtask test` is what CI runs, the rest are its parts.
#![allow(clippy::print_stdout, clippy::print_stderr)] // Chores talk to who runs them.
#![forbid(unsafe_code)]

mod bench;
mod circles;
mod debian;
mod findings;
mod fuzz;
mod licences;
mod requirements;
mod test;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;

/// Chores of the Towpath project.
#[derive(Parser)]
enum Chore {
    /// Everything that CI checks: format, lints, tidy, licences, unit tests, loom, real programs.
    Test(test::Options),
    /// Ours beside the kernel's in one run: throughput, requests a second, idle CPU (needs root).
    Bench(bench::Options),
    /// Searches for inputs that make a harness of `fuzz/` fail, by coverage (needs a C++ compiler).
    Fuzz(fuzz::Options),
    /// Layer edges, circles of files, unsafe-code bans, the tests that docs/findings.md names, and file hygiene.
    Tidy,
    /// Every dependency is permissively licensed.
    Licences,
    /// What the RFCs ask for (docs/requirements) is cited where it is done, in their words.
    Requirements,
}

fn main() -> Result<()> {
    let root = root();
    match Chore::parse() {
        Chore::Test(options) => test::run(&root, &options),
        Chore::Bench(options) => bench::run(&root, &options),
        Chore::Fuzz(options) => fuzz::run(&root, &options),
        Chore::Tidy => tidy::run(&root),
        Chore::Licences => licences::run(&root),
        Chore::Requirements => requirements::run(&root),
    }
}

/// The workspace folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// What `cargo metadata` says about the workspace and its dependencies, the optional ones included.
fn metadata(root: &Path) -> Result<serde_json::Value> {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    anyhow::ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}
