//! Interfaces that are added and removed while packets flow, on hosts with one or more shards.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use towpath_dice::Dice;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_ring::Payload;
use towpath_wire::MacAddr;
use towpath_wire::ethernet::EtherType;

use super::frames::{STRANGER, frame, gratuitous};
use crate::net::{Change, Forwarding, How, InterfaceConfig, NetConfig, RouteSpec};
use crate::tests::world::{MS, Node};
use crate::{
    AttachedPort, BindOptions, Budget, DatagramOut, DropReason, Family, IfaceId, SocketId,
    SocketKind, Stack, StackConfig,
};

const STEPS: usize = 600;
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

/// A queue of a device: packets to receive, and whether it takes packets.
#[derive(Default)]
struct Wire {
    received: Batch,
    is_blocked: bool,
    sent: usize,
}

struct Queue(Rc<RefCell<Wire>>, LinkType);

impl Port for Queue {
    fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut wire = self.0.borrow_mut();
        let count = wire.received.len().min(max);
        out.extend(wire.received.drain(..count));
        count
    }

    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut wire = self.0.borrow_mut();
        if wire.is_blocked {
            return 0;
        }
        wire.sent += batch.len();
        batch.drain(..).map(|packet| pool.give(packet)).count()
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        self.1
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A shard with its ports.
struct Shard {
    node: Node,
    ports: Vec<AttachedPort<Queue>>,
    socket: SocketId,
}

impl Shard {
    fn turn(&mut self) {
        let Node { stack, host, pool, now, .. } = &mut self.node;
        stack.turn(*now, host, &mut self.ports, pool, Budget::default());
    }

    fn detach(&mut self, iface: IfaceId) {
        let Node { stack, pool, now, .. } = &mut self.node;
        stack.detach(*now, iface, pool);
        self.ports.retain(|port| port.iface != iface);
    }
}

/// An interface of a router.
struct TestLink {
    iface: IfaceId,
    /// Number that appears in the addresses of the interface.
    net: u64,
    /// Queues of the device, by shard.
    wires: Vec<Rc<RefCell<Wire>>>,
}

/// A router to which interfaces are added, and from which they are removed.
struct Router {
    shards: Vec<Shard>,
    links: Vec<TestLink>,
    added: u64,
    dice: Dice,
}

impl Router {
    fn new(shards: usize, seed: u64) -> Self {
        let net = NetConfig { forwarding: Some(Forwarding::default()), ..NetConfig::default() };
        let config = StackConfig { net, ..StackConfig::default() };
        let stacks =
            Stack::shards(config, [seed as u8; 32], towpath_tcp::Instant(1000 * MS), shards);
        let children = Rc::default();
        let shards = stacks.into_iter().zip(0..).map(|(stack, n)| {
            let mut node = Node::shard(stack, n, &children);
            let (socket, _) = node.open(SocketKind::Datagram, Family::V4);
            let options = BindOptions { reuse_addr: true, ..Default::default() };
            node.stack.bind(socket, "0.0.0.0:5353".parse().unwrap(), options).expect("bind");
            Shard { node, ports: Vec::new(), socket }
        });
        Self { shards: shards.collect(), links: Vec::new(), added: 0, dice: Dice::new(seed, 0) }
    }

    fn below(&mut self, n: usize) -> usize {
        self.dice.below(n as u64) as usize
    }

