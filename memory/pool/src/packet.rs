//! Packets, batches of packets, and the pool of packet buffers.

use std::num::NonZeroU32;
use std::ops::Range;

use towpath_shm::Fragments;

/// A received or outgoing packet: a frame (Ethernet link) or an IP packet (IP link). With
/// [`Segmentation`], it has up to 64 KiB of payload.
#[derive(Debug)]
pub struct Packet {
    buffer: PacketBuffer,
    start: u32,
    end: u32,
    /// Payload after the linear part, stored in a socket's FIFO. The packet holds a reference to
    /// the FIFO's memory; see [`Packet::linearize`].
    pub tail: Fragments,
    /// Metadata of the packet; [`Pool::take`] returns a packet with default metadata.
    pub meta: Meta,
}

/// Memory of a packet. Both variants start with a pointer and a length, so reading the bytes needs
/// no distinction; only freeing does.
#[derive(Debug)]
enum PacketBuffer {
    /// A buffer of the pool.
    Pool(Box<[u8]>),
    /// A buffer of a device, with the number of the device.
    Frame(&'static mut [u8], Owner),
}

impl PacketBuffer {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Pool(bytes) => bytes,
            Self::Frame(bytes, _) => bytes,
        }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Pool(bytes) => bytes,
            Self::Frame(bytes, _) => bytes,
        }
    }
}

/// Number of a device that provides packet buffers; created by [`Pool::add_owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u32);

/// Metadata of a packet, exchanged between the stack and its devices.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meta {
    /// Time at which the device received the packet, in nanoseconds of the stack's monotonic clock;
    /// 0 for packets created on this host.
    pub arrival_ns: u64,
    /// State of the checksum in the transport header.
    pub checksum: Checksum,
    /// How the packet is to be split into segments, or was merged from them; `None` for a single
    /// segment.
    pub segmentation: Option<Segmentation>,
    /// TCI of the 802.1Q tag that the device removed or should insert, in host byte order. The
    /// upper three bits are the priority, the lower twelve the VLAN ID (IEEE 802.1Q §9.6).
    pub vlan: Option<u16>,
    /// Flow hash computed by the device; 0 if unknown. Do not rely on it, because an attacker can
    /// choose addresses and ports whose hashes collide.
    pub hash: u32,
    /// Number that identifies the sender of the packet on this host. Queues use it to limit packets
    /// per sender. `None` if the sender is not limited, and in received packets.
    pub sender: Option<NonZeroU32>,
}

impl Meta {
    /// Returns whether the checksum must be completed or the packet segmented, by a device or the
    /// stack. The offsets in the metadata may be chosen by an untrusted sender.
    #[inline]
    pub const fn has_offloads(&self) -> bool {
        self.segmentation.is_some() || matches!(self.checksum, Checksum::Partial { .. })
    }
}

/// State of the transport checksum of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Received packet: the checksum is not verified. Outgoing packet: it is complete.
    #[default]
    Unknown,
    /// Received packet: the checksum was verified by the device or a trusted sender.
    Verified,
    /// The checksum field contains only the folded sum of the pseudo-header.
    ///
    /// Outgoing packet: the port computes the checksum from `start` (an offset in the packet) to
    /// the end, and stores it at `start + offset`. Received packet: the sender is on this host and
    /// did not compute the checksum, so the packet counts as verified.
    Partial {
        /// Offset of the transport header in the packet, in bytes.
        start: u16,
        /// Offset of the checksum field in the transport header: 16 for TCP, 6 for UDP.
        offset: u16,
    },
}

/// How a packet is to be split into segments, or was merged from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// Protocol of the segments: TCP or UDP, and the IP version for TCP.
    pub protocol: Protocol,
    /// Transport payload per segment in bytes; the last segment may have less.
    pub size: u16,
    /// Length of all headers before the payload, in bytes from the start of the packet.
    pub header_len: u16,
}

impl Segmentation {
    /// Maximum number of segments of a received packet. The limit restricts the work that one frame
    /// can cause. Linux sends segments of at least 36 bytes (TCP_MIN_SND_MSS without timestamps),
    /// which are 1820 in 64 KiB.
    pub const PIECES_MAX: usize = 2048;

    /// Returns the number of segments of a packet of `len` bytes, headers included.
    #[inline]
    pub fn pieces(&self, len: usize) -> usize {
        let payload = len.saturating_sub(usize::from(self.header_len));
        payload.div_ceil(usize::from(self.size.max(1))).max(1)
    }
}

