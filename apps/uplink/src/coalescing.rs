//! Receive coalescing for devices that deliver one segment at a time.

use towpath_pool::{Batch, Pool, Port, PortCounters};
use towpath_stack::net::coalesce;

/// A port that merges received TCP segments, so that the stack receives fewer and larger packets.
pub struct Coalescing<P> {
    port: P,
    counters: CoalescingCounters,
}

towpath_pool::counters! {
    /// Counters of received packets that were merged.
    pub struct CoalescingCounters {
        /// Packets that were merged into the preceding packet of their connection.
        merged,
    }
}

impl<P> Coalescing<P> {
    /// Creates a port that merges the TCP segments received by `port`.
    pub fn new(port: P) -> Self {
        Self { port, counters: CoalescingCounters::default() }
    }
}

impl<P: Port> Port for Coalescing<P> {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let before = out.len();
        let count = self.port.poll(now_ns, pool, out, max);
        if count > 1 {
            // Leave packets that were already in `out` unchanged, because they come from other
            // ports.
            let mut fresh = out.split_off(before);
            let merged = coalesce(self.port.link_type(), &mut fresh, pool);
            self.counters.merged += merged as u64;
            out.append(&mut fresh);
        }
        out.len() - before
    }

    fn counters(&self) -> PortCounters {
        let mut all = self.port.counters();
        all.push(("gro", self.counters.iter().collect()));
        all
    }

    fn device(&self) -> Option<String> {
        self.port.device()
    }

    towpath_pool::forward_port!(port: submit, offloads, link_type, wake_fd, looked, blocked);
    towpath_pool::forward_port!(port: is_gone, next_timeout_ns, undelivered, undelivered_of_ended);
}
