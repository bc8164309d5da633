//! Two hosts on a link in memory, in virtual time. Tests use sockets, bytes and milliseconds.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use towpath_link::{Cable, CableConfig, Chance, LinkConfig, Loss, Probability};
use towpath_pool::{Fragments, LinkType, Offloads, Pool, Port, Stretch};
use towpath_ring::{Payload, RecvBuffer, SendBuffer};
use towpath_shm::Mapping;
use towpath_wire::MacAddr;

pub use towpath_link::Dice;

use crate::net::{IcmpError, InterfaceConfig};
use crate::{
    BindOptions, Budget, ChildElsewhere, DatagramError, DatagramMeta, EchoMeta, Elsewhere, Family,
    Host, IfaceId, Instant, Linger, PendingId, ShardId, SocketEvent, SocketId, SocketInfo,
    SocketKind, SocketState, Stack, StackConfig, Usage,
};

pub const MS: u64 = 1_000_000;

/// Receive buffer on the heap, shared by the stack and the test's program.
#[derive(Debug, Clone)]
pub struct Recv(Rc<RefCell<RecvState>>);

#[derive(Debug)]
struct RecvState {
    ring: Vec<u8>,
    start: usize,
    unread: usize,
    capacity_max: usize,
    /// The stack requested a notification of the next read.
    awaited: bool,
    /// Number of further requests for memory that fail.
    refusals: u32,
}

impl Recv {
    pub fn new(capacity: usize, capacity_max: usize) -> Self {
        let ring = vec![0; capacity];
        let state =
            RecvState { ring, start: 0, unread: 0, capacity_max, awaited: false, refusals: 0 };
        Self(Rc::new(RefCell::new(state)))
    }

    /// Has no memory for the next `times` segments.
    pub fn refuse(&self, times: u32) {
        self.0.borrow_mut().refusals = times;
    }

    /// Returns whether the stack requested a notification of this read, and clears the request.
    fn take_awaited(&self) -> bool {
        std::mem::take(&mut self.0.borrow_mut().awaited)
    }

    pub fn read(&self, max: usize) -> Vec<u8> {
        let mut state = self.0.borrow_mut();
        let n = state.unread.min(max);
        let bytes = (0..n).map(|i| state.ring[(state.start + i) % state.ring.len()]).collect();
        let len = state.ring.len();
        state.start = (state.start + n) % len;
        state.unread -= n;
        bytes
    }
}

impl RecvBuffer for Recv {
    fn capacity(&self) -> u32 {
        self.0.borrow().ring.len() as u32
    }

    fn unread(&self) -> u32 {
        self.0.borrow().unread as u32
    }

    fn reserve(&mut self, n: u32) -> bool {
        assert!(n <= self.free());
        let mut state = self.0.borrow_mut();
        let is_refused = state.refusals > 0;
        state.refusals -= u32::from(is_refused);
        !is_refused
    }

    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool {
        assert!(offset + data.len() <= self.free(), "written beyond the buffer");
        let mut state = self.0.borrow_mut();
        let mut bytes = vec![0; data.len() as usize];
        data.copy_to(0, &mut bytes);
        let len = state.ring.len();
        let at = state.start + state.unread + offset as usize;
        for (i, byte) in bytes.into_iter().enumerate() {
            state.ring[(at + i) % len] = byte;
        }
        true
    }

    fn commit(&mut self, n: u32) {
        assert!(n <= self.free());
        self.0.borrow_mut().unread += n as usize;
    }

    fn await_read(&mut self) {
        self.0.borrow_mut().awaited = true;
    }

    fn want_capacity(&mut self, bytes: u32) {
        let mut state = self.0.borrow_mut();
        let wanted = (bytes as usize).min(state.capacity_max);
        let old = state.ring.len();
        if wanted > old {
            // The copy also contains the out-of-order bytes behind the unread ones.
            let mut ring: Vec<u8> = (0..old).map(|i| state.ring[(state.start + i) % old]).collect();
            ring.resize(wanted, 0);
            (state.ring, state.start) = (ring, 0);
        }
    }
}

/// Send buffer, in memory that packet fragments can refer to.
#[derive(Debug, Clone)]
pub struct Send(Rc<RefCell<SendState>>);

