//! Reactions of a connection to losses: detection, the congestion window in recovery, undo of
//! reductions of this window, and tail loss probes. Module `receive` calls these steps for each
//! ACK, and `timeouts` when timers expire.

use crate::congestion::LossEvent;
use crate::connection::Connection;
use crate::flight::{FlightRecord, RecordBegin};
use crate::rack::{AckTiming, LossTiming};
use crate::recovery::{ForwardAck, Phase, ProbeAck, RecoveryAck};
use crate::segment::Segment;
use crate::time::Instant;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// State of the sender before an ACK is processed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SenderProgress {
    una: SeqNum,
    sacked: u32,
}

/// Information from the SACK option of an ACK.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SackReport {
    /// Whether the SACK option reports bytes that were not reported before.
    pub(crate) has_news: bool,
    /// Range of bytes that the peer received twice (D-SACK, RFC 2883).
    pub(crate) dsack: Option<(SeqNum, SeqNum)>,
}

impl Connection {
    /// Returns the current state of the sender, to be compared with the state after an ACK.
    #[inline]
    pub(crate) fn sender_progress(&self) -> SenderProgress {
        SenderProgress { una: self.snd.una, sacked: self.recovery.sacked_bytes() }
    }

    /// Returns the number of bytes acknowledged or reported by SACK since `before`.
    fn delivered_since(&self, before: SenderProgress) -> u32 {
        let acked = self.snd.una - before.una;
        (acked + self.recovery.sacked_bytes()).saturating_sub(before.sacked)
    }

    /// Returns the arrival time of an ACK, and the timestamp that it echoes.
    ///
    /// The echo identifies a transmission only if the ACK advances SND.UNA. Otherwise the peer
    /// repeats the timestamp of an earlier segment (RFC 7323 §4.3).
    #[inline]
    pub(crate) fn timing_of(&self, segment: &Segment) -> AckTiming {
        // Without a record, no transmission has a send time or was retransmitted.
        if !self.recovery.is_tracking() {
            return AckTiming { now: segment.arrival, echo: None, rtt_min: Duration::ZERO };
        }
        //= https://www.rfc-editor.org/rfc/rfc7323#section-4.1
        //# A TSecr value received in a segment MAY be used to update the averaged RTT measurement
        //# only if the segment advances the left edge of the send window
        let is_cumulative = self.ext.timestamps && segment.ack.gt(self.snd.una);
        let timestamps = segment.options.timestamps.filter(|it| is_cumulative && it.echo != 0);
        AckTiming {
            now: segment.arrival,
            echo: timestamps.map(|it| it.echo.wrapping_sub(self.ext.ts_offset)),
            rtt_min: self.rtt.min().unwrap_or_default(),
        }
    }

    /// Creates the record of the transmissions in flight, unless it exists.
    pub(crate) fn ensure_record(&mut self, now: Instant) {
        if self.recovery.record().is_some() {
            return;
        }
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let is_first = una == nxt;
        let begin = RecordBegin {
            delivered: self.counters.bytes_acked,
            at: if is_first { now } else { self.timers.last_recv },
            is_app_limited: !is_first || self.counters.is_idle(),
            rate: self.counters.rare().delivery_rate,
        };
        let mut record = FlightRecord::new(self.recovery.take_spare(), una, begin);
        if !is_first {
            let timed = self.rtt.timed().map(|(_, sent)| sent);
            let sent = timed.unwrap_or(self.counters.last_data_sent);
            record.push_unrecorded(nxt, sent, timed.is_some());
        }
        self.recovery.set_record(record);
    }

