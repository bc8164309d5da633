//! poll, select, epoll.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use crate::asleep;
use crate::harness::Case;
use crate::sockets::{errno, pair, set};

pub const CASES: &[Case] = &[
    ("a_set_that_is_closed_under_a_call", a_set_that_is_closed_under_a_call),
    ("level_triggered", level_triggered),
    ("edge_triggered", edge_triggered),
    ("oneshot", oneshot),
    ("interest_errors", interest_errors),
    ("kernel_descriptors_too", kernel_descriptors_too),
    ("kernel_descriptors_do_not_starve", kernel_descriptors_do_not_starve),
    ("nested_sets", nested_sets),
    ("two_threads_one_set", two_threads_one_set),
    ("many_sleeps", many_sleeps),
    ("added_while_waiting", added_while_waiting),
    ("sets_after_fork", sets_after_fork),
    ("closed_sockets_leave", closed_sockets_leave),
    ("low_water", low_water),
    ("select_and_poll", select_and_poll),
    ("threads_in_poll", threads_in_poll),
    ("lists_of_sockets_alone", lists_of_sockets_alone),
    ("a_socket_that_is_closed_under_a_poll", a_socket_that_is_closed_under_a_poll),
    ("halves_that_are_shut_one_by_one", halves_that_are_shut_one_by_one),
    ("a_number_that_a_poll_slept_on", a_number_that_a_poll_slept_on),
];

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

struct Epoll(RawFd);

impl Epoll {
    fn new() -> Self {
        // SAFETY: an integer.
        Self(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
    }

    fn ctl(&self, op: i32, fd: &impl AsRawFd, events: u32) -> Result<(), i32> {
        let mut event = libc::epoll_event { events, u64: fd.as_raw_fd() as u64 };
        // SAFETY: an event.
        match unsafe { libc::epoll_ctl(self.0, op, fd.as_raw_fd(), &raw mut event) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }

    fn add(&self, fd: &impl AsRawFd, events: u32) {
        assert_eq!(self.ctl(libc::EPOLL_CTL_ADD, fd, events), Ok(()));
    }

    fn change(&self, fd: &impl AsRawFd, events: u32) {
        assert_eq!(self.ctl(libc::EPOLL_CTL_MOD, fd, events), Ok(()));
    }

    /// Waits for up to `ms` milliseconds; -1: without limit. Returns (descriptor, events) of ready
    /// entries, sorted.
    fn wait(&self, ms: i32) -> Vec<(RawFd, u32)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: room for sixteen.
        let count = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), 16, ms) };
        assert!(count >= 0, "errno {}", errno());
        let found = events[..count as usize].iter().map(|event| (event.u64 as RawFd, event.events));
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        found
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Makes a stream nonblocking, and writes until the buffers of both ends are full. Returns the
/// number of bytes written.
pub fn fill(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match stream.write(&[7; 1 << 16]) {
            Ok(n) => sent += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                // Bytes that move to the peer's buffer make room again, until both are full. An
                // acknowledgement may be delayed by 40 ms. The round trips let a delayed engine run
                // its turns.
                if poll([(stream.as_raw_fd(), libc::POLLOUT)], 200) == [0] {
                    round_trips();
                    if poll([(stream.as_raw_fd(), libc::POLLOUT)], 0) == [0] {
                        return sent;
                    }
                }
            }
        }
    }
}

