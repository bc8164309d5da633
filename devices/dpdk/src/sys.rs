//! Bindings of the C functions in `shim/shim.h`, and conversion of mbufs to packets.
//!
//! Memory layout of our mbufs:
//!
//! ```text
//!   struct rte_mbuf 128 │ private bytes 64 │ headroom 128 │ room for a frame
//!                       └── frame of a packet: its bytes begin at Pool::HEADROOM, 192 ──┘
//! ```
//!
//! SAFETY of all calls of these C functions:
//! - The functions of a queue are called by one thread at a time, because the receiver and sender
//!   take `&mut`.
//! - [`crate::open()`] calls the functions that set up a port once, before queues exist.
//! - `Drop` of the port calls the functions that close it, after all queues were dropped.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use towpath_pool::{Checksum, Meta, Owner, Packet, Pool};

/// Maximum number of frames received or sent per call of the driver.
pub const BURST: usize = 32;
/// Length in bytes of the private area before an mbuf's headroom: `TWP_PRIVATE` in `shim/`.
const PRIVATE: usize = 64;
/// Size of `struct rte_mbuf` in bytes. A static assertion in `shim/` checks it.
const MBUF_LEN: usize = 128;
/// RTE_PKTMBUF_HEADROOM in bytes. A static assertion in `shim/` checks it.
const HEADROOM: usize = 128;
const _: () = assert!(PRIVATE + HEADROOM == Pool::HEADROOM, "a received frame begins there");
/// Maximum number of counters that are read from the driver.
const COUNTERS_MAX: usize = 512;

/// Properties of a port: `struct twp_info` in `shim/shim.h`.
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

/// A received mbuf and its metadata: `struct twp_in` in `shim/shim.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct In {
    mbuf: *mut c_void,
    len: u32,
    hash: u32,
    vlan: u16,
    state: u16,
}

/// Flags in the field `state` of [`In`].
const PLAIN: u16 = 1;
const VERIFIED: u16 = 2;
const TAGGED: u16 = 4;

/// An mbuf to send, and the offloads requested from the device: `struct twp_out` in `shim/shim.h`.
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

/// Flags in the field `work` of [`Out`]: offloads requested from the device.
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

/// Initializes DPDK's environment abstraction layer (EAL).
pub(crate) fn init(words: &[CString], logs: bool, keeps_files: bool) -> io::Result<()> {
    // Leak the arguments, because EAL modifies the list and keeps pointers to the words.
    let mut list: Vec<_> = words.iter().map(|word| word.clone().into_raw()).collect();
    list.push(std::ptr::null_mut());
    let list = list.leak();
    // SAFETY: `list` has the form of a C program's arguments: pointers to strings, terminated by a
    // null pointer.
    checked(unsafe {
        twp_init(words.len() as c_int, list.as_mut_ptr(), logs.into(), keeps_files.into())
    })
}

/// Sets close-on-exec on the descriptors opened by EAL and drivers since [`init`]. Otherwise
/// programs started by this process would inherit them and keep the device open.
pub(crate) fn keep_from_programs() {
    // SAFETY: the function only reads the descriptor table and changes flags of these descriptors.
    unsafe { twp_keep_from_programs() };
}

