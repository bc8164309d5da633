//! Implementation of [`towpath_stack::Host`]: a socket table, buffers in private memory, and an
//! event queue.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use towpath_ring::{HeapRecv, HeapSend, Payload};
use towpath_stack::net::IcmpError;
use towpath_stack::{
    DatagramMeta, EchoMeta, Host, PendingId, ReceivedFields, SocketError, SocketEvent, SocketId,
};

use crate::event::{NodeEvent, PendingEvents, PendingSyn};
use crate::handle::SocketHandle;
use crate::sent::SentFlows;
use crate::spare::SpareBytes;
use crate::table::{BufferSizes, DirectEntry, DirectKind, ReceivedDatagram, SocketLife, Table};

/// Limits and defaults of the sockets in a [`Direct`].
#[derive(Debug, Clone, Copy)]
pub struct DirectConfig {
    /// Maximum number of sockets of all kinds, including closing sockets and connections that wait
    /// to be accepted.
    pub sockets_max: usize,
    /// Default sizes of a connection's buffers.
    pub buffers: BufferSizes,
    /// Maximum number of bytes of received datagrams that wait in one socket to be read. Each
    /// datagram counts 64 bytes extra. The default is Linux's `rmem_default`.
    pub datagram_bytes_max: usize,
    /// Maximum number of queued datagrams and echo requests to addresses that are not the host's
    /// own, see [`crate::Node::take_stray`].
    pub strays_max: usize,
}

impl Default for DirectConfig {
    fn default() -> Self {
        Self {
            sockets_max: 1 << 20,
            buffers: BufferSizes::default(),
            datagram_bytes_max: 212_992,
            strays_max: 1024,
        }
    }
}

/// Number of times that each limit was reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// Incoming connections refused because of `sockets_max`. The last ACK of their handshake was
    /// dropped.
    pub children_refused: u64,
    /// Datagrams dropped because the queue of their socket was full.
    pub datagrams_refused: u64,
    /// Datagrams and echo requests to addresses that are not the host's own, dropped because of
    /// `strays_max`.
    pub strays_dropped: u64,
}

/// Packet to an address that is not the host's own, received on an interface that accepts packets
/// to any address. ICMP errors about answers to such packets are included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stray {
    /// UDP datagram. Answer it using [`crate::Node::send_datagram_from`].
    Datagram(DatagramMeta, Vec<u8>),
    /// ICMP echo request. Answer it using [`crate::Node::send_echo_from`].
    Echo(EchoMeta, Vec<u8>),
    /// ICMP error about a datagram that was sent by [`crate::Node::send_datagram_from`].
    Error(IcmpError),
}

/// Sockets of a [`crate::Node`] and their pending events.
#[derive(Debug)]
pub struct Direct {
    /// Number by which the stack knows the first socket of the table. The socket at index `i` has
    /// the number `first_user + i`.
    pub(crate) first_user: u32,
    pub(crate) config: DirectConfig,
    pub(crate) table: Table,
    pub(crate) counters: DirectCounters,
    /// Indices of sockets with pending events, each at most once. A new socket may reuse an index,
    /// so the reader checks the event bits of the current socket.
    ready: VecDeque<u32>,
    syns: VecDeque<PendingSyn>,
    /// SYNs that the stack dropped after they were reported as events. While this queue is not
    /// empty, no further SYN is reported. The queue is therefore not longer than the stack's limit
    /// of pending SYNs.
    forgotten: VecDeque<PendingId>,
    strays: VecDeque<Stray>,
    /// Flows of the datagrams that were sent from addresses that are not the host's own.
    pub(crate) sent: SentFlows,
    /// Memory of read datagrams, reused for the next ones.
    pub(crate) spare: SpareBytes,
}

impl Direct {
    /// Creates a host without sockets.
    pub fn new(config: DirectConfig) -> Self {
        Self::numbered(config, 0)
    }

    /// Creates a host without sockets. The stack knows socket `i` of this host by the number
    /// `first_user + i`. The owner of the stack subtracts `first_user` from these numbers before it
    /// forwards calls of [`Host`].
    pub fn numbered(config: DirectConfig, first_user: u32) -> Self {
        Self {
            first_user,
            config,
            table: Table::default(),
            counters: DirectCounters::default(),
            ready: VecDeque::new(),
            syns: VecDeque::new(),
            forgotten: VecDeque::new(),
            strays: VecDeque::new(),
            sent: SentFlows::default(),
            spare: SpareBytes::default(),
        }
    }

