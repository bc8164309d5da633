//! Applies a list of configuration changes atomically.

use core::net::IpAddr;
use core::time::Duration;

use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

use super::draft::Draft;
use super::schedule::Task;
use super::tables::Control;
use crate::net::changes::{Change, Refused};
use crate::net::iface::IfaceId;
use crate::net::limits::ROUTER_SOLICITS_MAX;
use crate::net::messages::HopKey;
use crate::net::route::RouteEntry;

/// A step of a validated change, which cannot fail.
#[derive(Debug)]
pub(super) enum Step {
    PutAddress(IfaceId, Prefix),
    TakeAddress(IfaceId, IpAddr),
    SetLifetime(IfaceId, IpAddr, Option<Duration>),
    AddRoute(RouteEntry),
    RemoveRoute(RouteEntry),
    SetNeighbor(HopKey, MacAddr),
    RemoveNeighbor(HopKey),
    SetUp(IfaceId, bool),
    RemoveInterface(IfaceId),
    SetMtu(IfaceId, u32),
    SetMtuMost(IfaceId, u32),
}

impl Control {
    /// Applies all changes of a list in a single new snapshot, or none of them.
    pub(in crate::net) fn apply(
        &mut self,
        now: Instant,
        changes: &[Change],
    ) -> Result<(), Refused> {
        let mut draft = Draft::of(self);
        for (at, change) in changes.iter().enumerate() {
            draft.take(change).map_err(|why| Refused { at, why })?;
        }
        for step in draft.into_steps() {
            self.make(now, step);
        }
        self.publish();
        Ok(())
    }

    fn make(&mut self, now: Instant, step: Step) {
        match step {
            Step::PutAddress(iface, prefix) => {
                let added = self.put_address(now, iface, prefix);
                debug_assert!(added, "{prefix} was not there");
            }
            Step::TakeAddress(iface, addr) => {
                let removed = self.take_address(now, iface, addr);
                debug_assert!(removed, "{addr} was there");
            }
            Step::SetLifetime(iface, addr, lifetime) => {
                self.set_lifetime(now, iface, addr, lifetime);
            }
            Step::AddRoute(entry) => {
                let added = self.routes.add(entry);
                debug_assert!(added, "there was room for its router");
            }
            Step::RemoveRoute(entry) => {
                let count = self.routes.remove(entry.prefix, |route| *route == entry);
                debug_assert_eq!(count, 1, "{entry:?} was there");
            }
            Step::SetNeighbor(key, mac) => {
                self.neighbors.set_permanent(key, mac);
                self.routes.on_hop_known(&key);
            }
            Step::RemoveNeighbor(key) => {
                self.neighbors.remove(key);
            }
            Step::SetUp(iface, true) => self.set_up(now, iface),
            Step::SetUp(iface, false) => self.set_down(iface),
            Step::RemoveInterface(iface) => self.remove_interface(now, iface),
            Step::SetMtu(iface, mtu) => {
                let interface = &mut self.ifaces[iface.index()];
                (interface.mtu, interface.mtu_v6) = (mtu, mtu);
                self.changed.links = true;
                self.routes.touch();
            }
            Step::SetMtuMost(iface, most) => {
                self.ifaces[iface.index()].set_mtu_most(most);
                self.changed.links = true;
                self.routes.touch();
            }
        }
    }

    /// Sets an interface down. The validation of the change has already removed the routes of the
    /// interface.
    fn set_down(&mut self, iface: IfaceId) {
        self.ifaces[iface.index()].down = true;
        self.neighbors.remove_all_of(iface);
        self.changed.links = true;
        self.routes.touch();
    }

    /// Sets an interface up. Address announcements and router solicitations start again, because
    /// the link may have changed while the interface was down.
    fn set_up(&mut self, now: Instant, iface: IfaceId) {
        let interface = &mut self.ifaces[iface.index()];
        interface.down = false;
        interface.discovery.found_router = false;
        let slaac = interface.discovery.slaac;
        let prefixes: Vec<Prefix> = interface.addresses.iter().map(|known| known.prefix).collect();
        for prefix in prefixes {
            if let IpAddr::V4(v4) = prefix.addr() {
                self.schedule.add(now, iface, Task::Announce(v4));
            }
        }
        if slaac {
            let left = ROUTER_SOLICITS_MAX;
            self.schedule.add(now, iface, Task::SolicitRouters { left });
        }
        self.changed.links = true;
        self.routes.touch();
    }
}
