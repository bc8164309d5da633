//! Header fields of received packets, for the owner of a stack.

/// Fields of the IP header of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedFields {
    /// TTL (IPv4) or hop limit (IPv6) of the packet.
    pub ttl: u8,
    /// Type of service (IPv4) or traffic class (IPv6) of the packet, which contain DSCP and ECN.
    pub tos: u8,
}
