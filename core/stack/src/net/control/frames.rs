//! Creates the frames and packets of the control protocols (ARP, neighbour discovery, MLD) for one
//! interface.

use core::net::{Ipv4Addr, Ipv6Addr};

use towpath_pool::{Packet, Pool};
use towpath_wire::arp::{self, ArpOp};
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::ndp::{self, Envelope, Message};
use towpath_wire::{IpProtocol, MacAddr, icmpv6, ipv6, ipv6_ext};

use super::interface::Interface;
use crate::net::link_header::LinkHeader;
use crate::net::messages::DataCommand;

impl Interface {
    /// Creates an ARP request for the MAC address of `target`, which is sent to the MAC address
    /// `to`.
    pub(super) fn arp_request(
        &self,
        to: MacAddr,
        sender_ip: Ipv4Addr,
        target: Ipv4Addr,
        pool: &mut Pool,
    ) -> DataCommand {
        let request = arp::ArpPacket {
            op: ArpOp::Request,
            sender_mac: self.mac,
            sender_ip,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip: target,
        };
        self.arp(to, &request, pool)
    }

    /// Probes for another host that uses the own address `addr`.
    //= https://www.rfc-editor.org/rfc/rfc5227#section-2.1.1
    //# The client MUST fill in the 'sender hardware address' field of the ARP
    //# Request with the hardware address of the interface through which it
    //# is sending the packet.  The 'sender IP address' field MUST be set to
    //# all zeroes
    pub(super) fn arp_probe(&self, addr: Ipv4Addr, pool: &mut Pool) -> DataCommand {
        self.arp_request(MacAddr::BROADCAST, Ipv4Addr::UNSPECIFIED, addr, pool)
    }

    /// Creates an ARP announcement of our own address `addr`. Neighbours then replace the MAC
    /// address of a former owner of `addr`.
    pub(super) fn arp_announcement(&self, addr: Ipv4Addr, pool: &mut Pool) -> DataCommand {
        self.arp_request(MacAddr::BROADCAST, addr, addr, pool)
    }

    /// Creates the reply to an ARP request for one of our own addresses.
    pub(super) fn arp_reply(&self, request: &arp::ArpPacket, pool: &mut Pool) -> DataCommand {
        let reply = arp::ArpPacket {
            op: ArpOp::Reply,
            sender_mac: self.mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        };
        self.arp(request.sender_mac, &reply, pool)
    }

    fn arp(&self, dst: MacAddr, message: &arp::ArpPacket, pool: &mut Pool) -> DataCommand {
        let header = ethernet::Header { dst, src: self.mac, vlan: None, ethertype: EtherType::ARP };
        let len = ethernet::HEADER_LEN + arp::PACKET_LEN;
        let mut packet = pool.take(len);
        let bytes = packet.push_back(len).expect("taken with room");
        header.emit(bytes);
        message.emit(&mut bytes[ethernet::HEADER_LEN..]);
        DataCommand::Frame { iface: self.id, packet }
    }

    /// Creates a neighbour discovery message. If the receiver's MAC address `to` is given, it is
    /// not looked up.
    pub(super) fn ndp(
        &self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        message: &Message,
        to: Option<MacAddr>,
        pool: &mut Pool,
    ) -> DataCommand {
        let mut packet = pool.take(ndp::MESSAGE_LEN_MAX);
        let bytes = packet.push_back(ndp::MESSAGE_LEN_MAX).expect("taken with room");
        let len = message.emit(bytes);
        icmpv6::fill_checksum(&mut bytes[..len], src, dst);
        packet.truncate(len);
        let envelope = Envelope { src, dst, hop_limit: ndp::HOP_LIMIT };
        self.icmpv6(&envelope, packet, to)
    }

    /// Completes an ICMPv6 message to a host on the link. MLD messages, which have hop limit 1, get
    /// the required Router Alert option (RFC 2710 §3).
    pub(super) fn icmpv6(
        &self,
        envelope: &Envelope,
        mut packet: Packet,
        to: Option<MacAddr>,
    ) -> DataCommand {
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
        let Some(mac) = to else {
            let to = (self.id, envelope.dst.into());
            return DataCommand::Packet { to, packet, mtu: self.mtu_v6 };
        };
        let link = LinkHeader::ethernet(self.mac, mac, envelope.dst.into());
        packet.push_front(link.bytes().len()).copy_from_slice(link.bytes());
        DataCommand::Frame { iface: self.id, packet }
    }
}
