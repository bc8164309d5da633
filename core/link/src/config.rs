//! Properties of a link.

use crate::Probability;

/// Properties of one direction of a link. The default is a perfect wire: no delay, no loss, no
/// limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkConfig {
    /// Bits per second. None: a packet takes no time but the delay.
    pub rate: Option<u64>,
    /// Time from the moment at which a packet has been sent whole to the one at which it comes out.
    pub delay_ns: u64,
    /// Largest deviation from the delay, either way; each deviation is as likely as another.
    pub jitter_ns: u64,
    /// Part of a packet's jitter that is that of the packet before.
    pub jitter_correlation: Probability,
    /// Whether jitter keeps the order of packets: a packet comes out no sooner than the one before.
    pub keeps_order: bool,
    /// Packets that are lost.
    pub loss: Loss,
    /// Packets that can be marked get CE instead of being lost.
    pub ecn: bool,
    /// Packets that come out twice.
    pub duplicate: Chance,
    /// Packets of which one bit is turned over.
    pub corrupt: Chance,
    /// Packets that are not delayed, and so overtake others.
    pub reorder: Chance,
    /// Reordering strikes at most each `gap`-th packet; 0 and 1: any.
    pub gap: u32,
    /// Bytes of the longest packet, with its link header. None: any.
    pub mtu: Option<usize>,
    /// Packets that the link holds at most, in its queue and on their way. None: as many as the
    /// queue takes.
    pub limit: Option<usize>,
}

/// An event that strikes packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chance {
    /// Probability of the event.
    pub probability: Probability,
    /// Part of each draw that is the one before, so that events come in bursts.
    pub correlation: Probability,
}

impl Chance {
    /// An event that strikes packets independently.
    pub fn independent(probability: Probability) -> Self {
        Self { probability, correlation: Probability::NEVER }
    }
}

/// Losses of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Packets at random.
    Random(Chance),
    /// Bursts (Gilbert-Elliott): the link is in a good or in a bad state. A packet may change the
    /// state, and is lost by the chance of the state that it met.
    GilbertElliott {
        /// From good to bad: tc's `p`.
        to_bad: Probability,
        /// From bad to good: tc's `r`.
        to_good: Probability,
        /// Loss in the bad state: tc's `1-h`.
        in_bad: Probability,
        /// Loss in the good state: tc's `1-k`.
        in_good: Probability,
    },
    /// `count` packets from number `first` on, of those that are sent; the first one has number 0.
    Numbered {
        /// Number of the first packet that is lost.
        first: u64,
        /// Packets that are lost.
        count: u64,
    },
}

impl Loss {
    /// No packet is lost.
    pub const NONE: Self =
        Self::Random(Chance { probability: Probability::NEVER, correlation: Probability::NEVER });
}

impl Default for Loss {
    fn default() -> Self {
        Self::NONE
    }
}
