//! Byte FIFOs between the two sockets of a TCP flow: the program's and the host's. A pool provides
//! their memory.
//!
//! A flow holds memory only while its FIFO contains bytes. Usually the FIFO is empty, because the
//! host socket accepts bytes at once. Therefore, a few mappings serve thousands of flows. The pool
//! hands out the mapping that was freed last, because it is still in the cache.
//!
//! A peer that does not read keeps the memory of its flow's FIFO in use, and an attacker may open
//! many such connections. Therefore at most [`FIFOS_LARGE_MAX`] FIFOs are large, and all further
//! ones are small. All flows together use at most `FIFOS_LARGE_MAX * FIFO_LEN + 2 * TCP_FLOWS_MAX *
//! FIFO_LEN_SMALL` bytes, 768 MiB.
//!
//! Idle flows must not use up the large FIFOs that busy flows need:
//!
//! - [`ToProgram`] counts as large only while it has memory.
//! - [`FromProgram`] holds the bytes of an advertised receive window, so it keeps its size even
//!   while it has no memory. A new FIFO becomes large only if less than half of the large ones are
//!   in use.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_ring::{Payload, RecvBuffer, SendBuffer};
use towpath_shm::{Fragments, Mapping, Stretch};

use crate::limits::{FIFO_LEN, FIFO_LEN_SMALL, FIFOS_KEPT_MAX, FIFOS_LARGE_MAX};

/// Pool of memory for FIFOs. Clones of this handle share the pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct FifoPool {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Unused memory mappings: first those for large FIFOs, then those for small ones.
    free: [Vec<Arc<Mapping>>; 2],
    /// Number of large FIFOs, including those that back a receive window but have no memory.
    large: usize,
    large_max: usize,
    /// Maximum number of unused mappings that are kept for each size.
    kept_max: usize,
    /// Number of FIFOs that got the small size because the limit on large ones was reached.
    small: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Large,
    Small,
}

impl Size {
    fn len(self) -> u32 {
        match self {
            Self::Large => FIFO_LEN,
            Self::Small => FIFO_LEN_SMALL,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        let (free, large_max, kept_max) = (Default::default(), FIFOS_LARGE_MAX, FIFOS_KEPT_MAX);
        Self { free, large: 0, large_max, kept_max, small: 0 }
    }
}

impl FifoPool {
    /// Creates the pool of one of `gateways` gateways, among which the limit on large FIFOs is
    /// divided.
    pub(crate) fn of_one_of(gateways: usize) -> Self {
        let pool = Self::default();
        pool.limit(FIFOS_LARGE_MAX / gateways);
        pool.state().kept_max = FIFOS_KEPT_MAX / gateways;
        pool
    }

    /// Lowers the maximum number of large FIFOs.
    pub(crate) fn limit(&self, max: usize) {
        let mut state = self.state();
        state.large_max = state.large_max.min(max);
    }

