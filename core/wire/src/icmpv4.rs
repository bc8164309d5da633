//! ICMP for IPv4 (RFC 792, RFC 1191).

use core::net::Ipv4Addr;

use crate::bytes::{be16, head, head_mut};
use crate::{ParseError, checksum};

/// Length in bytes of the header that every ICMP message has. The body follows it.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum field in the header of an ICMP or ICMPv6 message.
pub const CHECKSUM_OFFSET: usize = 2;
/// Maximum length in bytes of the packet with an ICMP error, including its IP header (RFC 1812
/// §4.3.2.3).
pub const ERROR_PACKET_LEN_MAX: usize = 576;

/// ICMP type Echo Reply.
pub const ECHO_REPLY: u8 = 0;
/// ICMP type Destination Unreachable.
pub const DEST_UNREACHABLE: u8 = 3;
const SOURCE_QUENCH: u8 = 4;
const REDIRECT: u8 = 5;
/// ICMP type Echo (request).
pub const ECHO_REQUEST: u8 = 8;
/// ICMP type Time Exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// ICMP type Parameter Problem.
pub const PARAM_PROBLEM: u8 = 12;

/// Code of Destination Unreachable: no route to the network.
pub const UNREACHABLE_NET: u8 = 0;
/// Code of Destination Unreachable: the host does not answer.
pub const UNREACHABLE_HOST: u8 = 1;
/// Code of Destination Unreachable: the host does not support the transport protocol.
pub const UNREACHABLE_PROTOCOL: u8 = 2;
/// Code of Destination Unreachable: the host has no socket for the port.
pub const UNREACHABLE_PORT: u8 = 3;
/// Code of Destination Unreachable: the packet is too long for the next link, and must not be
/// fragmented.
pub const UNREACHABLE_FRAG_NEEDED: u8 = 4;
/// Code of Destination Unreachable: the source route failed.
pub const UNREACHABLE_SOURCE_ROUTE: u8 = 5;
/// Code of Destination Unreachable: the network is administratively prohibited (RFC 1122 §3.2.2.1).
pub const UNREACHABLE_NET_PROHIBITED: u8 = 9;
/// Code of Destination Unreachable: the host is administratively prohibited (RFC 1122 §3.2.2.1).
pub const UNREACHABLE_HOST_PROHIBITED: u8 = 10;
/// Code of Destination Unreachable: a packet filter prohibits the packet (RFC 1812 §5.2.7.1).
pub const UNREACHABLE_PROHIBITED: u8 = 13;

/// Code of Time Exceeded: the TTL expired in transit.
pub const TIME_EXCEEDED_TTL: u8 = 0;
/// Code of Time Exceeded: fragments were missing at the reassembly timeout.
pub const TIME_EXCEEDED_REASSEMBLY: u8 = 1;

/// The header of an ICMP message. The body after the header contains the data of an echo message,
/// or the packet that an error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// An echo request (ping).
    EchoRequest {
        /// Echo identifier, chosen by the sender.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
    },
    /// An echo reply. Its body is a copy of the body of the request.
    EchoReply {
        /// Echo identifier of the request.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
    },
    /// Error: the quoted packet could not be delivered.
    DestUnreachable {
        /// Reason, one of the `UNREACHABLE_` codes.
        code: u8,
        /// With [`UNREACHABLE_FRAG_NEEDED`], the MTU of the next link in bytes, or 0 from a router
        /// that is older than RFC 1191. 0 with other codes.
        next_hop_mtu: u16,
    },
    /// Error: the TTL of the quoted packet expired, or its fragments did not all arrive in time.
    TimeExceeded {
        /// Reason, one of the `TIME_EXCEEDED_` codes.
        code: u8,
    },
    /// Error: the quoted packet has an invalid header.
    ParamProblem {
        /// Reason: 0 for an error at `pointer`, 1 for a missing option.
        code: u8,
        /// Offset of the erroneous byte in the quoted packet.
        pointer: u8,
    },
    /// A router reports that packets like the quoted one should be sent to a different first hop.
    Redirect {
        /// Kind of redirect: 0 is for all hosts of the destination's network, 1 for the destination
        /// host. The codes 2 and 3 have the same meanings for one type of service (RFC 792).
        code: u8,
        /// Address of the first hop that should be used.
        gateway: Ipv4Addr,
    },
    /// A message of a type that the parser does not know.
    Unknown {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
        /// Bytes 4 to 7 of the message.
        rest: [u8; 4],
    },
}

