//! Datagram sockets: UDP, and echo sockets, whose ident takes the place of the port.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use towpath_pool::{Packet, Pool, Protocol, Segmentation};
use towpath_ring::Payload;
use towpath_tcp::Instant;
use towpath_wire::{addr, ipv4, ipv6, udp};

use crate::error::{ConnectError, SendError};
use crate::host::{DatagramError, DatagramFrom, DatagramOut, Host, SocketError, SocketId};
use crate::limits::DATAGRAM_SEGMENTS_MAX;
use crate::net::{self, EchoOut, Fragmenting, IfaceId, datagrams};
use crate::socket::{BoundAddr, SocketRole};
use crate::stack::Stack;
use crate::tables::flow::Flow;
use crate::tcp::active::{canonical, loopback_if_unspecified, on_device, scope_of};
use crate::udp::socket::DatagramTarget;
use crate::udp::target::udp_ip;

/// Bytes of the ICMP and ICMPv6 echo header.
const ECHO_HEADER_LEN: u32 = 8;
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;

impl<H: Host> Stack<H> {
    /// Gives a datagram socket a peer: it sends there by default, and receives only from there.
    /// Binds the socket if it is not bound. No packet is sent.
    ///
    /// # Errors
    /// An earlier peer stays. As on Linux the socket is bound all the same, unless
    /// [`ConnectError::NoPort`] says that it could not be.
    pub fn connect_datagram(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), ConnectError> {
        self.catch_up();
        let index = self.index(id).ok_or(ConnectError::Invalid)?;
        // Before anything else, as on Linux: where the connect fails the socket is bound all the
        // same.
        self.auto_bind(id).map_err(|_| ConnectError::NoPort)?;
        let socket = self.sockets.get(index).ok_or(ConnectError::Invalid)?;
        let SocketRole::Datagram(datagram) = &socket.kind else {
            return Err(ConnectError::Invalid);
        };
        let (family, bound, echo) =
            (socket.family, socket.bound.as_deref().copied(), datagram.echo);
        let may_broadcast = datagram.broadcast;
        let remote = canonical(remote, family).ok_or(ConnectError::Invalid)?;
        let remote_ip = loopback_if_unspecified(remote.ip());
        let (device, way) = (datagram.device, datagram.way_to(remote_ip));
        let group_source = datagram.source_towards(remote_ip);
        // As on Linux the address that an earlier connect chose stays, until the socket is
        // disconnected.
        let chosen = datagram.peer.map(|peer| peer.local).filter(|ip| addr::is_unicast(*ip));
        if chosen.is_some_and(|ip| ip.is_ipv4()) && remote_ip.is_ipv6() {
            return Err(ConnectError::OtherFamily);
        }
        let chosen = chosen.filter(|ip| ip.is_ipv4() == remote_ip.is_ipv4());
        let scope = on_device(scope_of(&remote), device).ok_or(ConnectError::Invalid)?;
        let source = bound.as_ref().and_then(BoundAddr::source);
        let from = source.filter(|ip| addr::is_unicast(*ip) && !self.net.is_broadcast(*ip));
        let from = from.or(chosen).or(group_source);
        let route = self.net.route(now, from, remote_ip, scope.or(way))?;
        if route.broadcast && !may_broadcast {
            return Err(ConnectError::Forbidden);
        }
        self.forget_peer(index);
        let Some(socket) = self.sockets.get_mut(index) else { return Err(ConnectError::Invalid) };
        let (SocketRole::Datagram(datagram), Some(bound)) =
            (&mut socket.kind, socket.bound.as_deref().copied())
        else {
            return Err(ConnectError::Invalid);
        };
        let flow = Flow {
            local: source.or(from).unwrap_or(route.src),
            remote: remote_ip,
            local_port: bound.port,
            remote_port: if echo { 0 } else { remote.port() },
        };
        let table = datagram.table();
        self.in_order(table, index, bound.port, |stack| {
            if let Some(datagram) = stack.sockets.datagram_mut(index) {
                datagram.peer = Some(flow);
                datagram.last_target = None;
            }
            let binds = stack.ports.of_mut(table);
            binds.receivers.remove(bound.addr, bound.port, index);
            binds.narrow(bound.port, index, flow.local);
            stack.datagrams.peers.enter(stack.keys.table, &mut stack.sockets, index);
            true
        });
        Ok(())
    }

    /// Takes the peer of a datagram socket away. As on Linux, SO_BINDTODEVICE and a port that the
    /// program did not name go with it; a port or address that a bind named stays.
    pub fn disconnect(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        self.forget_peer(index);
        // Infallible: each datagram socket has the option.
        let _ = self.set_device(index, None);
        self.free_chosen_port(index);
    }

