//! Questions where neighbours are, by ARP and neighbour discovery, and probes of routers.

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
    /// Asks where a neighbour is: at its last MAC address, or by broadcast or multicast. Without an
    /// address to ask from nothing is sent; the question is repeated when there is one.
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

    /// Handles a sign of life of a neighbour. A router that had failed is usable again once its MAC
    /// address is known; one that only advertised itself is asked for the address.
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

    /// Asks once whether a router is there (again).
    pub(super) fn probe_router(&mut self, now: Instant, key: HopKey, pool: &mut Pool) {
        if self.neighbors.probe(now, key) {
            self.solicit(Solicit { key, to: None }, pool);
        }
    }
}

/// Source address for a solicitation of `target`. `None` while duplicate detection of the
/// interface's first address runs: a solicitation would tie our link-layer address to another
/// host's address (RFC 4429 §3.2).
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
