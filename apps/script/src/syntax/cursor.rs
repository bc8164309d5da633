//! Reading position in the text of a script.

/// Syntax error: the position of an invalid word in a script, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Number of the line, starting at 1.
    pub line: usize,
    /// Column in bytes, starting at 1.
    pub column: usize,
    /// Error message about the invalid word.
    pub message: String,
}

/// Maximum depth of nested values. Deeper scripts could overflow the stack.
const DEPTH_MAX: usize = 64;

/// Reads a text from its start to its end. Line breaks count as white space.
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    pub fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    pub fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    /// Calls `parse` to read a value that may contain other values. Limits the depth of nested
    /// values.
    pub fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<T, SyntaxError> {
        if self.depth == DEPTH_MAX {
            return Err(self.error("values are nested too deep"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Skips white space and comments before the next word.
    pub fn skip_space(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if let Some(comment) = trimmed.strip_prefix("/*") {
                let Some(end) = comment.find("*/") else {
                    return Err(self.error("the comment does not end"));
                };
                self.at += end + 4;
            } else {
                return Ok(());
            }
        }
    }

    /// Returns the next byte after white space, or 0 at the end of the text.
    pub fn peek(&mut self) -> Result<u8, SyntaxError> {
        self.skip_space()?;
        Ok(self.rest().bytes().next().unwrap_or(0))
    }

    /// Returns whether the rest of the text contains only white space.
    pub fn is_at_end(&mut self) -> Result<bool, SyntaxError> {
        self.skip_space()?;
        Ok(self.rest().is_empty())
    }

    /// Skips `word` if the text continues with it. Returns whether it was skipped.
    pub fn eat(&mut self, word: &str) -> Result<bool, SyntaxError> {
        self.skip_space()?;
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        Ok(found)
    }

    /// Skips the name `word` if it is the complete next word. Returns whether it was skipped.
    pub fn eat_word(&mut self, word: &str) -> Result<bool, SyntaxError> {
        self.skip_space()?;
        let is_next = self.word_len() == word.len() && self.rest().starts_with(word);
        if is_next {
            self.at += word.len();
        }
        Ok(is_next)
    }

    pub fn expect(&mut self, word: &str) -> Result<(), SyntaxError> {
        if self.eat(word)? {
            return Ok(());
        }
        Err(self.unexpected(&format!("'{word}'")))
    }

    /// Reads the text up to `end`, and skips `end`. Returns the text before `end`.
    pub fn until(&mut self, end: &str) -> Result<&'a str, SyntaxError> {
        let rest = self.rest();
        let Some(len) = rest.find(end) else {
            return Err(self.error(&format!("'{end}' is missing")));
        };
        self.at += len + end.len();
        Ok(&rest[..len])
    }

    /// Reads a word that consists of letters, digits and underscores.
    pub fn word(&mut self) -> Result<&'a str, SyntaxError> {
        self.skip_space()?;
        let len = self.word_len();
        if len == 0 {
            return Err(self.unexpected("a name"));
        }
        let word = &self.rest()[..len];
        self.at += len;
        Ok(word)
    }

    /// Reads the longest prefix in which `wanted` accepts every byte.
    pub fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.bytes().take_while(|&byte| wanted(byte)).count();
        self.at += len;
        &rest[..len]
    }

    /// Reads a decimal or hexadecimal number.
    pub fn number<N: TryFrom<i64>>(&mut self) -> Result<N, SyntaxError> {
        self.skip_space()?;
        let start = self.at;
        let negative = self.eat("-")?;
        let (radix, digits) = if self.rest().starts_with("0x") {
            self.at += 2;
            (16, self.take_while(|byte| byte.is_ascii_hexdigit()))
        } else {
            (10, self.take_while(|byte| byte.is_ascii_digit()))
        };
        let value = i64::from_str_radix(digits, radix).map(|n| if negative { -n } else { n });
        match value.map(N::try_from) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => {
                self.at = start;
                Err(self.error(&format!("the number {digits} is out of range")))
            }
            Err(_) => {
                self.at = start;
                Err(self.unexpected("a number"))
            }
        }
    }

    /// Reads a number of seconds with an optional fraction, and returns it in microseconds.
    pub fn seconds(&mut self) -> Result<i64, SyntaxError> {
        self.skip_space()?;
        let start = self.at;
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        let mut fraction = "";
        // Exclude three dots, because they separate the start and the end of a call.
        if self.rest().starts_with('.') && !self.rest().starts_with("...") {
            self.at += 1;
            fraction = self.take_while(|byte| byte.is_ascii_digit());
        }
        let micros = format!("{fraction:0<6}");
        let value = if whole.is_empty() && fraction.is_empty() {
            None
        } else {
            let whole: Option<i64> = if whole.is_empty() { Some(0) } else { whole.parse().ok() };
            let micros: Option<i64> = micros.get(..6).and_then(|digits| digits.parse().ok());
            let whole = whole.and_then(|s| s.checked_mul(1_000_000));
            whole.zip(micros).and_then(|(s, us)| s.checked_add(us))
        };
        value.ok_or_else(|| {
            self.at = start;
            self.unexpected("a time")
        })
    }

    pub fn error(&self, message: &str) -> SyntaxError {
        let before = &self.text[..self.at.min(self.text.len())];
        let column = 1 + before.len() - before.rfind('\n').map_or(0, |at| at + 1);
        SyntaxError { line: self.line(), column, message: message.to_owned() }
    }

    /// Returns a syntax error that shows the next word, and describes the wanted one.
    pub fn unexpected(&self, wanted: &str) -> SyntaxError {
        let next = self.rest().split_whitespace().next().unwrap_or("the end");
        let next: String = next.chars().take(40).collect();
        self.error(&format!("expected {wanted}, found {next}"))
    }

    fn word_len(&self) -> usize {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        self.rest().bytes().take_while(is_part).count()
    }
}
