//! Choice and release of local ports. The rules of conflicting binds are in `holds`.

use std::net::{IpAddr, SocketAddr};

use towpath_tcp::Instant;

use crate::error::{BindError, ConnectError, OptionError, SendError};
use crate::host::{BindOptions, Family, Host, SocketId};
use crate::ports::bind_addr::{BindAddr, PortProtocol, Sharing};
use crate::ports::binds::PortUse;
use crate::ports::ephemeral::PortChoice;
use crate::ports::holds::PortHolder;
use crate::ports::local::PortPass;
use crate::socket::{BoundAddr, SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};
use crate::tcp::active::canonical;

impl<H: Host> Stack<H> {
    /// Binds a socket to a local address, by the rules of Linux. Port 0 chooses a port of
    /// [`StackConfig::ephemeral`]. Returns the address with the port. For ICMP echo sockets, the
    /// port is the echo identifier.
    ///
    /// # Errors
    /// [`BindError::AddrInUse`] if the address is in use, or if no port is free. The socket is
    /// unchanged after an error.
    ///
    /// [`StackConfig::ephemeral`]: crate::StackConfig::ephemeral
    pub fn bind(
        &mut self,
        id: SocketId,
        addr: SocketAddr,
        options: BindOptions,
    ) -> Result<SocketAddr, BindError> {
        self.catch_up();
        let index = self.index(id).ok_or(BindError::Invalid)?;
        let socket = self.sockets.get(index).ok_or(BindError::Invalid)?;
        let (table, connected) = match &socket.kind {
            SocketRole::Fresh(_) => (PortProtocol::Tcp, false),
            // A socket whose connection has ended may be bound again. If the stack chose its
            // earlier port, that port was released when the connection ended.
            SocketRole::Stream(stream) => (PortProtocol::Tcp, stream.connection.is_some()),
            SocketRole::Datagram(datagram) => (datagram.table(), datagram.peer.is_some()),
            _ => return Err(BindError::Invalid),
        };
        if socket.has_port() || connected || socket.orphan {
            return Err(BindError::Invalid);
        }
        let device = socket.device();
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# The optional "local IP address" parameter MUST be supported to allow the specification
        //# of the local IP address (MUST-43).
        let addr = canonical(addr, socket.family).ok_or(BindError::Invalid)?;
        let bind_addr = self.bind_addr(addr, socket.family, table, &options)?;
        let sharing = options.sharing();
        let holder =
            PortHolder { socket: index, addr: bind_addr, sharing, listening: false, device };
        let is_port_named = addr.port() != 0;
        let mut held = None;
        let mut hold = |stack: &mut Self| {
            let port = match addr.port() {
                0 => stack.hold_any(table, &holder, options.ports),
                port => stack.ports.of(table).try_hold(port, &holder).then_some(port),
            };
            let Some(port) = port else { return false };
            if table != PortProtocol::Tcp {
                let receivers = &mut stack.ports.of_mut(table).receivers;
                receivers.insert(bind_addr, port, index, device, sharing);
                receivers.set_processor(bind_addr, port, index, options.processor);
            }
            let bound = BoundAddr { addr: bind_addr, port, is_port_named, options };
            held = Some(bound);
            if let Some(socket) = stack.sockets.get_mut(index) {
                socket.bound = Some(Box::new(bound));
                socket.forget_target();
            }
            true
        };
        match table {
            // A TCP socket receives no packets before it listens, so the other shards (stacks) need
            // not be notified of its bind.
            PortProtocol::Tcp => _ = hold(self),
            PortProtocol::Udp | PortProtocol::Echo => {
                self.in_order(table, index, addr.port(), hold)
            }
        }
        held.map(|bound| bound.socket_addr()).ok_or(BindError::AddrInUse)
    }

    fn bind_addr(
        &self,
        addr: SocketAddr,
        family: Family,
        table: PortProtocol,
        options: &BindOptions,
    ) -> Result<BindAddr, BindError> {
        let ip = addr.ip();
        if ip.is_unspecified() {
            return Ok(match (family, ip.is_ipv4()) {
                (_, true) => BindAddr::AnyV4,
                (_, false) if options.v6_only => BindAddr::AnyV6,
                (_, false) => BindAddr::AnyDual,
            });
        }
        if family == Family::V6 && ip.is_ipv4() && options.v6_only {
            return Err(BindError::Invalid);
        }
        // Only UDP sockets can be bound to a multicast group or a broadcast address.
        let group = ip.is_multicast() || self.net.is_broadcast(ip);
        match table {
            PortProtocol::Udp if group => return Ok(BindAddr::Ip(ip)),
            PortProtocol::Echo if ip.is_multicast() && ip.is_ipv6() => {
                return Err(BindError::Invalid);
            }
            PortProtocol::Echo if group => return Err(BindError::AddrNotAvailable),
            _ => {}
        }
        if options.free_bind || self.net.is_local(ip) {
            return Ok(BindAddr::Ip(ip));
        }
        Err(BindError::AddrNotAvailable)
    }

