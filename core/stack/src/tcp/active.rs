//! Active opens of TCP connections: connect(2).

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use towpath_tcp::{Connection, Instant};
use towpath_wire::addr;

use crate::error::ConnectError;
use crate::host::{Family, Host, SocketId};
use crate::net::{IfaceId, Route};
use crate::ports::binds::PortUse;
use crate::settings::StreamSettings;
use crate::socket::{BoundAddr, SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};
use crate::tcp::fast_open::Beginning;
use crate::tcp::path::TcpPath;
use crate::tcp::stream::StreamSocket;

/// A connection that this host opens, before its SYN is sent.
struct ActiveOpen {
    connection: Connection,
    path: TcpPath,
    beginning: Beginning,
}

impl<H: Host> Stack<H> {
    /// Returns whether a connect to `ip` stays on this host. Returns true for an address of this
    /// host, possibly IPv4-mapped, and for the unspecified address.
    pub fn is_near(&self, ip: IpAddr) -> bool {
        self.net.is_local(loopback_if_unspecified(ip.to_canonical()))
    }

    /// Opens a connection from a stream socket, bound or not. The event `Connected` or `Error`
    /// reports the result. The buffers exist as long as the socket. Bytes that are already in
    /// `send` are sent after the handshake. As on Linux, the unspecified address means loopback.
    ///
    /// # Errors
    /// See [`ConnectError`]. After an error the buffers are dropped, and the socket is unchanged.
    pub fn connect(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
        recv: H::Recv,
        send: H::Send,
    ) -> Result<(), ConnectError> {
        self.begin_connect(now, id, remote, (recv, send), false).map(drop)
    }

    /// Like [`Stack::connect`], with Fast Open (RFC 7413). Returns true if the SYN is sent only
    /// when there are bytes to send, or [`Stack::shutdown_send`] is called. Returns false if no
    /// Fast Open cookie of the server is known; the SYN then requests a cookie.
    ///
    /// # Errors
    /// Same as for [`Stack::connect`].
    pub fn connect_fast_open(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
        recv: H::Recv,
        send: H::Send,
    ) -> Result<bool, ConnectError> {
        self.begin_connect(now, id, remote, (recv, send), true)
    }

