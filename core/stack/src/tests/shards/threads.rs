//! Tests of shards on separate threads, as in an engine: a host that connects to itself.
#![allow(clippy::disallowed_methods)] // Shards run on threads and read a common clock.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use towpath_pool::{Fragments, Pool};
use towpath_ring::{HeapRecv, HeapSend, Payload, RecvBuffer};

use crate::{
    BindOptions, Budget, ChildElsewhere, DatagramMeta, DatagramOut, DropReason, Elsewhere, Family,
    Host, Instant, Linger, SocketEvent, SocketId, SocketKind, Stack, StackConfig,
};

const SHARDS: usize = 4;
const ROOM: u32 = 16 * 1024;
/// Work of each thread.
const CONNECTIONS: u64 = 300;
const BYTES: usize = 3000;
const DATAGRAMS: u64 = 2000;

/// Results of all threads.
#[derive(Debug, Default)]
pub struct Totals {
    /// Number of connections whose server has read all bytes.
    served: AtomicU64,
    bytes: AtomicU64,
    /// Number of children that entered the accept queue.
    queued: AtomicU64,
    /// Users of accepted children that are not served yet.
    accepted: Mutex<BTreeSet<u32>>,
    pub datagrams: AtomicU64,
    lost: AtomicU64,
}

/// The programs of one shard.
pub struct Owner<'a> {
    totals: &'a Totals,
    next_user: u32,
    children: Vec<(u32, SocketId)>,
    /// Number of places in the accept queue to be freed.
    queued: u32,
    events: Vec<(u32, SocketEvent)>,
}

impl<'a> Owner<'a> {
    pub fn new(totals: &'a Totals, next_user: u32) -> Self {
        Self { totals, next_user, children: Vec::new(), queued: 0, events: Vec::new() }
    }

    fn child(&mut self, id: SocketId) -> (u32, HeapRecv, HeapSend) {
        self.next_user += 1;
        self.children.push((self.next_user, id));
        (self.next_user, HeapRecv::new(ROOM, ROOM), HeapSend::new(ROOM, ROOM))
    }
}