#[derive(Debug)]
struct SendState {
    ring: Arc<Mapping>,
    start: usize,
    len: usize,
    /// Provide none of the announced bytes.
    withholds: bool,
}

impl Send {
    pub fn new(capacity: usize) -> Self {
        let ring = Arc::new(Mapping::private(capacity).expect("memory"));
        Self(Rc::new(RefCell::new(SendState { ring, start: 0, len: 0, withholds: false })))
    }

    /// From now on, provides none of the announced bytes.
    pub fn withhold(&self) {
        self.0.borrow_mut().withholds = true;
    }

    /// Appends as many bytes as fit. Returns their number.
    pub fn write(&self, bytes: &[u8]) -> usize {
        let mut state = self.0.borrow_mut();
        let capacity = state.ring.len();
        let n = bytes.len().min(capacity - state.len);
        let at = (state.start + state.len) % capacity;
        let first = n.min(capacity - at);
        state.ring.write(at, &bytes[..first]);
        state.ring.write(0, &bytes[first..n]);
        state.len += n;
        n
    }
}

impl SendBuffer for Send {
    fn len(&self) -> u32 {
        self.0.borrow().len as u32
    }

    fn capacity(&self) -> u32 {
        self.0.borrow().ring.len() as u32
    }

    fn read(&self, offset: u32, to: &mut [u8]) -> bool {
        let bytes = self.clone().peek(offset, to.len() as u32);
        let whole = bytes.len() as usize == to.len();
        if whole {
            bytes.copy_to(0, to);
        }
        whole
    }

    fn peek(&mut self, offset: u32, n: u32) -> Fragments {
        assert!(offset + n <= self.len(), "peeked beyond the buffer");
        let state = self.0.borrow();
        if state.withholds {
            return Fragments::empty();
        }
        let capacity = state.ring.len();
        let at = (state.start + offset as usize) % capacity;
        let first = (n as usize).min(capacity - at);
        let second = (n as usize - first) as u32;
        let second = (second > 0).then(|| Stretch::new(&state.ring, 0, second));
        Fragments::new(Stretch::new(&state.ring, at, first as u32), second)
    }

    fn release(&mut self, n: u32) {
        let mut state = self.0.borrow_mut();
        assert!(n as usize <= state.len);
        // Packets keep the bytes that they refer to. Released bytes may be reused at once, so
        // overwrite them to detect a later use.
        let capacity = state.ring.len();
        if Arc::strong_count(&state.ring) > 1 {
            let ring = Mapping::private(capacity).expect("memory");
            ring.copy_from(0, &state.ring, 0, capacity);
            state.ring = Arc::new(ring);
        }
        for i in 0..n as usize {
            state.ring.write((state.start + i) % capacity, &[0xdd]);
        }
        state.start = (state.start + n as usize) % capacity;
        state.len -= n as usize;
    }

    fn want_capacity(&mut self, _bytes: u32) {}
}

/// An end of a connection, from the view of the test's programs.
#[derive(Debug, Clone)]
pub struct Conn {
    pub id: SocketId,
    pub user: u32,
    pub recv: Recv,
    pub send: Send,
    pub remote: SocketAddr,
}

/// State and events of the test's programs.
#[derive(Debug, Default)]
pub struct Programs {
    pub events: Vec<(u32, SocketEvent)>,
    pub accepted: VecDeque<Conn>,
    pub datagrams: Vec<(u32, DatagramMeta, Vec<u8>)>,
    /// Reports with the users of their sockets.
    pub reports: Vec<(u32, DatagramError)>,
    pub syns: Vec<(PendingId, SocketAddr, SocketAddr)>,
    pub forgotten: Vec<PendingId>,
    pub strays: Vec<(DatagramMeta, Vec<u8>)>,
    pub echoes: Vec<(EchoMeta, Vec<u8>)>,
    /// Whether errors about datagrams sent from addresses of other hosts are accepted.
    pub knows_strays: bool,
    /// Refuse children and datagrams.
    pub no_room: bool,
    /// Programs of sockets, by user; program 0 if absent.
    pub payers: BTreeMap<u32, u64>,
    /// Whether merged datagrams are accepted (UDP_GRO).
    pub merged: bool,
    /// Users of the sockets whose filters dropped datagrams.
    pub filtered: Vec<u32>,
    /// Initial and maximum capacity of the children's buffers, in bytes.
    pub capacity: (usize, usize),
    /// Children for listeners of other shards, by user; common to all shards of a host.
    pub children: Rc<RefCell<BTreeMap<u32, Conn>>>,
    /// Children that are held back before they are offered, with their listeners.
    pub keeps: Option<Vec<(Elsewhere, SocketId, u32)>>,
    /// Messages from the owners of other shards.
    pub told: Vec<(ShardId, [u64; 3])>,
    users: u32,
}

