//! Tests of an engine in the process that uses it: the threads that wait for sockets run its turns.

mod host;

use std::os::fd::AsRawFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use towpath_client::driver::{Driver, Turned, Who};
use towpath_client::{Buffer, Deadline};
use towpath_dice::Dice;
use towpath_engine::Remote;
use towpath_posix::control::SendControl;
use towpath_posix::{Errno, Posix, attach, epoll, poll, socket, transfer};

/// Time after which a test counts as hung. The gate's runner kills a test sooner.
const LIMIT: Duration = Duration::from_secs(120);

/// Aborts the process if a test hangs, because no other thread could wake the test's threads.
struct Watch(#[expect(dead_code, reason = "its end is what counts")] mpsc::Sender<()>);

impl Watch {
    fn new(what: &'static str) -> Self {
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                std::io::Write::write_all(&mut std::io::stderr(), what.as_bytes())
                    .expect("a stream");
                std::process::abort();
            }
        });
        Self(sender)
    }
}

/// Attaches this process to an engine without a stand-by thread: only waiting threads turn it.
fn host_alone(posix: &'static Posix) -> (&'static Driver, Remote) {
    let engine = host::engine();
    // No other process is attached that would have to notice the engine's end.
    std::mem::forget(engine.live());
    let (driver, remote, control) = host::start_driver(posix, engine);
    let is_attached = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            attach::over(posix, control.into(), Some(driver)).expect("it is let in");
            is_attached.store(true, Relaxed);
        });
        while !is_attached.load(Relaxed) {
            let mut driver_lock = driver.take(Who::Waits).expect("nobody else");
            assert_ne!(driver_lock.turn(None, || true), Turned::Ended);
        }
    });
    (driver, remote)
}

fn address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

fn stream(posix: &'static Posix) -> i32 {
    socket::socket(posix, libc::AF_INET, libc::SOCK_STREAM, 0).expect("a socket")
}

fn listen(posix: &'static Posix, port: u16) -> i32 {
    let (fd, address) = (stream(posix), address(port));
    // SAFETY: `address` is a valid sockaddr of 16 bytes.
    let bound = unsafe { socket::bind(posix, fd, (&raw const address).cast(), 16) };
    assert_eq!(bound, Ok(()));
    assert_eq!(socket::listen(posix, fd, 100), Ok(()));
    fd
}

fn connect(posix: &'static Posix, port: u16) -> i32 {
    let (fd, address) = (stream(posix), address(port));
    // SAFETY: `address` is a valid sockaddr of 16 bytes.
    assert_eq!(unsafe { socket::connect(posix, fd, (&raw const address).cast(), 16) }, Ok(()));
    fd
}

fn accept(posix: &'static Posix, listener: i32) -> i32 {
    let null = std::ptr::null_mut();
    // SAFETY: null pointers mean that no address is returned.
    unsafe { socket::accept4(posix, listener, null, null.cast(), 0) }.expect("a connection")
}

fn pair(posix: &'static Posix, listener: i32, port: u16) -> (i32, i32) {
    let ours = connect(posix, port);
    (ours, accept(posix, listener))
}

fn send(posix: &'static Posix, fd: i32, bytes: &[u8]) {
    let buffers = [Buffer { at: bytes.as_ptr().cast_mut(), len: bytes.len() }];
    // SAFETY: `buffers` describes `bytes`, which are valid for reads.
    let sent = unsafe { transfer::send(posix, fd, &buffers, 0, None, &SendControl::default()) };
    assert_eq!(sent, Ok(bytes.len()));
}

fn try_recv(posix: &'static Posix, fd: i32, flags: i32) -> Result<Vec<u8>, Errno> {
    let mut bytes = [0u8; 4096];
    let buffers = [Buffer { at: bytes.as_mut_ptr(), len: bytes.len() }];
    // SAFETY: `buffers` describes `bytes`, which are valid for writes.
    let arrival = unsafe { transfer::recv(posix, fd, &buffers, flags) }?;
    Ok(bytes[..arrival.len].to_vec())
}

