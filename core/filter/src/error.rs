//! Errors in rules that a user wrote.

use core::fmt;

/// A rule that cannot be, without its place in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// The fault, with the word that has it.
    pub what: String,
    /// The remedy: words or values that are possible here.
    pub expected: String,
}

/// A text that is not an access list: its first fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesError {
    /// Line of the fault, from 1.
    pub line: usize,
    /// Column of the fault in characters, from 1.
    pub column: usize,
    /// The fault, with the word that has it.
    pub what: String,
    /// The remedy: words or values that are possible here.
    pub expected: String,
}

impl RuleError {
    pub(crate) fn new(what: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { what: what.into(), expected: expected.into() }
    }

    /// An error about a word that is none of `known`.
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

/// Likeness from which a known word is suggested, as `towpath sim` does for the keys of scenarios.
/// Short words are suggested after one slip as well: "tpc" is hardly like "tcp" by this measure.
const LIKENESS_MIN: f64 = 0.75;

/// Characters of a wrong word that an error repeats; a binary file would fill the screen otherwise.
const SHOWN_MAX: usize = 40;

/// A word of the user as an error shows it.
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
