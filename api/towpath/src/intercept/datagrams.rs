//! Received datagrams, and ICMP errors about sent ones, queued until the program reads them.

use std::collections::VecDeque;
use std::task::Waker;

use towpath_stack::DatagramMeta;
use towpath_stack::net::IcmpError;

use super::client::{ClientKey, ClientShares};
use super::counters::InterceptCounters;
use super::limits::InterceptLimits;
use super::messages::MessageQueue;
use super::wakers::Wakers;

/// Bytes counted for each queued datagram in addition to its payload, because an empty datagram
/// takes memory, too.
const OVERHEAD: usize = 64;
/// Number of bytes of datagrams that a socket takes from the queue at once.
const TAKEN_BYTES: usize = 64 << 10;
/// Number of queued datagrams whose buffers may be larger than their payload. At most 256 KiB are
/// wasted in total. Buffers of further datagrams are shrunk.
const SPARE_MAX: usize = 64;

/// Queue of received datagrams, and of ICMP errors about sent ones.
#[derive(Debug, Default)]
pub(super) struct DatagramQueue {
    queue: VecDeque<(DatagramMeta, Vec<u8>)>,
    bytes: usize,
    per_client: ClientShares,
    pub(super) errors: MessageQueue<IcmpError>,
    /// Number of UDP sockets. If zero, datagrams are dropped.
    pub(super) sockets: usize,
    pub(super) receivers: Wakers,
    pub(super) senders: Wakers,
    pub(super) error_readers: Wakers,
}

impl DatagramQueue {
    /// Queues a datagram. If a limit is reached, drops and counts the datagram, and returns its
    /// buffer.
    pub(super) fn push(
        &mut self,
        meta: DatagramMeta,
        mut bytes: Vec<u8>,
        limits: &InterceptLimits,
        counters: &mut InterceptCounters,
    ) -> Option<Vec<u8>> {
        let (size, client) = (bytes.len() + OVERHEAD, ClientKey::of(meta.remote.ip()));
        let counter = if self.sockets == 0 {
            &mut counters.without_socket
        } else if self.bytes + size > limits.datagram_bytes {
            &mut counters.over_datagram_bytes
        } else if self.per_client.used(client) + size > limits.datagram_bytes_per_source {
            &mut counters.over_datagram_bytes_per_source
        } else {
            counters.datagrams_received += 1;
            self.bytes += size;
            self.per_client.add(client, size);
            // The buffer may have much more capacity than the datagram needs, but only the
            // datagram's length counts toward the limit.
            if self.queue.len() >= SPARE_MAX {
                bytes.shrink_to_fit();
            }
            self.queue.push_back((meta, bytes));
            return None;
        };
        *counter += 1;
        Some(bytes)
    }

    pub(super) fn pop(&mut self) -> Option<(DatagramMeta, Vec<u8>)> {
        let (meta, bytes) = self.queue.pop_front()?;
        let size = bytes.len() + OVERHEAD;
        self.bytes -= size;
        self.per_client.sub(ClientKey::of(meta.remote.ip()), size);
        Some((meta, bytes))
    }

    /// Moves about [`TAKEN_BYTES`] of datagrams to `to`, which no longer count as queued.
    pub(super) fn take(&mut self, to: &mut VecDeque<(DatagramMeta, Vec<u8>)>) {
        let left = self.bytes.saturating_sub(TAKEN_BYTES);
        while self.bytes > left
            && let Some(datagram) = self.pop()
        {
            to.push_back(datagram);
        }
    }

    /// Returns whether so many datagrams are queued that the next iteration of the event loop may
    /// drop some.
    pub(super) fn is_crowded(&self, limits: &InterceptLimits) -> bool {
        self.bytes > Self::bytes_max(limits) / 2
    }

    /// Returns whether so few datagrams are queued that the next iteration of the event loop drops
    /// none.
    pub(super) fn has_room(&self, limits: &InterceptLimits) -> bool {
        self.bytes < Self::bytes_max(limits) / 8
    }

    /// Returns the maximum number of bytes that datagrams of one source may occupy.
    fn bytes_max(limits: &InterceptLimits) -> usize {
        limits.datagram_bytes.min(limits.datagram_bytes_per_source)
    }

