use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_pool::{Batch, Pool, Port};

use crate::{BUFFER, FRAME_MAX, OpenError, StreamPort};

/// Private folder, removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("towpath-stream-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("link")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Stack with one port.
struct End {
    port: StreamPort,
    pool: Pool,
    out: Batch,
    now_ns: u64,
}

impl End {
    fn open(path: &Path) -> Self {
        let port = StreamPort::open(path).expect("a link");
        Self { port, pool: Pool::default(), out: Batch::new(), now_ns: 0 }
    }

    /// Offers frames after those that were refused before, and returns the number taken.
    fn send(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) -> usize {
        for frame in frames {
            let mut packet = self.pool.take(frame.len());
            packet.push_back(frame.len()).expect("room").copy_from_slice(&frame);
            self.out.push_back(packet);
        }
        self.port.submit(self.now_ns, &mut self.pool, &mut self.out)
    }

    fn recv(&mut self) -> Vec<Vec<u8>> {
        self.now_ns += 1_000_000_000;
        let mut batch = Batch::new();
        let count = self.port.poll(self.now_ns, &mut self.pool, &mut batch, 64);
        assert_eq!(count, batch.len());
        batch.iter().map(|packet| packet.linear().to_vec()).collect()
    }

    fn is_woken(&self) -> bool {
        let fd = self.port.wake_fd().expect("an epoll descriptor");
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("open") == 1
    }
}