    /// Moves the bind of a stream socket to a new socket that replaces it. If the old socket has a
    /// connection or listens, and the stack chose its port, the port is released instead, as on
    /// Linux.
    pub fn hand_over(&mut self, from: SocketId, to: SocketId) {
        let (Some(from), Some(to)) = (self.index(from), self.index(to)) else { return };
        let Some(socket) = self.sockets.get(from) else { return };
        let ends = match &socket.kind {
            SocketRole::Listener(_) => {
                self.stop_listening(from);
                true
            }
            SocketRole::Stream(stream) => stream.connection.is_some(),
            _ => false,
        };
        if ends {
            self.free_chosen_port(from);
        }
        let Some(bound) = self.sockets.get_mut(from).and_then(|socket| socket.bound.take()) else {
            return;
        };
        if bound.has_port() {
            let sharing = bound.options.sharing();
            let holder = PortHolder {
                socket: to,
                addr: bound.addr,
                sharing,
                listening: false,
                device: None,
            };
            self.ports.tcp.hand_over(bound.port, from, &holder);
        }
        if let Some(socket) = self.sockets.get_mut(to) {
            socket.bound = Some(bound);
        }
    }

    /// Removes a listener from the sockets that receive connections.
    pub(crate) fn stop_listening(&mut self, index: u32) {
        let socket = self.sockets.get(index);
        let Some(socket) = socket.filter(|it| matches!(it.kind, SocketRole::Listener(_))) else {
            return;
        };
        let Some(BoundAddr { addr, port, .. }) = socket.bound.as_deref().copied() else { return };
        self.in_order(PortProtocol::Tcp, index, port, |stack| {
            stack.ports.tcp.receivers.remove(addr, port, index);
            false
        });
    }

    /// Releases the port of a socket whose connection has ended, if the stack chose the port, as on
    /// Linux. If the program specified a local address, the address is kept.
    pub(crate) fn free_chosen_port(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let table = socket.kind.table();
        let Some(bound) = socket.bound.as_deref_mut().filter(|bound| !bound.is_port_named) else {
            return;
        };
        let (addr, port) = (bound.addr, std::mem::take(&mut bound.port));
        if !matches!(addr, BindAddr::Ip(_)) {
            socket.bound = None;
        }
        socket.forget_target();
        if table == PortProtocol::Tcp {
            return self.ports.tcp.release(port, index);
        }
        self.in_order(table, index, port, |stack| {
            let binds = stack.ports.of_mut(table);
            binds.receivers.remove(addr, port, index);
            binds.release(port, index);
            false
        });
    }

    /// Sets the bind options of a socket. As on Linux, a bind of another socket is checked against
    /// the current options of a bound socket. The options at the time of its own bind do not
    /// matter.
    pub(crate) fn set_binding(
        &mut self,
        index: u32,
        options: BindOptions,
    ) -> Result<(), OptionError> {
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        let sharing = options.sharing();
        match &mut socket.kind {
            SocketRole::Fresh(settings) => settings.binding = options,
            SocketRole::Listener(listener) => listener.settings.binding = options,
            SocketRole::Datagram(datagram) => datagram.binding = options,
            SocketRole::Stream(stream) => {
                if let Some(before) = &mut stream.uses_port {
                    let before = std::mem::replace(before, sharing);
                    let Flow { local, local_port, .. } = stream.flow;
                    self.ports.tcp.use_port(local_port, local, sharing);
                    self.ports.tcp.unuse_port(local_port, local, before);
                }
            }
            SocketRole::EarlyAccept(_) => return Err(OptionError::NotApplicable),
        }
        let table = socket.kind.table();
        let Some(bound) = socket.bound.as_deref_mut() else { return Ok(()) };
        bound.options.reuse_addr = options.reuse_addr;
        bound.options.reuse_port = options.reuse_port;
        bound.options.processor = options.processor;
        let (addr, port) = (bound.addr, bound.port);
        self.in_order(table, index, port, |stack| {
            let binds = stack.ports.of_mut(table);
            binds.change(port, index, |holder| holder.sharing = sharing);
            binds.receivers.set_reuse_port(addr, port, index, sharing.reuse_port);
            binds.receivers.set_processor(addr, port, index, options.processor);
            stack.sockets.get(index).and_then(StackSocket::receiver).is_some()
        });
        Ok(())
    }

