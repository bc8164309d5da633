//! Direction of a link, together with the network device that feeds it.

use std::collections::VecDeque;

use towpath_link::{
    Chance, Dice, Dropped, Link, LinkConfig, Loss, Probability, RingConfig, RingDevice,
};
use towpath_qdisc::{Qdisc, TransmitPath, TransmitQueue};

use crate::packet::SimPacket;
use crate::queue::{QueueSpec, Sojourns};
use crate::result::TimeDistribution;
use crate::scenario::{DevicePlan, Outage, Place, WayPlan};

/// Maximum number of packets in a host's device without a queueing discipline: enough to keep the
/// device from becoming idle.
const DEVICE_RING: usize = 4;

/// Maximum length of a frame in bytes.
const FRAME_MAX: u64 = 1_514;

/// Number of free descriptors at which a device wakes its queue. Each wake-up thus serves a batch
/// of packets.
const WAKE_ROOM: usize = 32;

/// Direction of a link.
///
/// If the plan has a device with a ring, the device is the bottleneck instead of the link. The
/// queueing discipline is then above the device, and the link only adds delay and impairments.
pub struct Wire {
    /// Waiting times of the packets in the queue.
    pub sojourns: Sojourns,
    /// Host or switch at the start of the direction.
    pub from: Place,
    /// Host or switch at the end of the direction.
    pub to: Place,
    link: Link<SimPacket>,
    device: Option<TransmitPath<SimPacket, RingDevice<SimPacket>>>,
    /// Whether the sending host has more packets to send than the wire had room for.
    pub sender_waits: bool,
    /// Whether the sending host holds back packets while its device is busy.
    has_ring: bool,
    /// Whether packets leave in their order of arrival after a constant delay, and no packet is
    /// dropped after it was queued.
    keeps_order: bool,
    /// Properties of the link outside of outages.
    config: LinkConfig,
    /// Current and future outages in order of time.
    outages: VecDeque<Outage>,
}

impl Wire {
    /// Creates a direction without any packet.
    pub fn new(from: Place, to: Place, way: &WayPlan, mut dice: Dice) -> Self {
        let sojourns = Sojourns::default();
        let is_switch = matches!(from, Place::Switch(_));
        let queue = match (&way.queue, is_switch) {
            (Some(queue), _) => queue.build(dice.next_u64(), &sojourns),
            (None, true) => QueueSpec::default().build(0, &sojourns),
            // Use an unlimited queue here, because the host's own queue has a limit.
            (None, false) => QueueSpec::Pfifo(usize::MAX).build(0, &sojourns),
        };
        let has_ring = way.queue.is_none() && !is_switch;
        let is_fifo = way.queue.as_ref().is_none_or(QueueSpec::is_fifo);
        let LinkConfig { jitter_ns, reorder, .. } = way.config;
        let keeps_order = is_fifo
            && way.device.is_none()
            && way.outages.is_empty()
            && jitter_ns == 0
            && reorder.probability == Probability::NEVER;
        let (link, device) = match way.device {
            None => (Link::with_queue(way.config, queue, dice), None),
            Some(device) => {
                let config = LinkConfig { rate: None, ..way.config };
                (Link::new(config, dice), Some(path(queue, device)))
            }
        };
        let (config, outages) = (*link.config(), way.outages.iter().copied().collect());
        let sender_waits = false;
        Self {
            sojourns,
            from,
            to,
            link,
            device,
            sender_waits,
            has_ring,
            keeps_order,
            config,
            outages,
        }
    }

    /// Adds a packet to the queue of the wire. Dropped packets are added to `drops`.
    pub fn on_packet(&mut self, now: u64, item: SimPacket, drops: &mut Vec<Dropped<SimPacket>>) {
        match &mut self.device {
            None => self.link.on_packet(now, item, drops),
            Some(path) => {
                path.enqueue(now, item, drops);
                self.advance(now, drops);
            }
        }
    }

    /// Returns the next packet that is delivered at or before the time `now`. `None` if there is
    /// none.
    pub fn poll_packet(
        &mut self,
        now: u64,
        drops: &mut Vec<Dropped<SimPacket>>,
    ) -> Option<SimPacket> {
        self.advance(now, drops);
        self.link.poll_packet(now, drops)
    }

    /// Returns the next time at which [`Wire::poll_packet`] must be called. `None` if the wire is
    /// idle.
    pub fn next_timeout_ns(&self, now: u64) -> Option<u64> {
        let link = self.link.next_timeout_ns();
        if self.device.is_none() && self.outages.is_empty() {
            return link;
        }
        let device = self.device.as_ref().and_then(TransmitPath::next_timeout_ns);
        [link, device, self.next_switch(now)].into_iter().flatten().min()
    }

    /// Returns whether the wire need not be called before it delivers its first packet. Packets may
    /// wait for the rate meanwhile, and the next call sends them at their correct times.
    pub fn may_sleep(&self) -> bool {
        self.keeps_order && !self.sender_waits
    }