    /// Returns the number of FIFOs that got the small size because the limit on large ones was
    /// reached.
    pub(crate) fn small(&self) -> u64 {
        self.state().small
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves one large FIFO. Returns false if the limit is reached.
    fn enlarge(&self) -> bool {
        self.enlarge_below(1)
    }

    /// Reserves one large FIFO if fewer than 1/`part` of the maximum are in use. Returns whether it
    /// succeeded.
    fn enlarge_below(&self, part: usize) -> bool {
        let mut state = self.state();
        let may = state.large < state.large_max.div_ceil(part);
        state.large += usize::from(may);
        may
    }

    fn count_small(&self) {
        self.state().small += 1;
    }

    fn take(&self, size: Size) -> Option<Arc<Mapping>> {
        let kept = self.state().free[size as usize].pop();
        kept.or_else(|| Mapping::private(size.len() as usize).ok().map(Arc::new))
    }

    /// Returns a mapping to the pool. If packets on the link still refer to its memory, drops it
    /// instead.
    fn give(&self, size: Size, mapping: Arc<Mapping>) {
        if is_lent(&mapping) {
            return;
        }
        let mut state = self.state();
        if state.free[size as usize].len() < state.kept_max {
            state.free[size as usize].push(mapping);
        }
    }
}

/// Returns whether packets on the link refer to memory of the mapping.
fn is_lent(mapping: &Arc<Mapping>) -> bool {
    let lent = Arc::strong_count(mapping) > 1;
    // Acquire: reads through the last dropped fragment happen before we reuse the memory.
    fence(Ordering::Acquire);
    lent
}

/// Ring buffer whose bytes are those between the positions `head` and `tail`, which wrap at 2^32.
#[derive(Debug)]
struct FlowFifo {
    pool: FifoPool,
    size: Size,
    mapping: Option<Arc<Mapping>>,
    head: u32,
    tail: u32,
    /// Position of the first byte to which packets on the link may refer, at most `head`. Memory
    /// before this position may be overwritten.
    free: u32,
}

impl FlowFifo {
    fn new(pool: &FifoPool, size: Size) -> Self {
        Self { pool: pool.clone(), size, mapping: None, head: 0, tail: 0, free: 0 }
    }

    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Ensures that the FIFO has memory. Returns false if the allocation failed.
    fn ensure(&mut self) -> bool {
        if self.mapping.is_none() {
            self.mapping = self.pool.take(self.size);
        }
        self.mapping.is_some()
    }

    /// Ensures that no packet on the link refers to the free part of the memory, which will be
    /// overwritten. If one does, copies the FIFO's bytes to another mapping, and leaves the old one
    /// to the packets. Copies are rare, because acknowledged bytes are on the link only after a
    /// retransmission. Returns false if the allocation failed.
    fn leave_lent(&mut self) -> bool {
        let (head, len) = (self.head, self.len());
        if let Some(mapping) = self.mapping.as_ref().filter(|_| self.free != head)
            && is_lent(mapping)
        {
            let Some(to) = self.pool.take(self.size) else { return false };
            for stretch in self.fragments(head, len).iter() {
                // Copy the bytes to the same offsets in the new mapping, so that positions in the
                // FIFO remain valid.
                to.copy_from(stretch.offset(), mapping, stretch.offset(), stretch.len() as usize);
            }
            self.mapping = Some(to);
        }
        self.free = head;
        true
    }

    /// Makes an empty small FIFO large if `bytes` do not fit into a small one and the limit on
    /// large FIFOs allows it.
    fn want(&mut self, bytes: u32) {
        if bytes > FIFO_LEN_SMALL && self.mapping.is_none() && self.size == Size::Small {
            self.become_large(self.pool.enlarge());
        }
    }

    fn become_large(&mut self, may: bool) {
        if may {
            self.size = Size::Large;
        }
    }

    fn become_small(&mut self) {
        if std::mem::replace(&mut self.size, Size::Small) == Size::Large {
            self.pool.state().large -= 1;
        }
    }

    fn give_back(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            self.pool.give(self.size, mapping);
        }
    }

    fn index(&self, position: u32) -> u32 {
        position & (self.size.len() - 1)
    }

    fn fragments(&self, position: u32, n: u32) -> Fragments {
        let Some(mapping) = self.mapping.as_ref().filter(|_| n > 0) else {
            return Fragments::empty();
        };
        let start = self.index(position);
        let first = n.min(self.size.len() - start);
        let second = (n > first).then(|| Stretch::new(mapping, 0, n - first));
        Fragments::new(Stretch::new(mapping, start as usize, first), second)
    }
}

impl Drop for FlowFifo {
    fn drop(&mut self) {
        self.give_back();
        self.become_small();
    }
}

/// FIFO of bytes that the program sends to the host.
#[derive(Debug)]
pub(crate) struct FromProgram {
    fifo: FlowFifo,
    /// Number of bytes after `tail` in which out-of-order bytes of the program may be stored.
    ahead: u32,
    /// Position of the last urgent byte that was not yet sent to the host; `None` without urgent
    /// data.
    mark: Option<u32>,
}

impl FromProgram {
    pub(crate) fn new(pool: &FifoPool) -> Self {
        let mut fifo = FlowFifo::new(pool, Size::Small);
        fifo.become_large(pool.enlarge_below(2));
        if fifo.size == Size::Small {
            pool.count_small();
        }
        Self { fifo, ahead: 0, mark: None }
    }

