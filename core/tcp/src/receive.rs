//! A segment arrives: RFC 9293 §3.10.7, one step a function, in its order.

use crate::congestion::Acked;
use crate::connection::{Connection, WhenRead};
use crate::counters::Limit;
use crate::disposition::{Disposition, DropReason, FifoChanges, Write};
use crate::event::pending;
use crate::ranges::Inserted;
use crate::recovery::Phase;
use crate::segment::{Buffers, Segment};
use crate::state::State;
use crate::time::Instant;
use crate::timestamps;
use core::time::Duration;
use towpath_wire::tcp::{Flags, SeqNum};

/// A timestamp older than 24 days says nothing (RFC 7323 §5.5).
const TS_RECENT_AGE_MAX: u32 = Instant(24 * 24 * 3600 * 1_000_000_000).coarse();

/// An acceptable segment begins less than this before RCV.NXT: sixteen times the longest that IP
/// carries.
const SEQ_AGE_MAX: u32 = 1 << 20;

/// Number of new bytes that are acknowledged at once, even if they are less than two segments. On a
/// link with segments of 64 KiB a sender may have room for one only, and would wait for the delayed
/// acknowledgement each time. The RFC's rule is a lower bound.
const ACK_BYTES_MAX: u32 = 16 * 1024;

/// The part of a segment that is new and in the window.
#[derive(Debug, Clone, Copy)]
struct Text {
    seq: SeqNum,
    payload_offset: u32,
    len: u32,
    fin: bool,
}

