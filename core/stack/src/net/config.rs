//! Settings of the IP layer that are fixed when the stack is created.

use super::limits::{NEIGHBORS_MAX, NEIGHBORS_MOST};

/// Settings of the IP layer, [`Net`](super::Net), which cannot be changed after it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Whether copies of dropped packets are kept until [`take_dropped`](super::Net::take_dropped)
    /// is called.
    pub trace_drops: bool,
    /// Settings of a router, which forwards packets to other hosts; `None` if the stack does not
    /// forward packets.
    pub forwarding: Option<Forwarding>,
    /// Maximum number of neighbours in the neighbour table, for all interfaces together. Beyond the
    /// limit, the least recently used neighbour is evicted. At most
    /// [`NEIGHBORS_MOST`](super::limits::NEIGHBORS_MOST).
    pub neighbors_max: usize,
}

impl Default for NetConfig {
    /// Returns the settings of a host that neither forwards packets nor traces dropped ones.
    fn default() -> Self {
        Self { trace_drops: false, forwarding: None, neighbors_max: NEIGHBORS_MAX }
    }
}

/// Settings of a stack that forwards packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// How the source address of each forwarded packet is checked.
    pub source_check: SourceCheck,
}

/// Reverse path filtering (RFC 3704): checks the source address of a packet by the route to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// Source addresses are not checked, because routes may be asymmetric.
    #[default]
    Off,
    /// There must be a route to the source address, on any interface.
    Loose,
    /// The best route to the source address must use the interface on which the packet arrived.
    Strict,
}

impl NetConfig {
    /// Returns the maximum number of neighbours in the neighbour table.
    pub(super) fn neighbors(&self) -> usize {
        self.neighbors_max.clamp(1, NEIGHBORS_MOST)
    }
}
