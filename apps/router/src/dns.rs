//! The DNS service of a router: sockets for a [`DnsForwarder`].
//!
//! `clients` are TCP connections of clients, `upstream` the sockets towards upstream servers, and
//! `framing` the messages of TCP connections. Listening sockets are restricted to the interfaces of
//! the service, so that hosts behind other ports cannot use the forwarder.

mod clients;
mod framing;
mod upstream;

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_direct::{
    BufferSizes, DatagramOptions, DirectConfig, NodeEvent, PrivateSockets, SetUpError,
    SocketHandle, StreamOptions,
};
use towpath_engine::Service;
use towpath_nameserver::{DnsAction, DnsClient, DnsForwarder, LeasedName, ReplyPath};
use towpath_stack::IfaceId;
use towpath_tcp::Instant;

use clients::StreamClients;
use upstream::UpstreamSockets;

/// Maximum number of sockets of the service: those of listeners, clients and upstream servers.
const SOCKETS_MAX: usize = 2048;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 64;
/// Buffer sizes of connections: DNS messages are short, and longer ones are read in parts.
const BUFFERS: BufferSizes =
    BufferSizes { recv: 16 << 10, recv_max: 16 << 10, send: 16 << 10, send_max: 64 << 10 };
/// Maximum number of bytes of queries that wait in a UDP socket, so that one event handles a few
/// hundred queries at most.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// Forwarder with the state that other threads read.
#[derive(Debug)]
struct DnsState {
    forwarder: DnsForwarder,
    /// Number of interfaces with listening sockets.
    listening: u64,
    /// Number of open TCP connections of clients.
    streams: u64,
    /// Number of refused TCP connections of clients.
    streams_refused: u64,
}

/// State of a service that its controls share.
#[derive(Debug)]
struct SharedDns {
    state: Mutex<DnsState>,
    /// Interfaces on which the service must stop to listen.
    left: Mutex<Vec<IfaceId>>,
    /// Whether `left` is not empty. Read in each turn of the event loop, without a lock.
    has_left: AtomicBool,
}

/// Controls the DNS service of a running router from other threads.
#[derive(Debug, Clone)]
pub struct DnsControl(Arc<SharedDns>);