/// Distance between the first user numbers of two shards.
pub const USERS_OF_A_SHARD: u32 = 1_000_000;

impl Programs {
    fn new() -> Self {
        Self { capacity: (65536, 65536), users: 1000, ..Self::default() }
    }

    pub fn user(&mut self) -> u32 {
        self.users += 1;
        self.users
    }

    /// Takes the events of `user` since the last call.
    pub fn take_events(&mut self, user: u32) -> Vec<SocketEvent> {
        let mut taken = Vec::new();
        self.events.retain(|(whose, event)| {
            let its = *whose == user;
            if its {
                taken.push(*event);
            }
            !its
        });
        taken
    }

    pub fn has(&self, user: u32, event: SocketEvent) -> bool {
        self.events.contains(&(user, event))
    }
}

fn bytes_of(payload: &Payload<'_>) -> Vec<u8> {
    let mut bytes = vec![0; payload.len() as usize];
    payload.copy_to(0, &mut bytes);
    bytes
}

impl Host for Programs {
    type Recv = Recv;
    type Send = Send;

    fn recv_room(&self, _listener: u32) -> u32 {
        self.capacity.0 as u32
    }

    fn accept(
        &mut self,
        _listener: u32,
        child: SocketId,
        _local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, Recv, Send)> {
        if self.no_room {
            return None;
        }
        let user = self.user();
        let (recv, send) =
            (Recv::new(self.capacity.0, self.capacity.1), Send::new(self.capacity.0));
        let conn = Conn { id: child, user, recv: recv.clone(), send: send.clone(), remote };
        self.accepted.push_back(conn);
        Some((user, recv, send))
    }

    fn accept_for(
        &mut self,
        listener: &Elsewhere,
        child: SocketId,
        _local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChildElsewhere<Recv, Send>> {
        let user = self.user();
        let (recv, send) =
            (Recv::new(self.capacity.0, self.capacity.1), Send::new(self.capacity.0));
        let conn = Conn { id: child, user, recv: recv.clone(), send: send.clone(), remote };
        self.children.borrow_mut().insert(user, conn);
        let waits = self.keeps.is_some();
        self.keeps.iter_mut().for_each(|kept| kept.push((*listener, child, !user)));
        Some(ChildElsewhere { user, tag: !user, recv, send, waits })
    }

    fn enqueue(
        &mut self,
        _listener: u32,
        (child, tag): (u32, u32),
        _local: SocketAddr,
        remote: SocketAddr,
    ) -> bool {
        assert_eq!(tag, !child);
        let conn = self.children.borrow_mut().remove(&child).expect("made before");
        assert_eq!(conn.remote, remote);
        self.accepted.push_back(conn);
        true
    }

    fn refused(&mut self, child: u32, tag: u32) {
        assert_eq!(tag, !child);
        self.children.borrow_mut().remove(&child).expect("made before");
    }

    fn told(&mut self, from: ShardId, words: [u64; 3]) {
        self.told.push((from, words));
    }

    fn syn(&mut self, pending: PendingId, local: SocketAddr, remote: SocketAddr) {
        self.syns.push((pending, local, remote));
    }

    fn syn_forgotten(&mut self, pending: PendingId) {
        self.forgotten.push(pending);
    }

    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool {
        if !self.no_room {
            self.datagrams.push((user, *meta, bytes_of(payload)));
        }
        !self.no_room
    }

    fn payer(&self, user: u32) -> u64 {
        self.payers.get(&user).copied().unwrap_or_default()
    }

    fn takes_merged(&self, _: u32) -> bool {
        self.merged
    }

    fn filtered(&mut self, user: u32) {
        self.filtered.push(user);
    }

    fn stray_datagram(&mut self, meta: &DatagramMeta, payload: &Payload<'_>) {
        self.strays.push((*meta, bytes_of(payload)));
    }

    fn stray_echo(&mut self, meta: &EchoMeta, payload: &Payload<'_>) {
        self.echoes.push((*meta, bytes_of(payload)));
    }

    fn stray_error(&mut self, _: &IcmpError) -> bool {
        self.knows_strays
    }

    fn datagram_error(&mut self, user: u32, error: DatagramError) {
        self.reports.push((user, error));
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        self.events.push((user, event));
    }
}

/// A cable between two hosts, and the interfaces at its ends.
#[derive(Debug, Clone)]
pub struct WorldConfig {
    pub link: LinkType,
    pub delay_ns: u64,
    /// Lost packets per thousand, in each direction.
    pub loss: u64,
    /// Rate of a device in packets of 1500 bytes per millisecond, and maximum number of packets
    /// that wait in it.
    pub rate: Option<u64>,
    pub offloads: Offloads,
    /// Whether the interfaces are marked as links within one process.
    pub in_process: bool,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            link: LinkType::Ip,
            delay_ns: MS,
            loss: 0,
            rate: None,
            offloads: Offloads::default(),
            in_process: false,
        }
    }
}

