//! Programs that request more than their share. The work for each program is bounded, so that other
//! programs are still served.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::hostile::works;
use crate::program::{Handle, PATIENCE, Program, Running, eventually, wait_for_rest};
use towpath_engine::EngineConfig;
use towpath_shm::control::{Request, call, purpose};
use towpath_shm::layout::{LOCK_CHANNEL_SHIFT, event, op, shut};

const EAGAIN: i32 = 11;
const NOTHING: Handle = Handle { slot: 0, generation: 0 };

/// Sends SETTLED for a child of fork, which keeps only listed sockets: usually none.
fn settle(program: &Program) {
    program.command(op::SETTLED, NOTHING, 0);
    // The engine handles earlier commands before this request.
    program.call(&Request { call: call::INTERFACES, ..Request::default() }).unwrap();
}

/// Creates clones without processes until the engine refuses more.
fn flood(program: &Program, most: usize) -> Vec<OwnedFd> {
    let clone = Request { call: call::CLONE, a: purpose::FORK, ..Request::default() };
    std::iter::from_fn(|| program.call_for_first(&clone)).take(most).collect()
}

#[test]
fn clones_of_one_process_are_bounded_and_so_is_what_they_cost() {
    // `CLONES_MAX` of engine/src/shard/processes/fork_exec.rs.
    const CLONES_MAX: usize = 512;
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let clones = flood(&bad, 2 * CLONES_MAX);
    assert_eq!(clones.len(), CLONES_MAX);
    assert!(engine.counter("channels_refused") > 0);

    let before = (engine.counter("holds_made"), engine.counter("events"));
    let socket = bad.socket(17);
    assert!(engine.counter("holds_made") - before.0 <= 1 + CLONES_MAX as u64);
    bad.command(op::SHUTDOWN, socket, shut::READ);
    eventually("the events", || {
        (engine.counter("events") - before.1 > CLONES_MAX as u64).then_some(())
    });
    assert!(engine.counter("events") - before.1 <= 1 + CLONES_MAX as u64);

    let child = good.try_fork().unwrap();
    settle(&child);
    works(&child);
    drop(clones);
    engine.wait_for("channels", 3);
    assert_eq!(flood(&bad, 1).len(), 1);
}

#[test]
fn a_family_of_processes_leaves_room_for_others() {
    let engine = Running::start(EngineConfig { channels_max: 64, ..EngineConfig::default() });
    let shell = engine.program();
    let bad = shell.fork();
    settle(&bad);
    // Each new process forks as often as the engine allows.
    let mut family = vec![bad];
    let mut at = 0;
    while at < family.len() {
        while let Ok(more) = family[at].try_fork() {
            settle(&more);
            family.push(more);
        }
        at += 1;
    }
    assert_eq!(family.len(), 32);
    let good = shell.try_fork().unwrap();
    settle(&good);
    settle(&good.try_fork().unwrap());
    works(&good);
}

#[test]
fn who_has_not_begun_does_not_fork() {
    let engine = Running::start(EngineConfig::default());
    let parent = engine.program();
    let child = parent.fork();
    assert_eq!(child.try_fork().err(), Some(EAGAIN));
    settle(&child);
    settle(&child.try_fork().unwrap());
}

#[test]
fn all_holders_of_a_socket_are_told() {
    let engine = Running::start(EngineConfig::default());
    let parent = engine.program();
    let (listener, addr) = parent.listen("127.0.0.1:0");
    let workers: Vec<_> = (0..40).map(|_| parent.fork()).collect();
    let told = |program: &Program| {
        std::iter::from_fn(|| towpath_ring::pop_event(&program.channel))
            .any(|(slot, bits)| slot == listener.slot && bits & event::RX != 0)
    };
    for _ in 0..20 {
        let client = parent.connect(addr);
        for worker in &workers {
            eventually("the event", || told(worker).then_some(()));
        }
        parent.close(client);
        let server = workers[0].accept(listener);
        workers[0].close(server);
    }
}

