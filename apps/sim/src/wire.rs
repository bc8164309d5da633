//! Direction of a link, together with the network device that feeds it.

use std::collections::VecDeque;

use towpath_link::{
    Chance, Dice, Dropped, Link, LinkConfig, Loss, Probability, RingConfig, RingDevice,
};
use towpath_pool::Pool;
use towpath_qdisc::{Qdisc, TransmitPath, TransmitQueue};

use crate::exit::{Exit, wake_room};
use crate::packet::SimPacket;
use crate::queue::{QueueSpec, Sojourns};
use crate::result::TimeDistribution;
use crate::scenario::{DevicePlan, Outage, Place, WayPlan};

/// Maximum number of packets in a host's device without a queueing discipline: enough to keep the
/// device from becoming idle.
const DEVICE_RING: usize = 4;

/// Maximum length of a frame in bytes.
const FRAME_MAX: u64 = 1_514;

/// Direction of a link.
///
/// If the plan has a device with a ring, the device is the bottleneck instead of the link. The
/// queueing discipline is then above the device, and the link only adds delay and impairments.
///
/// At its end a direction may have an exit: a real device through which packets leave. Without a
/// rate of the link, the device is the bottleneck, and the queueing discipline is above it.
pub struct Wire {
    /// Waiting times of the packets in the queue.
    pub sojourns: Sojourns,
    /// Host or switch at the start of the direction.
    pub from: Place,
    /// Host or switch at the end of the direction.
    pub to: Place,
    link: Link<SimPacket>,
    device: Option<TransmitPath<SimPacket, RingDevice<SimPacket>>>,
    exit: Option<Exit>,
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
    /// Creates a direction of a link. No packets are on it yet.
    pub fn new(from: Place, to: Place, way: &WayPlan, mut dice: Dice) -> Self {
        let sojourns = Sojourns::default();
        // A simulated host waits for its device and has a queue of its own, so it needs no limit
        // here.
        let is_host = matches!(from, Place::Host(_)) && !way.is_entrance;
        let usual = if is_host { QueueSpec::Pfifo(usize::MAX) } else { QueueSpec::default() };
        let queue = match &way.queue {
            Some(queue) => queue.build(dice.next_u64(), &sojourns),
            None => usual.build(0, &sojourns),
        };
        let is_limited = way.config.rate.is_some();
        let exit = way.exit.as_ref().map(|plan| {
            // Measure waiting times where the bottleneck is.
            let times = if is_limited { Sojourns::default() } else { sojourns.clone() };
            let usual = if is_limited { QueueSpec::default() } else { usual.clone() };
            let queue = plan.queue.as_ref().unwrap_or(&usual);
            Exit::new(queue.build(dice.next_u64(), &times), plan)
        });
        let is_queued = way.queue.is_some()
            || !is_limited && way.exit.as_ref().is_some_and(|plan| plan.queue.is_some());
        let has_ring = is_host && !is_queued;
        let is_fifo = way.queue.as_ref().is_none_or(QueueSpec::is_fifo);
        let LinkConfig { jitter_ns, reorder, .. } = way.config;
        let keeps_order = is_fifo
            && way.device.is_none()
            && way.exit.is_none()
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
            exit,
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

    /// Passes a packet to the exit (the real device) after the link has delivered it.
    ///
    /// # Panics
    /// If there is no exit.
    pub fn leave(&mut self, now: u64, item: SimPacket, drops: &mut Vec<Dropped<SimPacket>>) {
        let exit = self.exit.as_mut().expect("the caller checks that there is an exit");
        exit.enqueue(now, item, drops);
    }

    /// Sends queued packets through the exit (the real device), if there is one.
    pub fn run_exit(&mut self, now: u64, pool: &mut Pool, drops: &mut Vec<Dropped<SimPacket>>) {
        if let Some(exit) = &mut self.exit {
            exit.run(now, pool, drops);
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
        if self.device.is_none() && self.exit.is_none() && self.outages.is_empty() {
            return link;
        }
        let device = self.device.as_ref().and_then(TransmitPath::next_timeout_ns);
        let exit = self.exit.as_ref().and_then(Exit::next_timeout_ns);
        [link, device, exit, self.next_switch(now)].into_iter().flatten().min()
    }

    /// Returns whether the wire need not be called before it delivers its first packet. Further
    /// packets may queue because of the rate limit. The next call computes the correct times at
    /// which they are sent.
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
        if !self.has_ring {
            return usize::MAX;
        }
        match (&self.device, self.bottleneck()) {
            (Some(path), _) => path.room(FRAME_MAX),
            (None, Some(exit)) => exit.room(FRAME_MAX),
            (None, None) => DEVICE_RING.saturating_sub(self.link.waiting()),
        }
    }

    /// Returns whether the sending host must be called, because it has more packets to send and the
    /// wire has room.
    pub fn wakes_sender(&self) -> bool {
        let has_card = self.device.is_some() || self.bottleneck().is_some();
        self.sender_waits && self.has_ring && (!has_card || self.room() > 0)
    }

    /// Returns the exit if it is the bottleneck, because the link has no rate.
    fn bottleneck(&self) -> Option<&Exit> {
        self.exit.as_ref().filter(|_| self.config.rate.is_none() && self.device.is_none())
    }

    /// Returns the link after the queue.
    pub fn link(&self) -> &Link<SimPacket> {
        &self.link
    }

    /// Returns whether the room for packets depends on a device.
    pub fn has_card(&self) -> bool {
        self.device.is_some() || self.exit.is_some()
    }

    /// Returns whether packets leave the simulation at the end.
    pub fn has_exit(&self) -> bool {
        self.exit.is_some()
    }

    /// Returns the exit (the real device at the end), if there is one.
    pub fn exit(&mut self) -> Option<&mut Exit> {
        self.exit.as_mut()
    }

    /// Returns the state of the simulated card, or of the real device; `None` without both.
    pub fn card(&self) -> Option<CardState<'_>> {
        let simulated = self.device.as_ref().map(|path| CardState {
            queue: path.queue(),
            ring: path.device().config().descriptors,
            interrupts: path.device().interrupts(),
        });
        let real = || self.exit.as_ref();
        simulated.or_else(|| {
            real().map(|exit| CardState { queue: exit.queue(), ring: exit.ring(), interrupts: 0 })
        })
    }

