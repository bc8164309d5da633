//! Runs all variants of a scenario with all seeds on several threads.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::result::{Report, RunResult, summarize};
use crate::run::{VirtualTime, run};
use crate::scenario::Plan;

/// Options for running a scenario.
#[derive(Debug, Clone, Copy)]
pub struct BatchOptions<'a> {
    /// First seed. `None` selects the seed of the scenario file.
    pub seed: Option<u64>,
    /// Number of consecutive seeds with which each variant runs.
    pub runs: usize,
    /// Directory in which the packets of all links are captured. `None` if nothing is captured.
    pub captures: Option<&'a Path>,
    /// Whether to record the segments of the first connections, for the charts of a page.
    pub traces: bool,
    /// Number of threads, which does not influence the results.
    pub threads: usize,
}

/// Version of the simulator, which results contain.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Maximum number of seeds with which a scenario runs.
pub const RUNS_MAX: usize = 10_000;

/// Runs all variants with all seeds. Calls `progress` from any thread with the completed fraction.
///
/// # Errors
/// Returns the first failure in the order of the runs, with its variant and seed.
pub fn run_all(
    plans: &[Plan],
    options: BatchOptions<'_>,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Report, String> {
    let jobs: Vec<(&Plan, u64)> = plans
        .iter()
        .flat_map(|plan| {
            let first = options.seed.unwrap_or(plan.seed);
            (0..options.runs as u64).map(move |nth| (plan, first.wrapping_add(nth)))
        })
        .collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(vec![0.; jobs.len()]));
    let results: Vec<Mutex<Option<Result<RunResult, String>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let lock_failed = PoisonError::into_inner;
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((plan, seed)) = jobs.get(at) else { break };
            let mut tell = |share: f64| {
                let mut done = done.lock().unwrap_or_else(lock_failed);
                done[at] = share;
                progress(done.iter().sum::<f64>() / done.len() as f64);
            };
            let result = run(plan, *seed, options, &mut VirtualTime, &mut tell);
            let failed = result.is_err();
            *results[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            if failed {
                // Skip the remaining runs, because their results would be discarded.
                next.store(jobs.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..options.threads.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut runs = Vec::new();
    for (result, (plan, seed)) in results.into_iter().zip(&jobs) {
        match result.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(run)) => runs.push(run),
            Some(Err(error)) if plan.variant.is_empty() => {
                return Err(format!("seed {seed}: {error}"));
            }
            Some(Err(error)) => {
                return Err(format!("variant `{}`, seed {seed}: {error}", plan.variant));
            }
            None => {}
        }
    }
    Ok(report(plans, jobs.first().map_or(0, |(_, seed)| *seed), runs))
}

/// Creates the report of all runs.
pub(crate) fn report(plans: &[Plan], seed: u64, runs: Vec<RunResult>) -> Report {
    let first = plans.first();
    Report {
        version: VERSION,
        seed,
        title: first.map(|plan| plan.title.clone()).unwrap_or_default(),
        description: first.map(|plan| plan.description.clone()).unwrap_or_default(),
        duration_s: first.map_or(0., |plan| plan.duration_ns as f64 / 1e9),
        summaries: summarize(&runs),
        runs,
    }
}
