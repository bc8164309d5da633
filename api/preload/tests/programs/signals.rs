//! Signal handlers that interrupt waiting calls.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use towpath_dice::Dice;

use crate::asleep;
use crate::harness::Case;
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    ("a_signal_interrupts", a_signal_interrupts),
    ("a_restarting_signal_does_not", a_restarting_signal_does_not),
    ("a_restarting_signal_interrupts_a_timeout", a_restarting_signal_interrupts_a_timeout),
    ("polling_is_always_interrupted", polling_is_always_interrupted),
    ("the_mask_of_pwait", the_mask_of_pwait),
    ("sigpipe", sigpipe),
    ("no_signal_is_lost_in_read", no_signal_is_lost_in_read),
    ("no_signal_is_lost_in_poll", no_signal_is_lost_in_poll),
    ("no_signal_is_lost_in_epoll", no_signal_is_lost_in_epoll),
    ("handlers_are_told_as_they_were_set", handlers_are_told_as_they_were_set),
    ("a_handler_gets_what_the_kernel_gives", a_handler_gets_what_the_kernel_gives),
    ("requests_on_top_of_the_allocator", requests_on_top_of_the_allocator),
    ("copies_that_a_handler_closes_on_top_of_dup", copies_that_a_handler_closes_on_top_of_dup),
];

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn handler(_: i32) {
    SEEN.fetch_add(1, Ordering::SeqCst);
}

fn install(signal: i32, flags: i32) {
    // SAFETY: the handler only increments a counter.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(i32) as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Sends a signal to a thread, and waits until it was handled, because pending signals are merged.
fn interrupt(thread: libc::pthread_t) {
    let before = SEEN.load(Ordering::SeqCst);
    // SAFETY: the thread runs as long as the case.
    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
    while SEEN.load(Ordering::SeqCst) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal to the main thread each time that it waits, until this value is dropped. The
/// first signal may interrupt an earlier wait than the tested one.
struct Interrupts {
    over: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Interrupts {
    fn new() -> Self {
        // SAFETY: only asks.
        let me = unsafe { libc::pthread_self() };
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let main = std::process::id() as i32;
        let sender = std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                if asleep::is_waiting(main) {
                    interrupt(me);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { over, sender: Some(sender) }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        self.sender.take().map(JoinHandle::join).unwrap().unwrap();
    }
}

fn a_signal_interrupts() {
    install(libc::SIGUSR1, 0);
    let (mut server, _client) = pair();
    let interrupts = Interrupts::new();
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::Interrupted);
    drop(interrupts);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _interrupts = Interrupts::new();
    // accept is called directly, because std repeats it after EINTR.
    // SAFETY: null pointers mean that no address is returned.
    let result =
        unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
    assert_eq!((result, errno()), (-1, libc::EINTR));
}

fn a_restarting_signal_does_not() {
    install(libc::SIGUSR1, libc::SA_RESTART);
    let (mut server, mut client) = pair();
    // SAFETY: only asks.
    let me = unsafe { libc::pthread_self() };
    let main = std::process::id() as i32;
    std::thread::spawn(move || {
        (0..12).for_each(|_| {
            // The pauses together exceed the interval at which a waiting thread checks whether the
            // engine runs.
            std::thread::sleep(Duration::from_millis(50));
            asleep::thread(main);
            interrupt(me);
        });
        client.write_all(b"x").unwrap();
    });
    assert_eq!(server.read(&mut [0]).unwrap(), 1);
    assert_eq!(SEEN.load(Ordering::SeqCst), 12);
}

fn a_restarting_signal_interrupts_a_timeout() {
    install(libc::SIGUSR1, libc::SA_RESTART);
    let (mut server, _client) = pair();
    server.set_read_timeout(Some(Duration::from_secs(3600))).unwrap();
    let _interrupts = Interrupts::new();
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::Interrupted);
}

fn polling_is_always_interrupted() {
    install(libc::SIGUSR1, libc::SA_RESTART);
    let (server, _client) = pair();
    let mut entry = libc::pollfd { fd: server.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let interrupts = Interrupts::new();
    // SAFETY: one entry.
    assert_eq!((unsafe { libc::poll(&raw mut entry, 1, -1) }, errno()), (-1, libc::EINTR));
    drop(interrupts);
    // SAFETY: integers and events.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, server.as_raw_fd(), &raw mut event);
        let _interrupts = Interrupts::new();
        assert_eq!((libc::epoll_wait(epoll, &raw mut event, 1, -1), errno()), (-1, libc::EINTR));
    }
}

fn the_mask_of_pwait() {
    install(libc::SIGUSR1, 0);
    let (server, _client) = pair();
    // SAFETY: masks and events are local variables.
    unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        let open: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut blocked, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut());
        libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, server.as_raw_fd(), &raw mut event);
        assert_eq!(libc::epoll_wait(epoll, &raw mut event, 1, 50), 0, "it is blocked");
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
        let result = libc::epoll_pwait(epoll, &raw mut event, 1, -1, &raw const open);
        assert_eq!((result, errno()), (-1, libc::EINTR));
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
    }
}

