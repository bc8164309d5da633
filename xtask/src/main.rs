//! Chores of the project: `cargo xtask test` is what CI runs, most other commands are parts of it.
#![allow(clippy::print_stdout, clippy::print_stderr)] // Prints results for the user.
#![forbid(unsafe_code)]

mod circles;
mod fuzz;
mod gate;
mod licences;
mod nightly;
mod requirements;
mod structure;
mod tidy;
mod words;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use xtask::{debian, interrupt, table, workspace};

/// Chores of the Towpath project.
#[derive(Parser)]
enum Chore {
    /// The gate: format, tidy, licences, requirements, lints, unit tests, a choice of real
    /// programs.
    Test(gate::Options),
    /// Long checks and those judged over several runs (stress, times, whole hostings, loom, DPDK,
    /// fuzzing, counts); ends with a table.
    Nightly(nightly::Options),
    /// Searches for inputs that make a harness of `fuzz/` fail, by coverage (needs a C++ compiler).
    Fuzz(fuzz::Options),
    /// Edges of layers, circles of files, unsafe bans, plain words, file hygiene.
    Tidy(tidy::Options),
    /// Every dependency is permissively licensed.
    Licences,
    /// Requirements of the RFCs (docs/requirements) are cited where the code follows them.
    Requirements,
}

fn main() -> ExitCode {
    match run(&workspace::root(), Chore::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Print no backtrace, because the error is about the project and not this program.
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, chore: Chore) -> Result<()> {
    match chore {
        Chore::Test(options) => gate::run(root, &options),
        Chore::Nightly(options) => nightly::run(root, &options),
        Chore::Fuzz(options) => fuzz::run(root, &options),
        Chore::Tidy(options) => tidy::chore(root, &options),
        Chore::Licences => licences::run(root),
        Chore::Requirements => requirements::run(root),
    }
}
