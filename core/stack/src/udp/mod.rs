//! UDP and echo sockets: sending, and delivery of received datagrams to their sockets.

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
    /// Connected datagram sockets, by peer.
    pub peers: Peers,
    /// Packets that wait because filters used up the turn's limit of instructions.
    pub deliveries: Deliveries,
    /// Filter instructions executed in this turn, plus the cost of other datagrams in the same
    /// unit.
    pub filter_steps: usize,
    /// Number of multicast memberships of all sockets.
    pub memberships: usize,
}
