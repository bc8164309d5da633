//! fork(2) with pthread_atfork handlers, and libc functions that fork.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::asleep;
use crate::files::fresh_folder;
use crate::harness::Case;
use crate::processes::{fork, wait};
use crate::sockets::{errno, get, pair, set};

pub const CASES: &[Case] = &[
    ("handlers_of_fork_use_sockets", handlers_of_fork_use_sockets),
    ("handlers_of_fork_wait_for_threads", handlers_of_fork_wait_for_threads),
    ("a_child_on_a_terminal", a_child_on_a_terminal),
    ("a_terminal_in_the_place_of_sockets", a_terminal_in_the_place_of_sockets),
    ("forked_in_a_handler_of_a_waiting_call", forked_in_a_handler_of_a_waiting_call),
    ("forked_in_a_handler_of_a_connect", forked_in_a_handler_of_a_connect),
    ("forked_where_malloc_is_locked_in_handlers", forked_where_malloc_is_locked_in_handlers),
    ("forked_by_one_that_opens_many", forked_by_one_that_opens_many),
];

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

static CONNECTION: OnceLock<(TcpStream, TcpStream)> = OnceLock::new();
static CORKED: AtomicI32 = AtomicI32::new(-1);
static HANDLED: AtomicU32 = AtomicU32::new(0);

/// Uses each part of the library that has a lock. There are locks of the ring, requests, datagrams
/// in parts, options, sources of datagrams, epoll sets, descriptors, and signal handlers.
extern "C" fn use_sockets() {
    let (server, client) = CONNECTION.get().unwrap();
    (&mut &*client).write_all(b"x").unwrap();
    assert_eq!((&mut &*server).read(&mut [0]).unwrap(), 1);
    assert!(get(server.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap() > 0);
    let corked = CORKED.swap(-1, Ordering::SeqCst);
    if corked >= 0 {
        // SAFETY: of `handlers_of_fork_use_sockets`.
        assert_eq!(unsafe { libc::close(corked) }, 0);
    }
    CORKED.store(corked_datagram(), Ordering::SeqCst);
    // SAFETY: the calls take integers, and pointers to local variables.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 0 };
        let fd = server.as_raw_fd();
        assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        assert_eq!(libc::epoll_wait(epoll, &raw mut event, 1, 1000), 1);
        assert_eq!(libc::close(epoll), 0);
        libc::signal(libc::SIGUSR2, libc::SIG_IGN);
    }
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Returns a socket with an incomplete datagram, and an option that only the process stores.
fn corked_datagram() -> i32 {
    const UDP_SEGMENT: i32 = 103;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(socket.local_addr().unwrap()).unwrap();
    set(socket.as_raw_fd(), libc::IPPROTO_UDP, UDP_SEGMENT, 100).unwrap();
    // SAFETY: a byte.
    let sent = unsafe { libc::send(socket.as_raw_fd(), b"x".as_ptr().cast(), 1, libc::MSG_MORE) };
    assert_eq!(sent, 1);
    socket.into_raw_fd()
}

fn handlers_of_fork_use_sockets() {
    CONNECTION.set(pair()).unwrap();
    CORKED.store(corked_datagram(), Ordering::SeqCst);
    // SAFETY: the handlers call async-signal-safe functions and those of sockets. The children exit
    // at once.
    unsafe {
        assert_eq!(pthread_atfork(Some(use_sockets), Some(use_sockets), Some(use_sockets)), 0);
        for round in 1..=5 {
            let pid = libc::fork();
            if pid == 0 {
                use_sockets();
                libc::_exit(i32::from(HANDLED.load(Ordering::SeqCst) != 2 * round + 1));
            }
            assert_eq!(wait(pid), 0);
            assert_eq!(HANDLED.load(Ordering::SeqCst), 2 * round);
        }
    }
}

fn a_child_on_a_terminal() {
    let (server, mut client) = pair();
    let mut terminal = -1;
    let null = std::ptr::null_mut();
    // SAFETY: null is allowed for the optional arguments; the child exits.
    unsafe {
        let pid = libc::forkpty(&raw mut terminal, null, std::ptr::null(), std::ptr::null());
        if pid == 0 {
            let told = libc::write(server.as_raw_fd(), b"child".as_ptr().cast(), 5) == 5;
            let fresh = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) >= 0;
            libc::_exit(i32::from(!told || !fresh || libc::isatty(0) == 0));
        }
        assert_eq!(wait(pid), 0);
    }
    let mut got = [0; 5];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"child");
}

