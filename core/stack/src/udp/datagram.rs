//! Datagram sockets: UDP sockets, and ICMP echo sockets, which have an echo identifier instead of a
//! port.

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

/// Length in bytes of the header of an ICMP or ICMPv6 echo message.
const ECHO_HEADER_LEN: u32 = 8;
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;

impl<H: Host> Stack<H> {
    /// Connects a datagram socket to a peer. By default the socket then sends to this peer, and
    /// receives only from it. Binds the socket if necessary. No packet is sent.
    ///
    /// # Errors
    /// See [`ConnectError`]. After an error the socket keeps its previous peer. As on Linux, it is
    /// nevertheless bound, unless the error is [`ConnectError::NoPort`].
    pub fn connect_datagram(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), ConnectError> {
        self.catch_up();
        let index = self.index(id).ok_or(ConnectError::Invalid)?;
        // Bind the socket first. As on Linux, it remains bound even if the connect fails.
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
        // As on Linux, keep the local address that an earlier connect chose, as long as the socket
        // is not disconnected.
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

    /// Disconnects a datagram socket from its peer. As on Linux, SO_BINDTODEVICE and a port that
    /// the stack chose are also reset. A port or address that the program specified by bind is
    /// kept.
    pub fn disconnect(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        self.forget_peer(index);
        // The call cannot fail, because every datagram socket supports the option.
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

    /// Sends a datagram immediately; with `segment_size`, sends several. Binds the socket if
    /// necessary.
    ///
    /// On an echo socket the payload is an ICMP echo request, starting with its header. The
    /// socket's identifier replaces the identifier in the header, and the checksum is computed.
    ///
    /// # Errors
    /// See [`SendError`]. After an error nothing was sent. After [`SendError::TooLong`], a socket
    /// with [`crate::SocketOption::RecvErrors`] also gets a report of the maximum length of a UDP
    /// datagram on the path. If the next hop does not answer, this is reported later by an event.
    ///
    /// A UDP datagram that does not fit in the device's queue is lost, like a datagram lost on the
    /// path. An owner that calls [`Stack::datagram_waits`] before loses fewer datagrams. Only echo
    /// sockets, and sockets with [`crate::SocketOption::RecvErrors`], get [`SendError::QueueFull`].
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
                // The datagram itself was sent, so the call succeeds even if the copy was not. A
                // copy that does not fit in the loopback queue is counted.
                let _ = self.send_udp_copy(now, &target, payload, out.segment_size, pool);
            }
            Err(SendError::TooLong) => self.report_too_long(index, &target),
            // As in Linux's `udp_sendmsg`, the lost datagram is counted, but reported only with
            // IP_RECVERR.
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

    /// Checks whether a datagram with `len` bytes of payload would be rejected for its length.
    /// Intended for owners that send a datagram only after the program's send call has returned. If
    /// the datagram is too long, a socket with IP_RECVERR gets a report of the maximum length.
    /// Binds the socket if necessary.
    ///
    /// A datagram is never rejected if it has at most 65507 bytes (the maximum over IPv4) and its
    /// IP packet is not longer than [`net::Net::path_mtu_least`].
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
        // Saturate the addition, because the program chooses the length of the datagram.
        let longest = part.saturating_add(ip_len as u32 + header_len);
        let is_long = longest > target.route.mtu;
        if is_long && out.segment_size.is_some() {
            // As in Linux's `udp_send_skb`, do not report the maximum length.
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

    /// Returns the index of a datagram socket, and whether it is an ICMP echo socket.
    fn datagram(&self, id: SocketId) -> Result<(u32, bool), SendError> {
        let index = self.index(id).ok_or(SendError::Invalid)?;
        let datagram = self.sockets.datagram(index).ok_or(SendError::Invalid)?;
        Ok((index, datagram.echo))
    }

    /// Returns whether sockets on this host also receive a datagram that is sent to a multicast
    /// group or broadcast address.
    fn is_heard_here(&self, target: &DatagramTarget) -> bool {
        let Flow { remote, remote_port, .. } = target.flow;
        let is_heard = || match remote.is_multicast() {
            // Sockets of other shards (stacks of this host) may be members of the group. Their
            // memberships are not known in this shard.
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

    /// Reports the maximum length of a datagram to its destination, if the program has set
    /// IP_RECVERR, like Linux.
    fn report_too_long(&mut self, index: u32, target: &DatagramTarget) {
        let Some(socket) = self.sockets.get(index) else { return };
        let SocketRole::Datagram(datagram) = &socket.kind else { return };
        if !datagram.hears_errors_of(target.flow.remote) {
            return;
        }
        let mtu = datagram.lengths.told(target.flow.remote, &target.route);
        let reason = SocketError::MessageTooBig(mtu);
        // Linux reports the port to which the socket is connected. For IPv4 it does so even if the
        // call specifies a different port.
        let port = match target.flow.remote {
            IpAddr::V4(_) => datagram.peer.map_or(0, |peer| peer.remote_port),
            IpAddr::V6(_) => target.flow.remote_port,
        };
        let remote = SocketAddr::new(target.flow.remote, port);
        let report = DatagramError { reason, message: None, remote, payload: Vec::new() };
        self.events.report(socket.user, report);
    }

    /// Sends one UDP datagram from any address and port, for a gateway that answers for another
    /// host. The datagram is fragmented if it exceeds the path MTU.
    ///
    /// # Errors
    /// [`SendError::Invalid`] if the addresses are of different IP versions, or the remote port is
    /// 0; otherwise the same as for [`Stack::send_datagram`].
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

    /// Sends one ICMP echo message from any source address. The message answers a request of
    /// [`Host::stray_echo`] on behalf of the host to which the request was sent.
    ///
    /// # Errors
    /// Fails if there is no route, or with the errors of [`net::Net::send`].
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
        // If no checksum is to be computed, the field remains 0 (RFC 768).
        let checksum = checksum.then_some(udp::CHECKSUM_OFFSET as u16);
        self.net
            .send(now, route, flow.local, flow.remote, *ip, packet, checksum, pool)
            .map_err(SendError::from)
    }

    /// Sends a copy of a multicast or broadcast datagram to the sockets on this host that receive
    /// it.
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

    /// Closes a datagram socket whose owner still has datagrams to send. As after [`Stack::close`],
    /// the socket receives nothing, and its port is free for other sockets. The remaining datagrams
    /// are still sent from this port.
    pub fn withdraw(&mut self, now: Instant, id: SocketId) {
        if let Some(index) = self.index(id) {
            self.forget_datagram(now, index);
        }
    }

    /// Removes a datagram socket from all tables that contain it.
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

/// Returns the maximum length in bytes of a datagram to `remote`, without jumbograms. The 16-bit
/// length field of IPv4 includes the IP header, that of IPv6 does not (RFC 791 §3.1, RFC 8200 §3).
/// The result includes the ICMP header of an echo message, but not the UDP header.
fn payload_len_max(remote: IpAddr, echo: bool) -> usize {
    let packet = match remote {
        IpAddr::V4(_) => ipv4::TOTAL_LEN_MAX - ipv4::HEADER_LEN,
        IpAddr::V6(_) => ipv6::PAYLOAD_LEN_MAX,
    };
    if echo { packet } else { packet - udp::HEADER_LEN }
}

/// Creates a packet with a UDP datagram. With `segment_size`, the packet is later divided into
/// several datagrams.
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
    // Copy the payload into the packet. Otherwise a datagram that waits for its next hop or device
    // would occupy the send buffer, and block later datagrams, even those to other destinations.
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
