//! Handles received ARP packets (RFC 826, RFC 1122 §2.3.2).

use core::net::IpAddr;

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::addr;
use towpath_wire::arp::{self, ArpOp};

use super::neighbor::Advert;
use super::tables::Control;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::received::Conflict;

impl Control {
    /// Handles an ARP packet, which starts at offset `at` of the frame.
    pub(super) fn receive_arp(
        &mut self,
        now: Instant,
        iface: IfaceId,
        packet: &Packet,
        at: usize,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let malformed = DropReason::NeighborMalformed;
        let bytes = packet.linear().get(at..).ok_or(malformed)?;
        let (message, _) = arp::ArpPacket::parse(bytes).map_err(|_| malformed)?;
        let sender = IpAddr::V4(message.sender_ip);
        if !addr::is_valid_source_v4(message.sender_ip) || !message.sender_mac.is_unicast() {
            return Err(malformed);
        }
        // An ARP packet from one of our own addresses is either our own packet, which some links
        // return to us, or a conflict.
        if self.snapshot.host.locals.on(iface, sender).owner.is_some() {
            let ours = self.ifaces.iter().any(|interface| interface.mac == message.sender_mac);
            if ours {
                return Ok(());
            }
            //= https://www.rfc-editor.org/rfc/rfc5227#section-2.4
            //# At any time, if a host receives an ARP packet (Request *or* Reply)
            //# where the 'sender IP address' is (one of) the host's own IP
            //# address(es) configured on that interface, but the 'sender hardware
            //# address' does not match any of the host's own interface addresses,
            //# then this is a conflicting ARP packet
            // Keep using the address. Otherwise any host could take the address away from our
            // programs by a forged ARP packet.
            if self.ifaces[iface.index()].address(sender).is_some() {
                self.counters.address_conflicts += 1;
                let mac = Some(message.sender_mac);
                self.note_conflict(Conflict { iface, addr: sender, mac, is_given_up: false });
            }
            return Err(DropReason::Martian);
        }
        // As on Linux, each interface answers ARP requests for all addresses of the host except
        // loopback addresses. Linux implements the weak host model (RFC 1122 §3.3.4.2).
        let target = message.target_ip;
        let for_us = !target.is_loopback()
            && self.snapshot.host.locals.on(iface, target.into()).owner.is_some();
        if for_us && message.op == ArpOp::Request {
            let reply = self.ifaces[iface.index()].arp_reply(&message, pool);
            self.orders.push_back(reply);
        }
        if message.sender_ip.is_unspecified() {
            return Ok(());
        }
        self.learn_arp(now, iface, &message, for_us, pool)
    }

    fn learn_arp(
        &mut self,
        now: Instant,
        iface: IfaceId,
        message: &arp::ArpPacket,
        for_us: bool,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let (key, mac) = ((iface, IpAddr::V4(message.sender_ip)), message.sender_mac);
        let gratuitous = message.sender_ip == message.target_ip;
        if message.op == ArpOp::Request && !gratuitous {
            self.neighbors.on_question(now, key, mac, for_us);
            self.heard_from(now, key, pool);
            return Ok(());
        }
        if !gratuitous && self.neighbors.contradicts(now, &key, mac) {
            return Err(DropReason::NeighborContradicted);
        }
        let solicited = message.op == ArpOp::Reply && for_us && self.neighbors.is_asked(&key);
        let advert = Advert { mac: Some(mac), solicited, override_: true, router: None };
        let until = self.ifaces[iface.index()].discovery.reachable_until(now, &mut self.random);
        self.neighbors.on_advert(now, key, advert, until);
        self.heard_from(now, key, pool);
        Ok(())
    }
}
