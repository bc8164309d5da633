//! ICMP for IPv6 (RFC 4443). [`crate::ndp`] has neighbour discovery, and [`crate::mld`] multicast
//! listener discovery. [`kind`] returns the type of a message, by which the caller selects the
//! parser.

use core::net::Ipv6Addr;

use crate::bytes::{be16, head, head_mut};
use crate::{IpProtocol, ParseError, checksum};

/// Length in bytes of the header of error and echo messages. The body follows it.
pub const HEADER_LEN: usize = 8;
/// Maximum length in bytes of the packet with an ICMPv6 error, including its IPv6 header (RFC 4443
/// §2.4 c).
pub const ERROR_PACKET_LEN_MAX: usize = 1280;

/// ICMPv6 type Destination Unreachable.
pub const DEST_UNREACHABLE: u8 = 1;
/// ICMPv6 type Packet Too Big.
pub const PACKET_TOO_BIG: u8 = 2;
/// ICMPv6 type Time Exceeded.
pub const TIME_EXCEEDED: u8 = 3;
/// ICMPv6 type Parameter Problem.
pub const PARAM_PROBLEM: u8 = 4;
/// ICMPv6 type Echo Request.
pub const ECHO_REQUEST: u8 = 128;
/// ICMPv6 type Echo Reply.
pub const ECHO_REPLY: u8 = 129;

/// Code of Destination Unreachable: there is no route.
pub const UNREACHABLE_NO_ROUTE: u8 = 0;
/// Code of Destination Unreachable: a packet filter prohibits the packet.
pub const UNREACHABLE_PROHIBITED: u8 = 1;
/// Code of Destination Unreachable: the destination is beyond the scope of the source address.
pub const UNREACHABLE_SCOPE: u8 = 2;
/// Code of Destination Unreachable: the address does not answer.
pub const UNREACHABLE_ADDRESS: u8 = 3;
/// Code of Destination Unreachable: the host has no socket for the port.
pub const UNREACHABLE_PORT: u8 = 4;
/// Code of Destination Unreachable: a policy prohibits the source address.
pub const UNREACHABLE_SOURCE_POLICY: u8 = 5;
/// Code of Destination Unreachable: the route rejects packets.
pub const UNREACHABLE_REJECT_ROUTE: u8 = 6;

/// Code of Time Exceeded: the hop limit expired in transit.
pub const TIME_EXCEEDED_HOP_LIMIT: u8 = 0;
/// Code of Time Exceeded: fragments were missing at the reassembly timeout.
pub const TIME_EXCEEDED_REASSEMBLY: u8 = 1;

/// Code of Parameter Problem: a header field is erroneous.
pub const PARAM_ERRONEOUS_FIELD: u8 = 0;
/// Code of Parameter Problem: the type of the next header is unknown.
pub const PARAM_UNKNOWN_NEXT_HEADER: u8 = 1;
/// Code of Parameter Problem: an option is unknown.
pub const PARAM_UNKNOWN_OPTION: u8 = 2;
/// Code of Parameter Problem: the first fragment does not contain all headers (RFC 7112 §6).
pub const PARAM_INCOMPLETE_CHAIN: u8 = 3;
/// Code of Parameter Problem: there are too many extension headers (RFC 8883 §3.4).
pub const PARAM_TOO_MANY_HEADERS: u8 = 8;
/// Code of Parameter Problem: one header has too many options (RFC 8883 §3.5).
pub const PARAM_TOO_MANY_OPTIONS: u8 = 9;

