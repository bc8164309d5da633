//! Neighbour discovery for IPv6, the host's half (RFC 4861): questions and answers about
//! neighbours. `slaac` handles routers, and makes addresses from their advertisements.

use core::net::{IpAddr, Ipv6Addr};

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::ndp::{self, Envelope, Message};
use towpath_wire::{IpProtocol, MacAddr, addr, icmpv6, ipv6, ipv6_ext};

use super::neighbor::{Advert, Solicit};
use super::tables::Control;
use crate::drop::DropReason;
use crate::net::iface::{Address, AddressState, IfaceId};
use crate::net::link_header::LinkHeader;
use crate::net::received::Local;
use crate::net::source::source_rank;
use crate::net::told::HopKey;

impl Control {
    /// Acts on a neighbour discovery message.
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
                self.on_neighbor_solicit(now, iface, src, (target, source_ll), pool)
            }
            Message::NeighborAdvert { router, solicited, override_, target, target_ll } => {
                let advert = Advert { mac: target_ll, solicited, override_, router: Some(router) };
                self.on_neighbor_advert(now, iface, target, advert, pool)
            }
            Message::RouterAdvert(advert) if self.ifaces[iface.index()].discovery.slaac => {
                self.on_router_advert(now, iface, src, (&advert, bytes), pool);
                Ok(())
            }
            // Redirects are not followed: they help little behind one router, and anybody on the
            // link can send one. Router solicitations are for routers.
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
        (target, source_ll): (Ipv6Addr, Option<MacAddr>),
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
            self.on_duplicate(now, iface, (target, None));
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
        self.send_ndp(iface, (target, dst), &answer, source_ll, pool);
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
            // An established address is kept: otherwise a forged advertisement could take any.
            if matches!(state, AddressState::Tentative | AddressState::Optimistic) {
                self.on_duplicate(now, iface, (target, advert.mac));
                return Ok(());
            }
            return Err(DropReason::Martian);
        }
        let key = (iface, IpAddr::V6(target));
        let until = self.reachable_until(now, iface);
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

    /// Asks where `target` is; `to` is where it was last. False when there is no address to ask
    /// from yet: the question is asked when there is.
    pub(super) fn ask_ndp(
        &mut self,
        iface: IfaceId,
        target: Ipv6Addr,
        to: Option<MacAddr>,
        pool: &mut Pool,
    ) -> bool {
        let Some(src) = self.solicit_source(iface, target) else { return false };
        let source_ll = Some(self.ifaces[iface.index()].mac);
        let solicit = Message::NeighborSolicit { target, source_ll };
        let dst = if to.is_some() { target } else { addr::solicited_node(target) };
        self.send_ndp(iface, (src, dst), &solicit, to, pool);
        true
    }

    /// Source address for a solicitation of `target`. `None` while duplicate detection of the
    /// interface's first address runs: a solicitation would tie our link-layer address to another
    /// host's address (RFC 4429 §3.2).
    fn solicit_source(&self, iface: IfaceId, target: Ipv6Addr) -> Option<Ipv6Addr> {
        let addresses = self.ifaces[iface.index()].addresses.iter();
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

    /// Sends a neighbour discovery message; `to` spares looking for the receiver.
    pub(super) fn send_ndp(
        &mut self,
        iface: IfaceId,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        message: &Message,
        to: Option<MacAddr>,
        pool: &mut Pool,
    ) {
        let mut packet = pool.take(ndp::MESSAGE_LEN_MAX);
        let bytes = packet.push_back(ndp::MESSAGE_LEN_MAX).expect("taken with room");
        let len = message.emit(bytes);
        icmpv6::fill_checksum(&mut bytes[..len], src, dst);
        packet.truncate(len);
        let envelope = Envelope { src, dst, hop_limit: ndp::HOP_LIMIT };
        self.send_control(iface, &envelope, packet, to);
    }

    /// Sends a complete ICMPv6 message to the link. MLD, whose hop limit is 1, gets the Router
    /// Alert that it must have (RFC 2710 §3).
    pub(super) fn send_control(
        &mut self,
        iface: IfaceId,
        envelope: &Envelope,
        mut packet: Packet,
        to: Option<MacAddr>,
    ) {
        let alert = envelope.hop_limit != ndp::HOP_LIMIT;
        if alert {
            let room = packet.push_front(ipv6_ext::ROUTER_ALERT_LEN);
            ipv6_ext::emit_router_alert(IpProtocol::ICMPV6, 0, room);
        }
        let header = ipv6::Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len: packet.len() as u16,
            next_header: if alert { IpProtocol::HOP_BY_HOP } else { IpProtocol::ICMPV6 },
            hop_limit: envelope.hop_limit,
            src: envelope.src,
            dst: envelope.dst,
        };
        header.emit(packet.push_front(ipv6::HEADER_LEN));
        let mtu = self.ifaces[iface.index()].mtu_v6;
        match to {
            Some(mac) => {
                let own = self.ifaces[iface.index()].mac;
                let link = LinkHeader::ethernet(own, mac, envelope.dst.into());
                packet.push_front(link.bytes().len()).copy_from_slice(link.bytes());
                self.send_frame(iface, packet);
            }
            None => self.send_packet((iface, envelope.dst.into()), packet, mtu),
        }
    }
}
