//! Tests of processes in an engine with several shards.

mod sleepers;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Time};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_ring::{Channel, push_command};
use towpath_shm::control::{ControlReply, DESCRIPTORS_MAX, Request, call, purpose};
use towpath_shm::layout::{Command, Plain, op, shard_of};
use towpath_stack::net::InterfaceConfig;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use crate::clock::Clock;
use crate::{Engine, EngineConfig, EngineError, Remote, Report};

const SHARDS: u32 = 4;
/// Maximum time of every wait in these tests, after which a test fails with a message.
const PATIENCE: Duration = Duration::from_secs(50);

fn engine(config: EngineConfig, clock: Clock) -> Engine {
    let ports = (0..SHARDS).map(|_| Vec::new()).collect();
    Engine::with_clock(config, ports, [7; 32], clock).expect("memory")
}

/// A running engine, with one thread for each shard.
struct Running {
    remote: Remote,
    thread: JoinHandle<Report>,
}

impl Running {
    fn start(config: EngineConfig) -> Self {
        Self::begin(engine(config, Clock::System))
    }

    fn begin(engine: Engine) -> Self {
        Self { remote: engine.remote(), thread: std::thread::spawn(|| engine.run()) }
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.remote.counters().expect("it runs").engine;
        counters.iter().find(|(known, _)| *known == name).expect("it is counted").1
    }

