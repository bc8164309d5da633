//! Errors in link descriptions.

use std::fmt;

/// An invalid link description, with the position of the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetemError {
    pub(super) text: String,
    /// Position and length of the erroneous word, in characters.
    pub(super) column: usize,
    pub(super) width: usize,
    pub(super) message: String,
}

impl NetemError {
    /// Returns the position of the erroneous word, in characters.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the message, without the description.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for NetemError {
    /// Formats the message, followed by the description with the word underlined.
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
