//! State that routers advertised for an interface's link (RFC 4861 §6.3.2).

use core::time::Duration;

use towpath_tcp::Instant;

use super::learnt::Learnt;
use super::neighbor::reachable_time;
use crate::net::hash::Random;
use crate::net::ip::DEFAULT_TTL;
use crate::net::limits::REACHABLE_TIME;

/// Variables that an interface learnt from its routers, and whether it listens to them.
#[derive(Debug)]
pub(super) struct Discovery {
    pub slaac: bool,
    /// A default router advertised itself, so no solicitation is needed.
    pub found_router: bool,
    /// Base of the time that a confirmation of a neighbour lasts.
    pub reachable: Duration,
    /// Hop limit of packets whose socket sets none.
    pub hop_limit: u8,
    /// Routes and prefixes that routers advertised.
    pub learnt: Learnt,
}

impl Discovery {
    pub(super) fn new(slaac: bool) -> Self {
        let learnt = Learnt::default();
        let (reachable, hop_limit) = (REACHABLE_TIME, DEFAULT_TTL);
        Self { slaac, found_router: false, reachable, hop_limit, learnt }
    }

    /// Until when a neighbour confirmed now counts as reachable.
    pub(super) fn reachable_until(&self, now: Instant, random: &mut Random) -> Instant {
        now + reachable_time(self.reachable, random.below(1024))
    }
}