/// Protocol of a packet that is to be segmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 or IPv6 (UDP_SEGMENT).
    Udp,
}

impl Packet {
    /// Creates an empty packet in a buffer of a device. [`Pool::give`] keeps the buffer until the
    /// device takes it back by [`Pool::take_frame`]. The device writes received bytes to
    /// [`Packet::spare_mut`], or lets its hardware write them before it creates the packet.
    ///
    /// The buffer must be private memory of this process that stays mapped until the process ends.
    /// Do not use memory shared with a guest or another process, because they may change it while
    /// it is read.
    ///
    /// # Panics
    /// Panics if the buffer is not larger than [`Pool::HEADROOM`], the space that stays free at the
    /// front.
    #[inline]
    pub fn in_frame(frame: &'static mut [u8], owner: Owner) -> Self {
        assert!(frame.len() > Pool::HEADROOM, "a frame of {} bytes", frame.len());
        Self::new(PacketBuffer::Frame(frame, owner))
    }

    /// Returns the device buffer of a packet whose bytes are all in one buffer of `owner`, and the
    /// range of the bytes. The device can transmit from the buffer without a copy. The caller then
    /// owns the buffer.
    ///
    /// # Errors
    /// Returns the packet if some of its bytes are not in a buffer of `owner`.
    #[inline]
    pub fn into_frame(self, owner: Owner) -> Result<(&'static mut [u8], Range<usize>), Self> {
        match self.buffer {
            PacketBuffer::Frame(frame, number) if number == owner && self.tail.is_empty() => {
                Ok((frame, self.start as usize..self.end as usize))
            }
            _ => Err(self),
        }
    }

    #[inline]
    fn new(buffer: PacketBuffer) -> Self {
        let start = Pool::HEADROOM as u32;
        Self { buffer, start, end: start, tail: Fragments::empty(), meta: Meta::default() }
    }

    /// Returns the packet's length in bytes, including the tail.
    #[inline]
    pub fn len(&self) -> usize {
        self.linear().len() + self.tail.len() as usize
    }

