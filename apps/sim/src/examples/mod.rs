//! Four examples of a host, its queue and its device: ping, on-off traffic, bulk sending, and
//! traffic control.
//!
//! Options become the text of a scenario, which anybody can change and run. [`ExampleReport`] shows
//! its results as lines over time: echo replies, the backlog of the queue, the bytes in the device,
//! and the packets sent. The latency with and without load, and with and without byte queue limits,
//! stands at the end. Frames that are written into a device directly (`send`) need no network, and
//! have a loop of their own.

mod frames;
mod lines;
mod options;
mod summary;

use serde::Serialize;

pub use lines::text;
pub use options::{
    Bql, CardOptions, Load, OnOffOptions, PingOptions, SendMode, SendOptions, TcOptions, Transport,
};
pub use summary::{Latency, Reply};

use crate::output;
use crate::result::Report;
use crate::scenario::{Plan, read};
use crate::units::Time;
use crate::{BatchOptions, run_all};

/// Samples of the series between two lines of the text.
const SAMPLES_OF_LINE: u64 = 10;
/// Name of the discipline where there is none.
const NO_QDISC: &str = "none";
/// Most lines of statistics of a run.
const LINES_MAX: u64 = 2_000;

/// An example with its options, before it runs.
#[derive(Debug, Clone)]
pub struct Example {
    /// Name, as in `towpath sim ping`.
    pub name: &'static str,
    /// Scenario that does the same; none for frames that are written into a device.
    pub scenario: Option<String>,
    /// Sentences about the run.
    about: String,
    work: Work,
    /// Direction of a link that is looked at: 0 is there, 1 back.
    way: usize,
    pings: Option<Pings>,
    load: Option<Load>,
    /// Packets that the queue drops are failures of the sender.
    counts_failures: bool,
}

#[derive(Debug, Clone)]
enum Work {
    /// Plans of a scenario.
    Network(Vec<Plan>),
    /// Frames for a device.
    Frames(Vec<frames::Writing>),
}

/// The echo requests of an example.
#[derive(Debug, Clone)]
struct Pings {
    remote: String,
    start_ns: u64,
    interval_ns: u64,
}

/// Results of an example.
#[derive(Debug, Serialize)]
pub struct ExampleReport {
    /// Name of the example.
    pub example: &'static str,
    /// Sentences about the run.
    pub about: String,
    /// Echo replies of all variants, in the order of their arrival.
    pub replies: Vec<Reply>,
    /// Latency and the state of queue and device, with and without load, of each variant.
    pub latency: Vec<Latency>,
    /// Everything else, as of any scenario.
    pub report: Report,
    #[serde(skip)]
    way: usize,
    #[serde(skip)]
    remote: String,
    #[serde(skip)]
    counts_failures: bool,
}

impl Example {
    /// Runs the example. `progress` gets the share that is done, from any thread.
    ///
    /// # Errors
    /// A limit that was reached.
    pub fn run(
        &self,
        seed: Option<u64>,
        threads: usize,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<ExampleReport, String> {
        let mut report = match &self.work {
            Work::Network(plans) => {
                let options = BatchOptions { seed, runs: 1, captures: None, threads };
                run_all(plans, options, progress)?
            }
            Work::Frames(writings) => {
                let share = |nth: usize| nth as f64 / writings.len() as f64;
                let runs = writings.iter().enumerate().map(|(nth, writing)| {
                    writing.run(&mut |part| progress(share(nth) + part * share(1)))
                });
                let runs: Vec<_> = runs.collect::<Result<_, String>>()?;
                let ends = runs.iter().filter_map(|run| run.sample_s.last());
                Report {
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

    /// An example whose scenario is `text`.
    fn of_scenario(name: &'static str, about: String, text: String) -> Result<Self, String> {
        let plans = read(&text).map_err(|error| error.message)?;
        Ok(Self {
            name,
            scenario: Some(text),
            about,
            work: Work::Network(plans),
            way: 0,
            pings: None,
            load: None,
            counts_failures: false,
        })
    }
}

/// Time between two samples, for lines that come `every_ns`.
fn sample_of(every_ns: u64, duration_ns: u64) -> Result<u64, String> {
    let least = (duration_ns / LINES_MAX).max(SAMPLES_OF_LINE);
    if every_ns < least || every_ns > duration_ns {
        return Err(format!(
            "`every` is {}; expected {} to {}, the length of the run",
            Time(every_ns),
            Time(least),
            Time(duration_ns)
        ));
    }
    Ok(every_ns / SAMPLES_OF_LINE)
}

impl ExampleReport {
    /// The results as JSON.
    pub fn json(&self) -> String {
        // Numbers and texts: JSON can say them all, but for infinities, which become null.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// All series as CSV, and a line for each echo reply.
    pub fn csv(&self) -> String {
        let mut out = output::csv(&self.report);
        for reply in &self.replies {
            let Reply { variant, seq, at_s, time_s, .. } = reply;
            let seed = self.report.runs.first().map_or(0, |run| run.seed);
            out.push_str(&format!("{variant},{seed},{at_s},ping,seq {seq},time_s,{time_s}\n"));
        }
        out
    }

    /// The results as a page with charts.
    pub fn html(&self) -> String {
        output::html(&self.report)
    }
}
