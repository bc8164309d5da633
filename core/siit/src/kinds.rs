//! Counterparts of ICMP types and codes in the other version (RFC 7915 sections 4.2 and 5.2).

use towpath_wire::{icmpv4, icmpv6, ipv4, ipv6};

/// Number of bytes by which the IPv6 header is longer than an IPv4 header without options.
pub(crate) const HEADER_GROWTH: u32 = (ipv6::HEADER_LEN - ipv4::HEADER_LEN) as u32;

/// First eight bytes of an ICMP error: type, code, and the word behind the checksum, which is an
/// MTU or a pointer, or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorKind {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) word: u32,
}

impl ErrorKind {
    const fn new(kind: u8, code: u8) -> Self {
        Self { kind, code, word: 0 }
    }

    pub(crate) const fn with(self, word: u32) -> Self {
        Self { word, ..self }
    }
}

/// MTUs of links of the past, for routers that report none (RFC 1191 section 7).
const PLATEAUS: [u32; 10] = [65_535, 32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296];

/// Returns the ICMPv6 error for an ICMPv4 error. `quoted_len` is the length of the quoted packet.
pub(crate) fn error_to_v6(error: ErrorKind, quoted_len: u16) -> Option<ErrorKind> {
    let unreachable = |code| Some(ErrorKind::new(icmpv6::DEST_UNREACHABLE, code));
    match (error.kind, error.code) {
        (icmpv4::DEST_UNREACHABLE, code) => match code {
            0 | 1 | 5 | 6 | 7 | 8 | 11 | 12 => unreachable(icmpv6::UNREACHABLE_NO_ROUTE),
            icmpv4::UNREACHABLE_PROTOCOL => {
                // The pointer to the next header field.
                Some(
                    ErrorKind::new(icmpv6::PARAM_PROBLEM, icmpv6::PARAM_UNKNOWN_NEXT_HEADER)
                        .with(6),
                )
            }
            icmpv4::UNREACHABLE_PORT => unreachable(icmpv6::UNREACHABLE_PORT),
            icmpv4::UNREACHABLE_FRAG_NEEDED => {
                let mtu = match error.word & 0xffff {
                    0 => {
                        let below = |mtu: &&u32| **mtu < u32::from(quoted_len);
                        *PLATEAUS.iter().find(below).unwrap_or(&0)
                    }
                    mtu => mtu,
                };
                // Each IPv6 link carries 1280 bytes, if need be by fragments below IPv6.
                let mtu = (mtu + HEADER_GROWTH).max(ipv6::MTU_MIN as u32);
                Some(ErrorKind::new(icmpv6::PACKET_TOO_BIG, 0).with(mtu))
            }
            9 | 10 | 13 | 15 => unreachable(icmpv6::UNREACHABLE_PROHIBITED),
            _ => None,
        },
        (icmpv4::TIME_EXCEEDED, code) => Some(ErrorKind::new(icmpv6::TIME_EXCEEDED, code)),
        (icmpv4::PARAM_PROBLEM, 0 | 2) => {
            let pointer = match error.word >> 24 {
                0 => 0,
                1 => 1,
                2 | 3 => 4,
                8 => 7,
                9 => 6,
                12..16 => 8,
                16..20 => 24,
                _ => return None,
            };
            Some(ErrorKind::new(icmpv6::PARAM_PROBLEM, 0).with(pointer))
        }
        _ => None,
    }
}

/// Returns the ICMPv4 error for an ICMPv6 error.
pub(crate) fn error_to_v4(error: ErrorKind) -> Option<ErrorKind> {
    let unreachable = |code| Some(ErrorKind::new(icmpv4::DEST_UNREACHABLE, code));
    match (error.kind, error.code) {
        (icmpv6::DEST_UNREACHABLE, code) => match code {
            icmpv6::UNREACHABLE_PROHIBITED => unreachable(icmpv4::UNREACHABLE_HOST_PROHIBITED),
            icmpv6::UNREACHABLE_NO_ROUTE
            | icmpv6::UNREACHABLE_SCOPE
            | icmpv6::UNREACHABLE_ADDRESS => unreachable(icmpv4::UNREACHABLE_HOST),
            icmpv6::UNREACHABLE_PORT => unreachable(icmpv4::UNREACHABLE_PORT),
            _ => None,
        },
        (icmpv6::PACKET_TOO_BIG, _) => {
            let mtu = error.word.saturating_sub(HEADER_GROWTH).min(u16::MAX.into());
            unreachable(icmpv4::UNREACHABLE_FRAG_NEEDED).map(|error| error.with(mtu))
        }
        (icmpv6::TIME_EXCEEDED, code) => Some(ErrorKind::new(icmpv4::TIME_EXCEEDED, code)),
        (icmpv6::PARAM_PROBLEM, icmpv6::PARAM_UNKNOWN_NEXT_HEADER) => {
            unreachable(icmpv4::UNREACHABLE_PROTOCOL)
        }
        (icmpv6::PARAM_PROBLEM, icmpv6::PARAM_ERRONEOUS_FIELD) => {
            let pointer = match error.word {
                0 => 0,
                1 => 1,
                4 | 5 => 2,
                6 => 9,
                7 => 8,
                8..24 => 12,
                24..40 => 16,
                _ => return None,
            };
            Some(ErrorKind::new(icmpv4::PARAM_PROBLEM, 0).with(pointer << 24))
        }
        _ => None,
    }
}

/// Returns the type of an echo message in ICMPv6.
pub(crate) const fn query_to_v6(kind: u8) -> Option<u8> {
    match kind {
        icmpv4::ECHO_REQUEST => Some(icmpv6::ECHO_REQUEST),
        icmpv4::ECHO_REPLY => Some(icmpv6::ECHO_REPLY),
        _ => None,
    }
}

/// Returns the type of an echo message in ICMPv4.
pub(crate) const fn query_to_v4(kind: u8) -> Option<u8> {
    match kind {
        icmpv6::ECHO_REQUEST => Some(icmpv4::ECHO_REQUEST),
        icmpv6::ECHO_REPLY => Some(icmpv4::ECHO_REPLY),
        _ => None,
    }
}
