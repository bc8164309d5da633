//! Checks of the feature `dpdk`, which needs libdpdk.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::gate::libraries::debug_cargo;
use crate::gate::step;
use crate::workspace::cargo;

/// Module of the DPDK tests with real programs, and variable that forbids them to skip checks.
pub const TESTS: &str = "dpdk";
pub const MUST_BE: &str = "TOWPATH_TEST_DPDK";
/// Feature, as cargo requires it for each package.
const FEATURE: [&str; 2] = ["--features", "towpath-cli/dpdk,towpath-uplink/dpdk,towpath-dpdk/dpdk"];
const PACKAGES: [&str; 6] = ["-p", "towpath-cli", "-p", "towpath-uplink", "-p", "towpath-dpdk"];

/// Builds a released `towpath` with DPDK, and calls `work`. Afterwards builds it without DPDK
/// again, because other tests expect the usual binary at its path.
pub fn with_build(root: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let build = |features: &[&str]| {
        let mut command = cargo(root, &["build", "--release", "-p", "towpath-cli"]);
        let end = step::run(command.args(features), step::STEP_LIMIT)?;
        ensure!(end.is_success(), "{end}: {command:?}");
        Ok(())
    };
    build(&["--features", "dpdk"])?;
    let done = work();
    build(&[])?;
    done
}

/// Returns the commands of lints and unit tests.
pub fn checks(root: &Path) -> [Command; 2] {
    let lints = ["clippy", "--quiet", "--all-targets"];
    let mut lints = debug_cargo(root, &[&lints[..], &PACKAGES, &FEATURE].concat());
    lints.args(["--", "-D", "warnings"]);
    let tests = ["test", "--quiet", "-p", "towpath-dpdk", "--features", "dpdk"];
    [lints, cargo(root, &tests)]
}
