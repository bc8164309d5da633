//! Input of control from the data parts: punted packets, and notices about next hops.

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;

use super::neighbor::Solicit;
use super::tables::Control;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::received::Local;
use crate::net::told::{Notice, Parts, Punt};

impl Control {
    /// A packet came in that is for control.
    pub(in crate::net) fn on_punt(&mut self, now: Instant, punt: Punt, pool: &mut Pool) {
        match punt {
            Punt::Arp { iface, packet, at } => {
                let heard = self.receive_arp(now, iface, &packet, at, pool);
                self.finish(iface, packet, heard, pool);
            }
            Punt::Discovery(local) => {
                let heard = self.receive_ndp(now, &local, pool);
                self.finish_local(local, heard, pool);
            }
            Punt::Listeners(local) => {
                let heard = self.receive_mld(now, &local);
                self.finish_local(local, heard, pool);
            }
            Punt::Igmp(local) => {
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

    /// Something happened to a next hop of the data part `by`.
    pub(in crate::net) fn on_notice(
        &mut self,
        now: Instant,
        by: Parts,
        notice: Notice,
        pool: &mut Pool,
    ) {
        match notice {
            Notice::Used(key) => {
                if self.neighbors.on_used(now, key, by) {
                    self.solicit(Solicit { key, to: None }, pool);
                }
            }
            Notice::Confirmed { key, mac } => {
                let discovery = &self.ifaces[key.0.index()].discovery;
                let until = discovery.reachable_until(now, &mut self.random);
                self.neighbors.confirm(now, by, key, mac, until);
            }
            Notice::Avoided(key) => {
                if self.routes.take_probe(now, &key) {
                    self.probe_router(now, key, pool);
                }
            }
            // The first data part handles those.
            Notice::TooBig { .. } => {}
        }
        self.publish();
    }
}