fn a_terminal_in_the_place_of_sockets() {
    let (server, mut client) = pair();
    let null = std::ptr::null_mut();
    // SAFETY: null is allowed for the optional arguments; the child exits.
    unsafe {
        let (mut master, mut terminal) = (-1, -1);
        let (none, size) = (std::ptr::null(), std::ptr::null());
        assert_eq!(libc::openpty(&raw mut master, &raw mut terminal, null, none, size), 0);
        let pid = libc::fork();
        if pid == 0 {
            for standard in 0..3 {
                libc::dup2(server.as_raw_fd(), standard);
            }
            libc::close(server.as_raw_fd());
            let failed = libc::login_tty(terminal) != 0;
            let written = libc::write(1, b"to the terminal".as_ptr().cast(), 15);
            libc::_exit(i32::from(failed || written != 15 || libc::isatty(0) == 0));
        }
        assert_eq!((wait(pid), errno()), (0, errno()));
    }
    drop(server);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "", "the child's last socket was closed, and nothing written to it");
}

/// Interrupts the waiting main thread by SIGUSR1. Returns when the main thread waits again, and the
/// child that its handler has forked waits, too.
fn interrupt_main(main: libc::pthread_t, child: &AtomicI32) {
    let first = std::process::id() as i32;
    asleep::thread(first);
    // SAFETY: the main thread runs until the process ends.
    unsafe { libc::pthread_kill(main, libc::SIGUSR1) };
    while child.load(Ordering::SeqCst) <= 0 {
        std::thread::yield_now();
    }
    asleep::process(child.load(Ordering::SeqCst));
    asleep::thread(first);
}

