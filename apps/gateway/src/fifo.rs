//! Byte FIFOs of spliced flows, in memory that goes around.
//!
//! A flow has memory only while bytes stand in its FIFO, and most of the time they do not: the host's
//! socket takes them at once. So a few pieces serve thousands of flows, and the one given back last,
//! which is still in the cache, is the one taken next.

use std::sync::{Arc, Mutex, PoisonError};

use towpath_ring::{Payload, RecvBuffer, SendBuffer};
use towpath_shm::{Fragments, Mapping, Stretch};

use crate::limits::{FIFO_LEN, FIFOS_KEPT_MAX};

/// Where FIFOs get their memory. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct FifoPool {
    free: Arc<Mutex<Vec<Arc<Mapping>>>>,
}

impl FifoPool {
    fn take(&self) -> Option<Arc<Mapping>> {
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.or_else(|| Mapping::private(FIFO_LEN as usize).ok().map(Arc::new))
    }

    /// Memory that packets on the link still point to is left to them.
    fn give(&self, mapping: Arc<Mapping>) {
        if Arc::strong_count(&mapping) > 1 {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FIFOS_KEPT_MAX {
            free.push(mapping);
        }
    }
}

/// A ring of bytes between two wrapping positions.
#[derive(Debug)]
struct Fifo {
    pool: FifoPool,
    mapping: Option<Arc<Mapping>>,
    head: u32,
    tail: u32,
}

impl Fifo {
    fn new(pool: &FifoPool) -> Self {
        Self { pool: pool.clone(), mapping: None, head: 0, tail: 0 }
    }

    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Has memory; false when there is none to be had.
    fn ensure(&mut self) -> bool {
        if self.mapping.is_none() {
            self.mapping = self.pool.take();
        }
        self.mapping.is_some()
    }

    fn give_back(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            self.pool.give(mapping);
        }
    }

