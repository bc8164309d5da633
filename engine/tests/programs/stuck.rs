//! Programs that try to make the engine block in a system call, or never wake up.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::hostile::works;
use crate::program::{Handle, Program, Running, eventually};
use towpath_engine::EngineConfig;
use towpath_shm::control::{Request, call};
use towpath_shm::layout::{FIFO_OFFSET, op};
use towpath_shm::{Mapping, Stretch};

/// Fills a notification and clears O_NONBLOCK, so that a further write would block. The flag
/// belongs to the open file, so every process that has the file can clear it.
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

/// A program that reads the engine's notifications delays only its own commands.
#[test]
fn a_bell_that_is_read_by_a_program_wakes_the_engine_for_others() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            fcntl_setfl(&bad.engine_bell, OFlags::empty()).unwrap();
            while !done.load(Ordering::Relaxed) {
                let _ = rustix::io::read(&bad.engine_bell, &mut [0u8; 8]);
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..200).for_each(|_| commands_are_served(&good));
        }));
        done.store(true, Ordering::Relaxed);
        // The engine may read the notification before the reader thread does.
        eventually("the reader's end", || {
            rustix::io::write(&bad.engine_bell, &1u64.to_ne_bytes()).unwrap();
            reader.is_finished().then_some(())
        });
        outcome.unwrap();
    });
}

/// Sends commands only, which need a notification if the engine sleeps. Requests on the control
/// socket do not.
fn commands_are_served(program: &crate::program::Program) {
    let socket = program.socket(6);
    // With the pause, the engine falls asleep before some commands, but not before all.
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
                // The first page of the region contains all words that do not belong to a socket.
                for word in 0..1024 {
                    bad.region.mapping().u32(4 * word).store(0, Ordering::SeqCst);
                }
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..200).for_each(|_| commands_are_served(&good));
            // A program that starts meanwhile must find a valid region.
            works(&engine.program());
        }));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

/// Returns a kernel socket whose last close blocks until its peer has read all bytes, or for an
/// hour.
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
    // Fails since Linux 6.16, because the engine's end refuses descriptors.
    let sent = sendmsg(&bad.control, &parts, &mut ancillary, SendFlags::NOSIGNAL);
    if sent.is_ok() {
        // The engine has the last reference now, so closing it blocks the closing thread.
        drop(stream);
        engine.lives();
        engine.wait_for("hostile_channels", 1);
    } else {
        std::mem::forget(stream);
    }
    engine.lives();
    works(&good);
}

/// The kernel limits the descriptors in flight per user, so one process could block all others.
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

/// Holds the inode lock of a program's region by a write(2) that waits for a page fault.
struct Locked {
    /// Closing this userfaultfd lets the write continue.
    faults: Option<OwnedFd>,
    writer: Option<JoinHandle<()>>,
}

impl Locked {
    /// Fails if this process may not handle faults of the kernel (vm.unprivileged_userfaultfd).
    fn new(program: &Program) -> std::io::Result<Self> {
        let source = Arc::new(Mapping::private(4096).unwrap());
        let source = Stretch::new(&source, 0, 4096);
        let faults = handle_faults(&source)?;
        // Request the region's file again, because the program's mapping has closed its descriptor.
        let again = Request { call: call::REGION, ..Request::default() };
        let file = program.call_for_first(&again).unwrap();
        let writer = std::thread::spawn(move || {
            // SAFETY: the byte is in a mapping that lives as long as `source`.
            let n = unsafe { libc::pwrite(file.as_raw_fd(), source.as_ptr().cast(), 1, 0) };
            assert_eq!(n, 1);
        });
        let mut event = [0u8; 32];
        eventually("the fault", || rustix::io::read(&faults, &mut event).ok());
        Ok(Self { faults: Some(faults), writer: Some(writer) })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        drop(self.faults.take());
        let written = self.writer.take().unwrap().join();
        assert!(written.is_ok() || std::thread::panicking());
    }
}