    /// Returns the queueing discipline of the device, or of the link if there is no device.
    pub fn queue(&self) -> &dyn Qdisc<SimPacket> {
        match (&self.device, self.bottleneck()) {
            (Some(path), _) => path.qdisc(),
            (None, Some(exit)) => exit.qdisc(),
            (None, None) => self.link.queue(),
        }
    }

    /// Returns the numbers of packets and bytes that have reached the end of the direction. If
    /// there is an exit, counts only those that its device has sent.
    pub fn delivered(&self) -> (u64, u64) {
        match &self.exit {
            Some(exit) => {
                let stats = exit.queue().stats();
                (stats.completed_packets, stats.completed_bytes)
            }
            None => (self.link.stats().delivered, self.link.stats().delivered_bytes),
        }
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

    /// Returns the number of packets dropped by queues.
    pub fn queue_dropped(&self) -> u64 {
        self.dropped_at_devices() + self.link.stats().queue_dropped
    }

    /// Returns the number of packets that the queue dropped or the link lost.
    pub fn dropped(&self) -> u64 {
        self.dropped_at_devices() + self.link.stats().dropped()
    }

    fn dropped_at_devices(&self) -> u64 {
        let above = self.device.as_ref().map_or(0, |path| path.qdisc().stats().dropped);
        above + self.exit.as_ref().map_or(0, |exit| exit.qdisc().stats().dropped)
    }

    /// Returns the number of packets in queues, the device and the link.
    pub fn held(&self) -> usize {
        let above = self
            .device
            .as_ref()
            .map_or(0, |path| path.qdisc().stats().backlog_packets as usize + path.device().held());
        above + self.link.held() + self.exit.as_ref().map_or(0, Exit::held)
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

/// State of the device of a direction.
pub struct CardState<'a> {
    /// Flow control between the queueing discipline and the device.
    pub queue: &'a TransmitQueue,
    /// Number of descriptors.
    pub ring: usize,
    /// Number of completion interrupts of a simulated card.
    pub interrupts: u64,
}

fn path(
    queue: Box<dyn Qdisc<SimPacket>>,
    device: DevicePlan,
) -> TransmitPath<SimPacket, RingDevice<SimPacket>> {
    let RingConfig { descriptors, .. } = device.ring;
    let control = TransmitQueue::new(wake_room(descriptors), device.limits);
    TransmitPath::new(queue, control, RingDevice::new(device.ring))
}
