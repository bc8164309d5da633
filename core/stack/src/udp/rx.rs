//! Received UDP datagrams and ICMP echo messages: validation, and delivery to their sockets.

use std::net::SocketAddr;

use towpath_ring::Payload;
use towpath_wire::udp;

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{DatagramMeta, EchoMeta, Host};
use crate::incoming::{arrival, dont_fragment};
use crate::net::{self, Echo, Local, Unreachable};
use crate::stack::Stack;
use crate::udp::deliveries::{ArrivedDatagrams, Delivery, Undelivered};
use crate::udp::delivery::each_datagram;

impl<H: Host> Stack<H> {
    pub(crate) fn receive_udp(&mut self, cx: &mut Cx<'_, H>, mut local: Local) {
        if !net::verify_transport(&local) {
            return self.drop_local(local, DropReason::TransportChecksum, cx.pool);
        }
        let header = local.packet.linear().get(local.offset..).map(udp::Header::parse_quoted);
        let Some(Ok((header, header_len))) = header else {
            return self.drop_local(local, DropReason::TransportMalformed, cx.pool);
        };
        // The packet may contain several datagrams, if the device has merged them, or if
        // UDP_SEGMENT was used over loopback. The header then contains the length of all datagrams
        // together.
        let length = usize::from(header.length);
        if length < header_len || length > local.len {
            return self.drop_local(local, DropReason::TransportMalformed, cx.pool);
        }
        self.counters.udp_received += 1;
        let meta = DatagramMeta {
            local: SocketAddr::new(local.dst, header.dst_port),
            remote: SocketAddr::new(local.src, header.src_port),
            iface: self.net.link_of(local.iface, local.dst),
            ttl: local.ttl,
            tos: local.tos,
            dont_fragment: dont_fragment(&local),
            arrival: arrival(cx.now, &local),
            segment_size: 0,
        };
        local.len = length;
        let arrived = ArrivedDatagrams::new(&local, meta, header_len);
        let delivered = if local.broadcast_or_multicast {
            self.deliver_to_all(cx.host, &arrived)
        } else {
            self.deliver_to_one(cx.host, &arrived, false)
        };
        match delivered {
            Ok(()) => cx.pool.give(local.packet),
            // Pass the datagram to the owner of the stack, because it may be for another host. A
            // copy of a datagram that this host sent is not passed on.
            Err(Undelivered::Lost(DropReason::UdpNoSocket))
                if self.net.is_any_address(local.iface) && !local.looped =>
            {
                each_datagram(&arrived.payload, arrived.size, |datagram| {
                    cx.host.stray_datagram(&meta, &datagram);
                });
                cx.pool.give(local.packet);
            }
            Err(Undelivered::Later(receivers)) => {
                let delivery = Delivery::new(local, meta, header_len, receivers);
                self.deliver_later(cx, delivery);
            }
            Err(Undelivered::Lost(reason)) => {
                //= https://www.rfc-editor.org/rfc/rfc1122#section-4.1.3.1
                //# If a datagram arrives addressed to a UDP port for which
                //# there is no pending LISTEN call, UDP SHOULD send an ICMP
                //# Port Unreachable message.
                if reason == DropReason::UdpNoSocket && !local.broadcast_or_multicast {
                    self.net.unreachable(cx.now, &local, Unreachable::Port, cx.pool);
                }
                self.drop_local(local, reason, cx.pool);
            }
        }
    }

    /// Delivers an ICMP echo reply to the socket that sent the request.
    pub(crate) fn receive_echo_reply(&mut self, cx: &mut Cx<'_, H>, echo: Echo) {
        let Echo { local, ident, .. } = echo;
        let meta = DatagramMeta {
            local: SocketAddr::new(local.dst, ident),
            remote: SocketAddr::new(local.src, 0),
            iface: self.net.link_of(local.iface, local.dst),
            ttl: local.ttl,
            tos: local.tos,
            dont_fragment: dont_fragment(&local),
            arrival: arrival(cx.now, &local),
            segment_size: 0,
        };
        let arrived = ArrivedDatagrams::new(&local, meta, 0);
        let delivered = self.deliver_to_one(cx.host, &arrived, true);
        let is_stray = matches!(delivered, Err(Undelivered::Lost(DropReason::EchoNoSocket)));
        self.counters.echo_received += u64::from(!is_stray);
        match delivered {
            Ok(()) => cx.pool.give(local.packet),
            Err(Undelivered::Lost(reason)) => self.drop_local(local, reason, cx.pool),
            Err(Undelivered::Later(receivers)) => {
                let delivery = Delivery::new(local, meta, 0, receivers);
                self.deliver_later(cx, delivery);
            }
        }
    }
}

/// Passes an ICMP echo request to the owner. The request was sent to an address that is not the
/// host's own, and arrived on an interface that accepts packets to any address.
pub(crate) fn stray_echo<H: Host>(cx: &mut Cx<'_, H>, echo: Echo) {
    let Echo { local, ident, seq, data_offset, data_len } = echo;
    let (ttl, tos) = (local.ttl, local.tos);
    let meta = EchoMeta {
        local: local.dst,
        remote: local.src,
        ident,
        seq,
        ttl,
        tos,
        dont_fragment: dont_fragment(&local),
    };
    if let Some(data) = local.packet.linear().get(data_offset..data_offset + data_len) {
        cx.host.stray_echo(&meta, &Payload::new(data, Default::default()));
    }
    cx.pool.give(local.packet);
}