impl Connection {
    /// A segment for this connection arrived, its checksum verified.
    ///
    /// `buffers` is as before the segment: the caller applies the [`FifoChanges`] afterwards.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment, buffers: Buffers) -> Disposition {
        self.count_segment(segment);
        let result = match self.state {
            State::Closed => Err(DropReason::AfterClose),
            State::SynSent => self.on_segment_in_syn_sent(now, segment, buffers),
            State::SynReceived => self.on_segment_in_syn_received(now, segment, buffers),
            _ => self.on_segment_in_sequence(now, segment, buffers),
        };
        match result {
            Ok(received) => Disposition::Accepted(received),
            Err(reason) => Disposition::Dropped(reason),
        }
    }

    pub(crate) fn count_segment(&mut self, segment: &Segment) {
        let segments = u32::from(segment.segments.max(1));
        self.counters.segs_in = self.counters.segs_in.wrapping_add(segments);
        if segment.payload_len > 0 {
            self.counters.data_segs_in = self.counters.data_segs_in.wrapping_add(segments);
        }
        if segment.ce {
            let rare = self.counters.rare_mut();
            rare.ce_segs_in = rare.ce_segs_in.wrapping_add(segments);
        }
    }

    /// RFC 9293 §3.10.7.3.
    fn on_segment_in_syn_sent(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: Buffers,
    ) -> Result<FifoChanges, DropReason> {
        let acked = segment.flags.contains(Flags::ACK);
        if acked && !segment.ack.is_within(self.iss + 1, self.snd_nxt - self.iss) {
            if segment.flags.contains(Flags::RST) {
                return Err(DropReason::ResetIgnored);
            }
            self.owed.set_reset_reply(segment.ack);
            return Err(DropReason::BadAck);
        }
        if segment.flags.contains(Flags::RST) {
            if !acked {
                return Err(DropReason::ResetIgnored);
            }
            self.enter_closed();
            self.raise(pending::REFUSED);
            return Ok(FifoChanges::default());
        }
        if !segment.flags.contains(Flags::SYN) {
            return Err(DropReason::Unexpected);
        }
        self.accept_syn(now, segment);
        if !acked {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5
            //# A TCP implementation MUST support simultaneous open attempts (MUST-10).
            // Simultaneous open. Text in this SYN comes again: it is not acknowledged.
            self.state = State::SynReceived;
            self.owed.syn = true;
            return Ok(FifoChanges::default());
        }
        let mut received = FifoChanges::default();
        self.on_syn_acked(now, segment, &mut received);
        self.owed.ack = true;
        let text =
            self.trim(segment.seq + 1, segment.payload_len, segment.flags.contains(Flags::FIN));
        self.process_text(now, segment, text, buffers, &mut received);
        Ok(received)
    }

    /// The peer's SYN, with or without ACK, in SYN-SENT.
    pub(crate) fn accept_syn(&mut self, now: Instant, segment: &Segment) {
        self.apply_options(&segment.options);
        let window = self.recv_window();
        self.start_receiving(segment.seq, window);
        // A SYN's window is never scaled (RFC 7323 §2.2).
        self.set_send_window(u32::from(segment.window), segment.seq, segment.ack);
        if let Some(timestamps) = segment.options.timestamps {
            self.ts_recent = timestamps.value;
            self.ts_recent_at = now.coarse();
        }
        self.timers.last_recv = now;
    }

    /// RFC 9293 §3.10.7.4.
    pub(crate) fn on_segment_in_sequence(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: Buffers,
    ) -> Result<FifoChanges, DropReason> {
        self.check_timestamps(now, segment)?;
        let text = self.check_sequence(now, segment)?;
        // A single test for flags that hardly any segment has.
        if segment.flags.intersects(Flags::RST | Flags::SYN | Flags::URG) {
            return self.on_flagged_segment(now, segment, text, buffers);
        }
        if self.state == State::Closed {
            return Ok(FifoChanges::default());
        }
        let mut received = FifoChanges::default();
        self.check_ack(now, segment, buffers, &mut received)?;
        self.note_timestamp(now, segment);
        self.note_heard(now);
        self.process_text(now, segment, text, buffers, &mut received);
        Ok(received)
    }

    /// The steps of [`Self::on_segment_in_sequence`] from the third on, for a segment with RST, SYN
    /// or URG.
    #[cold]
    fn on_flagged_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        text: Text,
        buffers: Buffers,
    ) -> Result<FifoChanges, DropReason> {
        self.check_reset(now, segment)?;
        self.check_syn(now, segment)?;
        let mut received = FifoChanges::default();
        if self.state == State::Closed {
            return Ok(received);
        }
        self.check_ack(now, segment, buffers, &mut received)?;
        self.note_timestamp(now, segment);
        self.note_heard(now);
        received.urgent = self.check_urgent(segment);
        self.process_text(now, segment, text, buffers, &mut received);
        Ok(received)
    }

    /// PAWS (RFC 7323 §5). A TS.Recent of 24 days ago refuses nothing: the peer's clock may have
    /// wrapped.
    fn check_timestamps(&mut self, now: Instant, segment: &Segment) -> Result<(), DropReason> {
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

    /// RFC 7323 §4.3: the timestamp to echo is that of the segment that is acknowledged next.
    fn note_timestamp(&mut self, now: Instant, segment: &Segment) {
        if let Some(timestamps) = segment.options.timestamps
            && self.timestamps
            && segment.seq.leq(self.rcv_acked)
        {
            self.ts_recent = timestamps.value;
            self.ts_recent_at = now.coarse();
        }
    }

    /// First, check sequence number.
    fn check_sequence(&mut self, now: Instant, segment: &Segment) -> Result<Text, DropReason> {
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
    fn trim(&self, seq: SeqNum, payload_len: u32, fin: bool) -> Text {
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
    fn check_reset(&mut self, now: Instant, segment: &Segment) -> Result<(), DropReason> {
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
            self.owed.ack |= self.challenge.allow(now);
            return Err(DropReason::ResetInWindow);
        }
        if self.state == State::TimeWait {
            // RFC 1337.
            return Err(DropReason::ResetIgnored);
        }
        match self.state {
            State::SynReceived => self.raise(self.reset_event_before_handshake()),
            // Both sides have sent all, and our bytes have arrived: nothing is lost but the peer's
            // acknowledgement of our FIN. The RFC tells the user of no reset in these states. A
            // reset with bytes on their way destroys them, so the program hears of it as on Linux.
            State::Closing | State::LastAck if self.fin_sent && self.data_in_flight() == 0 => {}
            _ => self.raise(pending::RESET),
        }
        self.enter_closed();
        Ok(())
    }

    /// Fourth, check the SYN bit.
    fn check_syn(&mut self, now: Instant, segment: &Segment) -> Result<(), DropReason> {
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

    /// Fifth, check the ACK field.
    fn check_ack(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: Buffers,
        received: &mut FifoChanges,
    ) -> Result<(), DropReason> {
        if !segment.flags.contains(Flags::ACK) {
            return Err(DropReason::NoAck);
        }
        if self.state == State::SynReceived {
            self.check_ack_of_syn(now, segment, received)?;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# RFC 5961 [9], Section 5 describes a potential blind data injection attack, and
        //# mitigation that implementations MAY choose to include (MAY-12).
        //= https://www.rfc-editor.org/rfc/rfc5961#section-5.2
        //# The ACK value is considered acceptable only if it is in the range of ((SND.UNA -
        //# MAX.SND.WND) <= SEG.ACK <= SND.NXT).
        // And not before our first byte: what was never sent cannot have been acknowledged, late or
        // not. The FIN counts like a byte: its acknowledgement may overtake what the peer sent
        // before it had it.
        let acked = self.counters.bytes_acked + u64::from(self.fin_acked());
        let age_max = self.max_snd_wnd.min(u32::try_from(acked).unwrap_or(u32::MAX));
        if !segment.ack.is_within(self.snd_una - age_max, age_max + self.flight() + 1) {
            self.owed.ack |= self.challenge.allow(now);
            return Err(DropReason::BadAck);
        }
        if segment.ack.lt(self.snd_una) {
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
        //# As long as the receiving TCP peer continues to send acknowledgments in response to the
        //# probe segments, the sending TCP peer MUST allow the connection to stay open (MUST-37).
        self.timers.window_probes = 0;
        let news = !segment.options.sack.is_empty()
            && self.recovery.on_sack(
                &segment.options.sack,
                segment.ack.max(self.snd_una),
                self.snd_nxt,
            );
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# It is RECOMMENDED that implementations will reserve 32-bit fields for the send and
        //# receive window sizes in the connection record and do all window computations with 32
        //# bits (REC-1).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# The window size MUST be treated as an unsigned number, or else large window sizes will
        //# appear like negative windows and TCP will not work (MUST-1).
        let window = self.window_of(segment);
        let advanced = segment.ack.gt(self.snd_una);
        if advanced {
            self.advance_una(now, segment, received);
        } else if self.is_duplicate(segment, window, news) {
            self.recovery.on_dup_ack(
                segment.segments.max(1),
                self.mss(),
                self.snd_una,
                self.snd_nxt,
            );
        }
        if self.flight() > 0 {
            self.look_for_loss();
        }
        self.update_window(segment, window, advanced);
        self.arm_persist(now);
        self.note_limit(now, buffers.send_len.saturating_sub(received.released));
        self.check_ack_of_fin(now);
        Ok(())
    }

    /// SEG.WND in bytes.
    fn window_of(&self, segment: &Segment) -> u32 {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.2
        //# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT
        //# be scaled.
        let is_scaled = !segment.flags.contains(Flags::SYN);
        u32::from(segment.window) << if is_scaled { self.snd_wscale } else { 0 }
    }

    fn check_ack_of_syn(
        &mut self,
        now: Instant,
        segment: &Segment,
        received: &mut FifoChanges,
    ) -> Result<(), DropReason> {
        if !segment.ack.is_within(self.snd_una + 1, self.flight()) {
            self.owed.set_reset_reply(segment.ack);
            return Err(DropReason::BadAck);
        }
        self.owed.syn = false;
        self.set_send_window(self.window_of(segment), segment.seq, segment.ack);
        self.on_syn_acked(now, segment, received);
        Ok(())
    }

    /// The peer has our SYN, and maybe bytes behind it (`fast_open`).
    fn on_syn_acked(&mut self, now: Instant, segment: &Segment, received: &mut FifoChanges) {
        let retransmitted = self.timers.retransmits > 0;
        let is_syn_alone = self.flight() <= 1;
        self.measure(now, segment);
        self.snd_una = segment.ack;
        received.released = self.snd_una - (self.iss + 1);
        self.recovery.on_advance(self.iss, self.snd_una, self.snd_nxt, self.mss());
        self.timers.retransmit = Instant::FAR;
        self.on_established(now, retransmitted);
        if !is_syn_alone {
            self.small_end = self.small_end.max(self.snd_una);
            self.limited_end = self.limited_end.max(self.snd_una);
            self.on_early_bytes_acked(now, received.released);
        }
        self.raise(pending::CONNECTED);
    }

    /// SND.UNA < SEG.ACK: bytes of ours arrived.
    fn advance_una(&mut self, now: Instant, segment: &Segment, received: &mut FifoChanges) {
        let old = self.snd_una;
        let fin_acked = self.fin_in_flight() && segment.ack == self.snd_nxt;
        let acked = segment.ack - old;
        self.measure(now, segment);
        let limited = old.lt(self.limited_end);
        self.snd_una = segment.ack;
        let bytes = acked - u32::from(fin_acked);
        received.released = bytes;
        self.counters.bytes_acked += u64::from(bytes);

        let mss = self.mss();
        let phase = self.recovery.phase;
        let over = self.recovery.on_advance(old, self.snd_una, self.snd_nxt, mss);
        if phase != Phase::Recovery && bytes > 0 {
            let srtt = self.rtt.srtt().unwrap_or_default();
            let after_timeout = phase == Phase::Loss && !over;
            self.congestion.on_ack(now, Acked { bytes, mss, srtt, limited, after_timeout });
        }
        // Marks that SND.UNA has passed follow it. Left behind, they would come to lie half the
        // space away, where the order of sequence numbers turns round.
        self.small_end = self.small_end.max(self.snd_una);
        self.limited_end = self.limited_end.max(self.snd_una);
        self.snd_wl2 = self.snd_wl2.max(self.snd_una);

        //= https://www.rfc-editor.org/rfc/rfc6298#section-5
        //# (5.3) When an ACK is received that acknowledges new data, restart the retransmission timer so
        //# that it will expire after RTO seconds (for the current value of RTO).
        self.timers.retransmits = 0;
        self.timers.unreachable = false;
        // Bytes got through: should the window shut again, its probes begin with the shortest
        // interval.
        self.timers.persist_backoff = 0;
        self.note_progress(now);
        self.timers.retransmit =
            if self.flight() == 0 { Instant::FAR } else { now + self.rtt.rto() };
    }

    /// Takes a round-trip time if this ACK gives one (RFC 6298 §3: Karn's algorithm).
    fn measure(&mut self, now: Instant, segment: &Segment) {
        if let Some((end, sent)) = self.timed() {
            if segment.ack.geq(end) {
                self.stop_timing();
                self.rtt.on_sample(segment.arrival.since(sent));
            }
            return;
        }
        // Bytes were sent twice, so only a timestamp tells which copy the acknowledgement answers.
        // The echo of an earlier copy tells no round trip. A receiver that had that copy, and whose
        // answer was lost, repeats its timestamp in the answer to the last one. A sample of it
        // would be as long as the timeout, which would grow until it is the longest there is.
        let repeated = self.timers.retransmits > 0 || self.recovery.phase != Phase::Open;
        if let Some(timestamps) = segment.options.timestamps
            && self.timestamps
            && repeated
            && timestamps.echo != 0
            && timestamps.echo.wrapping_sub(self.counters.rare().ts_repeated) as i32 >= 0
        {
            let elapsed_ms =
                now.millis().wrapping_add(self.ts_offset).wrapping_sub(timestamps.echo);
            if elapsed_ms <= 300_000 {
                self.rtt.on_sample(Duration::from_millis(u64::from(elapsed_ms.max(1))));
            }
        }
    }

    /// RFC 5681 §2; with SACK, RFC 6675 §2: an ACK that reports something new.
    fn is_duplicate(&self, segment: &Segment, window: u32, news: bool) -> bool {
        if self.flight() == 0 || segment.ack != self.snd_una {
            return false;
        }
        if self.sack {
            return news;
        }
        segment.payload_len == 0
            && !segment.flags.intersects(Flags::SYN | Flags::FIN)
            && window == self.snd_wnd
    }

    fn look_for_loss(&mut self) {
        if self.recovery.dup_acks() == 0 && self.recovery.sacked_bytes() == 0 {
            return;
        }
        let mss = self.mss();
        if self.recovery.detect(mss, self.snd_una, self.snd_nxt) {
            self.congestion.on_loss(self.flight(), mss);
        }
        if self.recovery.should_enter(self.snd_una) {
            self.recovery.enter(self.snd_una, self.snd_nxt);
            self.congestion.on_loss(self.flight(), mss);
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND <- SEG.WND,
    //# set SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
    fn update_window(&mut self, segment: &Segment, window: u32, advanced: bool) {
        let newer = self.snd_wl1.lt(segment.seq)
            || self.snd_wl1 == segment.seq && self.snd_wl2.leq(segment.ack);
        // When the peer sends old bytes again its sequence numbers go back. Its window is news all
        // the same if it acknowledges more than ever before. Otherwise, with SND.UNA moved and the
        // old SND.WND kept, the right edge would move without the peer's word. An edge further
        // right is news, too.
        if advanced || newer || (segment.ack + window).gt(self.window_end()) {
            let reopened = self.snd_wnd == 0 && window > 0 && self.flight() > 0;
            if reopened && self.recovery.on_window_reopened(self.snd_una, self.snd_nxt) {
                self.stop_timing();
            }
            self.snd_wnd = window;
            if window > self.max_snd_wnd {
                self.max_snd_wnd = window;
                //= https://www.rfc-editor.org/rfc/rfc5681#section-3.1
                //# cwnd MUST be set to no more than the loss window, LW, which equals 1 full-sized
                //# segment (regardless of the value of IW).
                // A larger window of the peer makes segments larger (`half_window`). Without room
                // for one in the congestion window the connection would stop for ever.
                self.congestion.on_mss(self.mss());
            }
            self.snd_wl1 = segment.seq;
            self.snd_wl2 = segment.ack;
        }
    }

    fn check_ack_of_fin(&mut self, now: Instant) {
        if !self.fin_acked() {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.raise(pending::SEND_CLOSED);
                if self.orphaned {
                    self.arm_fin_wait2(now);
                }
            }
            State::Closing => {
                self.raise(pending::SEND_CLOSED);
                self.enter_time_wait();
            }
            State::LastAck => {
                self.raise(pending::SEND_CLOSED);
                self.enter_closed();
            }
            _ => {}
        }
    }

    fn enter_time_wait(&mut self) {
        self.state = State::TimeWait;
        self.stop_timers();
        self.assembler = None;
    }

    /// Seventh, process the segment text; eighth, check the FIN bit.
    fn process_text(
        &mut self,
        now: Instant,
        segment: &Segment,
        text: Text,
        buffers: Buffers,
        received: &mut FifoChanges,
    ) {
        if !self.state.may_receive() {
            if self.state == State::TimeWait && segment.flags.contains(Flags::FIN) {
                self.owed.ack = true;
            }
            return;
        }
        let cut = text.len + text.payload_offset < segment.payload_len;
        if text.len > 0 {
            if self.orphaned {
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
                //# if new data is received after CLOSE is called, its TCP implementation SHOULD send a RST
                //# to show that data was lost (SHLD-3).
                // The RST follows the bytes written before CLOSE: Linux has sent those by then.
                self.abort();
                // The segment's ACK counts: bytes that it acknowledges are not in front of the last
                // ones.
                received.payload_dropped = Some(DropReason::AfterClose);
                return;
            }
            self.store(now, segment, text, buffers, received);
        } else if segment.payload_len > 0 {
            // A window probe, or an old duplicate with a new ACK.
            self.owed.ack = true;
            received.payload_dropped = cut.then_some(DropReason::OutOfWindow);
        }
        if text.fin && received.payload_dropped.is_none() {
            self.owed.ack = true;
            let fin = text.seq + text.len;
            if fin == self.rcv_nxt {
                self.process_fin();
                return;
            }
            self.assembler.get_or_insert_default().fin = Some(fin);
        }
        if self.fin_ahead() == Some(self.rcv_nxt) {
            self.process_fin();
        }
    }

    /// Where the peer's FIN is, once seen and not yet in order.
    fn fin_ahead(&self) -> Option<SeqNum> {
        self.assembler.as_ref().and_then(|assembler| assembler.fin)
    }

    /// The text of a SYN whose sender is known.
    pub(crate) fn take_syn_text(
        &mut self,
        now: Instant,
        syn: &Segment,
        buffers: Buffers,
        received: &mut FifoChanges,
    ) {
        let text = self.trim(syn.seq + 1, syn.payload_len, false);
        if text.len > 0 {
            self.store(now, syn, text, buffers, received);
        }
    }

    /// Finds the place of new payload in the receive FIFO.
    fn store(
        &mut self,
        now: Instant,
        segment: &Segment,
        text: Text,
        buffers: Buffers,
        received: &mut FifoChanges,
    ) {
        let offset = text.seq - self.rcv_nxt;
        let room = buffers.recv_free.saturating_sub(offset);
        let len = text.len.min(room);
        if len == 0 {
            self.owed.ack = true;
            received.payload_dropped = Some(DropReason::NoRoom);
            return;
        }
        if len < text.len {
            received.payload_dropped = Some(DropReason::NoRoom);
        }
        let end = text.seq + len;
        let mut urgent = received.payload_dropped.is_some();
        if offset == 0 {
            let old = self.rcv_nxt;
            self.rcv_nxt = end;
            if let Some(assembler) = &mut self.assembler {
                self.rcv_nxt = assembler.advance(end);
                urgent = true;
                if assembler.is_empty() {
                    self.assembler = None;
                }
            }
            received.commit = self.rcv_nxt - old;
            self.keep_edges_ahead();
            // A peer whose ACKs are all old never moves SND.WL1, which must not come to lie half
            // the space behind. No acceptable segment begins before this.
            self.snd_wl1 = self.snd_wl1.max(self.rcv_nxt - SEQ_AGE_MAX);
            self.counters.bytes_received += u64::from(received.commit);
        } else {
            self.owed.ack = true;
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
            //# A TCP implementation MAY send an ACK segment acknowledging RCV.NXT when a valid
            //# segment arrives that is in the window but not at the left window edge (MAY-13).
            self.owed.dup_acks = if self.sack { 0 } else { self.owed.dup_acks.saturating_add(1) };
            let rare = self.counters.rare_mut();
            rare.out_of_order_in = rare.out_of_order_in.wrapping_add(1);
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
            //# Segments with higher beginning sequence numbers SHOULD be held for later processing
            //# (SHLD-31).
            match self.assembler.get_or_insert_default().insert(text.seq, end) {
                Inserted::New => {}
                Inserted::Known => return,
                Inserted::Full => {
                    received.payload_dropped = Some(DropReason::TooManyRanges);
                    return;
                }
            }
        }
        received.write =
            Some(Write { payload_offset: text.payload_offset, fifo_offset: offset, len });
        self.counters.last_data_recv = now;
        self.schedule_ack(now, segment, urgent);
    }

    /// Decides whether new bytes are acknowledged now or later.
    fn schedule_ack(&mut self, now: Instant, segment: &Segment, urgent: bool) {
        let segments = segment.segments.max(1);
        let size = (segment.payload_len / u32::from(segments)).min(u32::from(u16::MAX)) as u16;
        self.rcv_mss = self.rcv_mss.max(size);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
        //# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of
        //# new data
        let two = (2 * u32::from(self.rcv_mss)).min(ACK_BYTES_MAX);
        let enough = self.rcv_nxt - self.rcv_acked >= two || segments >= 2;
        let ends_write = size < self.rcv_mss || segment.flags.contains(Flags::PSH);
        if ends_write && self.when_read == WhenRead::Nothing {
            self.when_read = WhenRead::Acknowledges;
        }
        if urgent || enough || self.timers.quick_acks > 0 || self.assembler.is_some() {
            self.owed.ack = true;
        } else if self.timers.delayed_ack == Instant::FAR {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
            //# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18)
            self.timers.delayed_ack = now + self.settings.delayed_ack();
        }
    }

    fn process_fin(&mut self) {
        self.rcv_nxt += 1;
        self.keep_edges_ahead();
        self.assembler = None;
        self.owed.ack = true;
        self.raise(pending::PEER_CLOSED);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
    }

    /// With nothing in flight and nothing in the FIFO, of which `send_len` is the length, nothing
    /// holds the sender back (`Info::busy_time`).
    pub(crate) fn note_limit(&mut self, now: Instant, send_len: u32) {
        if self.flight() == 0 && send_len == 0 {
            self.counters.enter(now, Limit::Idle);
        }
    }
}