/// Call in which a thread waits until its socket has bytes to read.
#[derive(Debug, Clone, Copy)]
enum How {
    Recv,
    /// poll(2) of one socket: sleeps on the word of its slot.
    Poll,
    /// poll(2) of a socket and a kernel descriptor: sleeps in the kernel's poll.
    PollBoth,
    Epoll,
}

const ALL: [How; 4] = [How::Recv, How::Poll, How::PollBoth, How::Epoll];

impl How {
    fn of(n: usize) -> Self {
        ALL[n % ALL.len()]
    }

    fn wait(self, posix: &'static Posix, fd: i32, set: i32, kernels: i32) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list = [entry(fd), entry(kernels)];
        let null = std::ptr::null();
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let ready = || match self {
            Self::Recv => Ok(1),
            // SAFETY: the signal mask is null.
            Self::Poll => unsafe { poll::poll(posix, &mut list[..1], None, null) },
            // SAFETY: as above.
            Self::PollBoth => unsafe { poll::poll(posix, &mut list, None, null) },
            // SAFETY: `event` has room for one event, and the signal mask is null.
            Self::Epoll => unsafe { epoll::wait(posix, set, &raw mut event, 1, None, null) },
        };
        let interrupted = Err(Errno(libc::EINTR));
        assert_eq!(std::iter::repeat_with(ready).find(|ready| *ready != interrupted), Some(Ok(1)));
    }

    fn recv(self, posix: &'static Posix, fd: i32, set: i32, kernels: i32) -> Vec<u8> {
        self.wait(posix, fd, set, kernels);
        loop {
            match try_recv(posix, fd, 0) {
                Err(Errno(libc::EINTR)) => {}
                bytes => return bytes.expect("bytes"),
            }
        }
    }
}

fn set_of(posix: &'static Posix, fd: i32) -> i32 {
    let set = epoll::create(posix, libc::EPOLL_CLOEXEC).expect("a descriptor");
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: `event` is a valid epoll_event.
    let added = unsafe { epoll::ctl(posix, set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, Ok(()));
    set
}

#[test]
fn one_thread_is_enough() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("a thread alone hangs\n");
    let (_, _remote) = host_alone(&POSIX);
    let listener = listen(&POSIX, 80);
    let (ours, theirs) = pair(&POSIX, listener, 80);
    let (idle, _writer) = std::io::pipe().expect("a pipe");
    let kernels = idle.as_raw_fd();
    let set = set_of(&POSIX, theirs);
    for n in 0..400usize {
        let bytes = n.to_ne_bytes();
        send(&POSIX, ours, &bytes);
        assert_eq!(How::of(n).recv(&POSIX, theirs, set, kernels), bytes);
        send(&POSIX, theirs, &bytes);
        assert_eq!(try_recv(&POSIX, ours, 0), Ok(bytes.to_vec()));
        assert!(blocked_signals().is_empty());
    }
}

/// Returns the signals that this thread blocks.
fn blocked_signals() -> Vec<i32> {
    // SAFETY: pthread_sigmask only writes to the local `mask`, because the new mask is null.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        (1..=64).filter(|&signal| libc::sigismember(&raw const mask, signal) == 1).collect()
    }
}

/// Flags shared by [`a_handler_leaves_the_wheel_to_others`] and its signal handler.
static IS_IN_HANDLER: AtomicBool = AtomicBool::new(false);
static MAY_RETURN: AtomicBool = AtomicBool::new(false);

