//! Input of the control part of the IP layer: control packets, and reports about next hops from the
//! shards' data parts.

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;

use super::neighbor::Solicit;
use super::tables::Control;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::messages::{ControlPacket, DataReport, Parts};
use crate::net::received::Local;

impl Control {
    /// Handles a control packet, such as ARP, that a shard received.
    pub(in crate::net) fn on_control_packet(
        &mut self,
        now: Instant,
        punt: ControlPacket,
        pool: &mut Pool,
    ) {
        if self.interface(punt.iface()).is_none() {
            let (iface, packet) = punt.into_packet();
            return self.drop(iface, packet, DropReason::LinkDown);
        }
        match punt {
            ControlPacket::Arp { iface, packet, at } => {
                let heard = self.receive_arp(now, iface, &packet, at, pool);
                self.finish(iface, packet, heard, pool);
            }
            ControlPacket::Discovery(local) => {
                let heard = self.receive_ndp(now, &local, pool);
                self.finish_local(local, heard, pool);
            }
            ControlPacket::Listeners(local) => {
                let heard = self.receive_mld(now, &local);
                self.finish_local(local, heard, pool);
            }
            ControlPacket::Igmp(local) => {
                let heard = self.receive_igmp(now, &local);
                self.finish_local(local, heard, pool);
            }
        }
        self.publish();
    }

    fn finish_local(&mut self, local: Local, heard: Result<(), DropReason>, pool: &mut Pool) {
        self.finish(local.iface, local.packet, heard, pool);
    }

    fn finish(
        &mut self,
        iface: IfaceId,
        packet: Packet,
        heard: Result<(), DropReason>,
        pool: &mut Pool,
    ) {
        match heard {
            Ok(()) => pool.give(packet),
            Err(reason) => self.drop(iface, packet, reason),
        }
    }

    /// Handles a report about a next hop from the data part of shard `by`.
    pub(in crate::net) fn on_report(
        &mut self,
        now: Instant,
        by: Parts,
        notice: DataReport,
        pool: &mut Pool,
    ) {
        match notice {
            // A shard sent this report before it was notified that the interface was removed. Its
            // packets wait for the MAC address, so answer that there is no such neighbour.
            DataReport::Used(key) if self.interface(key.0).is_none() => {
                self.neighbors.on_used(now, key, by);
                self.neighbors.remove(key);
            }
            DataReport::Used(key) => {
                if self.neighbors.on_used(now, key, by) {
                    self.solicit(Solicit { key, to: None }, pool);
                }
            }
            DataReport::Confirmed { key, mac } => {
                let discovery = &self.ifaces[key.0.index()].discovery;
                let until = discovery.reachable_until(now, &mut self.random);
                self.neighbors.confirm(now, by, key, mac, until);
            }
            DataReport::Avoided(key) => {
                if self.routes.take_probe(now, &key) {
                    self.probe_router(now, key, pool);
                }
            }
            // The first shard handles path MTU reports itself.
            DataReport::TooBig { .. } => {}
        }
        self.publish();
    }
}
