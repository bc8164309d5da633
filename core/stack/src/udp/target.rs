//! Targets of datagrams: the addresses, the route and the IP header fields with which a datagram is
//! sent.
//!
//! A socket caches the target of its last datagram, because the next one usually has the same
//! target. Changes of options, the peer or the bound address invalidate the cached target. Changes
//! of routes and path MTUs are detected by their generation numbers.

use std::net::{IpAddr, SocketAddr};

use towpath_tcp::Instant;
use towpath_wire::{IpProtocol, addr};

use crate::error::SendError;
use crate::host::{DatagramOut, Host, SocketId};
use crate::net::{Fragmenting, IfaceId, Ip, Net, Route, RouteError};
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::Flow;
use crate::tcp::active::{canonical, loopback_if_unspecified, scope_of};
use crate::udp::socket::{DatagramTarget, LastTarget};

/// Number of consecutive datagrams with a target other than the cached one, from which on targets
/// are usually not cached.
const ELSEWHERE_MAX: u8 = 4;
/// After [`ELSEWHERE_MAX`] datagrams with a target other than the cached one, only one target in
/// this many is cached.
const KEEP_EVERY: u8 = 32;

impl<H: Host> Stack<H> {
    /// Determines the addresses, route and IP header fields with which a datagram is sent. Binds
    /// the socket if necessary.
    #[inline]
    pub(crate) fn target(
        &mut self,
        now: Instant,
        id: SocketId,
        index: u32,
        out: &DatagramOut,
    ) -> Result<DatagramTarget, SendError> {
        let Self { sockets, net, .. } = self;
        let Some(socket) = sockets.get_mut(index) else { return Err(SendError::Invalid) };
        let SocketRole::Datagram(datagram) = &mut socket.kind else {
            return Err(SendError::Invalid);
        };
        let target = match &datagram.last_target {
            Some(last) if is_for(last, out, net) => {
                let mut target = last.target;
                if let Some(remote) = out.remote {
                    target.flow.remote_port = remote.port();
                }
                datagram.went_elsewhere = 0;
                debug_assert_eq!(
                    work_out(socket, net, out, |_, _, _, _| Ok(target.route)),
                    Ok(target),
                    "whoever changed the socket has to forget the target"
                );
                target
            }
            _ => self.find_target(now, id, index, out)?,
        };
        let DatagramTarget { ip, .. } = target;
        let ip = Ip { ttl: out.ttl.or(ip.ttl), tos: out.tos.unwrap_or(ip.tos), ..ip };
        Ok(DatagramTarget { ip, ..target })
    }

    /// Determines the target of a datagram that does not match the cached one. The new target is
    /// cached, unless the destination changes with every datagram, as for a server with many
    /// clients.
    fn find_target(
        &mut self,
        now: Instant,
        id: SocketId,
        index: u32,
        out: &DatagramOut,
    ) -> Result<DatagramTarget, SendError> {
        self.auto_bind(id)?;
        let Self { sockets, net, .. } = self;
        let Some(socket) = sockets.get_mut(index) else { return Err(SendError::Invalid) };
        let SocketRole::Datagram(datagram) = &mut socket.kind else {
            return Err(SendError::Invalid);
        };
        datagram.went_elsewhere = datagram.went_elsewhere.wrapping_add(1);
        if datagram.went_elsewhere > ELSEWHERE_MAX && datagram.went_elsewhere % KEEP_EVERY != 0 {
            return work_out(socket, net, out, |net, source, remote, iface| {
                net.route(now, source, remote, iface)
            });
        }
        let target = work_out(socket, net, out, |net, source, remote, iface| {
            net.route_to_keep(now, source, remote, iface)
        })?;
        let SocketRole::Datagram(datagram) = &mut socket.kind else {
            return Err(SendError::Invalid);
        };
        let DatagramOut { remote, local, iface, .. } = *out;
        let mtus = net.path_mtu_generation();
        datagram.last_target = Some(LastTarget { remote, local, iface, mtus, target });
        Ok(target)
    }
}

