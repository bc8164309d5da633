//! A shard: a stack, the other end of its device, and the program that uses it.

use std::fmt;
use std::iter::Sum;
use std::net::SocketAddr;
use std::ops::Add;
use std::time::Duration;

use anyhow::{Result, ensure};
use towpath_pool::{LinkType, Offloads, Pool, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{
    BindOptions, Budget, Family, Instant, Owners, SocketId, SocketKind, Stack, StackConfig,
};
use towpath_wire::MacAddr;

use crate::peer::{HOST, MTU, Peer, SERVICE, Work};
use crate::program::Program;

/// Number of TCP connections, or of UDP clients, per shard.
const FLOWS: usize = 16;
const LISTENER: u32 = u32::MAX;

/// A shard of a host.
pub struct Shard {
    stack: Stack<Program>,
    program: Program,
    pool: Pool,
    ports: [Box<Peer>; 1],
    listener: Option<SocketId>,
    packets: u64,
}

/// Creates all shards of host `number`.
pub fn host(shards: usize, work: Work, number: u8, now: Instant) -> Vec<Shard> {
    let seed = [number + 1; 32];
    let owners = Owners::new(&seed, shards);
    let stacks = Stack::shards(StackConfig::default(), seed, now, shards);
    stacks
        .into_iter()
        .enumerate()
        .map(|(n, stack)| Shard::new(n, stack, &owners, work, now))
        .collect()
}

fn link(offloads: Offloads) -> InterfaceConfig {
    InterfaceConfig {
        name: "eth0".to_owned(),
        link: LinkType::Ip,
        mac: MacAddr::default(),
        mtu: MTU,
        offloads,
        addresses: vec![format!("{HOST}/24").parse().expect("a prefix")],
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    }
}

impl Shard {
    fn new(n: usize, mut stack: Stack<Program>, owners: &Owners, work: Work, now: Instant) -> Self {
        let peer = Peer::new(work, n, owners, FLOWS);
        // The first stack configures the host for all shards.
        if n == 0 {
            stack.net.add_interface(now, link(peer.offloads()));
        }
        let mut shard = Self {
            stack,
            program: Program::new(work, n),
            pool: Pool::default(),
            ports: [Box::new(peer)],
            listener: None,
            packets: 0,
        };
        match work {
            Work::Datagrams => shard.bind(n),
            // The first shard's listener accepts the connections of all shards.
            _ if n == 0 => shard.listen(),
            _ => {}
        }
        shard
    }

    fn listen(&mut self) {
        let listener =
            self.stack.open(SocketKind::Stream, Family::V4, LISTENER).expect("nothing is open");
        let addr = SocketAddr::from((HOST, SERVICE));
        self.stack.bind(listener, addr, BindOptions::default()).expect("the port is free");
        self.stack.listen(listener, 4096).expect("it is bound");
        self.listener = Some(listener);
    }

    /// Binds a UDP socket to a port that only this shard uses.
    fn bind(&mut self, n: usize) {
        let socket = self.stack.open(SocketKind::Datagram, Family::V4, 0).expect("nothing is open");
        let addr = SocketAddr::from((HOST, SERVICE + n as u16));
        self.stack.bind(socket, addr, BindOptions::default()).expect("the port is free");
        self.program.datagram_socket = Some(socket);
    }

    /// Receives packets, runs the program, and sends packets. Not inlined, because instruction
    /// counters find this function by its name.
    #[inline(never)]
    pub fn turn(&mut self, now: Instant) {
        let Self { stack, program, pool, ports, .. } = self;
        let turn = stack.turn(now, program, ports, pool, Budget::default());
        self.packets += (turn.received + turn.sent) as u64;
        if let Some(listener) = self.listener {
            for _ in 0..std::mem::take(&mut program.queued) {
                stack.accepted(listener);
            }
        }
        program.run(now, stack, pool);
    }

    /// Returns whether all flows have been answered.
    pub fn is_ready(&self) -> bool {
        self.ports[0].is_ready()
    }

    /// Returns the totals since the shard was created.
    pub fn totals(&self) -> Totals {
        let peer = &self.ports[0];
        Totals {
            packets: self.packets,
            requests: peer.answered(),
            bytes: peer.bytes() + self.program.bytes,
            mail: self.stack.counters().shard_handed_over,
            drops: self.stack.net.counters().data.drops.iter().map(|(_, n)| n).sum::<u64>()
                + peer.unexpected(),
        }
    }

    pub fn totals_since(&self, before: &Totals) -> Result<Totals> {
        self.totals().since(before)
    }
}

/// Work done by shards.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Packets received from and sent to the device, up to 64 KiB each.
    packets: u64,
    /// Requests that were answered.
    requests: u64,
    /// Payload of connections, both ways.
    bytes: u64,
    /// Packets that were handed to another shard.
    mail: u64,
    /// Lost packets, and packets that the peer did not expect.
    drops: u64,
}

impl Totals {
    /// Returns the work since `before`.
    ///
    /// # Errors
    /// If no packet was received, or packets were lost, because the counts would then be
    /// misleading.
    pub fn since(&self, before: &Self) -> Result<Self> {
        let since = Self {
            packets: self.packets - before.packets,
            requests: self.requests - before.requests,
            bytes: self.bytes - before.bytes,
            mail: self.mail - before.mail,
            drops: self.drops - before.drops,
        };
        ensure!(since.drops == 0, "packets were lost: {since:?}");
        ensure!(since.packets > 0, "no packet came: {since:?}");
        Ok(since)
    }

    pub fn per_second(&self, time: Duration) -> Self {
        let each = |count: u64| (count as f64 / time.as_secs_f64()) as u64;
        let Self { packets, requests, bytes, mail, drops } = *self;
        Self {
            packets: each(packets),
            requests: each(requests),
            bytes: each(bytes),
            mail: each(mail),
            drops: each(drops),
        }
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
            mail: self.mail + other.mail,
            drops: self.drops + other.drops,
        }
    }
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, requests, bytes, mail, .. } = self;
        write!(f, "{packets} {requests} {bytes} {mail}")
    }
}
