//! UDP flows: datagrams between one port of the program and one peer.
//!
//! A flow that the program initiates has its own connected host socket. A flow that a client of a
//! forwarded port initiates shares that port's socket. Both end by idle timeout.
//!
//! TTL, traffic class with ECN, and IPv4's don't-fragment bit of the program's datagrams are copied
//! to the datagrams that the host sends. TTL and class of received datagrams, and ICMP errors, are
//! passed to the program.

mod fragments;
mod opening;
mod other_ports;
mod passage;
mod to_program;

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use towpath_ring::Payload;
use towpath_shm::Fd;
use towpath_stack::net::IcmpError;
use towpath_stack::{DatagramMeta, Host};
use towpath_wire::{icmpv4, icmpv6};

use crate::addresses::LostAddresses;
use crate::budget::Share;
use crate::config::ForwardProtocol;
use crate::context::{Context, Shared};
use crate::events::{Readiness, canonical};
use crate::icmp::About;
use crate::idle::{Class, IdleTable};
use crate::limits::{DNS_IDLE_NS, UDP_IDLE_NS};
use crate::listeners::Listeners;
use crate::mapping::Port;
use crate::notice::Notice;
use crate::show::{FlowEntry, FlowProtocol, datagrams};
use crate::siblings::{KnownClient, SiblingEnds, Siblings, Topic};
use crate::source::PeerSilence;
use crate::sys::{self, QueuedError, Received};
use crate::train::{IpMarks, Train};
use crate::{nameservers, slab};

use fragments::Fragmenter;
use other_ports::OtherPorts;
use to_program::to_program;

/// Table of all UDP flows.
#[derive(Debug)]
pub(crate) struct UdpFlows {
    flows: IdleTable<Key, Flow>,
    /// Flow of each client of a forwarded port, by the listener's index and the client's address.
    clients: HashMap<(u32, SocketAddr), slab::SlabKey>,
    siblings: Arc<Siblings>,
    /// Flows whose socket is readable; each is queued at most once.
    due: VecDeque<slab::SlabKey>,
    train: Train,
    pub(crate) others: OtherPorts,
    fragmenter: Fragmenter,
    /// Indexes of listeners for which the user was notified that the program does not receive from
    /// them.
    hinted: HashSet<u32>,
}

/// Addresses of a flow as the program sees them.
type Key = SiblingEnds;

#[derive(Debug)]
struct Flow {
    side: Side,
    /// Whether trains are sent by UDP_SEGMENT, so that the kernel splits them into datagrams.
    /// Cleared after a failure. The kernel refuses to split if a datagram exceeds the path MTU, or
    /// if the device has no checksum offload.
    cuts: bool,
    /// Number of payload bytes sent to the host, and to the program.
    bytes: [u64; 2],
}

/// Host side of a flow: either a host socket of its own, or a client of a forwarded port.
#[derive(Debug)]
enum Side {
    /// The flow has its own host socket, which is connected to the peer.
    Connected {
        host: Fd,
        /// Reservation of the descriptor `host` in the flow budget.
        _share: Share,
        /// Address to which the host socket is connected.
        to: SocketAddr,
        readable: bool,
        silence: PeerSilence,
        /// Whether the local port of the socket is registered in
        /// [`Mappings`](crate::mapping::Mappings).
        mapped: bool,
        /// Whether the socket sets the DF bit (don't fragment), as the last datagram of the program
        /// did.
        dont_fragment: bool,
        /// Path MTU in bytes that an IPv6 router has reported for the peer; `None` without a
        /// report.
        path_mtu: Cell<Option<usize>>,
    },
    /// The flow belongs to a client of a forwarded port, and uses that port's socket.
    Client {
        listener: u32,
        client: SocketAddr,
        /// Host address to which the client has sent its last datagram. Answers to the client are
        /// sent from this address.
        host: Option<IpAddr>,
        /// State of the client that all gateways share; `None` if there is only one gateway.
        known: Option<KnownClient>,
    },
}

