//! The gate: the checks of CI, which every change must pass. Quick checks run first.
//!
//! A check belongs here if only a fault in the code can make it fail, not a slow machine or chance.
//! All other checks are in [`crate::nightly`]; such tests have `nightly::` in their paths.

pub mod binaries;
pub mod dpdk;
pub mod libraries;
pub mod pool;
pub mod room;
pub mod step;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Result, ensure};

use binaries::{Binary, Builds};
use libraries::debug_cargo;
use pool::Settings;
use step::STEP_LIMIT;

use crate::workspace::{FEATURES, cargo, cargo_lab, target};

#[derive(clap::Args)]
pub struct Options {
    /// Only the checks that need no Debian packages and no privileges.
    #[arg(long)]
    quick: bool,
    /// Only tests whose names contain this; lints, documents and loom are left out.
    #[arg(long, default_value = "")]
    only: String,
}

/// Part of the path of tests that judge times or take long.
pub const NIGHTLY: &str = "nightly::";
/// Variable with the number of shards, for tests that do not set it.
pub const SHARDS: &str = "TOWPATH_TEST_SHARDS";
/// The package of tests with real programs.
pub const REAL_PROGRAMS: &str = "towpath-tests";
/// Modules of tests with real programs that the gate runs, with the debug build.
const SMOKE: &str = "http fast_open oracle death ports netem packet router router_page dhcp \
    xdp dpdk replay realtime stream tcp_info control looking proxy proxy_run proxy_bad_days urgent \
    at_once";

/// Runs all steps until one fails. All failures of that step are printed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    crate::interrupt::hold()?;
    let is_all = options.only.is_empty();
    if is_all {
        step::command("format", cargo(root, &["fmt", "--all", "--check"]))?;
        step::command("format of lab/", cargo_lab(root, &["fmt", "--check"]))?;
        step::step("tidy", || crate::tidy::run(root))?;
        step::step("licences", || crate::licences::run(root))?;
        step::step("requirements", || crate::requirements::run(root))?;
    }
    if !options.quick {
        step::step("packages", crate::debian::install)?;
    }
    step::step("room on the disk", || room::check(&target(root)))?;
    let mut builds = None;
    step::step("build of the tests", || {
        builds = Some(binaries::build(root)?);
        Ok(())
    })?;
    let builds = builds.expect("the step would have failed");
    // Run lints during the tests: tests mostly wait, and lints need the compiler, so both together
    // use two cores.
    std::thread::scope(|scope| {
        let lints = scope.spawn(|| if is_all { lints(root) } else { Ok(Vec::new()) });
        let tests = tests(root, options, &builds);
        let lints = lints.join().expect("no step panics");
        tests?;
        for (name, seconds) in lints? {
            println!("== {name}: {seconds:.0} s, beside the tests");
        }
        anyhow::Ok(())
    })?;
    // Run last, because this build temporarily replaces the usual one.
    if is_all { dpdk::check(root, &builds, !options.quick) } else { Ok(()) }
}

/// Runs the steps that consist of tests.
fn tests(root: &Path, options: &Options, builds: &Builds) -> Result<()> {
    let is = |package: &'static str| move |binary: &&Arc<Binary>| binary.package == package;
    let real: Vec<_> = builds.tests.iter().filter(is(REAL_PROGRAMS)).cloned().collect();
    let unit: Vec<_> = builds.tests.iter().filter(|it| !is(REAL_PROGRAMS)(it)).cloned().collect();
    let programs: Vec<_> = unit.iter().filter(|it| is_programs(it)).cloned().collect();
    let env = builds.env();
    let every = |_: &str| true;
    let step =
        |name: &str, binaries: &[Arc<Binary>], of: &dyn Fn(&str) -> bool, more: &[(&str, &str)]| {
            step::step(name, || {
                let env: Vec<_> = env.iter().copied().chain(more.iter().copied()).collect();
                let is_wanted = |test: &str| {
                    !test.contains(NIGHTLY) && test.contains(&options.only) && of(test)
                };
                let tests = binaries::tests(binaries, &env, is_wanted)?;
                ensure!(!tests.is_empty() || !options.only.is_empty(), "there are no tests");
                let report = pool::run(&tests, Settings::with(&env), &target(root).join("gate"))?;
                report.print();
                report.check()
            })
        };
    step("unit tests", &unit, &every, &[])?;
    step("programs on four shards", &programs, &every, &[(SHARDS, "4")])?;
    if !options.quick {
        step("real programs", &real, &|test| SMOKE.split(' ').any(|it| it == module(test)), &[])?;
    }
    Ok(())
}

