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
    /// Creates a payload from `linear` followed by `tail`. Together they must be shorter than 4
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

    /// Returns the number of in-order bytes that the program has not read yet.
    fn unread(&self) -> u32;

    /// Returns the free space in bytes after the unread ones.
    fn free(&self) -> u32 {
        self.capacity().saturating_sub(self.unread())
    }

    /// Obtains memory for the next `n` bytes after the in-order bytes, at most `free()`. Call it
    /// before a segment is acknowledged, because [`Self::free`] is an estimate: other sockets may
    /// take the memory. Returns false if memory is not available; the payload is then dropped.
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

    /// Marks the byte at `offset`, counted from the end of the in-order bytes, as urgent (MSG_OOB),
    /// and replaces an earlier mark. `byte` is its value, if it has arrived. Called before the
    /// commit that contains the byte. By default, urgent bytes are delivered in-line.
    fn mark_urgent(&mut self, offset: u32, byte: Option<u8>) {
        let _ = (offset, byte);
    }

    /// Requests a notification when the program reads next, because a window update may depend on
    /// it. Does nothing by default, for buffers that report every read anyway.
    fn await_read(&mut self) {}

    /// Hints that the connection could use a receive window of `bytes`. The buffer grows towards
    /// this size if memory allows.
    fn want_capacity(&mut self, bytes: u32);
}

/// Send buffer of a socket. Its first byte has the sequence number SND.UNA.
///
/// Packets refer to bytes in the buffer, and may exist longer than they are needed. When bytes are
/// acknowledged or the connection is reset, their packet may still wait for its device. Until the
/// last of the [`Fragments`] is dropped, the bytes do not change and the memory is not reused. The
/// program may still write to its own memory, so checksums are computed over a copy.
pub trait SendBuffer {
    /// Returns the number of bytes in the buffer, in flight or unsent. Only `release` reduces it.
    fn len(&self) -> u32;

    /// Returns whether the buffer is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the current capacity of the send buffer in bytes.
    fn capacity(&self) -> u32;

    /// Returns bytes `offset..offset + n` of the buffer, or as many of them as there are. The
    /// caller must check the length of the result. Bytes beyond `len()` are never returned, because
    /// that memory may belong to another FIFO.
    fn peek(&mut self, offset: u32, n: u32) -> Fragments;

    /// Copies `to.len()` bytes from `offset` on to `to`. Returns false without copying if there are
    /// fewer. Unlike `peek`, it creates no references, so it is meant for short pieces.
    #[must_use]
    fn read(&self, offset: u32, to: &mut [u8]) -> bool;

    /// Removes `n` acknowledged bytes from the front, or all if there are fewer. Their space
    /// becomes free when no fragments refer to it any more.
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
