//! The error of a description of a link.

use std::fmt;

/// A description that is not one of a link, with the place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetemError {
    pub(super) text: String,
    /// Characters in front of the word, and in it.
    pub(super) column: usize,
    pub(super) width: usize,
    pub(super) message: String,
}

impl NetemError {
    /// Characters in front of the word that is meant.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The message, without the description.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for NetemError {
    /// The message, and below it the description with the word underlined.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, column, width, message } = self;
        let (indent, carets) = (" ".repeat(*column), "^".repeat((*width).max(1)));
        if text.is_empty() {
            return f.write_str(message);
        }
        write!(f, "{message}\n  {text}\n  {indent}{carets}")
    }
}

impl std::error::Error for NetemError {}