fn sigpipe() {
    install(libc::SIGPIPE, 0);
    let (server, client) = pair();
    server.shutdown(std::net::Shutdown::Write).unwrap();
    // SAFETY: a byte.
    unsafe {
        let fd = server.as_raw_fd();
        assert_eq!(libc::send(fd, b"x".as_ptr().cast(), 1, libc::MSG_NOSIGNAL), -1);
        assert_eq!((errno(), SEEN.load(Ordering::SeqCst)), (libc::EPIPE, 0));
        assert_eq!(libc::write(fd, b"x".as_ptr().cast(), 1), -1);
        assert_eq!((errno(), SEEN.load(Ordering::SeqCst)), (libc::EPIPE, 1));
    }
    drop(client);
}

/// Lets a thread wait repeatedly. Each time, `disturb` causes a spurious wake-up, and a signal
/// follows immediately. `wait` returns the errno of its call, which would hang if the signal were
/// lost.
fn is_interrupted_each_time(wait: impl Fn() -> i32 + Sync, disturb: impl Fn()) {
    const ROUNDS: u32 = 60;
    install(libc::SIGUSR1, 0);
    let (thread, id) = (AtomicU64::new(0), AtomicI32::new(0));
    let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: only asks.
            let (this, number) = unsafe { (libc::pthread_self(), libc::gettid()) };
            thread.store(this, Ordering::SeqCst);
            id.store(number, Ordering::SeqCst);
            for round in 1..=ROUNDS {
                begun.store(round, Ordering::SeqCst);
                assert_eq!(wait(), libc::EINTR);
                ended.store(round, Ordering::SeqCst);
            }
        });
        // SAFETY: the thread still runs, because its last round has not ended.
        let kill = || unsafe { libc::pthread_kill(thread.load(Ordering::SeqCst), libc::SIGUSR1) };
        for round in 1..=ROUNDS {
            while begun.load(Ordering::SeqCst) < round {
                std::thread::yield_now();
            }
            // The thread must wait before the signal, which interrupts only a call in progress.
            asleep::thread(id.load(Ordering::SeqCst));
            disturb();
            for _ in 0..round * 50 {
                std::hint::spin_loop();
            }
            kill();
            while ended.load(Ordering::SeqCst) < round {
                std::thread::yield_now();
            }
        }
    });
}

fn result(result: impl Into<i64>) -> i32 {
    if result.into() == -1 { errno() } else { 0 }
}

fn no_signal_is_lost_in_read() {
    let (server, _client) = pair();
    let fd = server.as_raw_fd();
    let disturb = || {
        // Wakes the reader without a result.
        // SAFETY: shutdown takes integers only.
        unsafe { libc::shutdown(fd, libc::SHUT_WR) };
    };
    // SAFETY: the buffer has room for one byte.
    let read = || result(unsafe { libc::read(fd, [0u8].as_mut_ptr().cast(), 1) } as i64);
    is_interrupted_each_time(read, disturb);
}

