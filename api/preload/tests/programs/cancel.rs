//! pthread_cancel(3) of threads that wait for sockets.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_void;

use crate::asleep;
use crate::harness::Case;
use crate::sockets::pair;

pub const CASES: &[Case] = &[
    ("a_cancelled_thread_ends", a_cancelled_thread_ends),
    ("a_thread_that_was_cancelled_before_it_waits", a_thread_that_was_cancelled_before_it_waits),
    ("a_thread_with_cancellation_disabled_goes_on", a_thread_with_cancellation_disabled_goes_on),
    // Needs a library built with `panic = "abort"`, as shipped: libc cannot unwind a debug build
    // from every instruction.
    #[cfg(not(debug_assertions))]
    ("a_thread_that_ends_anywhere_leaves_no_lock", a_thread_that_ends_anywhere_leaves_no_lock),
];

const DISABLE: i32 = 1;
const ENABLE: i32 = 0;
#[cfg(not(debug_assertions))]
const ASYNCHRONOUS: i32 = 1;

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> i32;
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    #[cfg(not(debug_assertions))]
    fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
    fn pthread_testcancel();
}

static FD: AtomicI32 = AtomicI32::new(-1);
static STEP: AtomicI32 = AtomicI32::new(0);

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a thread by pthread_create(3), because a thread of std must not be cancelled.
fn start(function: Start) -> libc::pthread_t {
    let mut thread = 0;
    // SAFETY: `thread` is writable, and null attributes and arguments are allowed.
    let failed = unsafe {
        libc::pthread_create(&raw mut thread, std::ptr::null(), function, std::ptr::null_mut())
    };
    assert_eq!(failed, 0);
    thread
}

fn is_cancelled(thread: libc::pthread_t) -> bool {
    let mut result = std::ptr::null_mut();
    // SAFETY: joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, &raw mut result) }, 0);
    // PTHREAD_CANCELED
    result.addr() == usize::MAX
}

fn cancel(thread: libc::pthread_t) {
    // SAFETY: not joined yet.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
}

// The thread functions own no values that need drop, because cancellation skips drops.

extern "C" fn read(_: *mut c_void) -> *mut c_void {
    // SAFETY: a byte on the stack.
    unsafe { libc::read(FD.load(Ordering::SeqCst), [0u8].as_mut_ptr().cast(), 1) };
    std::ptr::null_mut()
}

extern "C" fn accept(_: *mut c_void) -> *mut c_void {
    let fd = FD.load(Ordering::SeqCst);
    // SAFETY: nulls are allowed.
    unsafe { libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()) };
    std::ptr::null_mut()
}

extern "C" fn poll_two(_: *mut c_void) -> *mut c_void {
    let fd = FD.load(Ordering::SeqCst);
    let mut entries = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }; 2];
    // SAFETY: two entries.
    unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) };
    std::ptr::null_mut()
}

extern "C" fn epoll(_: *mut c_void) -> *mut c_void {
    // SAFETY: an event that lives here.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let fd = FD.load(Ordering::SeqCst);
        libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event);
        libc::epoll_wait(epoll, &raw mut event, 1, -1);
    }
    std::ptr::null_mut()
}

fn a_cancelled_thread_ends() {
    let (mut server, mut client) = pair();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let cases: [(i32, Start); 5] = [
        (server.as_raw_fd(), read),
        (server.as_raw_fd(), poll_two),
        (server.as_raw_fd(), epoll),
        (listener.as_raw_fd(), accept),
        // A kernel file, which the library's read(2) passes to libc.
        (pipe.as_raw_fd(), read),
    ];
    for (number, (fd, function)) in cases.into_iter().enumerate() {
        FD.store(fd, Ordering::SeqCst);
        let thread = start(function);
        asleep::others();
        cancel(thread);
        assert!(is_cancelled(thread), "case {number}");
    }
    client.write_all(b"x").unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 1);
}

extern "C" fn read_later(_: *mut c_void) -> *mut c_void {
    while STEP.load(Ordering::SeqCst) == 0 {
        std::hint::spin_loop();
    }
    read(std::ptr::null_mut())
}

fn a_thread_that_was_cancelled_before_it_waits() {
    let (server, _client) = pair();
    FD.store(server.as_raw_fd(), Ordering::SeqCst);
    let thread = start(read_later);
    cancel(thread);
    STEP.store(1, Ordering::SeqCst);
    assert!(is_cancelled(thread));
}

extern "C" fn read_disabled(_: *mut c_void) -> *mut c_void {
    // SAFETY: a byte, and integers.
    unsafe {
        pthread_setcancelstate(DISABLE, std::ptr::null_mut());
        let n = libc::read(FD.load(Ordering::SeqCst), [0u8].as_mut_ptr().cast(), 1);
        STEP.store(n as i32, Ordering::SeqCst);
        pthread_setcancelstate(ENABLE, std::ptr::null_mut());
        pthread_testcancel();
    }
    std::ptr::null_mut()
}

fn a_thread_with_cancellation_disabled_goes_on() {
    let (server, mut client) = pair();
    FD.store(server.as_raw_fd(), Ordering::SeqCst);
    let thread = start(read_disabled);
    asleep::others();
    cancel(thread);
    asleep::others();
    assert_eq!(STEP.load(Ordering::SeqCst), 0);
    client.write_all(b"x").unwrap();
    assert!(is_cancelled(thread));
    assert_eq!(STEP.load(Ordering::SeqCst), 1);
}

#[cfg(not(debug_assertions))]
extern "C" fn read_asynchronously(_: *mut c_void) -> *mut c_void {
    // SAFETY: a byte, and integers.
    unsafe {
        pthread_setcanceltype(ASYNCHRONOUS, std::ptr::null_mut());
        loop {
            let fd = FD.load(Ordering::SeqCst);
            libc::recv(fd, [0u8].as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT);
        }
    }
}

#[cfg(not(debug_assertions))]
/// With asynchronous cancellation, the thread may end at any instruction, also of the library.
fn a_thread_that_ends_anywhere_leaves_no_lock() {
    let (mut server, mut client) = pair();
    FD.store(server.as_raw_fd(), Ordering::SeqCst);
    for round in 0..100 {
        let thread = start(read_asynchronously);
        std::thread::sleep(std::time::Duration::from_micros(500 + round * 7));
        cancel(thread);
        assert!(is_cancelled(thread));
        client.write_all(b"x").unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 1, "round {round}");
    }
}
