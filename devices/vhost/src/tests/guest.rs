//! A front end and the driver of its guest, for tests.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use towpath_pool::{Batch, Packet, Pool, Port};
use towpath_shm::Mapping;

use crate::{QUEUES, RX, RegionSpec, TX, VhostEvent, VhostPort};

/// Entries of each virtqueue.
pub(super) const SIZE: u16 = 64;
/// Guest memory: its length, and its addresses for the guest and the front end.
pub(super) const MEMORY: usize = 4 << 20;
pub(super) const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Places of a virtqueue's parts, from its beginning on.
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
const QUEUE_LEN: usize = 0x4000;
/// Place of the first buffer.
pub(super) const BUFFERS: usize = 0x10000;
/// Flags of descriptors.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;

pub(super) const MERGEABLE: u64 = 1 << 15;
pub(super) const EVENT_INDEX: u64 = 1 << 29;
pub(super) const PROTOCOL: u64 = 1 << 30;
pub(super) const VERSION_1: u64 = 1 << 32;
/// Checksums and TCP segments that the guest completes: GUEST_CSUM, GUEST_TSO4, GUEST_TSO6.
pub(super) const GUEST_OFFLOADS: u64 = 1 << 1 | 1 << 7 | 1 << 8;

/// A private folder with a port.
pub(super) struct TestHost {
    pub(super) port: VhostPort,
    pub(super) pool: Pool,
    pub(super) events: Arc<Mutex<Vec<VhostEvent>>>,
    pub(super) now_ns: u64,
    folder: PathBuf,
}

impl TestHost {
    pub(super) fn new(test: &str) -> Self {
        let name = format!("towpath-vhost-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let events = Arc::<Mutex<Vec<VhostEvent>>>::default();
        let of_port = Arc::clone(&events);
        let tell = move |event| of_port.lock().expect("no panic").push(event);
        let port = VhostPort::open(&folder.join("vm"), tell).expect("a socket");
        Self { port, pool: Pool::default(), events, now_ns: 1, folder }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("vm")
    }

    /// Receives frames if the port's descriptor is readable, as an engine that has slept.
    pub(super) fn recv(&mut self) -> Vec<Packet> {
        self.port.looked(is_ready(self.port.wake_fd().expect("a descriptor")));
        let mut batch = Batch::new();
        let count = self.port.poll(self.now_ns, &mut self.pool, &mut batch, 64);
        assert_eq!(count, batch.len());
        batch.into()
    }

    pub(super) fn send(&mut self, frames: impl IntoIterator<Item = Packet>) -> Batch {
        let mut batch = frames.into_iter().collect();
        self.port.submit(self.now_ns, &mut self.pool, &mut batch);
        batch
    }

    pub(super) fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.pool.take(bytes.len());
        packet.push_back(bytes.len()).expect("room").copy_from_slice(bytes);
        packet
    }

