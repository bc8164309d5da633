//! The link itself.

use towpath_qdisc::{Dice, DropCause, Dropped, Fifo, Qdisc, Queueable, QueuedPacket};

use crate::chance::{Correlated, Losses};
use crate::flight::Flight;
use crate::{LinkConfig, LinkStats};

/// An item that a link can carry.
pub trait Carried: Queueable + Sized {
    /// A copy, for a link that duplicates.
    #[must_use]
    fn duplicate(&self) -> Self;

    /// Turns over bit number `bit`, which is below 8 times [`Queueable::bytes`].
    fn flip_bit(&mut self, bit: u64);
}

impl Carried for QueuedPacket {
    fn duplicate(&self) -> Self {
        QueuedPacket::duplicate(self)
    }

    fn flip_bit(&mut self, bit: u64) {
        QueuedPacket::flip_bit(self, bit);
    }
}

/// A link in one direction.
pub struct Link<T> {
    config: LinkConfig,
    queue: Box<dyn Qdisc<T>>,
    /// Packets in `queue`: the discipline's own count is a call away, with all its counters.
    waiting: usize,
    /// Time at which the last packet has been sent whole.
    free_ns: u64,
    /// Time at which the queue is asked next: the link is free, and the discipline may have an
    /// item.
    pull_ns: u64,
    flight: Flight<T>,
    flight_bytes: u64,
    /// Latest time at which a delayed packet comes out.
    last_due_ns: u64,
    /// Packets since the last one that overtook others.
    since_reordered: u32,
    draws: Draws,
    stats: LinkStats,
}

/// A stream of draws for each impairment.
#[derive(Debug)]
struct Draws {
    losses: Losses,
    duplicate: Correlated,
    corrupt: Correlated,
    reorder: Correlated,
    jitter: Correlated,
}

impl<T: Carried + 'static> Link<T> {
    /// A link whose packets wait for the rate in a FIFO that has no limit but
    /// [`LinkConfig::limit`].
    pub fn new(config: LinkConfig, dice: Dice) -> Self {
        Self::with_queue(config, Box::new(Fifo::packets(usize::MAX)), dice)
    }

    /// A link whose packets wait for the rate in `queue`, which should be empty.
    pub fn with_queue(config: LinkConfig, queue: Box<dyn Qdisc<T>>, mut dice: Dice) -> Self {
        Self {
            config,
            waiting: queue.stats().backlog_packets as usize,
            queue,
            free_ns: 0,
            pull_ns: 0,
            flight: Flight::new(),
            flight_bytes: 0,
            last_due_ns: 0,
            since_reordered: 0,
            draws: Draws {
                losses: Losses::new(dice.split()),
                duplicate: Correlated::new(dice.split()),
                corrupt: Correlated::new(dice.split()),
                reorder: Correlated::new(dice.split()),
                jitter: Correlated::new(dice.split()),
            },
            stats: LinkStats::default(),
        }
    }
}

impl<T: Carried> Link<T> {
    /// A packet goes in.
    pub fn on_packet(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        self.advance(now_ns, drops);
        let bytes = item.bytes();
        self.stats.entered += 1;
        self.stats.entered_bytes += bytes as u64;
        if self.config.mtu.is_some_and(|mtu| bytes > mtu) {
            self.stats.too_long += 1;
            return drops.push(Dropped { item, cause: DropCause::TooLong });
        }
        if self.config.limit.is_some_and(|limit| self.held() >= limit) {
            self.stats.overlimit += 1;
            return drops.push(Dropped { item, cause: DropCause::Overlimit });
        }
        let before = drops.len();
        self.queue.enqueue(now_ns, item, drops);
        self.waiting += 1;
        self.leave(drops.len() - before);
        self.pull_ns = self.free_ns.max(now_ns);
        self.advance(now_ns, drops);
    }

    /// The next packet that comes out by now.
    pub fn poll_packet(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        self.advance(now_ns, drops);
        let item = self.flight.pop(now_ns)?;
        self.stats.delivered += 1;
        self.stats.delivered_bytes += item.bytes() as u64;
        self.flight_bytes -= item.bytes() as u64;
        Some(item)
    }

