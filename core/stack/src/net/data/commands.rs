//! Executes commands of the control part: packets to be sent or dropped, and neighbour updates.

use towpath_pool::Pool;
use towpath_tcp::Instant;

use super::next_hop::Waiting;
use super::tables::Data;
use crate::drop::DropReason;
use crate::net::limits::ERRORS_MAX;
use crate::net::link_header::LinkHeader;
use crate::net::messages::{DataCommand, HopKey, NeighborUpdate};

impl Data {
    /// Executes a command of the control part, such as to send a packet.
    pub(in crate::net) fn on_command(&mut self, now: Instant, order: DataCommand, pool: &mut Pool) {
        match order {
            // The interface was removed, so no port would send the packet. Drop it.
            DataCommand::Frame { iface, packet }
            | DataCommand::Packet { to: (iface, _), packet, .. }
                if self.here().link(iface).is_none() =>
            {
                self.drop(iface, packet, DropReason::LinkDownOut, pool);
            }
            DataCommand::Frame { iface, packet } => match self.admit(iface, None, || true) {
                Ok(()) => self.push_output(iface, packet),
                Err(full) => self.drop_at_output(iface, packet, full, pool),
            },
            DataCommand::Packet { to, packet, mtu } => self.dispatch(now, to, packet, mtu, pool),
            DataCommand::Drop { iface, packet, reason } => self.drop(iface, packet, reason, pool),
            DataCommand::News { news, .. } => self.on_neighbor_update(now, news, pool),
        }
    }

    /// Handles an update about a neighbour or a path MTU.
    pub(in crate::net) fn on_neighbor_update(
        &mut self,
        now: Instant,
        news: NeighborUpdate,
        pool: &mut Pool,
    ) {
        match news {
            // The control part sent the update before it removed the interface, so forget the next
            // hop.
            NeighborUpdate::Known { key, .. } if self.here().link(key.0).is_none() => {
                self.on_next_hop_forgotten(key, pool);
            }
            NeighborUpdate::Known { key, mac, tell_at } => {
                let (iface, addr) = key;
                let link = LinkHeader::ethernet(self.link(iface).mac, mac, addr);
                for Waiting { packet, mtu } in self.next_hops.on_known(key, link, tell_at) {
                    self.transmit(iface, link, packet, mtu, pool);
                }
            }
            NeighborUpdate::Failed(key) => self.on_next_hop_failed(now, key, pool),
            NeighborUpdate::Forgotten(key) => self.on_next_hop_forgotten(key, pool),
            NeighborUpdate::AllForgotten => {
                for key in self.next_hops.on_all_lost() {
                    self.on_next_hop_forgotten(key, pool);
                }
            }
            NeighborUpdate::TooBig { way, mtu } => {
                self.lower_path_mtu(now, way, mtu);
            }
        }
    }

    fn on_next_hop_forgotten(&mut self, key: HopKey, pool: &mut Pool) {
        for Waiting { packet, .. } in self.next_hops.on_lost(key) {
            self.drop(key.0, packet, DropReason::NeighborQueueFull, pool);
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc1122#section-2.3.2.1
    //# If the address resolution fails, it SHOULD be reported
    fn on_next_hop_failed(&mut self, now: Instant, key: HopKey, pool: &mut Pool) {
        let iface = key.0;
        for Waiting { packet, .. } in self.next_hops.on_lost(key) {
            if self.forwarding.is_some() && self.report_unreached(now, iface, &packet, pool) {
                self.drop(iface, packet, DropReason::NeighborUnreachable, pool);
                continue;
            }
            let error = self.error_about_own(iface, &packet);
            self.errors.extend(error.filter(|_| self.errors.len() < ERRORS_MAX));
            self.drop(iface, packet, DropReason::NeighborUnreachable, pool);
        }
    }

    /// Drops the packets that were evicted from full queues, and updates the counters of the
    /// next-hop table.
    pub(in crate::net) fn clear_up(&mut self, pool: &mut Pool) {
        while let Some((iface, packet, reason)) = self.next_hops.take_gone() {
            self.drop(iface, packet, reason, pool);
        }
        self.counters.next_hops_displaced += self.next_hops.take_displaced();
        self.counters.neighbor_notices_full += self.next_hops.take_untold();
    }
}
