//! Gateway: its own TCP/IP stack (the inner stack), host sockets, and a port towards the program's
//! stack.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};
use towpath_ring::Payload;
use towpath_stack::net::{IcmpError, InterfaceConfig};
use towpath_stack::{
    Budget, DatagramMeta, EchoMeta, Host, Owners, PendingId, SocketEvent, SocketId, Stack,
    StackConfig,
};
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use crate::budget::{FlowBudget, FlowsMax};
use crate::config::{Forward, ForwardError, GatewayConfig};
use crate::context::{Context, Shared};
use crate::counters::Counters;
use crate::dialer::Upstream;
use crate::dns::Forwarder;
use crate::echo::EchoFlows;
use crate::events::{EventList, Token};
use crate::fifo::{FromProgram, ToProgram};
use crate::forward::Forwards;
use crate::icmp::Errors;
use crate::limits::{EVENTS_MAX, LINK_PACKETS_MAX, LISTEN_EVERY_NS, ROUNDS_MAX};
use crate::link::{LINK, Link};
use crate::listeners::{Bound, Opened};
use crate::notice::Notice;
use crate::outer::Outer;
use crate::show::{self, FlowEntry};
use crate::siblings::Place;
use crate::tcp::TcpFlows;
use crate::udp::UdpFlows;

/// Connects a program's stack to the host's network, and is a [`Port`] of that stack. See the
/// [crate].
///
/// [`Port::submit`] passes packets to the inner stack before it returns, so that their references
/// to FIFO memory of the program are dropped.
pub struct Gateway {
    stack: Stack<GatewayHost>,
    host: GatewayHost,
    ports: [Box<dyn Port + Send>; 1],
    link: Link,
    outer: Outer,
    /// Whether the inner stack has received input, so that its event loop must run again.
    unsettled: bool,
    /// Whether more epoll events of the host sockets may be pending than the last call returned.
    unheard: bool,
    /// Whether the gateway's epoll descriptor was ready, as reported by the last call of
    /// [`Port::looked`]. `None` if unknown.
    seen: Option<bool>,
    /// Time in ns at which the host sockets were last polled, or last reported to have no events.
    listened_ns: u64,
}

/// Callbacks of the inner stack: a table of flows for each protocol.
struct GatewayHost {
    shared: Shared,
    tcp: TcpFlows,
    udp: UdpFlows,
    echo: EchoFlows,
    dns: Forwarder,
    forwards: Forwards,
}

/// Duration of TIME-WAIT, in which old segments of a connection expire in the network (RFC 9293
/// §3.3.2). The in-memory link neither delays nor duplicates packets, so any time longer than a
/// turn of the event loop suffices.
const TIME_WAIT: Duration = Duration::from_secs(1);

/// Maximum length in bytes of the IP and TCP headers of a packet without data. IPv6 extension
/// headers are neglected.
const HEADERS_LEN_MAX: usize = 120;

impl Gateway {
    /// Creates a gateway without forwarded ports for a single stack. `now_ns` is the time of the
    /// clock used in later calls.
    ///
    /// # Errors
    /// Returns an error if no descriptor or no thread for watching resolv.conf can be created.
    pub fn new(config: GatewayConfig, now_ns: u64) -> io::Result<Self> {
        Self::on(Outer::IN_MEMORY, &config, now_ns)
    }

