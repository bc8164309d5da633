//! Errors in a TOML file such as a scenario, with a line number and advice.

use std::fmt;

/// Error in the text of a scenario file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError {
    /// Number of the line in the file, starting at 1. `None` for a variant, because its text is
    /// combined from two parts of the file.
    pub line: Option<usize>,
    /// Error message with the invalid item, its value, and the expected value.
    pub message: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for ScenarioError {}

impl ScenarioError {
    /// Creates an error at the byte offset `byte` of the file.
    pub fn at(text: &str, byte: usize, message: impl Into<String>) -> Self {
        Self { line: Some(line_of(text, byte)), message: printable(&message.into()) }
    }

    /// Creates an error without a line number.
    pub(crate) fn without_line(message: impl Into<String>) -> Self {
        Self { line: None, message: printable(&message.into()) }
    }

    /// Converts an error of the TOML parser. For an unknown name, suggests the nearest known one.
    pub fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        let message = plainly(error.message());
        match error.span() {
            Some(span) => Self::at(text, span.start, message),
            None => Self::without_line(message),
        }
    }
}

/// Returns the line of a byte offset, from 1.
pub(super) fn line_of(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
}

/// Returns `text` with control characters replaced by U+FFFD, because a terminal would interpret
/// them.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Returns an error if a title or name at byte `at` of the file contains control characters.
pub(super) fn one_line(text: &str, at: usize, name: &str) -> Result<(), ScenarioError> {
    let Some(found) = name.chars().find(|c| c.is_control()) else { return Ok(()) };
    let code = u32::from(found);
    let message = format!("`{name}` contains the control character U+{code:04X}; leave it out");
    Err(ScenarioError::at(text, at, message))
}

/// Replaces the list of expected names in an error message by "did you mean".
fn plainly(message: &str) -> String {
    let unknown = [("unknown field `", "key"), ("unknown variant `", "value")];
    for (start, what) in unknown {
        let Some(rest) = message.strip_prefix(start) else { continue };
        let Some((name, expected)) = rest.split_once('`') else { continue };
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        return unknown_name(what, name, &known);
    }
    let message = message.lines().next().unwrap_or(message);
    match message.rsplit_once(", expected ") {
        Some((wrong, "u8" | "u16" | "u32" | "u64" | "usize")) => {
            format!("{wrong}, expected a whole number of 0 or more")
        }
        _ => message.to_owned(),
    }
}

/// Returns an error message about an unknown name. The message suggests the nearest name in
/// `known`.
pub(crate) fn unknown_name(what: &str, name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(near) => format!("unknown {what} `{name}`; did you mean `{near}`?"),
        None if known.is_empty() => format!("unknown {what} `{name}`; there are none"),
        None => format!("unknown {what} `{name}`; expected one of {}", known.join(", ")),
    }
}

/// Returns the known name that is most similar to `name`. `None` if none is similar enough.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |known: &&str| strsim::jaro_winkler(name, known);
    let best = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) > 0.75).then_some(best)
}
