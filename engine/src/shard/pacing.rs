//! SO_MAX_PACING_RATE: the bound of what a socket sends in a second.

use std::num::NonZeroU64;

use towpath_stack::SocketOption;

use crate::shard::Shard;
use crate::shard::slots::UNPACED;

impl Shard {
    /// Datagrams have a rate too, as on Linux, where only the fq qdisc looks at that. As in
    /// `tcp_update_skb_after_send`, 0 is no bound.
    pub(crate) fn set_max_pacing_rate(&mut self, slot: u32, rate: u64) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        entry.set_rare(|rare| rare.max_pacing_rate = rate);
        let id = entry.id;
        self.renote(slot);
        if let Some(id) = id {
            let bound = NonZeroU64::new(rate).filter(|rate| rate.get() != UNPACED);
            // Datagram sockets have no such option in the stack.
            let _ = self.stack.set_option(id, SocketOption::MaxPacingRate(bound));
        }
    }

    /// The rate that was set, in bytes a second.
    pub(crate) fn max_pacing_rate(&self, slot: u32) -> u64 {
        self.host.slots.get(slot).map_or(UNPACED, |entry| entry.rare().max_pacing_rate)
    }
}
