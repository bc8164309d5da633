//! Results of parsing bytes that the server sent.

use std::fmt;

use crate::failure::Failure;
use crate::sockets;

/// Result of parsing some bytes of an answer.
pub enum Step {
    /// All bytes were consumed, and the answer is still incomplete.
    Partial,
    /// The answer ended after `used` bytes.
    Whole { used: usize, verdict: Verdict },
}

/// Result of a complete answer.
#[derive(Default)]
pub struct Verdict {
    /// Failure that the answer reports, with the message of the server. `None` if the request
    /// succeeded.
    pub refusal: Option<Trouble>,
    /// Whether the server announced to close the connection after this answer.
    pub closes: bool,
}

/// Failure of a request or a connection, and its cause.
#[derive(Debug)]
pub struct Trouble {
    pub kind: Failure,
    pub cause: Cause,
}

/// Cause of a failure. Its text is formatted only for the first failure of each kind, which serves
/// as an example.
#[derive(Debug)]
pub enum Cause {
    Kernel(std::io::Error),
    Text(&'static str),
    Lengths { got: usize, expected: usize },
    Byte { at: usize, got: u8, expected: u8 },
    Surplus(usize),
    Line(Line),
}

impl Trouble {
    pub fn text(kind: Failure, text: &'static str) -> Self {
        Self { kind, cause: Cause::Text(text) }
    }

    pub fn lengths(kind: Failure, got: usize, expected: usize) -> Self {
        Self { kind, cause: Cause::Lengths { got, expected } }
    }

    /// Returns the failure for `len` bytes that belong to no request.
    pub fn surplus(len: usize) -> Self {
        Self { kind: Failure::LongAnswer, cause: Cause::Surplus(len) }
    }

    pub fn line(kind: Failure, line: Line) -> Self {
        Self { kind, cause: Cause::Line(line) }
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self { kind: sockets::kind(&error), cause: Cause::Kernel(error) }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Kernel(error) => error.fmt(f),
            Cause::Text(text) => f.write_str(text),
            Cause::Lengths { got, expected } => write!(f, "{got} bytes, expected {expected}"),
            Cause::Surplus(len) => write!(f, "{len} bytes more than the answer has"),
            Cause::Byte { at, got, expected } => {
                write!(f, "byte {at} is {got:#04x}, expected {expected:#04x}")
            }
            Cause::Line(line) => write!(f, "\"{}\"", line.bytes().escape_ascii()),
        }
    }
}

/// Beginning of a line that the server sent, without the line break. Longer lines are truncated.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    bytes: [u8; LINE_MAX],
    len: u8,
}

/// Maximum number of bytes that are kept of a line. Relevant header names and values are shorter.
pub const LINE_MAX: usize = 80;

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; LINE_MAX], len: 0 }
    }
}

impl Line {
    /// Consumes bytes of a line. Returns the number of consumed bytes, and whether the line is
    /// complete.
    pub fn read(&mut self, bytes: &[u8]) -> (usize, bool) {
        let end = bytes.iter().position(|&it| it == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let room = &mut self.bytes[usize::from(self.len)..];
        let kept = part.len().min(room.len());
        room[..kept].copy_from_slice(&part[..kept]);
        self.len += kept as u8;
        match end {
            Some(end) => (end + 1, true),
            None => (bytes.len(), false),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        let bytes = &self.bytes[..usize::from(self.len)];
        bytes.strip_suffix(b"\r").unwrap_or(bytes)
    }

    pub fn is_untouched(&self) -> bool {
        self.len == 0
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}
