//! Results of a command: one run, a comparison, or a search.

use crate::Report;
use serde::Serialize;

use super::compare::Comparison;
use super::machine::MachineFacts;
use super::search::Search;
use super::values::Goal;

/// Everything that the outputs tell.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Version of `towpath`.
    pub version: &'static str,
    /// Words of the command line.
    pub argv: Vec<String>,
    /// Place of the users' sockets: kernel, rootless or tap.
    pub on: &'static str,
    /// The machine that the tester ran on.
    pub machine: MachineFacts,
    /// The figures.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Bounds that were asked for.
    pub assertions: Vec<Assertion>,
}

/// The figures of a command.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// A single run.
    Run {
        /// Its figures.
        run: Box<Report>,
    },
    /// Two servers in turn.
    Comparison {
        /// The runs of both, and their differences.
        comparison: Comparison,
    },
    /// Runs at several rates.
    Search {
        /// The steps, and the rate that was found.
        search: Search,
    },
}

/// A run with the words that tell it from others.
#[derive(Debug, Clone, Copy)]
pub struct Labelled<'a> {
    /// Name of the run: empty, a side, or a rate.
    pub label: &'a str,
    /// Number among the runs of this name, from 1.
    pub round: usize,
    /// Figures of the run.
    pub report: &'a Report,
}

impl Outcome {
    /// All runs in the order in which they happened.
    pub fn runs(&self) -> Vec<Labelled<'_>> {
        match self {
            Self::Run { run } => vec![Labelled { label: "", round: 1, report: run }],
            Self::Comparison { comparison } => comparison.runs(),
            Self::Search { search } => {
                let steps = search.steps.iter().enumerate();
                let labelled = steps.map(|(n, step)| Labelled {
                    label: if step.holds() { "kept" } else { "missed" },
                    round: n + 1,
                    report: &step.report,
                });
                labelled.collect()
            }
        }
    }

    /// Whether a run had an answer, or bytes where bytes are counted.
    pub fn has_answers(&self) -> bool {
        self.runs().iter().any(|run| has_answers(run.report))
    }
}

/// Whether the figures are about more than failures.
pub fn has_answers(report: &Report) -> bool {
    if report.plan.shape.is_stream() {
        report.bytes_sent + report.bytes_received > 0
    } else {
        // Idle users with a long interval may have had no request that was due.
        report.received > 0 || report.sent == 0 && report.connected > 0
    }
}

/// A bound, and the figure that came out.
#[derive(Debug, Clone, Serialize)]
pub struct Assertion {
    /// The bound as it was given.
    pub bound: String,
    /// The figure as it came out.
    pub found: String,
    /// Whether the bound is kept.
    pub holds: bool,
}

impl Assertion {
    /// Compares the figures with the bound.
    pub fn of(goal: &Goal, report: &Report) -> Self {
        let (bound, found) = (goal.text().to_owned(), goal.found(report));
        Self { bound, found, holds: goal.holds(report) }
    }
}
