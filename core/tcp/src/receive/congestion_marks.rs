//! ECN of received segments: CE marks on the peer's packets, and the peer's feedback about marks on
//! ours.

use crate::congestion::{CongestionKind, LossEvent};
use crate::connection::Connection;
use crate::recovery::Phase;
use crate::segment::Segment;
use towpath_wire::tcp::Flags;

impl Connection {
    /// Handles the ECN field and CWR of an acceptable segment.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.5
    //# the TCP data receiver SHOULD
    //# ignore the ECN field on arriving data packets that are outside of the
    //# receiver's current window.
    #[inline]
    pub(super) fn note_marks(&mut self, segment: &Segment) {
        //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2
        //# The Data Receiver MUST increment the CE packet counter (r.cep),
        //# for every Acceptable packet that it receives with the CE code
        //# point
        //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.5
        //# MUST feed back the information in the IP-ECN field of incoming
        //# packets using Accurate ECN feedback, as specified in Section 3.2.
        if segment.ecn.is_ce() {
            let received = &mut self.counters.rare_mut().ecn.received;
            *received = received.wrapping_add(segment.segments.max(1).into());
        }
        if self.ecn.is_classic() && self.congestion.kind() == CongestionKind::Dctcp {
            self.echo_each_mark(segment);
        } else if self.ecn.is_negotiated() {
            let has_unacked = self.rcv.nxt != self.rcv.acked;
            let counts = self.counters.ecn();
            self.owed.ack |= self.ecn.on_received(segment, has_unacked, &counts);
        }
    }

    /// Handles the ECN field of a segment on a connection with DCTCP.
    //= https://www.rfc-editor.org/rfc/rfc8257#section-3.2
    //# If the CE codepoint is set and DCTCP.CE is false, set DCTCP.CE to
    //# true and send an immediate ACK.
    //= https://www.rfc-editor.org/rfc/rfc8257#section-3.2
    //# If the CE codepoint is not set and DCTCP.CE is true, set DCTCP.CE
    //# to false and send an immediate ACK.
    fn echo_each_mark(&mut self, segment: &Segment) {
        if !self.ecn.echo_each(segment) {
            return;
        }
        self.owed.ack = true;
        // Bytes received earlier that wait for a delayed ACK had the previous ECN codepoint, so
        // record where the codepoint changes.
        if self.rcv.nxt != self.rcv.acked {
            let former = &mut self.counters.rare_mut().ecn.former_acks;
            let before = former.len();
            former.push(self.rcv.nxt);
            let owed = self.owed.dup_acks.saturating_add(former.len());
            self.owed.dup_acks = owed.saturating_sub(before);
        }
    }

    /// Records the ECN field of the peer's SYN or SYN-ACK, which accurate ECN reports.
    pub(super) fn note_peer_syn(&mut self, segment: &Segment) {
        if segment.ecn == self.counters.ecn().peer {
            return;
        }
        let counts = &mut self.counters.rare_mut().ecn;
        counts.peer = segment.ecn;
        //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.2
        //# it MUST NOT increment r.cep (it
        //# remains at its initial value of 5).
        //= https://www.rfc-editor.org/rfc/rfc9768#section-3.2.2.2
        //# it MUST increment r.cep, but no more than once
        //# no matter how many CE-marked SYN/ACKs it receives
        if segment.flags.contains(Flags::ACK) && segment.ecn.is_ce() {
            counts.received = counts.received.wrapping_add(1);
        }
    }

    /// Returns how many of our packets the ACK reports as marked with CE. Call this before SND.UNA
    /// advances.
    #[inline]
    pub(super) fn reported_marks(&mut self, segment: &Segment) -> u32 {
        if !self.ecn.is_negotiated() {
            return 0;
        }
        let counts = self.counters.ecn();
        // The first new data after a reduction carries CWR. If the peer acknowledges data sent
        // after the reduction, it has received the CWR.
        if self.ecn.is_reduced() && segment.ack.gt(counts.reduced_until) {
            self.ecn.end_reduction();
        }
        let packets = (segment.ack - self.snd.una).div_ceil(self.mss());
        self.ecn.on_feedback(segment, packets, &counts)
    }

    /// Reduces the window because the ACK reports `marks` marked packets.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.2
    //# TCP should not react to congestion indications more than once every
    //# window of data (or more loosely, more than once every round-trip
    //# time).
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.2
    //= type=exception
    //= reason=The window is never reduced below two segments, as RFC 5681 requires of ssthresh and as Linux does, so that an ACK is never delayed.
    //# the sending TCP MUST reset the
    //# retransmit timer on receiving the ECN-Echo packet when the congestion
    //# window is one.
    #[cold]
    pub(super) fn react_to_marks(&mut self, marks: u32) {
        let delivered = &mut self.counters.rare_mut().ecn.delivered;
        *delivered = delivered.wrapping_add(marks);
        if self.ecn.is_reduced() || self.recovery.phase != Phase::Open {
            return;
        }
        self.congestion.on_ecn(LossEvent { flight: self.snd.flight(), mss: self.mss() });
        self.note_reduced();
    }
}
