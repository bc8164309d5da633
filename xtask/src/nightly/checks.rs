//! The checks of the nightly.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::busy::Busy;
use super::dpdk;
use super::verdict::Attempt;
use super::{COMMAND_LIMIT, Options, TEST_LIMIT};
use crate::gate::binaries::{self, Binary, Builds};
use crate::gate::libraries::debug_cargo;
use crate::gate::pool::{self, Settings};
use crate::gate::step;
use crate::gate::{NIGHTLY, REAL_PROGRAMS, SHARDS, is_programs, module};
use crate::workspace::{FEATURES, cargo, cargo_lab, target};

/// A check, and how its tests are judged.
pub struct Check {
    pub name: &'static str,
    pub about: &'static str,
    pub judged: Judged,
    pub work: fn(&World<'_>, &Check) -> Result<Vec<Attempt>>,
}

/// Number of failed runs of a test that make the check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// A single failed run, because the test depends only on the code.
    ByEach,
    /// More than half of the runs, because the test depends on times or scheduling.
    ByMost,
}

/// The workspace, its builds and the options that checks use.
pub struct World<'a> {
    pub root: &'a Path,
    pub options: &'a Options,
    pub builds: Builds,
    pub seed: u64,
}

/// Variable with the seed of property tests.
const PROPERTY_SEED: &str = "PROPTEST_RNG_SEED";
/// Variable with the way in which tests with real programs host a program.
const HOSTING: &str = "TOWPATH_TEST_HOSTING";
/// Number of cases of each hostile harness: 50 times the gate's number for the slowest one.
const HOSTILE_CASES: &str = "20000";

