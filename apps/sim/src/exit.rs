//! Exit of a simulation: a real device at the end of a link, with the queue in front of it.

use std::collections::VecDeque;

use towpath_link::Dropped;
use towpath_pool::{Batch, Packet, Pool, Port};
use towpath_qdisc::{Completed, Device, Qdisc, TransmitPath, TransmitQueue};

use crate::clock::monotonic_ns;
use crate::packet::SimPacket;
use crate::scenario::ExitPlan;

/// Number of free descriptors in the device's ring at which a stopped queue is woken. A higher
/// number lets each wake-up send a batch of packets.
const WAKE_ROOM: usize = 32;

/// Way out of the simulation: queueing discipline, byte queue limit, and real device.
pub struct Exit {
    path: TransmitPath<SimPacket, PortRing>,
}

impl Exit {
    /// Creates an exit without a device, which keeps packets in `queue`.
    pub fn new(queue: Box<dyn Qdisc<SimPacket>>, plan: &ExitPlan) -> Self {
        let control = TransmitQueue::new(wake_room(plan.ring), plan.limits);
        Self { path: TransmitPath::new(queue, control, PortRing::new(plan.ring)) }
    }

    /// Queues a packet for the device, which [`Exit::run`] sends.
    pub fn enqueue(&mut self, now: u64, item: SimPacket, drops: &mut Vec<Dropped<SimPacket>>) {
        self.path.enqueue(now, item, drops);
    }

    /// Passes packets to the device until it is full or the byte limit is reached.
    pub fn run(&mut self, now: u64, pool: &mut Pool, drops: &mut Vec<Dropped<SimPacket>>) {
        loop {
            self.path.run(now, drops);
            // Continue while the port accepts packets: it may already have sent the previous ones.
            if self.path.device_mut().flush(pool) == 0 {
                break;
            }
        }
    }

    /// Returns the time of a packet that the discipline delays.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.path.next_timeout_ns()
    }

    /// Returns whether the device has frames that it has not reported as sent. [`Exit::run`] must
    /// be called again soon then, because no event tells when they are sent.
    pub fn is_busy(&self) -> bool {
        !self.path.device().taken.is_empty()
    }

    /// Returns whether the device has refused frames, which [`Exit::run`] offers again.
    pub fn has_refused(&self) -> bool {
        !self.path.device().offered.is_empty()
    }

    /// Returns how many packets of at most `bytes` would be passed to the device now.
    pub fn room(&self, bytes: u64) -> usize {
        self.path.room(bytes)
    }

    /// Returns the discipline.
    pub fn qdisc(&self) -> &dyn Qdisc<SimPacket> {
        self.path.qdisc()
    }

    /// Returns the flow control of the device.
    pub fn queue(&self) -> &TransmitQueue {
        self.path.queue()
    }

    /// Returns the number of frames that the device may hold.
    pub fn ring(&self) -> usize {
        self.path.device().descriptors
    }

    /// Returns the number of packets that wait in the queueing discipline, or for the port to
    /// accept them.
    pub fn held(&self) -> usize {
        self.qdisc().stats().backlog_packets as usize + self.path.device().offered.len()
    }

    /// Returns the port; `None` if none is connected.
    pub fn port(&mut self) -> Option<&mut (dyn Port + Send + 'static)> {
        self.path.device_mut().port.as_deref_mut()
    }

    /// Connects the port of a device, or disconnects it with `None`. Returns the previous one.
    pub fn connect(&mut self, port: Option<Box<dyn Port + Send>>) -> Option<Box<dyn Port + Send>> {
        std::mem::replace(&mut self.path.device_mut().port, port)
    }
}

