//! A turn of the stack, and what follows from it for sockets and their programs.

use towpath_stack::{Budget, Turn};
use towpath_tcp::Instant;

use crate::shard::{DroppedPacket, Shard};

impl Shard {
    /// A turn of the stack; then memory that packets lent is free again, and what failed ends. [`Self::follow_up`] is
    /// due afterwards.
    pub(crate) fn turn_stack(&mut self, now: Instant) -> Turn {
        let turn = self.stack.turn(
            now,
            &mut self.host,
            &mut self.ports,
            &mut self.pool,
            Budget::default(),
        );
        self.status.set_datagram_mtu(self.stack.net.path_mtu_least());
        self.return_lent();
        self.show_dropped(now);
        self.reset_hostile_sockets(now);
        self.host.accept_long_deferred();
        self.reset_failed(now);
        turn
    }

    /// Sockets that are gone go, those who wait for memory get it, and programs are told what happened.
    pub(crate) fn follow_up(&mut self, now: Instant) {
        self.bury();
        self.feed_starved(now);
        self.reset_unclaimed(now);
        self.close_parked(now);
        self.sweep(now);
        self.tell(now);
    }

    fn show_dropped(&mut self, now: Instant) {
        let Some(trace) = &mut self.drop_trace else { return };
        while let Some(dropped) = self.stack.net.take_dropped() {
            trace(DroppedPacket {
                now_ns: now.0,
                interface: dropped.iface.0,
                outbound: dropped.reason.is_outbound(),
                reason: dropped.reason.as_str(),
                bytes: &dropped.bytes,
            });
        }
    }
}
