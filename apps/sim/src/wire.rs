//! A direction of a link, and the device that it begins at.

use std::collections::VecDeque;

use towpath_link::{
    Chance, Dice, Dropped, Link, LinkConfig, Loss, Probability, RingConfig, RingDevice,
};
use towpath_qdisc::{Qdisc, TransmitPath, TransmitQueue};

use crate::packet::SimPacket;
use crate::queue::{QueueSpec, Sojourns};
use crate::result::TimeDistribution;
use crate::scenario::{DevicePlan, Outage, Place, WayPlan};

/// Packets that wait in the device of a host without a discipline: enough that it is never idle.
const DEVICE_RING: usize = 4;

/// Bytes of the longest frame.
const FRAME_MAX: u64 = 1_514;

/// Free descriptors with which a device wakes its queue: a batch is worth the wake.
const WAKE_ROOM: usize = 32;

/// A direction of a link.
///
/// A device with a ring, where the plan has one, is the bottleneck in the place of the link. The
/// discipline is above the device then, and the link has delay and impairments alone.
pub struct Wire {
    /// Times that packets waited in the queue.
    pub sojourns: Sojourns,
    /// Start of the direction.
    pub from: Place,
    /// End of the direction.
    pub to: Place,
    link: Link<SimPacket>,
    device: Option<TransmitPath<SimPacket, RingDevice<SimPacket>>>,
    /// The host at the start has more to send than there was room for.
    pub sender_waits: bool,
    /// The host keeps its packets while the device is busy.
    has_ring: bool,
    /// Packets come out in the order in which they go in, after the same delay, and none is dropped
    /// between.
    keeps_order: bool,
    /// Properties of the link while the direction is up.
    config: LinkConfig,
    /// Outages that are not over, the next one first.
    outages: VecDeque<Outage>,
}

impl Wire {
    /// An idle direction.
    pub fn new(from: Place, to: Place, way: &WayPlan, mut dice: Dice) -> Self {
        let sojourns = Sojourns::default();
        let is_switch = matches!(from, Place::Switch(_));
        let queue = match (&way.queue, is_switch) {
            (Some(queue), _) => queue.build(dice.next_u64(), &sojourns),
            (None, true) => QueueSpec::default().build(0, &sojourns),
            // The host's own queue is the one with a limit.
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

    /// A packet goes in.
    pub fn on_packet(&mut self, now: u64, item: SimPacket, drops: &mut Vec<Dropped<SimPacket>>) {
        match &mut self.device {
            None => self.link.on_packet(now, item, drops),
            Some(path) => {
                path.enqueue(now, item, drops);
                self.advance(now, drops);
            }
        }
    }

    /// The next packet that comes out by now.
    pub fn poll_packet(
        &mut self,
        now: u64,
        drops: &mut Vec<Dropped<SimPacket>>,
    ) -> Option<SimPacket> {
        self.advance(now, drops);
        self.link.poll_packet(now, drops)
    }

    /// Time at which [`Wire::poll_packet`] has work.
    pub fn next_timeout_ns(&self, now: u64) -> Option<u64> {
        let link = self.link.next_timeout_ns();
        if self.device.is_none() && self.outages.is_empty() {
            return link;
        }
        let device = self.device.as_ref().and_then(TransmitPath::next_timeout_ns);
        [link, device, self.next_switch(now)].into_iter().flatten().min()
    }

    /// Whether nothing has to be done before the first packet comes out, although others wait for
    /// the rate. The next call sends them at the times that were theirs.
    pub fn may_sleep(&self) -> bool {
        self.keeps_order && !self.sender_waits
    }

    /// Takes the direction down, or brings it up again.
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

    /// Time at which the direction goes down or comes up.
    fn next_switch(&self, now: u64) -> Option<u64> {
        let outage = self.outages.front()?;
        let at = if outage.from_ns > now { outage.from_ns } else { outage.until_ns };
        (at != u64::MAX).then_some(at)
    }

    /// Packets that the host at the start may send now, after [`Wire::poll_packet`] at this time.
    pub fn room(&self) -> usize {
        match &self.device {
            _ if !self.has_ring => usize::MAX,
            None => DEVICE_RING.saturating_sub(self.link.waiting()),
            Some(path) => path.room(FRAME_MAX),
        }
    }

    /// Whether the host at the start has more to send, and is to be called.
    pub fn wakes_sender(&self) -> bool {
        self.sender_waits && self.has_ring && (self.device.is_none() || self.room() > 0)
    }

    /// The link behind the queue.
    pub fn link(&self) -> &Link<SimPacket> {
        &self.link
    }

    /// The device, where there is one.
    pub fn device(&self) -> Option<&TransmitPath<SimPacket, RingDevice<SimPacket>>> {
        self.device.as_ref()
    }

    /// The discipline.
    pub fn queue(&self) -> &dyn Qdisc<SimPacket> {
        self.device.as_ref().map_or(self.link.queue(), |path| path.qdisc())
    }

    /// Times that packets waited in the queue.
    pub fn sojourn_times(&self) -> TimeDistribution {
        let sent = self.queue().stats().sent_packets;
        self.sojourns.with(|times| (&times.waits.with_zeros(sent)).into())
    }

    /// Bits per second that the direction carries.
    pub fn rate(&self) -> Option<u64> {
        match &self.device {
            Some(path) => Some(path.device().config().rate),
            None => self.link.config().rate,
        }
    }

    /// Packets that went in.
    pub fn entered(&self) -> u64 {
        match &self.device {
            Some(path) => path.qdisc().stats().enqueued_packets,
            None => self.link.stats().entered,
        }
    }

    /// Packets that the queue dropped.
    pub fn queue_dropped(&self) -> u64 {
        let above = self.device.as_ref().map_or(0, |path| path.qdisc().stats().dropped);
        above + self.link.stats().queue_dropped
    }

    /// Packets that were dropped or lost anywhere.
    pub fn dropped(&self) -> u64 {
        let above = self.device.as_ref().map_or(0, |path| path.qdisc().stats().dropped);
        above + self.link.stats().dropped()
    }

    /// Packets that wait, are in the device or on their way.
    pub fn held(&self) -> usize {
        let above = self
            .device
            .as_ref()
            .map_or(0, |path| path.qdisc().stats().backlog_packets as usize + path.device().held());
        above + self.link.held()
    }

    /// Bytes that the queue and its measurements have allocated, beside the packets.
    pub fn memory_bytes(&self) -> u64 {
        self.queue().memory_bytes() + self.sojourns.with(|times| times.waits.memory_bytes())
    }

    /// Moves packets from the device to the link, and from the discipline to the device.
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

/// Free descriptors with which a ring that was full wakes its queue.
pub fn wake_room(descriptors: usize) -> usize {
    WAKE_ROOM.min(descriptors / 4)
}