/// Ring of a real device: frames that wait for the port, and frames that the port has accepted and
/// not reported as sent.
pub struct PortRing {
    /// Port of the device; `None` if none is connected.
    pub port: Option<Box<dyn Port + Send>>,
    /// Maximum number of frames.
    descriptors: usize,
    /// Frames that the port has not accepted yet. Empty unless the port is full.
    offered: Batch,
    /// Lengths in bytes of the frames in `offered`.
    offered_lens: VecDeque<u32>,
    /// Lengths in bytes of accepted frames that the device has not sent yet, the oldest first.
    taken: VecDeque<u32>,
    taken_bytes: u64,
}

impl PortRing {
    /// Creates an empty ring of this number of frames, without a port.
    pub fn new(descriptors: usize) -> Self {
        Self {
            port: None,
            descriptors,
            offered: Batch::new(),
            offered_lens: VecDeque::new(),
            taken: VecDeque::new(),
            taken_bytes: 0,
        }
    }

    /// Adds a frame for [`PortRing::flush`]. The caller checks that the ring has room.
    pub fn offer(&mut self, packet: Packet) {
        self.offered_lens.push_back(packet.len() as u32);
        self.offered.push_back(packet);
    }

    /// Passes frames to the port until it accepts no more. Returns the number of accepted frames.
    pub fn flush(&mut self, pool: &mut Pool) -> usize {
        let Some(port) = &mut self.port else { return 0 };
        if self.offered.is_empty() {
            return 0;
        }
        let accepted = port.submit(monotonic_ns(), pool, &mut self.offered);
        for len in self.offered_lens.drain(..accepted) {
            self.taken.push_back(len);
            self.taken_bytes += u64::from(len);
        }
        accepted
    }
}

impl Device<SimPacket> for PortRing {
    fn room(&self) -> usize {
        self.descriptors.saturating_sub(self.offered.len() + self.taken.len())
    }

    fn transmit(&mut self, _: u64, item: SimPacket) -> Result<(), SimPacket> {
        if self.room() == 0 {
            return Err(item);
        }
        self.offer(item.into_packet());
        Ok(())
    }

    /// Reports the oldest frames as sent. The remaining frames contain at least as many bytes as
    /// the port reports as unsent.
    fn poll_completed(&mut self, _: u64) -> Completed {
        let mut completed = Completed::default();
        if self.taken.is_empty() {
            return completed;
        }
        let unsent = self.port.as_mut().and_then(|port| port.unsent_bytes()).unwrap_or(0);
        while let Some(&len) = self.taken.front()
            && self.taken_bytes - u64::from(len) >= unsent
        {
            self.taken.pop_front();
            self.taken_bytes -= u64::from(len);
            completed.packets += 1;
            completed.bytes += u64::from(len);
        }
        completed
    }

    /// Returns `None`, because the owner polls the device while [`Exit::is_busy`] is true.
    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }
}

