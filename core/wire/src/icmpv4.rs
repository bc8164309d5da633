//! ICMP for IPv4 (RFC 792, RFC 1191).

use core::net::Ipv4Addr;

use crate::bytes::{be16, head, head_mut};
use crate::{ParseError, checksum};

/// Length of the header of every message in bytes; the body follows.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum in a header, also in ICMPv6.
pub const CHECKSUM_OFFSET: usize = 2;
/// Maximum length of an error message in bytes, including the IP header (RFC 1812 §4.3.2.3).
pub const ERROR_PACKET_LEN_MAX: usize = 576;

/// Type of Echo Reply.
pub const ECHO_REPLY: u8 = 0;
/// Type of Destination Unreachable.
pub const DEST_UNREACHABLE: u8 = 3;
const SOURCE_QUENCH: u8 = 4;
const REDIRECT: u8 = 5;
/// Type of Echo.
pub const ECHO_REQUEST: u8 = 8;
/// Type of Time Exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// Type of Parameter Problem.
pub const PARAM_PROBLEM: u8 = 12;

/// Destination unreachable: no route to the network.
pub const UNREACHABLE_NET: u8 = 0;
/// Destination unreachable: the host does not respond.
pub const UNREACHABLE_HOST: u8 = 1;
/// Destination unreachable: the host does not support the protocol.
pub const UNREACHABLE_PROTOCOL: u8 = 2;
/// Destination unreachable: no listener on the port.
pub const UNREACHABLE_PORT: u8 = 3;
/// Destination unreachable: too big for the next link, but must not be fragmented.
pub const UNREACHABLE_FRAG_NEEDED: u8 = 4;
/// Destination unreachable: the source route failed.
pub const UNREACHABLE_SOURCE_ROUTE: u8 = 5;
/// Destination unreachable: the network is administratively prohibited (RFC 1122 §3.2.2.1).
pub const UNREACHABLE_NET_PROHIBITED: u8 = 9;
/// Destination unreachable: the host is administratively prohibited (RFC 1122 §3.2.2.1).
pub const UNREACHABLE_HOST_PROHIBITED: u8 = 10;
/// Destination unreachable: prohibited by a filter (RFC 1812 §5.2.7.1).
pub const UNREACHABLE_PROHIBITED: u8 = 13;

/// Time exceeded: the TTL expired in transit.
pub const TIME_EXCEEDED_TTL: u8 = 0;
/// Time exceeded: reassembly timed out.
pub const TIME_EXCEEDED_REASSEMBLY: u8 = 1;

/// The header of an ICMP message. The body follows: echo data, or the quoted packet of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// Echo request (ping).
    EchoRequest {
        /// Identifier of the sender.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
    },
    /// Echo reply, with the body of the request.
    EchoReply {
        /// Identifier of the request.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
    },
    /// The quoted packet could not be delivered.
    DestUnreachable {
        /// Reason: one of the `UNREACHABLE_` codes.
        code: u8,
        /// With [`UNREACHABLE_FRAG_NEEDED`]: MTU of the next link in bytes, or 0 from a router
        /// older than RFC 1191. 0 with other codes.
        next_hop_mtu: u16,
    },
    /// The lifetime of the quoted packet expired.
    TimeExceeded {
        /// Reason: one of the `TIME_EXCEEDED_` codes.
        code: u8,
    },
    /// The quoted packet has an invalid header.
    ParamProblem {
        /// 0: error at `pointer`; 1: a required option is missing.
        code: u8,
        /// Offset of the error in the quoted packet.
        pointer: u8,
    },
    /// A different first hop should be used for the quoted packet.
    Redirect {
        /// 0 for the network, 1 for the host; 2 and 3 are the same for one type of service (RFC
        /// 792).
        code: u8,
        /// Address of the first hop to use.
        gateway: Ipv4Addr,
    },
    /// A message of another type.
    Unknown {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
        /// Bytes 4 to 7.
        rest: [u8; 4],
    },
}

impl Message {
    /// Parses the header of a message, and returns it with the offset of the body. Does not verify
    /// the checksum.
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

    /// Writes the header with a checksum of zero, and returns its length. Call [`fill_checksum`]
    /// when the body is complete.
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

    /// Returns whether this is an error message, which must not be answered with another error (RFC
    /// 1122 §3.2.2).
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

/// Returns whether the checksum of a whole message is correct.
#[must_use]
pub fn checksum_ok(message: &[u8]) -> bool {
    checksum::finish(checksum::sum(message, 0)) == 0
}

/// Writes the checksum of a whole message, header and body, into its header.
pub fn fill_checksum(message: &mut [u8]) {
    head_mut::<HEADER_LEN>(message)[2..4].fill(0);
    let sum = checksum::finish(checksum::sum(message, 0));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

fn pair(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
    [a, b, c, d]
}
