//! Settings of the IP layer, which stay as they are.

use super::limits::{NEIGHBORS_MAX, NEIGHBORS_MOST};

/// Settings of a [`Net`](super::Net).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Keep copies of dropped packets for [`take_dropped`](super::Net::take_dropped).
    pub trace_drops: bool,
    /// Send packets to other hosts on, as a router; `None` for a host.
    pub forwarding: Option<Forwarding>,
    /// Neighbours that packets may go to, all interfaces together; more displace the least recently
    /// used one. At most [`NEIGHBORS_MOST`](super::limits::NEIGHBORS_MOST) count.
    pub neighbors_max: usize,
}

impl Default for NetConfig {
    /// A host, without a trace.
    fn default() -> Self {
        Self { trace_drops: false, forwarding: None, neighbors_max: NEIGHBORS_MAX }
    }
}

/// Settings of a router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// Check of the source of each packet that is to be sent on.
    pub source_check: SourceCheck,
}

/// Check of sources by the routes to them, against forged ones (RFC 3704).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// No check: routes may be asymmetric.
    #[default]
    Off,
    /// A route to the source exists, out of any interface.
    Loose,
    /// The route to the source leads out of the interface that the packet came in by.
    Strict,
}

impl NetConfig {
    /// Neighbours that the tables of a host with these settings take.
    pub(super) fn neighbors(&self) -> usize {
        self.neighbors_max.clamp(1, NEIGHBORS_MOST)
    }
}