/// Exchanges bytes on a new connection. Bytes sent earlier on other connections have then arrived.
pub fn round_trips() {
    let (mut server, mut client) = pair();
    for _ in 0..20 {
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
}

fn level_triggered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let epoll = Epoll::new();
    epoll.add(&listener, IN);
    assert_eq!(epoll.wait(0), []);
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ready = [(listener.as_raw_fd(), IN)];
    assert_eq!(epoll.wait(-1), ready);
    assert_eq!(epoll.wait(-1), ready, "as long as it is ready");
    let (mut server, _) = listener.accept().unwrap();
    assert_eq!(epoll.wait(0), []);
    epoll.add(&server, IN | RDHUP);
    client.write_all(b"abc").unwrap();
    let at = server.as_raw_fd();
    assert_eq!(epoll.wait(-1), [(at, IN)]);
    server.read_exact(&mut [0; 3]).unwrap();
    assert_eq!(epoll.wait(30), []);
    epoll.change(&server, IN | OUT | RDHUP);
    assert_eq!(epoll.wait(-1), [(at, OUT)]);
    epoll.change(&server, RDHUP);
    drop(client);
    assert_eq!(epoll.wait(-1), [(at, RDHUP)]);
    epoll.change(&server, IN | RDHUP);
    assert_eq!(epoll.wait(-1), [(at, IN | RDHUP)]);
}

fn edge_triggered() {
    let (server, mut client) = pair();
    let epoll = Epoll::new();
    let at = server.as_raw_fd();
    epoll.add(&server, IN | OUT | ET);
    assert_eq!(epoll.wait(-1), [(at, OUT)]);
    assert_eq!(epoll.wait(20), [], "told once");
    client.write_all(b"a").unwrap();
    assert_eq!(epoll.wait(-1), [(at, IN | OUT)]);
    assert_eq!(epoll.wait(20), [], "told once, though unread");
    client.write_all(b"b").unwrap();
    assert_eq!(epoll.wait(-1), [(at, IN | OUT)], "each arrival is an edge");
    // Fill the buffers, then make room again: an edge-triggered event.
    let mut sent = fill(&server);
    while !epoll.wait(0).is_empty() {}
    let reader = std::thread::spawn(move || {
        let mut sink = vec![0; 1 << 20];
        while sent > 0 {
            sent -= client.read(&mut sink).unwrap();
        }
    });
    assert_eq!(epoll.wait(-1), [(at, IN | OUT)]);
    reader.join().unwrap();
}

fn oneshot() {
    let (server, mut client) = pair();
    let epoll = Epoll::new();
    let at = server.as_raw_fd();
    epoll.add(&server, IN | ONESHOT);
    client.write_all(b"a").unwrap();
    assert_eq!(epoll.wait(-1), [(at, IN)]);
    client.write_all(b"b").unwrap();
    assert_eq!(epoll.wait(30), []);
    epoll.change(&server, IN | ONESHOT);
    assert_eq!(epoll.wait(-1), [(at, IN)]);
    drop(client);
    assert_eq!(epoll.wait(30), [], "not even the end");
}

fn interest_errors() {
    let (server, _client) = pair();
    let epoll = Epoll::new();
    assert_eq!(epoll.ctl(libc::EPOLL_CTL_MOD, &server, IN), Err(libc::ENOENT));
    assert_eq!(epoll.ctl(libc::EPOLL_CTL_DEL, &server, IN), Err(libc::ENOENT));
    epoll.add(&server, IN);
    assert_eq!(epoll.ctl(libc::EPOLL_CTL_ADD, &server, IN), Err(libc::EEXIST));
    assert_eq!(epoll.ctl(libc::EPOLL_CTL_DEL, &server, 0), Ok(()));
    assert_eq!(epoll.ctl(libc::EPOLL_CTL_ADD, &epoll, IN), Err(libc::EINVAL));
    assert_eq!(epoll.ctl(libc::EPOLL_CTL_ADD, &777, IN), Err(libc::EBADF));
    epoll.add(&server, IN | libc::EPOLLEXCLUSIVE as u32);
    assert_eq!(epoll.ctl(libc::EPOLL_CTL_MOD, &server, IN), Err(libc::EINVAL));
}