    /// Chooses a local port for a connection. No socket is bound to the port, and it has no
    /// connection to the same peer. With `sharing`, the connection is counted as a user of the
    /// port. `range` is [`BindOptions::ports`].
    pub(crate) fn choose_tcp_port(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
        sharing: Option<Sharing>,
        range: (u16, u16),
    ) -> Result<u16, ConnectError> {
        let hash = self.keys.ports.path(local, remote);
        let flow_from = |local_port| Flow {
            local,
            remote: remote.ip(),
            local_port,
            remote_port: remote.port(),
        };
        let is_allowed = |local_port, pass: PortPass| {
            let flow = flow_from(local_port);
            let ends = self.keys.table.ends(&flow);
            let claims_shared = !pass.vacant && !pass.home;
            self.shards.is_home(&flow) == pass.home
                && match self.find_flow(ends, &flow) {
                    None => !claims_shared || self.ports.tcp.take_time_wait(local_port, ends, now),
                    // The search tries a port again only after all other ports. The first port in
                    // TIME-WAIT that it finds has therefore been in TIME-WAIT for the longest time.
                    Some(FlowRef::TimeWait(at)) => {
                        self.time_waits.is_reusable(now, at)
                            && self.ports.tcp.keep_time_wait(local_port, ends)
                    }
                    Some(_) => false,
                }
        };
        // With several shards (stacks), the first pass tries ports with which the flow belongs to
        // this shard. The second pass tries ports without connections with which the flow belongs
        // to another shard. The third pass tries ports that have other connections. The last pass
        // tries flows that other shards have in TIME-WAIT.
        let pass = |vacant, home| PortPass { vacant, home };
        let passes: &[PortPass] = match self.shards.is_alone() {
            true => &[pass(false, true)],
            false => &[pass(true, true), pass(true, false), pass(false, true), pass(false, false)],
        };
        let user = PortUse { local, sharing };
        let mut ephemeral = self.ports.ephemeral.within(range);
        let chosen = self.ports.choose(&mut ephemeral, hash, user, passes, is_allowed);
        self.ports.ephemeral.follow(&ephemeral);
        self.count_choice(chosen).ok_or(ConnectError::NoPort)
    }

    fn count_choice(&mut self, PortChoice { port, tried }: PortChoice) -> Option<u16> {
        self.counters.ports_probed += u64::from(tried);
        self.counters.ports_exhausted += u64::from(port.is_none());
        port
    }

    /// Chooses a free port, and binds a socket to it.
    fn hold_any(
        &mut self,
        table: PortProtocol,
        holder: &PortHolder,
        range: (u16, u16),
    ) -> Option<u16> {
        // Each shard (stack) tries the ports in a different order. A port that one shard releases
        // is therefore not reused by another shard at once.
        let shard = self.shards.number();
        let hash = self.keys.ports.addr(IpAddr::from([0, 0, 0, shard]), holder.socket);
        let chosen = self.ports.hold_any(table, holder, range, hash);
        self.count_choice(chosen)
    }

    /// Returns whether a socket or connection uses `port` at any address. Only sockets of the same
    /// protocol as `id` are considered.
    pub fn is_port_taken(&self, id: SocketId, port: u16) -> bool {
        let socket = self.index(id).and_then(|index| self.sockets.get(index));
        let table = socket.map(|socket| match &socket.kind {
            SocketRole::Datagram(datagram) => datagram.table(),
            _ => PortProtocol::Tcp,
        });
        table.is_some_and(|table| self.ports.of(table).is_taken(port))
    }

    /// Chooses a port for an unbound socket that sends, connects or listens. If an earlier bind set
    /// the local address, the address is kept; otherwise it is the wildcard.
    pub(crate) fn auto_bind(&mut self, id: SocketId) -> Result<(), SendError> {
        let socket = self.index(id).and_then(|index| self.sockets.get(index));
        let socket = socket.ok_or(SendError::Invalid)?;
        if socket.has_port() {
            return Ok(());
        }
        let options = match &socket.kind {
            SocketRole::Fresh(settings) => settings.binding,
            SocketRole::Datagram(datagram) => datagram.binding,
            _ => return Err(SendError::Invalid),
        };
        let ip = match (socket.bound.as_deref(), socket.family) {
            (Some(bound), _) => bound.ip(),
            (None, Family::V4) => IpAddr::from([0; 4]),
            (None, Family::V6) => IpAddr::from([0; 16]),
        };
        match self.bind(id, SocketAddr::new(ip, 0), options) {
            Ok(_) => Ok(()),
            Err(BindError::AddrInUse) => Err(SendError::NoPort),
            Err(_) => Err(SendError::Invalid),
        }
    }
}
