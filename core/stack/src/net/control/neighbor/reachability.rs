//! State machine of a neighbour to which packets are sent (RFC 4861 §7.3.2).

use core::time::Duration;

use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use crate::net::limits::{MULTICAST_SOLICITS_MAX, NEIGHBOR_USE_INTERVAL, UNICAST_SOLICITS_MAX};
use crate::net::messages::{HopKey, NeighborUpdate, Parts};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: ReachabilityState,
    pub(super) mac: MacAddr,
    /// Time at which the current MAC address of the neighbour was set; read by
    /// `Neighbors::contradicts`.
    pub(super) since: Instant,
    pub(super) router: bool,
    /// Shards that send packets to the neighbour. The first shard is always included.
    pub(super) users: Parts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReachabilityState {
    Incomplete { sent: u8, again: Instant },
    Reachable { until: Instant },
    Stale,
    Delay { until: Instant },
    Probe { sent: u8, again: Instant },
}

/// Action that is required when the deadline of an entry has passed.
pub(super) enum Fate {
    Rest,
    Ask,
    Probe,
    Fail,
}

impl Entry {
    /// Returns the update for the shards that use the neighbour. `tell_at` is the time from which a
    /// shard reports its next packet to the neighbour. The time is early enough for the next state
    /// change, and to keep `Neighbors::used` in LRU order.
    pub(super) fn known(&self, now: Instant, key: HopKey) -> NeighborUpdate {
        let tell_at = match self.state {
            ReachabilityState::Stale | ReachabilityState::Incomplete { .. } => now,
            ReachabilityState::Reachable { until } => until.min(now + NEIGHBOR_USE_INTERVAL),
            ReachabilityState::Delay { .. } | ReachabilityState::Probe { .. } => {
                now + NEIGHBOR_USE_INTERVAL
            }
        };
        NeighborUpdate::Known { key, mac: self.mac, tell_at }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            ReachabilityState::Incomplete { again, .. }
            | ReachabilityState::Probe { again, .. } => Some(again),
            ReachabilityState::Delay { until } => Some(until),
            // A REACHABLE neighbour needs no deadline. The end of this state has no effect until
            // the next packet is sent to the neighbour.
            ReachabilityState::Reachable { .. } | ReachabilityState::Stale => None,
        }
    }

    pub(super) fn on_timeout(&mut self, now: Instant, retrans_time: Duration) -> Fate {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Fate::Rest;
        }
        let again = now + retrans_time;
        match &mut self.state {
            ReachabilityState::Incomplete { sent, .. } if *sent >= MULTICAST_SOLICITS_MAX => {
                Fate::Fail
            }
            ReachabilityState::Probe { sent, .. } if *sent >= UNICAST_SOLICITS_MAX => Fate::Fail,
            ReachabilityState::Incomplete { sent, again: at } => {
                (*sent, *at) = (*sent + 1, again);
                Fate::Ask
            }
            ReachabilityState::Probe { sent, again: at } => {
                (*sent, *at) = (*sent + 1, again);
                Fate::Probe
            }
            ReachabilityState::Delay { .. } => {
                self.state = ReachabilityState::Probe { sent: 1, again };
                Fate::Probe
            }
            ReachabilityState::Reachable { .. } | ReachabilityState::Stale => Fate::Rest,
        }
    }
}

/// Returns a random reachable time between 0.5 and 1.5 times `base`. `draw` is a random number
/// below 1024.
pub(in super::super) fn reachable_time(base: Duration, draw: u64) -> Duration {
    base / 2 + base * (draw as u32 % 1024) / 1024
}
