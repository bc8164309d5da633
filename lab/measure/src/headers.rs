//! Segments and datagrams whose headers are emitted and parsed, the same in all programs.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Source port of all packets.
pub const SRC_PORT: u16 = 48_896;
/// Destination port of all packets.
pub const DST_PORT: u16 = 80;
/// Sequence number of TCP segments, which acknowledge nothing and have no options.
pub const SEQ: u32 = 0x0123_4567;
/// Window of TCP segments.
pub const WINDOW: u16 = 0x0123;
/// Source address over IPv4.
pub const SRC_V4: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);
/// Destination address over IPv4.
pub const DST_V4: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
/// Source address over IPv6.
pub const SRC_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Destination address over IPv6.
pub const DST_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

/// Payload length of an echo in bytes. The frame has 64 bytes, including Ethernet's checksum.
pub const ECHO_PAYLOAD: usize = 18;

/// Protocol and length of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Whether the packet is a TCP segment instead of a UDP datagram.
    pub is_tcp: bool,
    /// Whether the packet uses IPv6 instead of IPv4.
    pub is_v6: bool,
    /// Bytes of payload.
    pub len: usize,
}

impl Kind {
    /// Iterates over all kinds: small packets, those of smoltcp's own benchmarks, and full Ethernet
    /// frames.
    pub fn all() -> impl Iterator<Item = Self> {
        [64, 400, 1460].into_iter().flat_map(|len| {
            [(true, false), (true, true), (false, false), (false, true)]
                .map(|(is_tcp, is_v6)| Self { is_tcp, is_v6, len })
        })
    }

    /// Returns the name of a case that performs `verb`.
    pub fn name(&self, verb: &str) -> String {
        let protocol = if self.is_tcp { "TCP" } else { "UDP" };
        let version = if self.is_v6 { 6 } else { 4 };
        format!("{verb} {protocol} over IPv{version}, {} B", self.len)
    }

    /// Returns a payload in which neighbouring bytes differ, so that misplaced bytes are detected.
    pub fn payload(&self) -> Vec<u8> {
        (0..self.len).map(|n| (n * 7 + n / 251) as u8).collect()
    }
}

/// Returns a hash (64-bit FNV-1a), by which two programs can check that they generated the same
/// bytes.
pub fn digest(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_all_packets_apart() {
        let mut names: Vec<String> = Kind::all().map(|kind| kind.name("emit")).collect();
        assert_eq!(names[0], "emit TCP over IPv4, 64 B");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 12);
    }

    #[test]
    fn a_digest_is_that_of_the_papers() {
        assert_eq!(digest(b""), "cbf29ce484222325");
        assert_eq!(digest(b"a"), "af63dc4c8601ec8c");
    }
}
