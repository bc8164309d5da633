//! The fifth step of RFC 9293 §3.10.7.4: the ACK field, including RTT measurement, loss detection
//! and the peer's window.

use core::time::Duration;

use towpath_wire::tcp::Flags;

use crate::connection::Connection;
use crate::counters::SendLimit;
use crate::disposition::{FifoChanges, SegmentDropReason};
use crate::event::pending;
use crate::loss::{SackReport, SenderProgress};
use crate::rack::AckTiming;
use crate::receive::feedback::AckProgress;
use crate::recovery::Phase;
use crate::segment::{FifoLevels, Segment};
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Fifth step of RFC 9293 §3.10.7.4: checks the ACK field.
    #[inline]
    pub(super) fn check_ack(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: FifoLevels,
        received: &mut FifoChanges,
    ) -> Result<(), SegmentDropReason> {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
        //# When the ACK bit is not set, the receiver MUST ignore the value of the TSecr field.
        if !segment.flags.contains(Flags::ACK) {
            return Err(SegmentDropReason::NoAck);
        }
        if self.state == State::SynReceived {
            self.check_ack_of_syn(now, segment, received)?;
        }
        if !self.is_ack_in_range(segment) {
            self.owed.ack |= self.rcv.challenge.allow(now);
            return Err(SegmentDropReason::BadAck);
        }
        if segment.ack.lt(self.snd.una) {
            self.receive_overtaken_ack(now, segment);
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
        //# As long as the receiving TCP peer continues to send acknowledgments in response to the
        //# probe segments, the sending TCP peer MUST allow the connection to stay open (MUST-37).
        self.timers.window_probes = 0;
        let mut progress = self.begin_progress();
        let (before, phase) = (self.sender_progress(), self.recovery.phase);
        let ack = self.timing_of(segment);
        let report = match segment.options.sack.is_empty() {
            true => SackReport::default(),
            false => self.receive_sack(segment, ack),
        };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# It is RECOMMENDED that implementations will reserve 32-bit fields for the send and
        //# receive window sizes in the connection record and do all window computations with 32
        //# bits (REC-1).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# The window size MUST be treated as an unsigned number, or else large window sizes will
        //# appear like negative windows and TCP will not work (MUST-1).
        let window = self.window_of(segment);
        let advanced = segment.ack.gt(self.snd.una);
        progress.marks = self.reported_marks(segment);
        if advanced {
            self.advance_una(now, segment, ack, received, &mut progress);
        } else if self.is_duplicate(segment, window, report.has_news) {
            self.count_duplicate(segment);
        }
        // Fast path: a single transmission was in flight, and nothing was probed or retransmitted.
        if self.recovery.is_tracking() || report.dsack.is_some() {
            self.check_probe(segment, before, report, window);
            self.check_spurious(ack, report, before, phase);
        }
        if self.recovery.is_watching() {
            self.detect_losses(ack.now, before, &mut progress);
        }
        if progress.marks > 0 {
            self.react_to_marks(progress.marks);
        }
        self.update_delivery_rate(segment.arrival, &mut progress);
        self.update_congestion(segment.arrival, &progress);
        self.update_window(segment, window, advanced);
        self.arm_persist(now);
        self.note_limit(now, buffers.send_len.saturating_sub(received.released));
        self.schedule_probe_after_ack(now, advanced || report.has_news);
        self.check_ack_of_fin(now);
        Ok(())
    }

    /// Looks for lost segments after an ACK, and limits what the recovery sends next.
    fn detect_losses(&mut self, now: Instant, before: SenderProgress, progress: &mut AckProgress) {
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5
        //# (B) Upon receipt of an ACK that does not cover RecoveryPoint, the following actions
        //# MUST be taken:
        progress.lost = self.look_for_loss(now, before);
        self.limit_recovery(before, progress.lost);
        progress.in_recovery |= self.recovery.phase == Phase::Recovery;
    }

    fn count_duplicate(&mut self, segment: &Segment) {
        let (acks, mss) = (segment.segments.max(1), self.mss());
        self.recovery.on_dup_ack(acks, mss, self.snd.una, self.snd.nxt);
    }

    /// Processes the SACK blocks of an old ACK, which a later ACK has overtaken.
    fn receive_overtaken_ack(&mut self, now: Instant, segment: &Segment) {
        if segment.options.sack.is_empty() {
            return;
        }
        let (before, phase) = (self.sender_progress(), self.recovery.phase);
        let ack = self.timing_of(segment);
        let report = self.receive_sack(segment, ack);
        self.check_spurious(ack, report, before, phase);
        if report.has_news {
            let lost = self.look_for_loss(ack.now, before);
            self.limit_recovery(before, lost);
            self.schedule_probe(now);
        }
    }

    /// Returns whether SEG.ACK acknowledges bytes that were sent, and is not too old.
    fn is_ack_in_range(&self, segment: &Segment) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# RFC 5961 [9], Section 5 describes a potential blind data injection attack, and
        //# mitigation that implementations MAY choose to include (MAY-12).
        //= https://www.rfc-editor.org/rfc/rfc5961#section-5.2
        //# The ACK value is considered acceptable only if it is in the range of ((SND.UNA -
        //# MAX.SND.WND) <= SEG.ACK <= SND.NXT).
        // SEG.ACK may not be before our first byte either, because bytes that were never sent
        // cannot be acknowledged. The FIN counts as one byte: its ACK may overtake segments that
        // the peer sent before it received the FIN.
        let acked = self.counters.bytes_acked + u64::from(self.snd.fin_acked());
        let age_max = self.snd.max_wnd.min(u32::try_from(acked).unwrap_or(u32::MAX));
        segment.ack.is_within(self.snd.una - age_max, age_max + self.snd.flight() + 1)
    }

    /// Returns SEG.WND of the segment in bytes.
    fn window_of(&self, segment: &Segment) -> u32 {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.2
        //# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT
        //# be scaled.
        let is_scaled = !segment.flags.contains(Flags::SYN);
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.3
        //# MUST be left-shifted by Snd.Wind.Shift bits before updating SND.WND:
        u32::from(segment.window) << if is_scaled { self.snd.wscale } else { 0 }
    }

    fn check_ack_of_syn(
        &mut self,
        now: Instant,
        segment: &Segment,
        received: &mut FifoChanges,
    ) -> Result<(), SegmentDropReason> {
        if !segment.ack.is_within(self.snd.una + 1, self.snd.flight()) {
            self.owed.set_reset_reply(segment.ack);
            return Err(SegmentDropReason::BadAck);
        }
        self.owed.syn = false;
        self.snd.set_window(self.window_of(segment), segment.seq, segment.ack);
        self.update_mss();
        self.ecn.on_handshake_ack(segment);
        self.on_syn_acked(now, segment, received);
        Ok(())
    }

    /// Handles the acknowledgement of our SYN, and of data sent with it (`fast_open`).
    pub(super) fn on_syn_acked(
        &mut self,
        now: Instant,
        segment: &Segment,
        received: &mut FifoChanges,
    ) {
        let retransmitted = self.timers.retransmits > 0;
        let is_syn_alone = self.snd.flight() <= 1;
        self.measure(now, segment);
        self.snd.una = segment.ack;
        received.released = self.snd.una - (self.snd.iss + 1);
        let ack = AckTiming { now: segment.arrival, echo: None, rtt_min: Duration::ZERO };
        self.recovery.on_advance(ack, self.snd.iss, self.snd.una, self.snd.nxt, self.mss());
        self.timers.retransmit = Instant::FAR;
        self.on_established(now, retransmitted);
        if !is_syn_alone {
            self.snd.keep_marks_ahead();
            self.on_early_bytes_acked(now, received.released);
        }
        self.raise(pending::CONNECTED);
    }

    /// Handles the acknowledgement of our SYN together with `bytes` bytes sent before the handshake
    /// was complete.
    fn on_early_bytes_acked(&mut self, now: Instant, bytes: u32) {
        self.counters.bytes_acked += u64::from(bytes);
        self.ext.fast_open.on_syn_acked(self.snd.flight() == 0);
        if self.snd.flight() == 0 {
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.2
        //# The client SHOULD retransmit any unacknowledged data in the first ACK packet
        if self.ext.fast_open.has_lost_bytes() {
            self.recovery.resend(self.snd.una, self.snd.nxt, self.snd.nxt);
            self.rtt.stop_timing();
        }
        self.timers.retransmit = now + self.rtt.rto();
    }

    /// Handles an ACK of new bytes: SND.UNA < SEG.ACK.
    fn advance_una(
        &mut self,
        now: Instant,
        segment: &Segment,
        ack: AckTiming,
        received: &mut FifoChanges,
        progress: &mut AckProgress,
    ) {
        let old = self.snd.una;
        let fin_acked = self.snd.fin_in_flight() && segment.ack == self.snd.nxt;
        let acked = segment.ack - old;
        progress.rtt = self.measure(now, segment);
        self.snd.una = segment.ack;
        let bytes = acked - u32::from(fin_acked);
        //= https://www.rfc-editor.org/rfc/rfc6675#section-4
        //# SACKed data MUST NOT be removed from the TCP's retransmission buffer until the data is
        //# cumulatively acknowledged [RFC2018].
        received.released = bytes;
        self.counters.bytes_acked += u64::from(bytes);

        let phase = self.recovery.phase;
        let over = self.recovery.on_advance(ack, old, self.snd.una, self.snd.nxt, self.mss());
        if over {
            self.rtt.reordering.on_recovery_exit();
            if phase == Phase::Recovery {
                self.congestion.on_recovery_exit();
            }
        }
        progress.bytes = bytes;
        progress.after_timeout = phase == Phase::Loss && !over;
        progress.in_recovery = phase == Phase::Recovery;
        self.snd.keep_marks_ahead();
        self.end_hold();
        self.snd.wl2 = self.snd.wl2.max(self.snd.una);

        //= https://www.rfc-editor.org/rfc/rfc6298#section-5
        //# (5.3) When an ACK is received that acknowledges new data, restart the retransmission timer so
        //# that it will expire after RTO seconds (for the current value of RTO).
        //= https://www.rfc-editor.org/rfc/rfc6582#section-3.2
        //# For the first partial ACK that arrives during fast recovery, also reset the retransmit
        //# timer.
        self.timers.retransmits = 0;
        self.timers.unreachable = false;
        // The peer accepted data. Start again with the shortest interval between probes of a closed
        // window.
        self.timers.persist_backoff = 0;
        self.note_progress(now);
        self.timers.retransmit =
            if self.snd.flight() == 0 { Instant::FAR } else { self.rtt.rto_at(now) };
    }

    /// Sends bytes held back by MSG_MORE when an ACK arrives, unless Nagle's algorithm also holds
    /// them back. On Linux, the flag affects only the call's own attempt to send, and the next ACK
    /// sends the bytes.
    fn end_hold(&mut self) {
        let is_due = self.settings.nodelay || self.snd.small_end.leq(self.snd.una);
        self.owed.cork_flush |= self.snd.more_coming && !self.settings.corked && is_due;
    }

    /// Takes an RTT sample if this ACK provides one (Karn's algorithm, RFC 6298 §3). Returns the
    /// sample only if the acknowledged bytes were sent once.
    fn measure(&mut self, now: Instant, segment: &Segment) -> Option<Duration> {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-4.2
        //# an implementation SHOULD try to adhere to the spirit of the history specified in
        //# [RFC6298].
        if let Some((end, sent)) = self.rtt.timed() {
            if segment.ack.lt(end) {
                return None;
            }
            self.rtt.stop_timing();
            let rtt = segment.arrival.since(sent);
            self.take_rtt(now, rtt);
            return Some(rtt);
        }
        // Some bytes were retransmitted, so only the timestamp shows which copy the ACK answers.
        // Ignore an echo of the timestamp of an earlier copy. If the ACK for that copy was lost,
        // the receiver echoes its timestamp again when it answers the last copy. A sample from this
        // echo would be as long as the timeout, and would make the timeout grow up to its maximum.
        let repeated = self.timers.retransmits > 0 || self.recovery.phase != Phase::Open;
        if let Some(timestamps) = segment.options.timestamps
            && self.ext.timestamps
            && repeated
            && timestamps.echo != 0
            && timestamps.echo.wrapping_sub(self.counters.rare().ts_repeated) as i32 >= 0
        {
            let elapsed_ms =
                now.millis().wrapping_add(self.ext.ts_offset).wrapping_sub(timestamps.echo);
            if elapsed_ms <= 300_000 {
                self.take_rtt(now, Duration::from_millis(u64::from(elapsed_ms.max(1))));
            }
        }
        None
    }

    fn take_rtt(&mut self, now: Instant, sample: Duration) {
        self.rtt.on_sample(now, sample);
        self.recovery.on_rtt_sample();
    }

    /// Returns whether the ACK is a duplicate (RFC 5681 §2). With SACK: whether it reports new
    /// bytes (RFC 6675 §2).
    fn is_duplicate(&self, segment: &Segment, window: u32, news: bool) -> bool {
        if self.snd.flight() == 0 || segment.ack != self.snd.una {
            return false;
        }
        if self.ext.sack {
            return news;
        }
        segment.payload_len == 0
            && !segment.flags.intersects(Flags::SYN | Flags::FIN)
            && window == self.snd.wnd
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND <- SEG.WND,
    //# set SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
    fn update_window(&mut self, segment: &Segment, window: u32, advanced: bool) {
        let newer = self.snd.wl1.lt(segment.seq)
            || self.snd.wl1 == segment.seq && self.snd.wl2.leq(segment.ack);
        // Accept the window of an ACK that advances SND.UNA even if its sequence number is old, as
        // in a retransmission. With the old SND.WND, the right edge would move although the peer
        // never announced it. Also accept a window whose right edge is beyond the known one.
        if advanced || newer || (segment.ack + window).gt(self.snd.window_end()) {
            let reopened = self.snd.wnd == 0 && window > 0 && self.snd.flight() > 0;
            if reopened && self.recovery.on_window_reopened(self.snd.una, self.snd.nxt) {
                self.rtt.stop_timing();
            }
            self.snd.wnd = window;
            if window > self.snd.max_wnd {
                self.snd.max_wnd = window;
                self.update_mss();
                //= https://www.rfc-editor.org/rfc/rfc5681#section-3.1
                //# cwnd MUST be set to no more than the loss window, LW, which equals 1 full-sized
                //# segment (regardless of the value of IW).
                // Raise the congestion window to at least one segment. A larger window of the peer
                // makes our segments larger (`half_window`), and sending would stall otherwise.
                self.congestion.on_mss(self.mss());
            }
            self.snd.wl1 = segment.seq;
            self.snd.wl2 = segment.ack;
        }
    }

    fn check_ack_of_fin(&mut self, now: Instant) {
        if !self.snd.fin_acked() {
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

    /// Records that the sender is idle if nothing is in flight and the send FIFO is empty
    /// (`Info::busy_time`). `send_len` is the length of the FIFO in bytes.
    pub(crate) fn note_limit(&mut self, now: Instant, send_len: u32) {
        if self.snd.flight() == 0 && send_len == 0 {
            self.counters.enter(now, SendLimit::Idle);
        }
    }
}
