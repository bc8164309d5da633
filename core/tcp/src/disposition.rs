//! The result of handling a segment, and the reasons for dropping one.

use core::fmt;

/// Result of handling a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The segment was accepted; apply its changes to the FIFOs.
    Accepted(FifoChanges),
    /// The segment was ignored. If an answer is due, `plan` returns it.
    Dropped(SegmentDropReason),
}

/// Changes to the FIFOs after an accepted segment. Apply them in this order: write, commit,
/// release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoChanges {
    /// Payload to copy into the receive FIFO.
    pub write: Option<Write>,
    /// Bytes that are now in order, including holes filled by this segment: pass them to the
    /// program.
    pub commit: u32,
    /// Acknowledged bytes at the front of the send FIFO: release them.
    pub released: u32,
    /// Reason if the segment was accepted but its payload was not.
    pub payload_dropped: Option<SegmentDropReason>,
    /// The segment carries urgent data: call [`Connection::take_urgent_mark`] before committing the
    /// bytes.
    ///
    /// [`Connection::take_urgent_mark`]: crate::Connection::take_urgent_mark
    pub urgent: bool,
}

/// A copy from the segment's payload into the receive FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// First byte of the payload to copy.
    pub payload_offset: u32,
    /// Offset in the receive FIFO, relative to the end of the in-order bytes before this segment.
    pub fifo_offset: u32,
    /// Bytes to copy, at least 1.
    pub len: u32,
}

/// Why a segment was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentDropReason {
    /// The connection is closed, or bytes arrived after the program closed the socket.
    AfterClose,
    /// The segment is outside the receive window; most are old duplicates.
    OutOfWindow,
    /// The segment's timestamp is old (PAWS, RFC 7323 §5).
    Paws,
    /// Timestamps were negotiated, but the segment has none (RFC 7323 §3.2).
    TimestampMissing,
    /// The segment acknowledges bytes that were never sent, or bytes that are too old (RFC 5961
    /// §5).
    BadAck,
    /// The segment lacks an ACK although its state requires one.
    NoAck,
    /// The segment is a SYN on a synchronised connection (RFC 5961 §4).
    SynInWindow,
    /// The segment is a RST in the window, but not exactly at rcv_nxt (RFC 5961 §3).
    ResetInWindow,
    /// The segment is a RST that cannot answer any segment of ours.
    ResetIgnored,
    /// The segment arrived out of order, and too many out-of-order ranges are tracked already.
    TooManyRanges,
    /// The receive FIFO is full, although the payload is in the window.
    NoRoom,
    /// The segment has neither SYN nor RST, and the connection is in SYN-SENT.
    Unexpected,
}

impl SegmentDropReason {
    /// Returns a stable name for counters.
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
