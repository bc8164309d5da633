//! `shim/shim.h`, and frames that are mbufs.
//!
//! Memory of an mbuf of our pools:
//!
//! ```text
//!   struct rte_mbuf 128 │ private bytes 64 │ headroom 128 │ room for a frame
//!                       └── frame of a packet: its bytes begin at Pool::HEADROOM, 192 ──┘
//! ```
//!
//! SAFETY of all calls to the shim:
//! - DPDK's functions for a queue are called by one thread at a time: its halves take `&mut`.
//! - [`crate::open()`] calls those for a port once, before there are queues.
//! - `Drop` of the port calls the last ones, after its queues have gone.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use towpath_pool::{Checksum, Meta, Owner, Packet, Pool};

/// Most frames per call of a driver.
pub const BURST: usize = 32;
/// Bytes in front of the headroom, `TWP_PRIVATE`.
const PRIVATE: usize = 64;
/// Bytes of `struct rte_mbuf`, which the shim asserts.
const MBUF_LEN: usize = 128;
/// RTE_PKTMBUF_HEADROOM, which the shim asserts.
const HEADROOM: usize = 128;
const _: () = assert!(PRIVATE + HEADROOM == Pool::HEADROOM, "a received frame begins there");
/// Most counters of a port.
const COUNTERS_MAX: usize = 512;

/// `struct twp_info`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawInfo {
    driver: [c_char; 32],
    name: [c_char; 64],
    interface: [c_char; 32],
    pub interface_mtu: u32,
    pub mtu: u32,
    pub mtu_max: u32,
    pub queues_max: u16,
    pub mac: [u8; 6],
    pub can_checksum: u8,
    pub can_segment: u8,
}

/// `struct twp_in`.
#[derive(Clone, Copy)]
#[repr(C)]
struct In {
    mbuf: *mut c_void,
    len: u32,
    hash: u32,
    vlan: u16,
    state: u16,
}

/// Bits of `state`.
const PLAIN: u16 = 1;
const VERIFIED: u16 = 2;
const TAGGED: u16 = 4;

/// `struct twp_out`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Out {
    mbuf: *mut c_void,
    len: u32,
    data_off: u16,
    l3_len: u16,
    l4_len: u16,
    segment: u16,
    work: u8,
    goes_on: u8,
}

/// Bits of `work`.
pub(crate) mod work {
    pub const TCP: u8 = 1;
    pub const UDP: u8 = 2;
    pub const IPV6: u8 = 4;
    pub const SEGMENT: u8 = 8;
}

unsafe extern "C" {
    fn twp_init(argc: c_int, argv: *mut *mut c_char, logs: c_int, keeps_files: c_int) -> c_int;
    fn twp_keep_from_programs();
    fn twp_log(to: *mut u8, room: u32) -> u32;
    fn twp_ports(ids: *mut u16, max: u32) -> u32;
    fn twp_info(port: u16, info: *mut RawInfo) -> c_int;
    fn twp_start(
        port: u16,
        queues: u16,
        mtu: u32,
        sets_mtu: c_int,
        wants_groups: c_int,
        step: *mut *const c_char,
        pools: *mut *mut c_void,
        frame_len: *mut u32,
    ) -> c_int;
    fn twp_close(port: u16);
    fn twp_is_there(interface: *const c_char) -> c_int;
    fn twp_hold_promiscuous(interface: *const c_char) -> c_int;
    fn twp_wake_fd(port: u16, queue: u16) -> c_int;
    fn twp_enter_thread();
    fn twp_rx(port: u16, queue: u16, to: *mut In, max: u16) -> u16;
    fn twp_read(mbuf: *const c_void, len: u32, to: *mut u8);
    fn twp_alloc(pool: *mut c_void, mbufs: *mut *mut c_void, n: u32) -> c_int;
    fn twp_free(mbufs: *mut *mut c_void, n: u32);
    fn twp_chain(out: *const Out, n: u16, packets: *mut *mut c_void) -> u16;
    fn twp_tx(port: u16, queue: u16, packets: *mut *mut c_void, n: u16) -> u16;
    fn twp_counters(port: u16, names: *mut [c_char; 64], values: *mut u64, max: u32) -> u32;
}

