//! The receive sequence space (RFC 9293 §3.3.1), and the bytes that arrived out of order.

use crate::challenge::ChallengeLimit;
use crate::config::{Config, MSS_DEFAULT, WINDOW_SCALE_MAX};
use crate::ranges::Assembler;
use towpath_wire::tcp::SeqNum;

/// Receive sequence variables of a connection; `nxt` is RCV.NXT.
#[derive(Debug)]
pub(crate) struct ReceiveSpace {
    pub(crate) nxt: SeqNum,
    /// Right edge announced last; before the peer's SYN, `nxt` plus the window of our SYN.
    pub(crate) adv: SeqNum,
    /// Rightmost edge ever announced. Bytes up to it are accepted if the FIFO has space.
    pub(crate) max: SeqNum,
    /// The acknowledgement number sent last.
    pub(crate) acked: SeqNum,
    /// Largest payload received, used as the size of a full segment.
    pub(crate) mss: u16,
    pub(crate) wscale: u8,
    pub(crate) when_read: WhenRead,
    /// Out-of-order bytes or FIN; `None` if there are none.
    pub(crate) assembler: Option<Box<Assembler>>,
    /// Rate limit of challenge ACKs.
    pub(crate) challenge: ChallengeLimit,
}

/// How a delayed acknowledgement is handled when the program has read all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenRead {
    /// Keep it delayed, because more segments are likely to come.
    Nothing,
    /// Send it, because the last segment ended a write: it was short or had PSH.
    Acknowledges,
    /// Keep it delayed, because the program's answers carry acknowledgements.
    Answers,
}

/// The part of a segment that is new and within the window.
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
            // Smaller than any usual segment, so that the first ones count as full.
            mss: config.mss_recv.min(MSS_DEFAULT),
            wscale: config.window_scale.min(WINDOW_SCALE_MAX),
            when_read: WhenRead::Nothing,
            assembler: None,
            challenge: ChallengeLimit::default(),
        }
    }

    /// Starts the receive space at the peer's SYN, whose sequence number is `irs`.
    pub(crate) fn start(&mut self, irs: SeqNum, window: u32) {
        self.nxt = irs + 1;
        self.acked = self.nxt;
        self.adv = self.nxt + window;
        self.max = self.adv;
    }

    /// Returns the bytes that the peer may still send within the window announced last.
    pub(crate) fn window(&self) -> u32 {
        self.adv - self.nxt
    }

    /// Returns the bytes up to the rightmost edge ever announced. The peer may have sent up to
    /// there before it learned of a smaller window, and its ACKs have sequence numbers up to there.
    pub(crate) fn window_max(&self) -> u32 {
        self.max - self.nxt
    }

    /// Moves the right edge to `window` bytes after RCV.NXT; the current segment announces it.
    pub(crate) fn announce(&mut self, window: u32) {
        self.adv = self.nxt + window;
        self.max = self.max.max(self.adv);
    }

    /// Ensures that the edges of the window are not before RCV.NXT, after it advanced.
    pub(crate) fn keep_edges_ahead(&mut self) {
        self.adv = self.adv.max(self.nxt);
        self.max = self.max.max(self.adv);
    }

    /// Returns the largest window of at most `room` bytes that the window field can represent: at
    /// most 65535 units of the window scale.
    pub(crate) fn offerable(&self, room: u32) -> u32 {
        (room >> self.wscale).min(u32::from(u16::MAX)) << self.wscale
    }

    /// Returns the sequence number of the peer's FIN if it arrived out of order.
    pub(crate) fn fin_ahead(&self) -> Option<SeqNum> {
        self.assembler.as_ref().and_then(|assembler| assembler.fin)
    }

    /// Advances RCV.NXT to `end`, and further over out-of-order bytes that are now in order.
    /// Returns whether there were out-of-order bytes, because then an immediate acknowledgement is
    /// due.
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

    /// Trims an acceptable segment to the part within the window.
    pub(crate) fn trim(&self, seq: SeqNum, payload_len: u32, fin: bool) -> NewText {
        let before = if seq.lt(self.nxt) { self.nxt - seq } else { 0 };
        let payload_offset = before.min(payload_len);
        let start = seq + payload_offset;
        // If the numbers before the window include the FIN, the FIN was received already.
        let fin = fin && before <= payload_len;
        let mut end = self.max;
        if let Some(fin) = self.fin_ahead() {
            end = end.min(fin);
        }
        let room = end.distance(start).max(0) as u32;
        let len = (payload_len - payload_offset).min(room);
        // A FIN at the right edge of a full window is accepted, because it needs no space.
        let fin = fin && len == payload_len - payload_offset;
        NewText { seq: start, payload_offset, len, fin }
    }
}
