//! Threads receive and send while other threads close or replace the same descriptors, and open new
//! connections. Several processes share one listener. Each record contains the number of its
//! connection.
//!
//! As on Linux, a late call may act on the socket that has the descriptor's number by then. The
//! socket must belong to the same process. Its data must be complete, and must not contain records
//! of another connection.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("slots_are_used_again_under_late_threads", || slots_are_used_again(asked())),
    ("nightly::slots_are_used_again_under_late_threads", || slots_are_used_again(LONG)),
];

/// Duration of the nightly case.
pub const LONG: Duration = Duration::from_secs(8);

const SERVERS: u32 = 3;
const CLIENTS: u32 = 2;
/// Number of records per connection, which fit in one segment, so that no record is split.
const RECORDS: u32 = 6;
/// Maximum number of connections per run; ten minutes make some millions.
const CONNECTIONS_MAX: usize = 1 << 25;
/// Number of client addresses, from 127.0.0.2 on.
const ADDRESSES: u32 = 64;
/// Number of descriptors from which late threads choose.
const TARGETS: usize = 8;
/// Maximum number of records that a late thread sends to one descriptor per connection.
const LATE_MAX: u32 = 64;

/// Returns the duration of the gate's case: TOWPATH_REUSE_SECONDS, or one second.
pub fn asked() -> Duration {
    let seconds = std::env::var("TOWPATH_REUSE_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(1))
}

/// Zero-initialized memory that the processes share.
#[repr(C)]
struct Board {
    stop: AtomicBool,
    last: AtomicU32,
    whole: AtomicU64,
    late: AtomicU64,
    /// Number of the connection by client address and port ([`place`]).
    of_client: [AtomicU32; 256 << 16],
    /// Server of each connection, counted from 1; 0: not accepted yet.
    owner: [AtomicU8; CONNECTIONS_MAX],
    /// Received records of each connection, as a bit set.
    seen: [AtomicU8; CONNECTIONS_MAX],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Record {
    connection: u32,
    /// Index of the record in its connection; [`LATE`] if the sending thread does not know the
    /// connection.
    number: u32,
    /// Number of the process that sent the record.
    client: u32,
    check: u32,
}

const LATE: u32 = u32::MAX;
const RECORD: usize = size_of::<Record>();
// All records that one connection can receive fit in the smallest FIFO.
const _: () =
    assert!(RECORDS <= 8 && RECORD == 16 && TARGETS * LATE_MAX as usize * RECORD < 32 << 10);

impl Record {
    fn new(connection: u32, number: u32, client: u32) -> Self {
        let check = (connection ^ number.rotate_left(9) ^ client << 27).wrapping_mul(0x9e37_79b1);
        Self { connection, number, client, check }
    }

    fn is_whole(&self) -> bool {
        *self == Self::new(self.connection, self.number, self.client)
    }
}

fn slots_are_used_again(duration: Duration) {
    let board = board();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    limit_waits(listener.as_raw_fd(), Duration::from_millis(100));
    let SocketAddr::V4(addr) = listener.local_addr().unwrap() else { unreachable!("it is IPv4") };
    let mut children = Vec::new();
    for server in 0..SERVERS {
        children.push(fork(|| serve(board, &listener, server + 1)));
    }
    for client in 0..CLIENTS {
        children.push(fork(|| connect(board, addr, client)));
    }
    std::thread::sleep(duration);
    // On a busy machine, some threads may not have run yet.
    while board.whole.load(SeqCst) == 0 || board.late.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    board.stop.store(true, SeqCst);
    for child in children {
        let mut status = 0;
        // SAFETY: `child` is a child of this process, and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a process found something wrong");
    }
    let (connections, whole, late) =
        (board.last.load(SeqCst), board.whole.load(SeqCst), board.late.load(SeqCst));
    println!("{connections} connections, {whole} read to their end, {late} late reads");
}

fn board() -> &'static Board {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: the new mapping has the length of a `Board` and contains zeros, which are valid
    // atomics. The mapping is never removed.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), size_of::<Board>(), prot, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast::<Board>()
    }
}

/// Forks a process that runs `work`, and exits with 0 unless `work` panics.
fn fork(work: impl FnOnce() + std::panic::UnwindSafe) -> libc::pid_t {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(work);
            std::process::exit(i32::from(done.is_err()));
        }
        child => child,
    }
}

/// Descriptors that are or were sockets of this process: connection in the upper half, number in
/// the lower.
type Targets = [AtomicU64; TARGETS];

fn target(connection: u32, fd: RawFd) -> u64 {
    u64::from(connection) << 32 | fd as u64
}

