//! The receive path: from a packet to its socket. `tcp/rx` finds the connection of a segment,
//! `passive` processes handshakes, `udp/rx` delivers datagrams, `errors` finds the socket of an
//! ICMP error. In the same turn `tx` visits every connection that got a segment.
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

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::IpProtocol;

use crate::drop::DropReason;
use crate::host::Host;
use crate::net::{IfaceId, Looped, Received, Unreachable};
use crate::stack::Stack;
use crate::udp::rx::stray_echo;

impl<H: Host> Stack<H> {
    /// Receives a packet that the device of `iface` gave. `hash` is that of its flow in the table,
    /// if it is known.
    #[inline]
    pub(crate) fn receive_packet(
        &mut self,
        now: Instant,
        host: &mut H,
        iface: IfaceId,
        packet: Packet,
        hash: Option<u64>,
        pool: &mut Pool,
    ) {
        if let Some(received) = self.net.receive(now, iface, packet, pool) {
            self.on_received(now, host, received, hash, pool);
        }
    }

    /// Receives a packet of this host to itself.
    pub(crate) fn receive_looped(
        &mut self,
        now: Instant,
        host: &mut H,
        looped: Looped,
        hash: Option<u64>,
        pool: &mut Pool,
    ) {
        if let Some(received) = self.net.receive_looped(now, looped, pool) {
            self.on_received(now, host, received, hash, pool);
        }
    }

    /// Delivers a packet or report of the IP layer. `hash` is that of the flow in the table, if it
    /// is a segment and the hash is known.
    pub(crate) fn on_received(
        &mut self,
        now: Instant,
        host: &mut H,
        received: Received,
        hash: Option<u64>,
        pool: &mut Pool,
    ) {
        match received {
            Received::Local(local) => match IpProtocol(local.protocol) {
                IpProtocol::TCP => self.receive_tcp(now, host, local, hash, pool),
                IpProtocol::UDP => self.receive_udp(now, host, local, pool),
                _ => {
                    self.net.unreachable(now, &local, Unreachable::Protocol, pool);
                    self.drop_local(local, DropReason::UnknownProtocol, pool);
                }
            },
            Received::IcmpError(error) => self.receive_error(now, host, &error),
            Received::EchoReply(echo) => self.receive_echo_reply(now, host, echo, pool),
            Received::EchoRequest(echo) => stray_echo(host, echo, pool),
        }
    }
}
