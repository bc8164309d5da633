//! Results of an example.

use serde::Serialize;

use super::summary::{EchoReply, Latency};
use crate::output;
use crate::result::Report;

/// Results of an example.
#[derive(Debug, Serialize)]
pub struct ExampleReport {
    /// Name of the example.
    pub example: &'static str,
    /// Description of the run.
    pub about: String,
    /// Echo replies of all variants, in order of arrival.
    pub replies: Vec<EchoReply>,
    /// Latency, queue and device with and without load, per variant.
    pub latency: Vec<Latency>,
    /// Full report, as of any scenario.
    pub report: Report,
    #[serde(skip)]
    pub(super) way: usize,
    #[serde(skip)]
    pub(super) remote: String,
    #[serde(skip)]
    pub(super) counts_failures: bool,
}

impl ExampleReport {
    /// Formats the results as JSON.
    pub fn json(&self) -> String {
        // Serialization cannot fail: the report has only numbers and strings. Infinite numbers
        // become null.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Formats all figures as CSV, one row per run.
    pub fn csv(&self) -> String {
        output::csv(&self.report)
    }

    /// Formats all time series as CSV, followed by one line per echo reply.
    pub fn series(&self) -> String {
        let mut out = output::series(&self.report);
        for reply in &self.replies {
            let EchoReply { variant, seq, at_s, time_s, .. } = reply;
            let seed = self.report.runs.first().map_or(0, |run| run.seed);
            out.push_str(&format!("{variant},{seed},{at_s},ping,seq {seq},time_s,{time_s}\n"));
        }
        out
    }

    /// Formats the results as an HTML page with charts.
    pub fn html(&self) -> String {
        output::html(&self.report)
    }
}