extern "C" fn linger(signal: i32) {
    match signal {
        libc::SIGUSR1 => towpath_client::interrupt::handler_runs(true),
        // As for libc's cancellation signal: its handler ends the thread outside of cancellation
        // points.
        _ => assert!(!towpath_client::interrupt::cancellation_comes()),
    }
    IS_IN_HANDLER.store(true, Relaxed);
    while !MAY_RETURN.load(Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A signal handler may never return, so the interrupted driver must release the driver lock.
#[test]
fn a_handler_leaves_the_wheel_to_others() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("a handler is at the driver\n");
    let (_, _remote) = host_alone(&POSIX);
    let listener = listen(&POSIX, 80);
    // SAFETY: the handler makes async-signal-safe calls only, and is never unloaded.
    unsafe {
        libc::signal(libc::SIGUSR1, linger as *const () as libc::sighandler_t);
        libc::signal(libc::SIGUSR2, linger as *const () as libc::sighandler_t);
    }
    let signals = [libc::SIGUSR1, libc::SIGUSR2];
    for (how, signal) in ALL.iter().flat_map(|how| signals.map(|signal| (*how, signal))) {
        let (ours, theirs) = pair(&POSIX, listener, 80);
        let sleeper = thread::spawn(move || {
            let (idle, _writer) = std::io::pipe().expect("a pipe");
            let set = set_of(&POSIX, theirs);
            how.recv(&POSIX, theirs, set, idle.as_raw_fd())
        });
        IS_IN_HANDLER.store(false, Relaxed);
        MAY_RETURN.store(false, Relaxed);
        thread::sleep(Duration::from_millis(10));
        // SAFETY: the thread still waits, because nothing was sent to it.
        unsafe { libc::pthread_kill(sleeper.as_pthread_t(), signal) };
        while !IS_IN_HANDLER.load(Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let (one, other) = pair(&POSIX, listener, 80);
        send(&POSIX, one, b"one");
        assert_eq!(try_recv(&POSIX, other, 0), Ok(b"one".to_vec()), "{how:?}");
        MAY_RETURN.store(true, Relaxed);
        send(&POSIX, ours, b"last");
        assert_eq!(sleeper.join().expect("it does not panic"), b"last");
    }
}

#[test]
fn a_time_limit_ends_a_wait_as_the_driver() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("a wait with a time limit hangs\n");
    let (_, _remote) = host_alone(&POSIX);
    let listener = listen(&POSIX, 80);
    let (ours, _theirs) = pair(&POSIX, listener, 80);
    let (idle, _writer) = std::io::pipe().expect("a pipe");
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let list = [entry(ours), entry(idle.as_raw_fd())];
    let (set, null) = (set_of(&POSIX, ours), std::ptr::null());
    for count in [1, 2] {
        let begin = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(30));
        let mut list = list;
        // SAFETY: no mask.
        let ready = unsafe { poll::poll(&POSIX, &mut list[..count], Some(deadline), null) };
        assert_eq!(ready, Ok(0));
        assert!(begin.elapsed() >= Duration::from_millis(30));
    }
    let begin = Instant::now();
    let deadline = Deadline::after(Duration::from_millis(30));
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: `event` has room for one event, and the signal mask is null.
    let ready = unsafe { epoll::wait(&POSIX, set, &raw mut event, 1, Some(deadline), null) };
    assert_eq!(ready, Ok(0));
    assert!(begin.elapsed() >= Duration::from_millis(30));
}

/// Runs pairs of threads that answer each other, each waiting in random calls. Without a stand-by
/// thread, a lost wake-up hangs the test.
fn ping_pong(posix: &'static Posix, pairs: usize, rounds: usize) {
    let listener = listen(posix, 81);
    let count = AtomicUsize::new(0);
    let connections: Vec<_> = (0..pairs).map(|_| pair(posix, listener, 81)).collect();
    thread::scope(|scope| {
        for (n, (ours, theirs)) in connections.into_iter().enumerate() {
            for (which, fd) in [ours, theirs].into_iter().enumerate() {
                let count = &count;
                scope.spawn(move || {
                    let (idle, _writer) = std::io::pipe().expect("a pipe");
                    let kernels = idle.as_raw_fd();
                    let set = set_of(posix, fd);
                    let mut dice = Dice::new(n as u64, which as u64);
                    for round in 0..rounds {
                        if which == 0 {
                            send(posix, fd, &round.to_ne_bytes());
                        }
                        let bytes = How::of(dice.next_u64() as usize).recv(posix, fd, set, kernels);
                        assert_eq!(bytes, round.to_ne_bytes());
                        if dice.below(64) == 0 {
                            thread::sleep(Duration::from_micros(dice.below(512)));
                        }
                        if which == 1 {
                            send(posix, fd, &bytes);
                        }
                        count.fetch_add(1, Relaxed);
                    }
                });
            }
        }
    });
    assert_eq!(count.into_inner(), 2 * pairs * rounds);
}