#[test]
fn the_second_end_connects_to_the_first() {
    let folder = Folder::new("second");
    let (mut first, mut second) = (End::open(&folder.socket()), End::open(&folder.socket()));
    let mode = std::fs::metadata(folder.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(first.is_woken() && !second.is_woken());
    assert_eq!(second.send([vec![1; 60], vec![2; 1514]]), 2);
    assert_eq!(first.recv(), [vec![1; 60], vec![2; 1514]]);
    assert!(!first.is_woken());
    assert_eq!(first.send([vec![3; FRAME_MAX]]), 1);
    assert!(second.is_woken());
    assert_eq!(second.recv(), [vec![3; FRAME_MAX]]);
    assert_eq!((first.port.counters().rx_frames, first.port.counters().peers), (2, 1));
    assert_eq!(second.port.counters().tx_bytes, 60 + 1514);
}

#[test]
fn frames_are_in_the_format_of_qemu() {
    let folder = Folder::new("format");
    let mut end = End::open(&folder.socket());
    let mut qemu = UnixStream::connect(folder.socket()).expect("a listener");
    qemu.write_all(&[0, 0, 0, 3, 7, 8, 9, 0, 0]).expect("connected");
    assert_eq!(end.recv(), [[7, 8, 9]]);
    assert_eq!(end.port.next_timeout_ns(), None);
    qemu.write_all(&[0, 1, 5]).expect("connected");
    assert_eq!(end.recv(), [[5]]);
    end.send([vec![1, 2]]);
    let mut bytes = [0; 6];
    qemu.read_exact(&mut bytes).expect("a frame");
    assert_eq!(bytes, [0, 0, 0, 2, 1, 2]);
}

#[test]
fn frames_without_a_peer_are_dropped_and_counted() {
    let folder = Folder::new("nobody");
    let mut end = End::open(&folder.socket());
    assert_eq!(end.send([vec![1; 60], vec![2; 60]]), 2);
    assert_eq!(end.port.counters().tx_no_peer, 2);
}

#[test]
fn peers_leave_and_come_back() {
    let folder = Folder::new("back");
    let mut end = End::open(&folder.socket());
    for round in 1..=3 {
        let mut peer = UnixStream::connect(folder.socket()).expect("a listener");
        peer.write_all(&[0, 0, 0, 1, round]).expect("connected");
        assert_eq!(end.recv(), [[round]]);
        drop(peer);
        assert!(end.is_woken());
        assert!(end.recv().is_empty() && !end.is_woken());
        assert_eq!(end.port.counters().peers, u64::from(round));
    }
}

#[test]
fn a_second_peer_waits_until_the_first_leaves() {
    let folder = Folder::new("waits");
    let mut end = End::open(&folder.socket());
    let first = UnixStream::connect(folder.socket()).expect("a listener");
    end.recv();
    let mut second = UnixStream::connect(folder.socket()).expect("a queue");
    second.write_all(&[0, 0, 0, 1, 2]).expect("connected");
    assert!(end.recv().is_empty() && !end.is_woken());
    drop(first);
    assert!(end.recv().is_empty() && end.is_woken());
    assert_eq!(end.recv(), [[2]]);
}

#[test]
fn a_full_queue_of_peers_is_an_error() {
    let folder = Folder::new("queue");
    let _first = End::open(&folder.socket());
    let connect = || UnixStream::connect(folder.socket()).expect("a queue");
    let _waiting = [connect(), connect()];
    let error = StreamPort::open(&folder.socket()).expect_err("a full queue");
    assert!(matches!(error, OpenError::Busy(_)), "{error}");
}

#[test]
fn a_connecting_end_finds_its_peer_again() {
    let folder = Folder::new("again");
    let listener = UnixListener::bind(folder.socket()).expect("a path");
    let mut end = End::open(&folder.socket());
    drop((listener.accept().expect("a peer"), listener));
    assert!(end.is_woken() && end.recv().is_empty() && !end.is_woken());
    assert!(end.port.next_timeout_ns().is_some_and(|due_ns| due_ns > end.now_ns));
    std::fs::remove_file(folder.socket()).expect("a socket");
    let listener = UnixListener::bind(folder.socket()).expect("a path");
    assert!(end.recv().is_empty());
    assert_eq!(end.port.counters().peers, 2);
    let (mut peer, _) = listener.accept().expect("a peer");
    peer.write_all(&[0, 0, 0, 1, 9]).expect("connected");
    assert_eq!(end.recv(), [[9]]);
}

#[test]
fn an_impossible_length_ends_the_connection() {
    for len in [0, FRAME_MAX as u32 + 1, u32::MAX] {
        let folder = Folder::new(&format!("length-{len}"));
        let mut end = End::open(&folder.socket());
        let mut peer = UnixStream::connect(folder.socket()).expect("a listener");
        peer.write_all(&len.to_be_bytes()).expect("connected");
        assert!(end.recv().is_empty());
        assert_eq!(end.port.counters().rx_malformed, 1);
        assert_eq!(peer.read(&mut [0; 1]).expect("the end"), 0);
    }
}

#[test]
fn a_peer_that_reads_nothing_blocks_the_link_but_loses_nothing() {
    const COUNT: usize = 4 * BUFFER / 1000;
    let folder = Folder::new("full");
    let (mut first, mut second) = (End::open(&folder.socket()), End::open(&folder.socket()));
    first.recv();
    let frame = |n: usize| vec![n as u8; 1000];
    let mut taken = first.send((0..COUNT).map(frame));
    assert!(taken < COUNT && first.port.counters().tx_blocked == 1);
    assert!(first.port.blocked() && !first.is_woken());
    let mut wanted = 0;
    while wanted < COUNT {
        for got in second.recv() {
            assert_eq!(got, frame(wanted));
            wanted += 1;
        }
        if first.is_woken() {
            first.recv();
            taken += first.send([]);
        }
    }
    assert_eq!(taken, COUNT);
    first.recv();
    assert!(!first.port.blocked() && !first.is_woken());
}

#[test]
fn frames_that_are_too_long_are_dropped_and_counted() {
    let folder = Folder::new("long");
    let (_first, mut second) = (End::open(&folder.socket()), End::open(&folder.socket()));
    assert_eq!(second.send([vec![0; FRAME_MAX + 1], vec![1; 60]]), 2);
    let counters = second.port.counters();
    assert_eq!((counters.tx_too_long, counters.tx_frames), (1, 1));
}

#[test]
fn sockets_of_killed_processes_are_replaced_and_files_are_kept() {
    let folder = Folder::new("stale");
    drop(UnixListener::bind(folder.socket()).expect("a path"));
    let end = End::open(&folder.socket());
    drop(end);
    assert!(!folder.socket().exists());
    std::fs::write(folder.socket(), "text").expect("a file");
    let error = StreamPort::open(&folder.socket()).expect_err("a file");
    assert!(matches!(error, OpenError::NotASocket(_)), "{error}");
    assert!(folder.socket().exists());
}

#[test]
fn an_end_leaves_the_socket_of_a_successor() {
    let folder = Folder::new("successor");
    let end = End::open(&folder.socket());
    std::fs::remove_file(folder.socket()).expect("a socket");
    let _successor = End::open(&folder.socket());
    drop(end);
    assert!(folder.socket().exists());
}
