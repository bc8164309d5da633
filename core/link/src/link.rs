//! A simulated link in one direction.

use towpath_qdisc::{Dice, DropCause, Dropped, Fifo, Qdisc, Queueable, QueuedPacket};

use crate::chance::{Correlated, Losses};
use crate::flight::Flight;
use crate::{LinkConfig, LinkStats};

/// A type of packet that a [`Link`] can carry.
pub trait Carried: Queueable + Sized {
    /// Returns a copy of the packet, for a link that duplicates packets.
    #[must_use]
    fn duplicate(&self) -> Self;

    /// Flips the bit with number `bit`, which is less than 8 times [`Queueable::bytes`].
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

/// A simulated link in one direction: a queue, a rate, impairments, and the packets in transit.
pub struct Link<T> {
    config: LinkConfig,
    queue: Box<dyn Qdisc<T>>,
    /// Number of packets in `queue`. The number is cached, because the queueing discipline returns
    /// its length only together with all its counters, which takes longer.
    waiting: usize,
    /// Time in nanoseconds at which the transmission of the last packet ends.
    free_ns: u64,
    /// Time in nanoseconds at which the next packet may be dequeued: the link is free then, and the
    /// queueing discipline may have a packet.
    pull_ns: u64,
    flight: Flight<T>,
    flight_bytes: u64,
    /// Latest delivery time of all delayed packets so far, in nanoseconds.
    last_due_ns: u64,
    /// Number of packets since the last packet that was reordered.
    since_reordered: u32,
    draws: Draws,
    stats: LinkStats,
}

/// A separate stream of random numbers for each impairment.
#[derive(Debug)]
struct Draws {
    losses: Losses,
    duplicate: Correlated,
    corrupt: Correlated,
    reorder: Correlated,
    jitter: Correlated,
}

impl<T: Carried + 'static> Link<T> {
    /// Creates a link with a FIFO queue. Only [`LinkConfig::limit`] limits the queue's length.
    pub fn new(config: LinkConfig, dice: Dice) -> Self {
        Self::with_queue(config, Box::new(Fifo::packets(usize::MAX)), dice)
    }

    /// Creates a link with the given queueing discipline, which must be empty.
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
    /// Enqueues a packet at the sending end.
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

    /// Returns the next packet at the receiving end whose delivery time is reached.
    pub fn poll_packet(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        self.advance(now_ns, drops);
        let item = self.flight.pop(now_ns)?;
        self.stats.delivered += 1;
        self.stats.delivered_bytes += item.bytes() as u64;
        self.flight_bytes -= item.bytes() as u64;
        Some(item)
    }

    /// Returns the time in nanoseconds at which [`Link::poll_packet`] must be called to transmit or
    /// deliver the next packet. Returns `None` if the link is empty.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let pull = (self.waiting > 0).then_some(self.pull_ns);
        [pull, self.flight.due_ns()].into_iter().flatten().min()
    }

    /// Returns the number of packets in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of packets in the queue and in transit.
    pub fn held(&self) -> usize {
        self.waiting + self.flight.len()
    }

    /// Returns the number of bytes in the queue and in transit.
    pub fn held_bytes(&self) -> u64 {
        self.queue.stats().backlog_bytes + self.flight_bytes
    }

    /// Returns the counters of the link.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Returns the queueing discipline in front of the link.
    pub fn queue(&self) -> &dyn Qdisc<T> {
        &*self.queue
    }

    /// Returns the configuration of the link.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Replaces the configuration of the link. The new configuration applies to packets that are
    /// not transmitted yet.
    pub fn configure(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// Transmits queued packets, as far as the rate allows it until `now_ns`. [`Link::on_packet`]
    /// and [`Link::poll_packet`] call this first.
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
                // The queueing discipline has no packet ready. Advance `pull_ns` by at least 1 ns,
                // so that this loop ends.
                (None, later) => self.pull_ns = later.unwrap_or(now_ns).max(self.pull_ns + 1),
            }
        }
    }

    /// Counts packets that the queueing discipline has dropped.
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

    /// Applies the impairments to a packet, whose transmission ends at the time `free_ns`.
    fn transmit(&mut self, item: T, drops: &mut Vec<Dropped<T>>) {
        let copy = self.draws.duplicate.strikes(self.config.duplicate).then(|| item.duplicate());
        self.carry(item, drops);
        if let Some(copy) = copy {
            self.stats.duplicated += 1;
            self.carry(copy, drops);
        }
    }

    /// Loses, corrupts or delays a packet, or the copy of a duplicated one.
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

    /// Returns the delivery time in nanoseconds of the packet that was just transmitted.
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
