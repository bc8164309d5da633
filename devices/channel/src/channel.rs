//! End of an in-memory link between two network stacks.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use towpath_pool::{Batch, LinkType, Meta, Offloads, Pool, Port};

use crate::way::{Refusal, Way};

/// An end of an in-memory link. Frames sent here are received at the peer end.
#[derive(Debug)]
pub struct ChannelPort {
    tx: Arc<Way>,
    rx: Arc<Way>,
    link: LinkType,
    /// Maximum length in bytes of a frame that is not to be segmented.
    frame_max: usize,
    counters: Counters,
}

towpath_pool::counters! {
    /// Frame counters of one end of the link since its creation.
    #[non_exhaustive]
    pub struct Counters {
        /// Frames received. A frame with several segments counts as one.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Frames sent. A frame that is to be segmented counts as one.
        tx_frames,
        /// Total length of sent frames in bytes.
        tx_bytes,
        /// Frames dropped because they exceed the maximum length of the link.
        tx_too_long,
        /// Frames dropped because the peer end no longer exists. The peer end was dropped before
        /// the frames were sent, or before it received them.
        tx_gone,
        /// Number of times that the link was full and refused frames. The sender keeps refused
        /// frames.
        tx_blocked,
    }
}

/// Length in bytes of an Ethernet header with a VLAN tag.
const ETHERNET_MAX: usize = 18;
/// Maximum length of an IP packet in bytes (RFC 791). A packet that is still to be segmented may
/// have this length.
const PACKET_MAX: usize = 65_535;

/// Creates an in-memory link of this type, with an MTU in bytes, and returns its two ends.
///
/// # Errors
/// Returns errors of eventfd(2) if no descriptors are available; a link needs two.
pub fn pair(link: LinkType, mtu: u32) -> io::Result<(ChannelPort, ChannelPort)> {
    let (there, back) = (Arc::new(Way::new()?), Arc::new(Way::new()?));
    let header = if link == LinkType::Ethernet { ETHERNET_MAX } else { 0 };
    let end = |tx: &Arc<Way>, rx: &Arc<Way>| ChannelPort {
        tx: Arc::clone(tx),
        rx: Arc::clone(rx),
        link,
        frame_max: header + mtu as usize,
        counters: Counters::default(),
    };
    Ok((end(&there, &back), end(&back, &there)))
}

impl ChannelPort {
    /// Returns the counters since the link was created.
    pub fn counters(&self) -> Counters {
        let tx_gone = self.counters.tx_gone + self.tx.left();
        Counters { tx_gone, ..self.counters }
    }

    /// Returns the maximum length in bytes of a frame with this metadata on the link.
    fn len_max(&self, meta: &Meta) -> usize {
        match meta.segmentation {
            Some(_) => PACKET_MAX + ETHERNET_MAX,
            None => self.frame_max,
        }
    }
}

impl Port for ChannelPort {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let before = out.len();
        let counters = &mut self.counters;
        let is_waited_for = self.rx.drain(max, |frame| {
            let mut packet = pool.take(frame.bytes.len());
            let to = packet.push_back(frame.bytes.len()).expect("taken with room");
            to.copy_from_slice(&frame.bytes);
            packet.meta = Meta { arrival_ns: now_ns, ..frame.meta };
            counters.rx_frames += 1;
            counters.rx_bytes += frame.bytes.len() as u64;
            out.push_back(packet);
        });
        if is_waited_for {
            // Wake the sender at the peer end, because the link has space for its frames again.
            self.tx.ring();
        }
        out.len() - before
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let (mut taken, mut sent) = (0, false);
        while let Some(packet) = batch.pop_front() {
            let len = packet.len();
            if len > self.len_max(&packet.meta) {
                self.counters.tx_too_long += 1;
            } else {
                match self.tx.room(len) {
                    Ok(room) => {
                        let meta = Meta { sender: None, ..packet.meta };
                        room.put(len, meta, |to| packet.copy_to(0, to));
                        self.counters.tx_frames += 1;
                        self.counters.tx_bytes += len as u64;
                        sent = true;
                    }
                    Err(Refusal::Gone) => self.counters.tx_gone += 1,
                    Err(Refusal::Full) => {
                        self.counters.tx_blocked += 1;
                        batch.push_front(packet);
                        break;
                    }
                }
            }
            taken += 1;
            pool.give(packet);
        }
        if sent {
            self.tx.ring();
        }
        taken
    }

    fn offloads(&self) -> Offloads {
        // The other end of the channel accepts packets with partial checksums and unsegmented
        // packets with offload metadata.
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true }
    }

    fn link_type(&self) -> LinkType {
        self.link
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rx.notifier())
    }

    fn is_gone(&self) -> bool {
        self.rx.has_ended()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        // Fewer frames were received than are queued, so the caller must poll again at once.
        self.rx.has_frames().then_some(0)
    }

    /// Returns 0, because every sent frame reaches the peer, even after this end is dropped.
    fn undelivered(&self) -> u64 {
        0
    }
}

