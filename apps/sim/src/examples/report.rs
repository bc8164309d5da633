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
    /// Sentences about the run.
    pub about: String,
    /// Echo replies of all variants, in the order of their arrival.
    pub replies: Vec<EchoReply>,
    /// Latency and the state of queue and device, with and without load, of each variant.
    pub latency: Vec<Latency>,
    /// Everything else, as of any scenario.
    pub report: Report,
    #[serde(skip)]
    pub(super) way: usize,
    #[serde(skip)]
    pub(super) remote: String,
    #[serde(skip)]
    pub(super) counts_failures: bool,
}

impl ExampleReport {
    /// The results as JSON.
    pub fn json(&self) -> String {
        // Numbers and texts: JSON can say them all, but for infinities, which become null.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// All figures as CSV, a row for each run.
    pub fn csv(&self) -> String {
        output::csv(&self.report)
    }

    /// All series as CSV, and a line for each echo reply.
    pub fn series(&self) -> String {
        let mut out = output::series(&self.report);
        for reply in &self.replies {
            let EchoReply { variant, seq, at_s, time_s, .. } = reply;
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
