//! The first four steps of RFC 9293 §3.10.7.4: sequence number, RST, security and SYN, with
//! timestamps (RFC 7323) and challenge ACKs (RFC 5961). Their result is the text that is new.

use towpath_wire::tcp::{Flags, SeqNum};

use crate::connection::Connection;
use crate::disposition::DropReason;
use crate::event::pending;
use crate::segment::Segment;
use crate::state::State;
use crate::time::Instant;
use crate::timestamps;

/// A timestamp older than 24 days says nothing (RFC 7323 §5.5).
const TS_RECENT_AGE_MAX: u32 = Instant(24 * 24 * 3600 * 1_000_000_000).coarse();

/// The part of a segment that is new and in the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text {
    pub(super) seq: SeqNum,
    pub(super) payload_offset: u32,
    pub(super) len: u32,
    pub(super) fin: bool,
}

impl Connection {
    /// PAWS (RFC 7323 §5). A TS.Recent of 24 days ago refuses nothing: the peer's clock may have
    /// wrapped.
    #[inline]
    pub(super) fn check_timestamps(
        &mut self,
        now: Instant,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        if !self.timestamps {
            return Ok(());
        }
        let age = now.coarse().saturating_sub(self.ts_recent_at);
        match timestamps::check(self.ts_recent, segment) {
            Err(DropReason::Paws) if age >= TS_RECENT_AGE_MAX => Ok(()),
            Err(DropReason::Paws) => {
                self.answer_unacceptable(now, segment);
                Err(DropReason::Paws)
            }
            checked => checked,
        }
    }

    /// First, check sequence number.
    #[inline]
    pub(super) fn check_sequence(
        &mut self,
        now: Instant,
        segment: &Segment,
    ) -> Result<Text, DropReason> {
        let mut seq = segment.seq;
        // In a simultaneous open the peer's SYN-ACK repeats its SYN; what follows it is in order.
        let syn_again =
            segment.flags.contains(Flags::SYN | Flags::ACK) && self.is_syn_of_peer(segment);
        if syn_again {
            seq += 1;
        }
        let len = segment.seq_len() - u32::from(syn_again);
        let window = self.recv_window_max();
        let acceptable = if len == 0 {
            // A peer that has sent up to the right edge of the window, and lost a segment, sends
            // its ACKs with SEQ = RCV.NXT + RCV.WND. The RFC's test refuses that sequence number.
            // Without these ACKs both sides would wait for their timers.
            seq.is_within(self.rcv_nxt, window + 1)
        } else {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
            //# If the RCV.WND is zero, no segments will be acceptable, but special allowance should be
            //# made to accept valid ACKs, URGs, and RSTs.
            // The segment begins in the window, or begins before it and reaches into it.
            seq == self.rcv_nxt
                || seq.is_within(self.rcv_nxt, window)
                || self.rcv_nxt.is_within(seq, len)
        };
        if !acceptable {
            if !segment.flags.contains(Flags::RST) {
                self.answer_unacceptable(now, segment);
            }
            return Err(DropReason::OutOfWindow);
        }
        Ok(self.trim(seq, segment.payload_len, segment.flags.contains(Flags::FIN)))
    }

    /// In SYN-RECEIVED nothing has been received but the peer's SYN: is this where it was?
    fn is_syn_of_peer(&self, segment: &Segment) -> bool {
        self.state == State::SynReceived && segment.seq + 1 == self.rcv_nxt
    }

    /// Cuts off what is before the window and what is behind it, of an acceptable segment.
    pub(super) fn trim(&self, seq: SeqNum, payload_len: u32, fin: bool) -> Text {
        let before = if seq.lt(self.rcv_nxt) { self.rcv_nxt - seq } else { 0 };
        let payload_offset = before.min(payload_len);
        let start = seq + payload_offset;
        // The FIN itself is behind the window when it is what lies before it that was received
        // twice.
        let fin = fin && before <= payload_len;
        let mut end = self.rcv_max;
        if let Some(fin) = self.fin_ahead() {
            end = end.min(fin);
        }
        let room = end.distance(start).max(0) as u32;
        let len = (payload_len - payload_offset).min(room);
        // A FIN that begins at the very edge of a full window is taken: it needs no room.
        let fin = fin && len == payload_len - payload_offset;
        Text { seq: start, payload_offset, len, fin }
    }

    /// An ACK for a segment that is not acceptable; for one without payload, within the limit.
    fn answer_unacceptable(&mut self, now: Instant, segment: &Segment) {
        if segment.payload_len > 0 || self.challenge.allow(now) {
            self.owed.ack = true;
        }
    }

    /// Second, check the RST bit.
    pub(super) fn check_reset(
        &mut self,
        now: Instant,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        if !segment.flags.contains(Flags::RST) {
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5.3
        //# TCP implementations SHOULD allow a received RST segment to include data (SHLD-2).
        if segment.seq != self.rcv_nxt {
            //= https://www.rfc-editor.org/rfc/rfc5961#section-3.2
            //# If the RST bit is set and the sequence number does not exactly match the next expected
            //# sequence value, yet is within the current receive window (RCV.NXT < SEG.SEQ <
            //# RCV.NXT+RCV.WND), TCP MUST send an acknowledgment (challenge ACK).
            if !segment.seq.is_within(self.rcv_nxt, self.recv_window_max()) {
                return Err(DropReason::OutOfWindow);
            }
            self.owed.ack |= self.challenge.allow(now);
            return Err(DropReason::ResetInWindow);
        }
        if self.state == State::TimeWait {
            // RFC 1337.
            return Err(DropReason::ResetIgnored);
        }
        match self.state {
            State::SynReceived => self.raise(self.reset_event_before_handshake()),
            // RFC 9293 section 3.10.7.4 signals no reset in CLOSING and LAST-ACK. Linux and FreeBSD
            // do, so that a program learns that the peer has not acknowledged the end.
            _ => self.raise(pending::RESET),
        }
        self.enter_closed();
        Ok(())
    }

    /// Fourth, check the SYN bit.
    pub(super) fn check_syn(&mut self, now: Instant, segment: &Segment) -> Result<(), DropReason> {
        let expected = self.is_syn_of_peer(segment);
        if self.state == State::Closed || !segment.flags.contains(Flags::SYN) || expected {
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc5961#section-4.2
        //# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also
        //# referred to as challenge ACK) to the remote peer.
        self.owed.ack |= self.challenge.allow(now);
        Err(DropReason::SynInWindow)
    }
}
