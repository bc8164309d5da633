//! The receive sequence space (RFC 9293 §3.3.1), and the bytes that arrived ahead of a gap.

use crate::challenge::ChallengeLimit;
use crate::config::{Config, MSS_DEFAULT, WINDOW_SCALE_MAX};
use crate::ranges::Assembler;
use towpath_wire::tcp::SeqNum;

/// Variables of the bytes that a connection receives: `nxt` is RCV.NXT.
#[derive(Debug)]
pub(crate) struct ReceiveSpace {
    pub(crate) nxt: SeqNum,
    /// Right edge announced last; before the peer's SYN, `nxt` plus our SYN's window.
    pub(crate) adv: SeqNum,
    /// Furthest right edge ever announced. Bytes up to it are accepted if there is room.
    pub(crate) max: SeqNum,
    /// Last acknowledgement sent.
    pub(crate) acked: SeqNum,
    /// Largest payload seen, which is taken for a full segment.
    pub(crate) mss: u16,
    pub(crate) wscale: u8,
    pub(crate) when_read: WhenRead,
    /// Exists only while bytes or a FIN wait behind a gap.
    pub(crate) assembler: Option<Box<Assembler>>,
    /// Limit of answers to doubtful segments.
    pub(crate) challenge: ChallengeLimit,
}

/// Effect on a delayed acknowledgement when the program has read all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenRead {
    /// More segments are likely to come, or the delay to end.
    Nothing,
    /// The last bytes ended a write: a short segment, or one with PSH. The acknowledgement goes.
    Acknowledges,
    /// The program answers what it receives, and its answers carry acknowledgements.
    Answers,
}

/// The part of a segment that is new and in the window.
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
            // Below every usual segment, so that the first ones count as full.
            mss: config.mss_recv.min(MSS_DEFAULT),
            wscale: config.window_scale.min(WINDOW_SCALE_MAX),
            when_read: WhenRead::Nothing,
            assembler: None,
            challenge: ChallengeLimit::default(),
        }
    }

    /// Starts the space at the peer's SYN, which has the number `irs`.
    pub(crate) fn start(&mut self, irs: SeqNum, window: u32) {
        self.nxt = irs + 1;
        self.acked = self.nxt;
        self.adv = self.nxt + window;
        self.max = self.adv;
    }

    /// Bytes that the peer may still send according to the last window announced.
    pub(crate) fn window(&self) -> u32 {
        self.adv - self.nxt
    }

    /// Bytes up to the furthest edge ever announced. The peer may have sent up to that edge before
    /// it heard of a smaller window, and its acknowledgements have numbers up to there.
    pub(crate) fn window_max(&self) -> u32 {
        self.max - self.nxt
    }

    /// Moves the right edge, which the peer is told now.
    pub(crate) fn announce(&mut self, window: u32) {
        self.adv = self.nxt + window;
        self.max = self.max.max(self.adv);
    }

    /// RCV.NXT has advanced: neither edge of the window is left behind it.
    pub(crate) fn keep_edges_ahead(&mut self) {
        self.adv = self.adv.max(self.nxt);
        self.max = self.max.max(self.adv);
    }

    /// The largest window of at most `room` bytes that the window field can express: whole units of
    /// the window scale, at most 65535 of them.
    pub(crate) fn offerable(&self, room: u32) -> u32 {
        (room >> self.wscale).min(u32::from(u16::MAX)) << self.wscale
    }

    /// Number of the peer's FIN while it waits behind a gap.
    pub(crate) fn fin_ahead(&self) -> Option<SeqNum> {
        self.assembler.as_ref().and_then(|assembler| assembler.fin)
    }

    /// Advances RCV.NXT over bytes in order up to `end`, and over bytes held behind them. Returns
    /// whether a gap was behind them, which calls for an acknowledgement at once.
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

    /// Cuts the parts of an acceptable segment off that lie before or behind the window.
    pub(crate) fn trim(&self, seq: SeqNum, payload_len: u32, fin: bool) -> NewText {
        let before = if seq.lt(self.nxt) { self.nxt - seq } else { 0 };
        let payload_offset = before.min(payload_len);
        let start = seq + payload_offset;
        // The FIN was received before if the numbers in front of the window include it.
        let fin = fin && before <= payload_len;
        let mut end = self.max;
        if let Some(fin) = self.fin_ahead() {
            end = end.min(fin);
        }
        let room = end.distance(start).max(0) as u32;
        let len = (payload_len - payload_offset).min(room);
        // A FIN that begins at the very edge of a full window is taken: it needs no room.
        let fin = fin && len == payload_len - payload_offset;
        NewText { seq: start, payload_offset, len, fin }
    }
}
