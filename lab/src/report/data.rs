//! Results of `cargo lab bench`: the JSON that it writes, and that the tables and the page are
//! made from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::figures::{Interval, Median, Sample, Spread};

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Changes when a reader of the earlier one would misread it.
    pub format: u32,
    /// Date of the beginning, in UTC: 2026-11-23.
    pub date: String,
    pub machine: Machine,
    /// Programs that took part, and their versions.
    pub versions: BTreeMap<String, String>,
    /// Seconds of each run of a client, where a measurement does not say otherwise.
    pub seconds: u32,
    /// Rounds.
    pub repeat: usize,
    /// Sides that could not take part at all, and why.
    pub missing: BTreeMap<String, String>,
    pub measurements: Vec<Measurement>,
    /// Where the time went, in rounds of their own. None unless that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flames: Vec<Flame>,
}

/// The format that this program writes and reads.
pub const FORMAT: u32 = 1;

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub memory_bytes: u64,
}

/// Where the time went while the client of a case ran against one side.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Flame {
    pub case: String,
    pub side: String,
    /// Samples a second of each processor.
    pub hz: u32,
    /// Samples by folded stack, `client;main;tcp_sendmsg_[k]`: first whose thread it was, then who
    /// called whom.
    pub stacks: BTreeMap<String, u64>,
}

/// A row of the table.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    pub group: String,
    /// Name of the case, which may have several rows.
    pub case: String,
    /// Name of the row among them; empty where there is one.
    pub which: String,
    pub unit: String,
    /// Whether less is better: it is of times, and not of rates.
    pub is_less_better: bool,
    /// Seconds of each run of its client, if those are not the report's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// In the order of the table's columns.
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
    /// Why there is no figure.
    Missing(String),
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub value: Interval,
    /// The sample in the middle.
    pub middle: Sample,
    /// To the side that it is compared with, which has none.
    pub ratio: Option<Ratio>,
    /// Samples, one from each round.
    pub samples: Vec<Sample>,
    /// Spread of the case, with the first of its rows that has times; where its client tells it.
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
