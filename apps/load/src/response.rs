//! Parser for HTTP/1.1 responses (RFC 9112). Only the parts that are needed to find the end of a
//! response are parsed: status, length, chunks, and keep-alive.

use crate::failure::Failure;
use crate::verdict::{Line, Step, Trouble, Verdict};

/// State of parsing an HTTP response.
#[derive(Default)]
pub struct HttpReader {
    part: Part,
    line: Line,
    status: u16,
    status_line: Option<Line>,
    body: Body,
    closes: bool,
    /// Whether the responses have no body, because the method of the requests is HEAD.
    is_head: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Status,
    Header,
    /// Number of bytes of the body, or of a chunk, that are missing.
    Bytes(u64),
    ChunkSize,
    /// The empty line after a chunk is expected.
    ChunkEnd,
    Trailer,
    UntilClose,
}

/// How the body ends, according to the headers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Body {
    #[default]
    Unknown,
    Length(u64),
    Chunked,
}

impl HttpReader {
    pub fn new(is_head: bool) -> Self {
        Self { is_head, ..Self::default() }
    }

    pub fn has_begun(&self) -> bool {
        self.part != Part::Status || !self.line.is_untouched()
    }

    pub fn read(&mut self, bytes: &[u8]) -> Result<Step, Trouble> {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            match self.part {
                Part::UntilClose => return Ok(Step::Partial),
                Part::Bytes(missing) => {
                    let part = missing.min(rest.len() as u64);
                    used += part as usize;
                    self.part = Part::Bytes(missing - part);
                }
                _ => {
                    let (len, is_whole) = self.line.read(rest);
                    used += len;
                    if !is_whole {
                        return Ok(Step::Partial);
                    }
                    let is_end = self.on_line()?;
                    self.line.clear();
                    if is_end {
                        return Ok(Step::Whole { used, verdict: self.finish() });
                    }
                }
            }
            if self.part == Part::Bytes(0) {
                match self.body {
                    Body::Chunked => self.part = Part::ChunkEnd,
                    _ => return Ok(Step::Whole { used, verdict: self.finish() }),
                }
            }
        }
        Ok(Step::Partial)
    }

    /// Handles the end of the connection, which ends a body of unknown length (RFC 9112 §6.3).
    /// `None` if the response is incomplete.
    pub fn end(&mut self) -> Option<Verdict> {
        (self.part == Part::UntilClose).then(|| {
            self.closes = true;
            self.finish()
        })
    }

    fn finish(&mut self) -> Verdict {
        let done = std::mem::replace(self, Self::new(self.is_head));
        let line = done.status_line.filter(|_| done.status >= 400);
        let refusal = line.map(|line| Trouble::line(Failure::Status, line));
        Verdict { refusal, closes: done.closes }
    }

    /// Parses a complete line of the response. Returns true if the response ends with this line.
    fn on_line(&mut self) -> Result<bool, Trouble> {
        let line = self.line;
        match self.part {
            Part::Status => self.on_status(line.bytes())?,
            Part::Header if line.bytes().is_empty() => return Ok(self.on_headers_end()),
            Part::Header => self.on_header(line.bytes())?,
            Part::ChunkSize => match chunk_size(line.bytes()) {
                Some(0) => self.part = Part::Trailer,
                Some(size) => self.part = Part::Bytes(size),
                None => return Err(Trouble::line(Failure::WrongAnswer, line)),
            },
            Part::ChunkEnd if line.bytes().is_empty() => self.part = Part::ChunkSize,
            Part::ChunkEnd => return Err(Trouble::line(Failure::WrongAnswer, line)),
            Part::Trailer => return Ok(line.bytes().is_empty()),
            Part::Bytes(_) | Part::UntilClose => unreachable!("these parts have no lines"),
        }
        Ok(false)
    }

    fn on_status(&mut self, line: &[u8]) -> Result<(), Trouble> {
        let status = line.strip_prefix(b"HTTP/1.").and_then(|it| it.get(2..5)).and_then(number);
        let Some(status) = status.and_then(|it| u16::try_from(it).ok()).filter(|&it| it >= 100)
        else {
            return Err(Trouble::line(Failure::WrongAnswer, self.line));
        };
        self.status = status;
        self.status_line = Some(self.line);
        self.closes = line.starts_with(b"HTTP/1.0");
        self.part = Part::Header;
        Ok(())
    }

    fn on_header(&mut self, line: &[u8]) -> Result<(), Trouble> {
        let Some(colon) = line.iter().position(|&it| it == b':') else { return Ok(()) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = number(value).ok_or(Trouble::line(Failure::WrongAnswer, self.line))?;
            // Ignore the length if there is a Transfer-Encoding, which overrides Content-Length
            // (RFC 9112 §6.3).
            if self.body == Body::Unknown {
                self.body = Body::Length(length);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if value.to_ascii_lowercase().ends_with(b"chunked") {
                self.body = Body::Chunked;
            }
        } else if name.eq_ignore_ascii_case(b"connection") {
            self.closes = if value.eq_ignore_ascii_case(b"keep-alive") {
                false
            } else {
                self.closes || value.eq_ignore_ascii_case(b"close")
            };
        }
        Ok(())
    }

    /// Handles the empty line after the headers. Returns true if the response has no body.
    fn on_headers_end(&mut self) -> bool {
        match (self.status, self.body) {
            // Skip an interim response, because the final response follows it.
            (100..200, _) => {
                *self = Self::new(self.is_head);
                return false;
            }
            _ if self.is_head => return true,
            (204 | 304, _) | (_, Body::Length(0)) => return true,
            (_, Body::Length(length)) => self.part = Part::Bytes(length),
            (_, Body::Chunked) => self.part = Part::ChunkSize,
            (_, Body::Unknown) => self.part = Part::UntilClose,
        }
        false
    }
}

