//! A simulated network card with a ring of descriptors, a line rate, and interrupt coalescing.

use std::collections::VecDeque;

use towpath_qdisc::{Completed, Device, Queueable};

/// Properties of a [`RingDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// Number of transmit descriptors. A packet occupies one descriptor until an interrupt reports
    /// that the packet was sent.
    pub descriptors: usize,
    /// Line rate in bits per second.
    pub rate: u64,
    /// Number of bytes that each packet needs on the wire in addition to its length, such as
    /// Ethernet's preamble and inter-packet gap.
    pub overhead: u64,
    /// Number of sent packets that trigger an interrupt (ethtool's `tx-frames`).
    pub frames: usize,
    /// Maximum time in nanoseconds from the first sent packet that was not reported yet to the
    /// interrupt (ethtool's `tx-usecs`). With 0, an interrupt reports each packet as soon as it is
    /// sent.
    pub delay_ns: u64,
}

impl Default for RingConfig {
    /// Returns a configuration with 256 descriptors, as in many drivers, a rate of 1 Gbit/s, and an
    /// interrupt for each packet.
    fn default() -> Self {
        Self { descriptors: 256, rate: 1_000_000_000, overhead: 0, frames: 1, delay_ns: 0 }
    }
}

/// A simulated network card that transmits packets one after another at its line rate.
///
/// [`RingDevice::poll_sent`] returns each packet at the time at which its transmission ends. A
/// descriptor stays in use until an interrupt reports the packet.
///
/// # Usage
/// Drain [`RingDevice::poll_sent`] before [`Device::poll_completed`], and call both at
/// [`Device::next_timeout_ns`].
#[derive(Debug)]
pub struct RingDevice<T> {
    config: RingConfig,
    /// Packets in the ring, each with the time in nanoseconds at which its transmission ends.
    waiting: VecDeque<(u64, T)>,
    /// Time in nanoseconds at which the transmission of the last packet in the ring ends.
    free_ns: u64,
    /// Sent packets that no interrupt has reported yet.
    unreported: Completed,
    /// Time of the next interrupt in nanoseconds; `None` if no interrupt is pending.
    interrupt_ns: Option<u64>,
    interrupts: u64,
}

impl<T: Queueable> RingDevice<T> {
    /// Creates an idle device. The device has at least one descriptor, even if the configuration
    /// has none.
    pub fn new(config: RingConfig) -> Self {
        Self {
            config,
            waiting: VecDeque::new(),
            free_ns: 0,
            unreported: Completed::default(),
            interrupt_ns: None,
            interrupts: 0,
        }
    }

    /// Removes and returns the next packet whose transmission has ended.
    pub fn poll_sent(&mut self, now_ns: u64) -> Option<T> {
        let (sent_ns, item) = self.waiting.pop_front_if(|(sent_ns, _)| *sent_ns <= now_ns)?;
        self.unreported.packets += 1;
        self.unreported.bytes += item.bytes() as u64;
        let later = sent_ns.saturating_add(self.config.delay_ns);
        let is_full = self.unreported.packets >= self.config.frames;
        let at = if is_full { sent_ns } else { later };
        self.interrupt_ns = Some(self.interrupt_ns.map_or(at, |other| other.min(at)));
        Some(item)
    }

    /// Returns the number of descriptors in use: of packets that wait, and of sent packets that no
    /// interrupt has reported yet.
    pub fn held(&self) -> usize {
        self.waiting.len() + self.unreported.packets
    }

    /// Returns the number of interrupts so far.
    pub fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// Returns the configuration of the device.
    pub fn config(&self) -> &RingConfig {
        &self.config
    }

    fn send_ns(&self, bytes: usize) -> u64 {
        let bits = (bytes as u128 + u128::from(self.config.overhead)) * 8_000_000_000;
        u64::try_from(bits / u128::from(self.config.rate.max(1))).unwrap_or(u64::MAX)
    }
}

impl<T: Queueable> Device<T> for RingDevice<T> {
    fn room(&self) -> usize {
        self.config.descriptors.max(1).saturating_sub(self.held())
    }

