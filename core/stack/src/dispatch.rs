//! Receive path from a packet to its socket. `tcp/rx` finds the connection of a segment, `passive`
//! handles handshakes, `udp/rx` delivers datagrams, and `errors` finds the socket of an ICMP error.
//! Later in the same turn of the event loop, `tx` sends the answers of connections that received
//! segments.
//!
//! ```text
//!  packet ─► net ─┬─► tcp ─┬─► connection ─► buffers, events      ┐ one probe of the
//!                 │        ├─► half-open ─► child of its listener  │ flow table says
//!                 │        ├─► TIME-WAIT                           │ which
//!                 │        ├─► pending (any-address)               ┘
//!                 │        └─► no flow: listener, any-address SYN, or RST
//!                 ├─► udp ──► connected socket, else bound ones, else port unreachable
//!                 ├─► icmp error ─► connection (RFC 5927) or connected datagram socket
//!                 └─► echo reply ─► echo socket
//! ```

use towpath_pool::Packet;
use towpath_wire::IpProtocol;

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::Host;
use crate::net::{IfaceId, Local, Looped, Received, Unreachable};
use crate::stack::Stack;
use crate::udp::rx::stray_echo;

impl<H: Host> Stack<H> {
    /// Receives a packet from the device of interface `iface`. `hash` is the packet's hash in the
    /// flow table, if it was already computed.
    #[inline]
    pub(crate) fn receive_packet(
        &mut self,
        cx: &mut Cx<'_, H>,
        iface: IfaceId,
        packet: Packet,
        hash: Option<u64>,
    ) {
        if let Some(received) = self.net.receive(cx.now, iface, packet, cx.pool) {
            self.on_received(cx, received, hash);
        }
    }

    /// Receives a packet that this host sent to itself.
    pub(crate) fn receive_looped(&mut self, cx: &mut Cx<'_, H>, looped: Looped, hash: Option<u64>) {
        if let Some(received) = self.net.receive_looped(cx.now, looped, cx.pool) {
            self.on_received(cx, received, hash);
        }
    }

    /// Delivers a packet, or a report of the IP layer such as an ICMP error, to its socket. `hash`
    /// is the segment's hash in the flow table, if it was already computed.
    pub(crate) fn on_received(
        &mut self,
        cx: &mut Cx<'_, H>,
        received: Received,
        hash: Option<u64>,
    ) {
        match received {
            Received::Local(local) => match IpProtocol(local.protocol) {
                IpProtocol::TCP => self.receive_tcp(cx, local, hash),
                IpProtocol::UDP => self.receive_udp(cx, local),
                _ => self.refuse_protocol(cx, local),
            },
            Received::IcmpError(error) => self.receive_error(cx, &error),
            Received::EchoReply(echo) => self.receive_echo_reply(cx, echo),
            Received::EchoRequest(echo) => stray_echo(cx, echo),
        }
    }

    /// Reports to the sender that no socket receives the packet's protocol, and drops the packet.
    /// Takes `local` by value: if the caller borrowed it, each segment would be copied once more.
    #[cold]
    fn refuse_protocol(&mut self, cx: &mut Cx<'_, H>, local: Local) {
        self.net.unreachable(cx.now, &local, Unreachable::Protocol, cx.pool);
        self.drop_local(local, DropReason::UnknownProtocol, cx.pool);
    }
}
