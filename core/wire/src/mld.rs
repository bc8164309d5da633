//! MLD (multicast listener discovery), by which IPv6 hosts report multicast group membership.
//! Parses queries, and emits reports (RFC 2710 for version 1, RFC 3810 for version 2).
//!
//! Snooping switches forward a group only to ports on which a report was seen. A node that does not
//! report its solicited-node groups may therefore be unreachable for neighbour discovery.

use core::net::Ipv6Addr;

use crate::bytes::{at, be16, head_mut, ipv6_at};
use crate::{ParseError, icmpv6};

/// ICMPv6 type of an MLD query.
pub const QUERY: u8 = 130;
/// ICMPv6 type of an MLDv1 report.
pub const REPORT_V1: u8 = 131;
/// ICMPv6 type of an MLDv1 Done message.
pub const DONE_V1: u8 = 132;
/// ICMPv6 type of an MLDv2 report.
pub const REPORT_V2: u8 = 143;

/// Hop limit of every MLD packet.
pub const HOP_LIMIT: u8 = 1;
/// Length of an MLDv1 message in bytes.
pub const V1_LEN: usize = 24;

/// A query by which a router asks for members of multicast groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// MLD version of the querying router. Reports must use this version.
    pub version: Version,
    /// Maximum time until the answer, in milliseconds.
    pub max_response_ms: u32,
    /// The queried multicast group; `None` for all groups.
    pub group: Option<Ipv6Addr>,
    /// Number of sources in the query, which begin at the offset that `parse` returns.
    pub source_count: u16,
}

/// Version of MLD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// MLDv1 (RFC 2710).
    V1,
    /// MLDv2 (RFC 3810).
    V2,
}

impl Query {
    /// Parses a query; `data` is the whole payload of a packet from `src`. Returns the query and
    /// the offset of its sources.
    //= https://www.rfc-editor.org/rfc/rfc3810#section-6.2
    //# Upon reception of an MLD message that contains a Query, the node checks if the source address of
    //# the message is a valid link-local address, if the Hop Limit is set to 1, and if the Router Alert
    //# option is present in the Hop-By-Hop Options header of the IPv6 packet.
    ///
    /// The caller must check the Router Alert, because the caller has the extension headers.
    pub fn parse(data: &[u8], src: Ipv6Addr, hop_limit: u8) -> Result<(Self, usize), ParseError> {
        let h = at::<V1_LEN>(data, 0)?;
        if h[0] != QUERY {
            return Err(ParseError::Unsupported);
        }
        if hop_limit != HOP_LIMIT {
            return Err(ParseError::BadHopLimit);
        }
        if !src.is_unicast_link_local() {
            return Err(ParseError::BadAddress);
        }
        let code = be16(h[4], h[5]);
        let group = ipv6_at(data, 8)?;
        if !group.is_unspecified() && !group.is_multicast() {
            return Err(ParseError::BadAddress);
        }
        let group = (!group.is_unspecified()).then_some(group);
        if data.len() == V1_LEN {
            let max_response_ms = u32::from(code);
            let version = Version::V1;
            return Ok((Self { version, max_response_ms, group, source_count: 0 }, V1_LEN));
        }
        let rest = at::<4>(data, V1_LEN)?;
        let source_count = be16(rest[2], rest[3]);
        let len = V1_LEN + 4;
        if data.len() < len + usize::from(source_count) * 16 {
            return Err(ParseError::Truncated);
        }
        let query =
            Self { version: Version::V2, max_response_ms: response_ms(code), group, source_count };
        Ok((query, len))
    }
}

/// Parses an MLDv1 report, and returns its multicast group. `data` is the whole payload of the IP
/// packet.
pub fn reported_v1(data: &[u8]) -> Result<Ipv6Addr, ParseError> {
    let h = at::<V1_LEN>(data, 0)?;
    if h[0] != REPORT_V1 {
        return Err(ParseError::Unsupported);
    }
    ipv6_at(data, 8)
}

