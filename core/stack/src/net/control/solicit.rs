//! Sends neighbour solicitations (by ARP or neighbour discovery), and probes routers.

use core::net::{IpAddr, Ipv6Addr};

use towpath_pool::Pool;
use towpath_tcp::Instant;
use towpath_wire::ndp::Message;
use towpath_wire::{MacAddr, addr};

use super::interface::Interface;
use super::neighbor::Solicit;
use super::tables::Control;
use crate::net::iface::{Address, AddressState};
use crate::net::messages::{DataCommand, HopKey};
use crate::net::source::source_rank;

impl Control {
    /// Sends a solicitation to the neighbour's last MAC address, or by broadcast or multicast. If
    /// there is no source address, nothing is sent. The solicitation is then repeated when an
    /// address is available.
    pub(super) fn solicit(&mut self, solicit: Solicit, pool: &mut Pool) {
        if let Some(request) = self.solicitation(solicit, pool) {
            self.orders.push_back(request);
            self.counters.solicits_sent += 1;
        }
    }

    fn solicitation(&self, solicit: Solicit, pool: &mut Pool) -> Option<DataCommand> {
        let (iface, target) = solicit.key;
        let interface = &self.ifaces[iface.index()];
        match target {
            IpAddr::V4(target) => {
                let IpAddr::V4(sender) = self.own_source(iface, target.into())? else {
                    return None;
                };
                let to = solicit.to.unwrap_or(MacAddr::BROADCAST);
                Some(interface.arp_request(to, sender, target, pool))
            }
            IpAddr::V6(target) => {
                let source = solicit_source(interface, target)?;
                let source_ll = Some(interface.mac);
                let message = Message::NeighborSolicit { target, source_ll };
                let dst = if solicit.to.is_some() { target } else { addr::solicited_node(target) };
                Some(interface.ndp(source, dst, &message, solicit.to, pool))
            }
        }
    }

    /// Handles the arrival of a message from a neighbour. If the neighbour is a router that had
    /// failed, and its MAC address is known, routes use the router again. If the address is not
    /// known, a solicitation is sent to the router.
    pub(super) fn heard_from(&mut self, now: Instant, key: HopKey, pool: &mut Pool) {
        if !self.routes.has_failed(&key) {
            return;
        }
        if self.neighbors.mac(&key).is_some() {
            self.routes.on_hop_known(&key);
        } else {
            self.probe_router(now, key, pool);
        }
    }

    /// Sends a single solicitation to a failed router, unless an answer to an earlier one is
    /// awaited.
    pub(super) fn probe_router(&mut self, now: Instant, key: HopKey, pool: &mut Pool) {
        if self.neighbors.probe(now, key) {
            self.solicit(Solicit { key, to: None }, pool);
        }
    }
}

/// Returns the source address for a solicitation of `target`. Returns `None` if duplicate address
/// detection still checks all addresses of the interface. A solicitation from such an address would
/// bind it to our MAC address, although another host may have it (RFC 4429 §3.2).
fn solicit_source(interface: &Interface, target: Ipv6Addr) -> Option<Ipv6Addr> {
    let addresses = interface.addresses.iter();
    let assigned = addresses.filter(|address| address.is_assigned());
    let deprecated = |address: &Address| address.state == AddressState::Deprecated;
    let ranked = assigned.filter_map(|address| match address.addr() {
        IpAddr::V6(v6) => {
            let rank = source_rank(v6.into(), target.into(), deprecated(address), false, false);
            Some((rank, v6))
        }
        IpAddr::V4(_) => None,
    });
    ranked.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, v6)| v6)
}
