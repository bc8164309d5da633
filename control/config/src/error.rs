//! Errors of a configuration file, with their place.

use std::fmt;

/// First error of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Message with the key, its value, and the expected value.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, message } = self;
        write!(f, "line {line}, column {column}: {message}")
    }
}

impl ConfigError {
    /// Creates an error at a byte offset of the file.
    pub fn at(text: &str, byte: usize, message: impl Into<String>) -> Self {
        // An offset inside a character belongs to that character.
        let mut end = byte.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: 1 + before.matches('\n').count(),
            column: 1 + before[start..].chars().count(),
            message: printable(&message.into()),
        }
    }

    /// Converts an error of the TOML parser.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or(text.len()..text.len());
        let key = text.get(span.clone()).unwrap_or_default();
        let message = match error.message() {
            "duplicate key" => format!("the key `{key}` is given twice"),
            message => message.lines().collect::<Vec<_>>().join(", "),
        };
        Self::at(text, span.start, message)
    }
}

/// Replaces control characters, which a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Returns a message about an unknown name, with the nearest of `known`.
pub fn unknown(noun: &str, name: &str, known: &[&str]) -> String {
    let likeness = |known: &&&str| strsim::jaro_winkler(name, known);
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    // Names of a few letters with one typing error have a low similarity.
    let is_near =
        |best: &&&str| likeness(best) > LIKENESS_MIN || strsim::osa_distance(name, best) <= 1;
    match best.filter(is_near) {
        Some(near) => format!("unknown {noun} `{name}`; did you mean `{near}`?"),
        None => format!("unknown {noun} `{name}`; expected one of {}", known.join(", ")),
    }
}

/// Minimum similarity for suggesting a known name, the same as for rules of access lists.
const LIKENESS_MIN: f64 = 0.75;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_lines_and_characters() {
        let text = "a = 1\né = \u{7}\n";
        let at = |byte| ConfigError::at(text, byte, "x\u{7}");
        assert_eq!(at(0).to_string(), "line 1, column 1: x\u{fffd}");
        assert_eq!((at(8).line, at(8).column), (2, 2), "behind a character of two bytes");
        assert_eq!((at(7).line, at(7).column), (2, 1), "inside it");
        assert_eq!((at(99).line, at(99).column), (3, 1));
    }
}