    /// Returns whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes in the packet's own buffer: the headers, or the whole packet if
    /// [`Packet::tail`] is empty.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        &self.buffer.bytes()[self.start as usize..self.end as usize]
    }

    /// Returns the bytes in the packet's own buffer for modification.
    #[inline]
    pub fn linear_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.start as usize..self.end as usize]
    }

    /// Returns the number of free bytes before the linear part, the maximum for
    /// [`Packet::push_front`].
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// Returns the number of free bytes after the linear part, the maximum for
    /// [`Packet::push_back`] if the packet has no tail.
    pub fn tailroom(&self) -> usize {
        self.buffer.bytes().len() - self.end as usize
    }

    /// Extends the linear part by `n` bytes at the front, and returns these bytes, whose content is
    /// unspecified.
    ///
    /// # Panics
    /// Panics if there is not enough headroom. The pool reserves [`Pool::HEADROOM`] bytes, more
    /// than all headers need.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> &mut [u8] {
        self.start -= u32::try_from(n).expect("headers are short");
        let start = self.start as usize;
        &mut self.buffer.bytes_mut()[start..start + n]
    }

    /// Removes `n` bytes from the front of the linear part. Returns `None` if the linear part is
    /// shorter.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> Option<()> {
        if n > self.linear().len() {
            return None;
        }
        self.start += n as u32;
        Some(())
    }

    /// Extends the linear part by `n` bytes at the end, and returns these bytes, whose content is
    /// unspecified. Returns `None` if there is not enough space, or if the packet has a tail.
    pub fn push_back(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() || !self.tail.is_empty() {
            return None;
        }
        let end = self.end as usize;
        self.end += n as u32;
        Some(&mut self.buffer.bytes_mut()[end..end + n])
    }

    /// Truncates the packet to `len` bytes, for example to remove the padding of a short frame.
    /// Does nothing if the packet is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        let linear = self.linear().len();
        self.end = self.start + len.min(linear) as u32;
        if !self.tail.is_empty() {
            self.truncate_tail(len.saturating_sub(linear));
        }
    }

    fn truncate_tail(&mut self, len: usize) {
        if len < self.tail.len() as usize {
            self.tail = self.tail.slice(0, len as u32);
        }
    }

    /// Copies the tail into the linear part, so that the packet no longer refers to a socket's
    /// FIFO. The packet can then be kept for a long time, and the program cannot change its bytes.
    /// If the buffer is too small, a larger buffer from the pool replaces it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use towpath_pool::{Fragments, Pool, Stretch};
    /// use towpath_shm::Mapping;
    ///
    /// // Content of a FIFO.
    /// let fifo = Arc::new(Mapping::private(4096)?);
    /// fifo.write(100, b"payload");
    ///
    /// let mut pool = Pool::default();
    /// let mut packet = pool.take(64);
    /// packet.push_front(8).copy_from_slice(b"headers ");
    /// packet.tail = Fragments::new(Stretch::new(&fifo, 100, 7), None);
    /// assert_eq!((packet.len(), packet.linear().len()), (15, 8));
    ///
    /// packet.linearize(&mut pool);
    /// fifo.write(100, b"changed");
    /// assert_eq!(packet.linear(), b"headers payload");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    pub fn linearize(&mut self, pool: &mut Pool) {
        if !self.tail.is_empty() {
            self.copy_tail(pool);
        }
    }

    /// Copies a packet from a device's buffer to a buffer of the pool, so that the device gets its
    /// buffer back. Does nothing if the packet is in a buffer of the pool.
    pub fn leave_frame(&mut self, pool: &mut Pool) {
        if matches!(self.buffer, PacketBuffer::Pool(_)) {
            return;
        }
        let linear = self.linear();
        let mut copy = pool.take(linear.len());
        let room = copy.push_back(linear.len()).expect("taken with room");
        room.copy_from_slice(linear);
        (copy.tail, copy.meta) = (std::mem::take(&mut self.tail), self.meta);
        pool.give(std::mem::replace(self, copy));
    }

    fn copy_tail(&mut self, pool: &mut Pool) {
        let tail = std::mem::take(&mut self.tail);
        let n = tail.len() as usize;
        if n > self.tailroom() {
            let mut bigger = pool.take(self.linear().len() + n);
            let linear = self.linear();
            bigger.push_back(linear.len()).expect("taken with room").copy_from_slice(linear);
            let old = std::mem::replace(&mut self.buffer, bigger.buffer);
            (self.start, self.end) = (bigger.start, bigger.end);
            pool.give_buffer(old);
        }
        let to = self.push_back(n).expect("room was made");
        tail.copy_to(0, to);
    }

    /// Copies the packet's bytes `skip..skip + to.len()` (of linear part and tail) to `to`.
    ///
    /// # Panics
    /// Panics if the packet is shorter.
    pub fn copy_to(&self, skip: usize, to: &mut [u8]) {
        let linear = self.linear();
        let from_linear = linear.len().saturating_sub(skip).min(to.len());
        if from_linear > 0 {
            to[..from_linear].copy_from_slice(&linear[skip..skip + from_linear]);
        }
        if from_linear < to.len() {
            let skip = (skip + from_linear - linear.len()) as u32;
            self.tail.copy_to(skip, &mut to[from_linear..]);
        }
    }

    /// Returns the whole buffer after the headroom, so that a device can write a frame to it. Then
    /// call [`Packet::received`] with the frame's length.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.start as usize..]
    }

    /// Sets the number of bytes that a device has written to [`Packet::spare_mut`].
    ///
    /// # Panics
    /// Panics if `n` exceeds the size of the buffer.
    #[inline]
    pub fn received(&mut self, n: usize) {
        assert!(self.start as usize + n <= self.buffer.bytes().len());
        self.end = self.start + n as u32;
    }
}

/// A pool of packet buffers, which avoids allocations by reusing buffers.
///
/// Buffers have two sizes: small for ordinary frames, large for merged packets and packets to be
/// segmented. Return packets by [giving them back](Pool::give). If a packet in a buffer of the pool
/// is dropped instead, a later packet needs an allocation.
///
/// A packet may also be in a buffer of a device, which the hardware reads or writes. [`Pool::give`]
/// keeps the buffer for the device, which takes it by [`Pool::take_frame`]. If the packet is
/// dropped instead, the device loses the buffer.
///
/// ```
/// use towpath_pool::{Packet, Pool};
///
/// // A device with one frame of static memory.
/// let frame: &'static mut [u8] = vec![0; Pool::HEADROOM + 2048].leak();
/// let mut pool = Pool::default();
/// let device = pool.add_owner();
///
/// // The device receives a packet, and the stack gives it back.
/// let mut packet = Packet::in_frame(frame, device);
/// packet.spare_mut()[..5].copy_from_slice(b"bytes");
/// packet.received(5);
/// assert_eq!(packet.linear(), b"bytes");
/// pool.give(packet);
///
/// assert!(pool.take_frame(device).is_some());
/// assert!(pool.take_frame(device).is_none());
/// assert_eq!(pool.allocated(), 0);
/// ```
#[derive(Debug, Default)]
pub struct Pool {
    small: Vec<Box<[u8]>>,
    large: Vec<Box<[u8]>>,
    /// Device buffers whose packets were given back, by the device's number ([`Owner`]).
    frames: Vec<Vec<&'static mut [u8]>>,
    /// Number of devices registered by `add_owner`.
    owners: u32,
    allocated: u64,
}

