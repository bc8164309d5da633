//! Maps ICMP errors to socket errors.

use towpath_wire::{icmpv4, icmpv6};

use crate::host::SocketError;
use crate::net::IcmpError;

/// Reason why a packet could not be delivered. Programs get a different error for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreached {
    Net,
    Host,
    Protocol,
    Port,
    SourceRoute,
    HostUnknown,
    HostIsolated,
    Prohibited,
    BadHeader,
}

impl From<Unreached> for SocketError {
    fn from(why: Unreached) -> Self {
        match why {
            Unreached::Net => Self::NetUnreachable,
            Unreached::Host => Self::HostUnreachable,
            Unreached::Protocol => Self::ProtocolUnreachable,
            Unreached::Port => Self::PortUnreachable,
            Unreached::SourceRoute => Self::SourceRouteFailed,
            Unreached::HostUnknown => Self::HostUnknown,
            Unreached::HostIsolated => Self::HostIsolated,
            Unreached::Prohibited => Self::Prohibited,
            Unreached::BadHeader => Self::BadHeader,
        }
    }
}

/// Effect of an ICMP error on the program that sent the packet. Errors about the packet's length
/// are handled elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub why: Unreached,
    /// Whether the error is permanent. Only permanent errors are reported to connected datagram
    /// sockets without IP_RECVERR.
    pub hard: bool,
}

impl Meaning {
    /// Converts an ICMP error like Linux (`icmp_err_convert`, `icmpv6_err_convert`). Returns `None`
    /// if the error is not reported to programs.
    pub fn of(error: &IcmpError) -> Option<Self> {
        let (kind, code) = error.message;
        let meaning =
            if error.src.is_ipv4() { meaning_v4(kind, code)? } else { meaning_v6(kind, code) };
        let (why, hard) = meaning;
        Some(Self { why, hard })
    }
}

fn meaning_v4(kind: u8, code: u8) -> Option<(Unreached, bool)> {
    use Unreached::{BadHeader, Host, HostIsolated, HostUnknown, Net, Port, Protocol, SourceRoute};
    Some(match (kind, code) {
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_NET) => (Net, false),
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_HOST) => (Host, false),
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_PROTOCOL) => (Protocol, true),
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_PORT) => (Port, true),
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_SOURCE_ROUTE) => (SourceRoute, false),
        // Codes 6 to 12 are defined in RFC 1122 §3.2.2.1, and codes 13 to 15 in RFC 1812 §5.2.7.1.
        (icmpv4::DEST_UNREACHABLE, 6) => (Net, true),
        (icmpv4::DEST_UNREACHABLE, 7) => (HostUnknown, true),
        (icmpv4::DEST_UNREACHABLE, 8) => (HostIsolated, true),
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_NET_PROHIBITED) => (Net, true),
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_HOST_PROHIBITED) => (Host, true),
        (icmpv4::DEST_UNREACHABLE, 11) => (Net, false),
        (icmpv4::DEST_UNREACHABLE, 12) => (Host, false),
        (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_PROHIBITED..=15) => (Host, true),
        (icmpv4::PARAM_PROBLEM, _) => (BadHeader, true),
        // Undefined codes are not reported. Neither are reassembly timeouts, which count as lost
        // packets.
        (icmpv4::DEST_UNREACHABLE, _) => return None,
        (icmpv4::TIME_EXCEEDED, icmpv4::TIME_EXCEEDED_REASSEMBLY) => return None,
        _ => (Host, false),
    })
}

fn meaning_v6(kind: u8, code: u8) -> (Unreached, bool) {
    use Unreached::{BadHeader, Host, Net, Port, Prohibited};
    match (kind, code) {
        (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_NO_ROUTE) => (Net, false),
        (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_PROHIBITED) => (Prohibited, true),
        (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_SCOPE) => (Host, false),
        (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_ADDRESS) => (Host, false),
        (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_PORT) => (Port, true),
        (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_SOURCE_POLICY) => (Prohibited, true),
        (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_REJECT_ROUTE) => (Prohibited, true),
        // Map undefined codes, and errors about headers that a node could not process.
        (icmpv6::DEST_UNREACHABLE | icmpv6::PARAM_PROBLEM, _) => (BadHeader, true),
        // Time exceeded: the hop limit expired.
        _ => (Host, false),
    }
}
