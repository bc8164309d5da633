//! Tuples of addresses, ports and protocol, which identify the flow of a packet.

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;
use towpath_wire::IpProtocol;

/// Addresses, ports and protocol of the packets of a flow in one direction.
///
/// For ICMP queries, both ports are the identifier, so that swapping source and destination gives
/// the tuple of the reply. For protocols without ports, both ports are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    /// Source address, of the same family as `dst`.
    pub src: IpAddr,
    /// Destination address, of the same family as `src`.
    pub dst: IpAddr,
    /// Source port; for an ICMP query, its identifier.
    pub src_port: u16,
    /// Destination port; for an ICMP query, its identifier.
    pub dst_port: u16,
    /// Number of the transport protocol.
    pub protocol: u8,
    /// Type of an ICMP query. For a reply, this is the type of its request. 0 for other protocols.
    pub query: u8,
}

/// Direction of a packet within its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowDirection {
    /// The direction of the flow's first packet, from client to server.
    Original,
    /// The direction of replies to the flow's first packet.
    Reply,
}

impl FlowDirection {
    /// Returns the opposite direction of the flow.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::Original => Self::Reply,
            Self::Reply => Self::Original,
        }
    }
}

/// Secret key for the hashes of a tracker's tables. Without it, a peer could choose ports with
/// colliding hashes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashKey(pub [u64; 2]);

impl HashKey {
    pub(crate) fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0[0], self.0[1])
    }

    /// Returns the hash of one end of a flow: its address, port and protocol.
    pub(crate) fn of_end(self, addr: IpAddr, port: u16, protocol: u8, query: u8) -> u32 {
        let mut hasher = self.hasher();
        write_addr(&mut hasher, addr);
        hasher.write_u32(u32::from(port) << 16 | u32::from(protocol) << 8 | u32::from(query));
        hasher.finish() as u32
    }
}

impl Tuple {
    /// Returns the tuple of packets in the opposite direction.
    #[must_use]
    pub const fn inverse(self) -> Self {
        let Self { src, dst, src_port, dst_port, .. } = self;
        Self { src: dst, dst: src, src_port: dst_port, dst_port: src_port, ..self }
    }

    /// Returns whether the ports can be translated: the protocol has a checksum that can be updated
    /// incrementally.
    #[must_use]
    pub const fn has_ports(&self) -> bool {
        const DCCP: u8 = 33;
        const UDP_LITE: u8 = 136;
        let tcp_udp = matches!(IpProtocol(self.protocol), IpProtocol::TCP | IpProtocol::UDP);
        tcp_udp || matches!(self.protocol, DCCP | UDP_LITE) || self.query != 0
    }

    /// Returns the tuple with a different source address and port. For an ICMP query, `port` is the
    /// identifier, which replaces both ports.
    #[must_use]
    pub const fn with_src(self, src: IpAddr, port: u16) -> Self {
        match self.query {
            0 => Self { src, src_port: port, ..self },
            _ => Self { src, src_port: port, dst_port: port, ..self },
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: HashKey) -> u32 {
        let mut hasher = key.hasher();
        let ports = u64::from(self.src_port) << 48 | u64::from(self.dst_port) << 32;
        let rest = ports | u64::from(self.protocol) << 8 | u64::from(self.query);
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                hasher.write_u64(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
            }
            (src, dst) => {
                write_addr(&mut hasher, src);
                write_addr(&mut hasher, dst);
            }
        }
        hasher.write_u64(rest);
        hasher.finish() as u32
    }
}

fn write_addr(hasher: &mut SipHasher13, addr: IpAddr) {
    match addr {
        IpAddr::V4(v4) => hasher.write_u32(v4.to_bits()),
        IpAddr::V6(v6) => hasher.write_u128(v6.to_bits()),
    }
}