fn no_signal_is_lost_in_poll() {
    let (server, _client) = pair();
    let (other, sender) = pair();
    let fds = [server.as_raw_fd(), other.as_raw_fd()];
    let poll = || {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLPRI, revents: 0 };
        // SAFETY: two entries.
        result(unsafe { libc::poll(fds.map(entry).as_mut_ptr(), 2, -1) })
    };
    is_interrupted_each_time(poll, || (&sender).write_all(b"x").unwrap());
}

fn no_signal_is_lost_in_epoll() {
    let (server, _client) = pair();
    let (_other, sender) = pair();
    let add = |epoll, fd| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: an event.
        assert_eq!(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    };
    // SAFETY: an integer.
    let epoll = unsafe { libc::epoll_create1(0) };
    add(epoll, server.as_raw_fd());
    let wait = || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one.
        result(unsafe { libc::epoll_wait(epoll, &raw mut event, 1, -1) })
    };
    // Bytes for one socket wake a thread of the process that waits for another one.
    is_interrupted_each_time(wait, || (&sender).write_all(b"x").unwrap());
}

/// The program sees its own signal handlers and flags, not those that the library installs.
fn handlers_are_told_as_they_were_set() {
    extern "C" fn another(_: i32) {}
    let one = handler as extern "C" fn(i32) as usize;
    let two = another as extern "C" fn(i32) as usize;
    // SAFETY: zeros are valid sigactions, and the handlers are async-signal-safe.
    unsafe {
        let mut set: libc::sigaction = std::mem::zeroed();
        let mut told: libc::sigaction = std::mem::zeroed();
        set.sa_sigaction = one;
        set.sa_flags = libc::SA_RESTART | libc::SA_NODEFER;
        libc::sigaddset(&raw mut set.sa_mask, libc::SIGUSR2);
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const set, &raw mut told), 0);
        assert_eq!(told.sa_sigaction, libc::SIG_DFL);
        let ask = |told: &mut libc::sigaction| {
            // Flag that libc sets itself, and returns.
            const SA_RESTORER: i32 = 0x0400_0000;
            assert_eq!(libc::sigaction(libc::SIGUSR1, std::ptr::null(), &raw mut *told), 0);
            (told.sa_sigaction, told.sa_flags & !SA_RESTORER)
        };
        assert_eq!(ask(&mut told), (one, set.sa_flags));
        assert_eq!(libc::sigismember(&raw const told.sa_mask, libc::SIGUSR2), 1);
        // signal(2) of glibc has BSD semantics.
        assert_eq!(libc::signal(libc::SIGUSR1, two), one);
        assert_eq!(ask(&mut told), (two, libc::SA_RESTART));
        assert_eq!(siginterrupt(libc::SIGUSR1, 1), 0);
        assert_eq!(ask(&mut told), (two, 0));
        assert_eq!(libc::signal(libc::SIGUSR1, libc::SIG_IGN), two);
        assert_eq!(libc::signal(libc::SIGUSR1, libc::SIG_DFL), libc::SIG_IGN);
        assert_eq!((libc::signal(libc::SIGKILL, one), errno()), (libc::SIG_ERR, libc::EINVAL));
        // With SA_RESETHAND, the handler runs once.
        set.sa_flags = libc::SA_RESETHAND;
        libc::sigaction(libc::SIGUSR1, &raw const set, std::ptr::null_mut());
        libc::raise(libc::SIGUSR1);
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        libc::sigaction(libc::SIGUSR1, std::ptr::null(), &raw mut told);
        assert_eq!(told.sa_sigaction, libc::SIG_DFL);
    }
}

unsafe extern "C" {
    fn siginterrupt(signal: i32, flag: i32) -> i32;
}

