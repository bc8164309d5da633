//! Signals during calls that wait.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::harness::Case;
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    ("a_signal_interrupts", a_signal_interrupts),
    ("a_restarting_signal_does_not", a_restarting_signal_does_not),
    ("a_restarting_signal_interrupts_a_timeout", a_restarting_signal_interrupts_a_timeout),
    ("polling_is_always_interrupted", polling_is_always_interrupted),
    ("the_mask_of_pwait", the_mask_of_pwait),
    ("sigpipe", sigpipe),
];

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn handler(_: i32) {
    SEEN.fetch_add(1, Ordering::SeqCst);
}

fn install(signal: i32, flags: i32) {
    // SAFETY: a handler that only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(i32) as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Sends a thread a signal after 60 ms, and waits until it was handled: two that wait are one.
fn interrupt(thread: libc::pthread_t) {
    std::thread::sleep(Duration::from_millis(60));
    let before = SEEN.load(Ordering::SeqCst);
    // SAFETY: the thread lives as long as the case.
    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
    while SEEN.load(Ordering::SeqCst) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends this thread signals until it is dropped: one alone may come before the call that it is to
/// interrupt.
struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    fn new() -> Self {
        // SAFETY: only asks.
        let me = unsafe { libc::pthread_self() };
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                interrupt(me);
            }
        });
        Self(over)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
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
    // SAFETY: nulls are allowed. std would try again.
    let result =
        unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
    assert_eq!((result, errno()), (-1, libc::EINTR));
}

fn a_restarting_signal_does_not() {
    install(libc::SIGUSR1, libc::SA_RESTART);
    let (mut server, mut client) = pair();
    // Longer than the slices in which a waiting thread looks for its engine.
    // SAFETY: only asks.
    let me = unsafe { libc::pthread_self() };
    std::thread::spawn(move || {
        (0..12).for_each(|_| interrupt(me));
        client.write_all(b"x").unwrap();
    });
    assert_eq!(server.read(&mut [0]).unwrap(), 1);
    assert_eq!(SEEN.load(Ordering::SeqCst), 12);
}

fn a_restarting_signal_interrupts_a_timeout() {
    install(libc::SIGUSR1, libc::SA_RESTART);
    let (mut server, _client) = pair();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _interrupts = Interrupts::new();
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::Interrupted);
}

fn polling_is_always_interrupted() {
    install(libc::SIGUSR1, libc::SA_RESTART);
    let (server, _client) = pair();
    let mut entry = libc::pollfd { fd: server.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let interrupts = Interrupts::new();
    // SAFETY: one entry.
    assert_eq!((unsafe { libc::poll(&raw mut entry, 1, 5000) }, errno()), (-1, libc::EINTR));
    drop(interrupts);
    // SAFETY: integers and events.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, server.as_raw_fd(), &raw mut event);
        let _interrupts = Interrupts::new();
        assert_eq!((libc::epoll_wait(epoll, &raw mut event, 1, 5000), errno()), (-1, libc::EINTR));
    }
}

fn the_mask_of_pwait() {
    install(libc::SIGUSR1, 0);
    let (server, _client) = pair();
    // SAFETY: masks and events that live here.
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
        let result = libc::epoll_pwait(epoll, &raw mut event, 1, 5000, &raw const open);
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