fn kernel_descriptors_too() {
    let (server, mut client) = pair();
    let (mut read, mut write) = std::io::pipe().unwrap();
    let epoll = Epoll::new();
    epoll.add(&server, IN);
    epoll.add(&read, IN);
    let late = |mut write: Box<dyn Write + Send>| {
        std::thread::spawn(move || {
            asleep::others();
            write.write_all(b"x").unwrap();
        })
    };
    late(Box::new(write.try_clone().unwrap()));
    assert_eq!(epoll.wait(-1), [(read.as_raw_fd(), IN)]);
    read.read_exact(&mut [0]).unwrap();
    late(Box::new(client.try_clone().unwrap()));
    assert_eq!(epoll.wait(-1), [(server.as_raw_fd(), IN)]);
    (&server).read_exact(&mut [0]).unwrap();
    assert_eq!(epoll.wait(30), []);
    write.write_all(b"x").unwrap();
    client.write_all(b"x").unwrap();
    let mut both = [server.as_raw_fd(), read.as_raw_fd()];
    both.sort_unstable();
    // The pipe is ready at once, the socket a moment later.
    let all =
        std::iter::repeat_with(|| epoll.wait(-1)).map(|found| found.into_iter().map(|(fd, _)| fd));
    assert!(all.take(1_000_000).any(|fds| fds.eq(both.iter().copied())));
}

/// A socket that is always ready fills every answer, but the pipe must be reported, too.
fn kernel_descriptors_do_not_starve() {
    let (server, _client) = pair();
    let (read, mut write) = std::io::pipe().unwrap();
    let epoll = Epoll::new();
    epoll.add(&server, OUT);
    epoll.add(&read, IN);
    write.write_all(b"x").unwrap();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let seen = (0..50).any(|_| {
        // SAFETY: room for one.
        assert_eq!(unsafe { libc::epoll_wait(epoll.0, &raw mut event, 1, -1) }, 1);
        event.u64 == read.as_raw_fd() as u64
    });
    assert!(seen);
}

fn nested_sets() {
    let (server, mut client) = pair();
    let (read, mut write) = std::io::pipe().unwrap();
    let (inner, outer) = (Epoll::new(), Epoll::new());
    inner.add(&server, IN);
    inner.add(&read, IN);
    outer.add(&inner, IN);
    assert_eq!(outer.wait(0), []);
    let ready = [(inner.0, IN)];
    let sender = std::thread::spawn(move || {
        asleep::others();
        client.write_all(b"x").unwrap();
        client
    });
    assert_eq!(outer.wait(-1), ready);
    write.write_all(b"x").unwrap();
    assert_eq!(outer.wait(-1), ready, "once, for either reason");
    let mut entry = libc::pollfd { fd: inner.0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, 0) }, 1);
    (&server).read_exact(&mut [0]).unwrap();
    (&read).read_exact(&mut [0]).unwrap();
    assert_eq!(outer.wait(0), []);
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, 0) }, 0);
    sender.join().unwrap();
}

fn two_threads_one_set() {
    const ROUNDS: usize = 200;
    let epoll = &Epoll::new();
    let pairs: Vec<_> = (0..4).map(|_| pair()).collect();
    for (server, _) in &pairs {
        server.set_nonblocking(true).unwrap();
        epoll.add(server, IN | ET);
    }
    let total = &std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                use std::sync::atomic::Ordering::SeqCst;
                while total.load(SeqCst) < ROUNDS * pairs.len() {
                    for (fd, _) in epoll.wait(100) {
                        let (mut server, _) = pairs
                            .iter()
                            .find(|(s, _)| s.as_raw_fd() == fd)
                            .map(|(s, c)| (s, c))
                            .unwrap();
                        while let Ok(n) = server.read(&mut [0; 64]) {
                            total.fetch_add(n, SeqCst);
                            server.write_all(&vec![1; n]).unwrap();
                        }
                    }
                }
            });
        }
        for (_, client) in &pairs {
            scope.spawn(move || {
                let mut client = client;
                for _ in 0..ROUNDS {
                    client.write_all(b"x").unwrap();
                    client.read_exact(&mut [0]).unwrap();
                }
            });
        }
    });
    assert_eq!(total.load(std::sync::atomic::Ordering::SeqCst), ROUNDS * pairs.len());
}