    /// Processes the SACK blocks of an ACK.
    #[cold]
    pub(crate) fn receive_sack(&mut self, segment: &Segment, ack: AckTiming) -> SackReport {
        let mut report = SackReport::default();
        if !self.ext.sack {
            return report;
        }
        if self.snd.flight() > 0 {
            self.ensure_record(ack.now);
        }
        let una = segment.ack.max(self.snd.una);
        let flight = self.snd.nxt - una;
        report.dsack = self.dsack_of(segment);
        for (left, right) in segment.options.sack.iter() {
            // Compare the edges' distances from SND.UNA with the bytes in flight, because a peer
            // may send arbitrary edges. Old blocks and D-SACK blocks below SND.UNA are ignored.
            let (start, end) = (left - una, right - una);
            //= https://www.rfc-editor.org/rfc/rfc2018#section-3
            //# Each block represents received bytes of data that are contiguous and
            //# isolated; that is, the bytes just below the block, (Left Edge of
            //# Block - 1), and just above the block, (Right Edge of Block), have not
            //# been received.
            // Ignore a block that starts at SND.UNA: the peer would have acknowledged its bytes
            // cumulatively.
            if 0 < start && start < end && end <= flight {
                //= https://www.rfc-editor.org/rfc/rfc6675#section-5
                //# Upon the receipt of any ACK containing SACK information, the scoreboard MUST be
                //# updated via the Update () routine.
                report.has_news |= self.recovery.on_sack(ack, left, right, self.snd.una);
            }
        }
        report
    }

    /// Returns the first SACK block if it reports duplicate bytes (D-SACK, RFC 2883 §4). The first
    /// block reports duplicates if it is below SEG.ACK, or part of the second block.
    fn dsack_of(&self, segment: &Segment) -> Option<(SeqNum, SeqNum)> {
        let mut blocks = segment.options.sack.iter();
        let (left, right) = blocks.next()?;
        let len = right - left;
        // Bytes of that age may still arrive twice; older numbers are invalid.
        //= https://www.rfc-editor.org/rfc/rfc2883#section-5
        //# An implementation MUST NOT compare the sequence space in the SACK block to the TCP state
        //# variable snd.una
        let age = segment.ack - left;
        if 0 < age && age <= self.snd.max_wnd {
            return (0 < len && len <= age).then_some((left, right));
        }
        //= https://www.rfc-editor.org/rfc/rfc2883#section-5
        //# the sender next compares the sequence space in the first SACK block with the sequence
        //# space in the second SACK block, if there is one.
        let (outer_left, outer_right) = blocks.next()?;
        let (offset, outer) = (left - outer_left, outer_right - outer_left);
        let is_outer_sent = outer <= self.snd.flight();
        let is_inside = offset <= outer && 0 < len && len <= outer - offset;
        (is_outer_sent && is_inside).then_some((left, right))
    }

    /// Returns how long sent bytes may be overdue before they count as lost.
    fn timing(&self, now: Instant) -> LossTiming {
        //= https://www.rfc-editor.org/rfc/rfc8985#section-3.3.2
        //# The reordering window SHOULD be set to zero if no reordering has been observed on the
        //# connection so far, and either (a) three segments have been SACKed since the last
        //# recovery or (b) the sender is already in fast or RTO recovery.
        let is_certain =
            !self.rtt.reordering.is_seen() && self.recovery.is_loss_certain(self.mss());
        let window = if is_certain { Default::default() } else { self.rtt.reordering_window() };
        LossTiming { now, window, srtt: self.rtt.srtt().unwrap_or_default() }
    }

    /// Records reordering that the current ACK revealed. Returns whether the ACK delivered bytes
    /// that were sent only once.
    fn note_arrivals(&mut self) -> bool {
        let Some(record) = self.recovery.record_mut() else { return false };
        let arrivals = record.rack.take_arrivals();
        if arrivals.reordered > 0 {
            self.rtt.reordering.note(arrivals.reordered.div_ceil(self.mss()));
            let rare = self.counters.rare_mut();
            rare.reorder_seen = rare.reorder_seen.saturating_add(1);
        }
        arrivals.has_original
    }

