//! Received and outgoing segments, and the fill levels of the FIFOs.

use crate::time::Instant;
use towpath_wire::Ecn;
use towpath_wire::tcp::{Flags, Options, SeqNum};

/// A received segment: the parsed header, and metadata of the layers below.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// SEG.SEQ: sequence number of the first byte, or of the SYN.
    pub seq: SeqNum,
    /// SEG.ACK; valid only with [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// Window field as on the wire; the connection applies the scale.
    pub window: u16,
    /// Urgent pointer; valid only with [`Flags::URG`].
    pub urgent: u16,
    /// Parsed header options.
    pub options: Options,
    /// Payload length in bytes, without SYN and FIN.
    pub payload_len: u32,
    /// Time at which the device received the segment.
    pub arrival: Instant,
    /// ECN field of the packet.
    pub ecn: Ecn,
    /// Number of wire segments coalesced into this one; at least 1.
    pub segments: u16,
}

impl Segment {
    /// Returns SEG.LEN: the payload length plus one each for SYN and FIN.
    #[inline]
    pub fn seq_len(&self) -> u32 {
        self.payload_len
            .saturating_add(u32::from(self.flags.contains(Flags::SYN)))
            .saturating_add(u32::from(self.flags.contains(Flags::FIN)))
    }
}

/// Fill levels of the two FIFOs of a connection, in bytes.
///
/// ```text
///   receive FIFO  | unread | ..... free ..... |    send FIFO  | in flight | unsent | . free . |
///                          ^ rcv_nxt                          ^ snd_una   ^ snd_nxt
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoLevels {
    /// Free space after the in-order bytes; out-of-order bytes are stored within it.
    pub recv_free: u32,
    /// Capacity of the receive FIFO.
    pub recv_capacity: u32,
    /// In-order bytes that the program has not read.
    pub recv_unread: u32,
    /// Bytes from snd_una on, including those in flight.
    pub send_len: u32,
    /// Capacity of the send FIFO.
    pub send_capacity: u32,
}

/// A segment to send; several wire segments if `len` exceeds `segment_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// SEG.SEQ: sequence number of the first byte, or of the SYN.
    pub seq: SeqNum,
    /// SEG.ACK; zero without [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// Window field as on the wire, already scaled.
    pub window: u16,
    /// Urgent pointer: distance from `seq` to SND.UP with URG, otherwise 0.
    pub urgent: u16,
    /// Header options. SACK blocks that do not fit are omitted.
    pub options: Options,
    /// Offset of the payload in the send FIFO, relative to snd_una.
    pub send_offset: u32,
    /// Payload length in bytes.
    pub len: u32,
    /// Maximum payload bytes per wire segment. If `len` is larger, the layers below split the
    /// segment: `seq` advances by this size, and PSH and FIN are set on the last piece.
    pub segment_size: u16,
    /// Whether this is a retransmission.
    pub retransmit: bool,
    /// ECN field of the packet. If the segment is split, CWR is set on the first piece only.
    pub ecn: Ecn,
}

impl Outgoing {
    /// Creates a segment without payload.
    pub(crate) fn bare(seq: SeqNum, ack: SeqNum, flags: Flags, window: u16) -> Outgoing {
        Outgoing {
            seq,
            ack,
            flags,
            window,
            urgent: 0,
            options: Options::default(),
            send_offset: 0,
            len: 0,
            segment_size: 0,
            retransmit: false,
            ecn: Ecn::NotEct,
        }
    }
}
