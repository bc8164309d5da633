//! Replies to clients.

use crate::answer::change_ttls;
use crate::query::{ClientQuery, RA, put_opt};
use crate::records::HEADER_LEN;

/// Bits of the third header byte: response, truncation, recursion desired.
const QR: u8 = 0x80;
const TC: u8 = 0x02;
const RD: u8 = 0x01;
/// Bits of the fourth header byte: authentic data, checking disabled.
const AD: u8 = 0x20;
const CD: u8 = 0x10;
/// Maximum length in bytes of a message over TCP, whose length has 16 bits.
const STREAM_MAX: usize = u16::MAX as usize;

/// An answer to a question, in the form in which the cache stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerParts<'a> {
    /// Message without an OPT record. Its question may be spelled differently.
    pub message: &'a [u8],
    /// Response code with its extended bits.
    pub code: u16,
    /// Time in seconds since the answer was received, by which times to live have decreased.
    pub age_s: u32,
}

/// Creates the reply to a client with the client's identifier and spelling of the question.
///
/// A reply that is longer than a datagram may be is truncated: it has no records, and the client
/// repeats the query over TCP. `is_stream` tells that the query has arrived over TCP.
pub fn reply(query: &ClientQuery, answer: AnswerParts<'_>, is_stream: bool) -> Vec<u8> {
    let section = &query.question.section;
    let opt_len = if query.edns.is_some() { 11 } else { 0 };
    let max = if is_stream { STREAM_MAX } else { query.datagram_max() };
    let records = answer.message.get(HEADER_LEN + section.len()..).unwrap_or_default();
    let len = HEADER_LEN + section.len() + records.len() + opt_len;
    let is_truncated = len > max;
    let mut to = Vec::with_capacity(len.min(max));
    put_header(&mut to, query, answer, is_truncated);
    to.extend(section);
    if !is_truncated {
        to.extend(records);
        change_ttls(&mut to, section.len(), |ttl| ttl.saturating_sub(answer.age_s));
    }
    if let Some(edns) = query.edns {
        let additional = u16::from_be_bytes([to[10], to[11]]) + 1;
        to[10..12].copy_from_slice(&additional.to_be_bytes());
        put_opt(&mut to, (answer.code >> 4) as u8, edns.dnssec_ok);
    }
    to
}

fn put_header(to: &mut Vec<u8>, query: &ClientQuery, answer: AnswerParts<'_>, is_truncated: bool) {
    let question = &query.question;
    to.extend(query.id.to_be_bytes());
    let recursion = if query.wants_recursion { RD } else { 0 };
    to.push(QR | recursion | if is_truncated { TC } else { 0 });
    // Report AD only to clients that ask for it (RFC 6840 §5.8).
    let authentic = answer.message.get(3).map_or(0, |flags| flags & AD);
    let authentic = if question.wants_ad || question.dnssec_ok { authentic } else { 0 };
    let checks = if question.no_checks { CD } else { 0 };
    to.push(RA | authentic | checks | (answer.code & 15) as u8);
    to.extend([0, 1]);
    match answer.message.get(6..HEADER_LEN) {
        Some(counts) if !is_truncated => to.extend(counts),
        _ => to.extend([0; 6]),
    }
}

/// Creates the reply with a response code and without records.
pub fn empty_reply(query: &ClientQuery, code: u8) -> Vec<u8> {
    let answer = AnswerParts { message: &[], code: code.into(), age_s: 0 };
    reply(query, answer, false)
}
