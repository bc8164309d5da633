//! State of urgent data in a connection, both ways.

use towpath_wire::tcp::SeqNum;

/// Both ends of urgent data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Urgent {
    /// SND.UP; None outside urgent mode.
    pub(crate) snd_up: Option<SeqNum>,
    /// Mark that the peer told last, as a count of bytes in the whole stream. Counts do not wrap,
    /// so that an old mark never seems to lie ahead.
    pub(crate) mark: Option<u64>,
    /// The byte at `mark` has arrived, and the owner was given it.
    pub(crate) delivered: bool,
    pub(crate) news: Option<UrgentMark>,
}

/// Place of an urgent byte that the peer announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UrgentMark {
    /// Bytes between RCV.NXT before the segment and the urgent byte.
    pub offset: u32,
    /// Where the byte lies in the payload of the segment, if the segment carries it.
    pub payload_offset: Option<u32>,
    /// The mark was not known before: SIGURG is due.
    pub is_new: bool,
}
