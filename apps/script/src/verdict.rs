//! Runs a script, and returns its result.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::compare::Relaxations;
use crate::knobs::{IpVersion, Knobs};
use crate::run::{CapturedPacket, START, ScriptRunner, Stop};
use crate::syntax;

/// Options for running scripts.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// IP version for scripts without the option `--ip_version`.
    pub version: IpVersion,
    /// MTU in bytes for scripts without the option `--mtu`. `None` selects 1500.
    pub mtu: Option<u16>,
    /// Tolerance for times in microseconds. `None` selects the tolerance of the script, or 4000.
    pub tolerance_us: Option<u32>,
    /// Kinds of differences that do not fail a script.
    pub relax: Relaxations,
    /// Whether a script fails if the stack sends a packet that no event expects.
    pub strict: bool,
}

/// Reason why a script failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptFailure {
    /// Line of the script, starting at 1. 0 if the script cannot be read.
    pub line: usize,
    /// Column of a syntax error, starting at 1. `None` for other failures.
    pub column: Option<usize>,
    /// Error message that describes the failure.
    pub message: String,
    /// Packets and system calls before the failure.
    pub history: Vec<String>,
}

/// Result of running a script.
#[derive(Debug, Clone)]
pub struct ScriptResult {
    /// Path of the script.
    pub path: PathBuf,
    /// Reason of the failure. `None` if the script passed.
    pub failure: Option<ScriptFailure>,
    /// Packets in both directions, in the order in which they were sent.
    pub packets: Vec<CapturedPacket>,
}

impl ScriptResult {
    /// Formats the result as JSON.
    pub fn to_json(&self) -> Value {
        let failure = self.failure.as_ref().map(|failure| {
            json!({
                "line": failure.line,
                "column": failure.column,
                "message": failure.message,
                "history": failure.history,
            })
        });
        json!({
            "script": self.path.display().to_string(),
            "passed": self.failure.is_none(),
            "packets": self.packets.len(),
            "failure": failure,
        })
    }
}

/// Runs the script `text`, and returns its result. `path` is the path of the script.
pub fn run_text(path: &Path, text: &str, options: &RunOptions) -> ScriptResult {
    let path = path.to_owned();
    let refused = |error: syntax::SyntaxError| ScriptFailure {
        line: error.line,
        column: Some(error.column),
        message: error.message,
        history: Vec::new(),
    };
    let prepared = syntax::parse(text).and_then(|script| {
        let knobs = knobs_of(&script, options)?;
        Ok((script, knobs))
    });
    let (script, knobs) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            return ScriptResult { path, failure: Some(refused(error)), packets: Vec::new() };
        }
    };
    let mut runner =
        ScriptRunner::new(&script, knobs.clone(), options.relax, options.strict, START);
    let mut end = runner.run();
    if let Err(Stop::SequenceNumber(chosen)) = end {
        // The stack's initial sequence numbers follow the clock, with one number every 4 µs (RFC
        // 9293 §3.4.1). Start at the time at which the wanted number is chosen.
        let ticks = knobs.local_isn.unwrap_or(0).wrapping_sub(chosen);
        let start = START + Duration::from_micros(4 * u64::from(ticks));
        runner = ScriptRunner::new(&script, knobs, options.relax, options.strict, start);
        end = runner.run();
    }
    let failure = end.err().map(|stop| {
        let (line, message) = match stop {
            Stop::Failed { line, message } => (line, message),
            Stop::SequenceNumber(_) => (0, "the sequence number cannot be chosen".to_owned()),
        };
        let history = std::mem::take(&mut runner.history);
        ScriptFailure { line, column: None, message, history }
    });
    ScriptResult { path, failure, packets: runner.captured }
}

fn knobs_of(script: &syntax::Script, options: &RunOptions) -> Result<Knobs, syntax::SyntaxError> {
    let mut knobs = Knobs { version: options.version, ..Knobs::default() };
    if let Some(mtu) = options.mtu {
        knobs.mtu = mtu;
    }
    for option in &script.options {
        knobs.set_option(option)?;
    }
    if let Some(tolerance) = options.tolerance_us {
        knobs.tolerance_us = tolerance.into();
    }
    Ok(knobs)
}
