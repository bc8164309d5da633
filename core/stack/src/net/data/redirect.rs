//! Redirects, by which a router informs a host on its link of a better first hop (RFC 1812 section
//! 5.2.7.2, RFC 4861 section 8.2).

use core::net::{IpAddr, Ipv6Addr};

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::{IpProtocol, addr, icmpv4, icmpv6, ipv6, ndp};

use super::ip_packet::IpPacket;
use super::report::{Offender, Report};
use super::tables::Data;
use crate::net::iface::IfaceId;
use crate::net::ip::{AddressPair, Fragmenting, Ip};
use crate::net::route::RouteKind;

impl Data {
    /// Sends a redirect to the sender of a packet that leaves by the interface it arrived on, if
    /// `hop` is on the sender's link.
    //= https://www.rfc-editor.org/rfc/rfc1812#section-5.2.7.2
    //# Routers MUST NOT generate a Redirect Message unless all the following
    //# conditions are met:
    //# o The packet is being forwarded out the same physical interface that
    //# it was received from,
    //# o The IP source address in the packet is on the same Logical IP
    //# (sub)network as the next-hop IP address, and
    //# o The packet does not contain an IP source route option.
    ///
    /// Packets with a source route are refused before.
    #[cold]
    pub(super) fn redirect(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        hop: IpAddr,
        packet: &Packet,
        pool: &mut Pool,
    ) {
        let is_neighbor = self.snapshot.fib.lookup(ip.src, None, || None).is_some_and(|found| {
            let way = found.way;
            way.next_hop.is_none() && way.kind == RouteKind::Unicast && way.iface == iface
        });
        if !is_neighbor || !self.has_neighbors(iface) {
            return;
        }
        let (src, dst, ip_offset, end) = (ip.src, ip.dst, ip.ip_offset, ip.end);
        let about = Offender { iface, src, dst, ip_offset, end, group: false };
        let is_sent = match (hop, dst) {
            //= https://www.rfc-editor.org/rfc/rfc1812#section-5.2.7.2
            //# Routers MUST NOT generate the Redirect for Network or Redirect for
            //# Network and Type of Service messages (Codes 0 and 2)
            (IpAddr::V4(gateway), _) => {
                let report = Report::V4(icmpv4::Message::Redirect { code: 1, gateway });
                self.may_report(packet, &about, report)
                    && self.may_redirect(now, src)
                    && self.send_error(now, packet, &about, report, pool)
            }
            (IpAddr::V6(target), IpAddr::V6(dst)) => {
                self.redirect_v6(now, &about, target, dst, packet, pool)
            }
            _ => false,
        };
        self.counters.redirects_sent += u64::from(is_sent);
    }

    fn may_redirect(&mut self, now: Instant, host: IpAddr) -> bool {
        let may = self.redirects.take(now, host);
        self.counters.redirects_limited += u64::from(!may);
        may
    }

    //= https://www.rfc-editor.org/rfc/rfc4861#section-8.2
    //# If the target is a router, that router's
    //# link-local address MUST be used.
    fn redirect_v6(
        &mut self,
        now: Instant,
        about: &Offender,
        target: Ipv6Addr,
        dst: Ipv6Addr,
        packet: &Packet,
        pool: &mut Pool,
    ) -> bool {
        let (iface, host) = (about.iface, about.src);
        if target != dst && !addr::is_link_local(target.into()) {
            return false;
        }
        let mut own = self.link(iface).addresses.iter().map(|known| known.prefix.addr());
        let own = own.find(|own| own.is_ipv6() && addr::is_link_local(*own));
        let Some(own) = own else { return false };
        let Ok(route) = self.route(now, Some(own), host, Some(iface)) else { return false };
        let report = Report::V6(icmpv6::Message::DestUnreachable { code: 0 });
        if !self.may_report(packet, about, report) || !self.may_redirect(now, host) {
            return false;
        }
        let link = self.next_hops.ready(now, &(iface, target.into()));
        let target_ll = link.map(|link| link.dst());
        let message = ndp::Message::Redirect { target, dst, target_ll };
        let body = compose(&message, about, packet, pool);
        let ip = Ip {
            protocol: IpProtocol::ICMPV6.0,
            ttl: Some(ndp::HOP_LIMIT),
            tos: 0,
            fragmenting: Fragmenting::Anywhere,
            flow_label: 0,
        };
        let checksum_at = Some(icmpv4::CHECKSUM_OFFSET as u16);
        // If a redirect cannot be sent, it is not retried.
        self.send(now, &route, AddressPair { src: own, dst: host }, ip, body, checksum_at, pool)
            .is_ok()
    }
}

/// Creates the redirect message, followed by as much of the forwarded packet as fits (RFC 4861
/// section 4.6.3).
fn compose(message: &ndp::Message, about: &Offender, packet: &Packet, pool: &mut Pool) -> Packet {
    const OPTION_HEADER: usize = 8;
    let mut head = [0; ndp::MESSAGE_LEN_MAX];
    let len = message.emit(&mut head);
    let room = icmpv6::ERROR_PACKET_LEN_MAX - ipv6::HEADER_LEN - len - OPTION_HEADER;
    // The length of an ICMPv6 option is a multiple of 8 bytes.
    let quoted = (about.end.min(packet.len()).saturating_sub(about.ip_offset).min(room) / 8) * 8;
    let mut out = pool.take(len + OPTION_HEADER + quoted);
    let bytes = out.push_back(len + OPTION_HEADER + quoted).expect("taken with room");
    bytes[..len].copy_from_slice(&head[..len]);
    bytes[len..][..OPTION_HEADER].fill(0);
    bytes[len] = ndp::OPT_REDIRECTED_HEADER;
    bytes[len + 1] = ((OPTION_HEADER + quoted) / 8) as u8;
    packet.copy_to(about.ip_offset, &mut bytes[len + OPTION_HEADER..]);
    out
}