    pub(super) fn told(&self) -> Vec<String> {
        let events = self.events.lock().expect("no panic");
        events.iter().map(|event| format!("{event:?}")).collect()
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn is_ready(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("open") == 1
}

/// A front end with a guest that has one pair of virtqueues.
pub(super) struct TestGuest {
    pub(super) socket: UnixStream,
    pub(super) memory: Mapping,
    kicks: [OwnedFd; QUEUES],
    calls: [OwnedFd; QUEUES],
    pub(super) errors: [OwnedFd; QUEUES],
    features: u64,
    available: [u16; QUEUES],
    used: [u16; QUEUES],
    /// Next free descriptor of each virtqueue. Descriptors are used in turn.
    descriptor: [u16; QUEUES],
}

fn events() -> [OwnedFd; QUEUES] {
    [(); QUEUES]
        .map(|()| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"))
}

impl TestGuest {
    /// Connects, and starts the device with the given features.
    pub(super) fn start(host: &mut TestHost, features: u64) -> Self {
        let mut guest = Self::connect(&host.socket());
        guest.negotiate(host, features);
        guest.run(host);
        guest
    }

    pub(super) fn connect(path: &Path) -> Self {
        Self {
            socket: UnixStream::connect(path).expect("a listener"),
            memory: Mapping::shared("guest", MEMORY).expect("memory"),
            kicks: events(),
            calls: events(),
            errors: events(),
            features: 0,
            available: [0; QUEUES],
            used: [0; QUEUES],
            descriptor: [0; QUEUES],
        }
    }

    /// Returns the single region of the guest's memory.
    pub(super) fn region() -> RegionSpec {
        RegionSpec { guest: GUEST, len: MEMORY as u64, user: USER, offset: 0 }
    }

    pub(super) fn negotiate(&mut self, host: &mut TestHost, features: u64) {
        let features = features | PROTOCOL;
        self.features = features;
        host.recv();
        let offered = self.ask(host, 1, &[]);
        assert_eq!(offered & features, features, "{offered:#x}");
        assert_eq!(offered >> 26 & 1, 0, "live migration (VHOST_F_LOG_ALL)");
        let protocol = self.ask(host, 15, &[]);
        self.request(16, &[protocol], &[]);
        assert_eq!(self.ask(host, 17, &[]), 1);
        self.request(3, &[], &[]);
        self.request(2, &[features], &[]);
        let file = self.memory.file().expect("shared").try_clone().expect("a descriptor");
        let RegionSpec { guest, len, user, offset } = Self::region();
        assert_eq!(self.ask_acknowledged(host, 5, &[1, guest, len, user, offset], &[file]), 0);
    }

    /// Starts both virtqueues, as after a start of the guest.
    pub(super) fn run(&mut self, host: &mut TestHost) {
        for queue in [RX, TX] {
            self.memory.write(queue * QUEUE_LEN, &[0; QUEUE_LEN]);
            (self.available[queue], self.used[queue]) = (0, 0);
            self.start_queue(queue, 0);
        }
        host.recv();
    }

    pub(super) fn start_queue(&mut self, queue: usize, base: u16) {
        let (number, start) = (queue as u64, USER + (queue * QUEUE_LEN) as u64);
        self.request(8, &[number | u64::from(SIZE) << 32], &[]);
        self.request(10, &[number | u64::from(base) << 32], &[]);
        self.request(9, &[number, start, start + USED as u64, start + AVAILABLE as u64, 0], &[]);
        let clone = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
        self.request(13, &[number], &[clone(&self.calls[queue])]);
        self.request(14, &[number], &[clone(&self.errors[queue])]);
        self.request(12, &[number], &[clone(&self.kicks[queue])]);
        self.request(18, &[number | 1 << 32], &[]);
    }

    pub(super) fn request(&self, number: u32, payload: &[u64], fds: &[OwnedFd]) {
        self.send(number, 1, payload, fds);
    }

    fn send(&self, number: u32, flags: u32, payload: &[u64], fds: &[OwnedFd]) {
        let header = [number, flags, payload.len() as u32 * 8];
        let header = header.iter().flat_map(|word| word.to_ne_bytes());
        let bytes: Vec<u8> =
            header.chain(payload.iter().flat_map(|word| word.to_ne_bytes())).collect();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let parts = [IoSlice::new(&bytes)];
        sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL).expect("a back end");
    }

    pub(super) fn ask(&self, host: &mut TestHost, number: u32, payload: &[u64]) -> u64 {
        self.request(number, payload, &[]);
        host.recv();
        self.answer(number)
    }

    pub(super) fn ask_acknowledged(
        &self,
        host: &mut TestHost,
        number: u32,
        payload: &[u64],
        fds: &[OwnedFd],
    ) -> u64 {
        self.send(number, 1 | 8, payload, fds);
        host.recv();
        self.answer(number)
    }

    fn answer(&self, number: u32) -> u64 {
        let mut bytes = [0; 20];
        (&self.socket).read_exact(&mut bytes).expect("an answer");
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        assert_eq!((word(0), word(4), word(8)), (number, 1 | 4, 8));
        u64::from(word(12)) | u64::from(word(16)) << 32
    }

    /// Returns whether the back end has closed the connection.
    pub(super) fn is_hung_up(&self) -> bool {
        (&self.socket).read(&mut [0; 64]).is_ok_and(|len| len == 0)
    }

    /// Makes a chain available, and notifies the device if it wants that. The pieces are offsets
    /// and lengths in the guest's memory.
    pub(super) fn post(&mut self, queue: usize, pieces: &[(usize, usize)]) -> u16 {
        let flags = if queue == RX { WRITE } else { 0 };
        let head = self.descriptor[queue];
        for (n, &(at, len)) in pieces.iter().enumerate() {
            let index = (head + n as u16) % SIZE;
            let next = if n + 1 < pieces.len() { NEXT } else { 0 };
            let fields = (GUEST + at as u64, len as u32, flags | next, (index + 1) % SIZE);
            self.describe(queue, index, fields);
        }
        self.descriptor[queue] = (head + pieces.len() as u16) % SIZE;
        self.make_available(queue, head);
        head
    }

    /// Writes a descriptor: address, length, flags, next.
    pub(super) fn describe(&self, queue: usize, index: u16, fields: (u64, u32, u16, u16)) {
        let at = queue * QUEUE_LEN + usize::from(index) * 16;
        self.memory.write(at, &fields.0.to_le_bytes());
        self.memory.write(at + 8, &fields.1.to_le_bytes());
        self.memory.write(at + 12, &fields.2.to_le_bytes());
        self.memory.write(at + 14, &fields.3.to_le_bytes());
    }

    pub(super) fn make_available(&mut self, queue: usize, head: u16) {
        let start = queue * QUEUE_LEN;
        let old = self.available[queue];
        let slot = usize::from(old % SIZE);
        self.memory.write(start + AVAILABLE + 4 + slot * 2, &head.to_le_bytes());
        let new = old.wrapping_add(1);
        self.available[queue] = new;
        self.set_available(queue, new);
        std::sync::atomic::fence(SeqCst);
        let wants = if self.features & EVENT_INDEX != 0 {
            let event = self.memory.u16(start + USED + 4 + usize::from(SIZE) * 8).load(Acquire);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.memory.u16(start + USED).load(Acquire) & 1 == 0
        };
        if wants {
            rustix::io::write(&self.kicks[queue], &1u64.to_ne_bytes()).expect("an eventfd");
        }
    }

    /// Writes the driver's index of the available ring.
    pub(super) fn set_available(&self, queue: usize, index: u16) {
        self.memory.u16(queue * QUEUE_LEN + AVAILABLE + 2).store(index, Release);
    }

    /// Asks for an interrupt when the device has returned `count` more chains.
    pub(super) fn want_interrupt_after(&self, queue: usize, count: u16) {
        let at = queue * QUEUE_LEN + AVAILABLE + 4 + usize::from(SIZE) * 2;
        self.memory.u16(at).store(self.used[queue].wrapping_add(count - 1), Release);
    }

    /// Returns the number of interrupts since the last call.
    pub(super) fn interrupts(&self, queue: usize) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(&self.calls[queue], &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    /// Takes the chains that the device has returned: their heads and lengths.
    pub(super) fn take_used(&mut self, queue: usize) -> Vec<(u16, usize)> {
        let start = queue * QUEUE_LEN + USED;
        let index = self.memory.u16(start + 2).load(Acquire);
        let mut all = Vec::new();
        while self.used[queue] != index {
            let at = start + 4 + usize::from(self.used[queue] % SIZE) * 8;
            let word = |at: usize| self.memory.u32(at).load(Acquire);
            all.push((word(at) as u16, word(at + 4) as usize));
            self.used[queue] = self.used[queue].wrapping_add(1);
        }
        all
    }

    /// Sends a frame, whose buffer is the memory from `at` on.
    pub(super) fn transmit(&mut self, at: usize, header: &[u8], frame: &[u8]) {
        self.memory.write(at, header);
        self.memory.write(at + header.len(), frame);
        self.post(TX, &[(at, header.len()), (at + header.len(), frame.len())]);
    }

    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes);
        bytes
    }
}