/// Makes threads that touch the memory wait until the returned descriptor is closed
/// (userfaultfd(2)).
fn handle_faults(memory: &Stretch) -> std::io::Result<OwnedFd> {
    // linux/userfaultfd.h: _IOWR(0xaa, 0x3f, struct uffdio_api), _IOWR(0xaa, 0, struct
    // uffdio_register).
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    const UFFD_API: u64 = 0xaa;
    const MODE_MISSING: u64 = 1;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and has no other owner.
    let faults = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) };
    let mut api = [UFFD_API, 0, 0];
    // SAFETY: the kernel writes three words.
    let agreed = unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
    let mut range = [memory.as_ptr().addr() as u64, u64::from(memory.len()), MODE_MISSING, 0];
    // SAFETY: the kernel writes four words.
    let watched = unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, range.as_mut_ptr()) };
    assert_eq!((agreed, watched), (0, 0));
    Ok(faults)
}

/// userfaultfd(2) applies to one mapping. A program that handles faults in its mapping of the
/// region does not affect the engine's mapping.
#[test]
fn a_program_that_handles_its_faults_does_not_hold_up_the_engine() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let memory = Stretch::new(bad.region.mapping(), FIFO_OFFSET, 1 << 30);
    let faults = match handle_faults(&memory) {
        Ok(faults) => faults,
        Err(error) => return println!("SKIPPED: userfaultfd(2): {error}"),
    };
    // An offset in memory that was not touched yet.
    let offset = FIFO_OFFSET + (1 << 30) - 4096;
    std::thread::scope(|scope| {
        scope.spawn(|| bad.region.mapping().u32(offset).load(Ordering::Relaxed));
        let mut event = [0u8; 32];
        eventually("the fault", || rustix::io::read(&faults, &mut event).ok());
        for _ in 0..20 {
            works(&good);
        }
        engine.lives();
        drop(faults);
    });
    works(&bad);
}

/// The kernel takes the inode lock to punch a hole in the region's file. When memory is short, the
/// engine has to free pages of some sockets for others.
#[test]
fn a_program_that_locks_the_regions_inode_does_not_hold_up_the_engine() {
    let engine = Running::start(EngineConfig { memory_cap: 1 << 20, ..EngineConfig::default() });
    let (good, bad) = (engine.program(), engine.program());
    let (listener, addr) = good.listen("127.0.0.1:0");
    let pairs: Vec<_> = (0..6).map(|_| (good.connect(addr), good.accept(listener))).collect();
    for &(client, server) in &pairs {
        good.send(client, b"there");
        assert_eq!(good.recv(server, 5), b"there");
        good.send(server, b"and back");
        assert_eq!(good.recv(client, 8), b"and back");
    }
    let locked = match Locked::new(&bad) {
        Ok(locked) => locked,
        Err(error) => return println!("SKIPPED: userfaultfd(2): {error}"),
    };
    for (client, server) in pairs {
        good.close(client);
        good.close(server);
    }
    engine.wait_for("windows_assigned", 0);
    // Datagram sockets need extents of another size, so pages of other sockets have to be freed.
    let hungry: [Handle; 4] = [(); 4].map(|()| good.socket(17));
    hungry.iter().for_each(|socket| good.command(op::TX_WINDOW, *socket, 0));
    engine.lives();
    for _ in 0..20 {
        works(&good);
    }
    engine.lives();
    assert_ne!(engine.counter("memory_returning"), 0, "nothing was given back");
    // When the lock is released, the waiting sockets get their memory.
    drop(locked);
    for socket in hungry {
        let fifo = &good.slot(socket).tx_cap;
        eventually("memory", || (fifo.load(Ordering::Acquire) != 0).then_some(()));
        good.close(socket);
    }
    engine.wait_for("memory_touched", 0);
    engine.wait_for("memory_returning", 0);
}
