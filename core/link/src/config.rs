//! Configuration of a link.

use crate::Probability;

/// Configuration of one direction of a link. The default is an ideal wire without delay, loss and
/// limits.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkConfig {
    /// Rate in bits per second; `None` if it is unlimited.
    pub rate: Option<u64>,
    /// Time between the end of a packet's transmission and its delivery, in nanoseconds.
    pub delay_ns: u64,
    /// Maximum jitter in nanoseconds: the delay of a packet is uniformly distributed between
    /// `delay_ns - jitter_ns` and `delay_ns + jitter_ns`.
    pub jitter_ns: u64,
    /// Correlation of a packet's jitter with that of the previous packet.
    pub jitter_correlation: Probability,
    /// Whether packets are delivered in the order in which they were sent, despite jitter.
    pub keeps_order: bool,
    /// Model by which the link loses packets.
    pub loss: Loss,
    /// Whether ECN-capable packets are marked with CE instead of being lost.
    pub ecn: bool,
    /// Probability that a packet is delivered twice.
    pub duplicate: Chance,
    /// Probability that one bit of a packet is flipped.
    pub corrupt: Chance,
    /// Probability that a packet is not delayed, so that it overtakes earlier packets.
    pub reorder: Chance,
    /// Minimum distance between reordered packets: at most every `gap`-th packet is reordered. The
    /// values 0 and 1 mean no restriction.
    pub gap: u32,
    /// Maximum packet length in bytes, including the link header; `None` if it is unlimited.
    pub mtu: Option<usize>,
    /// Maximum number of packets in the queue and in transit. If this is `None`, only the queue's
    /// own limit applies.
    pub limit: Option<usize>,
}

/// Probability of an event that affects packets, and the correlation between successive packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chance {
    /// Probability that the event affects a packet.
    pub probability: Probability,
    /// Correlation of each random draw with the previous one; a high correlation makes the events
    /// occur in bursts.
    pub correlation: Probability,
}

impl Chance {
    /// Creates a chance without correlation, so that its events are independent of each other.
    pub fn independent(probability: Probability) -> Self {
        Self { probability, correlation: Probability::NEVER }
    }
}

/// Loss model of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Losses at random, with a certain probability for each packet.
    Random(Chance),
    /// Losses in bursts (Gilbert-Elliott model): the link is in a good or a bad state, each with
    /// its own loss probability. After each packet, the state may change.
    GilbertElliott {
        /// Probability of a change from the good to the bad state; `p` of tc-netem.
        to_bad: Probability,
        /// Probability of a change from the bad to the good state; `r` of tc-netem.
        to_good: Probability,
        /// Loss probability in the bad state; `1-h` of tc-netem.
        in_bad: Probability,
        /// Loss probability in the good state; `1-k` of tc-netem.
        in_good: Probability,
    },
    /// Loses `count` consecutive packets, beginning with packet number `first`. The first packet on
    /// the link has number 0.
    Numbered {
        /// Number of the first packet that is lost, counted from 0.
        first: u64,
        /// Number of consecutive packets that are lost.
        count: u64,
    },
}

impl Loss {
    /// Loss model that loses no packets.
    pub const NONE: Self =
        Self::Random(Chance { probability: Probability::NEVER, correlation: Probability::NEVER });
}

impl Default for Loss {
    fn default() -> Self {
        Self::NONE
    }
}