#[test]
fn the_wheel_is_handed_over() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("nobody takes the driver\n");
    let (_, _remote) = host_alone(&POSIX);
    ping_pong(&POSIX, 4, 2000);
}

/// A turn runs on the engine's own stack, so it also works in threads with small stacks.
#[test]
fn a_turn_takes_a_part_of_the_engines_stack() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("threads with small stacks hang\n");
    let (driver, _remote) = host_alone(&POSIX);
    let before = driver.take(Who::Waits).expect("nobody else").stack_used();
    assert!(before.0 > 0);
    let listener = listen(&POSIX, 80);
    let (ours, theirs) = pair(&POSIX, listener, 80);
    // 16 KiB are enough to send and to wait.
    let small = thread::Builder::new().stack_size(16 << 10).spawn(move || {
        for n in 0..100usize {
            send(&POSIX, ours, &n.to_ne_bytes());
            try_recv(&POSIX, theirs, 0).expect("bytes");
        }
    });
    small.expect("a thread").join().expect("it does not panic");
    ping_pong(&POSIX, 2, 500);
    let (used, of) = driver.take(Who::Waits).expect("nobody else").stack_used();
    assert!(used * 2 < of, "{used} of {of}");
}

#[test]
fn the_wheel_is_handed_over_beside_a_thread_that_stands_by() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("threads wait beside one that stands by\n");
    let (_, remote, stands_by) = host::standing_by(&POSIX, "stands-by");
    ping_pong(&POSIX, 4, 2000);
    remote.stop();
    stands_by.join().expect("it ends");
}

/// The driver is busy with other threads' sockets, and must still return at its deadline.
#[test]
fn a_time_limit_ends_a_wait_while_others_are_busy() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("a wait does not end while others are busy\n");
    let (_, _remote) = host_alone(&POSIX);
    let listener = listen(&POSIX, 80);
    let (idle, _theirs) = pair(&POSIX, listener, 80);
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        for (ours, theirs) in [pair(&POSIX, listener, 80), pair(&POSIX, listener, 80)] {
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    send(&POSIX, ours, b"question");
                    assert_eq!(try_recv(&POSIX, ours, 0), Ok(b"answer".to_vec()));
                }
                send(&POSIX, ours, b"end");
            });
            scope.spawn(move || {
                while try_recv(&POSIX, theirs, 0) != Ok(b"end".to_vec()) {
                    send(&POSIX, theirs, b"answer");
                }
            });
        }
        for _ in 0..100 {
            let mut list = [libc::pollfd { fd: idle, events: libc::POLLIN, revents: 0 }];
            let deadline = Deadline::after(Duration::from_millis(1));
            // SAFETY: no mask.
            let ready = unsafe { poll::poll(&POSIX, &mut list, Some(deadline), std::ptr::null()) };
            assert_eq!(ready, Ok(0));
        }
        over.store(true, Relaxed);
    });
}

/// The driver returns when its own event arrives. Then the thread that still waits must become the
/// driver, because the sending thread does not wait.
#[test]
fn who_waits_takes_over_from_who_leaves() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("nobody takes over\n");
    let (_, _remote) = host_alone(&POSIX);
    let listener = listen(&POSIX, 80);
    for (first, then) in ALL.iter().flat_map(|first| ALL.map(|then| (*first, then))) {
        let sleepers = [first, then].map(|how| {
            let (ours, theirs) = pair(&POSIX, listener, 80);
            let sleeper = thread::spawn(move || {
                let (idle, _writer) = std::io::pipe().expect("a pipe");
                let set = set_of(&POSIX, theirs);
                how.recv(&POSIX, theirs, set, idle.as_raw_fd())
            });
            // Let the first thread become the driver before the second one waits.
            thread::sleep(Duration::from_millis(5));
            (ours, sleeper)
        });
        for (ours, sleeper) in sleepers {
            send(&POSIX, ours, b"go");
            assert_eq!(sleeper.join().expect("it does not panic"), b"go", "{first:?}, {then:?}");
        }
    }
}

