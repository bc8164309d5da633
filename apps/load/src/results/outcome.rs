//! Results of a command, which is a single run, a comparison, or a search.

use crate::Report;
use serde::Serialize;

use super::compare::Comparison;
use super::machine::MachineFacts;
use super::search::Search;
use super::values::Goal;

/// Document that all output formats are created from.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Version of `towpath` that created the document.
    pub version: &'static str,
    /// Arguments of the command line.
    pub argv: Vec<String>,
    /// Network stack that has the users' sockets: kernel, rootless or tap.
    pub on: &'static str,
    /// Machine on which the tester ran.
    pub machine: MachineFacts,
    /// Figures that the command measured.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Results of the requested assertions.
    pub assertions: Vec<Assertion>,
}

/// Figures that a command measured.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// A single run.
    Run {
        /// Figures of the run.
        run: Box<Report>,
    },
    /// Two servers were run alternately.
    Comparison {
        /// Runs of both servers, and the differences between them.
        comparison: Comparison,
    },
    /// Runs at several rates were executed.
    Search {
        /// Steps of the search, and the rate that it found.
        search: Search,
    },
}

/// Run with a label and a number that identify it.
#[derive(Debug, Clone, Copy)]
pub struct Labelled<'a> {
    /// Label of the run. Empty for a single run, otherwise the server's name (A or B) or a rate.
    pub label: &'a str,
    /// Number of the run among the runs with this label, starting at 1.
    pub round: usize,
    /// Figures of the run.
    pub report: &'a Report,
}

impl Outcome {
    /// Returns all runs in the order in which they were executed.
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

    /// Returns whether any run had answers. For streams, returns whether any run transferred bytes.
    pub fn has_answers(&self) -> bool {
        self.runs().iter().any(|run| has_answers(run.report))
    }
}

/// Returns whether a report contains figures other than failures.
pub fn has_answers(report: &Report) -> bool {
    if report.plan.shape.is_stream() {
        report.bytes_sent + report.bytes_received > 0
    } else {
        // Idle users with a long interval may have had no request that was due.
        report.received > 0 || report.sent == 0 && report.connected > 0
    }
}

/// Bound on a figure, with the measured value.
#[derive(Debug, Clone, Serialize)]
pub struct Assertion {
    /// Bound as given on the command line.
    pub bound: String,
    /// Measured value of the figure.
    pub found: String,
    /// Whether the measured value meets the bound.
    pub holds: bool,
}

impl Assertion {
    /// Compares the figures of a report with a bound.
    pub fn of(goal: &Goal, report: &Report) -> Self {
        let (bound, found) = (goal.text().to_owned(), goal.found(report));
        Self { bound, found, holds: goal.holds(report) }
    }
}