    /// Wakes tasks that wait for a datagram or an error, if one is queued.
    pub(super) fn wake_readers(&mut self, due: &mut Vec<Waker>) {
        if !self.queue.is_empty() {
            self.receivers.wake(due);
        }
        if !self.errors.is_empty() {
            self.error_readers.wake(due);
        }
    }

    pub(super) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        self.receivers.wake(due);
        self.senders.wake(due);
        self.error_readers.wake(due);
    }

    /// Drops all queued datagrams and errors, because no socket is left to read them.
    pub(super) fn clear(&mut self) {
        let Self { queue, bytes, per_client, errors, .. } = self;
        (*queue, *bytes, *per_client, *errors) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(last: u8) -> DatagramMeta {
        DatagramMeta {
            local: ([192, 0, 2, 7], 53).into(),
            remote: ([10, 0, 0, last], 4000).into(),
            iface: towpath_stack::IfaceId(1),
            ttl: 64,
            tos: 0,
            dont_fragment: false,
            arrival: towpath_stack::Instant(1),
            segment_size: 0,
        }
    }

    #[test]
    fn a_source_cannot_fill_the_queue() {
        let limits = InterceptLimits {
            datagram_bytes: 1000,
            datagram_bytes_per_source: 400,
            ..InterceptLimits::default()
        };
        let (mut queue, mut counters) = (DatagramQueue::default(), InterceptCounters::default());
        let mut push = |queue: &mut DatagramQueue, last| {
            queue.push(meta(last), vec![0; 36], &limits, &mut counters).is_none()
        };
        assert!(!push(&mut queue, 1), "there is no socket");
        queue.sockets = 1;
        assert_eq!((0..20).filter(|_| push(&mut queue, 1)).count(), 4);
        assert_eq!((0..20).filter(|_| push(&mut queue, 2)).count(), 4);
        assert_eq!((0..20).filter(|_| push(&mut queue, 3)).count(), 2);
        assert_eq!(counters.over_datagram_bytes_per_source, 32);
        assert_eq!(counters.over_datagram_bytes, 18);
        assert_eq!((counters.without_socket, counters.datagrams_received), (1, 10));
        while queue.pop().is_some() {}
        assert_eq!(queue.bytes, 0);
        assert!(queue.push(meta(1), vec![0; 36], &limits, &mut counters).is_none());
    }

    #[test]
    fn a_crowded_queue_has_room_again_only_after_most_of_it_was_read() {
        let limits = InterceptLimits { datagram_bytes_per_source: 1600, ..Default::default() };
        let (mut queue, mut counters) = (DatagramQueue::default(), InterceptCounters::default());
        queue.sockets = 1;
        while !queue.is_crowded(&limits) {
            assert!(queue.push(meta(1), vec![0; 36], &limits, &mut counters).is_none());
        }
        assert_eq!(queue.queue.len(), 9);
        let read = std::iter::from_fn(|| {
            let is_full = !queue.has_room(&limits);
            is_full.then(|| queue.pop())
        });
        assert_eq!(read.count(), 8);
    }

    #[test]
    fn a_part_of_the_queue_is_taken_at_once() {
        let limits = InterceptLimits::default();
        let (mut queue, mut counters) = (DatagramQueue::default(), InterceptCounters::default());
        queue.sockets = 1;
        for _ in 0..100 {
            assert!(queue.push(meta(1), vec![0; 1400], &limits, &mut counters).is_none());
        }
        let mut taken = VecDeque::new();
        queue.take(&mut taken);
        assert_eq!(taken.len(), TAKEN_BYTES.div_ceil(1400 + OVERHEAD));
        while !queue.queue.is_empty() {
            queue.take(&mut taken);
        }
        assert_eq!((taken.len(), queue.bytes), (100, 0));
    }

    #[test]
    fn waiting_datagrams_take_no_more_memory_than_they_count() {
        let limits = InterceptLimits::default();
        let (mut queue, mut counters) = (DatagramQueue::default(), InterceptCounters::default());
        queue.sockets = 1;
        for _ in 0..1000 {
            let mut bytes = Vec::with_capacity(4096);
            bytes.push(7);
            assert!(queue.push(meta(1), bytes, &limits, &mut counters).is_none());
        }
        let taken: usize = queue.queue.iter().map(|(_, bytes)| bytes.capacity()).sum();
        assert!(taken <= SPARE_MAX * 4096 + queue.bytes, "{taken}");
    }
}
