//! Timeouts of the data part: those of incomplete datagrams and of path MTUs.

use towpath_pool::Pool;
use towpath_tcp::Instant;
use towpath_wire::{icmpv4, icmpv6};

use super::reassembly::Expired;
use super::report::{Offender, Report};
use super::tables::Data;
use crate::drop::DropReason;

impl Data {
    /// Returns the time at which [`on_timeout`](Self::on_timeout) must be called.
    pub(in crate::net) fn next_timeout(&self) -> Instant {
        self.reassembly.next_timeout().min(self.mtus.next_timeout())
    }

    /// Removes incomplete datagrams and path MTUs that have expired.
    pub(in crate::net) fn on_timeout(&mut self, now: Instant, pool: &mut Pool) {
        for expired in self.reassembly.on_timeout(now) {
            self.on_reassembly_expired(now, expired, pool);
        }
        self.mtus.expire(now);
    }

    /// Sends an ICMP error to the sender of a datagram that was not complete at its reassembly
    /// timeout.
    fn on_reassembly_expired(&mut self, now: Instant, expired: Expired, pool: &mut Pool) {
        self.counters.drops.count(DropReason::FragmentTimeout);
        let Some(quote) = expired.quote else { return };
        let mut packet = pool.take(quote.len());
        packet.push_back(quote.len()).expect("taken with room").copy_from_slice(&quote);
        let about = Offender {
            iface: expired.key.iface,
            src: expired.key.src,
            dst: expired.key.dst,
            ip_offset: 0,
            end: quote.len(),
            group: expired.group,
        };
        let report = if about.src.is_ipv4() {
            let code = icmpv4::TIME_EXCEEDED_REASSEMBLY;
            Report::V4(icmpv4::Message::TimeExceeded { code })
        } else {
            let code = icmpv6::TIME_EXCEEDED_REASSEMBLY;
            Report::V6(icmpv6::Message::TimeExceeded { code })
        };
        self.send_error(now, &packet, &about, report, pool);
        pool.give(packet);
    }
}
