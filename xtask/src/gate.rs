//! The gate: the checks of CI, which a change passes before it lands; quick ones first.
//!
//! A check belongs here if it fails for a fault alone: not for a slow or busy machine, nor by
//! chance. [`crate::nightly`] has the others; tests among them have `nightly::` in their paths.

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

/// Marks the path of a test that judges times, or takes long.
pub const NIGHTLY: &str = "nightly::";
/// The number of shards of engines in tests that ask for none.
pub const SHARDS: &str = "TOWPATH_TEST_SHARDS";
/// The package of tests with real programs.
pub const REAL_PROGRAMS: &str = "towpath-tests";
/// Modules of tests with real programs that the gate runs on the debug build: HTTP, socket calls
/// beside the kernel's, ends of runs, links.
const SMOKE: &[&str] = &[
    "http",
    "fast_open",
    "oracle",
    "death",
    "ports",
    "netem",
    "packet",
    "router",
    "router_page",
    "xdp",
    "dpdk",
    "replay",
    "stream",
    "tcp_info",
    "control",
    "looking",
    "proxy",
    "proxy_run",
    "proxy_bad_days",
    "urgent",
    "at_once",
];

/// Runs all of it, or up to the first step that fails, of which all failures are shown.
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
    // Tests mostly wait, and the compiler has little to do but for the lints: together they take
    // both cores.
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
    // The last one: its build stands in the place of the others' for a while.
    if is_all { dpdk::check(root, &builds, !options.quick) } else { Ok(()) }
}

/// Steps with tests.
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
        step("real programs", &real, &|test| SMOKE.contains(&module(test)), &[])?;
    }
    Ok(())
}

/// The outermost module of a test, which is the file's name.
pub fn module(test: &str) -> &str {
    test.split("::").next().unwrap_or(test)
}

/// Whether a binary has the cases of socket calls in programs, which take a number of shards.
pub fn is_programs(binary: &Binary) -> bool {
    binary.package == "towpath-preload" && binary.target == "programs"
}

impl Builds {
    /// Variables that name builds to tests.
    pub fn env(&self) -> [(&str, &str); 2] {
        // cargo's messages, of which these paths are, are UTF-8.
        let [towpath, preload] =
            [&self.towpath, &self.preload].map(|path| path.to_str().expect("UTF-8"));
        [("TOWPATH_BIN", towpath), ("TOWPATH_PRELOAD_LIBRARY", preload)]
    }
}

/// Lints, documents with their examples, and loom; quiet unless they fail. The seconds of each.
fn lints(root: &Path) -> Result<Vec<(&'static str, f32)>> {
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets"];
    let clippy = [&clippy[..], &FEATURES, &["--", "-D", "warnings"]].concat();
    // The library `towpath` and the program of that name have one folder, and take turns.
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

/// Runs a step whose output is shown if it fails. The seconds that it took.
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

/// The rings and doorbells under every interleaving; in a target folder of their own, since the
/// flag would rebuild everything else.
/// `arguments` are for the test binary.
pub fn loom(root: &Path, arguments: &[&str]) -> Command {
    let test = ["test", "--profile", "loom", "-p", "towpath-ring", "--lib", "loom", "--"];
    let mut command = cargo(root, &[&test, arguments].concat());
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", target(root).join("loom"));
    command
}