fn checked(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result.abs())) }
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte.cast_unsigned()).collect();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Starts EAL.
pub(crate) fn init(words: &[CString], logs: bool, keeps_files: bool) -> io::Result<()> {
    // EAL moves pointers in the list and keeps some, so that the words stay for ever.
    let mut list: Vec<_> = words.iter().map(|word| word.clone().into_raw()).collect();
    list.push(std::ptr::null_mut());
    let list = list.leak();
    // SAFETY: a list of words with a null pointer at its end, as main gets it.
    checked(unsafe {
        twp_init(words.len() as c_int, list.as_mut_ptr(), logs.into(), keeps_files.into())
    })
}

/// Has descriptors that EAL and drivers opened since [`init`] end with an exec: programs that this
/// process starts would keep the device.
pub(crate) fn keep_from_programs() {
    // SAFETY: it reads the table of descriptors, and changes flags of those alone.
    unsafe { twp_keep_from_programs() };
}

/// The newest lines that EAL and its drivers have logged.
pub(crate) fn log() -> String {
    let mut bytes = vec![0; 16384];
    // SAFETY: room for so many bytes.
    let len = unsafe { twp_log(bytes.as_mut_ptr(), bytes.len() as u32) };
    bytes.truncate(len as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ports that EAL found, the first of them, and how many there are.
pub(crate) fn ports() -> (Option<u16>, usize) {
    let mut ids = [0; 1];
    // SAFETY: room for one.
    let count = unsafe { twp_ports(ids.as_mut_ptr(), 1) } as usize;
    ((count > 0).then_some(ids[0]), count)
}

impl RawInfo {
    /// A port, as its driver describes it.
    pub fn of(port: u16) -> io::Result<Self> {
        let mut info = Self {
            driver: [0; 32],
            name: [0; 64],
            interface: [0; 32],
            interface_mtu: 0,
            mtu: 0,
            mtu_max: 0,
            queues_max: 0,
            mac: [0; 6],
            can_checksum: 0,
            can_segment: 0,
        };
        // SAFETY: room for one.
        checked(unsafe { twp_info(port, &raw mut info) })?;
        Ok(info)
    }

    pub fn driver(&self) -> String {
        text(&self.driver)
    }

    pub fn name(&self) -> String {
        text(&self.name)
    }

    /// The interface of the kernel below; None: the port has none.
    pub fn interface(&self) -> Option<String> {
        Some(text(&self.interface)).filter(|name| !name.is_empty())
    }
}

/// How a port is taken into service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortStart {
    pub queues: u16,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// The driver is told the MTU.
    pub sets_mtu: bool,
    /// The driver is asked for frames to all groups.
    pub wants_groups: bool,
}

/// A port in service, which is closed when the last of its queues is dropped.
#[derive(Debug)]
pub(crate) struct RunningPort {
    port: u16,
}

/// Pool of mbufs; it stays, because frames of it do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mbufs {
    pool: NonNull<c_void>,
    /// Bytes of a frame, headroom included.
    frame_len: usize,
}

// SAFETY: rte_mempool may be used by all threads at once.
unsafe impl Send for Mbufs {}

impl RunningPort {
    /// Configures a port and starts it, with a pool of mbufs for each queue. Err: with the step.
    pub fn start(port: u16, start: PortStart) -> Result<(Self, Vec<Mbufs>), (String, io::Error)> {
        let mut pools = vec![std::ptr::null_mut(); start.queues.into()];
        let (mut step, mut frame_len) = (c"".as_ptr(), 0);
        // SAFETY: room for a pool of each queue; the step is a string of the shim's that stays.
        let result = unsafe {
            twp_start(
                port,
                start.queues,
                start.mtu,
                start.sets_mtu.into(),
                start.wants_groups.into(),
                &raw mut step,
                pools.as_mut_ptr(),
                &raw mut frame_len,
            )
        };
        if let Err(error) = checked(result) {
            // SAFETY: as said.
            let step = unsafe { CStr::from_ptr(step) }.to_string_lossy().into_owned();
            return Err((step, error));
        }
        let frame_len = frame_len as usize;
        let of = |pool| Mbufs { pool: NonNull::new(pool).expect("made"), frame_len };
        Ok((Self { port }, pools.into_iter().map(of).collect()))
    }