/// Threads wake each other by messages, and wait in epoll sets and in poll. If a wake-up were never
/// cleared, the process would spin, which shows after many rounds.
fn many_sleeps() {
    const ROUNDS: usize = 1000;
    let play = |mut stream: TcpStream, begins: bool, in_a_set: bool| {
        let epoll = Epoll::new();
        epoll.add(&stream, IN);
        let fds = [&stream.as_raw_fd(), &epoll.as_raw_fd()];
        let mut list = fds.map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let mut byte = [1];
        for round in 0..ROUNDS {
            if begins || round > 0 {
                stream.write_all(&byte).unwrap();
            }
            let is_ready = match in_a_set {
                true => !epoll.wait(-1).is_empty(),
                // SAFETY: two entries.
                false => unsafe { libc::poll(list.as_mut_ptr(), 2, -1) > 0 },
            };
            assert!(is_ready, "nothing in round {round}");
            stream.read_exact(&mut byte).unwrap();
        }
        stream.write_all(&byte).unwrap();
    };
    let all = [(true, true), (true, false), (false, false)];
    for players in [&all[..1], &all] {
        std::thread::scope(|scope| {
            for &in_sets in players {
                let (a, b) = pair();
                scope.spawn(move || play(a, true, in_sets.0));
                scope.spawn(move || play(b, false, in_sets.1));
            }
        });
    }
}

fn added_while_waiting() {
    let epoll = Epoll::new();
    let (server, mut client) = pair();
    client.write_all(b"x").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| epoll.wait(-1));
        asleep::others();
        epoll.add(&server, IN);
        assert_eq!(waiter.join().unwrap(), [(server.as_raw_fd(), IN)]);
    });
}

fn sets_after_fork() {
    let (server, mut client) = pair();
    let (read, mut write) = std::io::pipe().unwrap();
    let epoll = Epoll::new();
    epoll.add(&server, IN);
    epoll.add(&read, IN);
    assert_eq!(epoll.wait(20), []);
    // SAFETY: the child uses its copies of the sets, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let woken = epoll.wait(-1);
        // Parent and child share the kernel's set, so either may consume the event of the pipe.
        std::process::exit(i32::from(woken != [(server.as_raw_fd(), IN)]));
    }
    asleep::process(pid);
    client.write_all(b"x").unwrap();
    let mut status = -1;
    // SAFETY: a status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert_eq!(epoll.wait(-1), [(server.as_raw_fd(), IN)]);
    (&server).read_exact(&mut [0]).unwrap();
    write.write_all(b"x").unwrap();
    assert_eq!(epoll.wait(-1), [(read.as_raw_fd(), IN)]);
}

fn closed_sockets_leave() {
    let epoll = Epoll::new();
    let (server, mut client) = pair();
    let at = server.as_raw_fd();
    epoll.add(&server, IN);
    client.write_all(b"x").unwrap();
    assert_eq!(epoll.wait(-1), [(at, IN)]);
    let copy = server.try_clone().unwrap();
    drop(server);
    assert_eq!(epoll.wait(-1), [(at, IN)], "the open file is still there");
    drop(copy);
    assert_eq!(epoll.wait(20), []);
    // A new socket with the number of a closed one is not in the set.
    let (server, _client) = pair();
    epoll.add(&server, OUT);
    assert_eq!(epoll.wait(-1), [(server.as_raw_fd(), OUT)]);
}

fn low_water() {
    let (server, mut client) = pair();
    assert_eq!(set(server.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 3), Ok(()));
    let epoll = Epoll::new();
    epoll.add(&server, IN);
    client.write_all(b"ab").unwrap();
    assert_eq!(epoll.wait(50), []);
    client.write_all(b"c").unwrap();
    assert_eq!(epoll.wait(-1), [(server.as_raw_fd(), IN)]);
}

