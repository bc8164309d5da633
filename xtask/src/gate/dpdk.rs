//! Checks of the feature `dpdk`, if libdpdk is installed.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};

use super::binaries::{self, Binary, Builds};
use super::libraries::debug_cargo;
use super::pool::{self, Settings};
use super::{NIGHTLY, REAL_PROGRAMS, module, step};
use crate::workspace::{cargo, target};

/// Module of the DPDK tests with real programs, and variable that forbids them to skip checks.
pub const TESTS: &str = "dpdk";
pub const MUST_BE: &str = "TOWPATH_TEST_DPDK";
/// Feature, as cargo requires it for each package.
const FEATURE: [&str; 2] = ["--features", "towpath-cli/dpdk,towpath-uplink/dpdk,towpath-dpdk/dpdk"];
const PACKAGES: [&str; 6] = ["-p", "towpath-cli", "-p", "towpath-uplink", "-p", "towpath-dpdk"];

/// Builds `towpath` with DPDK and the options `profile`, and calls `work`. Afterwards builds it
/// without DPDK again, because other tests expect the usual binary at its path.
pub fn with_build(root: &Path, profile: &[&str], work: impl FnOnce() -> Result<()>) -> Result<()> {
    let build = |features: &[&str]| {
        let cargo = if profile.is_empty() { debug_cargo } else { cargo };
        let mut command = cargo(root, &["build", "-p", "towpath-cli"]);
        let end = step::run(command.args(profile).args(features), step::STEP_LIMIT)?;
        ensure!(end.is_success(), "{end}: {command:?}");
        Ok(())
    };
    build(&["--features", "dpdk"])?;
    let done = work();
    build(&[])?;
    done
}

/// Runs lints and unit tests, and with `has_programs` also tests with real programs.
pub fn check(root: &Path, builds: &Builds, has_programs: bool) -> Result<()> {
    if !crate::debian::has_dpdk() {
        return Ok(());
    }
    let with = |words: &[&str]| debug_cargo(root, &[words, &PACKAGES, &FEATURE].concat());
    let mut lints = with(&["clippy", "--quiet", "--all-targets"]);
    lints.args(["--", "-D", "warnings"]);
    step::command("lints of DPDK", lints)?;
    let tests = ["test", "--quiet", "-p", "towpath-dpdk", "--features", "dpdk"];
    step::command("unit tests of DPDK", cargo(root, &tests))?;
    if !has_programs {
        return Ok(());
    }
    let is_real = |it: &&Arc<Binary>| it.package == REAL_PROGRAMS;
    let real: Vec<_> = builds.tests.iter().filter(is_real).cloned().collect();
    step::step("real programs with DPDK", || {
        with_build(root, &[], || {
            let env: Vec<_> = builds.env().into_iter().chain([(MUST_BE, "1")]).collect();
            let is_ours = |test: &str| module(test) == TESTS && !test.contains(NIGHTLY);
            let tests = binaries::tests(&real, &env, is_ours)?;
            ensure!(!tests.is_empty(), "there are no tests");
            let report = pool::run(&tests, Settings::with(&env), &target(root).join("gate"))?;
            report.print();
            report.check()
        })
    })
}
