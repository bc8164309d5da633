//! Interfaces between the stack and the memory of a socket's FIFOs.

use towpath_shm::{Fragments, Mapping};

/// Payload of a received packet: a linear part, followed by fragments of another mapping.
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
    /// Creates a payload from `linear` followed by `tail`; together they must be below 4 GiB.
    pub fn new(linear: &'a [u8], tail: Fragments) -> Self {
        Self { linear, tail }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u32 {
        self.linear.len() as u32 + self.tail.len()
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns bytes `skip..skip + len` without copying.
    ///
    /// # Panics
    /// If the payload has fewer bytes.
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

    /// Copies bytes `skip..skip + to.len()` to `to`.
    ///
    /// # Panics
    /// If the payload has fewer bytes.
    pub fn copy_to(&self, skip: u32, to: &mut [u8]) {
        let n = self.linear.len();
        let from = (skip as usize).min(n);
        let (a, b) = to.split_at_mut(to.len().min(n - from));
        a.copy_from_slice(&self.linear[from..from + a.len()]);
        if !b.is_empty() {
            self.tail.copy_to(skip.saturating_sub(n as u32), b);
        }
    }

    /// Copies all bytes into a mapping, starting at `offset`.
    ///
    /// # Panics
    /// If the bytes would exceed the mapping; the caller checks the bounds of its FIFO first.
    pub fn write_to(&self, mapping: &Mapping, offset: usize) {
        mapping.write(offset, self.linear);
        let mut at = offset + self.linear.len();
        for stretch in self.tail.iter() {
            stretch.copy_to_mapping(0, stretch.len(), mapping, at);
            at += stretch.len() as usize;
        }
    }
}

/// The receive buffer of a socket: in-order bytes to be read, followed by space in which
/// out-of-order bytes are stored.
///
/// ```text
///   |== unread (in order) ==|-- room: write_at(0) is the next byte in order --|
/// ```
pub trait RecvBuffer {
    /// Returns the current capacity in bytes; may grow and shrink between calls.
    fn capacity(&self) -> u32;

    /// Returns the number of in-order bytes that the program has not read.
    fn unread(&self) -> u32;

    /// Returns the free space after the unread bytes.
    fn free(&self) -> u32 {
        self.capacity().saturating_sub(self.unread())
    }

    /// Stores bytes at `offset` after the end of the in-order bytes; the caller stays within
    /// `free()`. Returns false and stores nothing if memory is not available or the bytes would
    /// exceed it. The segment is then treated as lost.
    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool;

    /// Makes the next `n` bytes available to the program. The bytes must have been stored before.
    fn commit(&mut self, n: u32);

    /// Marks the byte at `offset` after the end of the in-order bytes as urgent (MSG_OOB), and
    /// replaces an earlier mark. `byte` is its value, if it has arrived. Called before the commit
    /// that contains the byte. By default urgent bytes are delivered in-line.
    fn mark_urgent(&mut self, offset: u32, byte: Option<u8>) {
        let _ = (offset, byte);
    }

    /// Requests a notification of the program's next read, because a window update may depend on
    /// that read. Does nothing by default, for owners that report every read anyway.
    fn await_read(&mut self) {}

    /// Hints that the connection could use a window of `bytes`. The buffer grows towards this size
    /// if memory allows.
    fn want_capacity(&mut self, bytes: u32);
}

/// The send buffer of a socket; its front is `snd_una`.
///
/// Packets reference bytes in the buffer, and may outlive them. When bytes are acknowledged or the
/// connection is reset, their packet may still wait for its device. Until the last of the
/// [`Fragments`] is dropped, the bytes do not change and the memory is not reused. (The program may
/// still write to its own memory, so checksums are computed over a copy.)
pub trait SendBuffer {
    /// Returns the number of bytes in the buffer, in flight or unsent. Only `release` reduces the
    /// number.
    fn len(&self) -> u32;

    /// Returns whether the buffer is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the current capacity in bytes.
    fn capacity(&self) -> u32;

    /// Returns bytes `offset..offset + n` from the front, or as many as there are. Never returns
    /// bytes beyond `len()`, because that memory may belong to another FIFO. The caller must check
    /// the length of the result.
    fn peek(&mut self, offset: u32, n: u32) -> Fragments;

    /// Copies `to.len()` bytes at `offset` from the front into `to`. Returns false without copying
    /// if there are fewer. Unlike `peek` it creates no references, so it is meant for short pieces.
    #[must_use]
    fn read(&self, offset: u32, to: &mut [u8]) -> bool;

    /// Drops `n` acknowledged bytes at the front, or all if there are fewer. Their space becomes
    /// free when no fragments reference it any more.
    fn release(&mut self, n: u32);

    /// Returns whether to wake a program that waits for space also when bytes are sent, and not
    /// only when bytes are released.
    fn is_room_made_by_sending(&self) -> bool {
        false
    }

    /// Hints that the congestion window is `bytes`. The buffer grows towards this size if memory
    /// allows.
    fn want_capacity(&mut self, bytes: u32);
}
