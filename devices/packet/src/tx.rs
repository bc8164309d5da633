//! Sends frames on a packet socket.

use std::os::fd::AsFd;

use towpath_pool::{Batch, Packet, Pool};
use towpath_virtio::HEADER_LEN;

use crate::open::PacketSocket;

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

/// Returns a packet with the virtio header to send before it; `None` if the packet's metadata is
/// inconsistent.
fn headed(packet: &Packet) -> Option<([u8; HEADER_LEN], &Packet)> {
    Some((towpath_virtio::emit(&packet.meta, packet.linear()).ok()?, packet))
}
