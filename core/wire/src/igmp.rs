//! IGMP, by which IPv4 hosts report multicast group membership: parses queries, and emits reports.
//! Implements versions 1 to 3 (RFC 1112, RFC 2236, RFC 3376).
//!
//! Every message is sent with TTL 1 and [`crate::ipv4::Options::ROUTER_ALERT`].

use core::net::Ipv4Addr;

use crate::bytes::{at, be16, head_mut, ipv4_at};
use crate::mld::RecordKind;
use crate::{ParseError, checksum};

/// IGMP type of a query.
pub const QUERY: u8 = 0x11;
/// IGMP type of a version 1 report.
pub const REPORT_V1: u8 = 0x12;
/// IGMP type of a version 2 report.
pub const REPORT_V2: u8 = 0x16;
/// IGMP type of a version 2 leave message.
pub const LEAVE_V2: u8 = 0x17;
/// IGMP type of a version 3 report.
pub const REPORT_V3: u8 = 0x22;

/// Length in bytes of an IGMP message of version 1 or 2.
pub const V2_LEN: usize = 8;

/// A query by which a router asks for members of multicast groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// IGMP version of the querying router. Reports must use this version.
    pub version: Version,
    /// Maximum time until the answer, in milliseconds.
    pub max_response_ms: u32,
    /// The queried multicast group; `None` for all groups.
    pub group: Option<Ipv4Addr>,
    /// Number of sources in the query, which begin at the offset that `parse` returns.
    pub source_count: u16,
}

/// Version of IGMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// IGMPv1 (RFC 1112).
    V1,
    /// IGMPv2 (RFC 2236).
    V2,
    /// IGMPv3 (RFC 3376).
    V3,
}

impl Query {
    /// Parses an IGMP query, and verifies its checksum. `data` is the whole payload of the IP
    /// packet. Returns the query, and the offset of its source addresses. Returns
    /// [`ParseError::Unsupported`] for messages that are not queries.
    pub fn parse(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let h = at::<V2_LEN>(data, 0)?;
        if h[0] != QUERY {
            return Err(ParseError::Unsupported);
        }
        if checksum::finish(checksum::sum(data, 0)) != 0 {
            return Err(ParseError::BadChecksum);
        }
        let group = ipv4_at(data, 4)?;
        if !group.is_unspecified() && !group.is_multicast() {
            return Err(ParseError::BadAddress);
        }
        let group = (!group.is_unspecified()).then_some(group);
        //= https://www.rfc-editor.org/rfc/rfc3376#section-7.1
        //# IGMPv1 Query: length = 8 octets AND Max Resp Code field is zero
        let (version, max_response_ms) = match (data.len(), h[1]) {
            (V2_LEN, 0) => (Version::V1, V1_RESPONSE_MS),
            (V2_LEN, code) => (Version::V2, u32::from(code) * 100),
            (V3_QUERY_LEN.., code) => (Version::V3, tenths(code) * 100),
            _ => return Err(ParseError::BadLength),
        };
        if version != Version::V3 {
            return Ok((Self { version, max_response_ms, group, source_count: 0 }, V2_LEN));
        }
        let [hi, lo] = *at::<2>(data, 10)?;
        let source_count = be16(hi, lo);
        if data.len() < V3_QUERY_LEN + usize::from(source_count) * 4 {
            return Err(ParseError::Truncated);
        }
        Ok((Self { version, max_response_ms, group, source_count }, V3_QUERY_LEN))
    }
}

/// Parses a report of IGMP version 1 or 2, and verifies its checksum. `data` is the whole payload
/// of the IP packet. Returns the multicast group.
pub fn reported(data: &[u8]) -> Result<Ipv4Addr, ParseError> {
    let h = at::<V2_LEN>(data, 0)?;
    if ![REPORT_V1, REPORT_V2].contains(&h[0]) {
        return Err(ParseError::Unsupported);
    }
    if checksum::finish(checksum::sum(data, 0)) != 0 {
        return Err(ParseError::BadChecksum);
    }
    ipv4_at(data, 4)
}

const V3_QUERY_LEN: usize = 12;
/// Maximum response time for IGMPv1 in milliseconds. Its queries have no field for it; 10 seconds
/// are used (RFC 2236 §4).
const V1_RESPONSE_MS: u32 = 10_000;

/// Decodes the maximum response code of IGMPv3 (RFC 3376 §4.1.1) to tenths of a second. Codes from
/// 128 on are floating-point numbers.
fn tenths(code: u8) -> u32 {
    if code < 0x80 {
        return u32::from(code);
    }
    let (exponent, mantissa) = (code >> 4 & 7, code & 0x0f);
    u32::from(mantissa | 0x10) << (exponent + 3)
}

/// A group record of an IGMPv3 report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Type of the group record.
    pub kind: RecordKind,
    /// The multicast group that the record is about.
    pub group: Ipv4Addr,
    /// The source addresses in the group record.
    pub sources: &'a [Ipv4Addr],
}

impl Record<'_> {
    /// Returns the length of the group record in bytes.
    #[must_use]
    pub const fn emitted_len(&self) -> usize {
        8 + 4 * self.sources.len()
    }

    fn emit(&self, buf: &mut [u8]) -> usize {
        let [hi, lo] = (self.sources.len() as u16).to_be_bytes();
        let h = head_mut::<8>(buf);
        h[..4].copy_from_slice(&[self.kind.to_bits(), 0, hi, lo]);
        h[4..].copy_from_slice(&self.group.octets());
        for (source, place) in self.sources.iter().zip(buf[8..].chunks_exact_mut(4)) {
            place.copy_from_slice(&source.octets());
        }
        self.emitted_len()
    }
}

/// Writes an IGMPv3 report with its checksum to `buf`. Returns its length in bytes: 8, plus the
/// lengths of all records. Send it to [`crate::addr::ALL_IGMPV3_ROUTERS`].
pub fn emit_report_v3(records: &[Record<'_>], buf: &mut [u8]) -> usize {
    let [hi, lo] = (records.len() as u16).to_be_bytes();
    *head_mut::<8>(buf) = [REPORT_V3, 0, 0, 0, 0, 0, hi, lo];
    let len = records.iter().fold(8, |len, record| len + record.emit(&mut buf[len..]));
    fill_checksum(&mut buf[..len]);
    len
}

/// Writes an IGMPv2 report to `buf`, and returns its length in bytes, 8. The report must be sent to
/// the group address itself.
pub fn emit_report_v2(group: Ipv4Addr, buf: &mut [u8]) -> usize {
    emit_short(REPORT_V2, group, buf)
}

/// Writes an IGMPv1 report to `buf`, and returns its length in bytes, 8. The report must be sent to
/// the group address itself.
pub fn emit_report_v1(group: Ipv4Addr, buf: &mut [u8]) -> usize {
    emit_short(REPORT_V1, group, buf)
}

/// Writes an IGMPv2 leave message to `buf`, and returns its length in bytes, 8. The message must be
/// sent to the all-routers group.
pub fn emit_leave_v2(group: Ipv4Addr, buf: &mut [u8]) -> usize {
    emit_short(LEAVE_V2, group, buf)
}

fn emit_short(kind: u8, group: Ipv4Addr, buf: &mut [u8]) -> usize {
    let h = head_mut::<V2_LEN>(buf);
    h[..4].copy_from_slice(&[kind, 0, 0, 0]);
    h[4..].copy_from_slice(&group.octets());
    fill_checksum(h);
    V2_LEN
}

fn fill_checksum(message: &mut [u8]) {
    let sum = checksum::finish(checksum::sum(message, 0));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}