    /// Handles duplicates that the peer reports (D-SACK), and undoes a reduction of the congestion
    /// window if it was unnecessary. `before` and `phase` are the state before the ACK, which may
    /// have ended the recovery.
    pub(crate) fn check_spurious(
        &mut self,
        ack: AckTiming,
        report: SackReport,
        before: SenderProgress,
        phase: Phase,
    ) {
        let forward = ForwardAck {
            is_advance: self.snd.una != before.una,
            has_news: report.has_news,
            has_original: self.note_arrivals(),
        };
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.9.2
        //# a TCP implementation MAY detect spurious fast retransmits either using TCP Timestamps or
        //# via D-SACK [RFC2883].
        let is_refuted = |echo| self.recovery.is_refuted_by_echo(echo);
        let mut is_spurious = phase.is_repairing() && ack.echo.is_some_and(is_refuted);
        is_spurious |= self.recovery.check_timeout(forward, self.snd.nxt);
        if let Some((left, right)) = report.dsack {
            let rare = self.counters.rare_mut();
            rare.dsack_in = rare.dsack_in.saturating_add(1);
            //= https://www.rfc-editor.org/rfc/rfc8985#section-3.3.2
            //# The RACK reordering window SHOULD adaptively increase (using the algorithm in "Step
            //# 4: Update RACK reordering window" below) if the sender receives a Duplicate
            //# Selective Acknowledgment (DSACK) option [RFC2883].
            if self.recovery.start_dsack_round(self.snd.una, self.snd.nxt) {
                self.rtt.reordering.widen();
            }
            is_spurious |= self.recovery.on_dsack(left, right);
        }
        if is_spurious && let Some(prior) = self.recovery.undo(self.snd.una) {
            self.congestion.undo(prior);
            // Bytes that counted as lost arrived later, so they were only reordered. Tolerate this
            // degree of reordering from now on.
            self.rtt.reordering.note(1);
        }
    }

    /// Detects lost bytes, and starts recovery if there are any. Returns the number of bytes newly
    /// marked as lost.
    pub(crate) fn look_for_loss(&mut self, now: Instant, before: SenderProgress) -> u32 {
        let (una, nxt, mss) = (self.snd.una, self.snd.nxt, self.mss());
        let detected = self.recovery.detect(self.timing(now), mss, una, nxt);
        if let Some(record) = self.recovery.record_mut() {
            record.on_lost(detected.lost);
        }
        let loss = LossEvent { flight: self.snd.flight(), mss };
        // `RecoverFS` of RFC 9937: bytes in flight before the current ACK, minus those that the
        // peer had reported by SACK.
        let recover_fs = (nxt - before.una).saturating_sub(before.sacked);
        //= https://www.rfc-editor.org/rfc/rfc8985#section-9.3
        //# when RACK-TLP detects a lost retransmission, the congestion control MUST trigger an
        //# additional congestion response per the aforementioned principle in [RFC5681].
        if detected.again && self.recovery.phase.is_repairing() {
            let is_recovery = self.recovery.phase == Phase::Recovery;
            self.congestion.on_retransmission_lost(loss, is_recovery);
            self.note_reduced();
            self.recovery.enter_again(now, una, nxt, recover_fs);
        }
        if self.recovery.should_enter(una) {
            self.recovery.enter(now, una, nxt, recover_fs);
            // Reduce the congestion window only once per round trip, for ECN marks and losses
            // together (RFC 3168 section 6.1.2).
            if !self.ecn.is_reduced() {
                let prior = self.congestion.prior();
                self.congestion.on_loss(loss);
                self.note_reduced();
                self.recovery.set_prior(una, nxt, prior);
            }
        }
        detected.lost
    }

