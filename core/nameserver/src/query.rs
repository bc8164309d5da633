//! Queries of clients: parses them, and creates queries to upstream servers.

use towpath_dns::rcode;

use crate::records::{HEADER_LEN, kind, plain_name_end, record, section_counts, u16_at};

/// Maximum length in bytes of UDP messages that the forwarder announces by EDNS(0), and sends to
/// clients. Larger datagrams may be fragmented on their way (DNS flag day 2020).
pub const EDNS_SIZE: u16 = 1232;
/// Maximum length in bytes of a UDP message without EDNS(0) (RFC 1035 §2.3.4).
const PLAIN_SIZE: u16 = 512;
/// Class IN: the Internet.
pub const CLASS_IN: u16 = 1;
/// Bits of the third header byte: response, opcode, truncation, recursion desired.
const QR: u8 = 0x80;
const OPCODE: u8 = 0x78;
const RD: u8 = 0x01;
/// Bits of the fourth header byte: authentic data, checking disabled (RFC 6840).
const AD: u8 = 0x20;
const CD: u8 = 0x10;
/// The bit DO in the third byte of an OPT record's time to live (RFC 3225).
const DNSSEC_OK: u32 = 0x8000;

/// EDNS(0) fields of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientEdns {
    /// Maximum length in bytes of a UDP message to the client, between 512 and [`EDNS_SIZE`].
    pub size: u16,
    /// Whether the client wants records of DNSSEC.
    pub dnssec_ok: bool,
}

/// Question of a query, and the header bits that change its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedQuestion {
    /// Question section in the client's spelling: name, type and class.
    pub section: Vec<u8>,
    /// Whether records of DNSSEC are wanted.
    pub dnssec_ok: bool,
    /// Whether the bit AD is set, so that the client wants to know whether data is authentic.
    pub wants_ad: bool,
    /// Whether the bit CD is set, which disables the validation of upstream servers.
    pub no_checks: bool,
}

impl AskedQuestion {
    /// Returns the encoded name.
    pub fn name(&self) -> &[u8] {
        &self.section[..self.section.len() - 4]
    }

    /// Returns the record type.
    pub fn kind(&self) -> u16 {
        u16_at(&self.section, self.section.len() - 4).unwrap_or_default()
    }

    /// Returns whether `section` is the same question. Names are compared without regard to case
    /// (RFC 4343); lengths of labels are below the letters.
    pub fn is(&self, section: &[u8]) -> bool {
        let split = self.section.len() - 4;
        section.len() == self.section.len()
            && section[split..] == self.section[split..]
            && section[..split].eq_ignore_ascii_case(self.name())
    }

    /// Creates the query to an upstream server.
    pub fn message(&self, id: u16, with_edns: bool) -> Vec<u8> {
        let mut to = Vec::with_capacity(HEADER_LEN + self.section.len() + 11);
        to.extend(id.to_be_bytes());
        let ad = if self.wants_ad { AD } else { 0 };
        let cd = if self.no_checks { CD } else { 0 };
        to.extend([RD, ad | cd, 0, 1, 0, 0, 0, 0, 0, u8::from(with_edns)]);
        to.extend(&self.section);
        if with_edns {
            put_opt(&mut to, 0, self.dnssec_ok);
        }
        to
    }
}

/// Appends an OPT record. The caller counts it as an additional record.
pub fn put_opt(to: &mut Vec<u8>, extended_code: u8, dnssec_ok: bool) {
    to.push(0);
    to.extend(kind::OPT.to_be_bytes());
    to.extend(EDNS_SIZE.to_be_bytes());
    let flags = if dnssec_ok { DNSSEC_OK } else { 0 };
    to.extend((u32::from(extended_code) << 24 | flags).to_be_bytes());
    to.extend([0, 0]);
}

/// A valid query of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientQuery {
    /// Identifier that the client has chosen.
    pub id: u16,
    /// Whether the client wants a recursive answer.
    pub wants_recursion: bool,
    /// The question.
    pub question: AskedQuestion,
    /// Fields of the OPT record; `None` if there is none.
    pub edns: Option<ClientEdns>,
}

/// Reason why a message of a client is not a valid query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryFault {
    /// The message is an answer, or too short. An answer to it could start a loop.
    NotQuery,
    /// The query is refused with this reply.
    Refused(Vec<u8>),
}