    fn wait_for(&self, name: &str, value: u64) {
        let start = Time::now();
        while self.counter(name) != value {
            assert!(start.elapsed() < PATIENCE, "{name} is {}", self.counter(name));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A process that uses the engine, simulated by the test.
struct TestProgram {
    control: OwnedFd,
    channels: Vec<Channel>,
    number: u32,
    /// Notification descriptors, which must stay open during the test.
    _descriptors: Vec<OwnedFd>,
}

fn ask(control: &OwnedFd, request: &Request) {
    send(control, request.wire(), SendFlags::empty()).expect("the engine lives");
}

fn answer(control: &OwnedFd, how: RecvFlags) -> Option<(ControlReply, Vec<OwnedFd>)> {
    let mut bytes = [0; size_of::<ControlReply>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg(control, &mut parts, &mut ancillary, how).ok()?;
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    assert_ne!(message.bytes, 0, "the engine hung up");
    Some((ControlReply::from_bytes(&bytes[..message.bytes]), fds))
}

fn hello() -> Request {
    Request { call: call::HELLO, a: std::process::id(), ..Request::default() }
}

impl TestProgram {
    fn begin(control: OwnedFd, reply: &ControlReply, fds: Vec<OwnedFd>) -> Self {
        assert_eq!((reply.errno, reply.slot), (0, SHARDS));
        // The reply's descriptors are shared memory, status pages, channel memory, notification
        // socket, a kernel descriptor for sockets, and a notification descriptor for each shard.
        let mut fds = fds;
        assert_eq!(fds.len() as u32, 5 + SHARDS);
        let memory = fds.remove(2);
        Self::with(control, memory, reply.b, fds)
    }

    fn with(control: OwnedFd, memory: OwnedFd, number: u32, descriptors: Vec<OwnedFd>) -> Self {
        let channels = Channel::map_all(memory, SHARDS).expect("channels");
        Self { control, channels, number, _descriptors: descriptors }
    }

    fn hello(control: OwnedFd) -> Self {
        ask(&control, &hello());
        let (reply, fds) = answer(&control, RecvFlags::empty()).expect("an answer");
        Self::begin(control, &reply, fds)
    }

    fn fork(&self) -> Self {
        ask(&self.control, &Request { call: call::CLONE, a: purpose::FORK, ..Request::default() });
        let (reply, mut fds) = answer(&self.control, RecvFlags::empty()).expect("an answer");
        assert_eq!((reply.errno, fds.len() as u32), (0, 3 + SHARDS));
        let (control, memory) = (fds.remove(0), fds.remove(0));
        Self::with(control, memory, reply.b, fds)
    }

    fn call(&self, shard: u32, request: &Request) -> ControlReply {
        let channel = &self.channels[shard as usize];
        let number = towpath_ring::ask(channel, request);
        let start = Time::now();
        loop {
            if let Some(reply) = towpath_ring::answer_to(channel, number) {
                return reply;
            }
            assert!(start.elapsed() < PATIENCE, "no answer of shard {shard}");
            // Notify all shards, whether or not they sleep, because these tests are not about
            // notifications.
            self.ring_all();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn ring_all(&self) {
        use std::os::fd::AsFd;
        let bells = self._descriptors.iter().rev().take(SHARDS as usize);
        bells.for_each(|bell| towpath_ring::notification::ring(bell.as_fd()));
    }

    fn socket(&self, shard: u32) -> (u32, u32) {
        let request = Request { call: call::SOCKET, a: 2, b: 17, ..Request::default() };
        let reply = self.call(shard, &request);
        assert_eq!((reply.errno, shard_of(reply.slot, SHARDS)), (0, shard));
        (reply.slot, reply.generation)
    }

    fn close(&self, socket: (u32, u32)) {
        let (slot, generation) = socket;
        let command = Command { op: op::CLOSE, slot, generation, ..Command::default() };
        let channel = &self.channels[shard_of(slot, SHARDS) as usize];
        push_command(channel, &command).expect("room");
        self.ring_all();
    }

    /// Requests which of `sockets` this process has open. Bit `i` of the result belongs to
    /// `sockets[i]`.
    fn held(&self, sockets: &[(u32, u32)]) -> u32 {
        let mut request = Request { call: call::TOKENS, ..Request::default() };
        for (to, (slot, generation)) in request.data.chunks_exact_mut(8).zip(sockets) {
            to[..4].copy_from_slice(&slot.to_ne_bytes());
            to[4..].copy_from_slice(&generation.to_ne_bytes());
            request.len += 8;
        }
        ask(&self.control, &request);
        let (reply, fds) = answer(&self.control, RecvFlags::empty()).expect("an answer");
        assert_eq!((reply.errno, reply.a), (0, sockets.len() as u32));
        assert_eq!(fds.len() as u32, reply.b.count_ones());
        reply.b
    }
}

#[test]
fn a_process_has_sockets_in_every_shard_and_shares_them_with_its_children() {
    let engine = Running::start(EngineConfig::default());
    let program = TestProgram::hello(engine.remote.attach().expect("room"));
    let sockets: Vec<_> = (0..SHARDS).map(|shard| program.socket(shard)).collect();
    let child = program.fork();
    assert_eq!((program.held(&sockets), child.held(&sockets)), (0xf, 0xf));
    program.close(sockets[1]);
    program.close(sockets[2]);
    let start = Time::now();
    while program.held(&sockets) != 0b1001 {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(child.held(&sockets), 0xf);
    let listed = engine.remote.sockets().expect("it runs");
    let mut slots: Vec<u32> = listed.iter().map(|entry| entry.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, sockets.iter().map(|(slot, _)| *slot).collect::<Vec<_>>());
    drop(program);
    engine.wait_for("channels", 1);
    assert_eq!(child.held(&sockets), 0xf);
    drop(child);
    engine.wait_for("channels", 0);
    engine.wait_for("sockets", 0);
    engine.remote.stop();
    let report = engine.thread.join().expect("it does not panic");
    let attached = report.counters.engine.iter().find(|(name, _)| *name == "attached");
    assert_eq!(attached.map(|(_, count)| *count), Some(2));
}

/// Test device that always requests another iteration of the event loop, and never has packets.
struct AlwaysBusyPort {
    panics: bool,
}

impl Port for AlwaysBusyPort {
    fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
        assert!(!self.panics, "as it was told");
        0
    }
    fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
        0
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn next_timeout_ns(&self) -> Option<u64> {
        Some(0)
    }
}

fn interface() -> InterfaceConfig {
    InterfaceConfig {
        name: "busy0".to_owned(),
        link: LinkType::Ip,
        mac: MacAddr::default(),
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: Vec::new(),
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    }
}

/// Creates an engine with an [`AlwaysBusyPort`] in each shard. The port in shard `panics` panics.
fn busy(threads_by_need: bool, panics: Option<u32>) -> Engine {
    let interfaces = vec![interface()];
    let config = EngineConfig { interfaces, threads_by_need, ..EngineConfig::default() };
    let queue =
        |shard| Box::new(AlwaysBusyPort { panics: panics == Some(shard) }) as Box<dyn Port + Send>;
    let ports = (0..SHARDS).map(|shard| vec![queue(shard)]).collect();
    Engine::with_shards(config, ports, [7; 32]).expect("memory")
}

/// Tests that all shards end when one of them panics, without waiting for it.
#[test]
fn when_one_shard_panics_all_end() {
    for (threads_by_need, shard) in [(false, 0), (false, 1), (false, 3), (true, 0), (true, 3)] {
        let engine = Running::begin(busy(threads_by_need, Some(shard)));
        let start = Time::now();
        while engine.remote.counters().is_ok() {
            assert!(start.elapsed() < PATIENCE, "shard {shard}");
        }
        engine.thread.join().expect_err("it panics, too");
    }
}

/// Tests that shards are moved to other threads while a program uses them.
#[test]
fn threads_come_by_need() {
    let mut engine = busy(true, None);
    // Move shards to new threads at any processor usage. The tests of `team` check the real
    // threshold.
    engine.threads_by_need = Some(0);
    let engine = Running::begin(engine);
    let program = TestProgram::hello(engine.remote.attach().expect("room"));
    let start = Time::now();
    while engine.counter("threads") < u64::from(SHARDS) - 1 {
        let sockets: Vec<_> = (0..SHARDS).map(|shard| program.socket(shard)).collect();
        assert_eq!(program.held(&sockets), 0xf);
        sockets.into_iter().for_each(|socket| program.close(socket));
        assert!(start.elapsed() < PATIENCE, "{} threads more", engine.counter("threads"));
    }
    drop(program);
    engine.wait_for("channels", 0);
    engine.remote.stop();
    let report = engine.thread.join().expect("it does not panic");
    assert_eq!(report.counters.engine.iter().find(|it| it.0 == "threads"), Some(&("threads", 3)));
}

#[test]
fn shards_without_work_need_no_threads() {
    let config = EngineConfig { threads_by_need: true, ..EngineConfig::default() };
    let engine = Running::start(config);
    let program = TestProgram::hello(engine.remote.attach().expect("room"));
    // Together, the iterations take longer than one measurement of processor usage.
    for _ in 0..6 {
        (0..SHARDS).for_each(|shard| program.close(program.socket(shard)));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(engine.counter("threads"), 0);
    drop(program);
    engine.remote.stop();
    engine.thread.join().expect("it does not panic");
}

#[test]
fn there_can_be_sixteen() {
    let ports = (0..16).map(|_| Vec::new()).collect();
    let engine = Engine::with_shards(EngineConfig::default(), ports, [7; 32]).expect("memory");
    let remote = engine.remote();
    let thread = std::thread::spawn(|| engine.run());
    let control = remote.attach().expect("room");
    ask(&control, &hello());
    let (reply, fds) = answer(&control, RecvFlags::empty()).expect("an answer");
    assert_eq!((reply.errno, reply.slot, fds.len()), (0, 16, 5 + 16));
    remote.stop();
    thread.join().expect("it does not panic");
    for wrong in [0, 3, 17, 32] {
        let ports = (0..wrong).map(|_| Vec::new()).collect();
        let refused = Engine::with_shards(EngineConfig::default(), ports, [7; 32]).err();
        assert!(matches!(refused, Some(EngineError::Shards(count)) if count == wrong));
    }
}

/// A program lists all sockets over netlink, and gets a part of the list with each request.
#[test]
fn a_listing_goes_on_with_the_next_shard() {
    let engine = Running::start(EngineConfig::default());
    let program = TestProgram::hello(engine.remote.attach().expect("room"));
    let sockets: Vec<_> = (0..SHARDS).map(|shard| program.socket(shard).0).collect();
    let (mut next, mut listed) = (0, Vec::new());
    loop {
        let request = Request { call: call::SOCKETS, a: next, ..Request::default() };
        let reply = program.call(shard_of(next, SHARDS), &request);
        for line in reply.payload().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let entry: serde_json::Value = serde_json::from_slice(line).expect("JSON");
            assert_eq!(entry["pids"][0], std::process::id());
            listed.push(entry["slot"].as_u64().expect("a number") as u32);
        }
        next = reply.a;
        if next == 0 {
            break;
        }
    }
    assert_eq!(listed, sockets);
    engine.remote.stop();
    engine.thread.join().expect("it does not panic");
}

/// If one shard finds that a process's ring is corrupt, all shards must cut the process off.
#[test]
fn who_breaks_the_rules_of_one_shard_is_cut_off_by_all() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.remote.attach(), engine.remote.attach());
    let (good, bad) =
        (TestProgram::hello(good.expect("room")), TestProgram::hello(bad.expect("room")));
    for shard in 0..SHARDS {
        bad.socket(shard);
    }
    let tail = &bad.channels[2].header().command_tail;
    tail.store(1 << 30, std::sync::atomic::Ordering::SeqCst);
    bad.ring_all();
    engine.wait_for("channels", 1);
    engine.wait_for("sockets", 0);
    assert_eq!(engine.counter("hostile_channels"), 1);
    assert!(bad.channels.iter().all(towpath_ring::has_ended));
    let sockets: Vec<_> = (0..SHARDS).map(|shard| good.socket(shard)).collect();
    assert_eq!(good.held(&sockets), 0xf);
    engine.remote.stop();
    engine.thread.join().expect("it does not panic");
}

#[test]
fn the_run_ends_with_the_last_process_whichever_shards_it_used() {
    for used in [&[][..], &[3], &[0, 1, 2, 3]] {
        let config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
        let engine = Running::start(config);
        let program = TestProgram::hello(engine.remote.attach().expect("room"));
        for shard in used {
            program.socket(*shard);
        }
        let children: Vec<_> = (0..3).map(|_| program.fork()).collect();
        drop(program);
        engine.wait_for("channels", 3);
        drop(children);
        engine.thread.join().expect("it does not panic");
    }
}

/// A host program can run all shards of an engine on one thread.
#[test]
fn a_host_turns_all_shards() {
    let mut engine = engine(EngineConfig::default(), Clock::ByHand(Instant(1_000_000_000)));
    let control = engine.attach().expect("room");
    ask(&control, &hello());
    let given = (0..20).find_map(|_| {
        engine.turn();
        engine.sleep(Some(Duration::ZERO));
        answer(&control, RecvFlags::DONTWAIT)
    });
    let (reply, fds) = given.expect("an answer");
    let program = TestProgram::begin(control, &reply, fds);
    assert_ne!(program.number, 0);
    for channel in &program.channels {
        let request = Request { call: call::SOCKET, a: 2, b: 17, ..Request::default() };
        let number = towpath_ring::ask(channel, &request);
        let reply = (0..20).find_map(|_| {
            engine.turn();
            towpath_ring::answer_to(channel, number)
        });
        assert_eq!(reply.map(|reply| reply.errno), Some(0));
    }
    let sockets = |engine: &Engine| {
        let shards = std::iter::once(&engine.shard).chain(&engine.others);
        shards.map(|shard| shard.sockets.slots.len()).collect::<Vec<_>>()
    };
    assert_eq!(sockets(&engine), [1; SHARDS as usize]);
    drop(program);
    for _ in 0..20 {
        engine.turn();
        engine.sleep(Some(Duration::ZERO));
    }
    assert_eq!(sockets(&engine), [0; SHARDS as usize]);
    assert_eq!(engine.control.registry().map(|registry| registry.len()), Some(0));
}