fn select_and_poll() {
    let (server, mut client) = pair();
    let (read, mut write) = std::io::pipe().unwrap();
    let select = |ms: i64| {
        // SAFETY: the sets are local variables, and the descriptors are below FD_SETSIZE.
        unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(server.as_raw_fd(), &raw mut set);
            libc::FD_SET(read.as_raw_fd(), &raw mut set);
            let mut limit = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
            let none = std::ptr::null_mut();
            let count = libc::select(64, &raw mut set, none, none, &raw mut limit);
            let has = |fd| libc::FD_ISSET(fd, &raw const set);
            (count, has(server.as_raw_fd()), has(read.as_raw_fd()))
        }
    };
    assert_eq!(select(30), (0, false, false));
    client.write_all(b"x").unwrap();
    assert_eq!(select(3_600_000), (1, true, false));
    write.write_all(b"x").unwrap();
    assert_eq!(select(3_600_000), (2, true, true));
    let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
    let mut list = [
        entry(server.as_raw_fd(), libc::POLLIN | libc::POLLOUT),
        entry(-1, libc::POLLIN),
        entry(read.as_raw_fd(), libc::POLLIN),
        entry(999, libc::POLLIN),
    ];
    // SAFETY: four entries.
    assert_eq!(unsafe { libc::poll(list.as_mut_ptr(), 4, -1) }, 3);
    let revents = list.map(|entry| entry.revents);
    assert_eq!(revents, [libc::POLLIN | libc::POLLOUT, 0, libc::POLLIN, libc::POLLNVAL]);
    drop(client);
    (&server).read_exact(&mut [0]).unwrap();
    let mut gone = entry(server.as_raw_fd(), libc::POLLRDHUP);
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut gone, 1, -1) }, 1);
}

/// Each thread gets the events of its own socket, even if another thread takes them from the ring.
fn threads_in_poll() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (mut server, mut client) = pair();
            scope.spawn(move || {
                for _ in 0..200 {
                    let mut entry =
                        libc::pollfd { fd: server.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                    // SAFETY: one entry.
                    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
                    server.read_exact(&mut [0]).unwrap();
                    server.write_all(b"y").unwrap();
                }
            });
            scope.spawn(move || {
                for _ in 0..200 {
                    client.write_all(b"x").unwrap();
                    client.read_exact(&mut [0]).unwrap();
                }
            });
        }
    });
}

/// Waits for the wanted events of descriptors; -1: without limit. Returns the events of each.
fn poll<const N: usize>(wanted: [(RawFd, i16); N], ms: i32) -> [i16; N] {
    let mut list = wanted.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
    // SAFETY: so many entries.
    let count = unsafe { libc::poll(list.as_mut_ptr(), N as libc::nfds_t, ms) };
    let found = list.map(|entry| entry.revents);
    assert_eq!(count as usize, found.iter().filter(|it| **it != 0).count());
    found
}

/// Every wanted event wakes the thread, regardless of the number of sockets. Unwanted events do
/// not.
fn lists_of_sockets_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (full, mut drain) = pair();
    let held = fill(&full);
    let pairs: Vec<_> = (0..20).map(|_| pair()).collect();
    let fd = |n: usize| pairs[n].0.as_raw_fd();
    let wanted = [
        (fd(0), libc::POLLIN),
        (listener.as_raw_fd(), libc::POLLIN),
        (full.as_raw_fd(), libc::POLLOUT),
        (-1, libc::POLLIN),
        (fd(1), libc::POLLIN),
        (fd(1), libc::POLLRDHUP),
    ];
    (&pairs[2].1).write_all(b"to nobody").unwrap();
    assert_eq!(poll(wanted, 50), [0; 6]);
    let later = |act: &mut (dyn FnMut() + Send), expected: [i16; 6]| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                asleep::others();
                act();
            });
            assert_eq!(poll(wanted, -1), expected);
        });
    };
    later(&mut || (&pairs[0].1).write_all(b"x").unwrap(), [libc::POLLIN, 0, 0, 0, 0, 0]);
    (&pairs[0].0).read_exact(&mut [0]).unwrap();
    let mut client = None;
    let mut connect = || client = Some(TcpStream::connect(address).unwrap());
    later(&mut connect, [0, libc::POLLIN, 0, 0, 0, 0]);
    drop(listener.accept().unwrap());
    let mut read = || drain.read_exact(&mut vec![0; held]).unwrap();
    later(&mut read, [0, 0, libc::POLLOUT, 0, 0, 0]);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            asleep::others();
            pairs[1].1.shutdown(std::net::Shutdown::Write).unwrap();
        });
        poll([(fd(0), libc::POLLIN), (fd(1), libc::POLLIN), (fd(1), libc::POLLRDHUP)], -1)
    });
    assert_eq!(ended, [0, libc::POLLIN, libc::POLLRDHUP]);
    // More sockets than a thread waits for on slot words.
    let many: [(RawFd, i16); 18] = std::array::from_fn(|n| (fd(n + 2), libc::POLLIN));
    let mut expected = [0; 18];
    expected[0] = libc::POLLIN;
    assert_eq!(poll(many, -1), expected);
    (&pairs[2].0).read_exact(&mut [0; 9]).unwrap();
    expected.rotate_right(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asleep::others();
            (&pairs[3].1).write_all(b"x").unwrap();
        });
        assert_eq!(poll(many, -1), expected);
    });
}