    /// Returns the bytes for the next send call, and whether they are urgent. The urgent byte is
    /// returned alone, after all bytes before it.
    pub(crate) fn peek(&self) -> (Fragments, bool) {
        let len = self.fifo.len();
        let ahead = self.mark.map(|mark| mark.wrapping_sub(self.fifo.head));
        let (n, is_urgent) = match ahead.filter(|ahead| *ahead < len) {
            Some(0) => (1, true),
            Some(ahead) => (ahead, false),
            None => (len, false),
        };
        (self.fifo.fragments(self.fifo.head, n), is_urgent)
    }

    /// Removes the first `n` bytes, after they were sent to the host.
    pub(crate) fn consume(&mut self, n: u32) {
        let n = n.min(self.fifo.len());
        // Forget the urgent position once the urgent byte was sent.
        self.mark = self.mark.filter(|mark| mark.wrapping_sub(self.fifo.head) >= n);
        self.fifo.head = self.fifo.head.wrapping_add(n);
        if self.fifo.len() == 0 && self.ahead == 0 {
            self.fifo.give_back();
        }
    }
}

impl RecvBuffer for FromProgram {
    fn capacity(&self) -> u32 {
        self.fifo.size.len()
    }

    fn unread(&self) -> u32 {
        self.fifo.len()
    }

    fn reserve(&mut self, _: u32) -> bool {
        self.fifo.ensure()
    }

    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool {
        let Some(end) = offset.checked_add(data.len()).filter(|end| *end <= self.free()) else {
            return false;
        };
        if !self.fifo.ensure() {
            return false;
        }
        let Some(mapping) = &self.fifo.mapping else { return false };
        let start = self.fifo.index(self.fifo.tail.wrapping_add(offset));
        let first = data.len().min(self.fifo.size.len() - start);
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

    fn mark_urgent(&mut self, offset: u32, _: Option<u8>) {
        self.mark = Some(self.fifo.tail.wrapping_add(offset));
    }

    fn want_capacity(&mut self, bytes: u32) {
        self.fifo.want(bytes);
    }
}

/// FIFO of bytes that the host sends to the program.
#[derive(Debug)]
pub(crate) struct ToProgram {
    fifo: FlowFifo,
}

impl ToProgram {
    pub(crate) fn new(pool: &FifoPool) -> Self {
        Self { fifo: FlowFifo::new(pool, Size::Small) }
    }

    /// Returns the free space in bytes. While the FIFO has no memory, this is a minimum, because
    /// the FIFO may still become large.
    pub(crate) fn room(&self) -> u32 {
        self.fifo.size.len() - self.fifo.len()
    }

    /// Returns the free memory of the FIFO, to receive into it. Empty if the FIFO is full, or no
    /// memory can be allocated.
    pub(crate) fn spare(&mut self) -> Fragments {
        if self.fifo.mapping.is_none() {
            self.fifo.become_large(self.fifo.pool.enlarge());
            if self.fifo.size == Size::Small {
                self.fifo.pool.count_small();
            }
        }
        if self.room() == 0 || !self.fifo.ensure() || !self.fifo.leave_lent() {
            return Fragments::empty();
        }
        self.fifo.fragments(self.fifo.tail, self.room())
    }

    /// Appends `n` bytes that were written to [`ToProgram::spare`].
    pub(crate) fn commit(&mut self, n: u32) {
        self.fifo.tail = self.fifo.tail.wrapping_add(n.min(self.room()));
    }

