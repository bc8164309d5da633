//! Two hosts with several shards, and a link that delivers each packet to a random shard, or to its
//! owner.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use towpath_link::{Cable, CableConfig, CableEnd, Chance, LinkConfig, Loss, Probability};
use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port};
use towpath_ring::Payload;
use towpath_wire::{MacAddr, ipv4};

use crate::net::InterfaceConfig;
use crate::tests::world::{Conn, Dice, MS, Node, Programs, Recv, Send, USERS_OF_A_SHARD};
use crate::{
    BindError, BindOptions, ConnectError, DatagramOut, Family, IfaceId, Instant, Owners, SendError,
    SocketEvent, SocketId, SocketKind, Stack, StackConfig,
};

pub const COUNTS: [usize; 4] = [1, 2, 4, 8];

/// Runs a script with hosts of each number of shards. Sockets and packets are distributed
/// differently for each seed.
pub fn for_each_count(script: impl Fn(&mut Hosts)) {
    for count in COUNTS {
        for seed in 1..=6 {
            script(&mut Hosts::new(count, seed, StackConfig::default()));
        }
    }
}

/// Like [`for_each_count`], and also on an Ethernet link, where hosts have to resolve each other.
pub fn for_each_link(script: impl Fn(&mut Hosts)) {
    for_each_count(&script);
    for_each_ethernet(script);
}

/// Runs a script on an Ethernet link, after duplicate detection of the hosts' addresses.
pub fn for_each_ethernet(script: impl Fn(&mut Hosts)) {
    for count in COUNTS {
        for seed in 1..=3 {
            let w = &mut Hosts::ethernet(count, seed, StackConfig::default(), false);
            w.run(3000);
            w.take_seen();
            script(w);
        }
    }
}

/// The device of a host, with a queue for each shard.
struct Device {
    end: CableEnd,
    queues: Vec<Batch>,
    dice: Dice,
    /// Assignment of flows to shards, for a device that steers packets.
    owners: Owners,
    steers: bool,
}

impl Device {
    fn receive(&mut self, now_ns: u64, pool: &mut Pool) {
        let mut arrived = Batch::new();
        self.end.poll(now_ns, pool, &mut arrived, usize::MAX);
        for packet in arrived {
            let shard = self.queue_of(&packet);
            self.queues[shard].push_back(packet);
        }
    }

    fn queue_of(&mut self, packet: &Packet) -> usize {
        if !self.steers {
            return self.dice.index(self.queues.len());
        }
        let bytes = packet.linear();
        let (header, at) = ipv4::Header::parse_quoted(bytes).expect("the script is of IPv4");
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let ends = [(header.src, port(at)), (header.dst, port(at + 2))].map(SocketAddr::from);
        self.owners.owner(ends[0], ends[1]).index()
    }
}

/// A queue of a host's device.
struct Queue {
    device: Rc<RefCell<Device>>,
    shard: usize,
}

impl Port for Queue {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut device = self.device.borrow_mut();
        device.receive(now_ns, pool);
        let queue = &mut device.queues[self.shard];
        let ready = queue.len().min(max);
        out.extend(queue.drain(..ready));
        ready
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.device.borrow_mut().end.submit(now_ns, pool, batch)
    }

    fn offloads(&self) -> Offloads {
        self.device.borrow().end.offloads()
    }

    fn link_type(&self) -> LinkType {
        self.device.borrow().end.link_type()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let device = self.device.borrow();
        let waiting = (!device.queues[self.shard].is_empty()).then_some(0);
        waiting.or_else(|| device.end.next_timeout_ns())
    }
}

/// A socket of a test's program, with its host and shard.
#[derive(Debug, Clone, Copy)]
pub struct Sock {
    pub side: usize,
    pub shard: usize,
    pub id: SocketId,
    pub user: u32,
}

/// An end of a connection, with its host and shard.
#[derive(Debug, Clone)]
pub struct HandshakeEnd {
    pub sock: Sock,
    pub conn: Conn,
}

