//! Errors in filter rules written by a user.

use core::fmt;

/// Error in a filter rule, without its line and column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// Description of the problem, including the invalid word.
    pub what: String,
    /// Words or values that would be valid instead of the invalid word.
    pub expected: String,
}

/// First error in the text of an access list, with its line and column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesError {
    /// Line number of the error, starting at 1.
    pub line: usize,
    /// Column of the error in characters, starting at 1.
    pub column: usize,
    /// Description of the problem, including the invalid word.
    pub what: String,
    /// Words or values that would be valid instead of the invalid word.
    pub expected: String,
}

impl RuleError {
    pub(crate) fn new(what: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { what: what.into(), expected: expected.into() }
    }

    /// Creates an error for a word that is not in `known`, and suggests the most similar known
    /// word.
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

/// Minimum Jaro-Winkler similarity (0 to 1) for suggesting a known word. Words with one typing
/// error are suggested even below it, because "tpc" and "tcp" have a low similarity.
const LIKENESS_MIN: f64 = 0.75;

/// Maximum number of characters of an invalid word in an error message, so that a binary file does
/// not flood the screen.
const SHOWN_MAX: usize = 40;

/// Escapes and truncates a word of the user's text for an error message.
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
