//! Variables of an interface that routers advertise (RFC 4861 §6.3.2).

use core::time::Duration;

use towpath_tcp::Instant;

use super::learnt::Learnt;
use super::neighbor::reachable_time;
use crate::net::hash::Random;
use crate::net::ip::DEFAULT_TTL;
use crate::net::limits::REACHABLE_TIME;

/// Variables of an interface that routers have advertised, and whether the interface accepts router
/// advertisements.
#[derive(Debug)]
pub(super) struct Discovery {
    pub slaac: bool,
    /// Whether a default router has advertised itself, so that no more router solicitations are
    /// needed.
    pub found_router: bool,
    /// BaseReachableTime of RFC 4861, from which the randomized reachable time of neighbours is
    /// computed.
    pub reachable: Duration,
    /// Default hop limit of outgoing packets.
    pub hop_limit: u8,
    /// Routes and prefixes that routers have advertised on the interface.
    pub learnt: Learnt,
}

impl Discovery {
    pub(super) fn new(slaac: bool) -> Self {
        let learnt = Learnt::default();
        let (reachable, hop_limit) = (REACHABLE_TIME, DEFAULT_TTL);
        Self { slaac, found_router: false, reachable, hop_limit, learnt }
    }

    /// Returns the time until which a neighbour counts as reachable if its reachability is
    /// confirmed now.
    pub(super) fn reachable_until(&self, now: Instant, random: &mut Random) -> Instant {
        now + reachable_time(self.reachable, random.below(1024))
    }
}
