//! Receives frames from a TAP or TUN device.

use std::io::IoSliceMut;

use rustix::io::Errno;
use towpath_pool::{Batch, Packet, Pool};
use towpath_virtio::HEADER_LEN;

use crate::open::Tap;

/// Maximum length in bytes of frames that are copied to a small buffer, so that the large buffer
/// can be reused at once. Copying 2 KiB costs less than keeping 68 KiB allocated.
pub const COPY_MAX: usize = Pool::SMALL;

impl Tap {
    /// Reads up to `max` frames, until the device is empty. Returns the number of packets added to
    /// `out`.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> usize {
        let mut received = 0;
        if self.pace.pauses() {
            return received;
        }
        // Count dropped frames too, so that a poll has at most `max` reads. The descriptor stays
        // readable if frames remain.
        for read in 0..max {
            let is_long = || out.back().is_some_and(|packet| packet.len() > COPY_MAX);
            if self.gone || read == 1 && !self.pace.asks_on(now_ns, is_long()) {
                return received;
            }
            let mut packet = self.spare.take().unwrap_or_else(|| pool.take(Pool::LARGE));
            // If the device has no virtio header, a header of zeros describes a frame without
            // offloads.
            let mut header = [0; HEADER_LEN];
            let header_len = if self.has_header { HEADER_LEN } else { 0 };
            let room = packet.spare_mut().len();
            let parts = &mut [
                IoSliceMut::new(&mut header[..header_len]),
                IoSliceMut::new(packet.spare_mut()),
            ];
            let read = rustix::io::readv(&self.fd, parts);
            match read {
                Ok(n) if n >= header_len => {
                    packet.received(n - header_len);
                    received += usize::from(self.take(now_ns, &header, packet, room, pool, out));
                }
                Ok(_) => {
                    self.counters.rx_malformed += 1;
                    self.spare = Some(packet);
                }
                Err(error) => {
                    self.spare = Some(packet);
                    self.read_failed(error);
                    break;
                }
            }
        }
        self.pace.found(received);
        received
    }

    /// Checks a received frame, and adds it to `out`. If the frame is dropped, its buffer is used
    /// for the next read.
    fn take(
        &mut self,
        now_ns: u64,
        header: &[u8; HEADER_LEN],
        mut packet: Packet,
        room: usize,
        pool: &mut Pool,
        out: &mut Batch,
    ) -> bool {
        // Drop a frame that fills the buffer completely, because it may have been truncated.
        let too_long = packet.len() == room;
        let meta = match towpath_virtio::parse(header, packet.linear()) {
            Ok(meta) if !too_long => meta,
            _ => {
                let counter = if too_long {
                    &mut self.counters.rx_too_long
                } else {
                    &mut self.counters.rx_malformed
                };
                *counter += 1;
                self.spare = Some(packet);
                return false;
            }
        };
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += packet.len() as u64;
        if packet.len() <= COPY_MAX {
            let mut small = pool.take(packet.len());
            small.spare_mut()[..packet.len()].copy_from_slice(packet.linear());
            small.received(packet.len());
            self.spare = Some(std::mem::replace(&mut packet, small));
        }
        packet.meta = meta;
        packet.meta.arrival_ns = now_ns;
        out.push_back(packet);
        true
    }

    fn read_failed(&mut self, error: Errno) {
        match error {
            Errno::AGAIN | Errno::INTR => {}
            Errno::BADFD => self.vanish(),
            _ => self.counters.rx_errors += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use towpath_pool::Port;
    use towpath_shm::Fd;

    use super::*;
    use crate::kind::Kind;

    /// Tests that dropped frames count towards the maximum number of frames per poll.
    #[test]
    fn malformed_frames_do_not_hold_the_reader() {
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut tap = Tap::over(Fd::from(OwnedFd::from(ours)), Kind::Tap, "test".into(), false);
        // The header says TCP over IPv4 (gso_type), but lacks the flag NEEDS_CSUM.
        let mut frame = [0; HEADER_LEN + 64];
        frame[1] = 1;
        for _ in 0..8 {
            kernel.send(&frame).unwrap();
        }
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        for turn in 1..=2 {
            assert_eq!(tap.receive(1, &mut pool, &mut out, 4), 0);
            assert_eq!(tap.counters.rx_malformed, 4 * turn);
        }
    }

    #[test]
    fn frames_without_a_header_are_passed_as_they_are() {
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut tun = Tap::over(Fd::from(OwnedFd::from(ours)), Kind::Tun, "test".into(), false);
        tun.has_header = false;
        assert_eq!(Port::offloads(&tun), towpath_pool::Offloads::default());
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        for len in [20, COPY_MAX + 1] {
            kernel.send(&vec![0x45; len]).unwrap();
            tun.pace.looked(true);
            assert_eq!(tun.receive(1, &mut pool, &mut out, 1), 1);
            assert_eq!(out.back().unwrap().linear(), vec![0x45; len]);
            assert_eq!(tun.transmit(&mut pool, &mut out), 1);
            let mut sent = [0; 4096];
            assert_eq!(kernel.recv(&mut sent).unwrap(), len);
            assert_eq!(&sent[..len], vec![0x45; len]);
        }
    }

    /// Tests a burst that arrives after single frames, while the stack polls without sleeping.
    #[test]
    fn a_burst_after_lonely_frames_does_not_wait() {
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        kernel.set_nonblocking(true).unwrap();
        let mut tap = Tap::over(Fd::from(OwnedFd::from(ours)), Kind::Tap, "test".into(), false);
        let frame = [0; HEADER_LEN + 64];
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        let mut now = 1 << 30;
        for _ in 0..20 {
            kernel.send(&frame).unwrap();
            tap.pace.looked(true);
            now += 50_000;
            assert_eq!(tap.receive(now, &mut pool, &mut out, 64), 1);
        }
        let sent = (0..50).take_while(|_| kernel.send(&frame).is_ok()).count();
        assert!(sent > 5, "{sent}");
        let turns = |_| {
            now += 100_000;
            tap.receive(now, &mut pool, &mut out, 64)
        };
        let got: usize = (0..3).map(turns).sum();
        assert_eq!(got, sent);
    }
}
