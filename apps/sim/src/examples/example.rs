//! An example, prepared to run.

use super::frames::Writing;
use super::load::{Load, Pings};
use super::report::ExampleReport;
use super::summary;
use crate::batch::VERSION;
use crate::result::Report;
use crate::scenario::{Plan, read};
use crate::{BatchOptions, run_all};

/// An example with its options applied.
#[derive(Debug, Clone)]
pub struct Example {
    /// Name, as in `towpath sim ping`.
    pub name: &'static str,
    /// Equivalent scenario. None if frames are written directly to a device.
    pub scenario: Option<String>,
    /// Description of the run.
    pub(super) about: String,
    pub(super) work: ExampleWork,
    /// Direction of a link that is reported: 0 forward, 1 backward.
    pub(super) way: usize,
    pub(super) pings: Option<Pings>,
    pub(super) load: Option<Load>,
    /// Whether packets dropped by the queue count as failures of the sender.
    pub(super) counts_failures: bool,
}

#[derive(Debug, Clone)]
pub(super) enum ExampleWork {
    /// Plans of a scenario, one per variant.
    Network(Vec<Plan>),
    /// Frames to write to a device, one entry per variant.
    Frames(Vec<Writing>),
}

impl Example {
    /// Runs the example. `progress` is called from any thread with the completed fraction.
    ///
    /// # Errors
    /// A limit was reached.
    pub fn run(
        &self,
        seed: Option<u64>,
        threads: usize,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<ExampleReport, String> {
        let mut report = match &self.work {
            ExampleWork::Network(plans) => {
                let options = BatchOptions { seed, runs: 1, captures: None, traces: true, threads };
                run_all(plans, options, progress)?
            }
            ExampleWork::Frames(writings) => {
                let share = |nth: usize| nth as f64 / writings.len() as f64;
                let runs = writings.iter().enumerate().map(|(nth, writing)| {
                    writing.run(&mut |part| progress(share(nth) + part * share(1)))
                });
                let runs: Vec<_> = runs.collect::<Result<_, String>>()?;
                let ends = runs.iter().filter_map(|run| run.sample_s.last());
                Report {
                    version: VERSION,
                    seed: runs.first().map_or(0, |run| run.seed),
                    title: self.name.to_owned(),
                    description: String::new(),
                    duration_s: ends.copied().fold(0., f64::max),
                    runs,
                    summaries: Vec::new(),
                }
            }
        };
        let replies = summary::replies(&report, self.pings.as_ref());
        let latency = summary::latencies(&report, &replies, self.load, self.way);
        let sentences = summary::sentences(&latency);
        report.description = format!("{}\n\n{sentences}", self.about);
        Ok(ExampleReport {
            example: self.name,
            about: self.about.clone(),
            replies,
            latency,
            report,
            way: self.way,
            remote: self.pings.as_ref().map_or(String::new(), |pings| pings.remote.clone()),
            counts_failures: self.counts_failures,
        })
    }

    /// Creates an example that runs the scenario `text`.
    pub(super) fn of_scenario(
        name: &'static str,
        about: String,
        text: String,
    ) -> Result<Self, String> {
        let plans = read(&text).map_err(|error| error.message)?;
        Ok(Self {
            name,
            scenario: Some(text),
            about,
            work: ExampleWork::Network(plans),
            way: 0,
            pings: None,
            load: None,
            counts_failures: false,
        })
    }
}
