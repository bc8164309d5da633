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
    /// empty. Returns the number of packets added to `out`. Makes no system call right after the
    /// kernel has reported that the socket is empty. Otherwise a stack with several ports would
    /// read all of them for each frame of one.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> usize {
        let (mut read, mut put_out) = (0, 0);
        if std::mem::take(&mut self.is_empty) {
            return 0;
        }
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

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use towpath_interface::Interface;
    use towpath_pool::Port;
    use towpath_virtio::HEADER_LEN_LEGACY;

    use super::*;
    use crate::Parts;

    #[test]
    fn reads_no_socket_that_was_reported_empty() {
        // A pair of datagram sockets needs no capability, and is read by the same call.
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::NONBLOCK);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let interface = Interface {
            name: "pair".into(),
            index: 1,
            mtu: 1500,
            mac: [2; 6],
            driver: String::new(),
            queues: 1,
        };
        let parts = Parts { descriptors: vec![ours.into()], interface };
        let (mut socket, mut pool) = (PacketSocket::from_parts(parts), Pool::default());
        let mut poll = |ready: Option<bool>| {
            ready.into_iter().for_each(|ready| socket.looked(ready));
            let mut out = Batch::new();
            socket.poll(1, &mut pool, &mut out, 8)
        };
        let frame = [0; HEADER_LEN_LEGACY + 60];
        for (ready, count) in [(Some(false), 0), (None, 1), (Some(true), 1), (None, 1)] {
            send(&theirs, &frame, SendFlags::empty()).unwrap();
            let found = poll(ready);
            assert_eq!(found, count, "{ready:?}");
            if count == 0 {
                assert_eq!(poll(None), 1, "the report is of one poll");
            }
        }
    }
}