impl Host for Owner<'_> {
    type Recv = HeapRecv;
    type Send = HeapSend;

    fn recv_room(&self, _: u32) -> u32 {
        ROOM
    }

    fn accept(
        &mut self,
        _: u32,
        child: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<(u32, HeapRecv, HeapSend)> {
        self.queued += 1;
        let child = self.child(child);
        self.totals.accepted.lock().unwrap().insert(child.0);
        Some(child)
    }

    fn accept_for(
        &mut self,
        _: &Elsewhere,
        child: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<ChildElsewhere<HeapRecv, HeapSend>> {
        let (user, recv, send) = self.child(child);
        Some(ChildElsewhere { user, tag: 0, recv, send, waits: false })
    }

    fn enqueue(&mut self, _: u32, (child, _): (u32, u32), _: SocketAddr, _: SocketAddr) -> bool {
        self.queued += 1;
        self.totals.accepted.lock().unwrap().insert(child);
        true
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        self.events.push((user, event));
    }

    fn datagram(&mut self, _: u32, _: &DatagramMeta, _: &Payload<'_>) -> bool {
        self.totals.datagrams.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// A shard on its thread.
struct Shard<'a> {
    stack: Stack<Owner<'a>>,
    owner: Owner<'a>,
    pool: Pool,
    began: std::time::Instant,
    listener: Option<SocketId>,
    /// Children that wait to be accepted, and whose clients have sent all bytes.
    ended: Vec<(u32, SocketId)>,
    /// Number of connections opened by clients of this shard. `sent`: number of their datagrams.
    opened: u64,
    sent: u64,
}

impl Shard<'_> {
    fn now(&self) -> Instant {
        Instant(1_000_000_000) + self.began.elapsed()
    }

    fn turn(&mut self) {
        let (now, budget) = (self.now(), Budget::default());
        let mut ports: [Box<dyn towpath_pool::Port>; 0] = [];
        self.stack.turn(now, &mut self.owner, &mut ports, &mut self.pool, budget);
        if let Some(listener) = self.listener {
            for _ in 0..std::mem::take(&mut self.owner.queued) {
                self.owner.totals.queued.fetch_add(1, Ordering::Relaxed);
                self.stack.accepted(listener);
            }
        }
        for (user, event) in std::mem::take(&mut self.owner.events) {
            let child = self.owner.children.iter().find(|(whose, _)| *whose == user);
            let Some((_, id)) = child.copied() else { continue };
            match event {
                SocketEvent::Readable => self.read(id),
                SocketEvent::PeerClosed => {
                    self.read(id);
                    self.ended.push((user, id));
                }
                SocketEvent::Error(error) => panic!("a server's connection failed: {error:?}"),
                _ => {}
            }
        }
        // A program closes accepted connections.
        let totals = self.owner.totals;
        for (user, id) in std::mem::take(&mut self.ended) {
            if !totals.accepted.lock().unwrap().remove(&user) {
                self.ended.push((user, id));
                continue;
            }
            self.stack.close(now, id, Linger::Default);
            self.owner.children.retain(|(whose, _)| *whose != user);
            totals.served.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&mut self, id: SocketId) {
        let now = self.now();
        let Some(recv) = self.stack.recv_buffer(id) else { return };
        let unread = recv.unread();
        recv.consume(unread);
        self.stack.recv_taken(now, id);
        self.owner.totals.bytes.fetch_add(unread.into(), Ordering::Relaxed);
    }

    /// Opens a connection, whose client sends its bytes and closes.
    fn connect(&mut self, remote: SocketAddr) {
        let (now, user) = (self.now(), 0);
        let id = self.stack.open(SocketKind::Stream, Family::V4, user).expect("room");
        let (recv, mut send) = (HeapRecv::new(ROOM, ROOM), HeapSend::new(ROOM, ROOM));
        send.write(&Payload::new(&[7; BYTES], Fragments::empty()));
        self.stack.connect(now, id, remote, recv, send).expect("connect");
        self.stack.shutdown_send(id);
        self.opened += 1;
    }

    fn send(&mut self, id: SocketId, remote: SocketAddr) {
        let (now, out) = (self.now(), DatagramOut { remote: Some(remote), ..Default::default() });
        let payload = Payload::new(b"datagram", Fragments::empty());
        let sent = self.stack.send_datagram(now, id, &out, &payload, &mut self.pool);
        sent.expect("what finds no place is lost");
        self.sent += 1;
    }

    fn lost(&self) -> u64 {
        let drops = &self.stack.net.counters().data.drops;
        [DropReason::ShardFull, DropReason::LoopbackFull]
            .map(|reason| drops.of(reason))
            .iter()
            .sum()
    }
}

/// Clients connect to a listener in one shard, and send to UDP sockets that share a port, one in
/// each shard. Every loss is counted.
#[test]
fn shards_on_threads_serve_each_other() {
    let totals = Totals::default();
    let began = std::time::Instant::now();
    let stacks = Stack::shards(StackConfig::default(), [3; 32], Instant(1_000_000_000), SHARDS);
    let (streams, datagrams) =
        (SocketAddr::from(([127, 0, 0, 1], 80)), SocketAddr::from(([127, 0, 0, 1], 53)));
    let mut shards: Vec<Shard<'_>> = stacks
        .into_iter()
        .zip(0..)
        .map(|(stack, n)| {
            let owner = Owner::new(&totals, n * 1_000_000 + 1);
            let pool = Pool::default();
            Shard {
                stack,
                owner,
                pool,
                began,
                listener: None,
                ended: Vec::new(),
                opened: 0,
                sent: 0,
            }
        })
        .collect();
    let stack = &mut shards[1].stack;
    let listener = stack.open(SocketKind::Stream, Family::V4, 999).expect("room");
    stack.bind(listener, streams, BindOptions::default()).expect("bind");
    stack.listen(listener, 64).expect("listen");
    shards[1].listener = Some(listener);

    let all = SHARDS as u64;
    let is_done = || {
        let (got, lost) = (&totals.datagrams, &totals.lost);
        totals.served.load(Ordering::Relaxed) == all * CONNECTIONS
            && totals.queued.load(Ordering::Relaxed) == all * CONNECTIONS
            && got.load(Ordering::Relaxed) + lost.load(Ordering::Relaxed) >= all * DATAGRAMS
    };
    thread::scope(|scope| {
        for mut shard in shards {
            let (totals, is_done) = (&totals, &is_done);
            scope.spawn(move || {
                let options = BindOptions { reuse_port: true, ..Default::default() };
                let member = shard.stack.open(SocketKind::Datagram, Family::V4, 998).expect("room");
                shard.stack.bind(member, datagrams, options).expect("bind");
                let sender = shard.stack.open(SocketKind::Datagram, Family::V4, 997).expect("room");
                let mut lost = 0;
                while !is_done() {
                    assert!(
                        began.elapsed() < Duration::from_secs(50),
                        "it takes too long: {totals:?}, {:?} {:?}",
                        shard.stack.usage(),
                        shard
                            .stack
                            .net
                            .counters()
                            .data
                            .drops
                            .iter()
                            .filter(|(_, n)| *n > 0)
                            .collect::<Vec<_>>()
                    );
                    if shard.opened < CONNECTIONS {
                        shard.connect(streams);
                    }
                    for _ in 0..8 {
                        if shard.sent < DATAGRAMS {
                            shard.send(sender, datagrams);
                        }
                    }
                    shard.turn();
                    totals.lost.fetch_add(shard.lost() - lost, Ordering::Relaxed);
                    lost = shard.lost();
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!(totals.bytes.into_inner(), all * CONNECTIONS * BYTES as u64);
}

#[test]
fn a_stack_may_go_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    let totals = Totals::default();
    let stacks: Vec<Stack<Owner<'_>>> =
        Stack::shards(StackConfig::default(), [3; 32], Instant(1), 2);
    stacks.iter().for_each(is_send);
    assert!(totals.served.into_inner() == 0);
}