/// The child continues the call in which its parent waits, and the call ends in both.
fn forked_in_a_handler_of_a_waiting_call() {
    static CHILD: AtomicI32 = AtomicI32::new(0);
    extern "C" fn fork_once(_: i32) {
        // SAFETY: fork may be called in a handler.
        CHILD.store(unsafe { libc::fork() }, Ordering::SeqCst);
    }
    let (mut server, mut client) = pair();
    let handler = fork_once as extern "C" fn(i32) as usize;
    // SAFETY: the handler only forks; signal(2) makes it restart the call.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    // SAFETY: only asks.
    let me = unsafe { libc::pthread_self() };
    let feeder = std::thread::spawn(move || {
        interrupt_main(me, &CHILD);
        client.write_all(b"x").unwrap();
        // The byte wakes parent and child. The first to read it returns, and the other waits again.
        asleep::process(CHILD.load(Ordering::SeqCst));
        client.write_all(b"x").unwrap();
        client
    });
    // Receives one byte for the parent, and one for the child.
    assert_eq!(server.read(&mut [0]).unwrap(), 1);
    if CHILD.load(Ordering::SeqCst) == 0 {
        // SAFETY: the child has no other thread.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(wait(CHILD.load(Ordering::SeqCst)), 0);
    let mut client = feeder.join().unwrap();
    // The engine must still count the parent as waiting; otherwise its threads would not be woken.
    for _ in 0..5 {
        let sleeper = std::thread::spawn({
            let mut server = server.try_clone().unwrap();
            move || server.read(&mut [0]).unwrap()
        });
        asleep::others();
        client.write_all(b"x").unwrap();
        assert_eq!(sleeper.join().unwrap(), 1);
    }
}

/// The child continues the connect, or gets EISCONN because the parent's connect is complete.
fn forked_in_a_handler_of_a_connect() {
    static CHILD: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn fork_once(_: i32) {
        // SAFETY: fork may be called in a handler.
        CHILD.store(unsafe { libc::fork() }, Ordering::SeqCst);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    // SAFETY: listen takes integers, the handler only forks, and pthread_self has no arguments.
    let me = unsafe {
        assert_eq!(libc::listen(listener.as_raw_fd(), 0), 0);
        libc::signal(libc::SIGUSR1, fork_once as extern "C" fn(i32) as usize);
        libc::pthread_self()
    };
    // Fills the accept queue, so that the next connect waits.
    let first = TcpStream::connect(addr).unwrap();
    // Create the socket before the signal, because socket(2) waits for the engine, too.
    // SAFETY: socket takes integers, and the descriptor is new.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
    let accepts = std::thread::spawn(move || {
        interrupt_main(me, &CHILD);
        (0..2).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>()
    });
    // std would connect another socket, so call connect(2) directly.
    let result = (connect(&socket, addr), errno());
    if CHILD.load(Ordering::SeqCst) == 0 {
        let is_well = result.0 == 0 || result.1 == libc::EISCONN;
        if !is_well {
            eprintln!("connect in the child of fork: {result:?}");
        }
        // SAFETY: the child has no other thread.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    assert_eq!(result.0, 0, "{result:?}");
    assert_eq!(wait(CHILD.load(Ordering::SeqCst)), 0);
    drop((socket, first, accepts.join().unwrap()));
}

/// Calls connect(2) on a blocking socket, and returns its result.
fn connect(socket: &OwnedFd, addr: SocketAddr) -> i32 {
    let addr = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    // SAFETY: the address and length are those of `addr`.
    unsafe {
        libc::connect(socket.as_raw_fd(), (&raw const addr).cast(), size_of_val(&addr) as u32)
    }
}

/// A handler may wait for a thread that starts a program, so the library's locks must be free.
fn handlers_of_fork_wait_for_threads() {
    extern "C" fn start_a_program() {
        let thread = std::thread::spawn(|| {
            assert!(Command::new("true").status().unwrap().success());
            HANDLED.fetch_add(1, Ordering::SeqCst);
        });
        thread.join().unwrap();
    }
    let (server, mut client) = pair();
    // SAFETY: the handlers are valid functions; the child only writes and exits.
    unsafe {
        assert_eq!(pthread_atfork(Some(start_a_program), Some(start_a_program), None), 0);
        let pid = libc::fork();
        if pid == 0 {
            let sent = libc::write(server.as_raw_fd(), b"x".as_ptr().cast(), 1);
            libc::_exit(i32::from(sent != 1));
        }
        assert_eq!(wait(pid), 0);
    }
    client.read_exact(&mut [0]).unwrap();
    assert_eq!(HANDLED.load(Ordering::SeqCst), 2);
}

/// Source of a malloc that locks in its fork handlers, as jemalloc and tcmalloc: an allocation
/// between these handlers deadlocks. Preloaded before libc, whose malloc it calls.
const LOCKED_MALLOC: &str = r#"
#include <pthread.h>
#include <stddef.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void __libc_free(void *);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void begin(void) { pthread_mutex_lock(&lock); }
static void end(void) { pthread_mutex_unlock(&lock); }
void *malloc(size_t n) { begin(); void *p = __libc_malloc(n); end(); return p; }
void *calloc(size_t n, size_t m) { begin(); void *p = __libc_calloc(n, m); end(); return p; }
void *realloc(void *p, size_t n) { begin(); p = __libc_realloc(p, n); end(); return p; }
void free(void *p) { begin(); __libc_free(p); end(); }
__attribute__((constructor)) static void start(void) { pthread_atfork(begin, end, end); }
int malloc_is_locked;
"#;

const LOCKED_MALLOC_FOLDER: &str = "TOWPATH_TEST_MALLOC";

/// Runs this program again with [`LOCKED_MALLOC`] preloaded before all other libraries.
fn with_locked_malloc() -> ExitStatus {
    let folder = fresh_folder();
    let (source, library) = (folder.join("malloc.c"), folder.join("malloc.so"));
    std::fs::write(&source, LOCKED_MALLOC).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(&source);
    assert!(compiler.status().expect("cc, as Rust needs it").success());
    let others = std::env::var("LD_PRELOAD").unwrap_or_default();
    let preload = format!("{}:{others}", library.display());
    let mut again = Command::new("/proc/self/exe");
    again.env("LD_PRELOAD", preload).env(LOCKED_MALLOC_FOLDER, folder);
    again.status().unwrap()
}

/// The library allocates during a fork, but never while the handlers hold the lock of malloc.
fn forked_where_malloc_is_locked_in_handlers() {
    if let Some(folder) = std::env::var_os(LOCKED_MALLOC_FOLDER) {
        return fork_where_malloc_is_locked(Path::new(&folder));
    }
    let status = with_locked_malloc();
    assert!(status.success(), "{status}");
}

fn fork_where_malloc_is_locked(folder: &Path) {
    // The library is loaded already, so its file can be removed.
    std::fs::remove_dir_all(folder).unwrap();
    // SAFETY: the name is NUL-terminated. dlsym returns null if the symbol does not exist.
    let ours = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc_is_locked".as_ptr()) };
    assert!(!ours.is_null(), "malloc is the one that is to be tried");
    let (server, mut client) = pair();
    let done = Arc::new(AtomicBool::new(false));
    let allocating = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            while !done.load(Ordering::Relaxed) {
                std::hint::black_box(vec![0u8; 100]);
            }
        }
    });
    for round in 0..20 {
        // SAFETY: malloc's handlers make it usable in the child, which only writes and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let fresh = UdpSocket::bind("127.0.0.1:0").is_ok();
            let told = (&server).write_all(&vec![round; 1000]).is_ok();
            // SAFETY: the child has no other thread.
            unsafe { libc::_exit(i32::from(!fresh || !told)) };
        }
        assert_eq!(wait(pid), 0, "round {round}");
        let mut got = vec![0; 1000];
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, [round; 1000]);
    }
    done.store(true, Ordering::Relaxed);
    allocating.join().unwrap();
}

