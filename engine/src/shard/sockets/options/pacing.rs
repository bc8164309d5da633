//! SO_MAX_PACING_RATE: the maximum send rate of a socket, in bytes per second.

use std::num::NonZeroU64;

use towpath_stack::SocketOption;

use crate::shard::sockets::options::SocketOptions;
use crate::shard::sockets::slots::UNPACED;

impl SocketOptions<'_> {
    /// Sets the rate. Datagram sockets keep the value, but do not apply it; Linux only does with
    /// the fq qdisc. 0 means no limit, as in `tcp_update_skb_after_send`.
    pub(crate) fn set_max_pacing_rate(&mut self, rate: u64) {
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        entry.set_rare(|rare| rare.max_pacing_rate = rate);
        let id = entry.id;
        self.sockets.update_note(self.net, self.slot);
        if let Some(id) = id {
            let bound = NonZeroU64::new(rate).filter(|rate| rate.get() != UNPACED);
            // The stack does not support this option for datagram sockets.
            let _ = self.net.stack.set_option(id, SocketOption::MaxPacingRate(bound));
        }
    }

    /// Returns the configured rate, in bytes per second.
    pub(crate) fn max_pacing_rate(&self) -> u64 {
        self.sockets.slots.get(self.slot).map_or(UNPACED, |entry| entry.rare().max_pacing_rate)
    }
}
