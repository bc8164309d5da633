//! An XDP socket without its descriptors: four rings and the memory for frames.

use towpath_pool::{Batch, Packet, Pool};
use towpath_shm::Mapping;

use crate::chunks::{BadDescriptor, CHUNK, Chunks};
use crate::left_out;
use crate::open::Counters;
use crate::ring::{Descriptor, Ring};

/// Maximum frame length in bytes: IP packet, Ethernet header and VLAN tag.
const FRAME_MAX: usize = 65_535 + 18;
/// Maximum number of chunks per frame (MAX_SKB_FRAGS plus the first one).
const CHUNKS_MAX: usize = 18;

/// Rings and memory of an XDP socket, and its frame counters.
#[derive(Debug)]
pub struct Queue {
    memory: Mapping,
    chunks: Chunks,
    /// Receive ring and transmit ring.
    received: Ring,
    to_send: Ring,
    /// Fill ring and completion ring.
    fill: Ring,
    sent: Ring,
    /// Received frame of several chunks that is not complete yet.
    begun: Option<Packet>,
    /// Whether to drop the remaining chunks of the current frame because of an error.
    is_skipping: bool,
    /// Whether frames come from a sender on this machine. Their checksums may be incomplete then.
    from_here: bool,
    pub(crate) counters: Counters,
}

impl Queue {
    /// Creates a queue with the rings `[receive, transmit, fill, completion]` and the memory of
    /// `chunks`. Gives all chunks for receiving to the kernel.
    pub fn new(memory: Mapping, chunks: Chunks, rings: [Ring; 4], from_here: bool) -> Self {
        let [received, to_send, fill, sent] = rings;
        let counters = Counters::default();
        let (begun, is_skipping) = (None, false);
        let mut queue = Self {
            memory,
            chunks,
            received,
            to_send,
            fill,
            sent,
            begun,
            is_skipping,
            from_here,
            counters,
        };
        queue.refill();
        queue
    }

    /// Returns the number of chunks that the kernel owns.
    pub fn held_by_kernel(&self) -> usize {
        self.chunks.away()
    }

    /// Returns the number of times that the kernel has returned a chunk.
    pub fn taken_back(&self) -> u64 {
        self.chunks.taken_back()
    }

    /// Returns the frame counters of this queue.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns whether the kernel needs a system call to continue receiving.
    pub(crate) fn receiver_sleeps(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Returns whether the kernel needs a system call to continue sending.
    pub(crate) fn sender_sleeps(&self) -> bool {
        self.to_send.needs_wakeup()
    }

    /// Returns the number of frames in the transmit ring that the kernel has not processed yet.
    pub(crate) fn unsent(&self) -> u32 {
        self.to_send.waiting()
    }

    /// Returns whether the receive ring is empty.
    pub(crate) fn is_idle(&self) -> bool {
        self.received.available() == 0
    }

    /// Takes at most `max` entries from the receive ring. Returns the number of packets added to
    /// `out`.
    pub fn receive(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let before = out.len();
        let count = self.received.available().min(max.try_into().unwrap_or(u32::MAX));
        if count == 0 {
            return 0;
        }
        for _ in 0..count {
            let descriptor = self.received.take_descriptor();
            if let Some(mut packet) = self.take(&descriptor, pool) {
                packet.meta.arrival_ns = now_ns;
                if self.from_here {
                    packet.meta.checksum = left_out::checksum(packet.linear());
                }
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += packet.len() as u64;
                out.push_back(packet);
            }
        }
        self.received.release();
        self.refill();
        out.len() - before
    }

    /// Adds an entry of the receive ring to the current frame. Returns the packet if the frame is
    /// complete.
    fn take(&mut self, descriptor: &Descriptor, pool: &mut Pool) -> Option<Packet> {
        let Descriptor { address, len, goes_on } = *descriptor;
        let is_skipped = std::mem::replace(&mut self.is_skipping, false);
        let Ok(place) = self.chunks.received(address, len) else {
            self.counters.rx_malformed += 1;
            self.skip(goes_on, pool);
            return None;
        };
        if is_skipped {
            self.is_skipping = goes_on;
            return None;
        }
        let len = len as usize;
        let mut packet = match self.begun.take() {
            Some(packet) => packet,
            None if goes_on => pool.take(Pool::LARGE),
            None => pool.take(len),
        };
        if packet.len() + len > FRAME_MAX {
            self.counters.rx_too_long += 1;
            self.begun = Some(packet);
            self.skip(goes_on, pool);
            return None;
        }
        let room = packet.push_back(len).expect("a large buffer holds the longest frame");
        self.memory.read(place, room);
        if goes_on {
            self.begun = Some(packet);
            return None;
        }
        Some(packet)
    }

    /// Drops the current frame. If `goes_on`, its further entries will be dropped as well.
    fn skip(&mut self, goes_on: bool, pool: &mut Pool) {
        if let Some(packet) = self.begun.take() {
            pool.give(packet);
        }
        self.is_skipping = goes_on;
    }

    /// Gives free chunks for receiving to the kernel, by the fill ring.
    fn refill(&mut self) {
        let mut is_changed = false;
        for _ in 0..self.fill.room() {
            let Some(address) = self.chunks.fill() else { break };
            self.fill.put_address(address);
            is_changed = true;
        }
        if is_changed {
            self.fill.publish();
        }
    }

    /// Adds frames from the front of `batch` to the transmit ring until it is full. Returns the
    /// number of packets removed from the batch.
    pub fn send(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.reclaim();
        let mut taken = 0;
        while let Some(packet) = batch.front() {
            let count = packet.len().div_ceil(CHUNK).max(1);
            if count > CHUNKS_MAX {
                self.counters.tx_too_long += 1;
            } else if count > self.chunks.free() || count > self.to_send.room() as usize {
                break;
            } else {
                self.put(packet, count);
            }
            taken += 1;
            pool.give(batch.pop_front().expect("it was looked at"));
        }
        if taken > 0 {
            self.to_send.publish();
        }
        taken
    }

    /// Copies a packet to `count` chunks, and adds them to the transmit ring.
    fn put(&mut self, packet: &Packet, count: usize) {
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += packet.len() as u64;
        let len = packet.len();
        if count == 1 {
            let address = self.chunks.take(len as u32).expect("there is one");
            let (place, linear) = (address as usize, packet.linear());
            self.memory.write(place, linear);
            let mut at = place + linear.len();
            for stretch in packet.tail.iter() {
                stretch.copy_to_mapping(0, stretch.len(), &self.memory, at);
                at += stretch.len() as usize;
            }
            let descriptor = Descriptor { address, len: len as u32, goes_on: false };
            return self.to_send.put_descriptor(descriptor);
        }
        let mut bytes = [0; CHUNK];
        for start in (0..len).step_by(CHUNK) {
            let part = &mut bytes[..CHUNK.min(len - start)];
            packet.copy_to(start, part);
            let address = self.chunks.take(part.len() as u32).expect("there are enough");
            self.memory.write(address as usize, part);
            let goes_on = start + part.len() < len;
            let descriptor = Descriptor { address, len: part.len() as u32, goes_on };
            self.to_send.put_descriptor(descriptor);
        }
    }

    /// Takes back the chunks of sent frames, by the completion ring.
    pub(crate) fn reclaim(&mut self) {
        let count = self.sent.available();
        for _ in 0..count {
            let address = self.sent.take_address();
            match self.chunks.sent(address) {
                Ok(len) => self.counters.tx_completed_bytes += u64::from(len),
                Err(BadDescriptor) => self.counters.tx_malformed += 1,
            }
        }
        if count > 0 {
            self.sent.release();
        }
    }
}
