//! The connection's answers: what became of a segment, what to send, what happened.

use crate::time_wait::TimeWait;
use core::fmt;
use towpath_wire::tcp::SeqNum;

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// It was used; do what it says with the FIFOs.
    Accepted(FifoChanges),
    /// Nothing of it was used. An answer, if one is due, comes from `plan`.
    Dropped(DropReason),
}

/// What an accepted segment means for the FIFOs, in this order: write, commit, release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoChanges {
    /// Payload to copy into the receive FIFO.
    pub write: Option<Write>,
    /// Bytes that are now in order, holes filled by earlier writes included: hand them to the program.
    pub commit: u32,
    /// Bytes at the front of the send FIFO that the peer has: release them.
    pub released: u32,
    /// The segment was used but its payload was not, for this reason.
    pub payload_dropped: Option<DropReason>,
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
pub enum DropReason {
    /// The connection is closed, or bytes came after the program was gone.
    AfterClose,
    /// No part of it is in the receive window; most are old duplicates.
    OutOfWindow,
    /// An old timestamp (RFC 7323 §5).
    Paws,
    /// Timestamps were negotiated and it has none (RFC 7323 §3.2).
    TimestampMissing,
    /// It acknowledges what was never sent, or far too old data (RFC 5961 §5).
    BadAck,
    /// It has no ACK where every segment has one.
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

impl DropReason {
    /// A stable name for counters.
    pub const fn as_str(self) -> &'static str {
        match self {
            DropReason::AfterClose => "tcp_after_close",
            DropReason::OutOfWindow => "tcp_out_of_window",
            DropReason::Paws => "tcp_paws",
            DropReason::TimestampMissing => "tcp_timestamp_missing",
            DropReason::BadAck => "tcp_bad_ack",
            DropReason::NoAck => "tcp_no_ack",
            DropReason::SynInWindow => "tcp_syn_in_window",
            DropReason::ResetInWindow => "tcp_reset_in_window",
            DropReason::ResetIgnored => "tcp_reset_ignored",
            DropReason::TooManyRanges => "tcp_too_many_ranges",
            DropReason::NoRoom => "tcp_no_room",
            DropReason::Unexpected => "tcp_unexpected",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What `plan` decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Hand it to `emit` before any other call on the connection, or forget it: nothing is lost.
    Send(Transmit),
    /// Nothing may go now.
    Nothing(Idle),
}

/// Why nothing may go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Idle {
    /// All that was written has been sent.
    NoData,
    /// The peer has no room, or too little for a sensible segment.
    ClosedWindow,
    /// The network has no room.
    CongestionWindow,
    /// A short segment waits for the acknowledgement of an earlier one.
    Nagle,
    /// A short segment waits because the program said that more will come.
    Corked,
    /// The handshake is under way, or the connection is closed.
    NotConnected,
}

/// One decision of `plan`, to be carried out by `emit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    pub(crate) kind: TransmitKind,
    pub(crate) seq: SeqNum,
    pub(crate) len: u32,
    pub(crate) segment_size: u16,
    pub(crate) fin: bool,
    pub(crate) push: bool,
}

impl Transmit {
    /// What kind of segment it will be.
    pub fn kind(&self) -> TransmitKind {
        self.kind
    }

    /// Bytes of payload that the emitted segment will carry.
    pub fn payload_len(&self) -> u32 {
        self.len
    }
}

/// What kind of segment is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransmitKind {
    /// SYN or SYN-ACK.
    Syn,
    /// New bytes, a FIN, or both.
    Data,
    /// Bytes or a FIN again.
    Retransmit,
    /// A bare acknowledgement.
    Ack,
    /// Asks the peer whether its window is still closed.
    WindowProbe,
    /// Asks the peer whether it is still there.
    KeepAlive,
    /// The RST that ends the connection, or the answer to a segment that is not of it.
    Reset,
}

/// Something the program or the stack wants to know. Order is the order of happening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// An active open is through.
    Connected,
    /// The peer's FIN is in order: end of file after the bytes committed so far.
    PeerClosed,
    /// The peer has acknowledged our FIN: all bytes reached it.
    SendClosed,
    /// The peer reset the connection. `Closed` follows.
    Reset,
    /// The peer refused the connection. `Closed` follows.
    Refused,
    /// The peer does not answer any more. `Closed` follows.
    TimedOut,
    /// As `TimedOut` or in place of it: the network said that the peer cannot be reached. `Closed`
    /// follows.
    Unreachable,
    /// Both directions are over and the last ACK is out: keep this in the connection's place and
    /// drop the connection.
    TimeWait(TimeWait),
    /// The connection is over and needs no TIME-WAIT: drop it.
    Closed,
}

/// What a timeout is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimerKind {
    /// RFC 6298.
    Retransmit,
    /// RFC 9293 §3.8.6.1.
    Persist,
    /// An acknowledgement that waited for company goes alone (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// RFC 9293 §3.8.4.
    KeepAlive,
    /// RFC 5482.
    UserTimeout,
    /// A closed socket's patience with a peer that does not close.
    FinWait2,
    /// A corked short segment goes after all.
    Cork,
}
