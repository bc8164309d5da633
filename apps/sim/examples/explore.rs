//! Checks random worlds against the rules of [`towpath_sim::explore`] at every step, using several
//! threads. `cargo lab sim` builds and runs this program.
//!
//! Run `explore --scenarios 1000 --seed 1 --jobs 2`, or `explore --file WORLD.toml` for one world,
//! with `--pcap FOLDER` to capture its links.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use towpath_sim::explore::{ExtraRules, RandomWorld, RuleFault, check_text, shrink};
use towpath_sim::{BatchOptions, read, run_all};

/// Maximum number of runs of the shrinker.
const SHRINKS: usize = 400;
/// Number of violations after which the program ends, because further ones are usually of the same
/// kind.
const FAULTS_MAX: usize = 20;
/// Interval between two progress messages.
const EVERY: Duration = Duration::from_secs(5);

struct Options {
    scenarios: u64,
    seed: u64,
    jobs: usize,
    file: Option<String>,
    pcap: Option<String>,
}

fn options() -> Result<Options, String> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { scenarios: 1_000, seed: 1, jobs, file: None, pcap: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{word} {value}: expected a number"));
        match word.as_str() {
            "--scenarios" => options.scenarios = number()?,
            "--seed" => options.seed = number()?,
            "--jobs" => options.jobs = (number()? as usize).max(1),
            "--file" => options.file = Some(value),
            "--pcap" => options.pcap = Some(value),
            _ => {
                return Err(format!(
                    "{word}: expected --scenarios, --seed, --jobs, --file or --pcap"
                ));
            }
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let result = options().and_then(|options| match &options.file {
        Some(file) => check_file(file, options.pcap.as_deref()),
        None => explore(&options),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) {
    // Ignore a closed stream.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn check_file(file: &str, pcap: Option<&str>) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    if let Some(folder) = pcap {
        let plans = read(&text).map_err(|error| format!("{file}: {error}"))?;
        let captures = Some(Path::new(folder));
        run_all(
            &plans,
            BatchOptions { seed: None, runs: 1, captures, traces: false, threads: 1 },
            &|_| {},
        )?;
    }
    let outcome = check_text(&text, ExtraRules::default()).map_err(|fault| fault.to_string())?;
    say(&format!("sim: {file} is in order: {outcome:?}"));
    Ok(())
}

/// Totals over all threads.
#[derive(Default)]
struct Totals {
    next: AtomicU64,
    done: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
    whole: AtomicU64,
    failed: AtomicU64,
    faults: Mutex<Vec<(u64, RuleFault)>>,
}

impl Totals {
    fn faults(&self) -> usize {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

fn explore(options: &Options) -> Result<(), String> {
    let totals = Totals::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| work(options, &totals));
        }
        let mut told = start;
        while totals.done.load(Ordering::Relaxed) < options.scenarios
            && totals.faults() < FAULTS_MAX
        {
            std::thread::sleep(Duration::from_millis(50));
            if told.elapsed() >= EVERY {
                told = Instant::now();
                say(&progress(options, &totals, start.elapsed()));
            }
        }
    });
    let faults = totals.faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    say(&format!(
        "sim: {} worlds from seed {} in {:.1} s: {} events, {} bytes, {} exchanges whole, {} ends \
         failed as they may, {} worlds break a rule",
        count(&totals.done),
        options.seed,
        start.elapsed().as_secs_f64(),
        count(&totals.events),
        count(&totals.bytes),
        count(&totals.whole),
        count(&totals.failed),
        faults.len()
    ));
    if faults.is_empty() { Ok(()) } else { Err("sim: the worlds above break rules".to_owned()) }
}

fn work(options: &Options, totals: &Totals) {
    loop {
        let nth = totals.next.fetch_add(1, Ordering::Relaxed);
        if nth >= options.scenarios || totals.faults() >= FAULTS_MAX {
            return;
        }
        let seed = options.seed.wrapping_add(nth);
        let scene = RandomWorld::draw(seed);
        match check_text(&scene.to_toml(), ExtraRules::default()) {
            Ok(outcome) => {
                totals.events.fetch_add(outcome.events, Ordering::Relaxed);
                totals.bytes.fetch_add(outcome.bytes, Ordering::Relaxed);
                totals.whole.fetch_add(outcome.whole, Ordering::Relaxed);
                totals.failed.fetch_add(outcome.failed, Ordering::Relaxed);
            }
            Err(fault) => report(seed, &scene, fault, totals),
        }
        totals.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reports a violation, and a minimized world with the same violation.
fn report(seed: u64, scene: &RandomWorld, fault: RuleFault, totals: &Totals) {
    let shrunk = shrink(scene, &fault, ExtraRules::default(), SHRINKS);
    say(&format!(
        "sim: seed {seed}: {fault}\nrun it again: cargo lab sim --seed {seed} --scenarios 1\n\
         # its scenario\n{}\
         # a smaller one, after {} runs: {}\n\
         # run it again: save it, and cargo lab sim --file FILE\n{}",
        scene.to_toml(),
        shrunk.tried,
        shrunk.fault.what,
        shrunk.scene.to_toml()
    ));
    totals.faults.lock().unwrap_or_else(PoisonError::into_inner).push((seed, fault));
}

fn progress(options: &Options, totals: &Totals, passed: Duration) -> String {
    let done = totals.done.load(Ordering::Relaxed);
    let rate = done as f64 / passed.as_secs_f64();
    let left = (options.scenarios - done.min(options.scenarios)) as f64 / rate.max(0.001);
    format!(
        "sim: {done} of {} worlds, {rate:.0} a second, some {left:.0} s left, {} break a rule",
        options.scenarios,
        totals.faults()
    )
}
