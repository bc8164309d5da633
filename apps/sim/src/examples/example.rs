//! An example, prepared to run.

use std::collections::BTreeSet;

use super::device_frames::DeviceWriting;
use super::frames::Writing;
use super::load::{Load, Pings};
use super::report::ExampleReport;
use super::summary;
use crate::batch::VERSION;
use crate::realtime::{RealPorts, RealtimeOptions, device_words, run_in_real_time};
use crate::result::{Report, RunResult};
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
    /// Frames to write to a simulated device, one entry per variant.
    Frames(Vec<Writing>),
    /// Frames to write to a real device, one entry per variant.
    DeviceFrames(Vec<DeviceWriting>),
}

impl Example {
    /// Returns the real devices that the example needs, in the notation of scenarios.
    pub fn devices(&self) -> BTreeSet<&str> {
        match &self.work {
            ExampleWork::Network(plans) => device_words(plans),
            ExampleWork::Frames(_) => BTreeSet::new(),
            ExampleWork::DeviceFrames(all) => all.iter().map(|one| &*one.device).collect(),
        }
    }

    /// Runs the example in virtual time. `progress` is called from any thread with the completed
    /// fraction.
    ///
    /// # Errors
    /// A limit was reached, or the example has a real device.
    pub fn run(
        &self,
        seed: Option<u64>,
        threads: usize,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<ExampleReport, String> {
        let report = match &self.work {
            ExampleWork::Network(plans) => {
                let options = BatchOptions { seed, runs: 1, captures: None, traces: true, threads };
                run_all(plans, options, progress)?
            }
            ExampleWork::Frames(all) => {
                let progress: &dyn Fn(f64) = progress;
                self.run_each(all, progress, |one, tell| one.run(tell))?
            }
            ExampleWork::DeviceFrames(_) => return Err("a real device has no virtual time".into()),
        };
        Ok(self.finish(report))
    }

    /// Runs the example in real time, with its devices among `ports`.
    ///
    /// # Errors
    /// As of [`run_in_real_time`].
    pub fn run_in_real_time(
        &self,
        options: RealtimeOptions<'_>,
        ports: &mut RealPorts,
        progress: &dyn Fn(f64),
    ) -> Result<ExampleReport, String> {
        let report = match &self.work {
            ExampleWork::Network(plans) => run_in_real_time(plans, options, ports, progress)?,
            ExampleWork::Frames(all) => self.run_each(all, progress, |one, tell| one.run(tell))?,
            ExampleWork::DeviceFrames(all) => {
                self.run_each(all, progress, |one, tell| one.run(ports, tell))?
            }
        };
        Ok(self.finish(report))
    }

    /// Runs programs that write frames, one after the other.
    fn run_each<W>(
        &self,
        all: &[W],
        progress: &dyn Fn(f64),
        mut run: impl FnMut(&W, &mut dyn FnMut(f64)) -> Result<RunResult, String>,
    ) -> Result<Report, String> {
        let share = |nth: usize| nth as f64 / all.len() as f64;
        let mut runs = Vec::new();
        for (nth, one) in all.iter().enumerate() {
            runs.push(run(one, &mut |part| progress(share(nth) + part * share(1)))?);
        }
        let ends = runs.iter().filter_map(|run| run.sample_s.last());
        Ok(Report {
            version: VERSION,
            seed: runs.first().map_or(0, |run| run.seed),
            title: self.name.to_owned(),
            description: String::new(),
            duration_s: ends.copied().fold(0., f64::max),
            runs,
            summaries: Vec::new(),
        })
    }

    /// Adds the echo replies and the latencies to a report.
    fn finish(&self, mut report: Report) -> ExampleReport {
        let replies = summary::replies(&report, self.pings.as_ref());
        let latency = summary::latencies(&report, &replies, self.load, self.way);
        let sentences = summary::sentences(&latency);
        report.description = format!("{}\n\n{sentences}", self.about);
        ExampleReport {
            example: self.name,
            about: self.about.clone(),
            replies,
            latency,
            report,
            way: self.way,
            remote: self.pings.as_ref().map_or(String::new(), |pings| pings.remote.clone()),
            counts_failures: self.counts_failures,
        }
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
