//! Result of a script.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::compare::Relaxations;
use crate::knobs::{IpVersion, Knobs};
use crate::run::{CapturedPacket, START, ScriptRunner, Stop};
use crate::syntax;

/// Options of runs.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// IP version of scripts without `--ip_version`.
    pub version: IpVersion,
    /// MTU in bytes of scripts without `--mtu`; `None` means 1500.
    pub mtu: Option<u16>,
    /// Tolerance in microseconds; `None` means 4000, or that of the script.
    pub tolerance_us: Option<u32>,
    /// Differences that do not fail a script.
    pub relax: Relaxations,
    /// Whether a packet that no event expects fails the script.
    pub strict: bool,
}

/// Reason why a script failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptFailure {
    /// Line of the script, counted from 1; 0 if the script cannot be read.
    pub line: usize,
    /// Column of a syntax error, counted from 1.
    pub column: Option<usize>,
    /// Reason.
    pub message: String,
    /// Packets and calls before the failure.
    pub history: Vec<String>,
}

/// Result of a script.
#[derive(Debug, Clone)]
pub struct ScriptResult {
    /// File of the script.
    pub path: PathBuf,
    /// `None` if the script passed.
    pub failure: Option<ScriptFailure>,
    /// Packets in both directions.
    pub packets: Vec<CapturedPacket>,
}

impl ScriptResult {
    /// Returns the result as JSON.
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

/// Runs a script.
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
        // Initial sequence numbers follow the clock, one every 4 µs (RFC 9293 §3.4.1). A start at
        // another time therefore gives the wanted number.
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
