//! UDP and ICMP echo sockets: sending of datagrams, and delivery of received datagrams.

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
    /// Connected datagram sockets, which are found by their peer.
    pub peers: Peers,
    /// Packets that wait to be delivered, because socket filters have used up the limit of
    /// instructions in this turn of the event loop.
    pub deliveries: Deliveries,
    /// Number of socket filter instructions executed in this turn of the event loop. Other work for
    /// datagrams is converted to this unit and added.
    pub filter_steps: usize,
    /// Number of multicast memberships of all sockets.
    pub memberships: usize,
}