/// As in the kernel, poll(2) keeps a socket that is closed during the call. The call waits for the
/// other sockets, and then reports the closed one, too.
fn a_socket_that_is_closed_under_a_poll() {
    let (one, _to_one) = pair();
    let (other, mut to_other) = pair();
    let (at, closed) = (other.as_raw_fd(), one.as_raw_fd());
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll([(closed, libc::POLLIN), (at, libc::POLLIN)], -1));
        asleep::others();
        drop(one);
        asleep::others();
        assert!(!poller.is_finished());
        to_other.write_all(b"x").unwrap();
        assert_eq!(poller.join().unwrap(), [libc::POLLNVAL, libc::POLLIN]);
    });
    // The closed socket is also reported if the event of a kernel descriptor ends the call.
    let (idle, mut to_idle) = std::io::pipe().unwrap();
    let (one, _to_one) = pair();
    (&other).read_exact(&mut [0]).unwrap();
    let (closed, piped) = (one.as_raw_fd(), idle.as_raw_fd());
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| poll([(closed, libc::POLLIN), (piped, libc::POLLIN)], -1));
        asleep::others();
        drop(one);
        asleep::others();
        to_idle.write_all(b"x").unwrap();
        assert_eq!(poller.join().unwrap(), [libc::POLLNVAL, libc::POLLIN]);
    });
    // select(2) has no POLLNVAL, so the closed descriptor counts as ready for all operations.
    let (one, _to_one) = pair();
    let (pipe, _to_pipe) = std::io::pipe().unwrap();
    let numbers = [one.as_raw_fd(), pipe.as_raw_fd()];
    let select = |number: RawFd, seconds| {
        // SAFETY: the set is a local variable, and the descriptors are below FD_SETSIZE.
        unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            [number, at].iter().for_each(|fd| libc::FD_SET(*fd, &raw mut set));
            let mut limit = libc::timeval { tv_sec: seconds, tv_usec: 0 };
            let none = std::ptr::null_mut();
            let count = libc::select(64, &raw mut set, none, none, &raw mut limit);
            (count, [number, at].map(|fd| libc::FD_ISSET(fd, &raw const set)))
        }
    };
    let closed: [Box<dyn FnOnce()>; 2] = [Box::new(|| drop(one)), Box::new(|| drop(pipe))];
    for (number, close) in numbers.into_iter().zip(closed) {
        std::thread::scope(|scope| {
            let selecter = scope.spawn(|| select(number, 3600));
            asleep::others();
            close();
            asleep::others();
            to_other.write_all(b"x").unwrap();
            assert_eq!(selecter.join().unwrap(), (2, [true, true]));
        });
        // select(2) fails if a descriptor is not open when the call begins.
        assert_eq!((select(number, 0).0, errno()), (-1, libc::EBADF));
        (&other).read_exact(&mut [0]).unwrap();
    }
}