    fn transmit(&mut self, now_ns: u64, item: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(item);
        }
        let send_ns = self.send_ns(item.bytes());
        self.free_ns = self.free_ns.max(now_ns).saturating_add(send_ns);
        self.waiting.push_back((self.free_ns, item));
        Ok(())
    }

    fn poll_completed(&mut self, now_ns: u64) -> Completed {
        match self.interrupt_ns {
            Some(at) if at <= now_ns => {
                self.interrupt_ns = None;
                self.interrupts += 1;
                std::mem::take(&mut self.unreported)
            }
            _ => Completed::default(),
        }
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let sent = self.waiting.front().map(|(sent_ns, _)| *sent_ns);
        [sent, self.interrupt_ns].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use towpath_qdisc::{
        Dice, Fifo, QueueLimitsConfig, TransmitPath, TransmitQueue, TransmitStats,
    };

    use super::*;

    const US: u64 = 1_000;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Frame(u64, usize);

    impl Queueable for Frame {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    /// Returns a configuration in which a byte takes 8 ns.
    fn config(descriptors: usize, frames: usize, delay_ns: u64) -> RingConfig {
        RingConfig { descriptors, frames, delay_ns, ..RingConfig::default() }
    }

    fn frame(number: u64) -> Frame {
        Frame(number, 1250)
    }

    #[test]
    fn packets_leave_at_the_line_rate_and_descriptors_come_back_with_the_interrupt() {
        let mut ring = RingDevice::new(config(4, 3, 100 * US));
        for number in 0..4 {
            assert_eq!(ring.transmit(0, frame(number)), Ok(()));
        }
        assert_eq!((ring.room(), ring.transmit(0, frame(4))), (0, Err(frame(4))));
        // At 1 Gbit/s, 1250 bytes take 10 µs.
        let sent: Vec<(u64, u64)> = (0..=40)
            .filter_map(|us| Some((us, ring.poll_sent(us * US)?.0)))
            .filter(|(us, _)| *us < 21)
            .collect();
        assert_eq!(sent, [(10, 0), (20, 1)]);
        let mut ring = RingDevice::new(config(4, 3, 100 * US));
        (0..4).for_each(|number| assert_eq!(ring.transmit(0, frame(number)), Ok(())));
        let mut reports = Vec::new();
        while let Some(now) = ring.next_timeout_ns() {
            while ring.poll_sent(now).is_some() {}
            let report = ring.poll_completed(now);
            if report.packets > 0 {
                reports.push((now / US, report.packets, report.bytes, ring.room()));
            }
        }
        // The third packet triggers an interrupt. The fourth one is reported when the timer
        // expires.
        assert_eq!(reports, [(30, 3, 3750, 3), (140, 1, 1250, 4)]);
        assert_eq!(ring.interrupts(), 2);
    }

    #[test]
    fn each_packet_takes_its_overhead_on_the_wire() {
        let with = RingConfig { overhead: 24, ..RingConfig::default() };
        let mut ring = RingDevice::new(with);
        assert_eq!(ring.transmit(7, Frame(0, 64)), Ok(()));
        // The smallest Ethernet frame takes 88 bytes on the wire: 64 bytes and the overhead.
        assert_eq!(ring.next_timeout_ns(), Some(7 + 704));
        assert_eq!(ring.transmit(7, Frame(1, 64)), Ok(()));
        assert_eq!((ring.poll_sent(711), ring.poll_sent(711)), (Some(Frame(0, 64)), None));
        assert_eq!(ring.next_timeout_ns(), Some(711), "the interrupt is due");
    }

    /// Results of a transmit path whose queue always has packets.
    struct Run {
        sent: Vec<u64>,
        bytes: u64,
        /// Maximum number of bytes that the device held in the second half of the test.
        inflight_max: u64,
        stats: TransmitStats,
        limits: Vec<(u64, u64)>,
    }

    /// Runs a simulated device until `end` (in nanoseconds), and keeps its queue filled. With a
    /// seed, the packets have random lengths.
    fn saturate(
        config: RingConfig,
        limits: Option<QueueLimitsConfig>,
        seed: Option<u64>,
        end: u64,
    ) -> Run {
        let mut dice = Dice::new(seed.unwrap_or(0), 0);
        let queue = TransmitQueue::new(config.descriptors / 4, limits);
        let mut path =
            TransmitPath::new(Box::new(Fifo::packets(2000)), queue, RingDevice::new(config));
        let (mut now, mut next, mut drops) = (0, 0, Vec::new());
        let mut run = Run {
            sent: Vec::new(),
            bytes: 0,
            inflight_max: 0,
            stats: TransmitStats::default(),
            limits: Vec::new(),
        };
        while now <= end {
            while path.qdisc().stats().backlog_packets < 1000 {
                let bytes = if seed.is_some() { 60 + dice.below(1455) as usize } else { 1514 };
                path.enqueue(now, Frame(next, bytes), &mut drops);
                next += 1;
            }
            while let Some(frame) = path.device_mut().poll_sent(now) {
                run.sent.push(frame.0);
                run.bytes += frame.1 as u64;
            }
            path.run(now, &mut drops);
            if now > end / 2 {
                run.inflight_max = run.inflight_max.max(path.queue().inflight());
            }
            if let Some(state) = path.queue().limits() {
                assert_eq!(state.inflight, path.queue().inflight());
                run.limits.push((now, state.limit));
            }
            now = path.next_timeout_ns().expect("packets are there").max(now);
        }
        run.stats = path.queue().stats();
        assert!(drops.is_empty());
        run
    }

    #[test]
    fn a_full_ring_stops_the_queue_and_wakes_it_with_a_quarter_free() {
        let run = saturate(config(64, 1, 0), None, None, 50_000 * US);
        let stats = run.stats;
        assert!(stats.stops > 10 && stats.stops - stats.wakes <= 1, "{stats:?}");
        // Each wake-up of the queue frees 16 descriptors, which are filled at once.
        assert_eq!(stats.queued_packets, 64 + 16 * stats.wakes);
        assert_eq!(run.inflight_max, 64 * 1514);
        assert_eq!(run.sent, (0..run.sent.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn limits_keep_the_device_busy_with_few_bytes() {
        // Interrupts report one packet, 8 packets, or all packets of 100 µs (12,500 bytes).
        let cases =
            [(1, 0, 1514, 3_028), (8, 1_000 * US, 12_112, 20_000), (200, 100 * US, 0, 20_000)];
        for (frames, delay_ns, least, most) in cases {
            let bare = saturate(config(256, frames, delay_ns), None, None, 3_000_000 * US);
            let limits = Some(QueueLimitsConfig::default());
            let run = saturate(config(256, frames, delay_ns), limits, None, 3_000_000 * US);
            assert_eq!(bare.inflight_max, 256 * 1514, "{frames} frames");
            let inflight = run.inflight_max;
            assert!((least..=most).contains(&inflight), "{frames} frames: {inflight}");
            let share = run.bytes as f64 / bare.bytes as f64;
            assert!(share > 0.995, "{frames} frames: {share} of the goodput");
        }
    }

    #[test]
    fn limits_follow_an_interrupt_that_comes_later_and_sooner() {
        let slow =
            saturate(config(256, 200, 400 * US), Some(Default::default()), None, 3_000_000_000);
        let fast =
            saturate(config(256, 200, 50 * US), Some(Default::default()), None, 3_000_000_000);
        let last = |run: &Run| run.limits.last().expect("a limit").1;
        // At this rate, 400 µs correspond to 50,000 bytes, and 50 µs to 6,250 bytes.
        assert!((48_000..80_000).contains(&last(&slow)), "{}", last(&slow));
        assert!((4_000..12_000).contains(&last(&fast)), "{}", last(&fast));
        let steps = slow.limits.windows(2).filter(|pair| pair[1].1 < pair[0].1).count();
        assert!((1..=3).contains(&steps), "shrinks once a second at most: {steps}");
    }

    #[test]
    fn packets_keep_their_order_and_the_rate_is_used_whatever_their_lengths() {
        for seed in 0..20 {
            let mut dice = Dice::new(seed, 1);
            let ring = config(
                8 + dice.below(300) as usize,
                1 + dice.below(64) as usize,
                dice.below(500) * US,
            );
            let run = saturate(ring, Some(Default::default()), Some(seed), 2_000_000 * US);
            assert_eq!(run.sent, (0..run.sent.len() as u64).collect::<Vec<_>>(), "{ring:?}");
            let bare = saturate(ring, None, Some(seed), 2_000_000 * US);
            let share = run.bytes as f64 / bare.bytes as f64;
            assert!(share > 0.95, "{ring:?}: {share} of the rate");
            assert!(run.inflight_max <= bare.inflight_max, "{ring:?}");
        }
    }
}