const FRAME_MAX: usize = 1514;

/// Returns the MAC address of a host.
pub fn mac(side: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, side as u8 + 1])
}

/// Two hosts: 0 is 10.0.0.1 and fd00::1, 1 is 10.0.0.2 and fd00::2.
pub struct Hosts {
    pub sides: [Vec<Node>; 2],
    devices: [Rc<RefCell<Device>>; 2],
    cable: Cable,
    seen: Rc<RefCell<Vec<Vec<u8>>>>,
    pub dice: Dice,
}

impl Hosts {
    pub fn new(count: usize, seed: u64, config: StackConfig) -> Self {
        Self::on_link(count, seed, config, (LinkType::Ip, false))
    }

    /// Creates hosts on an Ethernet link. With `slaac`, they accept router advertisements.
    pub fn ethernet(count: usize, seed: u64, config: StackConfig, slaac: bool) -> Self {
        Self::on_link(count, seed, config, (LinkType::Ethernet, slaac))
    }

    fn on_link(
        count: usize,
        seed: u64,
        config: StackConfig,
        (link, slaac): (LinkType, bool),
    ) -> Self {
        let (mut dice, seen) = (Dice::new(seed, 0), Rc::<RefCell<Vec<_>>>::default());
        let way = LinkConfig { delay_ns: MS, ..LinkConfig::default() };
        let config_of_cable = CableConfig { link_type: link, link: way, ..CableConfig::default() };
        let cable = Cable::new(config_of_cable, dice.split());
        let sees = Rc::clone(&seen);
        cable.observe(move |_, packet| {
            assert!(packet.len() <= FRAME_MAX);
            sees.borrow_mut().push(packet.linear().to_vec());
        });
        let secrets = [0, 1].map(|side| [seed as u8 * 2 + side; 32]);
        let devices = [0, 1].map(|side| {
            Rc::new(RefCell::new(Device {
                end: cable.end(side),
                queues: (0..count).map(|_| Batch::new()).collect(),
                dice: dice.split(),
                owners: Owners::new(&secrets[side], count),
                steers: false,
            }))
        });
        let sides = [0, 1].map(|side| {
            let secret = secrets[side];
            let stacks = Stack::shards(config.clone(), secret, Instant(1000 * MS), count);
            let children = Rc::default();
            let node = |(stack, shard)| {
                let mut node = Node::shard(stack, shard as u32, &children);
                if shard == 0 {
                    add_link(&mut node.stack, node.now, side, (link, slaac));
                }
                let queue = Queue { device: Rc::clone(&devices[side]), shard };
                node.ports.push(Box::new(queue));
                node
            };
            stacks.into_iter().zip(0..).map(node).collect()
        });
        Self { sides, devices, cable, seen, dice }
    }

    pub fn count(&self) -> usize {
        self.sides[0].len()
    }

    pub fn now(&self) -> Instant {
        self.sides[0][0].now
    }

    pub fn node(&mut self, sock: Sock) -> &mut Node {
        &mut self.sides[sock.side][sock.shard]
    }

    /// From now on, delivers each packet to the shard that owns its flow, like a device with a
    /// queue per shard.
    pub fn steer(&mut self) {
        self.devices.iter().for_each(|device| device.borrow_mut().steers = true);
    }

    /// Returns the number of packets that the shards of a host handed over, and of changes that
    /// they applied.
    pub fn exchanged(&self, side: usize) -> (u64, u64) {
        let told = |node: &Node| node.stack.shards.member.as_ref().map_or(0, |member| member.seen);
        let nodes = || self.sides[side].iter();
        let handed = nodes().map(|node| node.stack.counters().shard_handed_over).sum();
        (handed, nodes().map(told).sum())
    }

    pub fn take_seen(&mut self) -> Vec<Vec<u8>> {
        self.seen.take()
    }

