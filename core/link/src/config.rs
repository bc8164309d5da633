//! Properties of a link.

use crate::Probability;

/// Properties of one direction of a link. The default is an ideal wire without delay, loss and
/// limits.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkConfig {
    /// Rate in bits per second; `None` for unlimited.
    pub rate: Option<u64>,
    /// Delay between the end of a packet's transmission and its delivery, in ns.
    pub delay_ns: u64,
    /// Maximum deviation from the delay in either direction, in ns; uniformly distributed.
    pub jitter_ns: u64,
    /// Correlation of a packet's jitter with that of the previous packet.
    pub jitter_correlation: Probability,
    /// Whether packets keep their order despite jitter: none is delivered before an earlier one.
    pub keeps_order: bool,
    /// Loss model.
    pub loss: Loss,
    /// Whether packets that support ECN are marked with CE instead of being lost.
    pub ecn: bool,
    /// Probability that a packet is delivered twice.
    pub duplicate: Chance,
    /// Probability that a bit of a packet is flipped.
    pub corrupt: Chance,
    /// Probability that a packet is not delayed, and so overtakes earlier ones.
    pub reorder: Chance,
    /// Minimum distance of reordered packets: at most every `gap`-th packet is reordered; 0 and 1
    /// mean no restriction.
    pub gap: u32,
    /// Maximum packet length in bytes, including the link header; `None` for unlimited.
    pub mtu: Option<usize>,
    /// Maximum packets in the queue and in transit. With `None` only the queue's own limit applies.
    pub limit: Option<usize>,
}

/// Probability of an event that affects packets, and the correlation between successive packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chance {
    /// Probability that the event affects a packet.
    pub probability: Probability,
    /// Correlation of each draw with the previous one, which causes bursts.
    pub correlation: Probability,
}

impl Chance {
    /// Creates a chance of independent events.
    pub fn independent(probability: Probability) -> Self {
        Self { probability, correlation: Probability::NEVER }
    }
}

/// Loss model of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Random losses.
    Random(Chance),
    /// Bursts (Gilbert-Elliott): the link is in a good or a bad state, each with its own loss
    /// probability. A packet is lost by the probability of the current state, and may then change
    /// the state.
    GilbertElliott {
        /// Probability of a change from good to bad: tc's `p`.
        to_bad: Probability,
        /// Probability of a change from bad to good: tc's `r`.
        to_good: Probability,
        /// Loss probability in the bad state: tc's `1-h`.
        in_bad: Probability,
        /// Loss probability in the good state: tc's `1-k`.
        in_good: Probability,
    },
    /// Loses `count` packets from number `first` on; the first packet sent has number 0.
    Numbered {
        /// Number of the first lost packet.
        first: u64,
        /// Number of lost packets.
        count: u64,
    },
}

impl Loss {
    /// No losses.
    pub const NONE: Self =
        Self::Random(Chance { probability: Probability::NEVER, correlation: Probability::NEVER });
}

impl Default for Loss {
    fn default() -> Self {
        Self::NONE
    }
}
