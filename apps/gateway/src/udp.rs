//! UDP flows: the datagrams between one port of the program and one peer.
//!
//! A flow that the program began has a connected socket of the host. A flow that a client of a
//! forwarded port began shares the socket of that port. Either ends when idle.
//!
//! Marks of the program's IP headers go along: TTL, class with ECN, and IPv4's don't-fragment. TTL
//! and class come back the same way, and so do ICMP errors.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use towpath_shm::{Fd, opened};

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, connect, socket_with};
use towpath_ring::Payload;
use towpath_shm::Fragments;
use towpath_stack::net::IcmpError;
use towpath_stack::{DatagramFrom, DatagramMeta, Host};
use towpath_wire::{icmpv4, icmpv6};

use crate::addresses::LostAddresses;
use crate::budget::{Share, Whose};
use crate::config::{ForwardProtocol, Presented};
use crate::context::{Context, Shared};
use crate::events::{Interest, Readiness, Token, canonical, family};
use crate::icmp::About;
use crate::idle::{Class, IdleTable};
use crate::limits::{DATAGRAMS_PER_TURN, DNS_IDLE_NS, LINK_PACKETS_MAX, PLAIN_TTL, UDP_IDLE_NS};
use crate::listeners::Listeners;
use crate::mapping::Port;
use crate::nameservers;
use crate::notice::Notice;
use crate::show::{FlowEntry, FlowProtocol, datagrams};
use crate::siblings::{Ends, Known, Siblings, Topic};
use crate::slab;
use crate::source::Silence;
use crate::sys::{self, Destination, QueuedError, Received};
use crate::train::{Marks, Train};

/// All UDP flows.
#[derive(Debug)]
pub(crate) struct UdpFlows {
    flows: IdleTable<Key, Flow>,
    /// Flow of each client of a forwarded port.
    clients: HashMap<(u32, SocketAddr), slab::Key>,
    siblings: Arc<Siblings>,
    /// Flows whose socket has something, each once.
    due: VecDeque<slab::Key>,
    train: Train,
    /// Published ports of which was said that nobody listens. As many as there are, at most.
    hinted: HashSet<u32>,
}

/// A flow as the program sees it.
type Key = Ends;

#[derive(Debug)]
struct Flow {
    side: Side,
    /// Trains are sent whole, for the kernel to cut (UDP_SEGMENT). Off after it refused: it does
    /// when a datagram exceeds the path's MTU, or the device computes no checksums.
    cuts: bool,
    /// Payload towards the host, and towards the program.
    bytes: [u64; 2],
}

/// The host's side of a flow.
#[derive(Debug)]
enum Side {
    /// A socket of its own, connected to the peer.
    Connected {
        host: Fd,
        /// Right to the descriptor of `host`.
        _share: Share,
        /// The address that it is connected to.
        to: SocketAddr,
        readable: bool,
        silence: Silence,
        /// Its port is one of [`Mappings`](crate::mapping::Mappings).
        mapped: bool,
        /// The socket's [`Marks::dont_fragment`].
        dont_fragment: bool,
    },
    /// A client of a forwarded port.
    Client {
        listener: u32,
        client: SocketAddr,
        /// The address of the host that the client wrote to last.
        host: Option<IpAddr>,
        /// Knowledge of the client in other gateways, where there are any.
        known: Option<Known>,
    },
}

/// Flows that the program began, and of these the ones to port 53.
const CLASS_PLAIN: usize = 0;
const CLASS_DNS: usize = 1;
/// Flows of clients: such as the program has not answered, and the others.
const CLASS_CLIENT_NEW: usize = 2;
const CLASS_CLIENT: usize = 3;
/// Ports at which a client of a forwarded port is seen when its own is taken: the dynamic ones (RFC
/// 6335 §6).
const PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