impl Message {
    /// Parses the header of an ICMP message. Returns the header, and the offset of the body in
    /// bytes. The checksum is not verified.
    pub fn parse(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let h = head::<HEADER_LEN>(data)?;
        let [kind, code, _, _, rest @ ..] = *h;
        let (first, second) = (be16(rest[0], rest[1]), be16(rest[2], rest[3]));
        let message = match (kind, code) {
            (ECHO_REQUEST, 0) => Self::EchoRequest { ident: first, seq: second },
            (ECHO_REPLY, 0) => Self::EchoReply { ident: first, seq: second },
            (DEST_UNREACHABLE, UNREACHABLE_FRAG_NEEDED) => {
                Self::DestUnreachable { code, next_hop_mtu: second }
            }
            (DEST_UNREACHABLE, _) => Self::DestUnreachable { code, next_hop_mtu: 0 },
            (TIME_EXCEEDED, _) => Self::TimeExceeded { code },
            (PARAM_PROBLEM, _) => Self::ParamProblem { code, pointer: rest[0] },
            (REDIRECT, 0..=3) => Self::Redirect { code, gateway: Ipv4Addr::from(rest) },
            (REDIRECT | ECHO_REQUEST | ECHO_REPLY, _) => return Err(ParseError::BadCode),
            _ => Self::Unknown { kind, code, rest },
        };
        Ok((message, HEADER_LEN))
    }

    /// Writes the header to `buf` with the checksum 0, and returns its length in bytes. Call
    /// [`fill_checksum`] after the body was written.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let (kind, code, rest) = match *self {
            Self::EchoRequest { ident, seq } => (ECHO_REQUEST, 0, pair(ident, seq)),
            Self::EchoReply { ident, seq } => (ECHO_REPLY, 0, pair(ident, seq)),
            Self::DestUnreachable { code, next_hop_mtu } => {
                (DEST_UNREACHABLE, code, pair(0, next_hop_mtu))
            }
            Self::TimeExceeded { code } => (TIME_EXCEEDED, code, [0; 4]),
            Self::ParamProblem { code, pointer } => (PARAM_PROBLEM, code, [pointer, 0, 0, 0]),
            Self::Redirect { code, gateway } => (REDIRECT, code, gateway.octets()),
            Self::Unknown { kind, code, rest } => (kind, code, rest),
        };
        let h = head_mut::<HEADER_LEN>(buf);
        h[..4].copy_from_slice(&[kind, code, 0, 0]);
        h[4..].copy_from_slice(&rest);
        HEADER_LEN
    }

    /// Returns whether this is an error message. Error messages must not be answered by an error
    /// (RFC 1122 §3.2.2).
    #[must_use]
    pub const fn is_error(&self) -> bool {
        match self {
            Self::DestUnreachable { .. }
            | Self::TimeExceeded { .. }
            | Self::ParamProblem { .. }
            | Self::Redirect { .. } => true,
            Self::EchoRequest { .. } | Self::EchoReply { .. } => false,
            Self::Unknown { kind, .. } => *kind == SOURCE_QUENCH,
        }
    }
}

/// Returns whether the checksum of an ICMP message is correct. `message` is the whole message.
#[must_use]
pub fn checksum_ok(message: &[u8]) -> bool {
    checksum::finish(checksum::sum(message, 0)) == 0
}

/// Computes the checksum of an ICMP message, and writes it into the header. `message` is the whole
/// message: header and body.
pub fn fill_checksum(message: &mut [u8]) {
    head_mut::<HEADER_LEN>(message)[2..4].fill(0);
    let sum = checksum::finish(checksum::sum(message, 0));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

fn pair(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
    [a, b, c, d]
}