/// Maximum length of an IP packet in bytes, without link header.
const MTU: usize = 1500;

/// Returns random losses of `of_a_thousand` packets per thousand.
fn losses(of_a_thousand: u64) -> Loss {
    let probability = Probability::new(of_a_thousand as f64 / 1000.).expect("not above 1");
    Loss::Random(Chance::independent(probability))
}

/// Packets sent by the ends of a cable; `None` unless they are recorded.
type Seen = Rc<RefCell<Option<Vec<Vec<u8>>>>>;

impl WorldConfig {
    /// Creates the cable, whose devices refuse packets that they could not send.
    fn cable(&self, seen: &Seen) -> Cable {
        let link = LinkConfig {
            rate: self.rate.map(|packets| packets * MTU as u64 * 8 * 1000),
            delay_ns: self.delay_ns,
            loss: losses(self.loss),
            ..LinkConfig::default()
        };
        let (link_type, offloads, seen) = (self.link, self.offloads, Rc::clone(seen));
        let ring = self.rate.map(|packets| packets as usize);
        let cable = Cable::new(CableConfig { link_type, offloads, link, ring }, Dice::new(0, 0));
        let header = if link_type == LinkType::Ethernet { 14 } else { 0 };
        cable.observe(move |_, packet| {
            if packet.meta.segmentation.is_none() {
                assert!(packet.len() <= MTU + header, "{} bytes sent", packet.len());
            } else {
                assert!(offloads.tcp_segmentation);
            }
            if let Some(seen) = &mut *seen.borrow_mut() {
                seen.push(packet.linear().to_vec());
            }
        });
        cable
    }
}

/// A host with its programs.
pub struct Node {
    pub stack: Stack<Programs>,
    pub host: Programs,
    pub pool: Pool,
    pub ports: Vec<Box<dyn Port>>,
    pub now: Instant,
}

impl Node {
    pub fn new(config: StackConfig, seed: u8) -> Self {
        let now = Instant(1000 * MS);
        Self {
            stack: Stack::new(config, [seed; 32], now),
            host: Programs::new(),
            pool: Pool::default(),
            ports: Vec::new(),
            now,
        }
    }

    /// Creates the node of shard `n` of a host, with its stack.
    pub fn shard(
        stack: Stack<Programs>,
        n: u32,
        children: &Rc<RefCell<BTreeMap<u32, Conn>>>,
    ) -> Self {
        let now = Instant(1000 * MS);
        let (users, children) = (n * USERS_OF_A_SHARD + 1000, Rc::clone(children));
        let host = Programs { users, children, ..Programs::new() };
        Self { stack, host, pool: Pool::default(), ports: Vec::new(), now }
    }

    pub fn turn(&mut self) -> bool {
        let Self { stack, host, pool, ports, now } = self;
        stack.turn(*now, host, ports, pool, Budget::default()).more
    }

    pub fn open(&mut self, kind: SocketKind, family: Family) -> (SocketId, u32) {
        let user = self.host.user();
        (self.stack.open(kind, family, user).expect("room"), user)
    }