fn serve(board: &'static Board, listener: &TcpListener, server: u32) {
    let targets = Targets::default();
    let (targets, done) = (&targets, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| receive_late(board, server, targets, done));
        }
        let servers: Vec<_> = (0..2)
            .map(|seed| scope.spawn(move || accept(board, listener, server, targets, seed)))
            .collect();
        let results: Vec<_> = servers.into_iter().map(|server| server.join()).collect();
        done.store(true, SeqCst);
        assert!(results.iter().all(Result::is_ok));
    });
}

/// Accepts connections. Reads half of them to their end, and closes the others while late threads
/// use them.
fn accept(board: &Board, listener: &TcpListener, server: u32, targets: &Targets, seed: usize) {
    let mut turn = seed;
    let other = listener.as_raw_fd();
    while !board.stop.load(SeqCst) {
        let Ok((stream, peer)) = listener.accept() else { continue };
        let SocketAddr::V4(peer) = peer else { unreachable!("it is IPv4") };
        let connection = board.of_client[place(peer)].load(SeqCst);
        board.owner[connection as usize].store(server as u8, SeqCst);
        turn += 1;
        let fd = stream.as_raw_fd();
        if turn.is_multiple_of(2) {
            read_to_the_end(board, fd, connection, server);
            continue;
        }
        targets[turn / 2 % TARGETS].store(target(connection, fd), SeqCst);
        for _ in 0..turn % 7 {
            std::thread::yield_now();
        }
        if turn.is_multiple_of(3) {
            // SAFETY: this process owns both descriptors. Dropping `stream` closes the number.
            assert_eq!(unsafe { libc::dup2(other, fd) }, fd);
        }
        drop(stream);
    }
}

/// SO_RCVTIMEO.
fn limit_waits(fd: RawFd, limit: Duration) {
    let timeout =
        libc::timeval { tv_sec: limit.as_secs() as i64, tv_usec: i64::from(limit.subsec_micros()) };
    let (value, len) = ((&raw const timeout).cast(), size_of_val(&timeout) as libc::socklen_t);
    // SAFETY: `value` points to an option value of `len` bytes.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, len) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Reads a connection that no other thread closes. Late threads may read part of it, by the number
/// of an earlier socket.
fn read_to_the_end(board: &Board, fd: RawFd, connection: u32, server: u32) {
    // The connection inherits the listener's timeout; zero means none.
    limit_waits(fd, Duration::ZERO);
    loop {
        let mut records = [Record::default(); 4];
        let n = match recv(fd, &mut records, 0) {
            Ok(n) => n,
            Err(error) => panic!("connection {connection} of server {server}: {error}"),
        };
        if n == 0 {
            break;
        }
        for record in &records[..n] {
            assert!(record.is_whole(), "{record:?} of {connection}");
            let is_its = match record.number {
                LATE => record.client == connection % CLIENTS,
                _ => record.connection == connection,
            };
            assert!(is_its, "{record:?} came on connection {connection}");
            note(board, record);
        }
    }
    let all = (1u32 << RECORDS) - 1;
    // A late thread has the missing records, and will note them soon. If a record was lost, the
    // case hangs.
    while u32::from(board.seen[connection as usize].load(SeqCst)) != all {
        std::thread::sleep(Duration::from_millis(1));
    }
    board.whole.fetch_add(1, SeqCst);
}

fn note(board: &Board, record: &Record) {
    if record.number != LATE {
        let bit = 1 << record.number;
        let before = board.seen[record.connection as usize].fetch_or(bit, SeqCst);
        assert_eq!(before & bit, 0, "{record:?} was read twice");
    }
}

/// Reads from descriptors that other threads close at the same time.
fn receive_late(board: &Board, server: u32, targets: &Targets, done: &AtomicBool) {
    let mut turn = 0;
    while !done.load(SeqCst) {
        turn += 1;
        let fd = targets[turn % TARGETS].load(SeqCst) as u32 as RawFd;
        let mut records = [Record::default(); 4];
        if fd == 0 || turn % 16 == 0 {
            std::thread::yield_now();
            continue;
        }
        let Ok(n) = recv(fd, &mut records, libc::MSG_DONTWAIT) else { continue };
        board.late.fetch_add(u64::from(n > 0), SeqCst);
        let its: Vec<_> = records[..n].iter().filter(|record| record.number != LATE).collect();
        for record in &its {
            assert!(record.is_whole() && record.connection == its[0].connection, "{records:?}");
            // The accepting thread sets the owner as soon as it knows the connection.
            let owner = &board.owner[record.connection as usize];
            while owner.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(u32::from(owner.load(SeqCst)), server, "{record:?} is another process's");
            note(board, record);
        }
    }
}

fn connect(board: &'static Board, addr: SocketAddrV4, client: u32) {
    let targets = Targets::default();
    let (targets, done) = (&targets, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| send_late(client, targets, done));
        let clients: Vec<_> =
            (0..2).map(|_| scope.spawn(move || send(board, addr, client, targets))).collect();
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        done.store(true, SeqCst);
        assert!(results.iter().all(Result::is_ok));
    });
}