    fn begin_connect(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
        buffers: (H::Recv, H::Send),
        fast_open: bool,
    ) -> Result<bool, ConnectError> {
        self.catch_up();
        let index = self.index(id).ok_or(ConnectError::Invalid)?;
        let socket = self.sockets.get(index).ok_or(ConnectError::Invalid)?;
        let settings = match &socket.kind {
            SocketRole::Fresh(settings) => **settings,
            SocketRole::Stream(_) | SocketRole::EarlyAccept(_) => {
                return Err(ConnectError::Connected);
            }
            SocketRole::Listener(_) | SocketRole::Datagram(_) => return Err(ConnectError::Invalid),
        };
        let (family, bound) = (socket.family, socket.bound.as_deref().copied());
        let remote = canonical(remote, family).ok_or(ConnectError::Invalid)?;
        let iface = on_device(scope_of(&remote), settings.device).ok_or(ConnectError::Invalid)?;
        let remote_ip = loopback_if_unspecified(remote.ip());
        let source = bound.as_ref().and_then(BoundAddr::source);
        let route = self.route_to_host(now, source, remote_ip, iface)?;
        // Fail at once. Port 0 is reserved, so no host can listen on it (RFC 6335 §6), and this
        // stack treats segments with port 0 as malformed. Linux sends a SYN to port 0.
        if remote.port() == 0 {
            return Err(ConnectError::Refused);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# If an application on a multihomed host does not specify the local IP address when
        //# actively opening a TCP connection, then the TCP implementation MUST ask the IP layer to
        //# select a local IP address before sending the (first) SYN (MUST-44).
        let local = source.unwrap_or(route.src);
        let held = bound.filter(BoundAddr::has_port);
        let uses_port = held.is_none().then_some(settings.binding.sharing());
        let local_port = match held {
            Some(bound) => bound.port,
            None => {
                let remote = SocketAddr::new(remote_ip, remote.port());
                self.choose_tcp_port(now, local, remote, uses_port, settings.binding.ports)?
            }
        };
        let flow = Flow { local, remote: remote_ip, local_port, remote_port: remote.port() };
        let opened = self.open_connection(now, flow, &route, iface, &settings, fast_open);
        if opened.is_err() {
            self.ports.end_use(local_port, PortUse { local, sharing: uses_port });
        }
        let ActiveOpen { connection, path, beginning } = opened?;
        if held.is_some() {
            // Keep the socket bound to its port, but restrict it to the local address of the
            // connection.
            self.ports.tcp.narrow(local_port, index, local);
        }
        if let Some(socket) = self.sockets.get_mut(index) {
            let (recv, send) = buffers;
            let stream = StreamSocket::new(now, flow, connection, &settings, iface, recv, send);
            let stream = StreamSocket { path: Some(path), uses_port, ..stream };
            socket.kind = SocketRole::Stream(Box::new(stream));
        }
        self.flows.insert(self.keys.table.ends(&flow), FlowRef::Socket(index));
        self.shards.claim(index, SocketId(self.sockets.id(index)), flow);
        self.fast_opens.opens(index, beginning);
        self.ended.forget(index);
        self.mark_dirty(index);
        Ok(matches!(beginning, Beginning::WithBytes(..)))
    }

    /// Opens a connection from any address and port, for a gateway that connects on behalf of other
    /// hosts. No port is bound; only the 4-tuple must be unused. If the port is 0, an ephemeral
    /// port is chosen.
    ///
    /// # Errors
    /// See [`ConnectError`]. After an error the buffers are dropped, no socket exists, and no event
    /// for `user` follows.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        user: u32,
        recv: H::Recv,
        send: H::Send,
    ) -> Result<SocketId, ConnectError> {
        self.catch_up();
        if self.sockets.len() >= self.config.sockets_max {
            return Err(ConnectError::TooMany);
        }
        let family = if local.is_ipv4() { Family::V4 } else { Family::V6 };
        let valid =
            remote.port() != 0 && addr::is_unicast(remote.ip()) && addr::is_unicast(local.ip());
        if !valid || local.is_ipv4() != remote.is_ipv4() {
            return Err(ConnectError::Invalid);
        }
        let iface = scope_of(&remote);
        let route = self.net.route_to_keep(now, Some(local.ip()), remote.ip(), iface)?;
        let local_port = match local.port() {
            0 => self.choose_tcp_port(now, local.ip(), remote, None, (0, 0))?,
            port => port,
        };
        let flow =
            Flow { local: local.ip(), remote: remote.ip(), local_port, remote_port: remote.port() };
        let settings = StreamSettings::new(self.config.tcp);
        let opened = self.open_connection(now, flow, &route, iface, &settings, false)?;
        let stream = StreamSocket::new(now, flow, opened.connection, &settings, iface, recv, send);
        let kind = SocketRole::Stream(Box::new(StreamSocket { path: Some(opened.path), ..stream }));
        let index = self.sockets.insert(StackSocket::new(user, family, kind));
        self.flows.insert(self.keys.table.ends(&flow), FlowRef::Socket(index));
        self.shards.claim(index, SocketId(self.sockets.id(index)), flow);
        self.mark_dirty(index);
        Ok(SocketId(self.sockets.id(index)))
    }