    fn forget_peer(&mut self, index: u32) {
        self.datagrams.peers.leave(self.keys.table, &mut self.sockets, index);
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let (SocketRole::Datagram(datagram), Some(bound)) =
            (&mut socket.kind, socket.bound.as_deref().copied())
        else {
            return;
        };
        if datagram.peer.take().is_none() {
            return;
        }
        datagram.last_target = None;
        let table = datagram.table();
        let device = datagram.device;
        let sharing = bound.options.sharing();
        self.in_order(table, index, bound.port, |stack| {
            let binds = stack.ports.of_mut(table);
            binds.change(bound.port, index, |holder| holder.addr = bound.addr);
            binds.receivers.insert(bound.addr, bound.port, index, device, sharing);
            let processor = bound.options.processor;
            binds.receivers.set_processor(bound.addr, bound.port, index, processor);
            true
        });
    }

    /// Sends one datagram (or with `segment_size` several) now. Binds the socket if it is not
    /// bound.
    ///
    /// The payload on an echo socket is an ICMP echo request from its header on. The socket's ident
    /// replaces the one there, and the checksum is computed.
    ///
    /// # Errors
    /// Nothing was sent. With [`SendError::TooLong`] a socket that set
    /// [`crate::SocketOption::RecvErrors`] also gets a report of how long a UDP datagram on this
    /// path may be. A neighbour that does not answer is no error here: it shows later.
    ///
    /// A UDP datagram for which the device's queue has no room is lost, as it could be on its way.
    /// An owner that asks [`Stack::datagram_waits`] before loses fewer. Only an echo socket, and
    /// one that set [`crate::SocketOption::RecvErrors`], get [`SendError::QueueFull`].
    pub fn send_datagram(
        &mut self,
        now: Instant,
        id: SocketId,
        out: &DatagramOut,
        payload: &Payload<'_>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        self.catch_up();
        let (index, echo) = self.datagram(id)?;
        let target = self.target(now, id, index, out)?;
        if payload.len() as usize > payload_len_max(target.flow.remote, echo) {
            return Err(SendError::TooLong);
        }
        if echo {
            return self.send_echo(now, &target, payload, pool);
        }
        let sent = self.send_udp(now, datagrams(index), &target, payload, out.segment_size, pool);
        match sent {
            Ok(()) if self.is_heard_here(&target) => {
                // The datagram is on the link, so the call succeeds whatever happens to the copy.
                // The loopback queue counts a copy that it has no room for.
                let _ = self.send_udp_copy(now, &target, payload, out.segment_size, pool);
            }
            Err(SendError::TooLong) => self.report_too_long(index, &target),
            // As in Linux's udp_sendmsg: the loss is counted, and reported only with IP_RECVERR.
            Err(SendError::QueueFull) if !self.hears_errors(index, target.flow.remote) => {
                return Ok(());
            }
            _ => {}
        }
        sent
    }

    fn hears_errors(&self, index: u32, remote: IpAddr) -> bool {
        let datagram = self.sockets.datagram(index);
        datagram.is_some_and(|datagram| datagram.hears_errors_of(remote))
    }

    /// Whether a datagram of `len` bytes of payload would be refused for its length: for owners
    /// that send datagrams after the program's call has returned. A socket with IP_RECVERR gets a
    /// report of how long a datagram may be. Binds the socket if it is not bound.
    ///
    /// Below [`net::Net::path_mtu_least`], headers included, and 65507, the longest over IPv4, none
    /// is.
    pub fn check_datagram(
        &mut self,
        now: Instant,
        id: SocketId,
        out: &DatagramOut,
        len: u32,
    ) -> Result<(), SendError> {
        self.catch_up();
        let (index, echo) = self.datagram(id)?;
        let target = self.target(now, id, index, out)?;
        let header_len = if echo { 0 } else { udp::HEADER_LEN as u32 };
        let ip_len = if target.flow.remote.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let part = out.segment_size.map_or(len, |size| len.min(size.into()));
        // The length is the program's word.
        let longest = part.saturating_add(ip_len as u32 + header_len);
        let is_long = longest > target.route.mtu;
        if is_long && out.segment_size.is_some() {
            // As udp_send_skb, which reports no length.
            return Err(SendError::TooLong);
        }
        let refused = match target.ip.fragmenting {
            Fragmenting::Never | Fragmenting::Routers => is_long,
            Fragmenting::Here | Fragmenting::Anywhere => false,
        };
        if !refused && len as usize <= payload_len_max(target.flow.remote, echo) {
            return Ok(());
        }
        self.report_too_long(index, &target);
        Err(SendError::TooLong)
    }

    /// The index of a datagram socket, and whether it is an echo socket.
    fn datagram(&self, id: SocketId) -> Result<(u32, bool), SendError> {
        let index = self.index(id).ok_or(SendError::Invalid)?;
        let datagram = self.sockets.datagram(index).ok_or(SendError::Invalid)?;
        Ok((index, datagram.echo))
    }