/// Opens connections that send their records and end.
fn send(board: &Board, addr: SocketAddrV4, client: u32, targets: &Targets) {
    while !board.stop.load(SeqCst) {
        let nth = board.last.fetch_add(1, SeqCst) + 1;
        let connection = nth * CLIENTS + client;
        assert!((connection as usize) < CONNECTIONS_MAX, "more connections than can be counted");
        let fd = socket();
        // Use many addresses, because all ports of a single one would soon be in TIME-WAIT.
        let from = bind(fd, (nth % ADDRESSES) as u8 + 2);
        board.of_client[place(from)].store(connection, SeqCst);
        if connect_to(fd, addr) {
            targets[nth as usize % TARGETS].store(target(connection, fd), SeqCst);
            for number in 0..RECORDS {
                // If the server closes early, the connection is reset.
                if !send_record(fd, &Record::new(connection, number, client), 0) {
                    break;
                }
                if number == RECORDS / 2 {
                    std::thread::yield_now();
                }
            }
        }
        // SAFETY: this process owns the descriptor.
        unsafe { libc::close(fd) };
    }
}

/// Writes to descriptors that other threads close at the same time. Each connection gets so few
/// records that no FIFO fills up, which would split a record.
fn send_late(client: u32, targets: &Targets, done: &AtomicBool) {
    let mut sent = [(0, 0); TARGETS];
    let mut turn = 0;
    while !done.load(SeqCst) {
        turn += 1;
        let target = targets[turn % TARGETS].load(SeqCst);
        let (last, count) = &mut sent[turn % TARGETS];
        if *last != target {
            (*last, *count) = (target, 0);
        }
        *count += 1;
        if target != 0 && *count <= LATE_MAX {
            let fd = target as u32 as RawFd;
            send_record(fd, &Record::new(0, LATE, client), libc::MSG_DONTWAIT);
        }
        std::thread::yield_now();
    }
}

/// Returns the index of a client's address on the board.
fn place(addr: SocketAddrV4) -> usize {
    usize::from(addr.ip().octets()[3]) << 16 | usize::from(addr.port())
}

fn recv(fd: RawFd, records: &mut [Record], flags: i32) -> std::io::Result<usize> {
    // SAFETY: the address and length are those of `records`, which may contain any bytes.
    let n = unsafe { libc::recv(fd, records.as_mut_ptr().cast(), size_of_val(records), flags) };
    let n = usize::try_from(n).map_err(|_| std::io::Error::last_os_error())?;
    assert_eq!(n % RECORD, 0, "a record is whole: {records:?}");
    Ok(n / RECORD)
}

fn send_record(fd: RawFd, record: &Record, flags: i32) -> bool {
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the address and length are those of `record`.
    unsafe { libc::send(fd, std::ptr::from_ref(record).cast(), RECORD, flags) == RECORD as isize }
}

fn socket() -> RawFd {
    // SAFETY: integers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    fd
}

fn raw(addr: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: zeros are a valid sockaddr_in.
    let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    raw.sin_family = libc::AF_INET as u16;
    raw.sin_port = addr.port().to_be();
    raw.sin_addr.s_addr = u32::from_ne_bytes(addr.ip().octets());
    raw
}

const ADDR_LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

/// Binds a socket to a free port of 127.0.0.`last`.
fn bind(fd: RawFd, last: u8) -> SocketAddrV4 {
    let ip = Ipv4Addr::new(127, 0, 0, last);
    let (mut addr, mut len) = (raw(SocketAddrV4::new(ip, 0)), ADDR_LEN);
    // SAFETY: `addr` is a valid sockaddr_in of `len` bytes.
    let bound = unsafe {
        libc::bind(fd, (&raw const addr).cast(), len) == 0
            && libc::getsockname(fd, (&raw mut addr).cast(), &raw mut len) == 0
    };
    assert!(bound, "{}", std::io::Error::last_os_error());
    SocketAddrV4::new(ip, u16::from_be(addr.sin_port))
}

fn connect_to(fd: RawFd, addr: SocketAddrV4) -> bool {
    let addr = raw(addr);
    // SAFETY: `addr` is a valid sockaddr_in of this length.
    unsafe { libc::connect(fd, (&raw const addr).cast(), ADDR_LEN) == 0 }
}
