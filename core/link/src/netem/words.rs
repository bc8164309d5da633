//! Words of a link description, with their positions.

use super::NetemError;

/// A word of a link description.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// The whole link description, for error messages.
    whole: &'a str,
    /// Position of the word in the link description, in characters.
    column: usize,
}

impl Word<'_> {
    pub(super) fn error(&self, message: String) -> NetemError {
        let (written, whole) = (self.text, self.whole);
        NetemError {
            text: whole.replace(|c: char| c.is_whitespace(), " "),
            column: self.column,
            width: written.chars().count(),
            message: format!("\"{written}\": {message}"),
        }
    }
}

/// The words of a link description that are not parsed yet.
pub(super) struct Words<'a> {
    whole: &'a str,
    words: std::vec::IntoIter<Word<'a>>,
    /// Word of the link description that was parsed last.
    last: Option<Word<'a>>,
}

impl<'a> Words<'a> {
    pub(super) fn new(whole: &'a str) -> Self {
        let word = |text: &'a str| {
            let at = text.as_ptr() as usize - whole.as_ptr() as usize;
            Word { text, whole, column: whole[..at].chars().count() }
        };
        let words: Vec<_> = whole.split_whitespace().map(word).collect();
        Self { whole, words: words.into_iter(), last: None }
    }

    pub(super) fn next(&mut self) -> Option<Word<'a>> {
        let word = self.words.next()?;
        self.last = Some(word);
        Some(word)
    }

    fn peek(&self) -> Option<&Word<'a>> {
        self.words.as_slice().first()
    }

    /// Removes and returns the next word if it equals `text`.
    pub(super) fn next_if(&mut self, text: &str) -> Option<Word<'a>> {
        self.peek().is_some_and(|word| word.text == text).then(|| self.next()).flatten()
    }

    /// Returns whether the next word is a number instead of a keyword.
    pub(super) fn is_number_next(&self) -> bool {
        let is_number =
            |word: &Word<'_>| word.text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        self.peek().is_some_and(is_number)
    }

    /// Removes the next word and parses it. `expected` describes the value in the error message.
    pub(super) fn value<V>(
        &mut self,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<V>,
    ) -> Result<V, NetemError> {
        let before = self.last;
        let Some(word) = self.next() else {
            let behind = before.map(|word| format!(" behind {}", word.text)).unwrap_or_default();
            return Err(self.end(format!("expected {expected}{behind}")));
        };
        parse(word.text).ok_or_else(|| word.error(format!("expected {expected}")))
    }

    /// Creates an error whose position is the end of the link description.
    pub(super) fn end(&self, message: String) -> NetemError {
        let text = self.whole.replace(|c: char| c.is_whitespace(), " ");
        let text = text.trim_end();
        let column = text.chars().count() + usize::from(!text.is_empty());
        NetemError { text: text.into(), column, width: 1, message }
    }
}