/// Requests are answered while another thread sleeps as the driver, in each kind of wait.
#[test]
fn requests_are_answered_beside_who_sleeps_as_the_driver() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("a request is not answered\n");
    let (_, _remote) = host_alone(&POSIX);
    let listener = listen(&POSIX, 80);
    for how in ALL {
        let (ours, theirs) = pair(&POSIX, listener, 80);
        let begun = Barrier::new(2);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let (idle, _writer) = std::io::pipe().expect("a pipe");
                let set = set_of(&POSIX, theirs);
                begun.wait();
                how.recv(&POSIX, theirs, set, idle.as_raw_fd())
            });
            begun.wait();
            thread::sleep(Duration::from_millis(10));
            for _ in 0..50 {
                let (one, other) = pair(&POSIX, listener, 80);
                send(&POSIX, one, b"one");
                assert_eq!(try_recv(&POSIX, other, 0), Ok(b"one".to_vec()));
                for fd in [one, other] {
                    assert_eq!(towpath_posix::descriptor::close(&POSIX, fd), Ok(()));
                }
            }
            send(&POSIX, ours, b"last");
            assert_eq!(sleeper.join().expect("it does not panic"), b"last");
        });
    }
}

#[test]
fn what_threads_send_that_do_not_wait_is_sent() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("nobody sends\n");
    let (_, remote, stands_by) = host::standing_by(&POSIX, "stands-by");
    let listener = listen(&POSIX, 80);
    let (ours, theirs) = pair(&POSIX, listener, 80);
    for n in 0..20usize {
        if n % 2 == 1 {
            // The stand-by thread sleeps meanwhile, because this thread waits as the driver.
            let mut list = [libc::pollfd { fd: theirs, events: libc::POLLIN, revents: 0 }];
            let deadline = Deadline::after(Duration::from_millis(20));
            let null = std::ptr::null();
            // SAFETY: no mask.
            let ready = unsafe { poll::poll(&POSIX, &mut list, Some(deadline), null) };
            assert_eq!(ready, Ok(0));
        }
        send(&POSIX, ours, &n.to_ne_bytes());
        // No thread waits in a call of the stack, so the stand-by thread has to send the bytes.
        let bytes = loop {
            match try_recv(&POSIX, theirs, libc::MSG_DONTWAIT) {
                Err(Errno(libc::EAGAIN)) => thread::sleep(Duration::from_micros(100)),
                done => break done,
            }
        };
        assert_eq!(bytes, Ok(n.to_ne_bytes().to_vec()));
        // Between two rounds a waiting thread is the driver, or the stand-by thread sleeps.
        send(&POSIX, theirs, b"back");
        assert_eq!(try_recv(&POSIX, ours, 0), Ok(b"back".to_vec()));
    }
    remote.stop();
    stands_by.join().expect("it ends");
}

/// Makes requests that take the driver lock from the stand-by thread, which must take it back: no
/// other thread turns the engine afterwards. Returns the shortest time in which bytes sent then
/// have arrived.
fn requests_beside_who_stands_by(posix: &'static Posix) -> Duration {
    let (_, remote, stands_by) = host::standing_by(posix, "stands-by");
    let listener = listen(posix, 80);
    let (ours, theirs) = pair(posix, listener, 80);
    let took = (0..20).map(|_| {
        // Let the stand-by thread become the driver and sleep. If the time is too short, the test
        // covers less, but does not fail.
        thread::sleep(Duration::from_millis(10));
        assert_eq!(towpath_posix::descriptor::close(posix, stream(posix)), Ok(()));
        send(posix, ours, b"bytes");
        let begin = Instant::now();
        while try_recv(posix, theirs, libc::MSG_DONTWAIT) == Err(Errno(libc::EAGAIN)) {
            thread::sleep(Duration::from_micros(100));
        }
        begin.elapsed()
    });
    let least = took.min().expect("several rounds");
    remote.stop();
    stands_by.join().expect("it ends");
    least
}