/// Classes of flows that the program initiated: not yet answered by the peer, and answered.
const CLASS_PLAIN_NEW: usize = 0;
const CLASS_PLAIN: usize = 1;
/// Classes of flows to port 53, initiated by the program: not yet answered by the peer, and
/// answered.
const CLASS_DNS_NEW: usize = 2;
const CLASS_DNS: usize = 3;
/// Classes of flows that clients initiated: not yet answered by the program, and answered.
const CLASS_CLIENT_NEW: usize = 4;
const CLASS_CLIENT: usize = 5;

impl UdpFlows {
    /// Creates a table for at most `max` flows that the program initiates, and `clients_max` flows
    /// that clients initiate.
    pub(crate) fn new(max: usize, clients_max: usize, siblings: Arc<Siblings>) -> Self {
        let own = |idle_ns, worth| Class { idle_ns, owner: 0, max, worth };
        let clients = |worth| Class { idle_ns: UDP_IDLE_NS, owner: 1, max: clients_max, worth };
        let (plain, dns) = (UDP_IDLE_NS, DNS_IDLE_NS);
        let own = [own(plain, 0), own(plain, 1), own(dns, 0), own(dns, 1)];
        Self {
            flows: IdleTable::new(&[&own[..], &[clients(0), clients(1)]].concat()),
            clients: HashMap::new(),
            siblings,
            due: VecDeque::new(),
            train: Train::new(),
            others: OtherPorts::new(),
            fragmenter: Fragmenter::default(),
            hinted: HashSet::new(),
        }
    }