    /// Counters of the port and of its queues, by the names that the driver gives them.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut names = vec![[0; 64]; COUNTERS_MAX];
        let mut values = vec![0; COUNTERS_MAX];
        // SAFETY: room for so many.
        let count = unsafe {
            twp_counters(self.port, names.as_mut_ptr(), values.as_mut_ptr(), COUNTERS_MAX as u32)
        };
        let named = names.iter().map(|name| text(name)).zip(values);
        named.take(count as usize).collect()
    }

    /// A descriptor that is readable while the queue has frames; None: the driver has none.
    pub fn wake_fd(&self, queue: u16) -> Option<BorrowedFd<'static>> {
        // SAFETY: a number of a queue that was set up.
        let fd = unsafe { twp_wake_fd(self.port, queue) };
        // SAFETY: the driver closes it with the port, and what has it has a share of that.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl Drop for RunningPort {
    fn drop(&mut self) {
        // SAFETY: each queue has a share of this, and none is left.
        unsafe { twp_close(self.port) };
    }
}

/// Whether the network namespace has an interface of this name.
pub(crate) fn is_there(interface: &str) -> bool {
    // SAFETY: a string.
    CString::new(interface).is_ok_and(|name| unsafe { twp_is_there(name.as_ptr()) } != 0)
}

/// Puts an interface into promiscuous mode, until the result is closed.
pub(crate) fn hold_promiscuous(interface: &str) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: a string.
    let fd = unsafe { twp_hold_promiscuous(name.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: it was opened for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Prepares a thread that polls; a second call changes nothing.
pub(crate) fn enter_thread() {
    // SAFETY: EAL was started.
    unsafe { twp_enter_thread() };
}

/// An mbuf of ours with one piece, and nobody else's.
struct Mbuf(NonNull<c_void>);

impl Mbuf {
    /// The mbuf around a frame of a packet of `Frames`.
    #[inline]
    fn around(frame: &'static mut [u8]) -> Self {
        let at = frame.as_mut_ptr();
        // SAFETY: a frame of ours lies behind its mbuf; see `Mbuf::into_frame`.
        Self(unsafe { NonNull::new_unchecked(at.sub(MBUF_LEN).cast()) })
    }

    /// Its buffer, of which DPDK reads and writes nothing until the mbuf is given back.
    #[inline]
    fn into_frame(self, len: usize) -> &'static mut [u8] {
        // SAFETY: the pool's elements are laid out as the head of this file says, `len` is theirs,
        // and its memory stays. `self` was the only owner, and is gone.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast::<u8>().add(MBUF_LEN), len) }
    }
}

impl In {
    /// Writes down what the driver knows.
    #[inline]
    fn describe(&self, meta: &mut Meta) {
        meta.hash = self.hash;
        if self.state & (VERIFIED | TAGGED) != 0 {
            meta.vlan = (self.state & TAGGED != 0).then_some(self.vlan);
            if self.state & VERIFIED != 0 {
                meta.checksum = Checksum::Verified;
            }
        }
    }
}

/// A received frame, which one of its last three methods takes.
pub(crate) struct ReceivedFrame<'a> {
    raw: &'a In,
    frame_len: usize,
}