pub const CHECKS: &[Check] = &[
    Check {
        name: "timing",
        about: "tests named nightly:: of all crates, one at a time",
        judged: Judged::ByMost,
        work: |world, _| {
            let is_real = |binary: &Binary| binary.package == REAL_PROGRAMS;
            world.runs(|| world.tests(|it| !is_real(it), |name| name.contains(NIGHTLY), &[], 1))
        },
    },
    Check {
        name: "loaded",
        about: "the unit tests beside a busy loop on each processor",
        judged: Judged::ByEach,
        work: |world, _| {
            let _busy = Busy::start();
            let is_real = |binary: &Binary| binary.package == REAL_PROGRAMS;
            one(world.tests(|it| !is_real(it), |name| !name.contains(NIGHTLY), &[], 4))
        },
    },
    Check {
        name: "properties",
        about: "the unit tests with another seed of their property tests",
        judged: Judged::ByEach,
        work: |world, _| {
            let seed = world.seed.to_string();
            println!("seed: {seed} (again: cargo xtask nightly --only properties --seed {seed})");
            let is_core = |binary: &Binary| binary.package != REAL_PROGRAMS;
            let env = [(PROPERTY_SEED, &*seed), ("PROPTEST_CASES", "2000")];
            one(world.tests(is_core, |name| !name.contains(NIGHTLY), &env, 4))
        },
    },
    Check {
        name: "one-thread",
        about: "programs on four shards of one thread",
        judged: Judged::ByEach,
        work: |world, _| {
            let env = [(SHARDS, "4"), ("TOWPATH_TEST_THREADS_BY_NEED", "1")];
            one(world.tests(is_programs, |name| !name.contains(NIGHTLY), &env, 4))
        },
    },
    Check {
        name: "hostile",
        about: "hostile peers and programs, 20,000 cases of each harness",
        judged: Judged::ByEach,
        work: |world, _| {
            let env = [("TOWPATH_HOSTILE_CASES", HOSTILE_CASES)];
            let is_fuzz = |binary: &Binary| binary.package == "towpath-fuzz";
            one(world.tests(is_fuzz, |test| module(test) == "hostile", &env, 2))
        },
    },
    Check {
        name: "loom",
        about: "the rings, doorbells and locks under every interleaving, long models too",
        judged: Judged::ByEach,
        work: |world, _| one(command(loom(world.root))),
    },
    Check {
        name: "programs",
        about: "real programs on the release build",
        judged: Judged::ByEach,
        work: |world, _| one(world.real_programs(&[], 3)),
    },
    Check {
        name: "shards",
        about: "real programs on two shards",
        judged: Judged::ByEach,
        work: |world, _| one(world.real_programs(&[(SHARDS, "2")], 3)),
    },
    Check {
        name: "inline",
        about: "real programs with the stack in their own process",
        judged: Judged::ByEach,
        work: |world, _| one(world.real_programs(&[(HOSTING, "inline")], 3)),
    },
    Check {
        name: "dpdk",
        about: "devices of DPDK: lints, unit tests, the release build with programs (libdpdk-dev)",
        judged: Judged::ByEach,
        work: |world, _| world.dpdk(),
    },
    Check {
        name: "documents",
        about: "documents of all crates, and the examples in them",
        judged: Judged::ByEach,
        work: |world, _| documents(world.root).into_iter().map(command).collect(),
    },
    Check {
        name: "timing-real",
        about: "tests named nightly:: with real programs (stress, throughput, idle), one at a time",
        judged: Judged::ByMost,
        work: |world, _| {
            let towpath = world.release()?;
            let env = [("TOWPATH_BIN", &*towpath)];
            let is_real = |binary: &Binary| binary.package == REAL_PROGRAMS;
            world.runs(|| world.tests(is_real, |name| name.contains(NIGHTLY), &env, 1))
        },
    },
    Check {
        name: "fuzz",
        about: "each fuzz target for some time (--fuzz-seconds)",
        judged: Judged::ByEach,
        work: |world, _| {
            let seconds = world.options.fuzz_seconds.to_string();
            let fuzz = |target: &&str| {
                let words = ["xtask", "fuzz", target, "--seconds", &seconds];
                Ok(command(cargo(world.root, &words))?.named(target))
            };
            const TARGETS: &str = "cbpf connection conntrack engine filter memif nameserver \
                recovery stack transit vhost";
            TARGETS.split(' ').map(|target| fuzz(&target)).collect()
        },
    },
    Check {
        name: "anchor",
        about: "the simulator beside ns-3, within the margins (libns3-dev)",
        judged: Judged::ByEach,
        work: |world, _| one(command(cargo(world.root, &["lab", "anchor"]))),
    },
    Check {
        name: "lab",
        about: "lints and tests of the measurements in lab/",
        judged: Judged::ByMost,
        work: |world, _| {
            let lints = ["clippy", "--quiet", "--workspace", "--all-targets"];
            let lints = [&lints[..], &["--", "-D", "warnings"]].concat();
            let mut attempts = one(command(cargo_lab(world.root, &lints)))?;
            // Some tests judge times.
            let test = || command(cargo_lab(world.root, &["test", "--quiet", "--workspace"]));
            attempts.extend(world.runs(test)?);
            Ok(attempts)
        },
    },
    Check {
        name: "counts",
        about: "system calls, sleeps, copies and instructions beside an earlier build (--beside)",
        judged: Judged::ByEach,
        work: |world, _| {
            let beside = match &world.options.beside {
                Some(commit) => commit.clone(),
                None => earlier_day(world.root)?,
            };
            one(command(cargo(world.root, &["lab", "counts", "--beside", &beside])))
        },
    },
];

fn one(attempt: Result<Attempt>) -> Result<Vec<Attempt>> {
    Ok(vec![attempt?])
}

