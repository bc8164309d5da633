//! Receiving frames.

use towpath_pool::{Batch, Checksum, Pool};

use crate::open::Queue;
use crate::sys;

impl Queue {
    /// Moves up to `max` frames to the back of `out`. Returns how many packets came of them.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> usize {
        let owner = self.owner(pool);
        sys::reclaim(pool, owner);
        let (mut read, mut put_out) = (0, 0);
        while read < max {
            let wanted = (max - read).min(sys::BURST);
            let count = self.receiver.receive(wanted);
            read += count;
            while let Some(arrived) = self.receiver.look() {
                // A length that no buffer holds is a driver's error.
                if arrived.len > Pool::LARGE {
                    self.counters.rx_too_long += 1;
                    self.receiver.skip();
                    continue;
                }
                let mut packet = if arrived.is_plain {
                    self.receiver.next_packet(owner)
                } else {
                    self.counters.rx_copied += 1;
                    let mut packet = pool.take(arrived.len);
                    self.receiver.copy(&mut packet);
                    packet
                };
                packet.meta.arrival_ns = now_ns;
                packet.meta.hash = arrived.hash;
                packet.meta.vlan = arrived.vlan;
                if arrived.is_verified {
                    packet.meta.checksum = Checksum::Verified;
                }
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += arrived.len as u64;
                out.push_back(packet);
                put_out += 1;
            }
            if count < wanted {
                break;
            }
        }
        // Frames that are dropped are work, too.
        if read > 0 {
            self.pace.busy(now_ns)
        } else {
            self.pace.idle(now_ns)
        }
        put_out
    }
}