/// The threads and children of a program open many sockets concurrently. Each socket is distinct,
/// and a child's sockets end with the child.
fn forked_by_one_that_opens_many() {
    let served = |listener: TcpListener| {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        (server, client)
    };
    let opens_many = || {
        let pairs: Vec<_> =
            (0..100).map(|_| served(TcpListener::bind("127.0.0.1:0").unwrap())).collect();
        for (n, (server, client)) in pairs.iter().enumerate() {
            (&mut &*server).write_all(&[n as u8]).unwrap();
            let mut got = [0];
            (&mut &*client).read_exact(&mut got).unwrap();
            assert_eq!(got, [n as u8]);
        }
        let own: HashSet<_> = pairs
            .iter()
            .map(|(server, client)| [server, client].map(|it| it.local_addr().unwrap()))
            .collect();
        assert_eq!(own.len(), pairs.len());
    };
    let many_at_once = || {
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(opens_many)));
        });
    };
    many_at_once();
    let (mut server, client) = served(TcpListener::bind("127.0.0.1:0").unwrap());
    let children: Vec<_> = (0..3)
        .map(|_| {
            fork(|| {
                many_at_once();
            })
        })
        .collect();
    many_at_once();
    for child in children {
        assert_eq!(wait(child), 0);
    }
    drop(client);
    assert_eq!(server.read(&mut [0]).unwrap(), 0, "nobody else has it");
}