impl UdpFlows {
    /// With at most `max` flows of the program's making, and `clients_max` of clients.
    pub(crate) fn new(max: usize, clients_max: usize, siblings: Arc<Siblings>) -> Self {
        let own = |idle_ns| Class { idle_ns, owner: 0, max, worth: 0 };
        let clients = |worth| Class { idle_ns: UDP_IDLE_NS, owner: 1, max: clients_max, worth };
        Self {
            flows: IdleTable::new(&[own(UDP_IDLE_NS), own(DNS_IDLE_NS), clients(0), clients(1)]),
            clients: HashMap::new(),
            siblings,
            due: VecDeque::new(),
            train: Train::new(),
            hinted: HashSet::new(),
        }
    }

    /// Whether [`UdpFlows::serve`] has something to do.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.flows.next_expiry_ns()
    }

    /// Snapshots of all flows.
    pub(crate) fn shown(&self) -> impl Iterator<Item = FlowEntry> {
        self.flows.iter().map(|(key, flow)| {
            let host = match &flow.side {
                Side::Connected { host, .. } => Some(host),
                Side::Client { .. } => None,
            };
            datagrams(FlowProtocol::Udp, (key.program, key.peer), host, flow.bytes)
        })
    }

    /// Counts payload of a flow, by its way: 0 towards the host, 1 towards the program.
    fn count(&mut self, id: slab::Key, way: usize, len: usize) {
        if let Some((_, flow)) = self.flows.get_mut(id) {
            flow.bytes[way] += len as u64;
        }
    }

    /// The peer of a flow answered.
    fn on_heard(&mut self, id: slab::Key) {
        if let Some((_, Flow { side: Side::Connected { silence, .. }, .. })) =
            self.flows.get_mut(id)
        {
            silence.end();
        }
    }

    /// Ends the flows that were idle for too long.
    pub(crate) fn expire(&mut self, shared: &mut Shared) {
        while let Some((key, flow)) = self.flows.expire(shared.now_ns) {
            shared.counters.udp_expired += 1;
            self.forget(&key, &flow.side);
        }
    }

    /// Ends the flows whose sockets send from lost addresses. The program's next datagrams begin
    /// them anew.
    pub(crate) fn on_addresses_lost(&mut self, shared: &mut Shared, lost: &LostAddresses) {
        let is_from = |flow: &Flow| match &flow.side {
            Side::Connected { host, .. } => lost.has_source_of(host),
            Side::Client { .. } => false,
        };
        for (key, flow) in self.flows.remove_if(is_from) {
            shared.counters.address_lost += 1;
            self.forget(&key, &flow.side);
        }
    }

    /// A datagram of the program.
    pub(crate) fn on_datagram(
        &mut self,
        shared: &mut Shared,
        listeners: &Listeners,
        meta: &DatagramMeta,
        payload: &Payload<'_>,
    ) {
        let key = Key { program: meta.remote, peer: meta.local };
        let found = self.flows.find(&key);
        let stays = found.filter(|id| !self.leave_source(shared, listeners, *id));
        let id = match stays.or_else(|| self.adopt(shared, key)) {
            Some(id) => id,
            None => match self.open(shared, listeners, key) {
                Ok(id) => id,
                Err(error) => {
                    shared.counters.udp_dropped += 1;
                    return shared.errors.refused(key.about(), error, &[], &mut shared.counters);
                }
            },
        };
        match self.flows.get(id) {
            Some((_, Flow { side: Side::Client { .. }, .. })) => {
                self.flows.touch_as(shared.now_ns, id, CLASS_CLIENT);
            }
            _ => self.flows.touch(shared.now_ns, id),
        }
        let DatagramMeta { ttl, tos, dont_fragment, .. } = *meta;
        let marks = Marks { ttl, tos, dont_fragment };
        if !self.train.takes(id, marks, payload.len() as usize) {
            self.depart(shared, listeners);
            self.train.begin(id, marks, payload.len() as usize);
        }
        if !self.train.push(payload) {
            shared.counters.udp_dropped += 1;
        }
        let whole = self.flows.get(id).is_some_and(|(_, flow)| !flow.cuts);
        if whole || payload.is_empty() {
            self.depart(shared, listeners);
        }
    }

    /// Ends a flow that nobody answers, if the host would send from another address by now. True:
    /// it ended.
    fn leave_source(&mut self, shared: &mut Shared, listeners: &Listeners, id: slab::Key) -> bool {
        let Some((_, flow)) = self.flows.get_mut(id) else { return true };
        let Side::Connected { host, to, silence, .. } = &mut flow.side else { return false };
        if !silence.on_sent(shared.now_ns) || !shared.leaves_elsewhere(host, *to) {
            return false;
        }
        // Earlier datagrams of the flow are gathered for its socket.
        self.depart(shared, listeners);
        if let Some((key, flow)) = self.flows.remove(id) {
            self.forget(&key, &flow.side);
        }
        shared.counters.source_moved += 1;
        true
    }

    /// Sends the datagrams that were gathered. Called when the inner stack has no more.
    pub(crate) fn depart(&mut self, shared: &mut Shared, listeners: &Listeners) {
        let Some(load) = self.train.unload() else { return };
        let (id, marks, size) = (load.flow, load.marks, load.size);
        let train = &load.bytes[..load.len];
        if load.count == 1 {
            self.send(shared, listeners, id, marks, train, None);
        } else if !self.send(shared, listeners, id, marks, train, Some(size as u16)) {
            if let Some((_, flow)) = self.flows.get_mut(id) {
                flow.cuts = false;
            }
            for datagram in train.chunks(size) {
                self.send(shared, listeners, id, marks, datagram, None);
            }
        }
        self.train.reuse(load.bytes);
    }

    /// The host says something about a flow's socket.
    pub(crate) fn on_ready(&mut self, id: slab::Key, ready: Readiness) {
        let Some((_, flow)) = self.flows.get_mut(id) else { return };
        let Side::Connected { readable, .. } = &mut flow.side else { return };
        if (ready.readable || ready.failed) && !*readable {
            *readable = true;
            self.due.push_back(id);
        }
    }

    /// Passes on what the host's sockets have, as far as the link has room.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_, impl Host>) {
        for _ in 0..self.due.len() {
            if cx.is_link_busy() {
                break;
            }
            let Some(id) = self.due.pop_front() else { break };
            if self.receive(cx, id) {
                self.due.push_back(id);
            } else if let Some((_, flow)) = self.flows.get_mut(id)
                && let Side::Connected { readable, .. } = &mut flow.side
            {
                *readable = false;
            }
        }
    }

    /// Datagrams of a client of a forwarded port.
    pub(crate) fn on_client(
        &mut self,
        cx: &mut Context<'_, impl Host>,
        listener: u32,
        port: u16,
        received: &Received,
        bytes: &[u8],
    ) {
        let Some(client) = received.from else { return };
        let id = match self.clients.get(&(listener, client)) {
            Some(id) => *id,
            None => {
                let [Some(shown), _] = cx.shared.config.presented(canonical(client), port) else {
                    return;
                };
                let Some(id) = self.open_client(cx.shared, shown, (listener, client), received.to)
                else {
                    cx.shared.counters.udp_dropped += 1;
                    return;
                };
                self.clients.insert((listener, client), id);
                id
            }
        };
        let Some((key, flow)) = self.flows.get_mut(id) else { return };
        let key = *key;
        let mut answered = false;
        if let Side::Client { host, known, .. } = &mut flow.side {
            if let Some(known) = known {
                answered = known.client.is_answered();
                if *host != received.to {
                    known.client.moved_to(received.to);
                }
            }
            // A client may write to another address of this host, and accepts answers from that one
            // only; the earlier address may have been removed.
            *host = received.to;
        }
        match answered {
            true => self.flows.touch_as(cx.shared.now_ns, id, CLASS_CLIENT),
            false => self.flows.touch(cx.shared.now_ns, id),
        }
        to_program(cx, &key, bytes, received);
    }

    /// The program's stack reports that a datagram came to a port on which nothing listens. False:
    /// it is none of a client.
    ///
    /// The user is told, but the client cannot be. The host's kernel reports an unreachable port
    /// when a datagram comes in, but this port is ours. Without privileges the gateway cannot send
    /// ICMP errors.
    pub(crate) fn on_refused(
        &mut self,
        shared: &mut Shared,
        listeners: &Listeners,
        error: &IcmpError,
    ) -> bool {
        let refused = match error.dst {
            IpAddr::V4(_) => (icmpv4::DEST_UNREACHABLE, icmpv4::UNREACHABLE_PORT),
            IpAddr::V6(_) => (icmpv6::DEST_UNREACHABLE, icmpv6::UNREACHABLE_PORT),
        };
        let program = SocketAddr::new(error.dst, error.dst_port);
        let key = Key { program, peer: SocketAddr::new(error.src, error.src_port) };
        let Some((listener, host)) = self.client_at(&key) else { return false };
        if error.message != refused {
            return false;
        }
        shared.counters.udp_clients_refused += 1;
        if let Some(published) = listeners.host(listener)
            && self.hinted.insert(listener)
        {
            let host = SocketAddr::new(host.unwrap_or(published.ip()), published.port());
            let protocol = ForwardProtocol::Udp;
            let notice = Notice::NobodyListens { protocol, host, program };
            shared.tell_once(Topic::Udp(listener), notice);
        }
        true
    }

    /// The client with which there is a flow, here or in another gateway. Returns its listener, and
    /// the address of the host that it writes to.
    fn client_at(&self, key: &Key) -> Option<(u32, Option<IpAddr>)> {
        match self.flows.find(key).and_then(|id| self.flows.get(id)) {
            Some((_, Flow { side: Side::Client { listener, host, .. }, .. })) => {
                Some((*listener, *host))
            }
            Some(_) => None,
            None => {
                let mut known = self.siblings.client(key)?;
                Some((known.client.listener, known.news().flatten()))
            }
        }
    }

    /// Reports about datagrams to clients of a forwarded port.
    pub(crate) fn on_client_errors(
        &self,
        shared: &mut Shared,
        listener: u32,
        fd: BorrowedFd<'_>,
    ) -> usize {
        let Shared { errors, config, counters, .. } = shared;
        errors.hear(fd, config, counters, |report: &QueuedError, _: &[u8]| {
            let client = report.to?;
            let (key, _) = self.flows.get(*self.clients.get(&(listener, client))?)?;
            Some((key.about(), client.ip().to_canonical()))
        })
    }

    /// A flow with a client that comes in at another gateway, and that the program answers by way
    /// of this one.
    fn adopt(&mut self, shared: &mut Shared, key: Key) -> Option<slab::Key> {
        let mut known = self.siblings.client(&key)?;
        known.client.set_answered();
        let host = known.news().flatten();
        let (listener, client) = (known.client.listener, known.client.address);
        let side = Side::Client { listener, client, host, known: Some(known) };
        self.make_room(shared, CLASS_CLIENT);
        shared.counters.udp_flows += 1;
        let flow = Flow { side, cuts: true, bytes: [0; 2] };
        let id = self.flows.insert(shared.now_ns, CLASS_CLIENT, key, flow);
        self.clients.insert((listener, client), id);
        Some(id)
    }

    /// A flow of the program to a new peer.
    fn open(
        &mut self,
        shared: &mut Shared,
        listeners: &Listeners,
        key: Key,
    ) -> Result<slab::Key, Errno> {
        let to = shared.host_addr(key.peer).ok_or(Errno::CONNREFUSED)?;
        if shared.is_loop(key.program, key.peer) {
            return Err(Errno::CONNREFUSED);
        }
        let class = if key.peer.port() == nameservers::PORT { CLASS_DNS } else { CLASS_PLAIN };
        self.make_room(shared, class);
        let _share = self.share(shared, class)?;
        let (host, mapped) = self.open_towards(shared, to, listeners, key)?;
        let side = Side::Connected {
            host,
            _share,
            to,
            readable: false,
            silence: Silence::default(),
            mapped,
            dont_fragment: false,
        };
        let id =
            self.flows.insert(shared.now_ns, class, key, Flow { side, cuts: true, bytes: [0; 2] });
        if let Some((_, flow)) = self.flows.get(id)
            && let Side::Connected { host, .. } = &flow.side
            && let Err(error) = shared.events.watch(host, Token::Udp(id), Interest::Readable)
        {
            if let Some((key, flow)) = self.flows.remove(id) {
                self.forget(&key, &flow.side);
            }
            return Err(error);
        }
        shared.counters.udp_flows += 1;
        Ok(id)
    }

    /// A descriptor for a flow of the program: that of its oldest one, where none is left.
    fn share(&mut self, shared: &mut Shared, class: usize) -> Result<Share, Errno> {
        loop {
            if let Some(share) = self.siblings.budget.take(Whose::Datagrams) {
                return Ok(share);
            }
            if !self.evict(shared, class) {
                return Err(Errno::NOBUFS);
            }
        }
    }

    /// A socket of the host for a flow, connected, and whether it has a port of
    /// [`Mappings`](crate::mapping::Mappings).
    fn open_towards(
        &mut self,
        shared: &mut Shared,
        to: SocketAddr,
        listeners: &Listeners,
        key: Key,
    ) -> Result<(Fd, bool), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let host = Fd::from(opened(|| socket_with(family(to), SocketType::DGRAM, flags, None))?);
        // Questions of DNS leave from an unpredictable port (RFC 5452 §9.2), which only the
        // nameserver needs to reach.
        let forwarded = listeners.host_port(key.port());
        let mapped = key.peer.port() != nameservers::PORT
            && self.siblings.mappings().bind(&host, key.program, forwarded);
        let connected = sys::enable_details(host.as_fd(), to.is_ipv6())
            .and_then(|()| shared.config.egress.apply(&host, to.ip()))
            .and_then(|()| connect(&host, &to));
        if let Err(error) = connected {
            if mapped {
                self.siblings.mappings().release(key.program);
            }
            return Err(error);
        }
        shared.loops.note(&host, to);
        // UDP_GRO is an optimisation: without it, each datagram takes a call.
        sys::enable_gro(host.as_fd());
        Ok((host, mapped))
    }

    /// A flow of a client that the program sees at `shown`, or at another port of that address when
    /// this one is taken. None when all ports are.
    fn open_client(
        &mut self,
        shared: &mut Shared,
        shown: Presented,
        (listener, client): (u32, SocketAddr),
        host: Option<IpAddr>,
    ) -> Option<slab::Key> {
        let wanted = match shown.client.port() {
            0 => client.port(),
            port => port,
        };
        let mut ports = std::iter::once(wanted).chain(PORTS);
        let (key, known) = ports.find_map(|port| {
            let peer = SocketAddr::new(shown.client.ip(), port);
            let key = Key { program: shown.program, peer };
            if self.flows.find(&key).is_some() {
                return None;
            }
            Some((key, self.siblings.register(key, (listener, client), host).ok()?))
        })?;
        let side = Side::Client { listener, client, host, known };
        self.make_room(shared, CLASS_CLIENT_NEW);
        shared.counters.udp_flows += 1;
        Some(self.flows.insert(
            shared.now_ns,
            CLASS_CLIENT_NEW,
            key,
            Flow { side, cuts: true, bytes: [0; 2] },
        ))
    }

    fn make_room(&mut self, shared: &mut Shared, class: usize) {
        if self.flows.is_full(class) {
            self.evict(shared, class);
        }
    }

    /// Ends a flow in favour of one of `class`. False: there is none.
    fn evict(&mut self, shared: &mut Shared, class: usize) -> bool {
        let Some((key, flow)) = self.flows.evict(class) else { return false };
        match class {
            CLASS_CLIENT_NEW | CLASS_CLIENT => shared.counters.udp_clients_evicted += 1,
            _ => shared.counters.udp_evicted += 1,
        }
        self.forget(&key, &flow.side);
        true
    }

    fn forget(&mut self, key: &Key, side: &Side) {
        match side {
            Side::Connected { mapped, .. } => {
                if *mapped {
                    self.siblings.mappings().release(key.program);
                }
            }
            Side::Client { listener, client, known, .. } => {
                self.clients.remove(&(*listener, *client));
                if let Some(known) = known {
                    self.siblings.forget(key, known);
                }
            }
        }
    }

    /// Sends one datagram, or several of `segment` bytes. False: the kernel does not cut these, but
    /// may send them one by one.
    fn send(
        &mut self,
        shared: &mut Shared,
        listeners: &Listeners,
        id: slab::Key,
        marks: Marks,
        bytes: &[u8],
        segment: Option<u16>,
    ) -> bool {
        let count = bytes.len().div_ceil(segment.map_or(bytes.len(), usize::from).max(1)).max(1);
        let Some((key, flow)) = self.flows.get_mut(id) else {
            // The flow was evicted while its datagrams were gathered.
            shared.counters.udp_dropped += count as u64;
            return true;
        };
        let key = *key;
        flow.side.set_dont_fragment(marks.dont_fragment);
        flow.side.catch_up();
        let Some((_, flow)) = self.flows.get(id) else { return true };
        let plain = Destination {
            segment,
            v6: flow.side.is_v6(),
            ttl: (marks.ttl != PLAIN_TTL).then_some(marks.ttl),
            tos: (marks.tos != 0).then_some(marks.tos),
            ..Destination::default()
        };
        let (host, destination) = match &flow.side {
            Side::Connected { host, .. } => (host.as_fd(), plain),
            Side::Client { listener, client, host, .. } => {
                let Some(fd) = listeners.fd(*listener) else { return true };
                (fd, Destination { to: Some(*client), from: *host, ..plain })
            }
        };
        let empty = Fragments::empty();
        let mut result = sys::send_datagram(host, bytes, &empty, &destination);
        let mut told = 0;
        if result.is_err_and(|error| error != Errno::AGAIN) {
            told = self.hear(shared, id, host);
            if told > 0 && result != Err(Errno::MSGSIZE) {
                // The call returned the error of an earlier datagram, and did not send this one.
                result = sys::send_datagram(host, bytes, &empty, &destination);
            }
        }
        match result {
            Ok(_) => {
                shared.counters.udp_to_host += count as u64;
                self.count(id, 0, bytes.len());
            }
            Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE) if segment.is_some() => return false,
            // The host may have lost the address that the socket sends from. The program's next
            // datagram begins the flow anew, from another address, or hears why none is left.
            Err(Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::NETUNREACH)
                if flow.side.is_connected() && told == 0 =>
            {
                shared.counters.udp_dropped += count as u64;
                if let Some((key, flow)) = self.flows.remove(id) {
                    self.forget(&key, &flow.side);
                }
            }
            Err(error) => {
                shared.counters.udp_dropped += count as u64;
                if told == 0 {
                    shared.errors.refused(key.about(), error, &[], &mut shared.counters);
                }
            }
        }
        true
    }

    /// Takes the reports that wait at a flow's socket; returns how many there were.
    fn hear(&self, shared: &mut Shared, id: slab::Key, host: BorrowedFd<'_>) -> usize {
        match self.flows.get(id) {
            Some((key, Flow { side: Side::Connected { to, .. }, .. })) => {
                let Shared { errors, config, counters, .. } = shared;
                errors.hear(host, config, counters, |_, _| Some((key.about(), to.ip())))
            }
            Some((_, Flow { side: Side::Client { listener, .. }, .. })) => {
                self.on_client_errors(shared, *listener, host)
            }
            None => 0,
        }
    }

    /// Receives from a flow's socket; true when there may be more.
    fn receive(&mut self, cx: &mut Context<'_, impl Host>, id: slab::Key) -> bool {
        let mut scratch = std::mem::take(&mut cx.shared.scratch);
        let mut more = true;
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some((key, Flow { side: Side::Connected { host, to, .. }, .. })) =
                self.flows.get(id)
            else {
                more = false;
                break;
            };
            let key = *key;
            match sys::recv_datagram(host.as_fd(), &mut scratch) {
                // Before it was connected, the socket took datagrams of everybody to its port.
                Ok(received) if received.from.is_some_and(|from| !is_same(from, *to)) => {
                    cx.shared.counters.udp_dropped += 1;
                }
                Ok(received) => {
                    let bytes = scratch.get(..received.len).unwrap_or_default();
                    to_program(cx, &key, bytes, &received);
                    self.count(id, 1, received.len);
                    self.on_heard(id);
                    self.flows.touch(cx.shared.now_ns, id);
                }
                Err(Errno::AGAIN) => {
                    more = false;
                    break;
                }
                Err(_) => {
                    self.hear(cx.shared, id, host.as_fd());
                }
            }
        }
        cx.shared.scratch = scratch;
        more
    }
}