/// Returns whether the cached target can be used for `out`, except for the port. Its route must
/// still be valid.
#[inline]
fn is_for(last: &LastTarget, out: &DatagramOut, net: &Net) -> bool {
    let route = &last.target.route;
    is_same_host(last.remote, out.remote)
        && (last.local, last.iface) == (out.local, out.iface)
        && (route.generation, last.mtus) == (net.route_generation(), net.path_mtu_generation())
        && route.hop.is_none_or(|hop| net.next_hop(hop).is_some())
}

/// Returns whether two destinations have the same address. Returns false for port 0, so that the
/// caller uses the normal path, which checks the port.
#[inline]
fn is_same_host(last: Option<SocketAddr>, next: Option<SocketAddr>) -> bool {
    match (last, next) {
        (Some(SocketAddr::V4(last)), Some(SocketAddr::V4(next))) => {
            last.ip() == next.ip() && next.port() != 0
        }
        (Some(SocketAddr::V6(last)), Some(SocketAddr::V6(next))) => {
            (last.ip(), last.scope_id()) == (next.ip(), next.scope_id()) && next.port() != 0
        }
        (None, None) => true,
        _ => false,
    }
}

/// Determines the target of a datagram, with the socket's own TTL and traffic class. The socket
/// must be bound. `find` looks up the route.
fn work_out<H: Host, F>(
    socket: &StackSocket<H>,
    net: &mut Net,
    out: &DatagramOut,
    find: F,
) -> Result<DatagramTarget, SendError>
where
    F: FnOnce(&mut Net, Option<IpAddr>, IpAddr, Option<IfaceId>) -> Result<Route, RouteError>,
{
    let bound = socket.bound.as_deref().copied().ok_or(SendError::NoPort)?;
    let SocketRole::Datagram(datagram) = &socket.kind else { return Err(SendError::Invalid) };
    let (remote, remote_port, scope) = match (out.remote, datagram.peer) {
        (Some(remote), _) if remote.port() == 0 && !datagram.echo => {
            return Err(SendError::Invalid);
        }
        (Some(remote), _) => {
            let remote = canonical(remote, socket.family).ok_or(SendError::Invalid)?;
            (loopback_if_unspecified(remote.ip()), remote.port(), scope_of(&remote))
        }
        // Port 0 is permitted here. As on Linux, a socket that is connected to port 0 may send, and
        // then gets the error that the port is unreachable.
        (None, Some(peer)) => (peer.remote, peer.remote_port, None),
        (None, None) => return Err(SendError::NotConnected),
    };
    // A connected IPv6 socket sends a datagram to an IPv4 host as if it were not connected.
    let chosen = datagram.peer.map(|peer| peer.local);
    let chosen = chosen.filter(|ip| ip.is_ipv4() == remote.is_ipv4());
    let source = out.local.or(chosen).or(bound.source());
    let source = source.filter(|ip| addr::is_unicast(*ip) && !net.is_broadcast(*ip));
    let way = datagram.way_to(remote);
    let source = source.or(datagram.source_towards(remote));
    let iface = out.iface.or(scope).or(way);
    let route = find(net, source, remote, iface)?;
    if route.broadcast && !datagram.broadcast {
        return Err(SendError::Forbidden);
    }
    let local = source.unwrap_or(route.src);
    let (mtu, fragmenting) = datagram.lengths.limit(remote, &route);
    let ip = udp_ip(datagram.ttl_towards(remote), datagram.classes.towards(remote), fragmenting);
    let looped = match remote.is_multicast() {
        true => datagram.multicast_towards(remote).looped,
        false => route.broadcast,
    };
    Ok(DatagramTarget {
        flow: Flow { local, remote, local_port: bound.port, remote_port },
        route: Route { mtu, ..route },
        ip,
        looped,
        checksum: !datagram.no_checksum || remote.is_ipv6(),
    })
}

pub(crate) fn udp_ip(ttl: Option<u8>, tos: u8, fragmenting: Fragmenting) -> Ip {
    Ip { protocol: IpProtocol::UDP.0, ttl, tos, fragmenting, flow_label: 0 }
}
