//! Tests of registry and shard on separate threads: commands and reports arrive late, and processes
//! or threads end meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use towpath_dice::Dice;
use towpath_engine::{Engine, EngineConfig, Next, Remote};
use towpath_shm::control::{Request, call, purpose};
use towpath_shm::layout::op;

use crate::hostile::works;
use crate::options::{Watched, interface};
use crate::order::{Gate, Lock};
use crate::program::{Handle, Program, Running, counter, eventually, wait_for_rest};

const NOTHING: Handle = Handle { slot: 0, generation: 0 };

fn settle(program: &Program) {
    program.command(op::SETTLED, NOTHING, 0);
    program.call(&Request { call: call::INTERFACES, ..Request::default() }).unwrap();
}

/// Repeatedly ends a child and forks again at once, at the maximum number of processes.
#[test]
fn there_is_room_for_a_fork_after_a_child_has_ended() {
    let engine = Running::start(EngineConfig { channels_max: 4, ..EngineConfig::default() });
    let parent = engine.program();
    let first = parent.fork();
    settle(&first);
    // The child's family may have two processes.
    let mut second = first.fork();
    let mut refused = 0;
    for _ in 0..200 {
        settle(&second);
        // Another thread closes the engine's copies of the descriptors that it has sent.
        engine.wait_for("descriptors_to_close", 0);
        drop(second);
        second = match first.try_fork() {
            Ok(next) => next,
            Err(_) => {
                refused += 1;
                eventually("room", || first.try_fork().ok())
            }
        };
    }
    assert_eq!(refused, 0);
}

/// As the test above, for an attach instead of a fork.
#[test]
fn there_is_room_for_an_attach_after_a_process_has_ended() {
    let engine = Running::start(EngineConfig { channels_max: 2, ..EngineConfig::default() });
    let _one = engine.program();
    let mut other = engine.program();
    let mut refused = 0;
    for _ in 0..200 {
        engine.wait_for("descriptors_to_close", 0);
        drop(other);
        let control = match engine.remote.attach() {
            Ok(control) => control,
            Err(_) => {
                refused += 1;
                eventually("room", || engine.remote.attach().ok())
            }
        };
        other = Program::hello(control, &[]);
    }
    assert_eq!(refused, 0);
}

/// Runs an engine with a gatekeeper on its own thread.
fn gated(
    config: EngineConfig,
    gate: impl FnMut(u32) -> bool + Send + 'static,
) -> (Remote, thread::JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel();
    let mut gate = gate;
    let thread = thread::spawn(move || {
        let mut engine = Engine::new(config, Vec::new(), [7; 32]).unwrap();
        engine.on_unintercepted(move |outsider| gate(outsider.pid));
        sender.send(engine.remote()).unwrap();
        engine.run();
    });
    (receiver.recv().unwrap(), thread)
}

/// The gatekeeper is called with the process ID that the process has sent before its request.
#[test]
fn the_gatekeeper_hears_who_asks() {
    let pids = Arc::new(Mutex::new(Vec::new()));
    let heard = pids.clone();
    let (remote, thread) = gated(EngineConfig::default(), move |pid| {
        heard.lock().unwrap().push(pid);
        true
    });
    let parent = Program::hello(remote.attach().unwrap(), &[]);
    let sockets: Vec<_> = (0..400).map(|_| parent.socket(17)).collect();
    let child = parent.fork();
    // As api/posix does in a child of fork: lists the sockets, and sends SETTLED with the process
    // ID.
    sockets.iter().for_each(|socket| child.command(op::LIST, *socket, 0));
    child.command(op::SETTLED, NOTHING, 4242);
    let request = Request { call: call::OUTSIDE, a: 1, ..Request::default() };
    child.call(&request).unwrap();
    assert_eq!(*pids.lock().unwrap(), [4242]);
    remote.stop();
    thread.join().unwrap();
}

/// If an attach succeeds, the engine must still run.
#[test]
fn an_engine_that_stops_lets_nobody_in() {
    let mut late = 0;
    for _ in 0..100 {
        let engine = Running::start(EngineConfig::default());
        let remote = engine.remote.clone();
        remote.stop();
        late += usize::from(remote.attach().is_ok());
        engine.stop();
    }
    assert_eq!(late, 0);
}

/// An engine that ends with its last program refuses attaches, too.
#[test]
fn an_engine_that_ends_with_its_last_program_lets_nobody_in() {
    let mut late = 0;
    for n in 0..300u64 {
        let config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
        let mut engine = Running::start(config);
        let program = engine.program();
        drop(program);
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(n) {}
        match engine.remote.attach() {
            Err(_) => {}
            Ok(control) => {
                let request = Request { call: call::REGION, ..Request::default() };
                rustix::net::send(&control, request.wire(), rustix::net::SendFlags::NOSIGNAL).ok();
                let mut byte = [0; 2048];
                match rustix::net::recv(&control, &mut byte, rustix::net::RecvFlags::empty()) {
                    Ok((0, _)) | Err(_) => late += 1,
                    Ok(_) => {}
                }
            }
        }
        engine.join();
    }
    assert_eq!(late, 0, "of 300 were let in by an engine that had ended its life");
}

