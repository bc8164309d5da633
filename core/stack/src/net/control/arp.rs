//! ARP: answers for our addresses, questions for others (RFC 826, RFC 1122 §2.3.2).

use core::net::{IpAddr, Ipv4Addr};

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::arp::{self, Op};
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{MacAddr, addr};

use super::neighbor::Advert;
use super::tables::Control;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::received::Conflict;

impl Control {
    /// Acts on an ARP packet, which starts at `at`.
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
        let (message, _) = arp::Packet::parse(bytes).map_err(|_| malformed)?;
        let sender = IpAddr::V4(message.sender_ip);
        if !addr::is_valid_source_v4(message.sender_ip) || !message.sender_mac.is_unicast() {
            return Err(malformed);
        }
        // Our own packets come back on some links; another host's claim to our address is not
        // believed.
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
            // The address is kept: a forged packet must not take it from programs that use it.
            if self.ifaces[iface.index()].address(sender).is_some() {
                self.counters.address_conflicts += 1;
                let mac = Some(message.sender_mac);
                self.note_conflict(Conflict { iface, addr: sender, mac, is_given_up: false });
            }
            return Err(DropReason::Martian);
        }
        // By RFC 1122 §3.3.4.2 (the weak model) an address belongs to the host. As on Linux, each
        // interface answers for every address except those of the loopback.
        let target = message.target_ip;
        let for_us = !target.is_loopback()
            && self.snapshot.host.locals.on(iface, target.into()).owner.is_some();
        if for_us && message.op == Op::Request {
            self.answer_arp(iface, &message, pool);
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
        message: &arp::Packet,
        for_us: bool,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let (key, mac) = ((iface, IpAddr::V4(message.sender_ip)), message.sender_mac);
        let gratuitous = message.sender_ip == message.target_ip;
        if message.op == Op::Request && !gratuitous {
            self.neighbors.on_question(now, key, mac, for_us);
            self.heard_from(now, key, pool);
            return Ok(());
        }
        if !gratuitous && self.neighbors.contradicts(now, &key, mac) {
            return Err(DropReason::NeighborContradicted);
        }
        let solicited = message.op == Op::Reply && for_us && self.neighbors.is_asked(&key);
        let advert = Advert { mac: Some(mac), solicited, override_: true, router: None };
        let until = self.reachable_until(now, iface);
        self.neighbors.on_advert(now, key, advert, until);
        self.heard_from(now, key, pool);
        Ok(())
    }

    fn answer_arp(&mut self, iface: IfaceId, request: &arp::Packet, pool: &mut Pool) {
        let reply = arp::Packet {
            op: Op::Reply,
            sender_mac: self.ifaces[iface.index()].mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        };
        self.send_arp(iface, request.sender_mac, &reply, pool);
    }

    /// Asks for the MAC address of `target` at `to`, the last one known, or by broadcast. False
    /// when there is no address to ask from.
    pub(super) fn ask_arp(
        &mut self,
        iface: IfaceId,
        target: Ipv4Addr,
        to: Option<MacAddr>,
        pool: &mut Pool,
    ) -> bool {
        let interface = &self.ifaces[iface.index()];
        let sender = self.own_source(iface, target.into());
        let Some(IpAddr::V4(sender_ip)) = sender else { return false };
        let request = arp::Packet {
            op: Op::Request,
            sender_mac: interface.mac,
            sender_ip,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip: target,
        };
        self.send_arp(iface, to.unwrap_or(MacAddr::BROADCAST), &request, pool);
        true
    }

    /// Asks for `addr`, an own address, so that another host that has it answers.
    //= https://www.rfc-editor.org/rfc/rfc5227#section-2.1.1
    //# The client MUST fill in the 'sender hardware address' field of the ARP
    //# Request with the hardware address of the interface through which it
    //# is sending the packet.  The 'sender IP address' field MUST be set to
    //# all zeroes
    pub(super) fn probe_arp(&mut self, iface: IfaceId, addr: Ipv4Addr, pool: &mut Pool) {
        let probe = arp::Packet {
            op: Op::Request,
            sender_mac: self.ifaces[iface.index()].mac,
            sender_ip: Ipv4Addr::UNSPECIFIED,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip: addr,
        };
        self.send_arp(iface, MacAddr::BROADCAST, &probe, pool);
    }

    /// Announces where `addr` is, so that neighbours replace entries of a former owner.
    pub(super) fn announce_arp(&mut self, iface: IfaceId, addr: Ipv4Addr, pool: &mut Pool) {
        let announcement = arp::Packet {
            op: Op::Request,
            sender_mac: self.ifaces[iface.index()].mac,
            sender_ip: addr,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip: addr,
        };
        self.send_arp(iface, MacAddr::BROADCAST, &announcement, pool);
    }

    fn send_arp(&mut self, iface: IfaceId, dst: MacAddr, message: &arp::Packet, pool: &mut Pool) {
        let src = self.ifaces[iface.index()].mac;
        let header = ethernet::Header { dst, src, vlan: None, ethertype: EtherType::ARP };
        let len = ethernet::HEADER_LEN + arp::PACKET_LEN;
        let mut packet = pool.take(len);
        let bytes = packet.push_back(len).expect("taken with room");
        header.emit(bytes);
        message.emit(&mut bytes[ethernet::HEADER_LEN..]);
        self.send_frame(iface, packet);
    }
}
