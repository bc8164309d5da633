//! Tests of shards on separate threads, on a link whose neighbours echo datagrams, while the host's
//! configuration changes.
#![allow(clippy::disallowed_methods)] // Shards run on threads and read a common clock.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use towpath_pool::{Batch, Fragments, LinkType, Offloads, Packet, Pool, Port};
use towpath_ring::Payload;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{IpProtocol, Prefix, arp};

use super::frames::STRANGER;
use super::hosts::mac;
use super::threads::{Owner, Totals};
use crate::net::InterfaceConfig;
use crate::{
    BindOptions, Budget, DatagramOut, DropReason, Family, IfaceId, Instant, SocketId, SocketKind,
    Stack, StackConfig,
};

const SHARDS: usize = 4;
const ROUNDS: u64 = 400;
const ETH: IfaceId = IfaceId(1);

/// A device with a queue for each shard. Behind it are all hosts of the link, with one MAC address,
/// which answer every request and echo datagrams.
#[derive(Default)]
struct Mirror(VecDeque<Packet>);

impl Mirror {
    fn answer(&mut self, mut packet: Packet, pool: &mut Pool) {
        packet.linearize(pool);
        let bytes = packet.linear_mut();
        let Ok((header, at)) = ethernet::Header::parse(bytes) else { return pool.give(packet) };
        let answer = ethernet::Header { dst: header.src, src: STRANGER, ..header };
        match header.ethertype {
            EtherType::ARP => {
                let (question, _) = arp::ArpPacket::parse(&bytes[at..]).expect("it is one of ours");
                if question.sender_ip == question.target_ip {
                    return pool.give(packet);
                }
                let reply = arp::ArpPacket {
                    op: arp::ArpOp::Reply,
                    sender_mac: STRANGER,
                    sender_ip: question.target_ip,
                    target_mac: question.sender_mac,
                    target_ip: question.sender_ip,
                };
                reply.emit(&mut bytes[at..]);
            }
            EtherType::IPV4 if bytes[at + 9] == IpProtocol::UDP.0 => {
                let (addresses, rest) = bytes[at + 12..].split_at_mut(8);
                addresses.rotate_left(4);
                rest[..4].rotate_left(2);
            }
            _ => return pool.give(packet),
        }
        answer.emit(bytes);
        self.0.push_back(packet);
    }
}

impl Port for Mirror {
    fn poll(&mut self, _now_ns: u64, _pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let count = self.0.len().min(max);
        out.extend(self.0.drain(..count));
        count
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let count = batch.len();
        batch.drain(..).for_each(|packet| self.answer(packet, pool));
        count
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }
}

struct Shard<'a> {
    n: u8,
    stack: Stack<Owner<'a>>,
    owner: Owner<'a>,
    pool: Pool,
    ports: [Box<Mirror>; 1],
    began: std::time::Instant,
}

impl Shard<'_> {
    /// Returns a clock that runs 100 times slower, so that a thread that is descheduled for a
    /// second does not solicit a neighbour again.
    fn now(&self) -> Instant {
        Instant(1_000_000_000) + self.began.elapsed() / 100
    }

    fn turn(&mut self) {
        let (now, budget) = (self.now(), Budget::default());
        self.stack.turn(now, &mut self.owner, &mut self.ports, &mut self.pool, budget);
    }

    /// Sends a datagram to one of four hosts; only this shard sends to two of them.
    fn send(&mut self, socket: SocketId, round: u64) {
        let host = [2, 3, 10 + self.n, 20 + self.n][round as usize % 4];
        let remote = Some(SocketAddr::from(([10, 0, 0, host], 9)));
        let out = DatagramOut { remote, ..Default::default() };
        let payload = Payload::new(b"datagram", Fragments::empty());
        let now = self.now();
        self.stack.send_datagram(now, socket, &out, &payload, &mut self.pool).expect("sent");
    }

    /// Changes the configuration in ways that do not affect the packets in flight.
    fn change(&mut self, socket: SocketId, round: u64) {
        let (now, group) = (self.now(), [239, 1, 1, round as u8 % 4].into());
        self.stack.join_group(now, socket, group, Some(ETH), None).expect("joined");
        let route: Prefix = "192.0.2.0/24".parse().expect("a prefix");
        if self.n == 0 {
            assert!(self.stack.net.add_route(route, None, ETH, 1));
            assert!(self.stack.net.add_address(now, ETH, "10.9.0.1/24".parse().expect("a prefix")));
        }
        self.turn();
        assert!(self.stack.net.is_member(ETH, group));
        self.stack.leave_group(now, socket, group, Some(ETH), None).expect("a member");
        if self.n == 0 {
            assert_eq!(self.stack.net.remove_route(route, None), 1);
            assert!(self.stack.net.remove_address(now, ETH, [10, 9, 0, 1].into()));
        }
    }

    fn lost(&self) -> u64 {
        let drops = &self.stack.net.counters().data.drops;
        [DropReason::ShardFull, DropReason::NeighborQueueFull].map(|why| drops.of(why)).iter().sum()
    }
}

