//! Packets, batches of them, and the buffers they are made of.

use std::num::NonZeroU32;
use std::ops::Range;

use towpath_shm::Fragments;

/// Received or about to be sent: one frame (Ethernet link) or one IP packet (IP link), up to
/// 64 KiB of payload with [`Segmentation`].
#[derive(Debug)]
pub struct Packet {
    buffer: PacketBuffer,
    start: u32,
    end: u32,
    /// Payload that continues after the linear part, in a FIFO, which it pins: see
    /// [`Packet::linearize`].
    pub tail: Fragments,
    /// Knowledge about the packet besides its bytes. [`Pool::take`] gives a packet with none of it.
    pub meta: Meta,
}

/// Owner of a packet's bytes. Both are a pointer and a length in the same place. So only the code
/// that gives them back has to look which it is.
#[derive(Debug)]
enum PacketBuffer {
    /// The pool's.
    Pool(Box<[u8]>),
    /// A device's, which is known by its number.
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

/// The number of a device that has frames of its own, from [`Pool::add_owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u32);

/// Data that travels with a packet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meta {
    /// When the device received it, ns on the engine's clock; 0 for packets of our own.
    pub arrival_ns: u64,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// The packet stands for several segments of this size.
    pub segmentation: Option<Segmentation>,
    /// 802.1Q tag that the device took off or shall put on: the TCI in host byte order. Priority is
    /// in the upper three bits and the VLAN ID in the lower twelve (IEEE 802.1Q §9.6).
    pub vlan: Option<u16>,
    /// Hash that the device computed of the flow, 0 when unknown. A hint: the sender of the packet
    /// may have chosen its addresses and ports so that it collides.
    pub hash: u32,
    /// Sender on this host, a number that the sender's owner chose: the queue of an interface
    /// counts each sender's packets. None: no sender is counted. The field means nothing for
    /// received packets.
    pub sender: Option<NonZeroU32>,
}

impl Meta {
    /// Whether the sender left work to a device: a checksum to complete, or segments to cut. The
    /// places that these name come from the sender, who may have chosen them.
    #[inline]
    pub const fn has_offloads(&self) -> bool {
        self.segmentation.is_some() || matches!(self.checksum, Checksum::Partial { .. })
    }
}

/// State of the transport checksum of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Received: must be verified. To be sent: is complete.
    #[default]
    Unknown,
    /// Received: the device or a trusted sender vouches for it.
    Verified,
    /// The field holds the folded pseudo-header sum only. To be sent: the port that sends it on
    /// sums from `start` (bytes from the start of the packet) to the end. The port stores the
    /// result at `start + offset`. Received: the sender is on this machine and left it out; it
    /// counts as verified.
    Partial {
        /// Start of the transport header, from the first byte of the packet.
        start: u16,
        /// Place of the checksum in the transport header: 16 for TCP, 6 for UDP.
        offset: u16,
    },
}

/// A packet that is to be cut into (or was merged from) several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// Protocol of the packet that is cut.
    pub protocol: Protocol,
    /// Transport payload bytes of each segment, the last may have fewer.
    pub size: u16,
    /// All headers in front of the payload, from the first byte of the packet.
    pub header_len: u16,
}

impl Segmentation {
    /// How many packets one of `len` bytes, headers included, is cut into.
    #[inline]
    pub fn pieces(&self, len: usize) -> usize {
        let payload = len.saturating_sub(usize::from(self.header_len));
        payload.div_ceil(usize::from(self.size.max(1))).max(1)
    }
}

/// Protocol of a segmented packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either (UDP_SEGMENT).
    Udp,
}

impl Packet {
    /// A packet without bytes in a frame of a device, which gets it back by [`Pool::take_frame`]
    /// when the packet is given back. The device puts bytes into it as into one of the pool's
    /// ([`Packet::spare_mut`]), or lets its hardware do that before it makes the packet.
    ///
    /// The frame is memory of this process alone that stays mapped until it ends. An area that is
    /// shared with a guest or another process is no frame, since it may change while it is read.
    ///
    /// # Panics
    /// When the frame has no more bytes than [`Pool::HEADROOM`], which is left free in front.
    #[inline]
    pub fn in_frame(frame: &'static mut [u8], owner: Owner) -> Self {
        assert!(frame.len() > Pool::HEADROOM, "a frame of {} bytes", frame.len());
        Self::new(PacketBuffer::Frame(frame, owner))
    }

    /// The frame of a packet whose bytes are all in one of `owner`'s, and their place in it. A
    /// device sends it as it is, and no pool gives it back.
    ///
    /// # Errors
    /// The packet, whose bytes are elsewhere, some of them at least.
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

    /// Length of the packet in bytes, tail included.
    #[inline]
    pub fn len(&self) -> usize {
        self.linear().len() + self.tail.len() as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part that lies in this packet's own buffer: headers, and of a packet without
    /// [`Packet::tail`] all of it.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        &self.buffer.bytes()[self.start as usize..self.end as usize]
    }