    /// Returns the number of sockets of all kinds, including closing sockets and connections that
    /// wait to be accepted.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there are no sockets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns the next event; sockets take turns in round-robin order.
    pub fn poll_event(&mut self) -> Option<NodeEvent> {
        if let Some(id) = self.forgotten.pop_front() {
            return Some(NodeEvent::SynForgotten(id));
        }
        if let Some(syn) = self.syns.pop_front() {
            return Some(NodeEvent::Syn(syn));
        }
        while let Some(index) = self.ready.front().copied() {
            let Some(entry) = self.table.at_mut(index) else {
                self.ready.pop_front();
                continue;
            };
            let taken = entry.pending.take();
            if entry.pending.is_empty() {
                entry.queued = false;
                self.ready.pop_front();
            }
            let Some(taken) = taken else { continue };
            let (handle, failure) = (entry.handle, entry.failure);
            let event = match taken {
                PendingEvents::CONNECTED => NodeEvent::Connected(handle),
                PendingEvents::INCOMING => NodeEvent::Incoming(handle),
                PendingEvents::READABLE => NodeEvent::Readable(handle),
                PendingEvents::WRITABLE => NodeEvent::Writable(handle),
                PendingEvents::PEER_CLOSED => NodeEvent::PeerClosed(handle),
                PendingEvents::FAILED => {
                    NodeEvent::Failed(handle, failure.unwrap_or(SocketError::Reset))
                }
                _ => {
                    self.table.remove(index);
                    NodeEvent::Closed(handle)
                }
            };
            return Some(event);
        }
        None
    }

    /// Creates a socket for a connection that a listener of another shard (a stack on another
    /// thread) accepts. The socket has the default buffer sizes. The event [`NodeEvent::Connected`]
    /// follows. Returns the socket's index and buffers; `None` if there are too many sockets.
    pub fn accept_elsewhere(&mut self, child: SocketId) -> Option<(u32, HeapRecv, HeapSend)> {
        if self.is_full() {
            self.counters.children_refused += 1;
            return None;
        }
        let handle = self.add(DirectKind::Stream, SocketLife::Open);
        if let Some(entry) = self.table.get_mut(handle) {
            entry.id = child;
        }
        self.note(handle.index, PendingEvents::CONNECTED);
        let (recv, send) = make_buffers(self.config.buffers);
        Some((handle.index, recv, send))
    }

    pub(crate) fn take_stray(&mut self) -> Option<Stray> {
        self.strays.pop_front()
    }

    /// Adds a socket to the table, before the stack opens it. The stack then refers to the socket
    /// by its `index`.
    pub(crate) fn add(&mut self, kind: DirectKind, life: SocketLife) -> SocketHandle {
        self.table.insert(|handle| DirectEntry {
            handle,
            id: SocketId(u64::MAX),
            kind,
            pending: PendingEvents::default(),
            queued: false,
            life,
            received: None,
            failure: None,
            ended: false,
            shut: false,
        })
    }

    /// Returns the default buffer sizes of connections.
    pub fn default_buffers(&self) -> BufferSizes {
        self.config.buffers
    }

    pub(crate) fn is_full(&self) -> bool {
        self.table.len() >= self.config.sockets_max
    }

    /// Returns whether sockets have pending events.
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the table entry of a socket that is open, and `None` for a closing or removed one.
    pub(crate) fn open(&self, handle: SocketHandle) -> Option<&DirectEntry> {
        self.table.get(handle).filter(|entry| entry.life == SocketLife::Open)
    }

    pub(crate) fn open_mut(&mut self, handle: SocketHandle) -> Option<&mut DirectEntry> {
        self.table.get_mut(handle).filter(|entry| entry.life == SocketLife::Open)
    }

    /// Records an event of the socket at `index`. Events of a connection that waits in an accept
    /// queue are reported after the program has accepted the connection.
    fn note(&mut self, index: u32, what: PendingEvents) {
        let Some(entry) = self.table.at_mut(index) else { return };
        entry.pending.add(what);
        self.queue(index);
    }

    /// Adds the socket at `index` to the queue of sockets with events.
    pub(crate) fn queue(&mut self, index: u32) {
        let Some(entry) = self.table.at_mut(index) else { return };
        if !entry.queued && !entry.pending.is_empty() && entry.life != SocketLife::Unaccepted {
            entry.queued = true;
            self.ready.push_back(index);
        }
    }

    /// Returns the buffer sizes of the connections that a listener accepts.
    fn child_buffers(&self, listener: u32) -> BufferSizes {
        match self.table.at(listener).map(|entry| &entry.kind) {
            Some(DirectKind::Listener { buffers, .. }) => *buffers,
            _ => self.config.buffers,
        }
    }

    fn add_stray(&mut self, stray: Stray) {
        if self.strays.len() < self.config.strays_max {
            self.strays.push_back(stray);
        } else {
            self.counters.strays_dropped += 1;
        }
    }
}

/// Creates the receive and the send buffer of a connection.
pub(crate) fn make_buffers(sizes: BufferSizes) -> (HeapRecv, HeapSend) {
    let recv = HeapRecv::new(sizes.recv, sizes.recv_max.max(sizes.recv));
    let send = HeapSend::new(sizes.send, sizes.send_max.max(sizes.send));
    (recv, send)
}

fn bytes_of(payload: &Payload<'_>) -> Vec<u8> {
    let mut bytes = vec![0; payload.len() as usize];
    payload.copy_to(0, &mut bytes);
    bytes
}

impl Host for Direct {
    type Recv = HeapRecv;
    type Send = HeapSend;

    fn recv_room(&self, listener: u32) -> u32 {
        self.child_buffers(listener).recv
    }

