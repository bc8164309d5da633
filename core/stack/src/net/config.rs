//! Settings of the IP layer that cannot be changed later.

use super::limits::{NEIGHBORS_MAX, NEIGHBORS_MOST};

/// Settings of a [`Net`](super::Net).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Whether copies of dropped packets are kept for [`take_dropped`](super::Net::take_dropped).
    pub trace_drops: bool,
    /// Settings of a router that forwards packets to other hosts; `None` for a host.
    pub forwarding: Option<Forwarding>,
    /// Maximum number of neighbours to which the host sends, on all interfaces together. Beyond it,
    /// the least recently used one is evicted. At most
    /// [`NEIGHBORS_MOST`](super::limits::NEIGHBORS_MOST).
    pub neighbors_max: usize,
}

impl Default for NetConfig {
    /// Returns the settings of a host without forwarding and trace.
    fn default() -> Self {
        Self { trace_drops: false, forwarding: None, neighbors_max: NEIGHBORS_MAX }
    }
}

/// Settings of a router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// Check of the source address of each forwarded packet.
    pub source_check: SourceCheck,
}

/// Reverse-path filter: checks source addresses by the routes to them (RFC 3704).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// No check, because routes may be asymmetric.
    #[default]
    Off,
    /// A route to the source must exist, on any interface.
    Loose,
    /// The best route to the source must use the interface that the packet arrived on.
    Strict,
}

impl NetConfig {
    /// Returns the maximum number of neighbours in the tables.
    pub(super) fn neighbors(&self) -> usize {
        self.neighbors_max.clamp(1, NEIGHBORS_MOST)
    }
}