    fn add(&mut self) {
        self.added += 1;
        let n = self.added % 200;
        let link = if self.below(4) == 0 { LinkType::Ip } else { LinkType::Ethernet };
        let config = InterfaceConfig {
            name: format!("p{}", self.added),
            link,
            mac: MAC,
            mtu: 1500,
            offloads: Offloads::default(),
            addresses: vec![
                format!("10.{n}.0.1/24").parse().unwrap(),
                format!("fd00:{n}::1/64").parse().unwrap(),
            ],
            slaac: self.below(3) == 0,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        let first = &mut self.shards[0].node;
        let Ok(iface) = first.stack.net.try_add_interface(first.now, &config) else { return };
        let next_hop = Some(format!("10.{n}.0.9").parse().unwrap());
        let route = RouteSpec { next_hop, ..RouteSpec::to("0.0.0.0/0".parse().unwrap()) };
        let route = Change::SetRoute(route, How::Append);
        first.stack.net.apply(first.now, &[route]).expect("a route");
        let wires: Vec<_> = self.shards.iter().map(|_| Rc::default()).collect();
        for (shard, wire) in self.shards.iter_mut().zip(&wires) {
            let port = Box::new(Queue(Rc::clone(wire), link));
            shard.ports.push(AttachedPort { iface, port });
        }
        self.links.push(TestLink { iface, net: n, wires });
    }

    /// Removes an interface. The shards run some turns before they drop their ports.
    fn remove(&mut self) {
        let at = self.below(self.links.len());
        let iface = self.links[at].iface;
        let first = &mut self.shards[0].node;
        let change = Change::RemoveInterface { iface };
        first.stack.net.apply(first.now, &[change]).expect("it exists");
        for n in 0..self.shards.len() {
            for _ in 0..self.below(4) {
                self.receive();
                let turned = self.below(self.shards.len());
                self.shards[turned].turn();
            }
            self.shards[n].detach(iface);
        }
        self.links.remove(at);
    }

    /// Puts a packet into a queue: from a neighbour, to another network, or random bytes.
    fn receive(&mut self) {
        if self.links.is_empty() {
            return;
        }
        let (at, shard) = (self.below(self.links.len()), self.below(self.shards.len()));
        let n = self.links[at].net;
        let mut bytes = match self.below(4) {
            0 => gratuitous(&format!("10.{n}.0.9"), STRANGER),
            1 => frame(MAC, STRANGER, EtherType::IPV4, &self.udp(n)),
            2 => self.udp(n),
            _ => frame(MacAddr::BROADCAST, STRANGER, EtherType::ARP, &[]),
        };
        for _ in 0..self.below(3) {
            let place = self.below(bytes.len());
            bytes[place] = self.dice.next_u64() as u8;
        }
        let mut packet = self.shards[shard].node.pool.take(bytes.len());
        packet.push_back(bytes.len()).expect("taken with room").copy_from_slice(&bytes);
        self.links[at].wires[shard].borrow_mut().received.push_back(packet);
    }

    /// Returns an IPv4 packet to the router, to a host, or to a group. Some are fragments.
    fn udp(&mut self, n: u64) -> Vec<u8> {
        let to: [u8; 4] = match self.below(4) {
            0 => [10, n as u8, 0, 1],
            1 => [10, self.below(200) as u8, 0, 9],
            2 => [239, 1, 2, 3],
            _ => [8, 8, 8, 8],
        };
        let flags = if self.below(4) == 0 { 0x20 } else { 0 };
        let mut packet = vec![0x45, 0, 0, 36, 0, 1, flags, 0, 9, 17, 0, 0, 10, n as u8, 0, 9];
        packet.extend(to);
        let sum = packet.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let sum: u32 = sum.sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend([0x14, 0xe9, 0x14, 0xe9, 0, 16, 0, 0]);
        packet.extend([7; 8]);
        packet
    }

    fn send(&mut self) {
        let shard = self.below(self.shards.len());
        let to: IpAddr = match self.below(4) {
            0 => [255, 255, 255, 255].into(),
            1 => [239, 1, 2, 3].into(),
            2 => [8, 8, 8, self.below(9) as u8].into(),
            _ => [10, self.below(200) as u8, 0, 9].into(),
        };
        let Shard { node: Node { stack, pool, now, .. }, socket, .. } = &mut self.shards[shard];
        let remote = Some(SocketAddr::new(to, 53));
        let out = DatagramOut { remote, ..Default::default() };
        // Fails while there is no route.
        let _ =
            stack.send_datagram(*now, *socket, &out, &Payload::new(b"x", Default::default()), pool);
    }

    fn join(&mut self) {
        let shard = self.below(self.shards.len());
        let at = self.below(self.links.len().max(1));
        let iface = self.links.get(at).map(|link| link.iface);
        let group = [239, 1, 2, 3 + self.below(3) as u8].into();
        let Shard { node, socket, .. } = &mut self.shards[shard];
        let (now, id) = (node.now, *socket);
        // Fails if the socket is a member already.
        let _ = node.stack.join_group(now, id, group, iface, None);
    }

    fn step(&mut self) {
        match self.below(12) {
            0 if self.links.len() < 6 => self.add(),
            1 if !self.links.is_empty() => self.remove(),
            2 => self.join(),
            3 | 4 => self.send(),
            5 => {
                let far = self.below(20) == 0;
                let ms = if far { 700_000 } else { self.dice.below(2000) };
                self.shards.iter_mut().for_each(|shard| shard.node.now.0 += ms * MS);
            }
            6 if !self.links.is_empty() => {
                let (at, shard) = (self.below(self.links.len()), self.below(self.shards.len()));
                let mut wire = self.links[at].wires[shard].borrow_mut();
                wire.is_blocked = !wire.is_blocked;
            }
            7 | 8 => {
                let turned = self.below(self.shards.len());
                self.shards[turned].turn();
            }
            _ => self.receive(),
        }
    }

    /// Returns the number of frames that the queues of a link took.
    fn sent(&self, at: usize) -> usize {
        self.links[at].wires.iter().map(|wire| wire.borrow().sent).sum()
    }
}

/// Changes, packets and turns happen in random order. At the end no state refers to a removed
/// interface, and a new one works.
#[test]
fn interfaces_come_and_go_under_hostile_packets() {
    for seed in 0..60 {
        for shards in [1, 2, 4] {
            let mut router = Router::new(shards, seed);
            (0..STEPS).for_each(|_| router.step());
            while !router.links.is_empty() {
                router.remove();
            }
            for _ in 0..20 {
                for shard in &mut router.shards {
                    shard.node.now.0 += 10_000 * MS;
                    shard.turn();
                }
            }
            for Shard { node, ports, .. } in &router.shards {
                let net = &node.stack.net;
                assert_eq!(net.interfaces().count(), 1, "seed {seed}, {shards} shards");
                assert!(net.routes().all(|route| route.iface == IfaceId::LOOPBACK));
                let left = (net.neighbors().count(), net.waiting(), ports.len());
                assert_eq!(left, (0, 0, 0), "seed {seed}, {shards} shards");
                assert_eq!(node.stack.usage().memberships, 0);
            }
            router.add();
            for _ in 0..20 {
                router.send();
                router.shards.iter_mut().for_each(Shard::turn);
            }
            assert!(router.sent(0) > 0, "seed {seed}, {shards} shards");
        }
    }
}

/// A shard polls a packet of a removed interface, because it has not dropped the port yet.
#[test]
fn packets_of_a_removed_interface_are_dropped_and_counted() {
    for shards in [1, 2] {
        let mut router = Router::new(shards, 1);
        router.add();
        router.receive();
        let iface = router.links[0].iface;
        let first = &mut router.shards[0].node;
        let change = Change::RemoveInterface { iface };
        first.stack.net.apply(first.now, &[change]).expect("it exists");
        router.shards.iter_mut().for_each(Shard::turn);
        let drops = router
            .shards
            .iter()
            .map(|shard| shard.node.stack.net.counters().data.drops.of(DropReason::LinkDown));
        assert_eq!(drops.sum::<u64>(), 1, "{shards} shards");
    }
}