fn shards(totals: &Totals) -> Vec<Shard<'_>> {
    let began = std::time::Instant::now();
    let stacks = Stack::shards(StackConfig::default(), [5; 32], Instant(1_000_000_000), SHARDS);
    let shard = |(stack, n): (_, u8)| {
        let owner = Owner::new(totals, u32::from(n) * 1_000_000 + 1);
        let ports: [Box<Mirror>; 1] = [Box::new(Mirror::default())];
        Shard { n, stack, owner, pool: Pool::default(), ports, began }
    };
    let mut shards: Vec<_> = stacks.into_iter().zip(0..).map(shard).collect();
    let config = InterfaceConfig {
        name: "eth0".to_string(),
        link: LinkType::Ethernet,
        mac: mac(0),
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: vec!["10.0.0.1/24".parse().expect("a prefix")],
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    };
    shards[0].stack.net.add_interface(Instant(1_000_000_000), config);
    shards
}

#[test]
fn shards_on_threads_share_neighbours_while_the_host_changes() {
    let (lost, sent) = lost_of_sent();
    assert!(lost < sent, "some came back");
}

mod nightly {
    /// A shard whose thread is descheduled finds its rings full, so that some datagrams are lost.
    #[test]
    fn most_of_what_shards_on_threads_send_comes_back() {
        let (lost, sent) = super::lost_of_sent();
        assert!(lost < sent / 2, "{lost} of {sent} were lost");
    }
}

/// Returns the numbers of datagrams that shards on threads lost and sent.
fn lost_of_sent() -> (u64, u64) {
    let (totals, lost, came_to_rest) = (Totals::default(), AtomicU64::new(0), Barrier::new(SHARDS));
    let sent = SHARDS as u64 * ROUNDS * 4;
    let ended: Vec<Shard<'_>> = thread::scope(|scope| {
        let threads: Vec<_> = shards(&totals)
            .into_iter()
            .map(|mut shard| {
                let (totals, lost, came_to_rest) = (&totals, &lost, &came_to_rest);
                scope.spawn(move || {
                    let socket =
                        shard.stack.open(SocketKind::Datagram, Family::V4, 9).expect("room");
                    let port = SocketAddr::from(([10, 0, 0, 1], 5000 + u16::from(shard.n)));
                    shard.stack.bind(socket, port, BindOptions::default()).expect("bind");
                    for round in 0..ROUNDS {
                        (0..4).for_each(|n| shard.send(socket, round + n));
                        shard.change(socket, round);
                    }
                    let mut told = 0;
                    loop {
                        shard.turn();
                        lost.fetch_add(shard.lost() - told, Ordering::Relaxed);
                        told = shard.lost();
                        let got = totals.datagrams.load(Ordering::Relaxed);
                        if got + lost.load(Ordering::Relaxed) >= sent {
                            break;
                        }
                        assert!(
                            shard.began.elapsed() < Duration::from_secs(50),
                            "{got} of {sent} came back"
                        );
                        thread::yield_now();
                    }
                    came_to_rest.wait();
                    shard.turn();
                    shard
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let control = ended[0].stack.net.counters().control;
    assert!(control.solicits_sent <= 2 + 2 * SHARDS as u64, "{control:?}");
    for shard in &ended {
        let net = &shard.stack.net;
        assert_eq!((net.routes().count(), net.waiting()), (ended[0].stack.net.routes().count(), 0));
        assert_eq!(net.interface(IfaceId(1)).unwrap().addresses().len(), 1);
        assert!((0..4).all(|n| !net.is_member(ETH, [239, 1, 1, n].into())));
        assert!(net.neighbors().all(|neighbor| neighbor.mac == Some(STRANGER)));
    }
    (lost.into_inner(), sent)
}