fn a_handler_gets_what_the_kernel_gives() {
    static SENDER: AtomicU32 = AtomicU32::new(0);
    extern "C" fn with_information(
        signal: i32,
        information: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel's structure.
        let sender = unsafe { (*information).si_pid() };
        assert!(signal == libc::SIGUSR1 && !context.is_null());
        SENDER.store(sender as u32, Ordering::SeqCst);
    }
    // SAFETY: the handler only stores values.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = with_information as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::kill(libc::getpid(), libc::SIGUSR1);
    }
    assert_eq!(SENDER.load(Ordering::SeqCst), std::process::id());
}

/// Opens and closes a listener. Each call is a request to the engine, and async-signal-safe
/// (signal-safety(7)).
extern "C" fn listen_and_close(_: i32) {
    // SAFETY: the calls are async-signal-safe, and use a local address.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
        let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        let is_bound = libc::bind(fd, (&raw const address).cast(), len) == 0;
        if is_bound && libc::listen(fd, 1) == 0 && libc::close(fd) == 0 {
            SEEN.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A handler interrupts malloc or free and sends a request to the engine, so receiving the reply
/// must not allocate.
fn requests_on_top_of_the_allocator() {
    const HANDLERS: u32 = 2000;
    // malloc takes locks only if the process has a second thread.
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let other = std::thread::spawn(move || {
        // SAFETY: the signal set is a local variable.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
        while !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    listen_and_close(0);
    // SAFETY: the handler makes async-signal-safe calls only, and the timer is a local variable.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = listen_and_close as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()), 0);
        let every = libc::timeval { tv_sec: 0, tv_usec: 300 };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()), 0);
    }
    let mut pieces: Vec<Vec<u8>> = vec![Vec::new(); 64];
    let mut dice = Dice::new(1, 0);
    while SEEN.load(Ordering::SeqCst) < HANDLERS {
        // Larger than the blocks that a thread caches, so that malloc takes its lock.
        pieces[dice.index(64)] = Vec::with_capacity(1100 + dice.index(6000));
    }
    // SAFETY: no timer.
    unsafe {
        let none: libc::itimerval = std::mem::zeroed();
        libc::setitimer(libc::ITIMER_REAL, &raw const none, std::ptr::null_mut());
    }
    over.store(true, Ordering::SeqCst);
    other.join().unwrap();
}

static CLOSED: AtomicU32 = AtomicU32::new(0);
static STILL_BOUND: AtomicU32 = AtomicU32::new(0);

/// Binds a socket to a fixed port, duplicates it twice, and closes all three descriptors.
extern "C" fn closes_copies(_: i32) {
    let at = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 20_000_u16.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(std::net::Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: the calls are async-signal-safe, and use a local address.
    unsafe {
        let error = *libc::__errno_location();
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let bound = libc::bind(socket, (&raw const at).cast(), size_of_val(&at) as u32);
        let copies = [libc::dup(socket), libc::dup(socket)];
        libc::close(socket);
        libc::close(copies[0]);
        libc::close(copies[1]);
        STILL_BOUND.fetch_add(u32::from(bound != 0), Ordering::Relaxed);
        CLOSED.fetch_add(1, Ordering::Relaxed);
        *libc::__errno_location() = error;
    }
}

/// A handler closes the last descriptor of a socket while the interrupted thread duplicates other
/// sockets. The socket must then be closed.
fn copies_that_a_handler_closes_on_top_of_dup() {
    let sockets: Vec<_> =
        (0..16).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let every = |microseconds| {
        let time = libc::timeval { tv_sec: 0, tv_usec: microseconds };
        let timer = libc::itimerval { it_interval: time, it_value: time };
        // SAFETY: the timer is a local variable.
        let set =
            unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
        assert_eq!(set, 0);
    };
    // SAFETY: the handler makes async-signal-safe calls only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = closes_copies as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
    }
    every(500);
    while CLOSED.load(Ordering::Relaxed) < 1500 {
        for socket in &sockets {
            // SAFETY: integers.
            unsafe { libc::close(libc::dup(socket.as_raw_fd())) };
        }
    }
    every(0);
    assert_eq!(STILL_BOUND.load(Ordering::Relaxed), 0);
}
