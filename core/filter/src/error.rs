//! Errors in rules written by a user.

use core::fmt;

/// Invalid rule, without its position in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// Problem, including the invalid word.
    pub what: String,
    /// Remedy: words or values that are valid here.
    pub expected: String,
}

/// First error of a text that is not a valid access list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesError {
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Problem, including the invalid word.
    pub what: String,
    /// Remedy: words or values that are valid here.
    pub expected: String,
}

impl RuleError {
    pub(crate) fn new(what: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { what: what.into(), expected: expected.into() }
    }

    /// Creates an error for a word that is not in `known`.
    pub(crate) fn unknown(what: &str, word: &str, known: &[&str]) -> Self {
        let likeness = |known: &&str| strsim::jaro_winkler(word, known);
        let best = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let is_like =
            |best: &&str| likeness(best) > LIKENESS_MIN || strsim::osa_distance(word, best) <= 1;
        let expected = match best.filter(is_like) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("expected one of {}", known.join(", ")),
        };
        Self::new(format!("unknown {what} \"{}\"", shown(word)), expected)
    }

    pub(crate) fn at(self, line: usize, column: usize) -> RulesError {
        RulesError { line, column, what: self.what, expected: self.expected }
    }
}

/// Minimum similarity for suggesting a known word, the same as for scenario keys of `towpath sim`.
/// Words with one typing error are always suggested, because "tpc" and "tcp" have a low similarity.
const LIKENESS_MIN: f64 = 0.75;

/// Maximum number of characters of an invalid word that an error repeats, so that a binary file
/// does not flood the screen.
const SHOWN_MAX: usize = 40;

/// Escapes and truncates a user's word for an error.
pub(crate) fn shown(word: &str) -> String {
    let mut shown: String = word.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if word.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.expected)
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, what, expected } = self;
        write!(f, "line {line}, column {column}: {what}; {expected}")
    }
}

impl core::error::Error for RuleError {}
impl core::error::Error for RulesError {}