impl ReceivedFrame<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        self.raw.len as usize
    }

    /// Whether the mbuf can be the frame of a packet.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.raw.state & PLAIN != 0 && self.len() <= self.frame_len - Pool::HEADROOM
    }

    /// Makes the frame, which is plain, a packet without a copy.
    #[inline]
    pub fn into_packet(self, owner: Owner) -> Packet {
        assert!(self.is_plain());
        let mbuf = Mbuf(NonNull::new(self.raw.mbuf).expect("an mbuf"));
        let mut packet = Packet::in_frame(mbuf.into_frame(self.frame_len), owner);
        packet.received(self.len());
        self.raw.describe(&mut packet.meta);
        packet
    }

    /// Copies the frame into a packet of the pool's, and gives the mbuf back.
    pub fn into_copy(self, pool: &mut Pool) -> Packet {
        let mut packet = pool.take(self.len());
        let room = packet.spare_mut();
        assert!(room.len() >= self.len());
        // SAFETY: so many bytes are in the mbuf, and there is room for them.
        unsafe { twp_read(self.raw.mbuf, self.raw.len, room.as_mut_ptr()) };
        packet.received(self.len());
        self.raw.describe(&mut packet.meta);
        self.give_back();
        packet
    }

    /// Gives the mbuf back.
    pub fn give_back(self) {
        let mut mbuf = self.raw.mbuf;
        // SAFETY: its only owner was `self`.
        unsafe { twp_free(&raw mut mbuf, 1) };
    }
}

/// The receiving half of a queue.
pub(crate) struct Receiver {
    port: u16,
    queue: u16,
    frame_len: usize,
    arrived: Box<[In; BURST]>,
}

// SAFETY: mbufs belong to nobody's thread.
unsafe impl Send for Receiver {}

impl Receiver {
    pub fn new(running: &RunningPort, queue: u16, mbufs: Mbufs) -> Self {
        let none = In { mbuf: std::ptr::null_mut(), len: 0, hash: 0, vlan: 0, state: 0 };
        let (port, frame_len) = (running.port, mbufs.frame_len);
        Self { port, queue, frame_len, arrived: Box::new([none; BURST]) }
    }

    /// Asks the driver for up to `max` frames.
    #[inline]
    pub fn receive(&mut self, max: usize) -> impl ExactSizeIterator<Item = ReceivedFrame<'_>> {
        let max = max.min(BURST) as u16;
        // SAFETY: see the head of the file; there is room for `BURST`.
        let count = unsafe { twp_rx(self.port, self.queue, self.arrived.as_mut_ptr(), max) };
        let frame_len = self.frame_len;
        // Each is given out once: the next call writes all of them anew.
        self.arrived[..count.into()].iter().map(move |raw| ReceivedFrame { raw, frame_len })
    }
}

/// Gives mbufs back whose packets came back to the pool.
pub(crate) fn reclaim(pool: &mut Pool, owner: Owner) {
    loop {
        let mut mbufs = [std::ptr::null_mut(); BURST];
        let mut count = 0;
        while count < BURST {
            let Some(frame) = pool.take_frame(owner) else { break };
            mbufs[count] = Mbuf::around(frame).0.as_ptr();
            count += 1;
        }
        if count == 0 {
            return;
        }
        // SAFETY: frames of the owner's number are mbufs of `into_packet`, of this queue or of
        // another one of the port; an mbuf knows its pool.
        unsafe { twp_free(mbufs.as_mut_ptr(), count as u32) };
        if count < BURST {
            return;
        }
    }
}

/// Work that is left to the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DriverWork {
    /// Bits of [`work`].
    pub bits: u8,
    pub l3_len: u16,
    pub l4_len: u16,
    /// Bytes of a segment.
    pub segment: u16,
}

/// The sending half of a queue.
pub(crate) struct QueueSender {
    port: u16,
    queue: u16,
    mbufs: Mbufs,
    /// Pieces of the packets of the next call.
    pieces: Vec<Out>,
    /// Packets that the driver has not taken.
    packets: [*mut c_void; BURST],
    offered: std::ops::Range<usize>,
    /// Packets whose pieces are in `pieces`.
    staged: usize,
}

// SAFETY: mbufs belong to nobody's thread.
unsafe impl Send for QueueSender {}

impl QueueSender {
    pub fn new(running: &RunningPort, queue: u16, mbufs: Mbufs) -> Self {
        Self {
            port: running.port,
            queue,
            mbufs,
            pieces: Vec::new(),
            packets: [std::ptr::null_mut(); BURST],
            offered: 0..0,
            staged: 0,
        }
    }

