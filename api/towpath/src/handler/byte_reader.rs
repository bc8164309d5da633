//! Reads received bytes in place.

use std::fmt;

use towpath_ring::{HeapRecv, KeptBytes, RecvBuffer};

use super::conn_table::Searched;

/// Received bytes of a connection, borrowed from its receive buffer.
///
/// Methods return contiguous bytes. If the bytes wrap around the end of the ring buffer, they are
/// copied.
pub struct ByteReader<'a> {
    pub(super) recv: Option<&'a mut HeapRecv>,
    /// Contiguous copy of bytes that wrap around the end of the receive buffer.
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) searched: &'a mut Searched,
    /// Set to true if a call removed bytes from the receive buffer.
    pub(super) was_read: &'a mut bool,
    pub(super) is_ended: bool,
}

impl ByteReader<'_> {
    /// Returns the number of unread bytes.
    pub fn len(&self) -> usize {
        self.recv.as_ref().map_or(0, |recv| recv.unread() as usize)
    }

    /// Returns whether there are no unread bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the peer has sent its FIN: no bytes follow the unread ones.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns whether the receive buffer is full, so that no more bytes arrive before some are
    /// removed.
    pub fn is_full(&self) -> bool {
        self.recv.as_ref().is_none_or(|recv| recv.free() == 0)
    }

    /// Returns all unread bytes in order. The second slice is empty unless the bytes wrap around
    /// the end of the ring buffer.
    pub fn slices(&mut self) -> [&[u8]; 2] {
        self.recv.as_mut().map_or([&[]; 2], |recv| recv.slices())
    }

    /// Returns the first `n` unread bytes without removing them; `None` if there are fewer.
    pub fn peek(&mut self, n: usize) -> Option<&[u8]> {
        let recv = self.recv.as_mut()?;
        let [front, back] = recv.slices();
        contiguous([front, back], n, self.scratch)
    }

    /// Removes the first `n` unread bytes, or all if there are fewer. Returns their number.
    pub fn skip(&mut self, n: usize) -> usize {
        let n = n.min(self.len());
        if let Some(recv) = &mut self.recv
            && n > 0
        {
            recv.consume(n as u32);
            *self.was_read = true;
            self.searched.forget(n);
        }
        n
    }

    /// Removes and returns the first `n` unread bytes; `None` if there are fewer.
    pub fn next(&mut self, n: usize) -> Option<&[u8]> {
        let recv = self.recv.as_mut().filter(|recv| n <= recv.unread() as usize)?;
        *self.was_read |= n > 0;
        self.searched.forget(n);
        let [front, back] = recv.take(n as u32)?;
        contiguous([front, back], n, self.scratch)
    }

    /// Returns the position of the first `byte` among the unread bytes. Bytes that an earlier call
    /// has searched for the same `byte` are not searched again.
    pub fn find(&mut self, byte: u8) -> Option<usize> {
        let from = self.searched.begin(byte);
        let mut at = 0;
        let mut found = None;
        for slice in self.slices() {
            let skip = from.saturating_sub(at).min(slice.len());
            found = slice[skip..].iter().position(|it| *it == byte).map(|n| at + skip + n);
            at += slice.len();
            if found.is_some() {
                break;
            }
        }
        self.searched.until(found.unwrap_or(at));
        found
    }

    /// Removes and returns the unread bytes up to the first `delimiter`, which is the last byte of
    /// the result. Returns `None` if no delimiter has arrived yet.
    ///
    /// A peer that never sends the delimiter fills the buffer, so reset the connection if
    /// [`Self::len`] exceeds the limit of the protocol.
    pub fn until(&mut self, delimiter: u8) -> Option<&[u8]> {
        let n = self.find(delimiter)? + 1;
        self.next(n)
    }

    /// Removes and returns the first `n` unread bytes without a copy, to keep them or send them to
    /// another thread. Returns `None` if there are fewer.
    ///
    /// The result keeps the memory of the whole receive buffer allocated. To keep a few bytes for
    /// long, copy them.
    pub fn slice(&mut self, n: usize) -> Option<KeptBytes> {
        let recv = self.recv.as_mut().filter(|recv| n <= recv.unread() as usize)?;
        *self.was_read |= n > 0;
        self.searched.forget(n);
        Some(recv.keep(n as u32))
    }

    /// Removes and copies as many unread bytes as fit into `to`, and returns their number.
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in self.slices() {
            let n = slice.len().min(to.len() - done);
            to[done..done + n].copy_from_slice(&slice[..n]);
            done += n;
        }
        self.skip(done)
    }
}

impl fmt::Debug for ByteReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ByteReader");
        out.field("len", &self.len()).field("is_ended", &self.is_ended).finish_non_exhaustive()
    }
}

/// Returns the first `n` bytes of two consecutive slices as one slice. Copies them to `scratch` if
/// they extend into the second slice.
fn contiguous<'a>(
    [front, back]: [&'a [u8]; 2],
    n: usize,
    scratch: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    if let Some(bytes) = front.get(..n) {
        return Some(bytes);
    }
    let back = back.get(..n - front.len())?;
    scratch.clear();
    scratch.extend_from_slice(front);
    scratch.extend_from_slice(back);
    Some(scratch)
}