    /// Frees the memory of the FIFO if it is empty. The FIFO then no longer counts as large.
    pub(crate) fn trim(&mut self) {
        if self.fifo.len() == 0 {
            self.fifo.give_back();
            self.fifo.become_small();
        }
    }
}

impl SendBuffer for ToProgram {
    fn len(&self) -> u32 {
        self.fifo.len()
    }

    fn capacity(&self) -> u32 {
        self.fifo.size.len()
    }

    fn peek(&mut self, offset: u32, n: u32) -> Fragments {
        let n = n.min(self.fifo.len().saturating_sub(offset));
        self.fifo.fragments(self.fifo.head.wrapping_add(offset), n)
    }

    fn read(&self, offset: u32, to: &mut [u8]) -> bool {
        let n = to.len() as u32;
        let whole = n <= self.fifo.len().saturating_sub(offset);
        if whole {
            self.fifo.fragments(self.fifo.head.wrapping_add(offset), n).copy_to(0, to);
        }
        whole
    }

    fn release(&mut self, n: u32) {
        self.fifo.head = self.fifo.head.wrapping_add(n.min(self.fifo.len()));
        self.trim();
    }

    /// Does nothing, because [`ToProgram::spare`] makes the FIFO large whenever possible.
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
            // Write the second part first, so that it arrives out of order.
            assert!(recv.write_at(40_000, &Payload::new(b, Fragments::empty())));
            assert_eq!(recv.unread(), 0);
            assert!(recv.write_at(0, &Payload::new(a, Fragments::empty())));
            recv.commit(chunk.len() as u32);
            assert_eq!(bytes(&recv.peek().0), chunk);
            recv.consume(chunk.len() as u32);
        }
        let full = vec![1; FIFO_LEN as usize + 1];
        assert!(!recv.write_at(0, &Payload::new(&full, Fragments::empty())));
    }