impl Ends {
    fn about(&self) -> About {
        About::Datagram { program: self.program, peer: self.peer }
    }

    fn port(&self) -> Port {
        Port { v6: self.program.is_ipv6(), number: self.program.port() }
    }
}

impl Side {
    /// Version of the host's socket, whatever the program's is.
    fn is_v6(&self) -> bool {
        match self {
            Self::Connected { to, .. } => to.is_ipv6(),
            Self::Client { client, .. } => canonical(*client).is_ipv6(),
        }
    }

    /// Takes over news of the client from the gateway where it comes in.
    fn catch_up(&mut self) {
        if let Self::Client { host, known: Some(known), .. } = self
            && let Some(news) = known.news()
        {
            *host = news;
        }
    }

    fn is_connected(&self) -> bool {
        matches!(self, Self::Connected { .. })
    }

    fn set_dont_fragment(&mut self, wanted: bool) {
        if let Self::Connected { host, to, dont_fragment, .. } = self
            && *dont_fragment != wanted
            && sys::set_dont_fragment(host.as_fd(), to.is_ipv6(), wanted).is_ok()
        {
            *dont_fragment = wanted;
        }
    }
}

/// Whether two addresses name one peer; the scope of a link-local one is the host's affair.
fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}

/// Gives a datagram, or several that came as one, to the program.
fn to_program(cx: &mut Context<'_, impl Host>, key: &Key, bytes: &[u8], received: &Received) {
    let Received { segment, ttl, tos, .. } = *received;
    let out = DatagramFrom { local: key.peer, remote: key.program, ttl, tos };
    let size = segment.map_or(bytes.len(), usize::from).max(1);
    // An empty datagram is one too.
    let mut rest = Some(bytes);
    while let Some(bytes) = rest {
        let (one, left) = bytes.split_at(size.min(bytes.len()));
        rest = Some(left).filter(|left| !left.is_empty());
        let payload = Payload::new(one, Fragments::empty());
        match cx.stack.send_datagram_from(cx.now, &out, &payload, cx.pool) {
            Ok(_) => cx.shared.counters.udp_to_program += 1,
            Err(_) => cx.shared.counters.udp_dropped += 1,
        }
    }
    cx.touched = true;
}

// A round of one flow must fit into what is left when the link is not busy.
const _: () = assert!(LINK_PACKETS_MAX > DATAGRAMS_PER_TURN);
