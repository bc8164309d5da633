//! State of urgent data in both directions of a connection.

use towpath_wire::tcp::SeqNum;

/// State of sent and received urgent data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Urgent {
    /// SND.UP; `None` outside urgent mode.
    pub(crate) snd_up: Option<SeqNum>,
    /// Last mark announced by the peer, as an offset in the whole stream. The offset does not wrap,
    /// so an old mark never appears to be ahead.
    pub(crate) mark: Option<u64>,
    /// Whether the byte at `mark` has arrived and was passed to the owner.
    pub(crate) delivered: bool,
    pub(crate) news: Option<UrgentMark>,
}

/// Position of an urgent byte that the peer announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UrgentMark {
    /// Bytes between RCV.NXT before the segment and the urgent byte.
    pub offset: u32,
    /// Offset of the byte in the segment's payload, if the segment carries it.
    pub payload_offset: Option<u32>,
    /// Whether the mark is new, so that SIGURG is due.
    pub is_new: bool,
}
