//! Receives frames from a queue of a DPDK port.

use towpath_pool::{Batch, Pool};

use crate::open::Queue;
use crate::sys;

impl Queue {
    /// Receives up to `max` frames and returns the number of packets added to `out`.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> usize {
        let owner = self.owner(pool);
        sys::reclaim(pool, owner);
        let (mut read, mut bytes, before) = (0, 0, out.len());
        while read < max {
            let wanted = (max - read).min(sys::BURST);
            let frames = self.receiver.receive(wanted);
            let count = frames.len();
            read += count;
            for frame in frames {
                let len = frame.len();
                let mut packet = if frame.is_plain() {
                    frame.into_packet(owner)
                } else if len <= Pool::LARGE {
                    self.counters.rx_copied += 1;
                    frame.into_copy(pool)
                } else {
                    // The frame is longer than any buffer, which only a faulty driver reports. Drop
                    // it.
                    self.counters.rx_too_long += 1;
                    frame.give_back();
                    continue;
                };
                packet.meta.arrival_ns = now_ns;
                bytes += len;
                out.push_back(packet);
            }
            if count < wanted {
                break;
            }
        }
        // Count dropped frames as activity, too.
        if read > 0 {
            self.pace.busy(now_ns)
        } else {
            self.pace.idle(now_ns)
        }
        let put_out = out.len() - before;
        self.counters.rx_frames += put_out as u64;
        self.counters.rx_bytes += bytes as u64;
        put_out
    }
}
