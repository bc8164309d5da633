//! Parser for replies in the redis protocol (RESP2 and RESP3). Only the parts that are needed to
//! find the end of a reply are parsed.

use crate::failure::Failure;
use crate::plan::RANDOM;
use crate::verdict::{Line, Step, Trouble, Verdict};

/// Encodes a redis command as an array of bulk strings.
pub fn request(words: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// Returns the offsets in a request at which random numbers replace [`RANDOM`].
pub fn slots(request: &[u8]) -> Vec<usize> {
    let mut slots = Vec::new();
    let mut at = 0;
    while let Some(bytes) = request.get(at..at + RANDOM.len()) {
        if bytes == RANDOM.as_bytes() {
            slots.push(at);
            at += RANDOM.len();
        } else {
            at += 1;
        }
    }
    slots
}

/// State of parsing a redis reply.
#[derive(Default)]
pub struct RedisReader {
    line: Line,
    /// Number of bytes of a bulk string that were not received yet, including its CR and LF.
    bulk: u64,
    /// Number of values of the reply that are missing. 0 between two replies.
    values: u64,
    refusal: Option<Line>,
}

/// Maximum number of values in a reply. A larger number is refused, because sums could overflow.
const VALUES_MAX: u64 = 1 << 32;
/// Maximum length of a value in bytes. The limit of redis itself is 512 MiB.
const BULK_MAX: u64 = 1 << 40;

impl RedisReader {
    pub fn has_begun(&self) -> bool {
        self.values > 0 || !self.line.is_untouched()
    }

    pub fn read(&mut self, bytes: &[u8]) -> Result<Step, Trouble> {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            if self.bulk > 0 {
                let part = self.bulk.min(rest.len() as u64);
                used += part as usize;
                self.bulk -= part;
                if self.bulk > 0 {
                    return Ok(Step::Partial);
                }
                self.values -= 1;
            } else {
                let (len, is_whole) = self.line.read(rest);
                used += len;
                if !is_whole {
                    return Ok(Step::Partial);
                }
                self.on_line()?;
                self.line.clear();
            }
            if self.values == 0 {
                let refusal = self.refusal.take();
                let refusal = refusal.map(|line| Trouble::line(Failure::Status, line));
                return Ok(Step::Whole { used, verdict: Verdict { refusal, closes: false } });
            }
        }
        Ok(Step::Partial)
    }

    fn on_line(&mut self) -> Result<(), Trouble> {
        let wrong = || Trouble::line(Failure::WrongAnswer, self.line);
        let (kind, rest) = self.line.bytes().split_first().ok_or_else(wrong)?;
        let length = || -> Result<Option<u64>, Trouble> {
            let text = std::str::from_utf8(rest).map_err(|_| wrong())?;
            match text.parse::<i64>() {
                Ok(-1) => Ok(None),
                Ok(length) => u64::try_from(length).map(Some).map_err(|_| wrong()),
                Err(_) => Err(wrong()),
            }
        };
        let is_first = self.values == 0;
        let values = self.values.max(1);
        self.values = match kind {
            b'+' | b':' | b'_' | b'#' | b',' | b'(' => values - 1,
            b'-' => {
                if is_first {
                    self.refusal = Some(self.line);
                }
                values - 1
            }
            b'$' | b'=' | b'!' => match length()? {
                Some(length) if length > BULK_MAX => return Err(wrong()),
                // Add the CR and LF that end the string to its length.
                Some(length) => {
                    self.bulk = length + 2;
                    values
                }
                None => values - 1,
            },
            b'*' | b'~' | b'>' | b'%' => {
                let pairs = if *kind == b'%' { 2 } else { 1 };
                let inner = length()?.unwrap_or(0).saturating_mul(pairs);
                let values = (values - 1).saturating_add(inner);
                if values > VALUES_MAX {
                    return Err(wrong());
                }
                values
            }
            _ => return Err(wrong()),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let words = ["SET".to_string(), "key".into(), "välue".into()];
        let expected = "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$6\r\nvälue\r\n";
        assert_eq!(request(&words), expected.as_bytes());
    }

    #[test]
    fn replies_end_where_their_lengths_say_however_they_are_cut() {
        let text = "+OK\r\n:12\r\n$5\r\nhe\r\nl\r\n$-1\r\n$0\r\n\r\n-ERR no such\r\n\
                    *2\r\n$1\r\na\r\n*1\r\n+b\r\n*0\r\n*-1\r\n%1\r\n+k\r\n:1\r\n*1\r\n-inner\r\n";
        for piece in [1, 2, 3, 5, 1000] {
            let mut reader = RedisReader::default();
            let mut refused = Vec::new();
            for bytes in text.as_bytes().chunks(piece) {
                let mut rest = bytes;
                while !rest.is_empty() {
                    match reader.read(rest).expect("valid replies") {
                        Step::Partial => break,
                        Step::Whole { used, verdict } => {
                            refused.push(verdict.refusal.map(|it| it.to_string()));
                            rest = &rest[used..];
                        }
                    }
                }
            }
            assert!(!reader.has_begun());
            assert_eq!(refused.len(), 11, "pieces of {piece}");
            let errors: Vec<_> = refused.into_iter().flatten().collect();
            assert_eq!(errors, ["\"-ERR no such\""], "an error in an array is a value");
        }
    }

    #[test]
    fn bytes_that_are_not_redis_are_a_wrong_answer() {
        for text in ["HTTP/1.1 400\r\n", "\r\n", "$x\r\n", "$-2\r\n", "*99999999999999\r\n"] {
            let trouble = RedisReader::default().read(text.as_bytes()).err();
            assert_eq!(trouble.map(|it| it.kind), Some(Failure::WrongAnswer), "{text}");
        }
    }
}