#[test]
fn who_stands_by_takes_the_wheel_back_after_a_request() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("nobody sends after a request\n");
    requests_beside_who_stands_by(&POSIX);
}

/// Returns how often the thread with this name has slept voluntarily; `None` if there is no such
/// thread.
fn sleeps_of(name: &str) -> Option<u64> {
    let mut threads = std::fs::read_dir("/proc/self/task").expect("proc");
    let status = threads.find_map(|thread| {
        let path = thread.ok()?.path();
        let is_it = std::fs::read_to_string(path.join("comm")).ok()?.trim() == name;
        is_it.then(|| std::fs::read_to_string(path.join("status")).ok())?
    })?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Some(line.expect("a line").trim().parse().expect("a number"))
}

#[test]
fn who_stands_by_sleeps_while_another_thread_does() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("a thread sleeps\n");
    let (_, remote, stands_by) = host::standing_by(&POSIX, "rests");
    let listener = listen(&POSIX, 80);
    for how in ALL {
        let (ours, theirs) = pair(&POSIX, listener, 80);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (idle, _writer) = std::io::pipe().expect("a pipe");
                let set = set_of(&POSIX, theirs);
                how.recv(&POSIX, theirs, set, idle.as_raw_fd());
            });
            // Wait for 100 ms in which the stand-by thread sleeps. If it keeps ticking, the test
            // hangs.
            loop {
                let before = sleeps_of("rests");
                thread::sleep(Duration::from_millis(100));
                // A thread that ticks every millisecond would sleep a hundred times.
                let after = sleeps_of("rests");
                if before.zip(after).is_some_and(|(before, after)| after - before <= 2) {
                    break;
                }
            }
            send(&POSIX, ours, b"end");
        });
    }
    remote.stop();
    stands_by.join().expect("it ends");
}

/// Lets idle threads wait in every kind of call while a busy thread is the driver. Afterwards each
/// idle thread must wake up for its own bytes. Returns for each its kind of wait, and how often it
/// was woken before.
fn idle_threads_beside_a_busy_one(posix: &'static Posix, rounds: u64) -> Vec<(How, u64)> {
    let (_, remote, stands_by) = host::standing_by(posix, "stands-by");
    let listener = listen(posix, 80);
    let names: Vec<_> = (0..8).map(|n| format!("idle-{n}")).collect();
    let sleepers: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let (ours, theirs) = pair(posix, listener, 80);
            let sleeper = thread::Builder::new().name(name.clone()).spawn(move || {
                let (idle, _writer) = std::io::pipe().expect("a pipe");
                let set = set_of(posix, theirs);
                How::of(n).recv(posix, theirs, set, idle.as_raw_fd())
            });
            (ours, sleeper.expect("a thread"))
        })
        .collect();
    let (ours, theirs) = pair(posix, listener, 80);
    thread::sleep(Duration::from_millis(50));
    // A new thread sets its name only after it has started, so retry.
    let named = |name| std::iter::repeat_with(|| sleeps_of(name)).flatten().next();
    let sleeps = || names.iter().map(|name| named(name).expect("it waits")).collect::<Vec<_>>();
    let before = sleeps();
    for n in 0..rounds {
        send(posix, ours, &n.to_ne_bytes());
        assert_eq!(try_recv(posix, theirs, 0), Ok(n.to_ne_bytes().to_vec()));
    }
    let woken = sleeps().into_iter().zip(before).map(|(after, before)| after - before);
    let woken = woken.enumerate().map(|(n, woken)| (How::of(n), woken)).collect();
    for (ours, sleeper) in sleepers {
        send(posix, ours, b"end");
        assert_eq!(sleeper.join().expect("it does not panic"), b"end");
    }
    remote.stop();
    stands_by.join().expect("it ends");
    woken
}

