//! Handles received neighbour discovery messages as a host (RFC 4861). Router advertisements are
//! handled in `slaac`.

use core::net::{IpAddr, Ipv6Addr};

use towpath_pool::Pool;
use towpath_tcp::Instant;
use towpath_wire::ndp::{Envelope, Message};
use towpath_wire::{MacAddr, addr};

use super::neighbor::Advert;
use super::tables::Control;
use crate::drop::DropReason;
use crate::net::iface::{AddressState, IfaceId};
use crate::net::received::Local;

impl Control {
    /// Handles a received neighbour discovery message.
    pub(super) fn receive_ndp(
        &mut self,
        now: Instant,
        local: &Local,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let malformed = DropReason::NeighborMalformed;
        let (iface, bytes) = (local.iface, local.body());
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (local.src, local.dst) else {
            return Err(malformed);
        };
        let envelope = Envelope { src, dst, hop_limit: local.ttl };
        let (message, _) = Message::parse(bytes, &envelope).map_err(|_| malformed)?;
        match message {
            Message::NeighborSolicit { target, source_ll } => {
                self.on_neighbor_solicit(now, iface, src, target, source_ll, pool)
            }
            Message::NeighborAdvert { router, solicited, override_, target, target_ll } => {
                let advert = Advert { mac: target_ll, solicited, override_, router: Some(router) };
                self.on_neighbor_advert(now, iface, target, advert, pool)
            }
            Message::RouterAdvert(advert) if self.ifaces[iface.index()].discovery.slaac => {
                self.on_router_advert(now, iface, src, &advert, bytes, pool);
                Ok(())
            }
            // Ignore redirects, because any host on the link can send them. Redirects also help
            // little on a link with a single router. Ignore router solicitations, because this host
            // is not a router.
            Message::Redirect { .. } | Message::RouterSolicit { .. } | Message::RouterAdvert(_) => {
                Err(DropReason::IcmpIgnored)
            }
        }
    }

    fn on_neighbor_solicit(
        &mut self,
        now: Instant,
        iface: IfaceId,
        src: Ipv6Addr,
        target: Ipv6Addr,
        source_ll: Option<MacAddr>,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let found = self.ifaces[iface.index()].address(target.into());
        let state = found.map(|a| a.state).ok_or(DropReason::NotLocal)?;
        if state == AddressState::DadFailed {
            return Err(DropReason::NotLocal);
        }
        let detecting = matches!(state, AddressState::Tentative | AddressState::Optimistic);
        if src.is_unspecified() && detecting {
            //= https://www.rfc-editor.org/rfc/rfc4862#section-5.4.3
            //# If the source address of the Neighbor Solicitation is the unspecified
            //# address, the solicitation is from a node performing Duplicate
            //# Address Detection.  If the solicitation is from another node, the
            //# tentative address is a duplicate and should not be used (by either
            //# node).
            self.on_duplicate(now, iface, target, None);
            return Ok(());
        }
        if state == AddressState::Tentative {
            return Err(DropReason::IcmpIgnored);
        }
        let key = (iface, IpAddr::V6(src));
        if let Some(mac) = source_ll.filter(|_| !src.is_unspecified()) {
            self.neighbors.on_question(now, key, mac, true);
            self.heard_from(now, key, pool);
        }
        let answer = Message::NeighborAdvert {
            router: self.forwards,
            solicited: !src.is_unspecified(),
            override_: state != AddressState::Optimistic,
            target,
            target_ll: Some(self.ifaces[iface.index()].mac),
        };
        let dst = if src.is_unspecified() { addr::ALL_NODES } else { src };
        let interface = &self.ifaces[iface.index()];
        self.orders.push_back(interface.ndp(target, dst, &answer, source_ll, pool));
        Ok(())
    }

    fn on_neighbor_advert(
        &mut self,
        now: Instant,
        iface: IfaceId,
        target: Ipv6Addr,
        advert: Advert,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let own = self.ifaces[iface.index()].address(target.into()).map(|own| own.state);
        if let Some(state) = own.filter(|state| *state != AddressState::DadFailed) {
            //= https://www.rfc-editor.org/rfc/rfc4862#section-5.4.4
            //# If the target address is tentative, the tentative address is not
            //# unique.
            // Give up the address only during duplicate address detection. Otherwise anyone could
            // take away an established address with a forged advertisement.
            if matches!(state, AddressState::Tentative | AddressState::Optimistic) {
                self.on_duplicate(now, iface, target, advert.mac);
                return Ok(());
            }
            return Err(DropReason::Martian);
        }
        let key = (iface, IpAddr::V6(target));
        let until = self.ifaces[iface.index()].discovery.reachable_until(now, &mut self.random);
        let no_router = self.neighbors.on_advert(now, key, advert, until);
        //= https://www.rfc-editor.org/rfc/rfc4861#section-7.2.5
        //# In those cases where the IsRouter flag changes
        //# from TRUE to FALSE as a result of this update, the node MUST
        //# remove that router from the Default Router List and update the
        //# Destination Cache entries for all destinations using that
        //# neighbor as a router as specified in Section 7.3.3.
        if no_router {
            self.forget_router(iface, target);
        }
        self.heard_from(now, key, pool);
        Ok(())
    }
}
