//! Libraries that debug builds of `towpath` contain.
//!
//! The build script of `towpath-cli` builds them for release, with the whole stack in one of them.
//! The gate builds the stack with the debug profile anyway, so it passes the libraries of that
//! profile to the script. The nightly's release builds contain the same libraries as released ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::step::{self, STEP_LIMIT};
use crate::workspace::{FEATURES, cargo, target};

/// Library names, each with the variable by which the build script gets its path.
const LIBRARIES: [(&str, &str); 2] =
    [("towpath_preload", "TOWPATH_PRELOAD_LIBRARY"), ("towpath_inline", "TOWPATH_INLINE_LIBRARY")];

/// Returns the path of a library that `towpath` is to contain.
fn path(root: &Path, name: &str) -> PathBuf {
    target(root).join("gate").join(format!("lib{name}.so"))
}

/// Returns a cargo command for the debug profile. All commands of the gate set the same variables,
/// because the build script runs again if one changes.
pub fn debug_cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo(root, arguments);
    command.envs(LIBRARIES.map(|(name, variable)| (variable, path(root, name))));
    command
}

/// Makes clippy the compiler of all packages of the workspace, and every warning an error.
///
/// Clippy's compiler also generates code. A compilation for lints and tests together takes three
/// quarters of the processor time of two. Cargo keeps the results apart from those of rustc.
pub fn lint(command: &mut Command) -> Result<()> {
    let driver = Path::new(env!("CARGO")).with_file_name("clippy-driver");
    ensure!(driver.exists(), "{} is missing; run: rustup component add clippy", driver.display());
    // `cargo clippy` passes its arguments in the same way, each with this separator behind it.
    let arguments = ["-D", "warnings"].map(|argument| format!("{argument}__CLIPPY_HACKERY__"));
    command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", arguments.concat());
    Ok(())
}

/// Builds the libraries, and copies them without debug information, which is most of their size.
///
/// Features of dependencies depend on the selected packages, and on whether a target is a test.
/// Building all libraries and a small test selects the same features as the following build, which
/// would otherwise compile the dependencies again.
pub fn build(root: &Path) -> Result<()> {
    let mut command = cargo(root, &["build", "--workspace", "--lib", "--test", "tap"]);
    command.args(FEATURES);
    lint(&mut command)?;
    let end = step::run(&mut command, STEP_LIMIT)?;
    ensure!(end.is_success(), "{end}: {command:?}");
    for (name, _) in LIBRARIES {
        let built = target(root).join("debug").join(format!("lib{name}.so"));
        strip(&built, &path(root, name)).with_context(|| built.display().to_string())?;
    }
    Ok(())
}

/// Copies a library without debug information, unless the copy is newer. cargo compares its
/// modification time, so it must not change without need.
fn strip(from: &Path, to: &Path) -> Result<()> {
    let changed = |file: &Path| std::fs::metadata(file).and_then(|found| found.modified());
    let built = changed(from)?;
    if changed(to).is_ok_and(|copied| copied >= built) {
        return Ok(());
    }
    let mut command = Command::new("strip");
    command.arg("--strip-debug").arg("-o").arg(to).arg(from);
    let status = command.status().context("strip, of the package binutils")?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