/// Returns the last lines of the log of DPDK's environment abstraction layer (EAL) and its drivers.
pub(crate) fn log() -> String {
    let mut bytes = vec![0; 16384];
    // SAFETY: the buffer has the given length.
    let len = unsafe { twp_log(bytes.as_mut_ptr(), bytes.len() as u32) };
    bytes.truncate(len as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the first DPDK port (`None` if there is none), and the number of ports.
pub(crate) fn ports() -> (Option<u16>, usize) {
    let mut ids = [0; 1];
    // SAFETY: the array has room for one port, the maximum that is passed.
    let count = unsafe { twp_ports(ids.as_mut_ptr(), 1) } as usize;
    ((count > 0).then_some(ids[0]), count)
}

impl RawInfo {
    /// Returns the properties of a port as reported by its driver.
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
        // SAFETY: `info` has the layout of `struct twp_info`.
        checked(unsafe { twp_info(port, &raw mut info) })?;
        Ok(info)
    }

    pub fn driver(&self) -> String {
        text(&self.driver)
    }

    pub fn name(&self) -> String {
        text(&self.name)
    }

    /// Returns the name of the kernel interface on which the port is based, if any.
    pub fn interface(&self) -> Option<String> {
        Some(text(&self.interface)).filter(|name| !name.is_empty())
    }
}

/// Options for starting a DPDK port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortStart {
    pub queues: u16,
    /// MTU of the port in bytes.
    pub mtu: u32,
    /// Whether the MTU must be set in the driver.
    pub sets_mtu: bool,
    /// Whether to enable the reception of all multicast frames.
    pub wants_groups: bool,
}

/// A DPDK port that was started. The port is closed when its last queue is dropped.
#[derive(Debug)]
pub(crate) struct RunningPort {
    port: u16,
}

/// DPDK's pool of mbufs for one queue. Never freed, because packets may still refer to mbufs when
/// the port is closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mbufs {
    pool: NonNull<c_void>,
    /// Length in bytes of an mbuf's memory for a frame, including the headroom.
    frame_len: usize,
}

// SAFETY: DPDK allows all threads to use an rte_mempool concurrently.
unsafe impl Send for Mbufs {}

impl RunningPort {
    /// Configures and starts a port, with one pool of mbufs per queue. On error, returns the name
    /// of the failed step.
    pub fn start(port: u16, start: PortStart) -> Result<(Self, Vec<Mbufs>), (String, io::Error)> {
        let mut pools = vec![std::ptr::null_mut(); start.queues.into()];
        let (mut step, mut frame_len) = (c"".as_ptr(), 0);
        // SAFETY: `pools` has one entry per queue. The C function returns the step as a static
        // string.
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
            // SAFETY: the C function returned the step as a static string terminated by NUL.
            let step = unsafe { CStr::from_ptr(step) }.to_string_lossy().into_owned();
            return Err((step, error));
        }
        let frame_len = frame_len as usize;
        let of = |pool| Mbufs { pool: NonNull::new(pool).expect("made"), frame_len };
        Ok((Self { port }, pools.into_iter().map(of).collect()))
    }

    /// Returns the driver's counters of the port and its queues, by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut names = vec![[0; 64]; COUNTERS_MAX];
        let mut values = vec![0; COUNTERS_MAX];
        // SAFETY: both arrays have `COUNTERS_MAX` entries.
        let count = unsafe {
            twp_counters(self.port, names.as_mut_ptr(), values.as_mut_ptr(), COUNTERS_MAX as u32)
        };
        let named = names.iter().map(|name| text(name)).zip(values);
        named.take(count as usize).collect()
    }

    /// Returns a descriptor that is readable while the queue has received frames, if the driver
    /// supports it.
    pub fn wake_fd(&self, queue: u16) -> Option<BorrowedFd<'static>> {
        // SAFETY: `queue` is the number of a queue that was set up.
        let fd = unsafe { twp_wake_fd(self.port, queue) };
        // SAFETY: the driver closes the descriptor with the port, and each user of the descriptor
        // keeps the port open.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl Drop for RunningPort {
    fn drop(&mut self) {
        // SAFETY: each queue holds a reference to this port, so no queue is left when the port is
        // dropped.
        unsafe { twp_close(self.port) };
    }
}

/// Returns whether an interface with this name exists in the network namespace.
pub(crate) fn is_there(interface: &str) -> bool {
    // SAFETY: the name is a null-terminated string.
    CString::new(interface).is_ok_and(|name| unsafe { twp_is_there(name.as_ptr()) } != 0)
}

