//! UDP and echo sockets: sending, and delivery of received datagrams to the sockets that take them.

pub(crate) mod datagram;
pub(crate) mod deliveries;
pub(crate) mod delivery;
pub(crate) mod late_delivery;
pub(crate) mod lengths;
pub(crate) mod peers;
pub(crate) mod rx;
pub(crate) mod socket;
pub(crate) mod socket_filter;
pub(crate) mod target;

use self::deliveries::Deliveries;
use self::peers::Peers;

/// State of the datagram sockets of a stack.
#[derive(Debug, Default)]
pub(crate) struct DatagramTables {
    /// Sockets with a peer.
    pub peers: Peers,
    /// Packets that wait for filters.
    pub deliveries: Deliveries,
    /// Instructions of filters in this turn, and work of other datagrams by the same measure.
    pub filter_steps: usize,
    /// Multicast groups joined, by all sockets.
    pub memberships: usize,
}
