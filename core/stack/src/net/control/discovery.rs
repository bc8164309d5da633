//! Per-interface variables that routers advertise (RFC 4861 §6.3.2).

use core::time::Duration;

use towpath_tcp::Instant;

use super::learnt::Learnt;
use super::neighbor::reachable_time;
use crate::net::hash::Random;
use crate::net::ip::DEFAULT_TTL;
use crate::net::limits::REACHABLE_TIME;

/// Variables that an interface learned from routers, and whether it accepts advertisements.
#[derive(Debug)]
pub(super) struct Discovery {
    pub slaac: bool,
    /// A default router has advertised itself, so no further solicitation is needed.
    pub found_router: bool,
    /// BaseReachableTime of RFC 4861, from which the reachable time is drawn.
    pub reachable: Duration,
    /// Default hop limit of outgoing packets.
    pub hop_limit: u8,
    /// Routes and prefixes advertised by routers.
    pub learnt: Learnt,
}

impl Discovery {
    pub(super) fn new(slaac: bool) -> Self {
        let learnt = Learnt::default();
        let (reachable, hop_limit) = (REACHABLE_TIME, DEFAULT_TTL);
        Self { slaac, found_router: false, reachable, hop_limit, learnt }
    }

    /// Returns the time until which a neighbour confirmed now is reachable.
    pub(super) fn reachable_until(&self, now: Instant, random: &mut Random) -> Instant {
        now + reachable_time(self.reachable, random.below(1024))
    }
}