/// Shuts both directions of a UDP socket, one after the other. A thread that polls without wanted
/// events then wakes up.
fn halves_that_are_shut_one_by_one() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect("127.0.0.1:9").unwrap();
    let fd = socket.as_raw_fd();
    std::thread::scope(|scope| {
        let poller = scope.spawn(move || poll([(fd, 0)], -1));
        for how in [libc::SHUT_RD, libc::SHUT_WR] {
            asleep::others();
            assert!(!poller.is_finished());
            // SAFETY: integers.
            assert_eq!(unsafe { libc::shutdown(fd, how) }, 0);
        }
        assert_eq!(poller.join().unwrap(), [libc::POLLHUP]);
    });
}

/// As in the kernel, epoll_wait(2) continues in its set if the set is closed. A new set with the
/// same number is not affected.
fn a_set_that_is_closed_under_a_call() {
    let (first, mut to_first) = pair();
    let (second, mut to_second) = pair();
    let set_of = |stream: &TcpStream, data| {
        // SAFETY: an event that lives here.
        unsafe {
            let set = libc::epoll_create1(0);
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: data };
            let fd = stream.as_raw_fd();
            assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
            set
        }
    };
    let wait_in = |set: i32| {
        std::thread::spawn(move || {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one.
            let count = unsafe { libc::epoll_wait(set, &raw mut event, 1, -1) };
            (count, { event.u64 })
        })
    };
    let old = set_of(&first, 1);
    let in_old = wait_in(old);
    asleep::others();
    // SAFETY: close takes an integer. The wait above continues in the closed set.
    assert_eq!(unsafe { libc::close(old) }, 0);
    let new = set_of(&second, 2);
    assert_eq!(new, old, "the number is free");
    let in_new = wait_in(new);
    asleep::others();
    to_second.write_all(b"x").unwrap();
    assert_eq!(in_new.join().unwrap(), (1, 2));
    asleep::others();
    assert!(!in_old.is_finished(), "nothing has happened in that set");
    to_first.write_all(b"x").unwrap();
    assert_eq!(in_old.join().unwrap(), (1, 1));
    // The new set works as if the old one had never existed.
    (&second).read_exact(&mut [0]).unwrap();
    let in_new = wait_in(new);
    asleep::others();
    to_second.write_all(b"x").unwrap();
    assert_eq!(in_new.join().unwrap(), (1, 2));
}

/// While a thread sleeps in poll, the program replaces a descriptor of the library by a file.
/// Wake-ups of the thread must not be written to this file.
///
/// poll(2) looks numbers up again each time that the kernel wakes it. A thread all of whose
/// descriptors were replaced sleeps until its timeout, so the case uses a short one.
fn a_number_that_a_poll_slept_on() {
    let (mut server, client) = pair();
    let (idle, _writer) = std::io::pipe().unwrap();
    let mut pipe = [0; 2];
    // SAFETY: room for two.
    assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) }, 0);
    let [reader, writer] = pipe;
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut list = [entry(client.as_raw_fd()), entry(idle.as_raw_fd())];
            // SAFETY: the list has two entries.
            while unsafe { libc::poll(list.as_mut_ptr(), 2, 500) } == 0 {}
            list.map(|entry| entry.revents)
        });
        asleep::others();
        // The library's descriptors have the highest numbers below the limit.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a struct.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        let lowest = (limit.rlim_cur - 64).min(16384) as RawFd;
        for number in lowest..lowest + 64 {
            // SAFETY: dup2 takes integers, and this program has no file at the number.
            assert_eq!(unsafe { libc::dup2(writer, number) }, number);
        }
        server.write_all(b"x").unwrap();
        assert_eq!(poller.join().unwrap(), [libc::POLLIN, 0]);
        let mut bytes = [0u8; 8];
        // SAFETY: `bytes` has room for eight bytes.
        let n = unsafe { libc::read(reader, bytes.as_mut_ptr().cast(), 8) };
        assert_eq!((n, errno()), (-1, libc::EAGAIN), "{bytes:?} was written to it");
    });
}