    /// Most bytes of a piece.
    pub fn piece_len(&self) -> usize {
        self.mbufs.frame_len - Pool::HEADROOM
    }

    /// Packets that the driver has not taken yet.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.offered.len()
    }

    /// Room for packets of the next call.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.staged < BURST && self.offered.is_empty()
    }

    /// Adds a packet whose bytes are in a frame of the port's, as it is. Err: other packets.
    #[inline]
    pub fn push_frame(
        &mut self,
        packet: Packet,
        owner: Owner,
        work: DriverWork,
    ) -> Result<(), Packet> {
        let (frame, range) = packet.into_frame(owner)?;
        let (data_off, len) = (range.start - PRIVATE.min(range.start), range.len() as u32);
        assert!(range.start >= PRIVATE, "headers fit into the headroom of an mbuf");
        let mbuf = Mbuf::around(frame).0.as_ptr();
        self.pieces.push(piece(mbuf, data_off as u16, len, work));
        self.staged += 1;
        Ok(())
    }

    /// Adds a copy of a packet, of which `fill` writes the bytes from a place on into a piece.
    /// False: there are no mbufs.
    pub fn push_copy(
        &mut self,
        len: usize,
        work: DriverWork,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> bool {
        let piece_len = self.piece_len();
        let count = len.div_ceil(piece_len).max(1);
        let mut mbufs = [std::ptr::null_mut(); PIECES_MAX];
        assert!(count <= PIECES_MAX, "a packet of {len} bytes");
        // SAFETY: room for `count`.
        let none = unsafe { twp_alloc(self.mbufs.pool.as_ptr(), mbufs.as_mut_ptr(), count as u32) };
        if none != 0 {
            return false;
        }
        let mut at = 0;
        for (n, &mbuf) in mbufs[..count].iter().enumerate() {
            let part = piece_len.min(len - at);
            let own = Mbuf(NonNull::new(mbuf).expect("an mbuf")).into_frame(self.mbufs.frame_len);
            fill(at, &mut own[Pool::HEADROOM..][..part]);
            at += part;
            let work = if n == 0 { work } else { DriverWork::default() };
            let mut piece = piece(mbuf, HEADROOM as u16, part as u32, work);
            piece.goes_on = u8::from(n + 1 < count);
            self.pieces.push(piece);
        }
        self.staged += 1;
        true
    }

    /// Offers the driver what was added, and what it did not take before. Returns how many packets
    /// it took.
    pub fn send(&mut self) -> usize {
        if self.staged > 0 {
            assert!(self.staged <= BURST && self.offered.is_empty(), "what waits is sent first");
            let count = self.pieces.len() as u16;
            // SAFETY: pieces are mbufs without another owner, of `staged` packets in all, and there
            // is room for those.
            let packets =
                unsafe { twp_chain(self.pieces.as_ptr(), count, self.packets.as_mut_ptr()) };
            self.offered = 0..packets.into();
            self.pieces.clear();
            self.staged = 0;
        }
        let waiting = &mut self.packets[self.offered.clone()];
        if waiting.is_empty() {
            return 0;
        }
        // SAFETY: see the head of the file; packets that it takes are the driver's.
        let sent =
            unsafe { twp_tx(self.port, self.queue, waiting.as_mut_ptr(), waiting.len() as u16) };
        self.offered.start += usize::from(sent);
        sent.into()
    }
}

/// Pieces of 2048 bytes in a packet of 64 KiB, and some to spare.
const PIECES_MAX: usize = 40;

#[inline]
fn piece(mbuf: *mut c_void, data_off: u16, len: u32, work: DriverWork) -> Out {
    let DriverWork { bits, l3_len, l4_len, segment } = work;
    Out { mbuf, len, data_off, l3_len, l4_len, segment, work: bits, goes_on: 0 }
}

impl Drop for QueueSender {
    fn drop(&mut self) {
        let waiting = &mut self.packets[self.offered.clone()];
        if !waiting.is_empty() {
            // SAFETY: the driver has not taken them.
            unsafe { twp_free(waiting.as_mut_ptr(), waiting.len() as u32) };
        }
    }
}
