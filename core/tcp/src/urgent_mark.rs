//! State of urgent data that a connection sends and receives.

use towpath_wire::tcp::SeqNum;

/// State of urgent data that a connection sends and receives.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Urgent {
    /// SND.UP of RFC 9293: end of the urgent data to send; `None` outside urgent mode.
    pub(crate) snd_up: Option<SeqNum>,
    /// Position of the urgent byte last announced by the peer, as an offset in the whole stream.
    /// The offset does not wrap, so an old position never appears to be ahead.
    pub(crate) mark: Option<u64>,
    /// Whether the urgent byte at `mark` has arrived and was passed to the caller.
    pub(crate) delivered: bool,
    pub(crate) news: Option<UrgentMark>,
}

/// Position of an urgent byte that the peer announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UrgentMark {
    /// Distance in bytes from RCV.NXT, before the segment was processed, to the urgent byte.
    pub offset: u32,
    /// Offset of the urgent byte in the segment's payload, if the segment contains it.
    pub payload_offset: Option<u32>,
    /// Whether the position of the urgent byte was not announced before, so that SIGURG must be
    /// sent.
    pub is_new: bool,
}