impl Drop for ChannelPort {
    fn drop(&mut self) {
        self.tx.end();
        self.rx.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use towpath_pool::{Checksum, Packet, Protocol, Segmentation};

    use crate::way::{BYTES_MAX, FRAMES_MAX};

    /// A stack with one end of the link, for tests.
    struct End {
        port: ChannelPort,
        pool: Pool,
        out: Batch,
    }

    impl End {
        fn new(port: ChannelPort) -> Self {
            Self { port, pool: Pool::default(), out: Batch::new() }
        }

        fn packet(&mut self, len: usize, fill: u8) -> Packet {
            let mut packet = self.pool.take(len);
            packet.push_back(len).expect("room").fill(fill);
            packet
        }

        fn send(&mut self, packets: impl IntoIterator<Item = Packet>) -> usize {
            self.out.extend(packets);
            self.port.submit(0, &mut self.pool, &mut self.out)
        }

        fn recv(&mut self, max: usize) -> Batch {
            let mut batch = Batch::new();
            self.port.poll(9, &mut self.pool, &mut batch, max);
            batch
        }

        fn is_woken(&self) -> bool {
            let fd = self.port.wake_fd().expect("an eventfd");
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("open") == 1
        }
    }

    fn ends(link: LinkType, mtu: u32) -> (End, End) {
        let (one, other) = pair(link, mtu).expect("descriptors");
        (End::new(one), End::new(other))
    }

    #[test]
    fn frames_arrive_in_order_with_what_is_known_of_them() {
        let (mut one, mut other) = ends(LinkType::Ip, 1500);
        let mut cut = one.packet(40_000, 2);
        let segmentation = Segmentation { protocol: Protocol::Tcp4, size: 1460, header_len: 40 };
        cut.meta.segmentation = Some(segmentation);
        cut.meta.checksum = Checksum::Partial { start: 20, offset: 16 };
        cut.meta.sender = std::num::NonZeroU32::new(5);
        let first = one.packet(60, 1);
        assert!(!other.is_woken());
        assert_eq!(one.send([first, cut]), 2);
        assert!(other.is_woken());
        let batch = other.recv(64);
        assert!(!other.is_woken() && !one.is_woken());
        assert_eq!(batch.len(), 2);
        assert_eq!((batch[0].linear(), batch[0].meta.arrival_ns), (&[1; 60][..], 9));
        assert_eq!(batch[1].linear(), [2; 40_000]);
        assert_eq!(batch[1].meta.segmentation, Some(segmentation));
        assert_eq!(batch[1].meta.checksum, Checksum::Partial { start: 20, offset: 16 });
        assert_eq!(batch[1].meta.sender, None);
        let (sent, received) = (one.port.counters(), other.port.counters());
        assert_eq!((sent.tx_frames, sent.tx_bytes), (2, 40_060));
        assert_eq!((received.rx_frames, received.rx_bytes), (2, 40_060));
    }

    #[test]
    fn buffers_go_back_to_the_pools_that_they_are_of() {
        let (mut one, mut other) = ends(LinkType::Ip, 1500);
        for _ in 0..100 {
            let packet = one.packet(1500, 0);
            one.send([packet]);
            for packet in other.recv(64) {
                other.pool.give(packet);
            }
        }
        assert_eq!((one.pool.allocated(), other.pool.allocated()), (1, 1));
    }

    #[test]
    fn an_end_that_takes_less_than_there_is_stays_awake() {
        let (mut one, mut other) = ends(LinkType::Ip, 1500);
        let packets: Vec<_> = (0..3).map(|n| one.packet(100, n)).collect();
        one.send(packets);
        assert_eq!(other.recv(2).len(), 2);
        assert!(other.is_woken());
        assert_eq!(other.port.next_timeout_ns(), Some(0));
        assert_eq!(other.recv(2)[0].linear(), [2; 100]);
        assert!(!other.is_woken());
        assert_eq!(other.port.next_timeout_ns(), None);
    }

    #[test]
    fn a_full_link_refuses_frames_and_wakes_the_sender_when_half_is_free() {
        let (mut one, mut other) = ends(LinkType::Ip, 1500);
        let packets: Vec<_> = (0..FRAMES_MAX + 3).map(|_| one.packet(100, 7)).collect();
        assert_eq!(one.send(packets), FRAMES_MAX);
        assert_eq!((one.out.len(), one.port.counters().tx_blocked), (3, 1));
        other.recv(FRAMES_MAX / 2 - 1);
        assert!(!one.is_woken());
        other.recv(1);
        assert!(one.is_woken());
        // Receiving clears the notification even if no frame is queued.
        assert_eq!(one.recv(64).len(), 0);
        assert!(!one.is_woken());
        assert_eq!(one.send([]), 3);
        assert_eq!(other.recv(usize::MAX).len(), FRAMES_MAX / 2 + 3);
        let dropped = one.port.counters();
        assert_eq!((dropped.tx_gone, dropped.tx_too_long), (0, 0));
    }

    #[test]
    fn a_link_full_of_bytes_refuses_frames() {
        let (mut one, _other) = ends(LinkType::Ip, 65_535);
        let count = BYTES_MAX / 60_000;
        let packets: Vec<_> = (0..=count).map(|_| one.packet(60_000, 7)).collect();
        assert_eq!(one.send(packets), count);
        assert_eq!(one.out.len(), 1);
    }

    #[test]
    fn frames_that_are_too_long_are_dropped_and_counted() {
        for (link, most) in [(LinkType::Ip, 1500), (LinkType::Ethernet, 1518)] {
            let (mut one, mut other) = ends(link, 1500);
            let packets = [one.packet(most + 1, 1), one.packet(most, 2)];
            assert_eq!(one.send(packets), 2);
            assert_eq!(one.port.counters().tx_too_long, 1);
            assert_eq!(other.recv(64)[0].linear(), &vec![2; most][..]);
        }
    }

    #[test]
    fn an_end_gets_all_frames_of_one_that_is_gone() {
        let (mut one, mut other) = ends(LinkType::Ip, 1500);
        let packets: Vec<_> = (0..3).map(|n| one.packet(100, n)).collect();
        one.send(packets);
        assert_eq!(one.port.undelivered(), 0);
        drop(one);
        assert!(!other.port.is_gone() && other.is_woken());
        assert_eq!(other.recv(64).len(), 3);
        assert!(other.port.is_gone());
        let packet = other.packet(100, 0);
        assert_eq!(other.send([packet]), 1);
        assert_eq!(other.port.counters().tx_gone, 1);
    }

    #[test]
    fn an_idle_end_is_woken_by_the_end_of_the_other() {
        let (one, mut other) = ends(LinkType::Ip, 1500);
        assert!(!other.is_woken());
        drop(one);
        assert!(other.is_woken() && other.port.is_gone());
        assert_eq!(other.recv(64).len(), 0);
    }

    #[test]
    fn frames_that_a_dropped_end_left_count_as_lost() {
        let (mut one, other) = ends(LinkType::Ip, 1500);
        let packets: Vec<_> = (0..3).map(|n| one.packet(100, n)).collect();
        one.send(packets);
        drop(other);
        let counters = one.port.counters();
        assert_eq!((counters.tx_frames, counters.tx_gone), (3, 3));
        assert!(one.port.counters().iter().any(|counter| counter == ("tx_gone", 3)));
    }

    /// Tests that every frame arrives and no wake-up is lost, with each end on its own thread.
    #[test]
    fn frames_cross_threads_without_loss() {
        const COUNT: u32 = 20_000;
        let (mut one, mut other) = ends(LinkType::Ip, 1500);
        let sender = std::thread::spawn(move || {
            let mut next = 0;
            while next < COUNT || !one.out.is_empty() {
                while one.out.len() < 64 && next < COUNT {
                    let mut packet = one.packet(4, 0);
                    packet.linear_mut().copy_from_slice(&next.to_ne_bytes());
                    one.out.push_back(packet);
                    next += 1;
                }
                if one.send([]) == 0 {
                    wait(&one);
                    one.recv(64);
                }
            }
            one.port.counters()
        });
        let mut wanted = 0u32;
        while wanted < COUNT {
            wait(&other);
            for packet in other.recv(64) {
                assert_eq!(packet.linear(), wanted.to_ne_bytes());
                wanted += 1;
                other.pool.give(packet);
            }
        }
        let counters = sender.join().expect("no panic");
        assert_eq!((counters.tx_frames, counters.tx_gone), (COUNT.into(), 0));
    }

    /// Waits until the end's descriptor is readable, like a stack without work.
    fn wait(end: &End) {
        let fd = end.port.wake_fd().expect("an eventfd");
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, None).expect("open");
    }
}