    /// Creates a gateway for the kind of link that `outer` describes.
    ///
    /// # Errors
    /// Same as [`Gateway::new`].
    pub fn on(outer: Outer, config: &GatewayConfig, now_ns: u64) -> io::Result<Self> {
        let max = FlowsMax::new(config.descriptors);
        let places = vec![Place::alone(FlowBudget::new(&max))];
        let mut one = Self::at(outer, config, max, places, now_ns)?;
        one.pop().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Creates one gateway for each shard of a stack, in shard order; `owners` assigns flows to
    /// shards. Each may run on its own thread. All of them together have the limits of a single
    /// gateway.
    ///
    /// # Errors
    /// Same as [`Gateway::new`].
    pub fn shards(config: &GatewayConfig, owners: Owners, now_ns: u64) -> io::Result<Vec<Self>> {
        let max = FlowsMax::new(config.descriptors);
        let places = Place::all(owners, FlowBudget::new(&max))?;
        Self::at(Outer::IN_MEMORY, config, max, places, now_ns)
    }

    fn at(
        outer: Outer,
        config: &GatewayConfig,
        max: FlowsMax,
        places: Vec<Place>,
        now_ns: u64,
    ) -> io::Result<Vec<Self>> {
        let max = max.of_one_of(places.len());
        let shared = Shared::all(config, places, !outer.in_process, now_ns)?;
        Ok(shared.into_iter().map(|shared| Self::one(outer, shared, max)).collect())
    }

    fn one(outer: Outer, shared: Shared, max: FlowsMax) -> Self {
        let mut stack_config = StackConfig::default();
        // Disable Nagle's algorithm in the inner stack. The program's stack has already applied it,
        // so a second application would only add delay.
        stack_config.tcp.nodelay = true;
        if outer.in_process {
            stack_config.tcp.time_wait = TIME_WAIT;
        }
        stack_config.tcp.keepalive = shared.config.keepalive();
        // Each SYN that is not answered yet uses a flow and a descriptor. Limit such SYNs to half
        // of the flows, so that they cannot use up all of them.
        let pending_max = max.tcp / shared.place.count() / 2;
        stack_config.pending_max = stack_config.pending_max.min(pending_max).max(1);
        let now = Instant(shared.now_ns);
        let mut stack = Stack::new(stack_config, shared.config.seed, now);
        add_interface(&mut stack, outer.interface(&shared.config), now);
        let link = Link::new(outer);
        let dns = Forwarder::new(max.dns, shared.nameservers.timeout_ns(), &shared.config.seed);
        let siblings = Arc::clone(&shared.place.siblings);
        let echo = EchoFlows::new(max.echo, &shared.place, &shared.config.seed);
        let host = GatewayHost {
            shared,
            tcp: TcpFlows::new(stack.config().pending_max),
            udp: UdpFlows::new(max.udp, max.udp_clients, siblings),
            echo,
            dns,
            forwards: Forwards::default(),
        };
        Self {
            stack,
            host,
            ports: [Box::new(link.clone())],
            link,
            outer,
            unsettled: false,
            unheard: false,
            seen: None,
            listened_ns: 0,
        }
    }

    /// Sets the callback for notices to the user; without it they are discarded.
    pub fn on_notice(&mut self, tell: impl Fn(Notice) + Send + 'static) {
        self.host.shared.tell = Box::new(tell);
    }

    /// Sets the upstream server through which new flows connect.
    pub fn set_upstream(&mut self, upstream: Upstream) {
        self.host.shared.dialer.upstream = upstream;
    }

    /// Listens on the host for all `forwards`. If one fails, listens for none. Returns the bound
    /// addresses in order, with the chosen port if 0 was requested.
    ///
    /// # Errors
    /// Returns the first address that could not be bound, and the cause.
    pub fn listen(&mut self, forwards: &[Forward]) -> Result<Vec<SocketAddr>, ForwardError> {
        Self::listen_all(std::slice::from_mut(self), forwards)
    }

    /// Same as [`Gateway::listen`] for the gateways of all shards of a stack.
    ///
    /// # Errors
    /// Same as [`Gateway::listen`].
    pub fn listen_all(
        gateways: &mut [Self],
        forwards: &[Forward],
    ) -> Result<Vec<SocketAddr>, ForwardError> {
        let bound = Bound::all(forwards)?;
        bound.iter().try_for_each(Bound::open)?;
        let places = bound.iter().map(|bound| bound.host).collect();
        Self::serve_bound(gateways, bound)?;
        Ok(places)
    }

    /// Serves already bound host sockets with the gateways of all shards of a stack. While a socket
    /// [refuses clients](Bound), its clients are not served.
    ///
    /// # Errors
    /// Returns the first socket that could not be watched because of insufficient memory.
    pub fn serve_bound(gateways: &mut [Self], bound: Vec<Bound>) -> Result<(), ForwardError> {
        let opened: Vec<_> = bound.into_iter().map(Opened::from).collect();
        for n in 0..gateways.len() {
            let GatewayHost { shared, forwards, .. } = &mut gateways[n].host;
            if let Err(error) = forwards.listeners.add(&shared.events, &shared.place, &opened) {
                for done in &mut gateways[..n] {
                    let listeners = &mut done.host.forwards.listeners;
                    listeners.truncate(listeners.len() - opened.len());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Resets up to `max` connections of the inner stack to its clients, and returns their number.
    /// [`Port::poll`] returns the reset segments.
    pub fn reset_clients(&mut self, now_ns: u64, pool: &mut Pool, max: usize) -> usize {
        let GatewayHost { shared, tcp, .. } = &mut self.host;
        shared.now_ns = now_ns;
        let now = Instant(now_ns);
        let stack = &mut self.stack;
        let on_link = self.link.queues().to_program.len();
        let mut cx = Context { now, stack, shared, on_link, pool, touched: false };
        let count = tcp.reset_clients(&mut cx, max);
        self.work(now, pool);
        count
    }

    /// Lowers the limit on TCP flows of all gateways of the host together. The default is
    /// [`TCP_FLOWS_MAX`](crate::limits::TCP_FLOWS_MAX) or the number that the process's descriptors
    /// allow.
    pub fn limit_tcp_flows(&mut self, max: usize) {
        self.host.shared.place.siblings.budget.limit_tcp(max);
    }

    /// Lowers the maximum number of large FIFOs, by default
    /// [`FIFOS_LARGE_MAX`](crate::limits::FIFOS_LARGE_MAX).
    pub fn limit_fifos(&mut self, max: usize) {
        self.host.shared.fifos.limit(max);
    }

    /// Returns the counters since creation.
    pub fn counters(&self) -> Counters {
        Counters { tcp_fifos_small: self.host.shared.fifos.small(), ..self.host.shared.counters }
    }

    /// Returns the number of TCP flows.
    pub fn tcp_flows(&self) -> usize {
        self.host.tcp.len()
    }

    /// Returns a snapshot of all flows, for lists shown to the user.
    pub fn flows(&self) -> Vec<FlowEntry> {
        let GatewayHost { shared, tcp, udp, echo, .. } = &self.host;
        show::flows(Instant(shared.now_ns), &self.stack, (tcp, udp, echo))
    }

    /// Returns the inner stack (the gateway's own TCP/IP stack), for its counters and sockets.
    pub fn inner(&self) -> &Stack<impl Host + use<>> {
        &self.stack
    }

    /// Returns whether to poll the host sockets now. Polling is a system call, so a busy gateway
    /// polls only at intervals, unless events are known to be pending.
    fn is_time_to_listen(&mut self) -> bool {
        let now_ns = self.host.shared.now_ns;
        let seen = self.seen.take();
        if seen == Some(false) {
            self.listened_ns = now_ns;
        }
        seen == Some(true)
            || self.unheard
            || now_ns.saturating_sub(self.listened_ns) >= LISTEN_EVERY_NS
    }

    /// Reads epoll events of the host sockets, and passes them to the flows.
    fn listen_to_host(&mut self) {
        let GatewayHost { shared, tcp, udp, echo, dns, forwards } = &mut self.host;
        self.listened_ns = shared.now_ns;
        let mut taken = 0;
        let mut events: EventList = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let Ok(events) = shared.events.take(&mut events) else { return };
        for (token, ready) in events {
            taken += 1;
            match token {
                Token::Tcp(key) => tcp.on_ready(shared.now_ns, key, ready),
                Token::Udp(id) => udp.on_ready(id, ready),
                Token::OtherPorts(key) => udp.others.on_ready(key, ready),
                Token::Echo(id) => echo.on_ready(id, ready),
                Token::Dns(key) => dns.on_ready(key, ready),
                Token::Nameservers => dns.on_renamed(),
                Token::Listener(index) => forwards.on_ready(index, ready),
                Token::Handed => forwards.on_handed(),
                Token::Addresses => {
                    let lost = shared.lost_addresses();
                    tcp.on_addresses_changed(shared);
                    udp.on_addresses_lost(shared, &lost);
                    echo.on_addresses_lost(shared, &lost);
                }
            }
        }
        // If the event list is full, more events may be pending.
        self.unheard = taken == EVENTS_MAX;
        if !self.unheard {
            shared.event_rounds.advance();
        }
    }

    /// Serves the flows with pending work. `on_link` is the number of packets queued on the link to
    /// the program.
    fn serve(&mut self, now: Instant, pool: &mut Pool, on_link: usize) {
        let GatewayHost { shared, tcp, udp, echo, dns, forwards } = &mut self.host;
        udp.depart(shared, &forwards.listeners);
        udp.expire(shared);
        echo.expire(shared.now_ns);
        let stack = &mut self.stack;
        let mut cx = Context { now, stack, shared, on_link, pool, touched: false };
        forwards.serve(&mut cx, tcp, udp);
        tcp.expire(&mut cx);
        tcp.serve(&mut cx);
        udp.serve(&mut cx);
        echo.serve(&mut cx);
        dns.serve(&mut cx);
        Errors::serve(&mut cx);
        self.unsettled |= cx.touched;
    }

    /// Runs the inner stack and serves its flows, until both are idle, the link is half full, or
    /// after [`ROUNDS_MAX`] iterations.
    fn work(&mut self, now: Instant, pool: &mut Pool) {
        for _ in 0..ROUNDS_MAX {
            let on_link = self.round(now, pool, Budget::default());
            if !self.unsettled || on_link >= LINK_PACKETS_MAX / 2 {
                break;
            }
        }
    }

    /// Runs one turn of the inner stack, and serves the flows. Returns the number of packets on
    /// the link to the program.
    fn round(&mut self, now: Instant, pool: &mut Pool, budget: Budget) -> usize {
        self.unsettled = false;
        let turn = self.stack.turn(now, &mut self.host, &mut self.ports, pool, budget);
        let on_link = self.link.queues().to_program.len();
        self.serve(now, pool, on_link);
        self.unsettled |= turn.more;
        on_link
    }

    fn is_due(&self) -> bool {
        let host = &self.host;
        let queues = self.link.queues();
        self.unsettled
            || self.unheard
            || !queues.to_program.is_empty()
            || !queues.from_program.is_empty()
            || !host.shared.errors.is_empty()
            || host.tcp.is_due()
            || !host.tcp.landings.is_empty()
            || host.udp.is_due()
            || host.echo.is_due()
            || host.dns.is_due()
    }
}

impl Port for Gateway {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let now = Instant(now_ns);
        self.host.shared.now_ns = now_ns;
        self.host.tcp.landings.settle();
        let on_link = self.link.queues().to_program.len();
        if on_link < max {
            if self.is_time_to_listen() {
                self.listen_to_host();
            }
            self.serve(now, pool, on_link);
            self.work(now, pool);
        }
        let queue = &mut self.link.queues().to_program;
        let n = max.min(queue.len());
        self.host.tcp.landings.on_taken(queue.len(), n);
        out.extend(queue.drain(..n));
        n
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        // The program's stack submits packets at the end of an iteration of its event loop. By
        // then, the stack has processed all packets that it received before, and has notified other
        // shards. Connections that are established by these packets no longer count as in flight.
        self.host.tcp.landings.settle();
        let n = batch.len();
        if n == 0 {
            return 0;
        }
        self.host.shared.now_ns = now_ns;
        let now = Instant(now_ns);
        let at = self.outer.ip_offset();
        let mut has_data = false;
        for packet in batch.iter() {
            has_data |= packet.len() > at + HEADERS_LEN_MAX;
            self.host.tcp.on_packet(&self.stack, packet.linear().get(at..).unwrap_or_default());
        }
        self.link.queues().from_program.append(batch);
        if has_data {
            // Pass data to the host before the inner stack acknowledges it. Otherwise the ACK
            // announces a window without the memory of that data. The program then sends less at
            // once, or needs a window update.
            self.round(now, pool, Budget { tx_packets: 0, ..Budget::default() });
        }
        // Process all packets now, because they refer to FIFO memory that the program's stack needs
        // back.
        loop {
            self.work(now, pool);
            if self.link.queues().from_program.is_empty() {
                return n;
            }
        }
    }

    fn offloads(&self) -> Offloads {
        self.outer.offloads
    }

    fn link_type(&self) -> LinkType {
        self.outer.link
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.host.shared.events.fd())
    }

    fn looked(&mut self, ready: bool) {
        self.seen = Some(ready);
        if !ready {
            // Count the round here, before `submit` reads host sockets, because a read may leave an
            // urgent byte that has arrived after the check.
            self.host.shared.event_rounds.advance();
        }
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        if self.is_due() {
            return Some(0);
        }
        let host = &self.host;
        let times = [
            self.stack.next_timeout().map(|at| at.0),
            host.tcp.next_expiry_ns(),
            host.udp.next_expiry_ns(),
            host.echo.next_expiry_ns(),
            host.dns.next_expiry_ns(),
            host.forwards.next_timeout_ns(),
        ];
        times.into_iter().flatten().min()
    }

    /// Returns the number of bytes not yet delivered. Only TCP flows have such bytes: the gateway
    /// never queues datagrams and echo requests.
    fn undelivered(&self) -> u64 {
        self.host.tcp.undelivered(Instant(self.host.shared.now_ns), &self.stack, false)
    }

    fn undelivered_of_ended(&self) -> u64 {
        self.host.tcp.undelivered(Instant(self.host.shared.now_ns), &self.stack, true)
    }

    fn counters(&self) -> PortCounters {
        vec![("gateway", self.counters().iter().collect())]
    }
}

impl Host for GatewayHost {
    type Recv = FromProgram;
    type Send = ToProgram;

    /// Never called, because the inner stack has no listeners.
    fn recv_room(&self, _: u32) -> u32 {
        0
    }

    fn accept(
        &mut self,
        _: u32,
        _: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<(u32, FromProgram, ToProgram)> {
        None
    }

    fn syn(&mut self, pending: PendingId, local: SocketAddr, remote: SocketAddr) {
        self.tcp.on_syn(&self.shared, pending, local, remote);
    }

    fn syn_repeated(&mut self, pending: PendingId) {
        self.tcp.on_syn_repeated(self.shared.now_ns, pending);
    }

    fn displace_syn(&mut self, remote: SocketAddr) -> Option<PendingId> {
        self.tcp.displace_syn(&mut self.shared, remote)
    }

    fn syn_forgotten(&mut self, pending: PendingId) {
        self.tcp.on_syn_forgotten(&mut self.shared, pending);
    }

    /// Never called, because the inner stack has no datagram sockets.
    fn datagram(&mut self, _: u32, _: &DatagramMeta, _: &Payload<'_>) -> bool {
        false
    }

    fn stray_datagram(&mut self, meta: &DatagramMeta, payload: &Payload<'_>) {
        if self.shared.config.is_forwarder(meta.local) {
            return self.dns.on_question(&mut self.shared, meta, payload);
        }
        self.udp.on_datagram(&mut self.shared, &self.forwards.listeners, meta, payload);
    }

    fn stray_error(&mut self, error: &IcmpError) -> bool {
        self.udp.on_error(&mut self.shared, &self.forwards.listeners, error)
    }

    fn stray_echo(&mut self, meta: &EchoMeta, payload: &Payload<'_>) {
        self.echo.on_request(&mut self.shared, meta, payload);
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        self.tcp.on_event(user, event);
    }
}

fn add_interface(stack: &mut Stack<GatewayHost>, interface: InterfaceConfig, now: Instant) {
    let iface = stack.net.add_interface(now, interface);
    debug_assert_eq!(iface, LINK);
    for everything in [Prefix::ALL_V4, Prefix::ALL_V6] {
        stack.net.add_route(everything, None, iface, 0);
    }
}