/// Returns the newest commit of a day before HEAD's, or HEAD's parent if there is none.
fn earlier_day(root: &Path) -> Result<String> {
    let git = |words: &[&str]| -> Result<String> {
        let output = Command::new("git").args(words).current_dir(root).output().context("git")?;
        ensure!(output.status.success(), "git {}: {}", words.join(" "), output.status);
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let day = git(&["log", "-1", "--format=%cs", "HEAD"])?;
    let before = git(&["rev-list", "-1", &format!("--before={day} 00:00:00"), "HEAD"])?;
    if before.is_empty() { git(&["rev-parse", "HEAD~1"]) } else { Ok(before) }
}

/// Returns the commands that check links in documents, and run the examples in them.
fn documents(root: &Path) -> [Command; 3] {
    let with_features = |words: &[&str]| debug_cargo(root, &[words, &FEATURES].concat());
    let mut libraries = with_features(&["doc", "--quiet", "--no-deps", "--workspace"]);
    libraries.env("RUSTDOCFLAGS", "-D warnings");
    // rustdoc writes the library and the program `towpath` to one folder: document them separately.
    let program = ["rustdoc", "--quiet", "-p", "towpath-cli", "--bin", "towpath"];
    let program = debug_cargo(root, &[&program[..], &["--", "-D", "warnings"]].concat());
    [libraries, program, with_features(&["test", "--quiet", "--workspace", "--doc"])]
}

/// Returns the command that tests rings and notifications with every interleaving (loom). A
/// separate target folder is used, because the flag would otherwise cause a rebuild of everything
/// else.
fn loom(root: &Path) -> Command {
    let mut command =
        cargo(root, &["test", "--profile", "loom", "-p", "towpath-ring", "--lib", "loom"]);
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", target(root).join("loom"));
    command
}

/// Runs a check that is a single command.
fn command(mut command: Command) -> Result<Attempt> {
    let start = Instant::now();
    let end = step::run(&mut command, COMMAND_LIMIT)?;
    let name = command.get_args().map(|it| it.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let failure = (!end.is_success()).then(|| end.to_string());
    Ok(Attempt::of_command(name, start.elapsed(), failure))
}

impl World<'_> {
    /// Repeats a run as often as the options say.
    fn runs(&self, run: impl Fn() -> Result<Attempt>) -> Result<Vec<Attempt>> {
        (0..self.options.runs).map(|_| run()).collect()
    }

    fn tests(
        &self,
        is_binary: impl Fn(&Binary) -> bool,
        is_wanted: impl Fn(&str) -> bool,
        more: &[(&str, &str)],
        threads: usize,
    ) -> Result<Attempt> {
        // Later variables override earlier ones of the same name.
        let env: Vec<_> = self.builds.env().into_iter().chain(more.iter().copied()).collect();
        let binaries: Vec<_> =
            self.builds.tests.iter().filter(|binary| is_binary(binary)).cloned().collect();
        let tests = binaries::tests(&binaries, &env, is_wanted)?;
        let settings = Settings { env: &env, threads, limit: TEST_LIMIT };
        let report = pool::run(&tests, settings, &target(self.root).join("nightly"))?;
        report.print("tests");
        Ok(Attempt::of_tests(&report))
    }

    /// Runs all tests with real programs that do not judge times, with the release build.
    fn real_programs(&self, env: &[(&str, &str)], threads: usize) -> Result<Attempt> {
        let towpath = self.release()?;
        let mut all = vec![("TOWPATH_BIN", &*towpath)];
        all.extend(env);
        let is_real = |binary: &Binary| binary.package == REAL_PROGRAMS;
        self.tests(is_real, |name| !name.contains(NIGHTLY), &all, threads)
    }

    /// Runs lints and unit tests of DPDK devices, and tests with real programs on a release build
    /// that supports them.
    fn dpdk(&self) -> Result<Vec<Attempt>> {
        const SHOWN_BY: &str = "/usr/share/doc/libdpdk-dev";
        crate::debian::ensure_package("libdpdk-dev", SHOWN_BY)?;
        let towpath = target(self.root).join("release/towpath").display().to_string();
        let env = [("TOWPATH_BIN", &*towpath), (dpdk::MUST_BE, "1")];
        let is_real = |binary: &Binary| binary.package == REAL_PROGRAMS;
        let is_ours = |test: &str| module(test) == dpdk::TESTS;
        let mut attempts: Vec<_> =
            dpdk::checks(self.root).into_iter().map(command).collect::<Result<_>>()?;
        dpdk::with_build(self.root, || {
            attempts.push(self.tests(is_real, is_ours, &env, 1)?);
            Ok(())
        })?;
        Ok(attempts)
    }

    /// Builds the release binary if needed, and returns its path.
    fn release(&self) -> Result<String> {
        let mut build = cargo(self.root, &["build", "--release"]);
        let end = step::run(&mut build, Duration::from_secs(3600))?;
        ensure!(end.is_success(), "{end}: {build:?}");
        Ok(target(self.root).join("release/towpath").display().to_string())
    }
}