/// Parses decimal digits. `None` for signs and spaces, which are invalid (RFC 9110).
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// Parses the hexadecimal size of a chunk, and ignores chunk extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let size = line.split(|&it| it == b';').next()?.trim_ascii();
    let digits = size.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(size).ok().filter(|_| digits)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `text` in pieces of `piece` bytes. Returns for each complete response whether it was
    /// refused, and whether it closes the connection.
    #[track_caller]
    fn responses(text: &str, piece: usize) -> Vec<(bool, bool)> {
        let mut reader = HttpReader::default();
        let mut found = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            let mut rest = bytes;
            while !rest.is_empty() {
                match reader.read(rest).expect("a valid response") {
                    Step::Partial => break,
                    Step::Whole { used, verdict } => {
                        found.push((verdict.refusal.is_some(), verdict.closes));
                        rest = &rest[used..];
                    }
                }
            }
        }
        assert!(!reader.has_begun(), "no part of a response is left");
        found
    }

    #[test]
    fn responses_end_where_their_headers_say_however_they_are_cut() {
        let text = "HTTP/1.1 200 OK\r\ncontent-Length: 5\r\nServer: x\r\n\r\nhello\
                    HTTP/1.1 204 No Content\r\n\r\n\
                    HTTP/1.1 100 Continue\r\n\r\n\
                    HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!\
                    HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    5\r\nhello\r\nC;x=1\r\n hello again\r\n0\r\nTrailer: y\r\n\r\n\
                    HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let expected =
            [(false, false), (false, false), (true, false), (false, false), (false, true)];
        for piece in [1, 2, 3, 7, 64, 10_000] {
            assert_eq!(responses(text, piece), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn responses_to_head_end_with_their_headers() {
        let mut reader = HttpReader::new(true);
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 404 No\r\n\r\n";
        let Ok(Step::Whole { used, verdict }) = reader.read(text) else { panic!("a response") };
        assert!(verdict.refusal.is_none());
        let Ok(Step::Whole { used: rest, verdict }) = reader.read(&text[used..]) else {
            panic!("another response")
        };
        assert!(verdict.refusal.is_some() && used + rest == text.len());
    }

    #[test]
    fn a_body_without_a_length_ends_with_the_connection() {
        let mut reader = HttpReader::default();
        let text = b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nall that comes";
        assert!(matches!(reader.read(text), Ok(Step::Partial)));
        assert!(reader.end().expect("the response is whole").closes);
        assert!(reader.end().is_none());
    }

    #[test]
    fn bytes_that_are_not_http_are_a_wrong_answer() {
        for text in [
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/1.1 abc\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        ] {
            let trouble = HttpReader::default().read(text.as_bytes()).err();
            assert_eq!(trouble.map(|it| it.kind), Some(Failure::WrongAnswer), "{text}");
        }
    }

    #[test]
    fn lines_longer_than_those_kept_are_read_to_their_end() {
        let cookie = "c".repeat(5000);
        let text =
            format!("HTTP/1.1 200 OK\r\nSet-Cookie: {cookie}\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(responses(&text, 100), [(false, false)]);
    }
}