    /// Whether a datagram that went to a group or a broadcast address comes back to sockets of this
    /// host.
    fn is_heard_here(&self, target: &DatagramTarget) -> bool {
        let Flow { remote, remote_port, .. } = target.flow;
        let is_heard = || match remote.is_multicast() {
            // Groups that sockets of other shards joined are not known here.
            _ if self.shards.has_others_on(remote_port) => true,
            true => self.net.is_member(target.route.iface, remote),
            false => self
                .ports
                .udp
                .receivers
                .all(remote, remote_port, target.route.iface)
                .next()
                .is_some(),
        };
        target.looped && target.route.iface != IfaceId::LOOPBACK && is_heard()
    }

    /// Reports to a program that set IP_RECVERR how long a datagram to that destination may be, as
    /// Linux does.
    fn report_too_long(&mut self, index: u32, target: &DatagramTarget) {
        let Some(socket) = self.sockets.get(index) else { return };
        let SocketRole::Datagram(datagram) = &socket.kind else { return };
        if !datagram.hears_errors_of(target.flow.remote) {
            return;
        }
        let mtu = datagram.lengths.told(target.flow.remote, &target.route);
        let reason = SocketError::MessageTooBig(mtu);
        // Linux gives the port that the socket is connected to, with IPv4 also where the call names
        // another.
        let port = match target.flow.remote {
            IpAddr::V4(_) => datagram.peer.map_or(0, |peer| peer.remote_port),
            IpAddr::V6(_) => target.flow.remote_port,
        };
        let remote = SocketAddr::new(target.flow.remote, port);
        let report = DatagramError { reason, message: None, remote, payload: Vec::new() };
        self.events.report(socket.user, report);
    }

    /// Sends one UDP datagram from any address and port: a gateway's answer in the name of another
    /// host. Longer than the path MTU, it is fragmented.
    ///
    /// # Errors
    /// [`SendError::Invalid`] when the addresses are of two families, or the remote port is 0; else
    /// as with [`Stack::send_datagram`].
    pub fn send_datagram_from(
        &mut self,
        now: Instant,
        out: &DatagramFrom,
        payload: &Payload<'_>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let DatagramFrom { local, remote, ttl, tos } = *out;
        if payload.len() as usize > payload_len_max(remote.ip(), false) {
            return Err(SendError::TooLong);
        }
        if local.is_ipv4() != remote.is_ipv4() || remote.port() == 0 {
            return Err(SendError::Invalid);
        }
        let route = self.net.route(now, Some(local.ip()), remote.ip(), scope_of(&remote))?;
        let flow = Flow {
            local: local.ip(),
            remote: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        };
        let ip = udp_ip(ttl, tos, Fragmenting::Anywhere);
        let target = DatagramTarget { flow, route, ip, looped: false, checksum: true };
        self.send_udp(now, None, &target, payload, None, pool)
    }

    /// Sends one echo message from any address: the answer to a request of [`Host::stray_echo`], in
    /// the name of the host that it was sent to.
    ///
    /// # Errors
    /// No route, or the errors of [`net::Net::send`].
    pub fn send_echo_from(
        &mut self,
        now: Instant,
        out: &EchoOut,
        data: &Payload<'_>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let route = self.net.route(now, Some(out.src), out.dst, None)?;
        self.counters.echo_sent += 1;
        self.loopback_due |= route.iface == IfaceId::LOOPBACK;
        self.net.send_echo(now, &route, out, data, pool).map_err(SendError::from)
    }

    fn send_udp(
        &mut self,
        now: Instant,
        sender: Option<NonZeroU32>,
        target: &DatagramTarget,
        payload: &Payload<'_>,
        segment_size: Option<u16>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let DatagramTarget { flow, route, ip, looped: _, checksum } = target;
        let mut packet = udp_packet(flow, payload, segment_size, pool)?;
        packet.meta.sender = sender;
        self.counters.udp_sent += 1;
        self.loopback_due |= route.iface == IfaceId::LOOPBACK;
        // Left out: 0 stands for none (RFC 768).
        let checksum = checksum.then_some(udp::CHECKSUM_OFFSET as u16);
        self.net
            .send(now, route, flow.local, flow.remote, *ip, packet, checksum, pool)
            .map_err(SendError::from)
    }

    /// The copy of a datagram to a group or a broadcast address for the sockets of this host.
    fn send_udp_copy(
        &mut self,
        now: Instant,
        target: &DatagramTarget,
        payload: &Payload<'_>,
        segment_size: Option<u16>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let DatagramTarget { flow, route, ip, looped: _, checksum: _ } = target;
        let packet = udp_packet(flow, payload, segment_size, pool)?;
        self.counters.udp_sent += 1;
        self.loopback_due = true;
        self.net
            .send_copy(now, route, (flow.local, flow.remote), *ip, packet, pool)
            .map_err(SendError::from)
    }

