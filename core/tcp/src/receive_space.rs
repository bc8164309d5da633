//! Receive variables of a connection (RFC 9293 §3.3.1), and the data that arrived out of order.

use crate::challenge::ChallengeLimit;
use crate::config::{Config, MSS_DEFAULT, WINDOW_SCALE_MAX};
use crate::ranges::Assembler;
use towpath_wire::tcp::SeqNum;

/// Receive sequence variables of a connection; `nxt` is RCV.NXT.
#[derive(Debug)]
pub(crate) struct ReceiveSpace {
    pub(crate) nxt: SeqNum,
    /// Right edge of the receive window announced last. Before the peer's SYN arrives: `nxt` plus
    /// the window of our SYN.
    pub(crate) adv: SeqNum,
    /// Rightmost edge of the receive window that was ever announced. Bytes up to this edge are
    /// accepted if the receive FIFO has space.
    pub(crate) max: SeqNum,
    /// Acknowledgement number that was sent last.
    pub(crate) acked: SeqNum,
    /// Largest payload received in bytes, taken as the size of a full segment.
    pub(crate) mss: u16,
    pub(crate) wscale: u8,
    pub(crate) when_read: WhenRead,
    /// Data or FIN received out of order; `None` if there is none.
    pub(crate) assembler: Option<Box<Assembler>>,
    /// Limits the rate of challenge ACKs.
    pub(crate) challenge: ChallengeLimit,
}

/// Handling of a delayed ACK when the program has read all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenRead {
    /// Keep the ACK delayed, because more segments are likely to arrive.
    Nothing,
    /// Send the ACK now, because the last segment was short or had PSH: the peer's program is
    /// probably waiting.
    Acknowledges,
    /// Keep the ACK delayed, because the program is likely to send an answer that carries the ACK.
    Answers,
}

/// Part of a received segment's payload that is new and within the receive window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewText {
    pub(crate) seq: SeqNum,
    pub(crate) payload_offset: u32,
    pub(crate) len: u32,
    pub(crate) fin: bool,
}

impl ReceiveSpace {
    pub(crate) fn new(config: &Config) -> ReceiveSpace {
        ReceiveSpace {
            nxt: SeqNum(0),
            adv: SeqNum(0),
            max: SeqNum(0),
            acked: SeqNum(0),
            // Start below the usual segment size, so that the first segments count as full-sized
            // and are acknowledged accordingly.
            mss: config.mss_recv.min(MSS_DEFAULT),
            wscale: config.window_scale.min(WINDOW_SCALE_MAX),
            when_read: WhenRead::Nothing,
            assembler: None,
            challenge: ChallengeLimit::default(),
        }
    }

    /// Initializes the variables from the peer's SYN with sequence number `irs`.
    pub(crate) fn start(&mut self, irs: SeqNum, window: u32) {
        self.nxt = irs + 1;
        self.acked = self.nxt;
        self.adv = self.nxt + window;
        self.max = self.adv;
    }

    /// Returns the number of bytes that the peer may still send within the window announced last.
    pub(crate) fn window(&self) -> u32 {
        self.adv - self.nxt
    }

    /// Returns the number of bytes from RCV.NXT to the rightmost window edge that was ever
    /// announced. The peer may have sent up to this edge before it learned of a smaller window.
    pub(crate) fn window_max(&self) -> u32 {
        self.max - self.nxt
    }

    /// Moves the right edge of the receive window to `window` bytes after RCV.NXT. The segment
    /// being sent announces it.
    pub(crate) fn announce(&mut self, window: u32) {
        self.adv = self.nxt + window;
        self.max = self.max.max(self.adv);
    }

    /// Moves the edges of the receive window to RCV.NXT, if RCV.NXT has advanced beyond them.
    pub(crate) fn keep_edges_ahead(&mut self) {
        self.adv = self.adv.max(self.nxt);
        self.max = self.max.max(self.adv);
    }

    /// Returns the largest receive window of at most `room` bytes that fits in the window field.
    /// The window is a multiple of the window scale unit, and has at most 65535 units.
    pub(crate) fn offerable(&self, room: u32) -> u32 {
        (room >> self.wscale).min(u32::from(u16::MAX)) << self.wscale
    }

    /// Returns the sequence number of the peer's FIN if it arrived out of order.
    pub(crate) fn fin_ahead(&self) -> Option<SeqNum> {
        self.assembler.as_ref().and_then(|assembler| assembler.fin)
    }

    /// Advances RCV.NXT to `end`, and further over out-of-order data that is now in order. Returns
    /// whether there was out-of-order data, which requires an immediate ACK.
    #[inline]
    pub(crate) fn advance(&mut self, end: SeqNum) -> bool {
        self.nxt = end;
        let Some(assembler) = &mut self.assembler else { return false };
        self.nxt = assembler.advance(end);
        if assembler.is_empty() {
            self.assembler = None;
        }
        true
    }

    /// Trims a received segment to the part within the receive window.
    pub(crate) fn trim(&self, seq: SeqNum, payload_len: u32, fin: bool) -> NewText {
        let before = if seq.lt(self.nxt) { self.nxt - seq } else { 0 };
        let payload_offset = before.min(payload_len);
        let start = seq + payload_offset;
        // If the part before the window includes the FIN, the FIN was already received.
        let fin = fin && before <= payload_len;
        let mut end = self.max;
        if let Some(fin) = self.fin_ahead() {
            end = end.min(fin);
        }
        let room = end.distance(start).max(0) as u32;
        let len = (payload_len - payload_offset).min(room);
        // Accept a FIN at the right edge of a full window, because it needs no buffer space.
        let fin = fin && len == payload_len - payload_offset;
        NewText { seq: start, payload_offset, len, fin }
    }
}