    /// Returns whether [`UdpFlows::serve`] has pending work.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty() || self.others.is_due()
    }

    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.flows.next_expiry_ns()
    }

    /// Returns descriptions of all flows, for lists shown to the user.
    pub(crate) fn shown(&self) -> impl Iterator<Item = FlowEntry> {
        self.flows.iter().map(|(key, flow)| {
            let [to_host, to_program] = flow.bytes;
            let (ends, host, bytes) = match &flow.side {
                Side::Connected { host, .. } => ((key.program, key.peer), Some(host), flow.bytes),
                Side::Client { .. } => ((key.peer, key.program), None, [to_program, to_host]),
            };
            datagrams(FlowProtocol::Udp, ends, host, bytes)
        })
    }

    /// Counts payload bytes of a flow. `way` is 0 for bytes to the host, and 1 for bytes to the
    /// program.
    fn count(&mut self, id: slab::SlabKey, way: usize, len: usize) {
        if let Some((_, flow)) = self.flows.get_mut(id) {
            flow.bytes[way] += len as u64;
        }
    }

    /// Marks a flow as answered, because its peer sent a datagram.
    fn on_heard(&mut self, now_ns: u64, id: slab::SlabKey) {
        if let Some((key, Flow { side: Side::Connected { silence, .. }, .. })) =
            self.flows.get_mut(id)
        {
            silence.end();
            let is_dns = key.peer.port() == nameservers::PORT;
            self.flows.touch_as(now_ns, id, if is_dns { CLASS_DNS } else { CLASS_PLAIN });
        }
    }

    /// Removes flows whose idle timeout has passed.
    pub(crate) fn expire(&mut self, shared: &mut Shared) {
        while let Some((key, flow)) = self.flows.expire(shared.now_ns) {
            shared.counters.udp_expired += 1;
            self.forget(&key, &flow.side);
        }
    }

    /// Removes flows whose sockets send from an address that was removed from the host. The
    /// program's next datagram creates a new flow.
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

    /// Handles a datagram of the program. Creates a flow if none exists for its source and
    /// destination.
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
        let marks = IpMarks { ttl, tos, dont_fragment };
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

    /// Removes an unanswered flow if a new host socket would have another source address. Returns
    /// whether the flow was removed.
    fn leave_source(
        &mut self,
        shared: &mut Shared,
        listeners: &Listeners,
        id: slab::SlabKey,
    ) -> bool {
        let Some((_, flow)) = self.flows.get_mut(id) else { return true };
        let Side::Connected { host, to, silence, .. } = &mut flow.side else { return false };
        if !silence.on_sent(shared.now_ns) || !shared.leaves_elsewhere(host, *to) {
            return false;
        }
        // Send the flow's queued datagrams before its socket is closed.
        self.depart(shared, listeners);
        if let Some((key, flow)) = self.flows.remove(id) {
            self.forget(&key, &flow.side);
        }
        shared.counters.source_moved += 1;
        true
    }

    /// Sends the datagrams that are queued in the train. Called when the inner stack has no further
    /// datagrams.
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

    /// Queues a flow whose host socket has become readable.
    pub(crate) fn on_ready(&mut self, id: slab::SlabKey, ready: Readiness) {
        let Some((_, flow)) = self.flows.get_mut(id) else { return };
        let Side::Connected { readable, .. } = &mut flow.side else { return };
        if (ready.readable || ready.failed) && !*readable {
            *readable = true;
            self.due.push_back(id);
        }
    }

    /// Passes received datagrams to the program while the link has room.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_, impl Host>) {
        self.others.serve(cx);
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

    /// Passes a datagram from a client of a forwarded port to the program. Creates a flow if there
    /// is none.
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
            // The client now sends to another host address, and expects answers only from this one.
            // The earlier address may have been removed from the host.
            *host = received.to;
        }
        match answered {
            true => self.flows.touch_as(cx.shared.now_ns, id, CLASS_CLIENT),
            false => self.flows.touch(cx.shared.now_ns, id),
        }
        to_program(cx, &key, bytes, received);
        self.count(id, 1, bytes.len());
    }

    /// Handles an ICMP error about a datagram to the program: the datagram was too long for a link,
    /// or its port is closed. Returns false for other errors and for datagrams without a flow.
    ///
    /// The inner stack stores the path MTU. A closed port is reported to the user but not to the
    /// client. The host's kernel sends no "port unreachable" itself, because the gateway has bound
    /// the port. An unprivileged gateway cannot send ICMP errors.
    pub(crate) fn on_error(
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
        if error.too_big.is_some() {
            return self.flows.find(&key).is_some() || self.client_at(&key).is_some();
        }
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

    /// Returns the listener and the host address that a flow's client uses. The flow may be in this
    /// gateway or in a sibling.
    fn client_at(&self, key: &Key) -> Option<(u32, Option<IpAddr>)> {
        match self.flows.find(key).and_then(|id| self.flows.get(id)) {
            Some((_, Flow { side: Side::Client { listener, host, .. }, .. })) => {
                Some((*listener, *host))
            }
            Some(_) => None,
            None => {
                let mut known = self.siblings.client(key)?;
                Some((known.client.listener, known.updates().flatten()))
            }
        }
    }

    /// Handles error reports about datagrams that were sent to clients of a forwarded port. Returns
    /// their number.
    pub(crate) fn on_client_errors(
        &self,
        shared: &mut Shared,
        listener: u32,
        fd: BorrowedFd<'_>,
    ) -> usize {
        let Shared { errors, config, counters, .. } = shared;
        errors.hear(fd, &[], config, counters, |report: &QueuedError, _: &[u8]| {
            let client = report.to?;
            let (key, _) = self.flows.get(*self.clients.get(&(listener, client))?)?;
            Some((key.about(), client.ip().to_canonical()))
        })
    }
}

impl SiblingEnds {
    fn about(&self) -> About {
        About::Datagram { program: self.program, peer: self.peer }
    }

    fn port(&self) -> Port {
        Port { v6: self.program.is_ipv6(), number: self.program.port() }
    }
}

impl Side {
    /// Returns whether the flow's host socket is IPv6, which may differ from the program's IP
    /// version.
    fn is_v6(&self) -> bool {
        match self {
            Self::Connected { to, .. } => to.is_ipv6(),
            Self::Client { client, .. } => canonical(*client).is_ipv6(),
        }
    }

    /// Updates the host address from which answers to the client leave. The gateway that receives
    /// from the client has stored a new address.
    fn catch_up(&mut self) {
        if let Self::Client { host, known: Some(known), .. } = self
            && let Some(news) = known.updates()
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
