//! Programs that would have the engine sleep in a system call, or never wake up.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::hostile::works;
use crate::program::{Running, eventually};
use towpath_engine::EngineConfig;
use towpath_shm::control::{Request, call};

/// An eventfd that was filled takes nothing more, a full socket neither: a write waits if O_NONBLOCK is
/// off, which is the open file's and so everybody's who has it.
fn clog(bell: BorrowedFd<'_>) {
    let _ = rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes());
    while rustix::io::write(bell, &1u64.to_ne_bytes()).is_ok() {}
    fcntl_setfl(bell, OFlags::empty()).unwrap();
}

#[test]
fn a_clogged_bell_of_a_program_does_not_hold_up_the_engine() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let (listener, addr) = good.listen("127.0.0.1:0");
    let client = bad.connect(addr);
    let server = good.accept(listener);
    clog(bad.bell.as_fd());
    while towpath_ring::pop_event(&bad.channel).is_some() {}
    bad.channel.header().sleeping.store(1, Ordering::SeqCst);
    good.send(server, b"an event");
    engine.lives();
    assert_eq!(bad.recv(client, 8), b"an event");
    works(&good);
}

#[test]
fn a_clogged_bell_of_the_engine_does_not_hold_it_up() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    clog(bad.engine_bell.as_fd());
    engine.lives();
    works(&good);
}

/// Whoever reads the engine's bell takes its own rings away, and nobody else's.
#[test]
fn a_bell_that_is_read_by_a_program_wakes_the_engine_for_others() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fcntl_setfl(&bad.engine_bell, OFlags::empty()).unwrap();
            while !done.load(Ordering::Relaxed) {
                let _ = rustix::io::read(&bad.engine_bell, &mut [0u8; 8]);
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..200).for_each(|_| commands_are_served(&good));
        }));
        done.store(true, Ordering::Relaxed);
        rustix::io::write(&bad.engine_bell, &1u64.to_ne_bytes()).unwrap();
        outcome.unwrap();
    });
}

/// Commands alone, which need a bell when the engine sleeps: a request on the control socket does not.
fn commands_are_served(program: &crate::program::Program) {
    let socket = program.socket(6);
    // The engine falls asleep before some of them, and not before others.
    std::thread::yield_now();
    program.close(socket);
    eventually("the close", || {
        let generation = program.slot(socket).generation.load(Ordering::Acquire);
        (generation != socket.generation).then_some(())
    });
}

#[test]
fn a_program_that_says_that_the_engine_is_awake_silences_nobody() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // The first page, and with it every word that is not a socket's.
                for word in 0..1024 {
                    bad.region.mapping().u32(4 * word).store(0, Ordering::SeqCst);
                }
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..200).for_each(|_| commands_are_served(&good));
            // A program that starts meanwhile finds a region of its build.
            works(&engine.program());
        }));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

/// A kernel socket whose last close sleeps until its peer has read everything, or for an hour.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 65536]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    let hour = std::time::Duration::from_secs(3600);
    rustix::net::sockopt::set_socket_linger(&stream, Some(hour)).unwrap();
    (stream, peer)
}

#[test]
fn descriptors_that_a_program_sends_are_not_closed_by_the_engine() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let (stream, _peer) = lingering();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [stream.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let request = Request { call: call::INTERFACES, ..Request::default() };
    let parts = [std::io::IoSlice::new(request.wire())];
    // Linux 6.16 and newer refuses: the engine's end takes none.
    let sent = sendmsg(&bad.control, &parts, &mut ancillary, SendFlags::NOSIGNAL);
    if sent.is_ok() {
        // The engine has the last reference now: a close would sleep on whichever thread does it.
        drop(stream);
        engine.lives();
        engine.wait_for("hostile_channels", 1);
    } else {
        std::mem::forget(stream);
    }
    engine.lives();
    works(&good);
}

/// How many descriptors may be on their way in messages is limited for a user, and so for all processes.
#[test]
fn a_program_that_takes_no_descriptors_gets_no_more() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    for _ in 0..2 {
        bad.begin_call(&Request { call: call::REGION, ..Request::default() });
    }
    engine.wait_for("hostile_channels", 1);
    works(&good);
}
