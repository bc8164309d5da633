//! The first four steps of RFC 9293 §3.10.7.4: sequence number, RST, security and SYN. Includes
//! timestamps (RFC 7323) and challenge ACKs (RFC 5961).

use towpath_wire::tcp::Flags;

use crate::connection::Connection;
use crate::disposition::SegmentDropReason;
use crate::event::pending;
use crate::receive_space::NewText;
use crate::segment::Segment;
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Checks the segment's timestamp by PAWS (RFC 7323 §5).
    #[inline]
    pub(super) fn check_timestamps(
        &mut self,
        now: Instant,
        segment: &Segment,
    ) -> Result<(), SegmentDropReason> {
        let checked = self.ext.check_timestamps(now, segment);
        if checked == Err(SegmentDropReason::Paws) {
            self.note_repeated_text(segment.seq, segment.payload_len);
            self.answer_unacceptable(now, segment);
        }
        checked
    }

    /// First step of RFC 9293 §3.10.7.4: checks the sequence number, and returns the part of the
    /// segment's text that is new.
    #[inline]
    pub(super) fn check_sequence(
        &mut self,
        now: Instant,
        segment: &Segment,
    ) -> Result<NewText, SegmentDropReason> {
        let mut seq = segment.seq;
        // In a simultaneous open, the peer's SYN-ACK contains its SYN again, which we have already
        // received. Data after it is in order.
        let syn_again =
            segment.flags.contains(Flags::SYN | Flags::ACK) && self.is_syn_of_peer(segment);
        if syn_again {
            seq += 1;
        }
        let len = segment.seq_len() - u32::from(syn_again);
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.4
        //# The receiver MUST honor, as in window, any segment that would have been in window for
        //# any <ACK> sent by the receiver.
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.4
        //# the receiver SHOULD track the actual maximum window sequence number
        let window = self.rcv.window_max();
        let acceptable = if len == 0 {
            // Accept SEQ = RCV.NXT + RCV.WND, which the RFC's test rejects. A peer that has filled
            // our window sends its ACKs with this number, even if a segment was lost. Otherwise
            // both ends would have to wait for their timers.
            seq.is_within(self.rcv.nxt, window + 1)
        } else {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
            //# If the RCV.WND is zero, no segments will be acceptable, but special allowance should be
            //# made to accept valid ACKs, URGs, and RSTs.
            // Accept a segment that starts in the receive window, or that starts before the window
            // and extends into it.
            seq == self.rcv.nxt
                || seq.is_within(self.rcv.nxt, window)
                || self.rcv.nxt.is_within(seq, len)
        };
        if !acceptable {
            self.note_repeated_text(seq, segment.payload_len);
            if !segment.flags.contains(Flags::RST) {
                self.answer_unacceptable(now, segment);
            }
            return Err(SegmentDropReason::OutOfWindow);
        }
        Ok(self.rcv.trim(seq, segment.payload_len, segment.flags.contains(Flags::FIN)))
    }

    /// Returns whether the segment has the sequence number of the peer's SYN, and no other segment
    /// has been received.
    pub(super) fn is_syn_of_peer(&self, segment: &Segment) -> bool {
        self.state == State::SynReceived && segment.seq + 1 == self.rcv.nxt
    }

    /// Answers an unacceptable segment with an ACK. ACKs for segments without payload are rate
    /// limited.
    fn answer_unacceptable(&mut self, now: Instant, segment: &Segment) {
        if segment.payload_len > 0 || self.rcv.challenge.allow(now) {
            self.owed.ack = true;
        }
    }

    /// Second step of RFC 9293 §3.10.7.4: checks the RST bit.
    pub(super) fn check_reset(
        &mut self,
        now: Instant,
        segment: &Segment,
    ) -> Result<(), SegmentDropReason> {
        if !segment.flags.contains(Flags::RST) {
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5.3
        //# TCP implementations SHOULD allow a received RST segment to include data (SHLD-2).
        if segment.seq != self.rcv.nxt {
            //= https://www.rfc-editor.org/rfc/rfc5961#section-3.2
            //# If the RST bit is set and the sequence number does not exactly match the next expected
            //# sequence value, yet is within the current receive window (RCV.NXT < SEG.SEQ <
            //# RCV.NXT+RCV.WND), TCP MUST send an acknowledgment (challenge ACK)
            if !segment.seq.is_within(self.rcv.nxt, self.rcv.window_max()) {
                //= https://www.rfc-editor.org/rfc/rfc5961#section-3.2
                //# If the RST bit is set and the sequence number is outside the current receive
                //# window, silently drop the segment.
                return Err(SegmentDropReason::OutOfWindow);
            }
            //= https://www.rfc-editor.org/rfc/rfc5961#section-3.2
            //# After sending the challenge ACK, TCP MUST drop the unacceptable segment and stop
            //# processing the incoming packet further.
            self.owed.ack |= self.rcv.challenge.allow(now);
            return Err(SegmentDropReason::ResetInWindow);
        }
        if self.state == State::TimeWait {
            // Ignore a RST in TIME-WAIT (RFC 1337).
            return Err(SegmentDropReason::ResetIgnored);
        }
        //= https://www.rfc-editor.org/rfc/rfc5961#section-3.2
        //# If the RST bit is set and the sequence number exactly matches the next expected sequence
        //# number (RCV.NXT), then TCP MUST reset the connection.
        match self.state {
            State::SynReceived => self.raise(self.ext.fast_open.reset_event()),
            // Report the reset in CLOSING and LAST-ACK too, unlike RFC 9293 section 3.10.7.4 but
            // like Linux and FreeBSD. The program then learns that the peer has not acknowledged
            // the FIN.
            _ => self.raise(pending::RESET),
        }
        self.enter_closed();
        Ok(())
    }

    /// Fourth step of RFC 9293 §3.10.7.4: checks the SYN bit.
    pub(super) fn check_syn(
        &mut self,
        now: Instant,
        segment: &Segment,
    ) -> Result<(), SegmentDropReason> {
        let expected = self.is_syn_of_peer(segment);
        if self.state == State::Closed || !segment.flags.contains(Flags::SYN) || expected {
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc5961#section-4.2
        //# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also
        //# referred to as challenge ACK) to the remote peer
        //= https://www.rfc-editor.org/rfc/rfc5961#section-4.2
        //# After sending the acknowledgment, TCP MUST drop the unacceptable segment and stop
        //# processing further.
        if segment.flags.contains(Flags::ACK) {
            self.ecn.on_syn_ack_again();
        }
        self.owed.ack |= self.rcv.challenge.allow(now);
        Err(SegmentDropReason::SynInWindow)
    }
}
