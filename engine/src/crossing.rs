//! Randomized tests of the messages between registry and shard. Messages are delayed and delivered
//! in random batches, while processes begin, send requests, fork and end. To run more tests, set
//! TOWPATH_CROSSING_SEED=1 TOWPATH_CROSSING_SEEDS=1000.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown, recvmsg, send,
    shutdown,
};
use towpath_dice::Dice;
use towpath_ring::{Channel, push_command};
use towpath_shm::control::{ControlReply, Request, call};
use towpath_shm::layout::{Command, Plain, op};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::mail::{ShardCommand, ShardReport};
use crate::{Engine, EngineConfig};

struct Proc {
    control: OwnedFd,
    channel: Option<Channel>,
    waiting: Option<u32>,
    asked: Option<u32>,
    sockets: Vec<(u32, u32)>,
}

impl Proc {
    /// Makes the simulated process write a command to its ring.
    fn tell(&self, what: usize, a: u32) {
        match what {
            11 => (0..self.sockets.len()).for_each(|n| self.command(op::LIST, n, 0)),
            12 => self.command(op::SETTLED, 0, 5),
            13 => self.command(op::SPAWNED, 0, 5),
            _ => self.command(op::CLOSE, a as usize, 5),
        }
    }

    fn command(&self, op: u32, at: usize, a: u32) {
        let Some(channel) = &self.channel else { return };
        let nth = self.sockets.get(at % self.sockets.len().max(1));
        let (slot, generation) = nth.copied().unwrap_or((0, 0));
        // Ignore a full ring, as if the process had not sent the command.
        let _ = push_command(channel, &Command { op, slot, generation, a, b: 0, c: 0 });
    }

    fn ask_in_slot(&mut self, which: usize) {
        const CALLS: [(u32, u32, u32); 5] = [
            (call::SOCKET, 2, 17),
            (call::SOCKET, 2, 6),
            (call::OUTSIDE, 1, 0),
            (call::SOCKETS, 0, 0),
            (call::SOCKET, 2, 17),
        ];
        let (None, Some(channel)) = (self.asked, &self.channel) else { return };
        let (call, a, b) = CALLS[which];
        let request = Request { call, a, b, ..Request::default() };
        self.asked = Some(towpath_ring::ask(channel, &request));
    }

