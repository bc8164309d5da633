//! The gate: the checks of CI, which every change must pass. Quick checks run first.
//!
//! A check belongs here if only a fault in the code can make it fail, not a slow machine or chance.
//! Checks with a build of their own are in the nightly, because a build takes minutes. All other
//! checks are in [`crate::nightly`]; such tests have `nightly::` in their paths.

pub mod binaries;
pub mod libraries;
pub mod pool;
pub mod room;
pub mod step;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};

use binaries::{Binary, Builds};
use pool::Settings;

use crate::workspace::{cargo, cargo_lab, target};

#[derive(clap::Args)]
pub struct Options {
    /// Only the checks that need no Debian packages and no privileges.
    #[arg(long)]
    quick: bool,
    /// Only tests whose names contain this; checks of source files are left out.
    #[arg(long, default_value = "")]
    only: String,
}

/// Part of the path of tests that judge times or take long.
pub const NIGHTLY: &str = "nightly::";
/// Variable with the number of shards, for tests that do not set it.
pub const SHARDS: &str = "TOWPATH_TEST_SHARDS";
/// The package of tests with real programs.
pub const REAL_PROGRAMS: &str = "towpath-tests";
/// Packages with the slowest tests, which start first. Otherwise a processor idles at the end.
const SLOW: [&str; 3] = ["towpath-sim", "towpath-fuzz", "towpath-cli"];
/// Modules of tests with real programs that the gate runs, with the debug build.
const SMOKE: &str = "http fast_open oracle death ports netem packet router router_page dhcp \
    adverts dns xdp replay realtime stream memif tcp_info control looking proxy proxy_run \
    proxy_bad_days urgent at_once nat64";

/// Runs all steps until one fails. All failures of that step are printed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    crate::interrupt::hold()?;
    if options.only.is_empty() {
        sources(root)?;
    }
    if !options.quick {
        step::step("packages", crate::debian::install)?;
    }
    step::step("room on the disk", || room::check(&target(root)))?;
    let mut builds = None;
    step::step("lints and build of the tests", || {
        builds = Some(binaries::build(root)?);
        Ok(())
    })?;
    let builds = builds.expect("the step would have failed");
    tests(root, options, &builds)
}

/// Runs the checks of source files that need no build. The formatter uses one processor, and the
/// other checks use another one.
fn sources(root: &Path) -> Result<()> {
    std::thread::scope(|scope| {
        let format = scope.spawn(|| {
            step::command("format", cargo(root, &["fmt", "--all", "--check"]))?;
            step::command("format of lab/", cargo_lab(root, &["fmt", "--check"]))
        });
        step::step("tidy", || crate::tidy::run(root))?;
        step::step("licences", || crate::licences::run(root))?;
        step::step("requirements", || crate::requirements::run(root))?;
        format.join().expect("no step panics")
    })
}

/// Runs the steps that consist of tests. Real programs mostly wait, so they run beside the unit
/// tests.
fn tests(root: &Path, options: &Options, builds: &Builds) -> Result<()> {
    let is = |package: &'static str| move |binary: &&Arc<Binary>| binary.package == package;
    let real: Vec<_> = builds.tests.iter().filter(is(REAL_PROGRAMS)).cloned().collect();
    let mut unit: Vec<_> =
        builds.tests.iter().filter(|it| !is(REAL_PROGRAMS)(it)).cloned().collect();
    unit.sort_by_key(|it| !SLOW.contains(&&*it.package));
    let programs: Vec<_> = unit.iter().filter(|it| is_programs(it)).cloned().collect();
    let env = builds.env();
    let every = |_: &str| true;
    let smoke = |test: &str| SMOKE.split(' ').any(|it| it == module(test));
    let step =
        |name: &str, binaries: &[Arc<Binary>], of: &dyn Fn(&str) -> bool, more: &[(&str, &str)]| {
            step::step(name, || {
                let env: Vec<_> = env.iter().copied().chain(more.iter().copied()).collect();
                let is_wanted = |test: &str| {
                    !test.contains(NIGHTLY) && test.contains(&options.only) && of(test)
                };
                let tests = binaries::tests(binaries, &env, is_wanted)?;
                ensure!(!tests.is_empty() || !options.only.is_empty(), "there are no tests");
                let scratch = target(root).join("gate").join(name.replace(' ', "-"));
                let report = pool::run(&tests, Settings::with(&env), &scratch)?;
                report.print(name);
                report.check()
            })
        };
    std::thread::scope(|scope| {
        let real = scope.spawn(|| {
            if options.quick { Ok(()) } else { step("real programs", &real, &smoke, &[]) }
        });
        step("unit tests", &unit, &every, &[])?;
        step("programs on four shards", &programs, &every, &[(SHARDS, "4")])?;
        real.join().expect("no step panics")
    })
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
