//! SO_MAX_PACING_RATE: the bound of what a socket sends in a second.

use std::num::NonZeroU64;

use towpath_stack::SocketOption;

use crate::shard::sockets::options::SocketOptions;
use crate::shard::sockets::slots::UNPACED;

impl SocketOptions<'_> {
    /// Datagrams have a rate too, as on Linux, where only the fq qdisc looks at that. As in
    /// `tcp_update_skb_after_send`, 0 is no bound.
    pub(crate) fn set_max_pacing_rate(&mut self, rate: u64) {
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        entry.set_rare(|rare| rare.max_pacing_rate = rate);
        let id = entry.id;
        self.sockets.update_note(self.net, self.slot);
        if let Some(id) = id {
            let bound = NonZeroU64::new(rate).filter(|rate| rate.get() != UNPACED);
            // Datagram sockets have no such option in the stack.
            let _ = self.net.stack.set_option(id, SocketOption::MaxPacingRate(bound));
        }
    }

    /// The rate that was set, in bytes a second.
    pub(crate) fn max_pacing_rate(&self) -> u64 {
        self.sockets.slots.get(self.slot).map_or(UNPACED, |entry| entry.rare().max_pacing_rate)
    }
}
