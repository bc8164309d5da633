//! Answers of upstream servers: validates them, and decides how long they may be cached.

use towpath_dns::rcode;

use crate::query::AskedQuestion;
use crate::records::{HEADER_LEN, kind, record, section_counts, soa_minimum};

/// Bits of the third header byte: response, opcode and truncation.
const QR_OPCODE: u8 = 0xf8;
const TC: u8 = 0x02;
const QR: u8 = 0x80;

/// Reason why a message is not the answer of an upstream server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFault {
    /// The identifier or the question differs. The message may be forged.
    Mismatch,
    /// Records of the message cannot be parsed.
    Malformed,
    /// The answer is complete only over TCP.
    Truncated,
}

/// An answer to a question, without its OPT record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAnswer {
    /// The message: header, question and records.
    pub message: Vec<u8>,
    /// Response code, with the extended bits of the OPT record.
    pub code: u16,
    /// Time in seconds for which the answer may be cached; `None` if it may not be cached.
    pub ttl_s: Option<u32>,
}

impl UpstreamAnswer {
    /// Parses the answer to `question`, which was sent with the identifier `id`.
    pub fn parse(message: &[u8], id: u16, question: &AskedQuestion) -> Result<Self, AnswerFault> {
        let header = message.first_chunk::<HEADER_LEN>().ok_or(AnswerFault::Mismatch)?;
        let received_id = u16::from_be_bytes([header[0], header[1]]);
        if received_id != id || header[2] & QR_OPCODE != QR {
            return Err(AnswerFault::Mismatch);
        }
        let (code, count) = (header[3] & 15, u16::from_be_bytes([header[4], header[5]]));
        // A server that cannot parse the query may leave out the question.
        if count == 0 && code == rcode::FORMAT_ERROR {
            return Ok(Self { message: Vec::new(), code: code.into(), ttl_s: None });
        }
        let end = HEADER_LEN + question.section.len();
        if count != 1 || !message.get(HEADER_LEN..end).is_some_and(|it| question.is(it)) {
            return Err(AnswerFault::Mismatch);
        }
        if header[2] & TC != 0 {
            return Err(AnswerFault::Truncated);
        }
        let walked = walk(message, end, question.kind()).ok_or(AnswerFault::Malformed)?;
        let mut kept = message[..walked.end].to_vec();
        kept[10..12].copy_from_slice(&walked.additional.to_be_bytes());
        let code = u16::from(walked.extended_code) << 4 | u16::from(code);
        Ok(Self { message: kept, code, ttl_s: walked.lifetime(code) })
    }

    /// Returns whether the server has answered the question, rather than failed.
    pub fn is_usable(&self) -> bool {
        [rcode::NO_ERROR, rcode::NAME_ERROR].map(u16::from).contains(&self.code)
    }
}

/// Result of a walk through all records of an answer.
struct WalkedRecords {
    /// Offset after the last record that is kept.
    end: usize,
    /// Number of additional records that are kept.
    additional: u16,
    /// Upper bits of the response code.
    extended_code: u8,
    /// Minimum time to live of all records; `None` without records.
    ttl_s: Option<u32>,
    /// Whether there is a record of the requested type.
    has_data: bool,
    /// Time for which a negative answer may be cached, by the SOA record.
    negative_ttl_s: Option<u32>,
}

impl WalkedRecords {
    /// Returns the time in seconds for which the answer may be cached.
    fn lifetime(&self, code: u16) -> Option<u32> {
        const NO_ERROR: u16 = rcode::NO_ERROR as u16;
        const NAME_ERROR: u16 = rcode::NAME_ERROR as u16;
        let ttl_s = match code {
            NO_ERROR if self.has_data => self.ttl_s,
            // A negative answer without an SOA record is not cached (RFC 2308 §5).
            NO_ERROR | NAME_ERROR => {
                self.negative_ttl_s.zip(self.ttl_s).map(|(negative, all)| negative.min(all))
            }
            _ => None,
        };
        ttl_s.filter(|ttl_s| *ttl_s > 0)
    }
}

/// Walks through all records from offset `at` on. An OPT record ends the walk: it belongs to the
/// connection with the server, as records after it do (TSIG).
fn walk(message: &[u8], mut at: usize, asked: u16) -> Option<WalkedRecords> {
    let [answers, authority, additional] = section_counts(message)?;
    let mut walked = WalkedRecords {
        end: at,
        additional,
        extended_code: 0,
        ttl_s: None,
        has_data: false,
        negative_ttl_s: None,
    };
    let (answers, authority) = (u32::from(answers), u32::from(authority));
    let first_additional = answers + authority;
    for number in 0..first_additional + u32::from(additional) {
        let place = record(message, at)?;
        if place.kind == kind::OPT && number >= first_additional {
            walked.extended_code = (place.ttl >> 24) as u8;
            walked.additional = (number - first_additional) as u16;
            return Some(walked);
        }
        let ttl_s = valid_ttl(place.ttl);
        walked.ttl_s = Some(walked.ttl_s.map_or(ttl_s, |least| least.min(ttl_s)));
        if number < answers {
            walked.has_data |= asked == kind::ANY || place.kind == asked;
        } else if number < first_additional && place.kind == kind::SOA {
            let minimum = valid_ttl(soa_minimum(message, &place)?);
            walked.negative_ttl_s = Some(minimum.min(ttl_s));
        }
        (at, walked.end) = (place.end, place.end);
    }
    Some(walked)
}

/// Returns a time to live, or 0 if its most significant bit is set (RFC 2181 §8).
pub fn valid_ttl(ttl: u32) -> u32 {
    if ttl >> 31 == 0 { ttl } else { 0 }
}

/// Calls `change` with the time to live of each record of a message without an OPT record, and
/// replaces it by the result.
pub fn change_ttls(message: &mut [u8], question_len: usize, change: impl Fn(u32) -> u32) {
    let Some(counts) = section_counts(message) else { return };
    let mut at = HEADER_LEN + question_len;
    for _ in 0..counts.iter().map(|count| u32::from(*count)).sum() {
        let Some(place) = record(message, at) else { return };
        let ttl = change(place.ttl);
        message[place.ttl_at..place.ttl_at + 4].copy_from_slice(&ttl.to_be_bytes());
        at = place.end;
    }
}
