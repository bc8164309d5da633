//! Sends frames to a TAP or TUN device.

use std::os::fd::AsFd;

use towpath_pool::{Batch, Packet, Pool};

use crate::open::Tap;
use crate::sys::FramePieces;

/// Result of sending one frame.
enum FrameSent {
    Yes,
    /// The frame was dropped and counted.
    Lost,
    /// The device's queue is full, so the frame must be sent later.
    Later,
}

impl Tap {
    /// Sends packets from the front of `batch` until the device accepts no more.
    pub(crate) fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut taken = 0;
        self.blocked = false;
        while let Some(packet) = batch.pop_front() {
            match self.write(&packet) {
                FrameSent::Yes => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += packet.len() as u64;
                }
                FrameSent::Lost => {}
                FrameSent::Later => {
                    self.blocked = true;
                    self.counters.tx_blocked += 1;
                    batch.push_front(packet);
                    break;
                }
            }
            taken += 1;
            pool.give(packet);
        }
        taken
    }

    fn write(&mut self, packet: &Packet) -> FrameSent {
        if self.gone {
            self.counters.tx_refused += 1;
            return FrameSent::Lost;
        }
        let Ok(header) = towpath_virtio::emit(&packet.meta, packet.linear()) else {
            self.counters.tx_malformed += 1;
            return FrameSent::Lost;
        };
        let header: &[u8] = if self.has_header { &header } else { &[] };
        let pieces = FramePieces::new(header, packet);
        loop {
            let Err(error) = pieces.write(self.fd.as_fd()) else { return FrameSent::Yes };
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN) => return FrameSent::Later,
                Some(libc::EBADFD) => self.vanish(),
                // The kernel rejected the frame, and another attempt would fail as well. EIO: the
                // interface is down. ENOBUFS, ENOMEM: kernel memory is exhausted. EINVAL: the
                // kernel considers the headers invalid.
                _ => {}
            }
            self.counters.tx_refused += 1;
            return FrameSent::Lost;
        }
    }
}