    #[test]
    fn an_urgent_byte_goes_alone() {
        let mut recv = FromProgram::new(&FifoPool::default());
        let come = |recv: &mut FromProgram, part: &[u8], mark: Option<u32>| {
            mark.into_iter().for_each(|at| recv.mark_urgent(at, None));
            assert!(recv.write_at(0, &Payload::new(part, Fragments::empty())));
            recv.commit(part.len() as u32);
        };
        // The urgent position is announced before the urgent byte arrives. Later, another one is
        // announced.
        come(&mut recv, b"ab", Some(2));
        assert_eq!((bytes(&recv.peek().0), recv.peek().1), (b"ab".to_vec(), false));
        come(&mut recv, b"!cd?e", Some(3));
        for (part, is_urgent) in [(&b"ab!cd"[..], false), (b"?", true), (b"e", false)] {
            assert_eq!((bytes(&recv.peek().0), recv.peek().1), (part.to_vec(), is_urgent));
            recv.consume(part.len() as u32);
        }
        // If only a part of the bytes is sent, the urgent position does not change.
        come(&mut recv, b"abc!", Some(3));
        recv.consume(2);
        assert_eq!(bytes(&recv.peek().0), b"c");
        recv.consume(1);
        assert!(recv.peek().1);
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
        let kept = || pool.state().free[Size::Large as usize].len();
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

    #[test]
    fn nothing_is_written_where_a_packet_points_to() {
        let pool = FifoPool::default();
        let mut send = ToProgram::new(&pool);
        let mut packets: Vec<(Fragments, Vec<u8>)> = Vec::new();
        let (mut written, mut read) = (0u32, 0u32);
        for round in 0..200u32 {
            let spare = send.spare();
            let n = spare.len().min(40_000);
            let mapping = Arc::clone(send.fifo.mapping.as_ref().unwrap());
            for stretch in spare.slice(0, n).iter() {
                for at in stretch.offset()..stretch.offset() + stretch.len() as usize {
                    mapping.write(at, &[(written / 3) as u8]);
                    written += 1;
                }
            }
            send.commit(n);
            drop((mapping, spare));
            let len = send.len();
            let packet = send.peek(len / 3, len / 2);
            packets.push((packet.clone(), bytes(&packet)));
            let released = if round % 7 == 0 { len } else { len / 2 };
            read += released;
            send.release(released);
            if round % 3 != 0 {
                packets.remove(round as usize / 3 % packets.len());
            }
            assert!(packets.iter().all(|(packet, before)| bytes(packet) == *before), "{round}");
        }
        let expected: Vec<u8> = (read..written).map(|i| (i / 3) as u8).collect();
        assert_eq!(bytes(&send.peek(0, send.len())), expected);
    }

    /// Tests the limit on large FIFOs. Without it, peers that do not read could hold any amount of
    /// FIFO memory.
    #[test]
    fn memory_is_bounded_whatever_is_not_taken() {
        const FLOWS: usize = 500;
        let pool = FifoPool::default();
        pool.limit(6);
        let full = || {
            let mut recv = FromProgram::new(&pool);
            let room = recv.free();
            assert!(recv.write_at(0, &Payload::new(&vec![1; room as usize], Fragments::empty())));
            recv.commit(room);
            recv
        };
        let mut stuck: Vec<_> = (0..FLOWS).map(|_| full()).collect();
        let held = |recv: &FromProgram| recv.fifo.mapping.as_ref().unwrap().len();
        let all: usize = stuck.iter().map(held).sum();
        assert_eq!(all, 3 * FIFO_LEN as usize + (FLOWS - 3) * FIFO_LEN_SMALL as usize);
        assert_eq!(pool.small(), FLOWS as u64 - 3);
        // Fill the remaining three large FIFOs by flows that need more. New FIFOs are large only
        // while less than half of the large ones are in use.
        let mut quick: Vec<_> = (0..4).map(|_| FromProgram::new(&pool)).collect();
        quick.iter_mut().for_each(|recv| recv.want_capacity(FIFO_LEN));
        let capacities: Vec<_> = quick.iter().map(RecvBuffer::capacity).collect();
        assert_eq!(capacities, [FIFO_LEN, FIFO_LEN, FIFO_LEN, FIFO_LEN_SMALL]);
        let mut send = ToProgram::new(&pool);
        assert_eq!(send.spare().len(), FIFO_LEN_SMALL);
        // A small FIFO becomes large after a large one was freed, once the small one is empty.
        stuck.remove(0);
        assert!(quick[3].write_at(0, &Payload::new(&[1], Fragments::empty())));
        quick[3].commit(1);
        quick[3].want_capacity(FIFO_LEN);
        assert_eq!(quick[3].capacity(), FIFO_LEN_SMALL);
        quick[3].consume(1);
        quick[3].want_capacity(FIFO_LEN);
        assert_eq!(quick[3].capacity(), FIFO_LEN);
        stuck.remove(0);
        send.trim();
        assert_eq!(send.spare().len(), FIFO_LEN);
    }

    /// Tests that new FIFOs leave large ones to busy flows. Otherwise 512 idle connections would
    /// keep all later FIFOs small.
    #[test]
    fn idle_flows_leave_large_fifos_to_busy_ones() {
        let pool = FifoPool::default();
        pool.limit(8);
        let idle: Vec<_> =
            (0..50).map(|_| (FromProgram::new(&pool), ToProgram::new(&pool))).collect();
        for _ in 0..3 {
            let mut recv = FromProgram::new(&pool);
            recv.want_capacity(FIFO_LEN);
            assert_eq!(recv.capacity(), FIFO_LEN);
            let mut send = ToProgram::new(&pool);
            assert_eq!(send.spare().len(), FIFO_LEN);
            send.commit(10);
            send.release(10);
            assert_eq!(pool.state().large, 5);
        }
        drop(idle);
        assert_eq!(pool.state().large, 0);
    }
}
