//! Results of `cargo lab bench` as JSON, from which tables and the page are created.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::figures::{Interval, Median, Sample, Spread};

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format. Incremented if earlier readers would misinterpret a report.
    pub format: u32,
    /// Date of the start in UTC, as 2026-11-23.
    pub date: String,
    pub machine: Machine,
    /// Versions of the measured programs, by name.
    pub versions: BTreeMap<String, String>,
    /// Default duration of a client's run in seconds.
    pub seconds: u32,
    /// Number of rounds.
    pub repeat: usize,
    /// Sides that could not take part, each with the reason.
    pub missing: BTreeMap<String, String>,
    pub measurements: Vec<Measurement>,
    /// Profiles, recorded in separate rounds; empty unless requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flames: Vec<Flame>,
}

/// Version of the format that this program writes and reads.
pub const FORMAT: u32 = 1;

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub memory_bytes: u64,
}

/// Profile of one side while the client of a case ran.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Flame {
    pub case: String,
    pub side: String,
    /// Samples per second and processor.
    pub hz: u32,
    /// Number of samples by folded stack, as `client;main;tcp_sendmsg_[k]`: the owner of the
    /// thread, followed by functions from the outermost to the innermost.
    pub stacks: BTreeMap<String, u64>,
}

/// A row of the table.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    pub group: String,
    /// Name of the case, which may have several rows.
    pub case: String,
    /// Name of the row within the case; empty if there is only one.
    pub which: String,
    pub unit: String,
    /// Whether smaller values are better: true for times, false for rates.
    pub is_less_better: bool,
    /// Duration of the client's run in seconds, if it differs from the report's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// Results of the sides, in the order of the table's columns.
    pub sides: Vec<Entry>,
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub side: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Measured(Measured),
    /// Reason why the figure is missing.
    Missing(String),
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub value: Interval,
    /// Median sample.
    pub middle: Sample,
    /// Ratio to the side that this one is compared with; `None` for that side.
    pub ratio: Option<Ratio>,
    /// Samples, one per round.
    pub samples: Vec<Sample>,
    /// Distribution of the case's times, stored in its first row with times; `None` if the client
    /// does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Ratio {
    pub to: String,
    #[serde(flatten)]
    pub interval: Interval,
}

impl Measured {
    pub fn of(samples: Vec<Sample>, ratio: Option<Ratio>) -> Self {
        let value = Interval::of(samples.iter().map(|sample| sample.value));
        Self { value, middle: Median::of(&samples).0, ratio, samples, spread: None }
    }
}

impl Measurement {
    pub fn name(&self) -> String {
        format!("{}{}", self.case, self.which)
    }
}