    fn send_echo(
        &mut self,
        now: Instant,
        target: &DatagramTarget,
        payload: &Payload<'_>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let mut header = [0; ECHO_HEADER_LEN as usize];
        let Some(data_len) = payload.len().checked_sub(ECHO_HEADER_LEN) else {
            return Err(SendError::Invalid);
        };
        payload.copy_to(0, &mut header);
        let request = if target.flow.remote.is_ipv4() { ECHO_REQUEST_V4 } else { ECHO_REQUEST_V6 };
        if header[..2] != [request, 0] {
            return Err(SendError::Invalid);
        }
        let out = EchoOut {
            src: target.flow.local,
            dst: target.flow.remote,
            reply: false,
            ident: target.flow.local_port,
            seq: u16::from_be_bytes([header[6], header[7]]),
            ttl: target.ip.ttl,
            tos: target.ip.tos,
            fragmenting: target.ip.fragmenting,
        };
        self.counters.echo_sent += 1;
        self.loopback_due |= target.route.iface == IfaceId::LOOPBACK;
        let data = payload.slice(ECHO_HEADER_LEN, data_len);
        self.net.send_echo(now, &target.route, &out, &data, pool).map_err(SendError::from)
    }

    /// The program closed a datagram socket that has more to send. As after [`Stack::close`] it
    /// receives nothing and its port is free; its remaining datagrams still leave from that port.
    pub fn withdraw(&mut self, now: Instant, id: SocketId) {
        if let Some(index) = self.index(id) {
            self.forget_datagram(now, index);
        }
    }

    /// Takes a datagram socket out of all tables, if it is there.
    pub(crate) fn forget_datagram(&mut self, now: Instant, index: u32) {
        self.datagrams.peers.leave(self.keys.table, &mut self.sockets, index);
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let bound = socket.bound.as_deref().copied();
        let SocketRole::Datagram(datagram) = &mut socket.kind else { return };
        let table = datagram.table();
        for membership in std::mem::take(&mut datagram.memberships) {
            self.end_membership(now, &membership);
        }
        if let Some(bound) = bound {
            self.in_order(table, index, bound.port, |stack| {
                let binds = stack.ports.of_mut(table);
                binds.receivers.remove(bound.addr, bound.port, index);
                binds.release(bound.port, index);
                false
            });
        }
    }
}

/// Bytes of the longest datagram to `remote`, without jumbograms. The 16-bit length includes the
/// header of IPv4 and excludes that of IPv6 (RFC 791 §3.1, RFC 8200 §3). A program's part begins
/// with the ICMP header on an echo socket, and behind the UDP header otherwise.
fn payload_len_max(remote: IpAddr, echo: bool) -> usize {
    let packet = match remote {
        IpAddr::V4(_) => ipv4::TOTAL_LEN_MAX - ipv4::HEADER_LEN,
        IpAddr::V6(_) => ipv6::PAYLOAD_LEN_MAX,
    };
    if echo { packet } else { packet - udp::HEADER_LEN }
}

/// A UDP datagram, or with `segment_size` one that is to be cut into several.
#[inline]
fn udp_packet(
    flow: &Flow,
    payload: &Payload<'_>,
    segment_size: Option<u16>,
    pool: &mut Pool,
) -> Result<Packet, SendError> {
    let len = payload.len() as usize;
    let mut packet = pool.take(udp::HEADER_LEN + len);
    let header = udp::Header {
        src_port: flow.local_port,
        dst_port: flow.remote_port,
        length: (udp::HEADER_LEN + len) as u16,
        checksum: 0,
    };
    let linear = packet.push_back(udp::HEADER_LEN + len).expect("taken with room");
    header.emit(linear);
    // Copied into the packet. Otherwise a datagram that waits for its neighbour or device would pin
    // later ones in the FIFO, which have other destinations.
    payload.copy_to(0, &mut linear[udp::HEADER_LEN..]);
    if let Some(size) = segment_size.filter(|size| len > usize::from(*size)) {
        if size == 0 || len.div_ceil(usize::from(size)) > DATAGRAM_SEGMENTS_MAX {
            pool.give(packet);
            return Err(SendError::Invalid);
        }
        let header_len = udp::HEADER_LEN as u16;
        packet.meta.segmentation = Some(Segmentation { protocol: Protocol::Udp, size, header_len });
    }
    Ok(packet)
}

impl From<net::SendError> for SendError {
    fn from(error: net::SendError) -> Self {
        match error {
            net::SendError::TooBig { .. } => SendError::TooLong,
            _ => SendError::QueueFull,
        }
    }
}