/// Sets an interface to promiscuous mode until the returned descriptor is closed.
pub(crate) fn hold_promiscuous(interface: &str) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: the name is a null-terminated string.
    let fd = unsafe { twp_hold_promiscuous(name.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor is new and owned by the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Prepares the current thread for polling. Further calls have no effect.
pub(crate) fn enter_thread() {
    // SAFETY: EAL is initialized before a queue exists.
    unsafe { twp_enter_thread() };
}

/// An exclusively owned mbuf with a single segment, from the mbuf pool of a [`RunningPort`].
struct Mbuf(NonNull<c_void>);

impl Mbuf {
    /// Returns the mbuf that contains the buffer `frame`. `frame` must come from
    /// [`Self::into_frame`].
    #[inline]
    fn around(frame: &'static mut [u8]) -> Self {
        let at = frame.as_mut_ptr();
        // SAFETY: the buffer directly follows its mbuf in memory; see `Mbuf::into_frame`.
        Self(unsafe { NonNull::new_unchecked(at.sub(MBUF_LEN).cast()) })
    }

    /// Converts the mbuf to its buffer. DPDK does not access the buffer until the mbuf is returned.
    #[inline]
    fn into_frame(self, len: usize) -> &'static mut [u8] {
        // SAFETY: the pool's elements have the layout described at the top of this file, `len` is
        // their length, and the memory is never freed. `self` was the only owner, and is consumed.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast::<u8>().add(MBUF_LEN), len) }
    }
}

impl In {
    /// Copies the metadata reported by the driver to `meta`.
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

/// A received frame in an mbuf. The caller must consume it by `into_packet`, `into_copy` or
/// `give_back`; otherwise the mbuf is lost.
pub(crate) struct ReceivedFrame<'a> {
    raw: &'a In,
    frame_len: usize,
}

impl ReceivedFrame<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        self.raw.len as usize
    }

    /// Returns whether the mbuf's buffer can be used as a packet without copying.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.raw.state & PLAIN != 0 && self.len() <= self.frame_len - Pool::HEADROOM
    }

    /// Converts the frame to a packet without copying. [`Self::is_plain`] must be true.
    #[inline]
    pub fn into_packet(self, owner: Owner) -> Packet {
        assert!(self.is_plain());
        let mbuf = Mbuf(NonNull::new(self.raw.mbuf).expect("an mbuf"));
        let mut packet = Packet::in_frame(mbuf.into_frame(self.frame_len), owner);
        packet.received(self.len());
        self.raw.describe(&mut packet.meta);
        packet
    }

    /// Copies the frame to a packet of `pool`, and returns the mbuf to DPDK.
    pub fn into_copy(self, pool: &mut Pool) -> Packet {
        let mut packet = pool.take(self.len());
        let room = packet.spare_mut();
        assert!(room.len() >= self.len());
        // SAFETY: the mbuf contains `len` bytes, and `room` is at least as long.
        unsafe { twp_read(self.raw.mbuf, self.raw.len, room.as_mut_ptr()) };
        packet.received(self.len());
        self.raw.describe(&mut packet.meta);
        self.give_back();
        packet
    }

    /// Frees the mbuf of a frame that is not needed.
    pub fn give_back(self) {
        let mut mbuf = self.raw.mbuf;
        // SAFETY: `self` was the only owner of the mbuf and is consumed, so it is freed once.
        unsafe { twp_free(&raw mut mbuf, 1) };
    }
}

/// Receiver of a queue of a DPDK port.
pub(crate) struct Receiver {
    port: u16,
    queue: u16,
    frame_len: usize,
    arrived: Box<[In; BURST]>,
}

// SAFETY: the pointers are to mbufs, which DPDK allows any thread to use and to free.
unsafe impl Send for Receiver {}

impl Receiver {
    pub fn new(running: &RunningPort, queue: u16, mbufs: Mbufs) -> Self {
        let none = In { mbuf: std::ptr::null_mut(), len: 0, hash: 0, vlan: 0, state: 0 };
        let (port, frame_len) = (running.port, mbufs.frame_len);
        Self { port, queue, frame_len, arrived: Box::new([none; BURST]) }
    }

