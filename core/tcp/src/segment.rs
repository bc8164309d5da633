//! Received and outgoing segments, and the fill levels of a connection's send and receive FIFOs.

use crate::time::Instant;
use towpath_wire::Ecn;
use towpath_wire::tcp::{Flags, Options, SeqNum};

/// A received segment: the parsed header, and metadata from lower layers.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// SEG.SEQ: sequence number of the segment's first byte, or of its SYN.
    pub seq: SeqNum,
    /// SEG.ACK: acknowledgement number; valid only with [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control bits of the TCP header.
    pub flags: Flags,
    /// Window field of the header, not yet scaled.
    pub window: u16,
    /// Urgent pointer of the header; valid only with [`Flags::URG`].
    pub urgent: u16,
    /// Parsed options of the TCP header.
    pub options: Options,
    /// Payload length in bytes, without SYN and FIN.
    pub payload_len: u32,
    /// Time at which the network device received the segment.
    pub arrival: Instant,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Number of received segments that the device coalesced into this one; at least 1.
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

/// Fill levels of a connection's receive and send FIFOs, in bytes.
///
/// ```text
///   receive FIFO  | unread | ..... free ..... |    send FIFO  | in flight | unsent | . free . |
///                          ^ rcv_nxt                          ^ snd_una   ^ snd_nxt
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoLevels {
    /// Free space of the receive FIFO after its in-order bytes. Bytes received out of order are
    /// stored in this space.
    pub recv_free: u32,
    /// Capacity of the receive FIFO in bytes.
    pub recv_capacity: u32,
    /// In-order bytes in the receive FIFO that the program has not read.
    pub recv_unread: u32,
    /// Bytes in the send FIFO, from SND.UNA on, including those in flight.
    pub send_len: u32,
    /// Capacity of the send FIFO in bytes.
    pub send_capacity: u32,
}

/// A segment to send. If `len` exceeds `segment_size`, lower layers must split it into several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// SEG.SEQ: sequence number of the segment's first byte, or of its SYN.
    pub seq: SeqNum,
    /// SEG.ACK: acknowledgement number; zero without [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control bits of the TCP header.
    pub flags: Flags,
    /// Window field of the header, already scaled.
    pub window: u16,
    /// Urgent pointer of the header. With URG, the distance from `seq` to SND.UP, otherwise 0.
    pub urgent: u16,
    /// Options of the header. SACK blocks that do not fit are omitted.
    pub options: Options,
    /// Offset of the payload in the send FIFO, whose first byte is at SND.UNA.
    pub send_offset: u32,
    /// Payload length of the segment in bytes.
    pub len: u32,
    /// Maximum payload in bytes per segment on the wire. If `len` is larger, lower layers split the
    /// segment: `seq` advances by this size, and only the last piece has PSH and FIN.
    pub segment_size: u16,
    /// Whether the segment is a retransmission.
    pub retransmit: bool,
    /// ECN field of the IP header. If the segment is split, only the first piece has CWR.
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