    /// Sets the congestion window in fast recovery after an ACK. `lost` bytes were newly marked as
    /// lost.
    pub(crate) fn limit_recovery(&mut self, before: SenderProgress, lost: u32) {
        let ack = RecoveryAck {
            delivered: self.delivered_since(before),
            pipe: self.recovery.pipe(self.snd.una, self.snd.nxt),
            is_safe: self.snd.una != before.una && lost == 0,
            ssthresh: self.congestion.ssthresh(),
            mss: self.mss(),
        };
        //= https://www.rfc-editor.org/rfc/rfc8985#section-9.3
        //# The Proportional Rate Reduction (PRR) algorithm [RFC6937] is RECOMMENDED for the
        //# specific congestion control actions taken upon the losses detected by RACK-TLP.
        if let Some(window) = self.recovery.window(ack) {
            self.congestion.on_recovery_window(window.max(ack.mss));
        }
    }

    /// Handles the expiry of the reordering timer, after which overtaken bytes count as lost.
    pub(crate) fn on_reordering_timeout(&mut self, now: Instant) {
        let before = self.sender_progress();
        let lost = self.look_for_loss(now, before);
        if lost > 0 {
            self.limit_recovery(before, lost);
        }
    }

    /// Marks bytes as lost because the retransmission timer expired. With `again`, the slow-start
    /// threshold is not reduced a second time. With `all`, all bytes in flight count as lost.
    pub(crate) fn lose_by_timeout(&mut self, now: Instant, again: bool, all: bool) {
        let (una, mss) = (self.snd.una, self.mss());
        let timing = self.timing(now);
        let prior = (!again).then(|| match self.recovery.phase {
            Phase::Recovery => self.congestion.prior_in_recovery(),
            _ => self.congestion.prior(),
        });
        self.ensure_record(now);
        self.congestion.on_timeout(self.snd.flight(), mss, again);
        let head = una + self.snd.flight().min(mss);
        let all = all || self.rtt.srtt().is_none();
        let head = (!all).then_some(head);
        let lost = self.recovery.enter_loss(timing, una, self.snd.nxt, head);
        if let Some(record) = self.recovery.record_mut() {
            record.on_lost(lost);
        }
        match prior {
            Some(prior) => self.recovery.set_prior(una, self.snd.nxt, prior),
            None if all && !self.ext.sack => self.recovery.clear_prior(),
            None => {}
        }
    }

    /// Handles an ACK after a tail loss probe was sent. `window` is SEG.WND in bytes.
    pub(crate) fn check_probe(
        &mut self,
        segment: &Segment,
        before: SenderProgress,
        report: SackReport,
        window: u32,
    ) {
        let ack = ProbeAck {
            ack: segment.ack,
            dsack: report.dsack.map(|range| range.1),
            // An ACK that changes the window is not a duplicate. The peer sends such an ACK when
            // its program reads.
            is_plain_duplicate: segment.ack == before.una
                && segment.payload_len == 0
                && window == self.snd.wnd
                && segment.options.sack.is_empty(),
        };
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.4.2
        //# The sender then SHOULD invoke a congestion control response equivalent to a fast
        //# recovery.
        if self.recovery.on_probe_ack(ack) && !self.ecn.is_reduced() {
            let flight = self.snd.nxt - before.una;
            let mss = self.mss();
            self.congestion.on_loss(LossEvent { flight, mss });
            self.congestion.on_recovery_exit();
            self.note_reduced();
        }
    }

    /// Schedules a tail loss probe for the bytes in flight, or cancels it.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-7.2
    //# The sender SHOULD start or restart a loss probe PTO timer after transmitting new data (that
    //# was not itself a loss probe) or upon receiving an ACK that cumulatively acknowledges new
    //# data unless it is already in fast recovery, RTO recovery, or segments have been SACKed
    #[inline]
    pub(crate) fn schedule_probe(&mut self, now: Instant) {
        let flight = self.snd.flight();
        if flight > 0 && self.may_probe() {
            self.timers.schedule_probe(self.rtt.probe_at(now, flight <= self.mss()));
        } else {
            self.timers.cancel_probe();
        }
    }

