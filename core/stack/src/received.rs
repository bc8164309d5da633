//! Fields of received packets that owners of a stack see.

/// Fields of the IP header of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedFields {
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of Service or Traffic Class: DSCP and ECN.
    pub tos: u8,
}
