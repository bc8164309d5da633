//! Stacks with one port, for tests.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_pool::{Batch, Packet, Pool, Port};

use crate::{MemifOptions, MemifPort, OpenError};

/// Private folder, removed at the end of a test.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(test: &str) -> Self {
        let name = format!("towpath-memif-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.0.join("link")
    }

    pub(super) fn options(&self, more: &str) -> String {
        format!("{}{more}", self.socket().display())
    }

    /// Opens a server and a client with the same options, and connects them.
    pub(super) fn pair(&self, more: &str) -> (TestEnd, TestEnd) {
        let mut server = TestEnd::open(&self.options(more));
        let mut client = TestEnd::open(&self.options(more));
        client.connect_to(&mut server);
        (server, client)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) struct TestEnd {
    pub(super) port: MemifPort,
    pub(super) now_ns: u64,
    pool: Pool,
    out: Batch,
    events: Arc<Mutex<Vec<String>>>,
    /// Notifications that were counted before the current round.
    interrupts: u64,
}

impl TestEnd {
    pub(super) fn open(options: &str) -> Self {
        Self::try_open(options).expect("a link")
    }

    pub(super) fn try_open(options: &str) -> Result<Self, OpenError> {
        let options: MemifOptions = options.parse().expect("valid options");
        let events = Arc::<Mutex<Vec<String>>>::default();
        let of_port = Arc::clone(&events);
        let tell = move |event: crate::MemifEvent| {
            of_port.lock().expect("no panic").push(event.to_string());
        };
        let port = MemifPort::open(options, tell)?;
        let (pool, out) = (Pool::default(), Batch::new());
        Ok(Self { port, now_ns: 0, pool, out, events, interrupts: 0 })
    }

    pub(super) fn connect_to(&mut self, server: &mut Self) {
        for _ in 0..20 {
            server.recv();
            self.recv();
        }
        assert!(self.port.is_connected() && server.port.is_connected());
    }

    pub(super) fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.pool.take(bytes.len());
        packet.push_back(bytes.len()).expect("room").copy_from_slice(bytes);
        packet
    }

    /// Offers frames after those that were refused before, and returns the number taken.
    pub(super) fn send(&mut self, frames: impl IntoIterator<Item = Packet>) -> usize {
        self.out.extend(frames);
        self.port.submit(self.now_ns, &mut self.pool, &mut self.out)
    }

    /// Drops the frames that were refused.
    pub(super) fn discard(&mut self) {
        self.out.clear();
    }

    /// Receives frames in a turn of its own, half a second after the last one.
    pub(super) fn recv(&mut self) -> Vec<Vec<u8>> {
        self.now_ns += 500_000_000;
        self.recv_at_most(64)
    }

    pub(super) fn recv_at_most(&mut self, max: usize) -> Vec<Vec<u8>> {
        let is_woken = self.is_woken();
        self.port.looked(is_woken);
        let mut batch = Batch::new();
        let count = self.port.poll(self.now_ns, &mut self.pool, &mut batch, max);
        assert_eq!(count, batch.len());
        let frames = batch.drain(..).map(|packet| {
            assert_eq!(packet.meta.arrival_ns, self.now_ns);
            let bytes = packet.linear().to_vec();
            self.pool.give(packet);
            bytes
        });
        frames.collect()
    }

    pub(super) fn is_woken(&self) -> bool {
        let fd = self.port.wake_fd().expect("an epoll descriptor");
        is_readable(fd)
    }

    pub(super) fn told(&self) -> Vec<String> {
        self.events.lock().expect("no panic").clone()
    }

    /// Returns the number of notifications since the last call.
    pub(super) fn take_interrupts(&mut self) -> u64 {
        let all = self.port.counters().interrupts;
        all - std::mem::replace(&mut self.interrupts, all)
    }
}

pub(super) fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("open") == 1
}

/// Sends frames of these lengths, and checks the received ones. Returns their number.
pub(super) fn exchange(from: &mut TestEnd, to: &mut TestEnd, lens: &[usize]) -> usize {
    let frame = |len: usize| (0..len).map(|n| (n * 7 + len) as u8).collect::<Vec<_>>();
    let packets: Vec<_> = lens.iter().map(|len| from.packet(&frame(*len))).collect();
    assert_eq!(from.send(packets), lens.len());
    let got = to.recv();
    for got in &got {
        assert!(lens.contains(&got.len()) && *got == frame(got.len()), "{} bytes", got.len());
    }
    got.len()
}
