//! Runs tests, each in a process of its own, several at a time.
//!
//! cargo-nextest works in the same way, but a clean machine would have to build it first, which
//! takes half as long as the gate. In a separate process, a test that hangs can be named and
//! killed. Also, tests do not share descriptors, threads or signals.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::binaries::Test;
use super::step;
use crate::table::progress;

/// Time limit of a test: fifty times the slowest one's duration on an idle machine, so that load
/// alone causes no failure.
pub const TEST_LIMIT: Duration = Duration::from_secs(300);
/// Number of concurrent tests per processor, because many tests wait most of the time.
const FOR_EACH_PROCESSOR: usize = 2;
/// Number of slowest tests that are listed.
const SLOWEST: usize = 5;
/// Maximum number of bytes printed from the end of a failed test's output.
const OUTPUT_MAX: usize = 64 * 1024;
/// Start of a line by which a test reports a skipped check and the reason.
const LEFT_OUT: &str = "left out: ";

/// The settings of a run.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    /// Environment variables of the tests.
    pub env: &'a [(&'a str, &'a str)],
    /// Number of tests that run at the same time.
    pub threads: usize,
    /// Time after which a test is killed and counts as failed.
    pub limit: Duration,
}

impl<'a> Settings<'a> {
    /// Returns the settings of the gate, with these environment variables.
    pub fn with(env: &'a [(&'a str, &'a str)]) -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self { env, threads: FOR_EACH_PROCESSOR * processors, limit: TEST_LIMIT }
    }
}

/// A test that has run.
pub struct Ran {
    pub name: String,
    pub time: Duration,
    /// How the test failed, and the end of its output; `None` if it passed.
    pub failure: Option<(String, String)>,
    /// Reasons for skipped checks.
    left_out: Vec<String>,
}

/// Results of all tests of a run, sorted by name.
#[derive(Default)]
pub struct Report {
    pub ran: Vec<Ran>,
}

impl Report {
    pub fn failures(&self) -> impl Iterator<Item = &Ran> {
        self.ran.iter().filter(|ran| ran.failure.is_some())
    }

    /// Returns the slowest tests, in descending order of duration.
    pub fn slowest(&self) -> Vec<&Ran> {
        let mut all: Vec<&Ran> = self.ran.iter().collect();
        all.sort_by_key(|ran| std::cmp::Reverse(ran.time));
        all.truncate(SLOWEST);
        all
    }

    /// Returns the reasons for skipped checks, with the number of tests for each.
    fn left_out(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for reason in self.ran.iter().flat_map(|ran| &ran.left_out) {
            *reasons.entry(&**reason).or_default() += 1;
        }
        reasons
    }

    /// Prints the counts, the slowest tests, and the reasons for skipped checks.
    pub fn print(&self, name: &str) {
        let slowest: Vec<String> = self
            .slowest()
            .iter()
            .map(|ran| format!("   {:5.1} s  {}", ran.time.as_secs_f32(), ran.name))
            .collect();
        let failed = self.failures().count();
        let passed = self.ran.len() - failed;
        println!("   {name}: {passed} passed, {failed} failed; the slowest:");
        println!("{}", slowest.join("\n"));
        for (reason, count) in self.left_out() {
            println!("   left out in {count} tests: {reason}");
        }
    }

    /// Returns an error with the names of the failed tests, if there are any.
    pub fn check(&self) -> Result<()> {
        let failed: Vec<String> = self
            .failures()
            .filter_map(|ran| ran.failure.as_ref().map(|(end, _)| format!("{}: {end}", ran.name)))
            .collect();
        ensure!(failed.is_empty(), "{} tests failed:\n  {}", failed.len(), failed.join("\n  "));
        Ok(())
    }
}

/// Runs all tests, even after a failure. Prints the output of each failed test when it ends.
/// `scratch` is a folder for output files.
pub fn run(tests: &[Test], settings: Settings<'_>, scratch: &Path) -> Result<Report> {
    std::fs::create_dir_all(scratch).with_context(|| scratch.display().to_string())?;
    let next = AtomicUsize::new(0);
    let ran = Mutex::new(Vec::new());
    let work = |thread: usize| -> Result<()> {
        let output = scratch.join(format!("output-{thread}"));
        while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = run_one(test, settings, &output)?;
            let mut ran = ran.lock().expect("no thread panics with it");
            if let Some((end, output)) = &one.failure {
                println!("\n-- {}: {end}\n{}", one.name, output.trim_end());
            }
            ran.push(one);
            progress(&format!("{} of {} tests", ran.len(), tests.len()));
        }
        Ok(())
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..settings.threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no worker panics")).collect()
    });
    progress("");
    results.into_iter().collect::<Result<()>>()?;
    let mut ran = ran.into_inner().expect("no thread panics with it");
    ran.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Report { ran })
}

fn run_one(test: &Test, settings: Settings<'_>, output: &Path) -> Result<Ran> {
    let file = File::create(output).with_context(|| output.display().to_string())?;
    let mut command = test.command();
    command.envs(settings.env.iter().copied());
    command.stdout(file.try_clone()?).stderr(file);
    let start = Instant::now();
    let end = step::run(&mut command, settings.limit)?;
    let time = start.elapsed();
    let text = tail(output)?;
    let left_out = text.lines().filter_map(|line| line.trim().strip_prefix(LEFT_OUT));
    let left_out = left_out.map(str::to_owned).collect();
    let failure = (!end.is_success()).then(|| (end.to_string(), text));
    Ok(Ran { name: test.to_string(), time, failure, left_out })
}

/// Returns the end of a file as text, at most [`OUTPUT_MAX`] bytes.
fn tail(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.read_to_end(&mut bytes)?;
    let from = bytes.len().saturating_sub(OUTPUT_MAX);
    Ok(String::from_utf8_lossy(&bytes[from..]).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use crate::gate::binaries::{self, Binary};

    /// Creates a folder with a shell script that acts as a test binary.
    fn binary(name: &str, script: &str) -> Arc<Binary> {
        let folder = std::env::temp_dir().join(format!("gate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tests");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Arc::new(Binary { package: "p".into(), target: "t".into(), path, folder })
    }

    #[test]
    fn failures_hangs_and_reasons_are_reported_by_test() {
        let script = r#"
            if [ "$1" = --list ]; then
                printf '%s: test\n' a::good nightly::c bad hangs; exit 0
            fi
            case "$2" in
                a::good) echo "left out: no moon" ;;
                bad) echo "$TELL"; exit 4 ;;
                hangs) sleep 1000 ;;
            esac"#;
        let binary = binary("report", script);
        let folder = binary.folder.clone();
        let tests = binaries::tests(&[binary], &[], |name| !name.contains("nightly::")).unwrap();
        assert_eq!(tests.len(), 3);
        let settings =
            Settings { env: &[("TELL", "why")], threads: 3, limit: Duration::from_secs(2) };
        let report = run(&tests, settings, &folder.join("out")).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let [good, bad, hangs] = &report.ran[..] else { panic!("three tests") };
        assert!(good.failure.is_none());
        let failure = bad.failure.as_ref().unwrap();
        assert!(failure.0.contains('4') && failure.1.contains("why"), "{failure:?}");
        assert!(hangs.failure.as_ref().unwrap().0.contains("limit of 2 s"));
        assert_eq!(report.left_out(), BTreeMap::from([("no moon", 1)]));
        let error = report.check().unwrap_err().to_string();
        assert!(error.starts_with("2 tests failed") && error.contains("p t bad"), "{error}");
        assert_eq!(report.slowest()[0].name, "p t hangs");
    }
}