/// All threads end if a port panics while processes end, fork and send requests.
#[test]
fn a_panic_of_a_port_ends_everything() {
    for n in 0..30 {
        let port = Watched::default();
        let (sender, receiver) = mpsc::channel();
        let its = port.clone();
        let thread = thread::spawn(move || {
            let config = EngineConfig { interfaces: vec![interface()], ..EngineConfig::default() };
            let engine = Engine::new(config, vec![Box::new(its)], [7; 32]).unwrap();
            sender.send(engine.remote()).unwrap();
            engine.run();
        });
        let remote = receiver.recv().unwrap();
        let programs: Vec<_> =
            (0..6).map(|_| Program::hello(remote.attach().unwrap(), &[])).collect();
        let asks: Vec<_> = (0..3)
            .map(|_| {
                let remote = remote.clone();
                thread::spawn(
                    move || while remote.counters().is_ok() && remote.sockets().is_ok() {},
                )
            })
            .collect();
        let lives: Vec<_> = programs
            .into_iter()
            .map(|program| {
                thread::spawn(move || {
                    loop {
                        let request = Request { call: call::CLONE, ..Request::default() };
                        if rustix::net::send(
                            &program.control,
                            request.wire(),
                            rustix::net::SendFlags::NOSIGNAL,
                        )
                        .is_err()
                        {
                            return;
                        }
                        let mut bytes = [0; 4096];
                        match rustix::net::recv(
                            &program.control,
                            &mut bytes,
                            rustix::net::RecvFlags::empty(),
                        ) {
                            Ok((0, _)) | Err(_) => return,
                            Ok(_) => {}
                        }
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(n % 7));
        port.breaks.store(true, Ordering::SeqCst);
        assert!(thread.join().is_err());
        asks.into_iter().for_each(|it| it.join().unwrap());
        lives.into_iter().for_each(|it| it.join().unwrap());
        assert!(remote.counters().is_err() && remote.attach().is_err());
    }
}

/// All threads end if the gatekeeper panics on the registry's thread.
#[test]
fn a_panic_of_the_gatekeeper_ends_everything() {
    for _ in 0..20 {
        let (remote, thread) =
            gated(EngineConfig::default(), |pid| panic!("{pid} is not to be asked about"));
        let programs: Vec<_> =
            (0..4).map(|_| Program::hello(remote.attach().unwrap(), &[])).collect();
        let asks: Vec<_> = (0..3)
            .map(|_| {
                let remote = remote.clone();
                thread::spawn(
                    move || while remote.counters().is_ok() && remote.sockets().is_ok() {},
                )
            })
            .collect();
        programs[0].begin_call(&Request { call: call::OUTSIDE, a: 1, ..Request::default() });
        assert!(thread.join().is_err());
        asks.into_iter().for_each(|it| it.join().unwrap());
        for program in &programs {
            let mut bytes = [0; 64];
            let got =
                rustix::net::recv(&program.control, &mut bytes, rustix::net::RecvFlags::empty());
            assert!(matches!(got, Ok((0, _)) | Err(_)));
            assert!(towpath_ring::has_ended(&program.channel));
        }
        assert!(remote.counters().is_err() && remote.attach().is_err());
    }
}

/// Processes fork, send requests and end concurrently. Afterwards none is left, and the engine
/// sleeps.
fn storm(remote: &Remote, threads: u64, for_ms: u64) {
    let all: Vec<_> = (0..threads)
        .map(|n| {
            let remote = remote.clone();
            thread::spawn(move || {
                let mut dice = Dice::new(1, n);
                let mut alive: Vec<Program> = Vec::new();
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(for_ms) {
                    if alive.is_empty() {
                        alive.push(Program::hello(remote.attach().unwrap(), &[]));
                    }
                    let at = dice.index(alive.len());
                    match dice.below(16) {
                        0..=3 if alive.len() < 8 => {
                            if let Ok(child) = alive[at].try_fork() {
                                child.command(op::SETTLED, NOTHING, 5);
                                alive.push(child);
                            }
                        }
                        // Drop a program while the engine handles its call.
                        4..=6 => {
                            let program = alive.swap_remove(at);
                            let number = [call::CLONE, call::TOKENS, call::HELLO, call::REGION]
                                [dice.index(4)];
                            let a = dice.below(3) as u32;
                            program.begin_call(&Request { call: number, a, ..Request::default() });
                            let spin = dice.below(200);
                            let now = Instant::now();
                            while now.elapsed() < Duration::from_micros(spin) {}
                            drop(program);
                        }
                        7 => drop(alive.swap_remove(at)),
                        8 | 9 => drop(alive[at].socket(17)),
                        10 => {
                            let (_, addr) = alive[at].listen("127.0.0.1:0");
                            let _ = alive[at].connect(addr);
                        }
                        11 => {
                            let exec = Request {
                                call: call::CLONE,
                                a: purpose::EXEC,
                                ..Request::default()
                            };
                            if let Some(control) = alive[at].call_for_first(&exec) {
                                alive.swap_remove(at);
                                alive.push(Program::hello(control, &[]));
                            }
                        }
                        12 => {
                            let _ = alive[at].call(&Request {
                                call: call::OUTSIDE,
                                a: 1,
                                ..Request::default()
                            });
                        }
                        13 => drop(remote.counters().unwrap()),
                        14 => drop(remote.sockets().unwrap()),
                        _ => {
                            let _ = alive[at]
                                .call(&Request { call: call::SOCKETS, ..Request::default() });
                        }
                    }
                }
            })
        })
        .collect();
    all.into_iter().for_each(|it| it.join().unwrap());
    let of = |name: &str| counter(&remote.counters().unwrap(), name);
    eventually("the end of all", || {
        (of("channels") == 0 && of("sockets") == 0 && of("descriptors_to_close") == 0).then_some(())
    });
    wait_for_rest(remote, Duration::from_millis(50), 20);
}

#[test]
fn a_storm() {
    storm_beside_a_program(1000);
}

fn storm_beside_a_program(for_ms: u64) {
    let engine = Running::start(EngineConfig { channels_max: 200, ..EngineConfig::default() });
    storm(&engine.remote, 6, for_ms);
    let program = engine.program();
    works(&program);
    engine.stop();
}

/// As the test above, with an engine that a host program turns.
#[test]
fn a_storm_in_a_hosts_loop() {
    storm_in_a_hosts_loop(1000);
}

fn storm_in_a_hosts_loop(for_ms: u64) {
    let (tell, told) = mpsc::channel();
    let host = thread::spawn(move || {
        let config = EngineConfig { channels_max: 200, ..EngineConfig::default() };
        let mut engine = Engine::new(config, Vec::new(), [7; 32]).unwrap();
        tell.send(engine.remote()).unwrap();
        let _life = engine.live();
        loop {
            match engine.turn() {
                Next::Turn => {}
                Next::Sleep(timeout) if engine.begin_sleep() => {
                    use rustix::event::{PollFd, PollFlags, Timespec, poll};
                    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap());
                    poll(&mut [PollFd::new(&engine, PollFlags::IN)], timeout.as_ref()).unwrap();
                    engine.end_sleep();
                }
                Next::Sleep(_) => {}
                Next::End => return engine.finish(),
            }
        }
    });
    let remote = told.recv().unwrap();
    storm(&remote, 6, for_ms);
    remote.stop();
    host.join().unwrap();
}

/// Data that programs have written before a stop is sent, regardless of its amount.
#[test]
fn what_was_sent_before_a_stop_goes_out() {
    const SOCKETS: usize = 600;
    let (port, lock) = (Watched::default(), Arc::<Lock>::default());
    let sent = Arc::clone(&port.sent);
    let gate = Gate::new(port, Arc::clone(&lock));
    let config = EngineConfig { interfaces: vec![interface()], ..EngineConfig::default() };
    let engine = Running::start_with(config, move || vec![Box::new(gate)]);
    let program = engine.program();
    let sockets: Vec<_> = (0..SOCKETS).map(|_| program.socket(17)).collect();
    let to = "10.0.0.2:9".parse().unwrap();
    sockets.iter().for_each(|socket| program.send_to(*socket, Some(to), b"first"));
    eventually("the first", || (sent.load(Ordering::SeqCst) == SOCKETS).then_some(()));
    lock.hold_up(&program, |_gate| {
        sockets.iter().for_each(|socket| program.send_to(*socket, Some(to), b"last"));
        engine.remote.stop();
        // Let the registry send its command to the shard. If the time is too short, the test covers
        // less.
        thread::sleep(Duration::from_millis(50));
    });
    engine.stop();
    assert_eq!(sent.load(Ordering::SeqCst), 2 * SOCKETS);
}

/// A refused clone never counts towards the limits, not even temporarily.
#[test]
fn forks_that_are_refused_take_no_place() {
    let engine = Running::start(EngineConfig { channels_max: 8, ..EngineConfig::default() });
    let shell = engine.program();
    let good = shell.fork();
    settle(&good);
    // `bad` is in the same family, which may have four processes. A process may not fork before it
    // has sent SETTLED.
    let bad = good.fork();
    let third = good.fork();
    settle(&third);
    let ends = AtomicBool::new(false);
    let mut refused = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                assert!(bad.try_fork().is_err());
            }
        });
        for _ in 0..200 {
            match good.try_fork() {
                Ok(child) => {
                    settle(&child);
                    drop(child);
                    // Wait until the engine has noticed the end of the dropped child.
                    let four = |it: &usize| *it <= 5;
                    eventually("its end", || {
                        let count = engine.counter("channels") as usize;
                        Some(count).filter(four)
                    });
                    engine.wait_for("descriptors_to_close", 0);
                }
                Err(_) => refused += 1,
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(refused, 0);
}

mod nightly {
    use super::*;

    #[test]
    fn a_storm_is_weathered_for_long() {
        storm_beside_a_program(8000);
    }

    #[test]
    fn a_storm_in_a_hosts_loop_is_weathered_for_long() {
        storm_in_a_hosts_loop(8000);
    }
}