    /// Returns the route to an address, which must be that of a single host.
    fn route_to_host(
        &mut self,
        now: Instant,
        source: Option<IpAddr>,
        remote: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<Route, ConnectError> {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# A TCP implementation MUST reject as an error a local OPEN call for an invalid remote IP
        //# address (e.g., a broadcast or multicast address) (MUST-46).
        if !addr::is_unicast(remote) {
            return Err(ConnectError::NetUnreachable);
        }
        match self.net.route_to_keep(now, source, remote, iface)? {
            Route { broadcast: true, .. } => Err(ConnectError::NetUnreachable),
            route => Ok(route),
        }
    }

    /// Creates the connection of a flow, which no other connection may use.
    fn open_connection(
        &mut self,
        now: Instant,
        flow: Flow,
        route: &Route,
        iface: Option<IfaceId>,
        settings: &StreamSettings,
        fast_open: bool,
    ) -> Result<ActiveOpen, ConnectError> {
        let hash = self.keys.table.ends(&flow);
        let mut iss_min = None;
        match self.find_flow(hash, &flow) {
            None => {}
            // An earlier connection of this host with the same addresses and ports has been in
            // TIME-WAIT long enough to be replaced.
            Some(FlowRef::TimeWait(at)) if self.time_waits.is_reusable(now, at) => {
                iss_min = self.time_waits.get(at).map(|entry| entry.state.iss_min());
                self.counters.tcp_time_wait_reused += 1;
                self.succeed_time_wait(at);
            }
            Some(_) => return Err(ConnectError::AddrInUse),
        }
        self.counters.tcp_connects += 1;
        let iss = self.initial_sequence(now, &flow, iss_min);
        let config = settings.for_flow(now, &flow, iface, &self.net, &self.config.tcp);
        self.paths.follow(&mut self.net);
        let path = self.paths.shrink(route, &self.net);
        let offset = self.timestamp_offset(&flow);
        let (connection, beginning) = match fast_open {
            true => self.fast_opens.connect(now, &flow, config, iss, offset),
            false => (Connection::connect(config, iss, offset, now), Beginning::Plain),
        };
        Ok(ActiveOpen { connection, path, beginning })
    }
}

/// Converts an address to the form that the stack uses: an IPv4-mapped address is converted to
/// IPv4. Returns `None` if a socket of the family `family` cannot have this address.
pub(crate) fn canonical(addr: SocketAddr, family: Family) -> Option<SocketAddr> {
    match (addr, family) {
        (SocketAddr::V4(_), _) => Some(addr),
        (SocketAddr::V6(_), Family::V4) => None,
        (SocketAddr::V6(v6), Family::V6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => Some(SocketAddr::new(v4.into(), v6.port())),
            None => Some(addr),
        },
    }
}

/// Returns the interface that the scope id of a link-local address specifies. A scope id is the
/// interface number plus 1; 0 means none (RFC 3493 §3.3). As on Linux, the scope ids of other
/// addresses are ignored.
pub fn scope_of(addr: &SocketAddr) -> Option<IfaceId> {
    match addr {
        SocketAddr::V6(v6) if is_on_link(*v6.ip()) => {
            u16::try_from(v6.scope_id()).ok()?.checked_sub(1).map(IfaceId)
        }
        _ => None,
    }
}

/// Returns the address with the scope id of the interface, if it needs one. Inverse of
/// [`scope_of`].
pub(crate) fn with_scope(addr: SocketAddr, iface: IfaceId) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) if is_on_link(*v6.ip()) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), u32::from(iface.0) + 1).into()
        }
        _ => addr,
    }
}

/// Returns whether an address is unambiguous only together with an interface. Returns true for
/// link-local addresses, and for multicast groups of scope 1 and 2 (RFC 4291 §2.7).
pub fn is_on_link(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || matches!(addr::multicast_scope(ip), Some(1 | 2))
}

/// Returns the interface specified by a link-local address or by SO_BINDTODEVICE. Returns `None` if
/// both specify different interfaces.
pub(crate) fn on_device(
    scope: Option<IfaceId>,
    device: Option<IfaceId>,
) -> Option<Option<IfaceId>> {
    match (scope, device) {
        (Some(scope), Some(device)) if scope != device => None,
        (scope, device) => Some(scope.or(device)),
    }
}

/// Replaces the unspecified address by the loopback address, like Linux in connect(2).
pub(crate) fn loopback_if_unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(v6) if v6.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}