#[test]
fn those_that_wait_for_memory_are_tried_in_turns() {
    const SOCKETS: usize = 2000;
    // Number of sockets for which 1 MiB suffices.
    const SERVED: u64 = 16;
    let engine = Running::start(EngineConfig { memory_cap: 1 << 20, ..EngineConfig::default() });
    let program = engine.program();
    let mut waiting: Vec<_> = (0..SOCKETS).map(|_| program.socket(17)).collect();
    waiting.iter().for_each(|socket| program.command(op::TX_WINDOW, *socket, 0));
    program.call(&Request { call: call::INTERFACES, ..Request::default() }).unwrap();

    let figures = || (engine.counter("turns"), engine.counter("memory_tries"));
    let before = figures();
    std::thread::sleep(Duration::from_millis(200));
    // A program that already waits for memory gets no additional attempt by another request.
    for _ in 0..5 {
        waiting.iter().for_each(|socket| program.command(op::TX_WINDOW, *socket, 0));
    }
    program.call(&Request { call: call::INTERFACES, ..Request::default() }).unwrap();
    let after = figures();
    let (turns, tries) = (after.0 - before.0, after.1 - before.1);
    // Each turn stops after eight failed attempts (feeding.rs). After a sweep, other sockets may
    // take all memory within a turn. A request for a socket that has memory is answered at once.
    let most = (8 + 2 * SERVED) * (turns + 2) + 5 * SERVED;
    assert!(tries > 0 && tries <= most, "{tries} tries in {turns} turns");

    works_slowly(&program, &mut waiting);
}

/// A thread stops while it holds the lock, for example in a debugger. Another thread waits for
/// memory.
#[test]
fn a_thread_that_stands_still_in_send_costs_the_engine_little() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let socket = program.socket(17);
    let slot = program.slot(socket);
    slot.tx_lock.store(1 << LOCK_CHANNEL_SHIFT | 5, Ordering::Relaxed);
    program.command(op::TX_WINDOW, socket, 0);
    eventually("a try", || (engine.counter("memory_tries") > 0).then_some(()));
    // The retry interval grows to 100 ms (feeding.rs), and each query takes a turn, too.
    wait_for_rest(&engine.remote, Duration::from_millis(300), 9);
    slot.tx_lock.store(0, Ordering::Relaxed);
    eventually("the memory", || (slot.tx_cap.load(Ordering::Acquire) != 0).then_some(()));
}

/// Every socket gets memory at some time if others release theirs. While sockets wait, memory that
/// is not used in time is taken back (sweep.rs). A slow program then finds none, and requests it
/// again.
fn works_slowly(program: &Program, waiting: &mut Vec<Handle>) {
    let (mut last, mut asked) = (Instant::now(), Instant::now());
    while !waiting.is_empty() {
        assert!(last.elapsed() < PATIENCE, "{} sockets still have no memory", waiting.len());
        if asked.elapsed() > Duration::from_millis(100) {
            waiting.iter().for_each(|socket| program.command(op::TX_WINDOW, *socket, 0));
            asked = Instant::now();
        }
        waiting.retain(|&socket| {
            let has_memory = program.slot(socket).tx_cap.load(Ordering::Acquire) != 0;
            if has_memory {
                program.close(socket);
                last = Instant::now();
            }
            !has_memory
        });
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_list_of_sockets_looks_at_each_once() {
    const SOCKETS: u64 = 300;
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let sockets: Vec<_> = (0..SOCKETS).map(|_| program.socket(17)).collect();
    let before = engine.counter("slots_listed");
    let (mut first, mut requests, mut lines) = (0, 0, 0);
    loop {
        let request = Request { call: call::SOCKETS, a: first, ..Request::default() };
        let reply = program.call(&request).unwrap();
        lines += reply.payload().split(|byte| *byte == b'\n').filter(|it| !it.is_empty()).count();
        requests += 1;
        first = reply.a;
        if first == 0 {
            break;
        }
    }
    assert_eq!(lines, sockets.len());
    let looks = engine.counter("slots_listed") - before;
    assert!((SOCKETS..=SOCKETS + requests).contains(&looks), "{looks} looks");
    // A slot after the last one, and the maximum number.
    for a in [SOCKETS as u32, u32::MAX] {
        let reply = program.call(&Request { call: call::SOCKETS, a, ..Request::default() });
        assert_eq!(reply.map(|reply| (reply.a, reply.len)), Ok((0, 0)));
    }
}

#[test]
fn a_list_for_a_clone_holds_what_there_is() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let socket = bad.socket(17);
    for n in 0..20_000u32 {
        bad.command(op::LIST, socket, 0);
        bad.command(op::LIST, Handle { slot: n, generation: n }, 0);
    }
    let exec = Request { call: call::CLONE, a: purpose::EXEC, ..Request::default() };
    let clone = bad.call_for_first(&exec).unwrap();
    assert!(engine.counter("commands_stale") >= 20_000 - 1);
    drop(bad);
    engine.wait_for("channels", 2);
    assert_eq!(engine.counter("sockets"), 1);
    drop(clone);
    engine.wait_for("sockets", 0);
    works(&good);
}