/// The header of an ICMPv6 message, except neighbour discovery and MLD. The body that follows it
/// contains the data of an echo message, or the packet that an error quotes.
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
    },
    /// Error: the quoted packet exceeds the MTU of the next link.
    PacketTooBig {
        /// MTU of the next link in bytes, as received. The MTU is not validated, and may be below
        /// 1280 or much too large.
        mtu: u32,
    },
    /// Error: the hop limit of the quoted packet expired, or its fragments did not all arrive in
    /// time.
    TimeExceeded {
        /// Reason, one of the `TIME_EXCEEDED_` codes.
        code: u8,
    },
    /// Error: the quoted packet has an invalid header.
    ParamProblem {
        /// Reason, one of the `PARAM_` codes.
        code: u8,
        /// Offset of the erroneous byte in the packet. The offset may be beyond the quoted part.
        pointer: u32,
    },
    /// A message of another type: neighbour discovery, MLD, or a type that the parser does not
    /// know.
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
    /// Parses the header of an ICMPv6 message. Returns the header, and the offset of the body in
    /// bytes. The checksum is not verified.
    pub fn parse(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let h = head::<HEADER_LEN>(data)?;
        let [kind, code, _, _, rest @ ..] = *h;
        let (ident, seq) = (be16(rest[0], rest[1]), be16(rest[2], rest[3]));
        let word = u32::from_be_bytes(rest);
        let message = match kind {
            ECHO_REQUEST => Self::EchoRequest { ident, seq },
            ECHO_REPLY => Self::EchoReply { ident, seq },
            DEST_UNREACHABLE => Self::DestUnreachable { code },
            //= https://www.rfc-editor.org/rfc/rfc4443#section-3.2
            //# Code           Set to 0 (zero) by the originator and ignored by the
            //# receiver.
            PACKET_TOO_BIG => Self::PacketTooBig { mtu: word },
            TIME_EXCEEDED => Self::TimeExceeded { code },
            PARAM_PROBLEM => Self::ParamProblem { code, pointer: word },
            _ => Self::Unknown { kind, code, rest },
        };
        Ok((message, HEADER_LEN))
    }

    /// Writes the header to `buf` with the checksum 0, and returns its length in bytes. Call
    /// [`fill_checksum`] after the body was written.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let pair = |ident: u16, seq: u16| u32::from(ident) << 16 | u32::from(seq);
        let (kind, code, rest) = match *self {
            Self::EchoRequest { ident, seq } => (ECHO_REQUEST, 0, pair(ident, seq)),
            Self::EchoReply { ident, seq } => (ECHO_REPLY, 0, pair(ident, seq)),
            Self::DestUnreachable { code } => (DEST_UNREACHABLE, code, 0),
            Self::PacketTooBig { mtu } => (PACKET_TOO_BIG, 0, mtu),
            Self::TimeExceeded { code } => (TIME_EXCEEDED, code, 0),
            Self::ParamProblem { code, pointer } => (PARAM_PROBLEM, code, pointer),
            Self::Unknown { kind, code, rest } => (kind, code, u32::from_be_bytes(rest)),
        };
        let h = head_mut::<HEADER_LEN>(buf);
        h[..4].copy_from_slice(&[kind, code, 0, 0]);
        h[4..].copy_from_slice(&rest.to_be_bytes());
        HEADER_LEN
    }

    /// Returns whether this is an error message, which must not be answered with another error.
    //= https://www.rfc-editor.org/rfc/rfc4443#section-2.1
    //# ICMPv6 messages are grouped into two classes: error messages and
    //# informational messages.  Error messages are identified as such by a
    //# zero in the high-order bit of their message Type field values.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        match self {
            Self::EchoRequest { .. } | Self::EchoReply { .. } => false,
            Self::Unknown { kind, .. } => *kind < 128,
            _ => true,
        }
    }
}

/// Returns the type of an ICMPv6 message.
pub fn kind(message: &[u8]) -> Result<u8, ParseError> {
    message.first().copied().ok_or(ParseError::Truncated)
}

/// Returns whether the checksum of an ICMPv6 message is correct. `message` is the whole message,
/// and `src` and `dst` are the addresses of its packet.
#[must_use]
pub fn checksum_ok(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> bool {
    checksum_of(message, src, dst) == 0
}

/// Computes the checksum of an ICMPv6 message, and writes it into the header. `message` is the
/// whole message: header and body.
pub fn fill_checksum(message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) {
    head_mut::<4>(message)[2..4].fill(0);
    let sum = checksum_of(message, src, dst);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

fn checksum_of(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> u16 {
    let pseudo = checksum::pseudo_v6(src, dst, IpProtocol::ICMPV6, message.len() as u32);
    checksum::finish(checksum::sum(message, pseudo))
}