    /// Time at which [`Link::poll_packet`] has work: a packet comes out, or is sent. None: the link
    /// is empty.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let pull = (self.waiting > 0).then_some(self.pull_ns);
        [pull, self.flight.due_ns()].into_iter().flatten().min()
    }

    /// Packets that wait for the rate.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Packets that wait or are on their way.
    pub fn held(&self) -> usize {
        self.waiting + self.flight.len()
    }

    /// Bytes that wait or are on their way.
    pub fn held_bytes(&self) -> u64 {
        self.queue.stats().backlog_bytes + self.flight_bytes
    }

    /// Counters.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// The discipline in front of the rate.
    pub fn queue(&self) -> &dyn Qdisc<T> {
        &*self.queue
    }

    /// Properties of the link.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the properties for packets that have not been sent yet.
    pub fn configure(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// Sends what the rate has let pass by now, as both calls for packets do first.
    pub fn advance(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) {
        while self.pull_ns <= now_ns && self.waiting > 0 {
            let before = drops.len();
            let item = self.queue.dequeue(self.pull_ns, drops);
            self.waiting -= usize::from(item.is_some());
            self.leave(drops.len() - before);
            match (item, self.queue.next_timeout_ns()) {
                (Some(item), _) => {
                    self.free_ns = self.pull_ns.saturating_add(self.send_ns(item.bytes()));
                    self.pull_ns = self.free_ns;
                    self.transmit(item, drops);
                }
                // A discipline without a better idea is asked again at the next call, and not for
                // ever in this one.
                (None, later) => self.pull_ns = later.unwrap_or(now_ns).max(self.pull_ns + 1),
            }
        }
    }

    /// The queue has dropped so many packets.
    fn leave(&mut self, dropped: usize) {
        self.waiting -= dropped;
        self.stats.queue_dropped += dropped as u64;
        debug_assert_eq!(self.waiting as u64, self.queue.stats().backlog_packets);
    }

    fn send_ns(&self, bytes: usize) -> u64 {
        let send_ns =
            |rate| u128::from(bytes as u64) * 8_000_000_000 / u128::from(u64::max(rate, 1));
        self.config.rate.map_or(0, |rate| u64::try_from(send_ns(rate)).unwrap_or(u64::MAX))
    }

    /// A packet has been sent whole at `free_ns`: the wire does to it what it does.
    fn transmit(&mut self, item: T, drops: &mut Vec<Dropped<T>>) {
        let copy = self.draws.duplicate.strikes(self.config.duplicate).then(|| item.duplicate());
        self.carry(item, drops);
        if let Some(copy) = copy {
            self.stats.duplicated += 1;
            self.carry(copy, drops);
        }
    }

    /// Loses, corrupts or delays a packet or a copy.
    fn carry(&mut self, mut item: T, drops: &mut Vec<Dropped<T>>) {
        if self.draws.losses.strike(self.config.loss) {
            if !(self.config.ecn && item.mark_ce()) {
                self.stats.lost += 1;
                return drops.push(Dropped { item, cause: DropCause::Lost });
            }
            self.stats.marked += 1;
        }
        if self.draws.corrupt.strikes(self.config.corrupt) && item.bytes() > 0 {
            let bit = self.draws.corrupt.below(item.bytes() as u64 * 8);
            item.flip_bit(bit);
            self.stats.corrupted += 1;
        }
        let due_ns = self.due_ns();
        self.flight_bytes += item.bytes() as u64;
        self.flight.push(due_ns, item);
    }

    /// Time at which the packet that has just been sent comes out.
    fn due_ns(&mut self) -> u64 {
        let is_eligible = self.since_reordered >= self.config.gap.saturating_sub(1);
        if is_eligible && self.draws.reorder.strikes(self.config.reorder) {
            self.since_reordered = 0;
            self.stats.reordered += 1;
            return self.free_ns;
        }
        self.since_reordered = self.since_reordered.saturating_add(1);
        let mut due_ns = self.free_ns.saturating_add(self.delay_ns());
        if self.config.keeps_order {
            due_ns = due_ns.max(self.last_due_ns);
        }
        self.last_due_ns = self.last_due_ns.max(due_ns);
        due_ns
    }

    fn delay_ns(&mut self) -> u64 {
        let LinkConfig { delay_ns, jitter_ns, jitter_correlation, .. } = self.config;
        if jitter_ns == 0 {
            return delay_ns;
        }
        let draw = u128::from(self.draws.jitter.draw(jitter_correlation));
        let above = ((draw * 2 * u128::from(jitter_ns)) >> 32) as u64;
        delay_ns.saturating_add(above).saturating_sub(jitter_ns)
    }
}
