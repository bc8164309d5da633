//! Interfaces between the network stack and the memory of a socket's FIFOs.

use towpath_shm::{Fragments, Mapping};

/// Payload of a received packet: a slice of bytes, followed by fragments in other memory.
///
/// ```
/// use towpath_ring::Payload;
/// use towpath_shm::Fragments;
///
/// let payload = Payload::new(b"down the towpath", Fragments::empty());
/// let mut bytes = [0; 7];
/// payload.slice(9, 7).copy_to(0, &mut bytes);
/// assert_eq!(&bytes, b"towpath");
/// ```
#[derive(Debug, Clone)]
pub struct Payload<'a> {
    linear: &'a [u8],
    tail: Fragments,
}

impl<'a> Payload<'a> {
    /// Creates the payload that consists of `linear` and then `tail`. Its length must be below 4
    /// GiB.
    pub fn new(linear: &'a [u8], tail: Fragments) -> Self {
        Self { linear, tail }
    }

    /// Returns the length of the payload in bytes.
    pub fn len(&self) -> u32 {
        self.linear.len() as u32 + self.tail.len()
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the payload's bytes `skip..skip + len` without copying.
    ///
    /// # Panics
    /// Panics if the payload has fewer bytes.
    pub fn slice(&self, skip: u32, len: u32) -> Self {
        let n = self.linear.len();
        let from = (skip as usize).min(n);
        let to = (skip as usize + len as usize).min(n);
        let linear = &self.linear[from..to];
        let tail_len = len - linear.len() as u32;
        let tail = if tail_len == 0 {
            Fragments::empty()
        } else {
            self.tail.slice(skip.saturating_sub(n as u32), tail_len)
        };
        Self { linear, tail }
    }

    /// Copies the payload's bytes `skip..skip + to.len()` to `to`.
    ///
    /// # Panics
    /// Panics if the payload has fewer bytes.
    pub fn copy_to(&self, skip: u32, to: &mut [u8]) {
        let n = self.linear.len();
        let from = (skip as usize).min(n);
        let (a, b) = to.split_at_mut(to.len().min(n - from));
        a.copy_from_slice(&self.linear[from..from + a.len()]);
        if !b.is_empty() {
            self.tail.copy_to(skip.saturating_sub(n as u32), b);
        }
    }

    /// Copies bytes into the ranges of a FIFO, which are offsets in a mapping and lengths. If the
    /// ranges are shorter than the payload, its last bytes are not copied.
    #[inline]
    pub(crate) fn write_to_stretches(&self, mapping: &Mapping, stretches: [(usize, u32); 2]) {
        let [(first, len), (second, wrapped)] = stretches;
        if len == self.len() {
            return self.write_to(mapping, first);
        }
        self.slice(0, len).write_to(mapping, first);
        self.slice(len, wrapped).write_to(mapping, second);
    }

    /// Copies the payload to `mapping`, from `offset` on.
    ///
    /// # Panics
    /// Panics if the bytes would exceed the mapping. The caller must check the bounds of its FIFO
    /// first.
    pub fn write_to(&self, mapping: &Mapping, offset: usize) {
        mapping.write(offset, self.linear);
        let mut at = offset + self.linear.len();
        for stretch in self.tail.iter() {
            stretch.copy_to_mapping(0, stretch.len(), mapping, at);
            at += stretch.len() as usize;
        }
    }
}

/// Receive buffer of a socket: in-order bytes for the program to read, followed by space in which
/// out-of-order bytes are stored.
///
/// ```text
///   |== unread (in order) ==|-- room: write_at(0) is the next byte in order --|
/// ```
pub trait RecvBuffer {
    /// Returns the current capacity in bytes. The capacity may grow and shrink between calls.
    fn capacity(&self) -> u32;

    /// Returns the number of bytes received in order that the program has not read yet.
    fn unread(&self) -> u32;

    /// Returns the free space in bytes after the unread ones.
    fn free(&self) -> u32 {
        self.capacity().saturating_sub(self.unread())
    }

    /// Obtains memory for the next `n` bytes after the in-order bytes, at most `free()`. Returns
    /// false if no memory is available; the payload must be dropped then. Call it before
    /// acknowledging a segment. [`Self::free`] is only an estimate, because sockets share the
    /// memory.
    fn reserve(&mut self, n: u32) -> bool {
        let _ = n;
        true
    }

    /// Stores bytes at `offset`, counted from the end of the in-order bytes. The caller must stay
    /// within `free()`. Returns false and stores nothing if memory is not available or the bytes do
    /// not fit. The segment must then be treated as lost.
    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool;

    /// Makes the next `n` stored bytes available to the program, as in-order bytes.
    fn commit(&mut self, n: u32);

    /// Marks the byte at `offset` after the in-order bytes as urgent (MSG_OOB), and replaces an
    /// earlier mark. `byte` is its value, if it has arrived. Call it before the commit that
    /// contains the byte. Does nothing by default, so that urgent bytes are delivered in-line.
    fn mark_urgent(&mut self, offset: u32, byte: Option<u8>) {
        let _ = (offset, byte);
    }

    /// Requests a notification of the program's next read, after which a window update may be
    /// needed. Does nothing by default, for buffers that report every read.
    fn await_read(&mut self) {}

    /// Hints that the connection could use a receive window of `bytes`. The buffer grows towards
    /// this size if memory allows.
    fn want_capacity(&mut self, bytes: u32);
}

/// Send buffer of a socket. Its first byte has the sequence number SND.UNA.
///
/// Packets refer to bytes in the buffer by [`Fragments`]. A packet may still wait for its device
/// when its bytes are acknowledged or the connection is reset. The memory is not reused until the
/// last fragment is dropped. A faulty program may nevertheless change its bytes, so checksums are
/// computed over a copy.
pub trait SendBuffer {
    /// Returns the number of bytes in the buffer, in flight or unsent. Only `release` reduces it.
    fn len(&self) -> u32;

    /// Returns whether the buffer is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the current capacity of the send buffer in bytes.
    fn capacity(&self) -> u32;

    /// Returns bytes `offset..offset + n` of the buffer, or fewer if the buffer ends before. The
    /// caller must check the length of the result. Bytes beyond `len()` are never returned, because
    /// they may belong to another FIFO.
    fn peek(&mut self, offset: u32, n: u32) -> Fragments;

    /// Copies `to.len()` bytes, starting at `offset`, to `to`. Returns false without copying if the
    /// buffer has fewer. Unlike `peek`, it creates no reference, which is cheaper for a few bytes.
    #[must_use]
    fn read(&self, offset: u32, to: &mut [u8]) -> bool;

    /// Removes `n` acknowledged bytes from the front, or all if there are fewer. Their space
    /// becomes free when the last fragment that refers to them is dropped.
    fn release(&mut self, n: u32);

    /// Returns whether a program that waits for space must be woken when bytes are sent, not only
    /// when bytes are released.
    fn is_room_made_by_sending(&self) -> bool {
        false
    }

    /// Hints that the congestion window is `bytes`. The buffer grows towards this size if memory
    /// allows.
    fn want_capacity(&mut self, bytes: u32);
}
