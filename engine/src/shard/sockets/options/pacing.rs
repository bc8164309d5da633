//! SO_MAX_PACING_RATE, the maximum send rate of a socket in bytes per second.

use std::num::NonZeroU64;

use towpath_stack::SocketOption;

use crate::shard::sockets::options::SocketOptions;
use crate::shard::sockets::slots::UNPACED;

impl SocketOptions<'_> {
    /// Sets the maximum send rate in bytes per second. 0 means no limit
    /// (`tcp_update_skb_after_send` of Linux). Datagram sockets store the value without applying
    /// it, as on Linux without the fq qdisc.
    pub(crate) fn set_max_pacing_rate(&mut self, rate: u64) {
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        entry.set_rare(|rare| rare.max_pacing_rate = rate);
        let id = entry.id;
        self.sockets.update_note(self.net, self.slot);
        if let Some(id) = id {
            let bound = NonZeroU64::new(rate).filter(|rate| rate.get() != UNPACED);
            // Ignore an error: the stack does not support this option for datagram sockets.
            let _ = self.net.stack.set_option(id, SocketOption::MaxPacingRate(bound));
        }
    }

    /// Returns the maximum send rate that was set, in bytes per second.
    pub(crate) fn max_pacing_rate(&self) -> u64 {
        self.sockets.slots.get(self.slot).map_or(UNPACED, |entry| entry.rare().max_pacing_rate)
    }
}
