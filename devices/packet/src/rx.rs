//! Receives frames from a packet socket.

use std::os::fd::AsFd;

use towpath_pool::{Batch, Pool};

use crate::open::PacketSocket;
use crate::sys::{BATCH, Received, TPID_8021Q};

/// Maximum length in bytes of frames that are copied to a small buffer, so that the large buffer
/// can be reused at once. Copying 2 KiB costs less than keeping 68 KiB allocated.
pub const COPY_MAX: usize = Pool::SMALL;

impl PacketSocket {
    /// Receives up to `max` frames, with at most [`BATCH`] per system call, until the socket is
    /// empty. Returns the number of packets added to `out`.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> usize {
        let (mut read, mut put_out) = (0, 0);
        while read < max && !self.presence.is_gone() {
            let wanted = (max - read).min(BATCH);
            while self.spare.len() < wanted {
                self.spare.push(pool.take(Pool::LARGE));
            }
            let received = self.receiver.receive(self.fd.as_fd(), &mut self.spare[..wanted]);
            let count = match received {
                Ok(count) => count,
                Err(error) => {
                    self.read_failed(now_ns, error);
                    break;
                }
            };
            // Count dropped frames too, because receiving them takes time.
            read += count;
            for n in 0..count {
                put_out += usize::from(self.take(now_ns, n, pool, out));
            }
            if count < wanted {
                break;
            }
        }
        put_out
    }

    /// Checks frame `n` of the last receive call, and adds it to `out`. Returns false if it was
    /// dropped.
    fn take(&mut self, now_ns: u64, n: usize, pool: &mut Pool, out: &mut Batch) -> bool {
        let Received { header, len, is_cut, tag } = self.receiver.frame(n);
        let packet = &mut self.spare[n];
        if is_cut {
            self.counters.rx_too_long += 1;
            return false;
        }
        if tag.is_some_and(|tag| tag.tpid != TPID_8021Q) {
            self.counters.rx_foreign_tag += 1;
            return false;
        }
        let frame = &packet.spare_mut()[..len];
        let Ok(meta) = towpath_virtio::parse(&header, frame) else {
            self.counters.rx_malformed += 1;
            return false;
        };
        let mut taken = if len <= COPY_MAX {
            let mut small = pool.take(len);
            small.spare_mut()[..len].copy_from_slice(frame);
            small
        } else {
            std::mem::replace(packet, pool.take(Pool::LARGE))
        };
        taken.received(len);
        taken.meta = meta;
        (taken.meta.arrival_ns, taken.meta.vlan) = (now_ns, tag.map(|tag| tag.tci));
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        out.push_back(taken);
        true
    }

    fn read_failed(&mut self, now_ns: u64, error: i32) {
        match error {
            libc::EAGAIN | libc::EINTR => {}
            _ => {
                self.counters.rx_errors += 1;
                self.look_whether_gone(now_ns);
            }
        }
    }
}