    /// The same to be changed in place; its length stays.
    #[inline]
    pub fn linear_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.start as usize..self.end as usize]
    }

    /// Free bytes in front of the linear part: the most that [`Packet::push_front`] takes.
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// Free bytes behind the linear part: the most that [`Packet::push_back`] takes, while there is
    /// no tail.
    pub fn tailroom(&self) -> usize {
        self.buffer.bytes().len() - self.end as usize
    }

    /// Grows the front by `n` bytes (content undefined) and returns them.
    ///
    /// # Panics
    /// Without headroom: the pool reserves [`Pool::HEADROOM`], more than all headers together.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> &mut [u8] {
        self.start -= u32::try_from(n).expect("headers are short");
        let start = self.start as usize;
        &mut self.buffer.bytes_mut()[start..start + n]
    }

    /// Takes `n` bytes off the front of the linear part; None when it is shorter.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> Option<()> {
        if n > self.linear().len() {
            return None;
        }
        self.start += n as u32;
        Some(())
    }

    /// Grows the end by `n` bytes (content undefined) and returns them; None without room, or when
    /// there is a tail of fragments already.
    pub fn push_back(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() || !self.tail.is_empty() {
            return None;
        }
        let end = self.end as usize;
        self.end += n as u32;
        Some(&mut self.buffer.bytes_mut()[end..end + n])
    }

    /// Cuts the packet to `len` bytes in all, as for the padding of short frames; a shorter one
    /// stays as it is.
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

    /// Copies the tail into the linear part, so that the packet stands alone. A linear packet may
    /// be kept for long, and nobody but its owner can change its bytes. Takes a bigger buffer from
    /// the pool when it must, and gives the old one back.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use towpath_pool::{Fragments, Pool, Stretch};
    /// use towpath_shm::Mapping;
    ///
    /// // What a FIFO holds.
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

    /// Moves the bytes of a packet from the frame of a device into a buffer of the pool. The device
    /// then has its frame back. Other packets stay as they are.
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

    /// Copies bytes `skip..skip + to.len()` of the packet, linear part and tail.
    ///
    /// # Panics
    /// When the packet is shorter than that.
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

    /// The whole buffer behind the headroom, for a device to receive into; see
    /// [`Packet::received`].
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.start as usize..]
    }

    /// Says how many bytes a device put into [`Packet::spare_mut`].
    ///
    /// # Panics
    /// When they are more than there was room for.
    #[inline]
    pub fn received(&mut self, n: usize) {
        assert!(self.start as usize + n <= self.buffer.bytes().len());
        self.end = self.start + n as u32;
    }
}

/// Buffers for packets: taken and given back without allocation once warm.
///
/// Two sizes: small for ordinary frames, large for merged or to be segmented ones. A packet that is
/// dropped instead of [given back](Pool::give) costs the next one an allocation, and nothing else,
/// if its bytes are the pool's.
///
/// A packet's bytes may also be a device's: a frame that its hardware writes to and reads from.
/// Nothing that a packet passes sees the difference; where it is given back goes by the number of
/// the owner. A frame whose packet is dropped is lost to its device.
///
/// ```
/// use towpath_pool::{Packet, Pool};
///
/// // A device with one frame, of memory that stays.
/// let frame: &'static mut [u8] = vec![0; Pool::HEADROOM + 2048].leak();
/// let mut pool = Pool::default();
/// let device = pool.add_owner();
///
/// // It receives, and somebody gives the packet back.
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
    /// Frames that came back, by the number of their owner.
    frames: Vec<Vec<&'static mut [u8]>>,
    /// Devices that have a number.
    owners: u32,
    allocated: u64,
}

impl Pool {
    /// Room in front of a fresh packet: Ethernet + VLAN (18), IPv6 (40), TCP with options (60),
    /// virtio-net header (12), and some to spare.
    pub const HEADROOM: usize = 192;
    /// Bytes of a small buffer behind the headroom.
    pub const SMALL: usize = 2048 - Self::HEADROOM;
    /// Bytes of a large buffer behind the headroom: 64 KiB of IP packet and an Ethernet header.
    pub const LARGE: usize = 68 * 1024 - Self::HEADROOM;
    /// Free buffers kept of each size, together at most 512 KiB and 17 MiB; more go back to the
    /// system.
    pub const KEPT_MAX: usize = 256;

    /// An empty packet with room for `len` bytes behind the headroom. Larger than [`Pool::LARGE`]
    /// is allocated anew each time.
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

    /// Takes a packet's buffer back for a later [`Pool::take`], or its frame for the device that
    /// owns it, and unpins what its tail points to. A buffer beyond [`Pool::KEPT_MAX`] free ones of
    /// its size, or larger than [`Pool::LARGE`], goes back to the system.
    pub fn give(&mut self, packet: Packet) {
        self.give_buffer(packet.buffer);
    }

    fn give_buffer(&mut self, buffer: PacketBuffer) {
        match buffer {
            PacketBuffer::Pool(buffer) => self.keep(buffer),
            PacketBuffer::Frame(frame, Owner(number)) => {
                let number = number as usize;
                // A packet of another shard may come before this shard's device has its number.
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

    /// A number for a device that has frames of its own. There is a device for each, so that they
    /// stay few.
    ///
    /// Shards of a stack have queues of the same devices, in one order. A packet that went to
    /// another shard is given back to the pool there. Its frame goes to that shard's queue of the
    /// same device.
    pub fn add_owner(&mut self) -> Owner {
        self.owners += 1;
        if self.frames.len() < self.owners as usize {
            self.frames.push(Vec::new());
        }
        Owner(self.owners - 1)
    }

    /// A frame of `owner` whose packet was given back, the last one first: it is in the cache
    /// still.
    pub fn take_frame(&mut self, owner: Owner) -> Option<&'static mut [u8]> {
        self.frames.get_mut(owner.0 as usize)?.pop()
    }

    /// Free buffers that are kept: [`Pool::allocated`] when all packets came back, up to
    /// [`Pool::KEPT_MAX`].
    pub fn kept(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Buffers allocated so far; stands still once warm.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }
}

/// Packets in the order in which they came or are to leave: they are added at the back, and taken
/// from the front.
pub type Batch = std::collections::VecDeque<Packet>;