    /// Receives up to `max` frames from the driver of the DPDK port.
    #[inline]
    pub fn receive(&mut self, max: usize) -> impl ExactSizeIterator<Item = ReceivedFrame<'_>> {
        let max = max.min(BURST) as u16;
        // SAFETY: only one thread uses the queue, because `self` is borrowed exclusively. `arrived`
        // has room for `BURST` frames.
        let count = unsafe { twp_rx(self.port, self.queue, self.arrived.as_mut_ptr(), max) };
        let frame_len = self.frame_len;
        // Each mbuf is returned to DPDK once, because the next call overwrites the entries.
        self.arrived[..count.into()].iter().map(move |raw| ReceivedFrame { raw, frame_len })
    }
}

/// Frees the mbufs whose packets were returned to the packet pool.
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
        // SAFETY: only `into_packet` creates frames with this owner, so each is an mbuf that a
        // queue of this port received. `take_frame` removed it from the pool, so it is freed once;
        // DPDK finds its mempool in the mbuf.
        unsafe { twp_free(mbufs.as_mut_ptr(), count as u32) };
        if count < BURST {
            return;
        }
    }
}

/// Offloads requested from the driver for a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DriverWork {
    /// Flags of [`work`].
    pub bits: u8,
    pub l3_len: u16,
    pub l4_len: u16,
    /// Payload length of the segments in bytes.
    pub segment: u16,
}

/// Sender of a queue of a DPDK port.
pub(crate) struct QueueSender {
    port: u16,
    queue: u16,
    mbufs: Mbufs,
    /// Mbuf segments of the packets that the next driver call will send.
    pieces: Vec<Out>,
    /// Packets passed to the driver. The driver has not yet accepted those in the range `offered`.
    packets: [*mut c_void; BURST],
    offered: std::ops::Range<usize>,
    /// Number of packets whose segments are in `pieces`.
    staged: usize,
}

// SAFETY: the pointers are to mbufs, which DPDK allows any thread to use and to free.
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

    /// Returns the maximum number of packet bytes in an mbuf segment.
    pub fn piece_len(&self) -> usize {
        self.mbufs.frame_len - Pool::HEADROOM
    }

    /// Returns the number of packets that the driver did not accept, and that must be passed to it
    /// again.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.offered.len()
    }

    /// Returns whether another packet can be added to the next call of the driver.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.staged < BURST && self.offered.is_empty()
    }

    /// Adds a packet without copying if its bytes are in an mbuf of the port. Otherwise returns the
    /// packet as an error.
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

    /// Adds a copy of a packet of `len` bytes. `fill` copies bytes from a given offset on to an
    /// mbuf segment. Returns false if no mbufs are available.
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
        // SAFETY: the array has room for `count` mbufs.
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

    /// Passes the added packets, and those not accepted previously, to the driver. Returns the
    /// number of accepted packets.
    pub fn send(&mut self) -> usize {
        if self.staged > 0 {
            assert!(self.staged <= BURST && self.offered.is_empty(), "what waits is sent first");
            let count = self.pieces.len() as u16;
            // SAFETY: the segments are mbufs owned by this value. Together they form `staged`
            // packets, for which `packets` has room.
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
        // SAFETY: only one thread uses the queue, because `self` is borrowed exclusively. Accepted
        // packets are owned by the driver.
        let sent =
            unsafe { twp_tx(self.port, self.queue, waiting.as_mut_ptr(), waiting.len() as u16) };
        self.offered.start += usize::from(sent);
        sent.into()
    }
}

/// Maximum number of mbuf segments of a packet: 64 KiB in segments of 2048 bytes, with some margin.
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
            // SAFETY: the driver has not accepted these mbufs, so this value still owns them.
            unsafe { twp_free(waiting.as_mut_ptr(), waiting.len() as u32) };
        }
    }
}
