//! Segments in and out, and the room for bytes.

use crate::time::Instant;
use towpath_wire::tcp::{Flags, Options, SeqNum};

/// A segment that arrived: the header as parsed, and what the layers below know about it.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// SEG.SEQ: the number of its first byte, or of its SYN.
    pub seq: SeqNum,
    /// SEG.ACK; means something with [`Flags::ACK`] only.
    pub ack: SeqNum,
    /// The control bits.
    pub flags: Flags,
    /// As on the wire: the connection scales it.
    pub window: u16,
    /// Read only with URG.
    pub urgent: u16,
    /// The options of its header that were understood.
    pub options: Options,
    /// Bytes of payload, without SYN and FIN.
    pub payload_len: u32,
    /// When the device received it.
    pub arrival: Instant,
    /// The packet carried ECN congestion experienced. Counted, not yet acted on.
    pub ce: bool,
    /// How many wire segments were coalesced into this one; at least 1.
    pub segments: u16,
}

impl Segment {
    /// SEG.LEN: payload with SYN and FIN counted.
    #[inline]
    pub fn seq_len(&self) -> u32 {
        self.payload_len
            .saturating_add(u32::from(self.flags.contains(Flags::SYN)))
            .saturating_add(u32::from(self.flags.contains(Flags::FIN)))
    }
}

/// How full the two byte FIFOs of a connection are, in bytes, now.
///
/// ```text
///   receive FIFO  | unread | ..... free ..... |    send FIFO  | in flight | unsent | . free . |
///                          ^ rcv_nxt                          ^ snd_una   ^ snd_nxt
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoLevels {
    /// Room after the in-order bytes; out-of-order bytes lie inside it.
    pub recv_free: u32,
    /// All the receive FIFO may hold.
    pub recv_capacity: u32,
    /// In-order bytes that the program has not read.
    pub recv_unread: u32,
    /// Bytes from snd_una on, those in flight included.
    pub send_len: u32,
    /// All the send FIFO may hold.
    pub send_capacity: u32,
}

/// A segment to put on the wire; with `len` above `segment_size`, several of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// SEG.SEQ: the number of its first byte, or of its SYN.
    pub seq: SeqNum,
    /// Zero without [`Flags::ACK`].
    pub ack: SeqNum,
    /// The control bits.
    pub flags: Flags,
    /// As on the wire: scaled already.
    pub window: u16,
    /// Distance from `seq` to SND.UP with URG, otherwise 0.
    pub urgent: u16,
    /// The options of the header. SACK blocks that find no room are left out.
    pub options: Options,
    /// Where the payload starts in the send FIFO, counted from snd_una.
    pub send_offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Payload bytes per wire segment. When `len` is larger the layers below cut: PSH and FIN
    /// belong to the last piece, `seq` advances by this.
    pub segment_size: u16,
    /// Bytes that were sent before.
    pub retransmit: bool,
}

impl Outgoing {
    /// A segment without payload.
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
        }
    }
}
