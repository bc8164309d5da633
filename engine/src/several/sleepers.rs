//! Tests of shards (event loops) that sleep while another shard on the same thread runs.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::net::RecvFlags;
use towpath_ring::{Rung, Status, notification, ring_engine};
use towpath_shm::Fd;

use super::*;
use crate::Next;

/// A test device queue of one shard (event loop).
struct BusyQueue {
    /// Whether the device always requests another iteration of the event loop.
    is_busy: Arc<AtomicBool>,
    /// Descriptor by which the device signals a received packet. The device delivers no packet.
    bell: Fd,
    /// Number of times that the shard has noticed a signal on the descriptor.
    seen: Arc<AtomicU32>,
}

impl Port for BusyQueue {
    fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
        self.seen.fetch_add(u32::from(notification::clear(self.bell.as_fd())), Relaxed);
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
        Some(self.bell.as_fd())
    }
    fn next_timeout_ns(&self) -> Option<u64> {
        self.is_busy.load(Relaxed).then_some(0)
    }
}

/// The handle with which a test controls a [`BusyQueue`].
struct Handle {
    is_busy: Arc<AtomicBool>,
    bell: OwnedFd,
    seen: Arc<AtomicU32>,
}

/// Creates an engine with a device queue for each shard. All shards run on one thread.
fn engine_with_queues() -> (Engine, Vec<Handle>) {
    let handle = |_| Handle {
        is_busy: Arc::default(),
        bell: notification::create().expect("a descriptor").into_owned(),
        seen: Arc::default(),
    };
    let handles: Vec<Handle> = (0..SHARDS).map(handle).collect();
    let port = |handle: &Handle| {
        let bell = Fd::from(handle.bell.try_clone().expect("a descriptor"));
        let (is_busy, seen) = (Arc::clone(&handle.is_busy), Arc::clone(&handle.seen));
        vec![Box::new(BusyQueue { is_busy, bell, seen }) as Box<dyn Port + Send>]
    };
    let ports = handles.iter().map(port).collect();
    let config = EngineConfig {
        interfaces: vec![interface()],
        threads_by_need: true,
        ..EngineConfig::default()
    };
    let mut engine = Engine::with_shards(config, ports, [7; 32]).expect("memory");
    // Set a CPU usage that cannot be reached, so that no shard is moved to another thread.
    engine.threads_by_need = Some(1000);
    (engine, handles)
}

/// Runs one iteration of the event loop. If it allows a sleep, polls the descriptors without
/// sleeping.
fn go_on(engine: &mut Engine) {
    if let Next::Sleep(_) = engine.turn() {
        engine.sleep(Some(Duration::ZERO));
    }
}

/// Runs iterations of the event loop until `what` returns a value.
fn until<T>(engine: &mut Engine, mut what: impl FnMut() -> Option<T>) -> T {
    let start = Time::now();
    loop {
        go_on(engine);
        if let Some(found) = what() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it does not happen");
    }
}

fn begin(engine: &mut Engine) -> TestProgram {
    let control = engine.attach().expect("room");
    ask(&control, &hello());
    let (reply, fds) = until(engine, || answer(&control, RecvFlags::DONTWAIT));
    TestProgram::begin(control, &reply, fds)
}

#[test]
fn a_process_is_not_ended_by_the_end_of_one_that_had_its_number() {
    let mut engine = engine(EngineConfig::default(), Clock::System);
    for _ in 0..3 {
        let program = begin(&mut engine);
        (0..50).for_each(|_| go_on(&mut engine));
        assert!(program.channels.iter().all(|channel| !towpath_ring::has_ended(channel)));
        drop(program);
        (0..50).for_each(|_| go_on(&mut engine));
    }
}

#[test]
fn packets_are_seen_while_another_shard_has_work_without_end() {
    let (mut engine, queues) = engine_with_queues();
    for (busy, idle) in [(0, 2), (1, 2), (3, 0)] {
        queues[busy].is_busy.store(true, Relaxed);
        // Run enough turns for the idle shard to fall asleep.
        (0..200).for_each(|_| go_on(&mut engine));
        let before = queues[idle].seen.load(Relaxed);
        notification::ring(queues[idle].bell.as_fd());
        until(&mut engine, || (queues[idle].seen.load(Relaxed) > before).then_some(()));
        queues[busy].is_busy.store(false, Relaxed);
    }
}