/// Returns the number of free descriptors at which a stopped ring wakes its queue.
pub fn wake_room(descriptors: usize) -> usize {
    WAKE_ROOM.min(descriptors / 4)
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use towpath_pool::{LinkType, Offloads};
    use towpath_qdisc::{Fifo, QueueLimitsConfig};

    use super::*;

    /// Length of the frames in bytes.
    const LEN: usize = 1000;

    /// Device that the test controls.
    #[derive(Default)]
    struct FakeCard {
        /// Number of frames that the port accepts.
        room: AtomicUsize,
        /// Number of frames that the port has accepted and not sent; `usize::MAX` if it does not
        /// report this.
        unsent: AtomicUsize,
        accepted: AtomicUsize,
    }

    struct FakeCardPort(Arc<FakeCard>);

    impl Port for FakeCardPort {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            0
        }

        fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
            let n = batch.len().min(self.0.room.load(Relaxed));
            batch.drain(..n).for_each(|packet| pool.give(packet));
            self.0.room.fetch_sub(n, Relaxed);
            self.0.accepted.fetch_add(n, Relaxed);
            if self.0.unsent.load(Relaxed) != usize::MAX {
                self.0.unsent.fetch_add(n, Relaxed);
            }
            n
        }

        fn offloads(&self) -> Offloads {
            Offloads::default()
        }

        fn link_type(&self) -> LinkType {
            LinkType::Ethernet
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn unsent_bytes(&mut self) -> Option<u64> {
            let unsent = self.0.unsent.load(Relaxed);
            (unsent != usize::MAX).then(|| (unsent * LEN) as u64)
        }
    }

    struct ExitBench {
        exit: Exit,
        card: Arc<FakeCard>,
        pool: Pool,
    }

    impl ExitBench {
        /// Creates an exit (the sending side of a real device) with a ring of 8 frames. Its port
        /// accepts `room` frames.
        fn new(room: usize, has_limits: bool, reports: bool) -> Self {
            let limits = has_limits.then(QueueLimitsConfig::default);
            let plan = ExitPlan { ring: 8, limits, queue: None };
            let mut exit = Exit::new(Box::new(Fifo::packets(1000)), &plan);
            let card = Arc::new(FakeCard::default());
            card.room.store(room, Relaxed);
            card.unsent.store(if reports { 0 } else { usize::MAX }, Relaxed);
            exit.connect(Some(Box::new(FakeCardPort(Arc::clone(&card)))));
            Self { exit, card, pool: Pool::default() }
        }

        fn send(&mut self, count: usize) {
            for _ in 0..count {
                let mut packet = self.pool.take(LEN);
                packet.push_back(LEN).expect("taken with room").fill(0);
                let item = SimPacket::new(packet, &mut self.pool, 0);
                self.exit.enqueue(0, item, &mut Vec::new());
            }
            self.run();
        }

        fn run(&mut self) {
            self.exit.run(0, &mut self.pool, &mut Vec::new());
        }

        /// Returns the packets that the device has accepted, those in the discipline, and the bytes
        /// in flight.
        fn state(&self) -> (usize, u64, u64) {
            let backlog = self.exit.qdisc().stats().backlog_packets;
            (self.card.accepted.load(Relaxed), backlog, self.exit.queue().inflight())
        }
    }

    #[test]
    fn packets_wait_in_the_discipline_while_the_ring_is_full() {
        let mut bench = ExitBench::new(100, false, true);
        bench.send(20);
        assert_eq!(bench.state(), (8, 12, 8_000));
        assert_eq!(bench.exit.queue().stats().stops, 1);
        // Three sent frames free as many descriptors, more than the two that wake the queue.
        bench.card.unsent.store(5, Relaxed);
        bench.run();
        assert_eq!(bench.state(), (11, 9, 8_000));
        assert_eq!(bench.exit.queue().stats().wakes, 1);
        assert!(bench.exit.is_busy());
    }

    #[test]
    fn a_port_that_refuses_frames_gets_them_again() {
        let mut bench = ExitBench::new(3, false, false);
        bench.send(20);
        assert_eq!(bench.state(), (3, 9, 8_000), "three are sent, eight are offered");
        assert!(bench.exit.has_refused());
        bench.card.room.store(100, Relaxed);
        bench.run();
        assert_eq!(bench.state(), (20, 0, 0));
        assert!(!bench.exit.is_busy() && !bench.exit.has_refused());
    }

    #[test]
    fn a_byte_limit_keeps_the_ring_short() {
        let mut bench = ExitBench::new(100, true, true);
        bench.send(20);
        // The limit begins at 0 and allows one frame.
        assert_eq!(bench.state(), (1, 19, 1_000));
        bench.card.unsent.store(0, Relaxed);
        bench.run();
        let (accepted, _, inflight) = bench.state();
        assert!(accepted > 1 && inflight < 8_000, "{:?}", bench.state());
        assert!(bench.exit.queue().stats().limit_stops >= 1);
    }

    #[test]
    fn frames_of_a_device_without_reports_count_as_sent() {
        let mut bench = ExitBench::new(100, false, false);
        bench.send(20);
        assert_eq!(bench.state(), (20, 0, 0));
        assert_eq!(bench.exit.queue().stats().completed_packets, 20);
    }
}