    fn fragments(&self, position: u32, n: u32) -> Fragments {
        let Some(mapping) = self.mapping.as_ref().filter(|_| n > 0) else {
            return Fragments::empty();
        };
        let start = position & (FIFO_LEN - 1);
        let first = n.min(FIFO_LEN - start);
        let second = (n > first).then(|| Stretch::new(mapping, 0, n - first));
        Fragments::new(Stretch::new(mapping, start as usize, first), second)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Bytes of the program on their way to the host.
#[derive(Debug)]
pub(crate) struct FromProgram {
    fifo: Fifo,
    /// Bytes beyond `tail` up to which out-of-order ones may stand.
    ahead: u32,
}

impl FromProgram {
    pub(crate) fn new(pool: &FifoPool) -> Self {
        Self { fifo: Fifo::new(pool), ahead: 0 }
    }

    /// All in-order bytes.
    pub(crate) fn peek(&self) -> Fragments {
        self.fifo.fragments(self.fifo.head, self.fifo.len())
    }

    /// Takes `n` of them off the front.
    pub(crate) fn consume(&mut self, n: u32) {
        self.fifo.head = self.fifo.head.wrapping_add(n.min(self.fifo.len()));
        if self.fifo.len() == 0 && self.ahead == 0 {
            self.fifo.give_back();
        }
    }
}

impl RecvBuffer for FromProgram {
    fn capacity(&self) -> u32 {
        FIFO_LEN
    }

    fn unread(&self) -> u32 {
        self.fifo.len()
    }

    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool {
        let Some(end) = offset.checked_add(data.len()).filter(|end| *end <= self.free()) else {
            return false;
        };
        if !self.fifo.ensure() {
            return false;
        }
        let Some(mapping) = &self.fifo.mapping else { return false };
        let start = self.fifo.tail.wrapping_add(offset) & (FIFO_LEN - 1);
        let first = data.len().min(FIFO_LEN - start);
        data.slice(0, first).write_to(mapping, start as usize);
        data.slice(first, data.len() - first).write_to(mapping, 0);
        self.ahead = self.ahead.max(end);
        true
    }

    fn commit(&mut self, n: u32) {
        debug_assert!(n <= self.ahead, "{n} bytes, of which {} were stored", self.ahead);
        let n = n.min(self.ahead);
        self.fifo.tail = self.fifo.tail.wrapping_add(n);
        self.ahead -= n;
    }

    /// The link is memory: there is no bandwidth-delay product to make room for.
    fn want_capacity(&mut self, _: u32) {}
}

/// Bytes of the host on their way to the program.
#[derive(Debug)]
pub(crate) struct ToProgram {
    fifo: Fifo,
}

impl ToProgram {
    pub(crate) fn new(pool: &FifoPool) -> Self {
        Self { fifo: Fifo::new(pool) }
    }

    /// Bytes it has room for.
    pub(crate) fn room(&self) -> u32 {
        FIFO_LEN - self.fifo.len()
    }

    /// Memory for the next bytes: all its room, or nothing when there is no memory.
    pub(crate) fn spare(&mut self) -> Fragments {
        if self.room() == 0 || !self.fifo.ensure() {
            return Fragments::empty();
        }
        self.fifo.fragments(self.fifo.tail, self.room())
    }

    /// `n` bytes were put into [`ToProgram::spare`].
    pub(crate) fn commit(&mut self, n: u32) {
        self.fifo.tail = self.fifo.tail.wrapping_add(n.min(self.room()));
    }

    /// Gives memory back when a look for bytes found none.
    pub(crate) fn trim(&mut self) {
        if self.fifo.len() == 0 {
            self.fifo.give_back();
        }
    }
}

impl SendBuffer for ToProgram {
    fn len(&self) -> u32 {
        self.fifo.len()
    }

    fn capacity(&self) -> u32 {
        FIFO_LEN
    }

    fn peek(&self, offset: u32, n: u32) -> Fragments {
        let n = n.min(self.fifo.len().saturating_sub(offset));
        self.fifo.fragments(self.fifo.head.wrapping_add(offset), n)
    }

    fn release(&mut self, n: u32) {
        self.fifo.head = self.fifo.head.wrapping_add(n.min(self.fifo.len()));
        self.trim();
    }

    /// As for [`FromProgram`].
    fn want_capacity(&mut self, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(fragments: &Fragments) -> Vec<u8> {
        let mut to = vec![0; fragments.len() as usize];
        fragments.copy_to(0, &mut to);
        to
    }

    #[test]
    fn bytes_come_out_as_they_went_in_around_the_end() {
        let pool = FifoPool::default();
        let mut recv = FromProgram::new(&pool);
        let chunk: Vec<u8> = (0..100_003u32).map(|n| (n * 7) as u8).collect();
        for _ in 0..10 {
            let (a, b) = chunk.split_at(40_000);
            // Out of order.
            assert!(recv.write_at(40_000, &Payload::new(b, Fragments::empty())));
            assert_eq!(recv.unread(), 0);
            assert!(recv.write_at(0, &Payload::new(a, Fragments::empty())));
            recv.commit(chunk.len() as u32);
            assert_eq!(bytes(&recv.peek()), chunk);
            recv.consume(chunk.len() as u32);
        }
        let full = vec![1; FIFO_LEN as usize + 1];
        assert!(!recv.write_at(0, &Payload::new(&full, Fragments::empty())));
    }

    #[test]
    fn nothing_is_seen_beyond_what_was_written() {
        let pool = FifoPool::default();
        let mut send = ToProgram::new(&pool);
        send.spare();
        send.commit(4);
        let far = [0, 1, 4, 5, FIFO_LEN - 1, FIFO_LEN, FIFO_LEN + 1, 1 << 31, u32::MAX];
        for offset in far {
            for n in far {
                let there = n.min(4u32.saturating_sub(offset));
                assert_eq!(send.peek(offset, n).len(), there, "{n} bytes from {offset} on");
            }
        }
    }

    #[test]
    fn memory_goes_around_unless_a_packet_points_to_it() {
        let pool = FifoPool::default();
        let kept = || pool.free.lock().unwrap().len();
        let mut send = ToProgram::new(&pool);
        assert_eq!(send.spare().len(), FIFO_LEN);
        send.commit(10);
        assert_eq!(send.room(), FIFO_LEN - 10);
        send.release(10);
        assert_eq!(kept(), 1);
        send.spare();
        send.commit(10);
        let packet = send.peek(0, 10);
        send.release(10);
        assert_eq!((kept(), packet.len()), (0, 10));
        send.spare();
        send.trim();
        assert_eq!(kept(), 1);
    }
}