impl DnsControl {
    /// Creates the control of a service with this forwarder.
    pub fn new(forwarder: DnsForwarder) -> Self {
        let state =
            Mutex::new(DnsState { forwarder, listening: 0, streams: 0, streams_refused: 0 });
        let (left, has_left) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(SharedDns { state, left, has_left }))
    }

    /// Sets the upstream servers, in order of preference.
    pub fn set_servers(&self, servers: &[SocketAddr]) {
        self.lock().forwarder.set_servers(servers);
    }

    /// Replaces the names of DHCP leases.
    pub fn set_leases(&self, leases: Vec<LeasedName>) {
        self.lock().forwarder.set_leases(leases);
    }

    /// Removes all answers from the cache, and returns their number.
    pub fn flush(&self) -> usize {
        self.lock().forwarder.flush()
    }

    /// Stops to listen on an interface that was removed. Otherwise the hosts of a later interface
    /// with the same number could use the forwarder.
    pub fn leave(&self, iface: IfaceId) {
        self.0.left.lock().unwrap_or_else(PoisonError::into_inner).push(iface);
        self.0.has_left.store(true, Release);
    }

    /// Returns the counters and sizes, with their names.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let state = self.lock();
        let sockets = [
            ("listening", state.listening),
            ("tcp_clients", state.streams),
            ("tcp_refused", state.streams_refused),
        ];
        let forwarder = &state.forwarder;
        let counters = forwarder.counters().list().into_iter();
        counters.chain(forwarder.sizes()).chain(sockets).collect()
    }

    fn lock(&self) -> MutexGuard<'_, DnsState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the interfaces of [`Self::leave`].
    fn take_left(&self) -> Vec<IfaceId> {
        if !self.0.has_left.load(Acquire) {
            return Vec::new();
        }
        self.0.has_left.store(false, Relaxed);
        std::mem::take(&mut *self.0.left.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Listening sockets on an interface.
#[derive(Debug, Clone, Copy)]
struct ListeningSockets {
    /// Interface of the sockets; `None` if they are closed. A later interface may have its number.
    iface: Option<IfaceId>,
    datagram: SocketHandle,
    stream: SocketHandle,
}

/// A DNS forwarder on the sockets of a router.
#[derive(Debug)]
pub struct DnsService {
    control: DnsControl,
    interfaces: Vec<IfaceId>,
    port: u16,
    /// Listening sockets, including closed ones. Clients know them by their index.
    listening: Vec<ListeningSockets>,
    clients: StreamClients,
    upstream: UpstreamSockets,
    /// Time at which the service must be called.
    due: Option<Instant>,
}

impl DnsService {
    /// Creates the service for the clients on these interfaces.
    pub fn new(control: DnsControl, interfaces: Vec<IfaceId>, port: u16) -> Self {
        Self {
            control,
            interfaces,
            port,
            listening: Vec::new(),
            clients: StreamClients::default(),
            upstream: UpstreamSockets::default(),
            due: None,
        }
    }

    /// Passes datagrams of clients to the forwarder.
    fn read_queries(&self, state: &mut DnsState, socket: usize, sockets: &mut dyn PrivateSockets) {
        while let Some(datagram) = sockets.recv_from(self.listening[socket].datagram) {
            let (remote, local) = (datagram.meta.remote, datagram.meta.local.ip());
            let client = DnsClient { remote, path: ReplyPath::Datagram { socket, local } };
            state.forwarder.on_query(sockets.now(), client, &datagram.bytes);
            sockets.recycle(datagram.bytes);
        }
    }

    /// Carries out the actions of the forwarder.
    fn act(&mut self, state: &mut DnsState, sockets: &mut dyn PrivateSockets) {
        let forwarder = &mut state.forwarder;
        while let Some(action) = forwarder.poll_action() {
            match action {
                DnsAction::Reply { client, message } => match client.path {
                    ReplyPath::Datagram { socket, local } => {
                        // Ignore errors: a lost reply is repeated at the client's request.
                        let socket = self.listening[socket].datagram;
                        let _ = sockets.send_from(socket, local, client.remote, &message);
                    }
                    ReplyPath::Stream(stream) => self.clients.reply(stream, &message, sockets),
                },
                DnsAction::Send { exchange, server, protocol, port, message } => {
                    let opened = self.upstream.open(exchange, server, protocol, port, sockets);
                    let sent = opened
                        .and_then(|socket| self.upstream.send(socket, server, message, sockets));
                    if sent.is_none() {
                        forwarder.on_failure(sockets.now(), exchange);
                    }
                }
                DnsAction::Close { exchange } => self.upstream.close(exchange, sockets),
            }
        }
        state.streams = self.clients.len() as u64;
        let timeouts = [forwarder.next_timeout(), self.clients.next_timeout()];
        self.due = timeouts.into_iter().flatten().min();
    }

    fn handle(&mut self, event: NodeEvent, state: &mut DnsState, sockets: &mut dyn PrivateSockets) {
        match event {
            NodeEvent::Incoming(listener) => {
                while let Some(socket) = sockets.accept(listener) {
                    let is_added = self.clients.add(socket, sockets);
                    state.streams_refused += u64::from(!is_added);
                }
            }
            NodeEvent::Readable(socket) => self.read(socket, state, sockets),
            NodeEvent::Connected(socket) | NodeEvent::Writable(socket) => {
                self.upstream.flush(socket, sockets);
                self.clients.flush(socket, sockets);
            }
            NodeEvent::PeerClosed(socket) => {
                self.read(socket, state, sockets);
                self.upstream.end(socket, &mut state.forwarder, sockets.now());
                self.clients.end(socket, sockets);
            }
            NodeEvent::Failed(socket, _) => {
                self.upstream.end(socket, &mut state.forwarder, sockets.now());
                self.clients.abort(socket, &mut state.forwarder, sockets);
            }
            NodeEvent::Closed(socket) => self.clients.on_closed(socket),
            _ => {}
        }
    }

    fn read(
        &mut self,
        socket: SocketHandle,
        state: &mut DnsState,
        sockets: &mut dyn PrivateSockets,
    ) {
        if let Some(place) = self.listening.iter().position(|it| it.datagram == socket) {
            self.read_queries(state, place, sockets);
        } else if self.clients.has(socket) {
            self.clients.read(socket, &mut state.forwarder, sockets);
        } else {
            self.upstream.read(socket, &mut state.forwarder, sockets);
        }
    }
}

impl Service for DnsService {
    fn limits(&self) -> DirectConfig {
        DirectConfig {
            sockets_max: SOCKETS_MAX,
            buffers: BUFFERS,
            datagram_bytes_max: DATAGRAM_BYTES_MAX,
            ..DirectConfig::default()
        }
    }

    fn start(&mut self, sockets: &mut dyn PrivateSockets) -> Result<(), SetUpError> {
        // The sockets receive IPv4 as well.
        let local = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), self.port);
        for iface in &self.interfaces {
            let device = Some(*iface);
            let options = DatagramOptions { device, ..DatagramOptions::default() };
            let datagram = sockets.udp_with(local, &options)?;
            let options = StreamOptions { device, nodelay: true, ..StreamOptions::default() };
            let stream = sockets.listen_with(local, BACKLOG, &options)?;
            self.listening.push(ListeningSockets { iface: device, datagram, stream });
        }
        self.control.lock().listening = self.listening.len() as u64;
        Ok(())
    }

    fn on_event(&mut self, event: NodeEvent, sockets: &mut dyn PrivateSockets) {
        let control = self.control.clone();
        let mut state = control.lock();
        self.handle(event, &mut state, sockets);
        self.act(&mut state, sockets);
    }

    fn on_turn(&mut self, now: Instant, sockets: &mut dyn PrivateSockets) -> bool {
        for iface in self.control.take_left() {
            let known = self.listening.iter_mut().find(|it| it.iface == Some(iface));
            let Some(closed) = known else { continue };
            closed.iface = None;
            sockets.close(closed.datagram);
            sockets.close(closed.stream);
            self.control.lock().listening -= 1;
        }
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        let control = self.control.clone();
        let mut state = control.lock();
        state.forwarder.on_timeout(now);
        self.clients.on_timeout(&mut state.forwarder, sockets);
        self.act(&mut state, sockets);
        true
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.due
    }
}
