//! UDP and echo sockets: sending, and delivery of received datagrams to the sockets that take them.

pub(crate) mod datagram;
pub(crate) mod deliveries;
pub(crate) mod delivery;
pub(crate) mod late_delivery;
pub(crate) mod lengths;
pub(crate) mod peers;
pub(crate) mod socket_filter;
pub(crate) mod target;
