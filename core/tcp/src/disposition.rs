//! Result of a segment, and why one was dropped.

use core::fmt;

/// Result of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The segment was used; make its changes to the FIFOs.
    Accepted(FifoChanges),
    /// Nothing of it was used. An answer, if one is due, comes from `plan`.
    Dropped(SegmentDropReason),
}

/// Changes of the FIFOs after an accepted segment, in this order: write, commit, release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoChanges {
    /// Payload to copy into the receive FIFO.
    pub write: Option<Write>,
    /// Bytes that are now in order, holes filled by earlier writes included: hand them to the
    /// program.
    pub commit: u32,
    /// Bytes at the front of the send FIFO that the peer has: release them.
    pub released: u32,
    /// The segment was used but its payload was not, for this reason.
    pub payload_dropped: Option<SegmentDropReason>,
    /// The segment tells of urgent data: take [`Connection::take_urgent_mark`] before the bytes are
    /// committed.
    ///
    /// [`Connection::take_urgent_mark`]: crate::Connection::take_urgent_mark
    pub urgent: bool,
}

/// A copy from the segment's payload into the receive FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// First byte of the payload to copy.
    pub payload_offset: u32,
    /// Where it goes, counted from the end of the in-order bytes before this segment.
    pub fifo_offset: u32,
    /// Bytes to copy, at least 1.
    pub len: u32,
}

/// Why a segment was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentDropReason {
    /// The connection is closed, or bytes came after the program was gone.
    AfterClose,
    /// No part of it is in the receive window; most are old duplicates.
    OutOfWindow,
    /// An old timestamp (RFC 7323 §5).
    Paws,
    /// Timestamps were negotiated and it has none (RFC 7323 §3.2).
    TimestampMissing,
    /// The segment acknowledges bytes that were never sent, or far too old data (RFC 5961 §5).
    BadAck,
    /// The segment has no ACK where every segment has one.
    NoAck,
    /// A SYN on a synchronised connection (RFC 5961 §4).
    SynInWindow,
    /// A RST in the window that is not exactly at rcv_nxt (RFC 5961 §3).
    ResetInWindow,
    /// A RST that no segment of ours can have caused.
    ResetIgnored,
    /// More out-of-order ranges than are remembered.
    TooManyRanges,
    /// The receive FIFO has no room, though the window did.
    NoRoom,
    /// Neither SYN nor RST nor anything else that SYN-SENT waits for.
    Unexpected,
}

impl SegmentDropReason {
    /// A stable name for counters.
    pub const fn as_str(self) -> &'static str {
        match self {
            SegmentDropReason::AfterClose => "tcp_after_close",
            SegmentDropReason::OutOfWindow => "tcp_out_of_window",
            SegmentDropReason::Paws => "tcp_paws",
            SegmentDropReason::TimestampMissing => "tcp_timestamp_missing",
            SegmentDropReason::BadAck => "tcp_bad_ack",
            SegmentDropReason::NoAck => "tcp_no_ack",
            SegmentDropReason::SynInWindow => "tcp_syn_in_window",
            SegmentDropReason::ResetInWindow => "tcp_reset_in_window",
            SegmentDropReason::ResetIgnored => "tcp_reset_ignored",
            SegmentDropReason::TooManyRanges => "tcp_too_many_ranges",
            SegmentDropReason::NoRoom => "tcp_no_room",
            SegmentDropReason::Unexpected => "tcp_unexpected",
        }
    }
}

impl fmt::Display for SegmentDropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