    /// Makes the simulated process break a rule of the protocol. Errors are ignored, because the
    /// engine may have closed the connection.
    fn harm(&self, what: usize, a: u32) {
        match (what, &self.channel) {
            (19, _) => {
                let _ = send(&self.control, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            (20, _) => {
                let _ = shutdown(&self.control, Shutdown::Write);
            }
            (_, Some(channel)) => {
                channel.header().command_tail.store(a.wrapping_mul(977), SeqCst);
            }
            _ => {}
        }
    }
}

struct Sim {
    engine: Engine,
    orders: VecDeque<ShardCommand>,
    notices: VecDeque<ShardReport>,
    procs: Vec<Proc>,
    dice: Dice,
    answers: u64,
    hostile: bool,
    left: u64,
    died_asking: bool,
}

fn listing(call: u32, of: &[(u32, u32)]) -> Request {
    let mut request = Request { call, ..Request::default() };
    for (n, (slot, generation)) in of.iter().take(100).enumerate() {
        request.data[8 * n..8 * n + 4].copy_from_slice(&slot.to_ne_bytes());
        request.data[8 * n + 4..8 * n + 8].copy_from_slice(&generation.to_ne_bytes());
        request.len += 8;
    }
    request
}

impl Sim {
    fn new(seed: u64, hostile: bool, exit: bool) -> Self {
        let clock = Clock::ByHand(Instant(1_000_000_000_000));
        let config = EngineConfig {
            channels_max: 12,
            sockets_max: 4096,
            exit_when_unused: exit,
            ..EngineConfig::default()
        };
        let engine = Engine::with_clock(config, vec![Vec::new()], [7; 32], clock).unwrap();
        Self {
            engine,
            orders: VecDeque::new(),
            notices: VecDeque::new(),
            procs: Vec::new(),
            dice: Dice::new(seed, 0),
            answers: 0,
            hostile,
            left: 0,
            died_asking: false,
        }
    }

    fn collect(&mut self) {
        self.orders.extend(self.engine.control.registry_mut().unwrap().orders[0].drain(..));
        self.notices.extend(self.engine.shard.processes.notices.drain(..));
    }

    fn look(&mut self) {
        self.engine.control.registry_mut().unwrap().look(Some(Duration::ZERO));
        self.collect();
    }

    fn heed(&mut self, n: usize) {
        for _ in 0..n {
            let Some(notice) = self.notices.pop_front() else { break };
            if matches!(notice, ShardReport::Left(_)) {
                self.left += 1;
            }
            self.engine.control.registry_mut().unwrap().heed(notice);
            self.collect();
        }
    }

    fn obey(&mut self, n: usize) {
        for _ in 0..n {
            let Some(order) = self.orders.pop_front() else { break };
            self.engine.shard.obey(order);
            self.collect();
        }
    }

    fn turn(&mut self) {
        self.engine.shard.do_turn();
        self.collect();
        if !self.dice.below(3) == 0 {
            self.engine.shard.look();
            self.collect();
        }
    }

    fn step(&mut self) {
        match self.dice.index(12) {
            0 | 1 => self.look(),
            2 | 3 => {
                let n = self.dice.index(4);
                self.heed(n);
            }
            4 | 5 => {
                let n = self.dice.index(4);
                self.obey(n);
            }
            6 | 7 => self.turn(),
            8 if self.dice.below(8) == 0 => {
                let ms = [0, 1, 2, 100, 6000, 31_000][self.dice.index(6)];
                self.pass(ms);
            }
            _ => self.program(),
        }
        self.read_request();
    }

    fn pass(&mut self, ms: u64) {
        let time = Duration::from_millis(ms);
        self.engine.pass(time);
    }

    fn attach(&mut self) {
        let attached = self.engine.control.registry_mut().unwrap().attach();
        self.collect();
        self.procs.extend(attached.ok().map(|control| Proc {
            control: control.into(),
            channel: None,
            waiting: None,
            asked: None,
            sockets: Vec::new(),
        }));
    }

    /// Makes a random simulated process act, or attaches a new one.
    fn program(&mut self) {
        if self.procs.is_empty() || self.dice.below(12) == 0 {
            return self.attach();
        }
        let (at, what) = (self.dice.index(self.procs.len()), self.dice.index(25));
        if self.dice.below(3) == 0 {
            self.settle_once();
        }
        let a = self.dice.index(5) as u32;
        match what {
            0..=10 => self.ask(at, what, a),
            11..=14 => self.procs[at].tell(what, a),
            15..=18 => self.procs[at].ask_in_slot(a as usize),
            19..=21 if self.hostile => self.procs[at].harm(what, a),
            22..=24 if self.dice.below(2) == 0 => {
                self.died_asking |= self.procs[at].waiting.is_some();
                drop(self.procs.swap_remove(at));
            }
            _ => {}
        }
    }

    /// Makes a simulated process send a request on its control socket. Unless it is hostile, it
    /// first waits for the reply to its previous request.
    fn ask(&mut self, at: usize, what: usize, a: u32) {
        let b = self.dice.index(2) as u32;
        let rude = self.hostile && self.dice.below(8) == 0;
        let proc = &mut self.procs[at];
        if proc.waiting.is_some() && !rude {
            return;
        }
        let request = match what {
            0 | 1 => Request { b, a: 77, ..listing(call::HELLO, &proc.sockets) },
            2..=6 => Request { call: call::CLONE, a: a % 4, ..Request::default() },
            7 | 8 => listing(call::TOKENS, &proc.sockets),
            9 => Request { call: call::REGION, ..Request::default() },
            _ => Request { call: 99, ..Request::default() },
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if send(&proc.control, request.wire(), flags).is_ok() {
            proc.waiting = Some(request.call);
        }
    }

    fn read_request(&mut self) {
        let mut new = Vec::new();
        for proc in &mut self.procs {
            if let (Some(channel), Some(number)) = (&proc.channel, proc.asked)
                && let Some(reply) = towpath_ring::answer_to(channel, number)
            {
                proc.asked = None;
                if reply.errno == 0 && reply.generation != 0 {
                    proc.sockets.push((reply.slot, reply.generation));
                }
                self.answers += 1;
            }
            let mut bytes = [0; size_of::<ControlReply>()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let Ok(message) =
                recvmsg(&proc.control, &mut parts, &mut ancillary, RecvFlags::DONTWAIT)
            else {
                continue;
            };
            let mut fds = Vec::new();
            for part in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = part {
                    fds.extend(rights);
                }
            }
            if message.bytes == 0 {
                continue;
            }
            self.answers += 1;
            let reply = ControlReply::from_bytes(&bytes[..message.bytes]);
            let asked = proc.waiting.take();
            if !self.hostile {
                let number = asked.expect("what nobody asked is not answered");
                let may_fail = ![call::HELLO, call::REGION].contains(&number);
                assert!(may_fail || reply.errno == 0, "{number}: {}", reply.errno);
            }
            if reply.errno != 0 {
                continue;
            }
            match fds.len() {
                4 if asked == Some(call::CLONE) => {
                    let mut fds = fds.into_iter();
                    let control = fds.next().unwrap();
                    let channel = Channel::map(fds.next().unwrap()).unwrap();
                    new.push(Proc {
                        control,
                        channel: Some(channel),
                        waiting: None,
                        asked: None,
                        sockets: proc.sockets.clone(),
                    });
                }
                6 if asked == Some(call::HELLO) => {
                    let channel = Channel::map(fds.into_iter().nth(2).unwrap()).unwrap();
                    proc.channel = Some(channel);
                    proc.asked = None;
                }
                _ => {}
            }
        }
        self.procs.extend(new);
    }

    fn settle(&mut self) {
        for _ in 0..400 {
            self.look();
            self.obey(usize::MAX >> 8);
            self.engine.shard.do_turn();
            self.engine.shard.look();
            self.collect();
            self.heed(usize::MAX >> 8);
            self.obey(usize::MAX >> 8);
            self.pass(50);
            self.read_request();
        }
    }

    fn end(&mut self, seed: u64) {
        self.settle();
        // A process that is not hostile and waits for a reply must have got it by now.
        if !self.hostile {
            for proc in &self.procs {
                assert!(proc.waiting.is_none(), "seed {seed}: {:?} is not answered", proc.waiting);
                assert!(proc.asked.is_none(), "seed {seed}: cell is not answered");
            }
            if !self.died_asking {
                assert_eq!(self.engine.shard.sockets.counters.hostile_channels, 0, "seed {seed}");
            }
        }
        self.procs.clear();
        self.settle();
        for _ in 0..100 {
            self.pass(1000);
            self.settle_once();
            while self.engine.control.registry().unwrap().closer.is_busy() {
                std::thread::yield_now();
            }
        }
        let registry = self.engine.control.registry().unwrap();
        assert_eq!(registry.len(), 0, "seed {seed}");
        assert_eq!(self.engine.shard.processes.promised, 0, "seed {seed}");
        assert_eq!(self.engine.shard.processes.holds, 0, "seed {seed}");
        assert_eq!(self.engine.shard.sockets.slots.len(), 0, "seed {seed}");
        assert!(self.engine.shard.processes.channels.is_empty(), "seed {seed}");
        assert!(self.engine.shard.requests.rounds.is_empty(), "seed {seed}");
        assert!(self.orders.iter().all(|it| matches!(it, ShardCommand::Stop)), "seed {seed}");
        while self.engine.control.registry().unwrap().closer.is_busy() {
            std::thread::yield_now();
        }
    }

    fn settle_once(&mut self) {
        self.look();
        self.obey(1000);
        self.engine.shard.do_turn();
        self.engine.shard.look();
        self.collect();
        self.heed(1000);
    }
}

fn seeds() -> (u64, u64) {
    let of = |name: &str, or: u64| std::env::var(name).ok().map_or(or, |it| it.parse().unwrap());
    (of("TOWPATH_CROSSING_SEED", 1), of("TOWPATH_CROSSING_SEEDS", 12))
}

fn run(hostile: bool, exit: bool) {
    let (first, count) = seeds();
    for seed in first..first + count {
        let mut sim = Sim::new(seed, hostile, exit);
        for _ in 0..1500 {
            sim.step();
        }
        sim.end(seed);
        if exit && !sim.hostile {
            assert!(sim.left > 0 && sim.engine.shard.sleep.stopped, "seed {seed}: it does not end");
        }
        assert!(sim.answers > 0 || hostile, "seed {seed}: nothing happened");
    }
}

#[test]
fn honest_processes_are_answered_and_leave_nothing() {
    run(false, false);
}

#[test]
fn of_hostile_processes_nothing_is_left() {
    run(true, false);
}

#[test]
fn an_engine_ends_with_its_last_process() {
    run(false, true);
}

/// epoll_ctl(2) may fail to watch a process's control socket (ENOSPC, ENOMEM). To simulate this,
/// the test passes a regular file, for which epoll_ctl(2) fails with EPERM.
#[test]
fn a_process_whose_end_cannot_be_watched_is_cut_off() {
    use crate::ids::ChannelId;
    use crate::mail::Newcomer;
    let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let life = std::sync::Arc::new(towpath_shm::Fd::from(OwnedFd::from(file)));
    engine.shard.obey(ShardCommand::Open(Newcomer { id: ChannelId(0), family: None, life }));
    (0..9).for_each(|_| engine.turn_and_look());
    assert!(engine.shard.processes.channels.get(ChannelId(0)).is_none());
}

/// Tests that a process that is killed while it waits for a reply is not treated as hostile.
#[test]
fn who_is_killed_while_it_asks_is_not_hostile() {
    for number in [call::REGION, call::HELLO, call::CLONE, call::TOKENS] {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).unwrap();
        let (id, control) = engine.open_channel();
        engine.link(id);
        let request = Request { call: number, ..Request::default() };
        send(&control, request.wire(), SendFlags::empty()).unwrap();
        let registry = engine.control.registry_mut().unwrap();
        registry.look(Some(Duration::ZERO));
        for order in std::mem::take(&mut registry.orders[0]) {
            engine.shard.obey(order);
        }
        (0..4).for_each(|_| {
            engine.shard.do_turn();
            engine.shard.look();
        });
        // The shard has queued a report to the registry, and the process is killed.
        drop(control);
        for notice in std::mem::take(&mut engine.shard.processes.notices) {
            engine.control.registry_mut().unwrap().heed(notice);
        }
        let orders = std::mem::take(&mut engine.control.registry_mut().unwrap().orders[0]);
        for order in orders {
            engine.shard.obey(order);
        }
        engine.shard.do_turn();
        (0..9).for_each(|_| engine.turn_and_look());
        assert_eq!(engine.shard.sockets.counters.hostile_channels, 0, "{number}");
    }
}

/// A reply of the registry must reach only the process image that sent the request, not the next
/// image after exec.
#[test]
fn an_answer_to_the_image_before_is_nobodys() {
    let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).unwrap();
    let (id, _control) = engine.open_channel();
    let first = engine.link(id);
    let outside = Request { call: call::OUTSIDE, a: 1, ..Request::default() };
    towpath_ring::ask(&first.channel, &outside);
    engine.shard.do_turn();
    let asks = std::mem::take(&mut engine.shard.processes.notices);
    assert!(matches!(asks[..], [ShardReport::Asks(..)]));
    // The next image after exec sends HELLO and gets new rings. Its own request is handled in a
    // later exchange.
    let second = engine.link(id);
    engine.shard.processes.notices.clear();
    let list = Request { call: call::SOCKETS, ..Request::default() };
    let number = towpath_ring::ask(&second.channel, &list);
    engine.shard.do_turn();
    asks.into_iter().for_each(|notice| engine.control.registry_mut().unwrap().heed(notice));
    for order in std::mem::take(&mut engine.control.registry_mut().unwrap().orders[0]) {
        engine.shard.obey(order);
    }
    assert!(towpath_ring::answer_to(&second.channel, number).is_none(), "it is of the other's");
}