    pub fn listen(&mut self, addr: &str, backlog: u32) -> (SocketId, u32) {
        let addr: SocketAddr = addr.parse().expect("an address");
        let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
        let (id, user) = self.open(SocketKind::Stream, family);
        self.stack
            .bind(id, addr, BindOptions { reuse_addr: true, ..Default::default() })
            .expect("bind");
        self.stack.listen(id, backlog).expect("listen");
        (id, user)
    }

    pub fn connect(&mut self, remote: &str) -> Conn {
        self.connect_with(remote, 65536, 65536)
    }

    pub fn connect_with(&mut self, remote: &str, capacity: usize, capacity_max: usize) -> Conn {
        let remote: SocketAddr = remote.parse().expect("an address");
        let family = if remote.is_ipv4() { Family::V4 } else { Family::V6 };
        let (id, user) = self.open(SocketKind::Stream, family);
        let (recv, send) = (Recv::new(capacity, capacity_max), Send::new(capacity));
        let connected = self.stack.connect(self.now, id, remote, recv.clone(), send.clone());
        connected.expect("connect");
        Conn { id, user, recv, send, remote }
    }

    /// Like [`Node::connect`], with Fast Open. Returns true if the SYN waits for bytes.
    pub fn connect_fast(&mut self, remote: &str) -> (Conn, bool) {
        let remote: SocketAddr = remote.parse().expect("an address");
        let family = if remote.is_ipv4() { Family::V4 } else { Family::V6 };
        let (id, user) = self.open(SocketKind::Stream, family);
        let (recv, send) = (Recv::new(65536, 65536), Send::new(65536));
        let (to, from) = (recv.clone(), send.clone());
        let connected = self.stack.connect_fast_open(self.now, id, remote, to, from);
        (Conn { id, user, recv, send, remote }, connected.expect("connect"))
    }

    /// Takes the oldest child from the accept queue of `listener`.
    pub fn accept(&mut self, listener: SocketId) -> Option<Conn> {
        let conn = self.host.accepted.pop_front()?;
        self.stack.accepted(listener);
        Some(conn)
    }

    pub fn write(&mut self, conn: &Conn, bytes: &[u8]) -> usize {
        let n = conn.send.write(bytes);
        if n > 0 {
            self.stack.send_ready(conn.id);
        }
        n
    }

    pub fn read(&mut self, conn: &Conn) -> Vec<u8> {
        self.read_some(conn, usize::MAX)
    }

    /// Reads at most `max` bytes. Notifies the stack only if it requested that, like programs do.
    pub fn read_some(&mut self, conn: &Conn, max: usize) -> Vec<u8> {
        let bytes = conn.recv.read(max);
        if !bytes.is_empty() && conn.recv.take_awaited() {
            self.stack.recv_taken(self.now, conn.id);
        }
        bytes
    }

    pub fn close(&mut self, id: SocketId) {
        self.stack.close(self.now, id, Linger::Default);
    }

    pub fn abort(&mut self, id: SocketId) {
        self.stack.close(self.now, id, Linger::Abort);
    }

    pub fn info(&self, id: SocketId) -> Option<SocketInfo> {
        self.stack.info(self.now, id)
    }

    pub fn state(&self, id: SocketId) -> Option<SocketState> {
        self.info(id).map(|info| info.state)
    }

    pub fn drops(&self, reason: crate::DropReason) -> u64 {
        self.stack.net.counters().data.drops.of(reason)
    }

    /// Checks that all tables are empty, and no work is left.
    pub fn assert_empty(&self) {
        let stack = &self.stack;
        assert_eq!(stack.usage(), Usage::default());
        assert_eq!(stack.handshakes.early.len(), 0);
        assert!(stack.dirty.is_empty() && stack.events.is_empty());
        assert!(stack.output_lines.is_empty());
    }

    pub fn next_timeout(&self) -> Option<u64> {
        let ports = self.ports.iter().filter_map(|port| port.next_timeout_ns());
        ports.chain(self.stack.next_timeout().map(|at| at.0)).min()
    }
}

/// Two hosts and their link: a is 10.0.0.1 and fd00::1, b is 10.0.0.2 and fd00::2.
pub struct World {
    pub a: Node,
    pub b: Node,
    pub cable: Cable,
    seen: Seen,
}

impl World {
    pub fn new(link: WorldConfig) -> Self {
        Self::with(link, StackConfig::default(), false)
    }