    fn accept(
        &mut self,
        listener: u32,
        child: SocketId,
        _local: SocketAddr,
        _remote: SocketAddr,
    ) -> Option<(u32, HeapRecv, HeapSend)> {
        if self.is_full() {
            self.counters.children_refused += 1;
            return None;
        }
        let sizes = self.child_buffers(listener);
        let handle = self.add(DirectKind::Stream, SocketLife::Unaccepted);
        if let Some(entry) = self.table.get_mut(handle) {
            entry.id = child;
        }
        if let Some(DirectKind::Listener { children, .. }) =
            self.table.at_mut(listener).map(|entry| &mut entry.kind)
        {
            children.push_back(handle);
        }
        self.note(listener, PendingEvents::INCOMING);
        let (recv, send) = make_buffers(sizes);
        Some((handle.index, recv, send))
    }

    fn received_fields(&mut self, user: u32, fields: ReceivedFields) {
        if let Some(entry) = self.table.at_mut(user) {
            entry.received = Some(fields);
        }
    }

    fn syn(&mut self, id: PendingId, local: SocketAddr, remote: SocketAddr) {
        self.syns.push_back(PendingSyn { id, local, remote });
    }

    fn displace_syn(&mut self, remote: SocketAddr) -> Option<PendingId> {
        // The owner of the stack limits pending SYNs per source address only between calls of the
        // stack. If a source sends many SYNs during one call, drop one of this source, so that SYNs
        // of other sources remain.
        let is_of_source = |syn: &&PendingSyn| is_same_source(syn.remote.ip(), remote.ip());
        self.syns.iter().rev().find(is_of_source).map(|syn| syn.id)
    }

    fn syn_forgotten(&mut self, pending: PendingId) {
        // The stack drops the oldest SYN first, so the search ends near the front.
        match self.syns.iter().position(|syn| syn.id == pending) {
            Some(at) => drop(self.syns.remove(at)),
            None => self.forgotten.push_back(pending),
        }
    }

    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool {
        let max = self.config.datagram_bytes_max;
        let spare = &mut self.spare;
        let entry = self.table.at_mut(user).filter(|entry| entry.life == SocketLife::Open);
        let Some(DirectKind::Datagram { received, bytes }) = entry.map(|entry| &mut entry.kind)
        else {
            return false;
        };
        let size = ReceivedDatagram::size(payload.len() as usize);
        if *bytes + size > max {
            self.counters.datagrams_refused += 1;
            return false;
        }
        *bytes += size;
        let mut content = spare.take(payload.len() as usize);
        payload.copy_to(0, &mut content);
        received.push_back(ReceivedDatagram { meta: *meta, bytes: content });
        self.note(user, PendingEvents::READABLE);
        true
    }

    fn stray_datagram(&mut self, meta: &DatagramMeta, payload: &Payload<'_>) {
        if self.strays.len() >= self.config.strays_max {
            self.counters.strays_dropped += 1;
            return;
        }
        let mut bytes = self.spare.take(payload.len() as usize);
        payload.copy_to(0, &mut bytes);
        self.strays.push_back(Stray::Datagram(*meta, bytes));
    }

    fn stray_echo(&mut self, meta: &EchoMeta, payload: &Payload<'_>) {
        self.add_stray(Stray::Echo(*meta, bytes_of(payload)));
    }

    fn stray_error(&mut self, error: &IcmpError) -> bool {
        let local = SocketAddr::new(error.src, error.src_port);
        let remote = SocketAddr::new(error.dst, error.dst_port);
        let is_known = self.sent.contains(local, remote);
        if is_known {
            self.add_stray(Stray::Error(error.clone()));
        }
        is_known
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        let Some(entry) = self.table.at_mut(user) else { return };
        let (life, is_stream) = (entry.life, matches!(entry.kind, DirectKind::Stream));
        if event == SocketEvent::Closed {
            if life == SocketLife::Silent {
                return self.table.remove(user);
            }
            return self.note(user, PendingEvents::CLOSED);
        }
        if matches!(life, SocketLife::Closing | SocketLife::Silent) {
            return;
        }
        let what = match event {
            SocketEvent::Readable => PendingEvents::READABLE,
            SocketEvent::Writable => PendingEvents::WRITABLE,
            SocketEvent::Connected => PendingEvents::CONNECTED,
            SocketEvent::PeerClosed => {
                entry.ended = true;
                PendingEvents::PEER_CLOSED
            }
            SocketEvent::Error(error) => {
                // A datagram socket remains usable after an error, so report the latest error; a
                // connection reports its first.
                entry.failure = if is_stream { entry.failure.or(Some(error)) } else { Some(error) };
                PendingEvents::FAILED
            }
            _ => return,
        };
        self.note(user, what);
    }
}

/// Returns whether two addresses are equal, or are IPv6 addresses with the same prefix of 64 bits.
fn is_same_source(a: IpAddr, b: IpAddr) -> bool {
    match (a, b) {
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= 64,
        _ => a == b,
    }
}

/// Returns the address family of the address `ip`.
pub(crate) fn family_of(ip: IpAddr) -> towpath_stack::Family {
    if ip.is_ipv4() { towpath_stack::Family::V4 } else { towpath_stack::Family::V6 }
}