impl ClientQuery {
    /// Parses a message of a client.
    pub fn parse(message: &[u8]) -> Result<Self, QueryFault> {
        let header = message.first_chunk::<HEADER_LEN>().ok_or(QueryFault::NotQuery)?;
        if header[2] & QR != 0 {
            return Err(QueryFault::NotQuery);
        }
        let refused = |code: u8| Err(QueryFault::Refused(refusal(header, code)));
        if header[2] & OPCODE != 0 {
            return refused(NOT_IMPLEMENTED);
        }
        let Some((section, edns)) = parse_sections(message) else {
            return refused(rcode::FORMAT_ERROR);
        };
        let query = Self {
            id: u16::from_be_bytes([header[0], header[1]]),
            wants_recursion: header[2] & RD != 0,
            question: AskedQuestion {
                section: section.to_vec(),
                dnssec_ok: edns.is_some_and(|edns| edns.fields.dnssec_ok),
                wants_ad: header[3] & AD != 0,
                no_checks: header[3] & CD != 0,
            },
            edns: edns.map(|edns| edns.fields),
        };
        if edns.is_some_and(|edns| edns.version != 0) {
            return Err(QueryFault::Refused(query.bad_version()));
        }
        let class = u16_at(section, section.len() - 2);
        match query.question.kind() {
            kind::OPT => refused(rcode::FORMAT_ERROR),
            kind::AXFR | kind::IXFR => refused(NOT_IMPLEMENTED),
            _ if class != Some(CLASS_IN) => refused(REFUSED),
            _ => Ok(query),
        }
    }

    /// Returns the reply to a query with an unknown version of EDNS (RFC 6891 §6.1.3).
    fn bad_version(&self) -> Vec<u8> {
        let flags = if self.wants_recursion { RD } else { 0 };
        let mut to = self.id.to_be_bytes().to_vec();
        to.extend([QR | flags, RA, 0, 1, 0, 0, 0, 0, 0, 1]);
        to.extend(&self.question.section);
        put_opt(&mut to, 1, self.question.dnssec_ok);
        to
    }

    /// Returns the maximum length in bytes of a UDP reply.
    pub fn datagram_max(&self) -> usize {
        usize::from(self.edns.map_or(PLAIN_SIZE, |edns| edns.size))
    }
}

/// The bit RA of the fourth header byte: recursion is available.
pub const RA: u8 = 0x80;
/// Response code NOTIMP: the kind of query is not supported.
pub const NOT_IMPLEMENTED: u8 = 4;
/// Response code REFUSED.
pub const REFUSED: u8 = 5;

/// Returns a reply without a question, which could not be parsed.
fn refusal(header: &[u8; HEADER_LEN], code: u8) -> Vec<u8> {
    let mut to = vec![0; HEADER_LEN];
    to[..2].copy_from_slice(&header[..2]);
    to[2] = QR | header[2] & (OPCODE | RD);
    to[3] = RA | code;
    to
}

#[derive(Debug, Clone, Copy)]
struct ParsedEdns {
    fields: ClientEdns,
    version: u8,
}

/// Returns the question section, and the fields of the OPT record if there is one.
fn parse_sections(message: &[u8]) -> Option<(&[u8], Option<ParsedEdns>)> {
    let [answers, authority, additional] = section_counts(message)?;
    if u16_at(message, 4) != Some(1) || answers != 0 || authority != 0 {
        return None;
    }
    let mut at = plain_name_end(message, HEADER_LEN)? + 4;
    let section = message.get(HEADER_LEN..at)?;
    let mut edns = None;
    for _ in 0..additional {
        let place = record(message, at)?;
        if place.kind == kind::OPT {
            // The owner of an OPT record is the root, and there is only one record (RFC 6891
            // §6.1.1).
            if edns.is_some() || message.get(at) != Some(&0) {
                return None;
            }
            let size = place.class.clamp(PLAIN_SIZE, EDNS_SIZE);
            let fields = ClientEdns { size, dnssec_ok: place.ttl & DNSSEC_OK != 0 };
            edns = Some(ParsedEdns { fields, version: (place.ttl >> 16) as u8 });
        }
        at = place.end;
    }
    Some((section, edns))
}