    /// Creates the hosts. With `any_address`, b is a gateway.
    pub fn with(link: WorldConfig, config: StackConfig, any_address: bool) -> Self {
        let seen = Seen::default();
        let cable = link.cable(&seen);
        let mut nodes = [Node::new(config.clone(), 1), Node::new(config, 2)];
        for (end, node) in nodes.iter_mut().enumerate() {
            let last = end as u8 + 1;
            let addresses = vec![
                format!("10.0.0.{last}/24").parse().expect("a prefix"),
                format!("fd00::{last}/64").parse().expect("a prefix"),
            ];
            let interface = InterfaceConfig {
                name: "eth0".to_string(),
                link: link.link,
                mac: MacAddr([2, 0, 0, 0, 0, last]),
                mtu: MTU as u32,
                offloads: link.offloads,
                addresses,
                slaac: false,
                any_address: any_address && end == 1,
                kernel_cuts: false,
                in_process: link.in_process,
            };
            let now = node.now;
            let iface = node.stack.net.add_interface(now, interface);
            assert_eq!(iface, IfaceId(1));
            let default: IpAddr =
                if end == 0 { [10, 0, 0, 2].into() } else { [10, 0, 0, 1].into() };
            node.stack.net.add_route(
                "0.0.0.0/0".parse().expect("a prefix"),
                Some(default),
                iface,
                1,
            );
            node.ports.push(Box::new(cable.end(end)));
        }
        let [a, b] = nodes;
        Self { a, b, cable, seen }
    }

    pub fn now(&self) -> Instant {
        self.a.now
    }

    /// From now on, loses this many packets per thousand.
    pub fn set_loss(&mut self, loss: u64) {
        self.cable.configure(|link| link.loss = losses(loss));
    }

    /// Stops the device of a, which then accepts no packets, or restarts it.
    pub fn set_stuck(&mut self, stuck: bool) {
        self.cable.stop(0, stuck);
    }

    pub fn keep_seen(&mut self) {
        self.seen.borrow_mut().get_or_insert_default();
    }

    pub fn take_seen(&mut self) -> Vec<Vec<u8>> {
        self.seen.borrow_mut().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Delivers a forged packet to b at once.
    pub fn inject(&mut self, bytes: &[u8]) {
        let mut packet = self.b.pool.take(bytes.len());
        packet.push_back(bytes.len()).expect("room").copy_from_slice(bytes);
        self.cable.inject(1, packet);
    }

    /// Turns both hosts until there is no work at this time.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 100_000, "the hosts never come to rest");
            let more = [self.a.turn(), self.b.turn()];
            let next = self.next_event();
            if !more[0] && !more[1] && next.is_none_or(|next| next > self.now().0) {
                return;
            }
        }
    }

    fn next_event(&self) -> Option<u64> {
        self.a.next_timeout().into_iter().chain(self.b.next_timeout()).min()
    }

    /// Lets `ms` milliseconds pass.
    pub fn run(&mut self, ms: u64) {
        let end = self.now().0 + ms * MS;
        self.run_until(end, |_| false);
    }

    /// Runs until `done`. Fails after `ms` milliseconds.
    pub fn wait(&mut self, ms: u64, what: &str, done: impl FnMut(&mut World) -> bool) {
        let end = self.now().0 + ms * MS;
        assert!(self.run_until(end, done), "{what}: not after {ms} ms");
    }

    fn run_until(&mut self, end: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        loop {
            self.settle();
            if done(self) {
                self.settle();
                return true;
            }
            // `done` may have caused work.
            let next = self.next_event().map_or(end, |next| next.max(self.now().0)).min(end);
            if self.now().0 >= end {
                return false;
            }
            self.a.now = Instant(next);
            self.b.now = Instant(next);
        }
    }

    /// Connects a to a listener on b. Returns both ends.
    pub fn connected(&mut self, listener: SocketId, remote: &str) -> (Conn, Conn) {
        let client = self.a.connect(remote);
        self.wait(10_000, "connect", |w| w.a.host.has(client.user, SocketEvent::Connected));
        self.wait(10_000, "accept", |w| !w.b.host.accepted.is_empty());
        let server = self.b.accept(listener).expect("accepted");
        (client, server)
    }

    /// Checks that no state is left ten minutes after everything was closed.
    pub fn assert_ends_empty(&mut self) {
        self.run(600_000);
        self.a.assert_empty();
        self.b.assert_empty();
    }
}
