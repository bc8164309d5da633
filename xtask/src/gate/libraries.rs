//! The libraries inside debug builds of `towpath`.
//!
//! The build script of `towpath-cli` builds them for release, with the whole stack in one of them.
//! The gate builds the stack with the debug profile anyway, so it gives the script the libraries of
//! that profile. The nightly's release builds have those that users get.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::step::{self, STEP_LIMIT};
use crate::workspace::{FEATURES, cargo, target};

/// The name of each library, and the variable in which the build script takes its path.
const LIBRARIES: [(&str, &str); 2] =
    [("towpath_preload", "TOWPATH_PRELOAD_LIBRARY"), ("towpath_inline", "TOWPATH_INLINE_LIBRARY")];

/// Path of the library that goes into `towpath`.
fn path(root: &Path, name: &str) -> PathBuf {
    target(root).join("gate").join(format!("lib{name}.so"))
}

/// cargo for builds of the debug profile. All calls of the gate name the same libraries, because
/// the build script runs again when one of the variables changes.
pub fn debug_cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo(root, arguments);
    command.envs(LIBRARIES.map(|(name, variable)| (variable, path(root, name))));
    command
}

/// Builds the libraries and copies them without debug information, which is most of them.
///
/// The features of dependencies follow from the selected packages and from whether there is a test
/// among their targets. All libraries and a small test have those of the build that follows;
/// otherwise that one would compile the stack and its dependencies again.
pub fn build(root: &Path) -> Result<()> {
    let mut command = cargo(root, &["build", "--workspace", "--lib", "--test", "tap"]);
    command.args(FEATURES);
    let end = step::run(&mut command, STEP_LIMIT)?;
    ensure!(end.is_success(), "{end}: {command:?}");
    for (name, _) in LIBRARIES {
        let built = target(root).join("debug").join(format!("lib{name}.so"));
        strip(&built, &path(root, name)).with_context(|| built.display().to_string())?;
    }
    Ok(())
}

/// Leaves a copy that is new enough as it is: cargo looks at its time.
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