#[test]
fn a_thread_that_waits_in_vain_is_woken_beside_a_busy_one() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("an idle thread hangs\n");
    idle_threads_beside_a_busy_one(&POSIX, 1000);
}

/// No wake-up is lost while several threads are busy, with pauses, regardless of which have retired
/// from running the engine.
#[test]
fn who_waits_in_vain_wakes_for_its_own() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("a wake-up is lost\n");
    let (_, remote, stands_by) = host::standing_by(&POSIX, "stands-by");
    let listener = listen(&POSIX, 80);
    let idle: Vec<_> = (0..8).map(|_| pair(&POSIX, listener, 80)).collect();
    let others = thread::spawn(|| ping_pong(&POSIX, 2, 4000));
    thread::scope(|scope| {
        for (n, &(ours, theirs)) in idle.iter().enumerate() {
            let others = &others;
            scope.spawn(move || {
                let (pipe, _writer) = std::io::pipe().expect("a pipe");
                let set = set_of(&POSIX, theirs);
                while How::of(n).recv(&POSIX, theirs, set, pipe.as_raw_fd()) != b"end" {
                    send(&POSIX, theirs, b"answer");
                }
            });
            scope.spawn(move || {
                while !others.is_finished() {
                    thread::sleep(Duration::from_millis(3));
                    send(&POSIX, ours, b"question");
                    assert_eq!(try_recv(&POSIX, ours, 0), Ok(b"answer".to_vec()));
                }
                send(&POSIX, ours, b"end");
            });
        }
    });
    others.join().expect("it does not panic");
    remote.stop();
    stands_by.join().expect("it ends");
}

#[test]
fn all_who_wait_learn_of_the_end() {
    static POSIX: Posix = Posix::new();
    let _watch = Watch::new("threads do not learn of the end\n");
    let (_, remote, stands_by) = host::standing_by(&POSIX, "stands-by");
    let listener = listen(&POSIX, 80);
    let connections = (0..4).map(|_| pair(&POSIX, listener, 80));
    let connections: Vec<_> =
        connections.map(|(ours, theirs)| (ours, theirs, set_of(&POSIX, theirs))).collect();
    thread::scope(|scope| {
        for &(ours, theirs, set) in &connections {
            scope.spawn(move || {
                assert_eq!(try_recv(&POSIX, ours, 0), Err(Errno(libc::ENETDOWN)));
            });
            scope.spawn(move || {
                How::Epoll.wait(&POSIX, theirs, set, -1);
                assert_eq!(try_recv(&POSIX, theirs, 0), Err(Errno(libc::ENETDOWN)));
            });
        }
        thread::sleep(Duration::from_millis(50));
        remote.stop();
    });
    stands_by.join().expect("it ends");
    assert_eq!(
        socket::socket(&POSIX, libc::AF_INET, libc::SOCK_STREAM, 0),
        Err(Errno(libc::ENETDOWN))
    );
}

/// Tests that judge time and scheduling.
mod nightly {
    use super::*;

    #[test]
    fn bytes_after_a_request_leave_within_two_ticks() {
        static POSIX: Posix = Posix::new();
        let _watch = Watch::new("nobody sends after a request\n");
        // Take the shortest time, because a busy machine may delay some rounds.
        let least = requests_beside_who_stands_by(&POSIX);
        assert!(least < Duration::from_millis(10), "{least:?}");
    }

    #[test]
    fn a_thread_that_waits_in_vain_sleeps_beside_a_busy_one() {
        static POSIX: Posix = Posix::new();
        const ROUNDS: u64 = 4000;
        let _watch = Watch::new("an idle thread hangs\n");
        for (how, woken) in idle_threads_beside_a_busy_one(&POSIX, ROUNDS) {
            // Threads that wait on lists of descriptors may be woken by any event of the process,
            // so check only waits on slot words.
            let is_on_words = matches!(how, How::Recv | How::Poll);
            let is_seldom = woken < ROUNDS / 40;
            assert!(!is_on_words || is_seldom, "{how:?}: {woken} times in {ROUNDS} rounds");
        }
    }
}