    /// From now on, loses all packets, or none.
    pub fn cut(&mut self, is_cut: bool) {
        let probability = if is_cut { Probability::ALWAYS } else { Probability::NEVER };
        let loss = Loss::Random(Chance::independent(probability));
        self.cable.configure(|link| link.loss = loss);
    }

    /// Delivers a forged packet to a random shard of a host.
    pub fn inject(&mut self, side: usize, bytes: &[u8]) {
        let shard = self.any_shard();
        self.inject_at(side, shard, bytes);
    }

    /// Delivers a forged packet to a given shard of a host.
    pub fn inject_at(&mut self, side: usize, shard: usize, bytes: &[u8]) {
        let mut packet = self.sides[side][shard].pool.take(bytes.len());
        packet.push_back(bytes.len()).expect("room").copy_from_slice(bytes);
        self.devices[side].borrow_mut().queues[shard].push_back(packet);
    }

    fn any_shard(&mut self) -> usize {
        let count = self.count() as u64;
        self.dice.below(count) as usize
    }

    /// Turns all shards in random order until there is no work at this time.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "the hosts never come to rest");
            let mut more = false;
            let first = self.any_shard();
            let count = self.count();
            for n in 0..count {
                for side in 0..2 {
                    more |= self.sides[side][(first + n) % count].turn();
                }
            }
            if !more && self.next_event().is_none_or(|next| next > self.now().0) {
                return;
            }
        }
    }

    fn next_event(&self) -> Option<u64> {
        self.sides.iter().flatten().filter_map(Node::next_timeout).min()
    }

    pub fn run(&mut self, ms: u64) {
        self.run_until(ms, |_| false);
    }

    pub fn wait(&mut self, ms: u64, what: &str, done: impl FnMut(&mut Hosts) -> bool) {
        assert!(self.run_until(ms, done), "{what}: not after {ms} ms, {} shards", self.count());
    }

    fn run_until(&mut self, ms: u64, mut done: impl FnMut(&mut Hosts) -> bool) -> bool {
        let end = self.now().0 + ms * MS;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            if self.now().0 >= end {
                return false;
            }
            let next = self.next_event().map_or(end, |next| next.max(self.now().0)).min(end);
            self.sides.iter_mut().flatten().for_each(|node| node.now = Instant(next));
        }
    }

    /// Opens a socket in a random shard.
    pub fn open(&mut self, side: usize, kind: SocketKind, family: Family) -> Sock {
        let shard = self.any_shard();
        self.open_in(side, shard, kind, family)
    }

    pub fn open_in(&mut self, side: usize, shard: usize, kind: SocketKind, family: Family) -> Sock {
        let (id, user) = self.sides[side][shard].open(kind, family);
        Sock { side, shard, id, user }
    }

    pub fn bind(
        &mut self,
        sock: Sock,
        addr: &str,
        options: BindOptions,
    ) -> Result<SocketAddr, BindError> {
        let addr = addr.parse().expect("an address");
        self.node(sock).stack.bind(sock.id, addr, options)
    }

    pub fn bound(
        &mut self,
        side: usize,
        kind: SocketKind,
        addr: &str,
        options: BindOptions,
    ) -> Sock {
        let parsed: SocketAddr = addr.parse().expect("an address");
        let family = if parsed.is_ipv4() { Family::V4 } else { Family::V6 };
        let sock = self.open(side, kind, family);
        self.bind(sock, addr, options).expect("bind");
        sock
    }

    pub fn listen(&mut self, side: usize, addr: &str, backlog: u32) -> Sock {
        let options = BindOptions { reuse_addr: true, ..Default::default() };
        let sock = self.bound(side, SocketKind::Stream, addr, options);
        self.node(sock).stack.listen(sock.id, backlog).expect("listen");
        sock
    }

    pub fn connect(&mut self, side: usize, remote: &str) -> HandshakeEnd {
        let family = if remote.starts_with('[') { Family::V6 } else { Family::V4 };
        let sock = self.open(side, SocketKind::Stream, family);
        self.connect_sock(sock, remote).expect("connect")
    }

    pub fn connect_sock(&mut self, sock: Sock, remote: &str) -> Result<HandshakeEnd, ConnectError> {
        let remote: SocketAddr = remote.parse().expect("an address");
        let (recv, send) = (Recv::new(65536, 65536), Send::new(65536));
        let (now, Sock { id, user, .. }) = (self.now(), sock);
        self.node(sock).stack.connect(now, id, remote, recv.clone(), send.clone())?;
        Ok(HandshakeEnd { sock, conn: Conn { id, user, recv, send, remote } })
    }

    /// Returns the number of children in the accept queue of a listener.
    pub fn queued(&mut self, listener: Sock) -> usize {
        self.node(listener).host.accepted.len()
    }

    pub fn accept(&mut self, listener: Sock) -> Option<HandshakeEnd> {
        let conn = self.node(listener).accept(listener.id)?;
        let shard = (conn.user / USERS_OF_A_SHARD) as usize;
        let sock = Sock { side: listener.side, shard, id: conn.id, user: conn.user };
        Some(HandshakeEnd { sock, conn })
    }

    pub fn write(&mut self, end: &HandshakeEnd, bytes: &[u8]) -> usize {
        self.node(end.sock).write(&end.conn, bytes)
    }

    pub fn read(&mut self, end: &HandshakeEnd) -> Vec<u8> {
        self.node(end.sock).read(&end.conn)
    }

    pub fn close(&mut self, sock: Sock) {
        self.node(sock).close(sock.id);
    }

    pub fn events(&mut self, sock: Sock) -> Vec<SocketEvent> {
        self.node(sock).host.take_events(sock.user)
    }

    pub fn has(&mut self, sock: Sock, event: SocketEvent) -> bool {
        self.node(sock).host.has(sock.user, event)
    }

    pub fn send_to(
        &mut self,
        sock: Sock,
        remote: Option<&str>,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let out = DatagramOut {
            remote: remote.map(|remote| remote.parse().expect("an address")),
            ..Default::default()
        };
        let payload = Payload::new(bytes, Default::default());
        let Node { stack, pool, now, .. } = self.node(sock);
        stack.send_datagram(*now, sock.id, &out, &payload, pool)
    }

    /// Returns the datagrams that a socket received since the last call, with their senders.
    pub fn datagrams(&mut self, sock: Sock) -> Vec<(SocketAddr, Vec<u8>)> {
        let host: &mut Programs = &mut self.node(sock).host;
        let (mine, others) = host.datagrams.drain(..).partition(|(user, ..)| *user == sock.user);
        host.datagrams = others;
        let mine: Vec<(u32, crate::DatagramMeta, Vec<u8>)> = mine;
        mine.into_iter().map(|(_, meta, bytes)| (meta.remote, bytes)).collect()
    }

    /// Returns the sum of a drop counter over the shards of a host.
    pub fn drops(&self, side: usize, reason: crate::DropReason) -> u64 {
        self.sides[side].iter().map(|node| node.drops(reason)).sum()
    }

    /// Checks that no state is left in any shard ten minutes after everything was closed.
    pub fn assert_ends_empty(&mut self) {
        self.run(600_000);
        for node in self.sides.iter().flatten() {
            node.assert_empty();
            if let Some(member) = &node.stack.shards.member {
                assert!(member.excepted.is_empty() && member.claims.is_empty());
                assert!(member.shadows.is_empty() && !member.has_work());
            }
            assert!(node.host.children.borrow().is_empty());
        }
    }
}

fn add_link(
    stack: &mut Stack<Programs>,
    now: Instant,
    side: usize,
    (link, slaac): (LinkType, bool),
) {
    let last = side + 1;
    let addresses = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")];
    let interface = InterfaceConfig {
        name: "eth0".to_string(),
        link,
        mac: mac(side),
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: addresses.map(|it| it.parse().expect("a prefix")).to_vec(),
        slaac,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    };
    assert_eq!(stack.net.add_interface(now, interface), IfaceId(1));
}
