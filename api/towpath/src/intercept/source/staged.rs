//! A source of packets that receives and sends without the interceptor's lock, before and after
//! each iteration of the stack's event loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};

use super::SourcePort;

/// Maximum number of packets, up to 64 KiB each, that one iteration of the event loop receives and
/// sends. Sockets wait for the lock during the iteration, which therefore takes at most about 1 ms.
pub(crate) const TURN_PACKETS: usize = 64;

/// A source of packets for the stack. Its system calls are made before and after an iteration of
/// the stack's event loop, without the lock that sockets need. During the iteration, it is a port
/// of the stack.
pub(crate) struct StagedSource {
    source: SourcePort,
    /// Received packets that the stack has not processed yet.
    received: Batch,
    /// Packets that the stack has created, and that are not sent yet.
    outgoing: Batch,
    /// Whether the stack has further packets to send, which this port has not accepted yet.
    is_behind: bool,
    /// Whether this port can now accept packets that the stack could not send before.
    has_room: bool,
}

impl StagedSource {
    pub(crate) fn new(source: SourcePort) -> Self {
        let (received, outgoing) = (Batch::new(), Batch::new());
        Self { source, received, outgoing, is_behind: false, has_room: false }
    }

    /// Receives packets for the next iteration of the event loop. The task is woken when the source
    /// has more packets, or can send again.
    pub(crate) fn receive(&mut self, now_ns: u64, pool: &mut Pool, cx: &Context<'_>) {
        (self.is_behind, self.has_room) = (false, false);
        self.source.set_waker(cx);
        let max = TURN_PACKETS.saturating_sub(self.received.len());
        self.source.poll(now_ns, pool, &mut self.received, max);
    }

    /// Sends the packets of the last turn. If the source is blocked, the remaining ones wait.
    pub(crate) fn send(&mut self, now_ns: u64, pool: &mut Pool) {
        // Skip the call: sending an empty batch would clear the source's state "blocked", on which
        // the wake-up depends.
        if self.is_behind && self.outgoing.is_empty() {
            return;
        }
        self.source.submit(now_ns, pool, &mut self.outgoing);
        self.has_room = self.is_behind && self.outgoing.is_empty();
    }

    /// Returns the final result of the source if it has ended.
    pub(crate) fn take_end(&mut self) -> Option<io::Result<()>> {
        self.source.take_end()
    }

    /// Returns ready if packets can be received, or sent again after the source was blocked.
    /// Otherwise the task is woken when this becomes true.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_room { Poll::Ready(Ok(())) } else { self.source.poll_ready(cx) }
    }
}

impl Port for StagedSource {
    fn poll(&mut self, _now_ns: u64, _pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let count = self.received.len().min(max);
        out.extend(self.received.drain(..count));
        count
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut taken = 0;
        while self.outgoing.len() < TURN_PACKETS
            && let Some(packet) = batch.pop_front_if(|packet| packet.tail.is_empty())
        {
            self.outgoing.push_back(packet);
            taken += 1;
        }
        // Send at once, because the tail of a packet refers to the send FIFO of its connection. If
        // the packet waited until the lock is released, a write to the connection would have to
        // copy the FIFO.
        if !batch.is_empty() {
            self.source.submit(now_ns, pool, &mut self.outgoing);
            if self.outgoing.is_empty() {
                taken += self.source.submit(now_ns, pool, batch);
            }
        }
        self.is_behind = !batch.is_empty();
        taken
    }

    fn offloads(&self) -> Offloads {
        self.source.offloads()
    }

    fn link_type(&self) -> LinkType {
        self.source.link_type()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        self.source.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use bytes::Bytes;
    use tokio::sync::mpsc::{Receiver, channel};
    use towpath_pool::Packet;
    use towpath_ring::{HeapSend, Payload, SendBuffer};
    use towpath_shm::Fragments;

    use super::*;
    use crate::intercept::source::{MpscLink, PacketSource};

    /// Returns a source over channels, and the receiver of a channel with room for `room` sent
    /// packets.
    fn source(room: usize) -> (StagedSource, Receiver<Bytes>) {
        let ((_, packets), (to, sent)) = (channel(1), channel(room));
        let packets = PacketSource::new(Box::new(MpscLink::new(packets, to)));
        (StagedSource::new(SourcePort::Packets(Box::new(packets))), sent)
    }

    fn packet(pool: &mut Pool, number: u8) -> Packet {
        let mut packet = pool.take(1);
        packet.push_back(1).expect("taken with room")[0] = number;
        packet
    }

    fn sent_to(receiver: &mut Receiver<Bytes>) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| receiver.try_recv().ok()).map(Vec::from).collect()
    }

    #[test]
    fn packets_are_sent_after_the_turn_unless_data_of_a_connection_follows() {
        let (mut source, mut sent) = source(8);
        let (mut pool, mut batch) = (Pool::default(), Batch::new());
        batch.extend([1, 2].map(|number| packet(&mut pool, number)));
        assert_eq!(source.submit(1, &mut pool, &mut batch), 2);
        assert!(sent_to(&mut sent).is_empty());
        source.send(1, &mut pool);
        assert_eq!(sent_to(&mut sent), [[1], [2]]);

        let mut fifo = HeapSend::new(64, 64);
        fifo.write(&Payload::new(b"x", Fragments::empty()));
        batch.extend([3, 4, 5].map(|number| packet(&mut pool, number)));
        batch[1].tail = fifo.peek(0, 1);
        assert_eq!(source.submit(1, &mut pool, &mut batch), 3);
        assert_eq!(sent_to(&mut sent), [&[3][..], b"\x04x", &[5]]);
    }

    #[test]
    fn is_ready_for_packets_of_the_stack_if_room_appears_after_the_turn() {
        let ((_incoming, packets), (to, mut sent)) = (channel(1), channel(100));
        let packets = PacketSource::new(Box::new(MpscLink::new(packets, to)));
        let mut source = StagedSource::new(SourcePort::Packets(Box::new(packets)));
        let (mut pool, mut batch) = (Pool::default(), Batch::new());
        let mut cx = Context::from_waker(Waker::noop());
        batch.extend((0..=255).map(|number| packet(&mut pool, number)));
        for _ in 0..2 {
            source.receive(1, &mut pool, &cx);
            source.submit(1, &mut pool, &mut batch);
        }
        assert!(!batch.is_empty());
        assert_eq!(sent_to(&mut sent).len(), 100);
        source.send(1, &mut pool);
        assert!(source.poll_ready(&mut cx).is_ready());
    }

    #[test]
    fn packets_for_a_full_source_are_bounded() {
        let (mut source, _sent) = source(1);
        let (mut pool, mut batch) = (Pool::default(), Batch::new());
        let mut taken = 0;
        for _ in 0..10 {
            batch.extend((0..100).map(|number| packet(&mut pool, number)));
            taken += source.submit(1, &mut pool, &mut batch);
            source.send(1, &mut pool);
        }
        assert_eq!(taken + batch.len(), 1000);
        // No more packets fit: the channel, the link and the batch for the link are full.
        assert!(taken <= 3 * TURN_PACKETS, "{taken}");
    }
}