    /// Starts and ends the outages that are due at the time `now`.
    pub fn switch(&mut self, now: u64) {
        if self.outages.is_empty() {
            return;
        }
        while self.outages.front().is_some_and(|outage| outage.until_ns <= now) {
            self.outages.pop_front();
        }
        let is_down = self.outages.front().is_some_and(|outage| outage.from_ns <= now);
        let loss = Loss::Random(Chance::independent(Probability::ALWAYS));
        let config = if is_down { LinkConfig { loss, ..self.config } } else { self.config };
        self.link.configure(config);
    }

    /// Returns the time at which the next outage begins, or the current one ends. `None` if there
    /// is no such time.
    fn next_switch(&self, now: u64) -> Option<u64> {
        let outage = self.outages.front()?;
        let at = if outage.from_ns > now { outage.from_ns } else { outage.until_ns };
        (at != u64::MAX).then_some(at)
    }

    /// Returns the number of packets that the sending host may send now. [`Wire::poll_packet`] must
    /// be called before.
    pub fn room(&self) -> usize {
        match &self.device {
            _ if !self.has_ring => usize::MAX,
            None => DEVICE_RING.saturating_sub(self.link.waiting()),
            Some(path) => path.room(FRAME_MAX),
        }
    }

    /// Returns whether the sending host must be called, because it has more packets to send and the
    /// wire has room.
    pub fn wakes_sender(&self) -> bool {
        self.sender_waits && self.has_ring && (self.device.is_none() || self.room() > 0)
    }

    /// Returns the link after the queue.
    pub fn link(&self) -> &Link<SimPacket> {
        &self.link
    }

    /// Returns the device with its queueing discipline. `None` if the plan has no device.
    pub fn device(&self) -> Option<&TransmitPath<SimPacket, RingDevice<SimPacket>>> {
        self.device.as_ref()
    }

    /// Returns the queueing discipline of the device, or of the link if there is no device.
    pub fn queue(&self) -> &dyn Qdisc<SimPacket> {
        self.device.as_ref().map_or(self.link.queue(), |path| path.qdisc())
    }

    /// Returns the distribution of the waiting times in the queue.
    pub fn sojourn_times(&self) -> TimeDistribution {
        let sent = self.queue().stats().sent_packets;
        self.sojourns.with(|times| (&times.waits.with_zeros(sent)).into())
    }

    /// Returns the capacity in bits per second. `None` if it is unlimited.
    pub fn rate(&self) -> Option<u64> {
        match &self.device {
            Some(path) => Some(path.device().config().rate),
            None => self.link.config().rate,
        }
    }

    /// Returns the number of packets that entered the wire.
    pub fn entered(&self) -> u64 {
        match &self.device {
            Some(path) => path.qdisc().stats().enqueued_packets,
            None => self.link.stats().entered,
        }
    }

    /// Returns the number of packets that the queue dropped.
    pub fn queue_dropped(&self) -> u64 {
        let above = self.device.as_ref().map_or(0, |path| path.qdisc().stats().dropped);
        above + self.link.stats().queue_dropped
    }

    /// Returns the number of packets that the queue dropped or the link lost.
    pub fn dropped(&self) -> u64 {
        let above = self.device.as_ref().map_or(0, |path| path.qdisc().stats().dropped);
        above + self.link.stats().dropped()
    }

    /// Returns the number of packets in the queue, the device and the link together.
    pub fn held(&self) -> usize {
        let above = self
            .device
            .as_ref()
            .map_or(0, |path| path.qdisc().stats().backlog_packets as usize + path.device().held());
        above + self.link.held()
    }

    /// Returns the memory of the queue and its measurements in bytes. The packets are not included.
    pub fn memory_bytes(&self) -> u64 {
        self.queue().memory_bytes() + self.sojourns.with(|times| times.waits.memory_bytes())
    }

    /// Moves packets from the device to the link, and from the queueing discipline to the device.
    fn advance(&mut self, now: u64, drops: &mut Vec<Dropped<SimPacket>>) {
        let Some(path) = &mut self.device else { return };
        while let Some(item) = path.device_mut().poll_sent(now) {
            self.link.on_packet(now, item, drops);
        }
        path.run(now, drops);
    }
}

fn path(
    queue: Box<dyn Qdisc<SimPacket>>,
    device: DevicePlan,
) -> TransmitPath<SimPacket, RingDevice<SimPacket>> {
    let RingConfig { descriptors, .. } = device.ring;
    let control = TransmitQueue::new(wake_room(descriptors), device.limits);
    TransmitPath::new(queue, control, RingDevice::new(device.ring))
}

/// Returns the number of free descriptors at which a stopped ring of `descriptors` wakes its queue.
pub fn wake_room(descriptors: usize) -> usize {
    WAKE_ROOM.min(descriptors / 4)
}
