//! Errors in link descriptions, such as `delay 50ms`.

use std::fmt;

/// An invalid link description, with the position of the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetemError {
    pub(super) text: String,
    /// Position and length of the invalid word in the description, in characters.
    pub(super) column: usize,
    pub(super) width: usize,
    pub(super) message: String,
}

impl NetemError {
    /// Returns the position of the invalid word in the description, in characters.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the error message, without the link description.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for NetemError {
    /// Formats the error message, followed by the link description with the invalid word
    /// underlined.
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
