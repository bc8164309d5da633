//! Result of handling a received segment, with the reasons for dropping one.

use core::fmt;

/// Result of handling a received segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The segment was accepted. The caller must apply these changes to the send and receive
    /// buffers (FIFOs).
    Accepted(FifoChanges),
    /// The segment was dropped. If it must be answered, `plan` returns the answer.
    Dropped(SegmentDropReason),
}

/// Changes to the send and receive FIFOs after an accepted segment. Apply them in this order:
/// write, commit, release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoChanges {
    /// Part of the payload to copy into the receive FIFO; `None` if there is none.
    pub write: Option<Write>,
    /// Number of bytes that are now in order, including holes filled by this segment. The bytes can
    /// be passed to the program.
    pub commit: u32,
    /// Number of acknowledged bytes at the front of the send FIFO, which can be freed.
    pub released: u32,
    /// Reason why the payload was dropped although the segment was accepted; `None` if it was not
    /// dropped.
    pub payload_dropped: Option<SegmentDropReason>,
    /// Whether the segment carries urgent data. If so, call [`Connection::take_urgent_mark`] before
    /// committing the bytes.
    ///
    /// [`Connection::take_urgent_mark`]: crate::Connection::take_urgent_mark
    pub urgent: bool,
}

/// Part of a segment's payload to be copied into the receive FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Offset in the payload of the first byte to copy.
    pub payload_offset: u32,
    /// Offset in the receive FIFO to copy to. The offset is counted from the end of the in-order
    /// bytes that the FIFO had before this segment.
    pub fifo_offset: u32,
    /// Number of bytes to copy, at least 1.
    pub len: u32,
}

/// Reason why a segment was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentDropReason {
    /// The connection is closed, or bytes arrived after the program closed the socket.
    AfterClose,
    /// The segment is outside the receive window. Most such segments are old duplicates.
    OutOfWindow,
    /// The segment's timestamp is old (PAWS, RFC 7323 §5).
    Paws,
    /// Timestamps were negotiated, but the segment has none (RFC 7323 §3.2).
    TimestampMissing,
    /// The segment acknowledges bytes that were never sent, or bytes that are too old (RFC 5961
    /// §5).
    BadAck,
    /// The segment lacks an ACK although the connection's state requires one.
    NoAck,
    /// The segment is a SYN on a synchronised connection (RFC 5961 §4).
    SynInWindow,
    /// The segment is a RST in the window, but not exactly at rcv_nxt (RFC 5961 §3).
    ResetInWindow,
    /// The segment is a RST with an acknowledgment number that acknowledges no segment of ours.
    ResetIgnored,
    /// The segment arrived out of order, and too many out-of-order ranges are tracked already.
    TooManyRanges,
    /// The payload is in the receive window, but the receive FIFO has no space for it.
    NoRoom,
    /// The segment has neither SYN nor RST, and the connection is in SYN-SENT.
    Unexpected,
}

impl SegmentDropReason {
    /// Returns the name of the reason in counters, which does not change between versions.
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