/// Decodes the maximum response code of MLDv2 (RFC 3810 §5.1.3) to milliseconds. Codes from 32768
/// on are floating-point numbers.
fn response_ms(code: u16) -> u32 {
    if code < 0x8000 {
        return u32::from(code);
    }
    let (exponent, mantissa) = (code >> 12 & 7, code & 0x0fff);
    u32::from(mantissa | 0x1000) << (exponent + 3)
}

/// Type of a group record in an MLDv2 report (RFC 3810 §5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Answer to a query: the host wants packets only from the listed sources; from none if the
    /// list is empty.
    IsInclude,
    /// Answer to a query: the host wants packets from all sources except the listed ones.
    IsExclude,
    /// The filter mode changed to "include"; with an empty list, the host leaves the group.
    ToInclude,
    /// The filter mode changed to "exclude"; with an empty list, the host joins the group for all
    /// sources.
    ToExclude,
    /// The host now wants packets from the listed sources as well.
    AllowNew,
    /// The host no longer wants packets from the listed sources.
    BlockOld,
}

impl RecordKind {
    /// Returns the value of the type on the wire, which is the same as in IGMPv3.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::IsInclude => 1,
            Self::IsExclude => 2,
            Self::ToInclude => 3,
            Self::ToExclude => 4,
            Self::AllowNew => 5,
            Self::BlockOld => 6,
        }
    }
}

/// A group record of an MLDv2 report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Type of the group record.
    pub kind: RecordKind,
    /// The multicast group that the record is about.
    pub group: Ipv6Addr,
    /// The source addresses in the group record.
    pub sources: &'a [Ipv6Addr],
}

impl Record<'_> {
    /// Returns the length of the group record in bytes.
    #[must_use]
    pub const fn emitted_len(&self) -> usize {
        20 + 16 * self.sources.len()
    }

    fn emit(&self, buf: &mut [u8]) -> usize {
        let [hi, lo] = (self.sources.len() as u16).to_be_bytes();
        let h = head_mut::<20>(buf);
        h[..4].copy_from_slice(&[self.kind.to_bits(), 0, hi, lo]);
        h[4..].copy_from_slice(&self.group.octets());
        for (source, place) in self.sources.iter().zip(buf[20..].chunks_exact_mut(16)) {
            place.copy_from_slice(&source.octets());
        }
        self.emitted_len()
    }
}

/// Writes an MLDv2 report with its checksum to `buf`. Returns its length in bytes: 8, plus the
/// lengths of all records. Send it to [`crate::addr::ALL_MLDV2_ROUTERS`], with hop limit 1 and a
/// Router Alert option. `src` is the source of the packet, a link-local address or `::`.
pub fn emit_report_v2(records: &[Record<'_>], src: Ipv6Addr, buf: &mut [u8]) -> usize {
    let [hi, lo] = (records.len() as u16).to_be_bytes();
    *head_mut::<8>(buf) = [REPORT_V2, 0, 0, 0, 0, 0, hi, lo];
    let len = records.iter().fold(8, |len, record| len + record.emit(&mut buf[len..]));
    icmpv6::fill_checksum(&mut buf[..len], src, crate::addr::ALL_MLDV2_ROUTERS);
    len
}

/// Writes an MLDv1 report to `buf`, and returns its length in bytes, 24. The report must be sent to
/// the group address itself.
pub fn emit_report_v1(group: Ipv6Addr, src: Ipv6Addr, buf: &mut [u8]) -> usize {
    emit_v1(REPORT_V1, group, src, group, buf)
}

/// Writes an MLDv1 Done message to `buf`, and returns its length in bytes, 24. The message must be
/// sent to the all-routers group.
pub fn emit_done_v1(group: Ipv6Addr, src: Ipv6Addr, buf: &mut [u8]) -> usize {
    emit_v1(DONE_V1, group, src, crate::addr::ALL_ROUTERS, buf)
}

fn emit_v1(kind: u8, group: Ipv6Addr, src: Ipv6Addr, dst: Ipv6Addr, buf: &mut [u8]) -> usize {
    let h = head_mut::<V1_LEN>(buf);
    h[..8].copy_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    h[8..].copy_from_slice(&group.octets());
    icmpv6::fill_checksum(h, src, dst);
    V1_LEN
}