/// Returns the outermost module of a test, which is named after its file.
pub fn module(test: &str) -> &str {
    test.split("::").next().unwrap_or(test)
}

/// Returns whether a binary contains the cases of socket calls in programs, which run with several
/// numbers of shards.
pub fn is_programs(binary: &Binary) -> bool {
    binary.package == "towpath-preload" && binary.target == "programs"
}

impl Builds {
    /// Returns environment variables with the paths of builds, for tests.
    pub fn env(&self) -> [(&str, &str); 2] {
        // The paths are from cargo's messages, which are UTF-8.
        let [towpath, preload] =
            [&self.towpath, &self.preload].map(|path| path.to_str().expect("UTF-8"));
        [("TOWPATH_BIN", towpath), ("TOWPATH_PRELOAD_LIBRARY", preload)]
    }
}

/// Runs clippy, rustdoc, doc tests and loom, and prints output only on a failure. Returns the
/// duration of each step in seconds.
fn lints(root: &Path) -> Result<Vec<(&'static str, f32)>> {
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets"];
    let clippy = [&clippy[..], &FEATURES, &["--", "-D", "warnings"]].concat();
    // rustdoc writes the library and the program `towpath` to one folder: document them separately.
    let documents = |packages: &[&str]| {
        let doc = ["doc", "--quiet", "--no-deps"];
        let mut command = debug_cargo(root, &[&doc, packages].concat());
        command.env("RUSTDOCFLAGS", "-D warnings");
        command
    };
    let examples = [&["test", "--quiet", "--workspace", "--doc"], &FEATURES[..]].concat();
    let steps: [(&'static str, Command); 5] = [
        ("lints", debug_cargo(root, &clippy)),
        (
            "documents",
            documents(&[&["--workspace", "--exclude", "towpath-cli"], &FEATURES[..]].concat()),
        ),
        ("documents of the program", documents(&["--package", "towpath-cli"])),
        ("examples in documents", debug_cargo(root, &examples)),
        ("loom", loom(root, &["--skip", NIGHTLY])),
    ];
    let mut seconds = Vec::new();
    for (name, command) in steps {
        seconds.push((name, quietly(root, name, command)?));
    }
    Ok(seconds)
}

/// Runs a step and prints its output only if it fails. Returns its duration in seconds.
fn quietly(root: &Path, name: &str, mut command: Command) -> Result<f32> {
    let log = target(root).join("gate").join(format!("{}.log", name.replace(' ', "-")));
    let file = std::fs::File::create(&log)?;
    command.stdout(file.try_clone()?).stderr(file);
    let start = std::time::Instant::now();
    let end = step::run(&mut command, STEP_LIMIT)?;
    if !end.is_success() {
        println!("\n-- {name}: {end}\n{}", std::fs::read_to_string(&log)?.trim_end());
    }
    ensure!(end.is_success(), "step {name:?}: {end}: {command:?}");
    Ok(start.elapsed().as_secs_f32())
}

/// Returns the command that tests rings and notifications with every interleaving (loom). A
/// separate target folder is used, because the flag would otherwise cause a rebuild of everything
/// else. `arguments` are for the test binary.
pub fn loom(root: &Path, arguments: &[&str]) -> Command {
    let test = ["test", "--profile", "loom", "-p", "towpath-ring", "--lib", "loom", "--"];
    let mut command = cargo(root, &[&test, arguments].concat());
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", target(root).join("loom"));
    command
}