#[test]
fn processes_begin_while_a_shard_has_work_without_end() {
    for busy in [0, 1, 3] {
        let (mut engine, queues) = engine_with_queues();
        queues[busy].is_busy.store(true, Relaxed);
        begin(&mut engine);
    }
}

/// Tests that the status page of a sleeping shard records that it sleeps. Otherwise programs would
/// not notify it.
#[test]
fn who_sleeps_says_so() {
    let (mut engine, queues) = engine_with_queues();
    for _ in 0..20 {
        queues[0].is_busy.store(true, Relaxed);
        for n in 0..100 {
            if n % 10 == 0 {
                // The shard is awake, or has just fallen asleep.
                notification::ring(queues[1].bell.as_fd());
            }
            std::thread::sleep(Duration::from_micros(50));
            engine.turn();
        }
        queues[0].is_busy.store(false, Relaxed);
        let start = Time::now();
        while !matches!(engine.turn(), Next::Sleep(_)) || !engine.begin_sleep() {
            assert!(start.elapsed() < PATIENCE, "the engine does not sleep");
        }
        for shard in std::iter::once(&engine.shard).chain(&engine.others) {
            let (bell, rung) = (notification::create().expect("a descriptor"), Rung::default());
            ring_engine(&shard.net.status.view(), &rung, bell.as_fd());
            assert!(notification::clear(bell.as_fd()), "shard {}", shard.sockets.place.number);
        }
        engine.end_sleep();
    }
}

#[test]
fn requests_are_answered_whoever_sleeps() {
    let (engine, queues) = engine_with_queues();
    let engine = Running::begin(engine);
    let program = TestProgram::hello(engine.remote.attach().expect("room"));
    let status = program._descriptors[1].try_clone().expect("a descriptor");
    let pages = Status::map_all(status, SHARDS).expect("pages");
    let rungs: Vec<Rung> = (0..SHARDS).map(|_| Rung::default()).collect();
    let bells = &program._descriptors[program._descriptors.len() - SHARDS as usize..];
    for round in 0..400 {
        queues[0].is_busy.store(round % 2 == 0, Relaxed);
        std::thread::sleep(Duration::from_micros(300));
        for (shard, channel) in program.channels.iter().enumerate() {
            let request = Request { call: call::SOCKET, a: 2, b: 17, ..Request::default() };
            let number = towpath_ring::ask(channel, &request);
            ring_engine(&pages[shard], &rungs[shard], bells[shard].as_fd());
            let start = Time::now();
            let reply = loop {
                if let Some(reply) = towpath_ring::answer_to(channel, number) {
                    break reply;
                }
                assert!(start.elapsed() < PATIENCE, "round {round}, shard {shard}");
                std::thread::yield_now();
            };
            let (slot, generation) = (reply.slot, reply.generation);
            let command = Command { op: op::CLOSE, slot, generation, ..Command::default() };
            push_command(channel, &command).expect("room");
            ring_engine(&pages[shard], &rungs[shard], bells[shard].as_fd());
        }
    }
    engine.remote.stop();
    engine.thread.join().expect("it does not panic");
}

#[test]
fn what_the_registry_says_happens_when_it_says_it() {
    let mut engine = engine(EngineConfig::default(), Clock::ByHand(Instant(1_000_000_000)));
    let control = engine.attach().expect("room");
    (0..20).for_each(|_| go_on(&mut engine));
    engine.pass(Duration::from_secs(100));
    drop(control);
    // The registry notices that the process has ended before the shards poll.
    engine.control.registry_mut().expect("it is here").look(Some(Duration::ZERO));
    engine.shard.turn();
    engine.exchange();
    let clocks = engine.others.iter().map(|other| other.sockets.now);
    assert_eq!(clocks.collect::<Vec<_>>(), [engine.shard.sockets.now; SHARDS as usize - 1]);
}
