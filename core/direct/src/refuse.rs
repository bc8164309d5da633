//! ICMP errors about datagrams to addresses that are not the host's own.

use std::net::{IpAddr, SocketAddr};

use towpath_pool::{Packet, Pool, Port};
use towpath_stack::net::{Local, Unreachable};
use towpath_stack::{DatagramFrom, IfaceId};
use towpath_wire::{IpProtocol, ipv4, ipv6, udp};

use crate::node::Node;

/// Maximum number of payload bytes that an ICMP error quotes, as in the longest ICMPv6 error (RFC
/// 4443 §2.4).
const QUOTED_MAX: usize = 1280 - 2 * ipv6::HEADER_LEN - udp::HEADER_LEN - 8;

impl<P: Port + ?Sized> Node<P> {
    /// Answers a [`crate::Stray::Datagram`] with an ICMP error whose source is the datagram's
    /// destination. `answer` has the addresses of an answer, and the TTL and type of service of the
    /// datagram. Per second, at most
    /// [`ICMP_ERRORS_PER_SECOND`](towpath_stack::net::limits::ICMP_ERRORS_PER_SECOND) errors are
    /// sent, and none about a datagram to a broadcast or multicast address.
    pub fn refuse_datagram(
        &mut self,
        iface: IfaceId,
        answer: &DatagramFrom,
        payload: &[u8],
        why: Unreachable,
    ) {
        let Some((packet, offset)) = quoted(answer, payload, &mut self.pool) else { return };
        let local = Local {
            iface,
            src: answer.remote.ip(),
            dst: answer.local.ip(),
            protocol: IpProtocol::UDP.0,
            ttl: answer.ttl.unwrap_or(u8::MAX),
            tos: answer.tos,
            ip_offset: 0,
            offset,
            len: packet.len() - offset,
            broadcast_or_multicast: is_group(answer.local.ip()),
            looped: false,
            packet,
        };
        let now = self.now();
        self.stack.net.unreachable(now, &local, why, &mut self.pool);
        self.pool.give(local.packet);
    }
}

fn is_group(ip: IpAddr) -> bool {
    ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

/// Rebuilds a received datagram that an ICMP error is to quote. Returns the datagram and the offset
/// of its UDP header. The UDP checksum is 0, because the quoted payload may be incomplete.
fn quoted(answer: &DatagramFrom, payload: &[u8], pool: &mut Pool) -> Option<(Packet, usize)> {
    let (from, to) = (answer.remote, answer.local);
    let length = u16::try_from(udp::HEADER_LEN + payload.len()).ok()?;
    let payload = &payload[..payload.len().min(QUOTED_MAX)];
    let header = udp::Header { src_port: from.port(), dst_port: to.port(), length, checksum: 0 };
    let mut packet = pool.take(payload.len());
    packet.push_back(payload.len())?.copy_from_slice(payload);
    header.emit(packet.push_front(udp::HEADER_LEN));
    let offset = push_ip(&mut packet, (from, to), answer, length)?;
    Some((packet, offset))
}

/// Prepends the IP header to a packet, and returns its length in bytes. Returns `None` if the two
/// addresses are of different IP versions.
fn push_ip(
    packet: &mut Packet,
    ends: (SocketAddr, SocketAddr),
    answer: &DatagramFrom,
    length: u16,
) -> Option<usize> {
    let hops = answer.ttl.unwrap_or(u8::MAX);
    match (ends.0.ip(), ends.1.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = ipv4::Header {
                tos: answer.tos,
                total_len: length.checked_add(ipv4::HEADER_LEN as u16)?,
                ident: 0,
                dont_fragment: false,
                more_fragments: false,
                fragment_offset: 0,
                ttl: hops,
                protocol: IpProtocol::UDP,
                src,
                dst,
                options: ipv4::Options::EMPTY,
            };
            Some(header.emit(packet.push_front(ipv4::HEADER_LEN)))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = ipv6::Header {
                traffic_class: answer.tos,
                flow_label: 0,
                payload_len: length,
                next_header: IpProtocol::UDP,
                hop_limit: hops,
                src,
                dst,
            };
            Some(header.emit(packet.push_front(ipv6::HEADER_LEN)))
        }
        _ => None,
    }
}