impl Pool {
    /// Number of free bytes before an empty packet: Ethernet + VLAN (18), IPv6 (40), TCP with
    /// options (60), virtio-net header (12), and a reserve.
    pub const HEADROOM: usize = 192;
    /// Size of a small buffer in bytes, without headroom.
    pub const SMALL: usize = 2048 - Self::HEADROOM;
    /// Size of a large buffer in bytes, without headroom: an IP packet of 64 KiB with an Ethernet
    /// header.
    pub const LARGE: usize = 68 * 1024 - Self::HEADROOM;
    /// Maximum number of free buffers that are kept of each size: at most 512 KiB and 17 MiB in
    /// total. Further buffers are freed.
    pub const KEPT_MAX: usize = 256;

    /// Returns an empty packet with space for `len` bytes after the headroom. A packet larger than
    /// [`Pool::LARGE`] always needs an allocation.
    pub fn take(&mut self, len: usize) -> Packet {
        let (list, size) = if len <= Self::SMALL {
            (&mut self.small, Self::SMALL)
        } else {
            (&mut self.large, Self::LARGE.max(len))
        };
        let buffer = match list.pop() {
            Some(buffer) if buffer.len() >= Self::HEADROOM + len => buffer,
            _ => {
                self.allocated += 1;
                vec![0; Self::HEADROOM + size].into_boxed_slice()
            }
        };
        Packet::new(PacketBuffer::Pool(buffer))
    }

    /// Returns a packet's buffer to the pool or to the device that owns it, and releases the
    /// packet's payload in a FIFO. A buffer is freed if it exceeds [`Pool::LARGE`], or if the pool
    /// has [`Pool::KEPT_MAX`] free ones of this size.
    pub fn give(&mut self, packet: Packet) {
        self.give_buffer(packet.buffer);
    }

    fn give_buffer(&mut self, buffer: PacketBuffer) {
        match buffer {
            PacketBuffer::Pool(buffer) => self.keep(buffer),
            PacketBuffer::Frame(frame, Owner(number)) => {
                let number = number as usize;
                // Extend the list: the packet may come from another thread, while this thread's
                // device is not registered yet.
                if number >= self.frames.len() {
                    self.frames.resize_with(number + 1, Vec::new);
                }
                self.frames[number].push(frame);
            }
        }
    }

    fn keep(&mut self, buffer: Box<[u8]>) {
        let list = match buffer.len() - Self::HEADROOM {
            Self::SMALL => &mut self.small,
            Self::LARGE => &mut self.large,
            _ => return,
        };
        if list.len() < Self::KEPT_MAX {
            list.push(buffer);
        }
    }

    /// Registers a device that provides packet buffers, and returns its number.
    ///
    /// A stack has several threads (shards), each with a pool and a queue of each device. All
    /// shards must register the queues of the same devices in the same order. A packet that moves
    /// to another shard is given to that shard's pool. Its buffer then goes to that shard's queue
    /// of the same device.
    pub fn add_owner(&mut self) -> Owner {
        self.owners += 1;
        if self.frames.len() < self.owners as usize {
            self.frames.push(Vec::new());
        }
        Owner(self.owners - 1)
    }

    /// Returns a buffer of `owner` whose packet was given back. Prefers the most recently returned
    /// buffer, because it is likely to be in the CPU cache.
    pub fn take_frame(&mut self, owner: Owner) -> Option<&'static mut [u8]> {
        self.frames.get_mut(owner.0 as usize)?.pop()
    }

    /// Returns the number of free buffers in the pool. Equals [`Pool::allocated`] when all packets
    /// have been given back, up to [`Pool::KEPT_MAX`] per size.
    pub fn kept(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Returns the number of buffers allocated so far, which becomes constant when enough buffers
    /// are reused.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }
}

/// A queue of packets. Packets are added at the back and taken from the front.
pub type Batch = std::collections::VecDeque<Packet>;
