//! The seam between the stack and the memory that a socket's bytes live in.

use towpath_shm::{Fragments, Mapping};

/// Bytes of a received packet: a linear part, continued by fragments of another mapping.
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
    /// The bytes of `linear`, then those of `tail`; together fewer than 4 GiB.
    pub fn new(linear: &'a [u8], tail: Fragments) -> Self {
        Self { linear, tail }
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.linear.len() as u32 + self.tail.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes `skip..skip + len` of it, which are not copied.
    ///
    /// # Panics
    /// When it has fewer bytes than that.
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

    /// Copies bytes `skip..skip + to.len()` out.
    ///
    /// # Panics
    /// When it has fewer bytes than that.
    pub fn copy_to(&self, skip: u32, to: &mut [u8]) {
        let n = self.linear.len();
        let from = (skip as usize).min(n);
        let (a, b) = to.split_at_mut(to.len().min(n - from));
        a.copy_from_slice(&self.linear[from..from + a.len()]);
        if !b.is_empty() {
            self.tail.copy_to(skip.saturating_sub(n as u32), b);
        }
    }

    /// Copies all bytes into a mapping, from `offset` on.
    ///
    /// # Panics
    /// When they would end beyond the mapping: the caller looks at its FIFO's bounds first.
    pub fn write_to(&self, mapping: &Mapping, offset: usize) {
        mapping.write(offset, self.linear);
        let mut at = offset + self.linear.len();
        for stretch in self.tail.iter() {
            stretch.copy_to_mapping(0, stretch.len(), mapping, at);
            at += stretch.len() as usize;
        }
    }
}

/// Where received bytes go: in-order ones to be read, out-of-order ones further on in the same
/// memory.
///
/// ```text
///   |== unread (in order) ==|-- room: write_at(0) is the next byte in order --|
/// ```
pub trait RecvBuffer {
    /// Most bytes it can hold now; may grow and shrink between calls.
    fn capacity(&self) -> u32;

    /// In-order bytes that the program has not read.
    fn unread(&self) -> u32;

    /// Room behind the unread bytes.
    fn free(&self) -> u32 {
        self.capacity().saturating_sub(self.unread())
    }

    /// Stores bytes `offset` beyond the end of the in-order ones; the caller keeps within `free()`.
    /// False, and nothing is stored, when memory could not be had or they would end beyond it: the
    /// segment is then treated as lost.
    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool;

    /// The next `n` bytes are complete: the program may read them. No more than were stored.
    fn commit(&mut self, n: u32);

    /// The byte `offset` beyond the end of the in-order ones is urgent (MSG_OOB). An earlier mark
    /// is void. `byte` is its value, once it has arrived. Called before a commit that
    /// hands the byte out. An owner without urgent data finds the byte in its place.
    fn mark_urgent(&mut self, offset: u32, byte: Option<u8>) {
        let _ = (offset, byte);
    }

    /// The stack has to hear of the program's next read: a window update may depend on it. An owner
    /// that tells of every read has nothing to do.
    fn await_read(&mut self) {}

    /// Hint: the connection would use a window of `bytes`; grow towards it if memory allows.
    fn want_capacity(&mut self, bytes: u32);
}

/// Where bytes to be sent come from. The front is `snd_una`.
///
/// Packets point into the buffer, and may outlive the bytes there. A packet still waits for its
/// device when its bytes are acknowledged, or when the connection is reset. Until the last of the
/// [`Fragments`] is dropped its bytes stay as they are, in memory that is nobody else's. (A program
/// to which they belong may write to them nevertheless, so a checksum is made of a copy.)
pub trait SendBuffer {
    /// Bytes in it, in flight or not yet sent. Only ever grows between calls to `release`.
    fn len(&self) -> u32;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most bytes it can hold now.
    fn capacity(&self) -> u32;

    /// Bytes `offset..offset + n` from the front, or as many of them as the buffer holds. No byte
    /// beyond `len()` is given: the memory there belongs, or belonged, to another FIFO. The caller
    /// looks at how many it got.
    fn peek(&mut self, offset: u32, n: u32) -> Fragments;

    /// Copies `to.len()` bytes, starting `offset` bytes behind the front, into `to`. Returns false
    /// and copies nothing if the buffer has fewer. Unlike `peek`, it leaves no `Fragments` that
    /// keep the bytes alive, so it is meant for short pieces.
    #[must_use]
    fn read(&self, offset: u32, to: &mut [u8]) -> bool;

    /// Drops `n` bytes at the front, acknowledged, or all if there are fewer. Their place is room
    /// for new ones when no fragments point to it any more.
    fn release(&mut self, n: u32);

    /// Whether who waits for room has to hear of bytes that were sent, too, not of released ones
    /// alone.
    fn is_room_made_by_sending(&self) -> bool {
        false
    }

    /// Hint: the congestion window is `bytes`; grow towards it if memory allows.
    fn want_capacity(&mut self, bytes: u32);
}