    /// Schedules a tail loss probe after an ACK. An ACK that reports no new bytes does not postpone
    /// the probe. If the peer sends data, each of its segments is an ACK of this kind.
    #[inline]
    pub(crate) fn schedule_probe_after_ack(&mut self, now: Instant, has_news: bool) {
        if has_news || self.timers.probe() == Instant::FAR {
            self.schedule_probe(now);
        }
    }

    fn may_probe(&self) -> bool {
        self.state.is_synchronized()
            && !self.timers.persisting
            && self.timers.retransmits == 0
            && self.recovery.may_probe()
    }

    /// Handles the expiry of the tail loss probe timer.
    pub(crate) fn on_probe_timeout(&mut self) {
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.3
        //# If either one of these two conditions is not met, then the sender MUST skip sending a
        //# loss probe and MUST proceed to re-arm the RTO timer
        // Cancel the probe timer only, because the retransmission timer is still needed.
        self.timers.cancel_probe();
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.3
        //# the sender MUST check whether both of the following conditions are met before sending a
        //# loss probe:
        if self.snd.flight() > 0 && self.may_probe() {
            self.recovery.set_probe_due();
        }
    }

    /// Returns whether a tail loss probe must be sent now.
    #[inline]
    pub fn is_probe_due(&self) -> bool {
        self.recovery.is_probe_due()
    }

    /// Postpones a due tail loss probe by its timeout. Call this while sent segments of the
    /// connection wait in a transmit queue of the caller. A probe would only add a copy of them to
    /// the queue.
    #[cold]
    pub fn postpone_probe(&mut self, now: Instant) {
        self.recovery.withdraw_probe();
        self.schedule_probe(now);
    }

    /// Records that the tail loss probe that was due has been sent.
    #[cold]
    pub(crate) fn on_probe_sent(&mut self, now: Instant, is_resent: bool) {
        self.recovery.on_probe_sent(self.snd.nxt, is_resent);
        self.timers.cancel_probe();
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.3
        //# After attempting to send a loss probe, regardless of whether a loss probe was sent, the
        //# sender MUST re-arm the RTO timer, not the PTO timer, if the FlightSize is not zero.
        self.timers.retransmit = now + self.rtt.rto();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::half_open::Handshake;
    use crate::plan::Plan;
    use crate::ranges::Ranges;
    use crate::segment::FifoLevels;
    use core::time::Duration;

    const MSS: u32 = 1460;

    fn send(connection: &mut Connection, now: Instant) {
        let buffers = FifoLevels {
            recv_free: 65_536,
            recv_capacity: 65_536,
            recv_unread: 0,
            send_len: 5 * MSS,
            send_capacity: 65_536,
        };
        while let Plan::Send(transmit) = connection.plan(now, buffers, MSS) {
            connection.emit(now, transmit, buffers);
        }
    }

    #[test]
    fn the_next_rate_sample_reports_losses_of_a_timeout() {
        let handshake = Handshake {
            mss_peer: Some(1460),
            sack: true,
            send_window: 65_535,
            ..Handshake::without_options(SeqNum(100), SeqNum(200))
        };
        let mut connection = Connection::accept(Config::default(), handshake, Instant(1));
        send(&mut connection, Instant(1));
        let mut now = Instant(1);
        while connection.recovery.phase != Phase::Loss {
            now = connection.next_timeout().expect("bytes are in flight").0;
            connection.on_timeout(now, now);
            send(&mut connection, now);
        }
        let record = connection.recovery.record_mut().expect("a flight of five segments");
        let now = now.after_millis(10);
        let ack = AckTiming { now, echo: None, rtt_min: Duration::ZERO };
        record.on_acked(ack, SeqNum(101) + MSS, &Ranges::default());
        let sample = record.take_sample(now, Duration::ZERO).expect("a retransmission arrived");
        assert_eq!(sample.newly_lost, 5 * MSS);
    }
}
