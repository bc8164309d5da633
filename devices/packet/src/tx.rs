//! Sends frames on a packet socket.

use std::os::fd::AsFd;

use towpath_pool::{Batch, Packet, Pool};
use towpath_virtio::HEADER_LEN;

use crate::open::PacketSocket;
use crate::sys;

impl PacketSocket {
    /// Sends packets from the front of `batch`, up to `BATCH` per system call, until the socket
    /// accepts no more. Returns the number of packets removed from the batch.
    pub(crate) fn transmit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut taken = 0;
        self.blocked = false;
        while !batch.is_empty() {
            if self.presence.is_gone() {
                taken += self.refuse(pool, batch);
                continue;
            }
            // The first packet has inconsistent metadata, at which `send` stops.
            match self.sender.send(self.fd.as_fd(), batch.iter().map_while(headed)) {
                Ok(0) => {
                    self.counters.tx_malformed += 1;
                    taken += self.drop_front(pool, batch);
                }
                Ok(sent) => {
                    for packet in batch.drain(..sent) {
                        self.counters.tx_frames += 1;
                        self.counters.tx_bytes += packet.len() as u64;
                        self.sent.add(packet.len());
                        pool.give(packet);
                    }
                    taken += sent;
                }
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) => {
                    self.blocked = true;
                    self.counters.tx_blocked += 1;
                    break;
                }
                // The kernel rejected the frame, and another attempt would fail as well. ENETDOWN:
                // the interface is down. ENOBUFS, ENOMEM: the qdisc dropped the frame, or kernel
                // memory is exhausted. EINVAL, EMSGSIZE: the kernel considers the headers invalid.
                Err(_) => {
                    self.look_whether_gone(now_ns);
                    taken += self.refuse(pool, batch);
                }
            }
        }
        taken
    }

    /// Returns an estimate of the bytes of frames in the kernel's send buffer. The kernel reports
    /// only their memory, so assume the lengths of the last frames sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.sent.bytes_in(sys::queued(self.fd.as_fd()).into())
    }

    /// Drops the first packet of the batch, which the kernel has rejected.
    fn refuse(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.counters.tx_refused += 1;
        self.drop_front(pool, batch)
    }

    fn drop_front(&self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let Some(packet) = batch.pop_front() else { return 0 };
        pool.give(packet);
        1
    }
}

/// Moving sums of the lengths of the last frames sent, and of their memory in the kernel.
#[derive(Debug, Default)]
pub(crate) struct SentLengths {
    bytes: u64,
    memory: u64,
}

impl SentLengths {
    /// Adds a frame; each earlier one counts a sixteenth less.
    fn add(&mut self, len: usize) {
        self.bytes = self.bytes - self.bytes / 16 + len as u64;
        self.memory = self.memory - self.memory / 16 + frame_memory(len);
    }

    /// Returns the length of the frames in this memory.
    fn bytes_in(&self, memory: u64) -> u64 {
        (memory * self.bytes).checked_div(self.memory).unwrap_or(0)
    }
}

/// Returns the memory in bytes that Linux accounts for a frame of this length: `struct sk_buff`,
/// and a buffer rounded up to a power of two.
fn frame_memory(len: usize) -> u64 {
    const BUFFER_MORE: usize = 16 + 320;
    const DESCRIPTOR: usize = 256;
    ((len + BUFFER_MORE).next_power_of_two() + DESCRIPTOR) as u64
}

/// Returns a packet with the virtio header to send before it; `None` if the packet's metadata is
/// inconsistent.
fn headed(packet: &Packet) -> Option<([u8; HEADER_LEN], &Packet)> {
    Some((towpath_virtio::emit(&packet.meta, packet.linear()).ok()?, packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_frame_does_not_hide_the_long_ones_before_it() {
        let mut sent = SentLengths::default();
        assert_eq!(sent.bytes_in(1000), 0);
        (0..20).for_each(|_| sent.add(1514));
        sent.add(64);
        let bytes = sent.bytes_in(20 * frame_memory(1514) + frame_memory(64));
        assert!((28_000..33_000).contains(&bytes), "{bytes} of {}", 20 * 1514 + 64);
        assert_eq!(sent.bytes_in(0), 0);
    }
}
