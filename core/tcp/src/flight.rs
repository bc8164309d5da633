//! Record of the transmissions in flight, and the delivery rate sampled from it
//! (draft-ietf-ccwg-bbr, section 4.1).
//!
//! ```text
//!   start     end          end                      end = SND.NXT
//!     | sent at |  sent at  |  sent at, delivered    |
//!     └─────────┴───────────┴── … ───────────────────┘
//! ```
//!
//! A transmission is the data of one `emit` call, up to 64 KiB, so a record stays short. A record
//! exists from the second transmission in flight, or from the first sign of a loss, until
//! everything is acknowledged. Before that, [`Rtt`](crate::rtt::Rtt) measures the single
//! transmission.
//!
//! A transmission that is retransmitted in part is split, so that each part has its own send time.

use crate::rack::{AckTiming, LossTiming, Rack};
use crate::ranges::Ranges;
use crate::time::Instant;
use core::time::Duration;
use std::collections::VecDeque;
use towpath_wire::tcp::SeqNum;

/// Maximum number of transmissions per record: 6 MB of single segments, or 256 MB of large ones.
/// Further transmissions are merged into the last one, because they are sent at nearly the same
/// time.
const TRANSMISSIONS_MAX: usize = 4096;
/// Number of recorded transmissions from which on short transmissions are merged. Otherwise a
/// program that writes single bytes would need 48 bytes of record for each byte in flight.
const SHORT_FROM: usize = 64;
/// Maximum size in bytes of a transmission that results from merging short transmissions.
const SHORT_BYTES: u32 = 512;
/// Initial capacity of a flight record, in transmissions.
const TRANSMISSIONS_MIN: usize = 8;

/// Record of the transmissions in flight, oldest first, without gaps between them.
#[derive(Debug)]
pub(crate) struct FlightRecord {
    transmissions: VecDeque<Transmission>,
    /// Sequence number at which the oldest transmission starts.
    start: SeqNum,
    /// Bytes delivered since the connection began: C.delivered of draft-ietf-ccwg-bbr.
    delivered: u64,
    /// Bytes marked as lost since the record began, wrapping: C.lost of draft-ietf-ccwg-bbr.
    lost: u32,
    /// Bytes marked as lost since the last rate sample.
    newly_lost: u32,
    /// Time of the last delivery: C.delivered_time of draft-ietf-ccwg-bbr.
    delivered_at: Instant,
    /// Send time of the newest delivered transmission: C.first_send_time of draft-ietf-ccwg-bbr.
    first_sent: Instant,
    /// Samples are application limited until `delivered` exceeds this value; 0 if the program does
    /// not limit the sender.
    app_limited: u64,
    newest: Option<Newest>,
    rate: DeliveryRate,
    pub(crate) rack: Rack,
    /// Number of transmissions examined when ACKs and timeouts were handled, for tests of the cost.
    #[cfg(test)]
    pub(crate) visits: std::cell::Cell<usize>,
}

/// Decision on whether some transmissions in flight are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossVerdict {
    /// Bytes before this sequence number are lost, except those that the peer reported as received.
    Lost(SeqNum),
    /// Bytes sent later have arrived. The transmission counts as lost at this time, unless it
    /// arrives before.
    Overtaken(Instant),
    /// No bytes that were sent later have arrived, so the transmission may still arrive.
    Pending,
}

/// Data sent by one `emit` call, and the state of the record when it was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transmission {
    /// Sequence number after the last byte of the transmission.
    end: SeqNum,
    is_delivered: bool,
    is_app_limited: bool,
    /// Whether the bytes were retransmitted, so that their ACK gives no round-trip time. If so,
    /// `sent` is the time of the last retransmission.
    is_resent: bool,
    /// Whether several calls of `emit` sent these bytes. If so, `sent` is the time of the last
    /// call.
    is_merged: bool,
    /// Estimated bytes in the network after this transmission was sent, and bytes lost up to then.
    in_flight: u32,
    lost: u32,
    //= https://www.rfc-editor.org/rfc/rfc8985#section-4
    //# For each data segment sent, the sender MUST store its most recent transmission time with a
    //# timestamp whose granularity is finer than 1/4 of the minimum RTT of the connection.
    sent: Instant,
    first_sent: Instant,
    /// Time of the last delivery before this transmission was sent, or [`Instant::FAR`] if the send
    /// time is ambiguous and no rate sample is possible.
    delivered_at: Instant,
    delivered: u64,
}

/// The newest transmission that the current ACK reports as received.
#[derive(Debug, Clone, Copy)]
struct Newest {
    of: Transmission,
    ack_elapsed: Duration,
}

/// State of the connection when a record of transmissions begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordBegin {
    /// Bytes delivered since the connection began.
    pub(crate) delivered: u64,
    /// Time of the last delivery, or of the first transmission if nothing was in flight.
    pub(crate) at: Instant,
    /// Whether the program limited the sender before the record began.
    pub(crate) is_app_limited: bool,
    /// Last delivery rate measured on the connection.
    pub(crate) rate: DeliveryRate,
}

/// Sample of the delivery rate, from the newest transmission that an ACK acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// Rate in bytes per second; 0 if the interval is too short for a reliable sample.
    pub(crate) rate: u64,
    /// Bytes delivered on the connection from the time at which the transmission was sent until its
    /// acknowledgement.
    pub(crate) delivered: u64,
    /// Time in which these bytes were sent.
    pub(crate) send_elapsed: Duration,
    /// Bytes that had been delivered on the connection when the transmission was sent.
    pub(crate) prior_delivered: u64,
    /// Bytes that have been delivered on the connection up to now.
    pub(crate) total_delivered: u64,
    /// Bytes marked as lost between sending the transmission and its acknowledgement.
    pub(crate) lost: u32,
    /// Bytes marked as lost since the last sample, because of ACKs or timers.
    pub(crate) newly_lost: u32,
    /// Estimated bytes in the network after the transmission was sent.
    pub(crate) in_flight: u32,
    pub(crate) is_app_limited: bool,
    /// Round-trip time; `None` if the send time of the acknowledged bytes is ambiguous.
    pub(crate) rtt: Option<Duration>,
}

/// Last delivery rate: bytes and the time in which the network delivered them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DeliveryRate {
    bytes: u64,
    /// Time in which the network delivered the bytes; zero before the first sample.
    interval: Duration,
    /// Whether the program sent less than the network could have carried.
    pub(crate) is_app_limited: bool,
}

impl DeliveryRate {
    /// Returns the rate in bytes per second, or 0 before the first sample.
    pub(crate) fn bytes_per_second(self) -> u64 {
        let nanos = self.interval.as_nanos();
        let rate = (u128::from(self.bytes) * 1_000_000_000).checked_div(nanos).unwrap_or(0);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Returns whether the network may be able to deliver faster, because the program limited the
    /// sender or there is no sample.
    pub(crate) fn is_lower_bound(self) -> bool {
        self.is_app_limited || self.bytes_per_second() == 0
    }

    fn is_below(self, other: DeliveryRate) -> bool {
        u128::from(self.bytes) * other.interval.as_nanos()
            < u128::from(other.bytes) * self.interval.as_nanos()
    }
}

impl FlightRecord {
    /// Creates a record without transmissions. The first one will start at sequence number `start`.
    /// The allocation of `memory` is reused.
    pub(crate) fn new(
        memory: VecDeque<Transmission>,
        start: SeqNum,
        begin: RecordBegin,
    ) -> FlightRecord {
        let mut transmissions = memory;
        transmissions.clear();
        transmissions.reserve(TRANSMISSIONS_MIN);
        FlightRecord {
            transmissions,
            start,
            delivered: begin.delivered,
            lost: 0,
            newly_lost: 0,
            delivered_at: begin.at,
            first_sent: begin.at,
            // After an idle period, mark rate samples as application limited until the first ACK,
            // because few bytes are in flight until then.
            app_limited: if begin.is_app_limited { begin.delivered + 1 } else { 0 },
            newest: None,
            rate: begin.rate,
            rack: Rack::new(start),
            #[cfg(test)]
            visits: std::cell::Cell::default(),
        }
    }

    /// Counts an examined transmission, in tests only.
    #[inline]
    fn note_visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Adds the bytes up to `end` to a new record; they were sent at time `sent` before the record
    /// began. If `is_whole` is false, some of these bytes are already acknowledged, so their
    /// delivery gives no rate sample.
    pub(crate) fn push_unrecorded(&mut self, end: SeqNum, sent: Instant, is_whole: bool) {
        let begin = if is_whole { sent } else { self.delivered_at.max(sent) };
        (self.delivered_at, self.first_sent) = (begin, begin);
        self.transmissions.push_back(Transmission {
            end,
            is_delivered: false,
            is_app_limited: true,
            is_resent: false,
            is_merged: false,
            in_flight: end - self.start,
            lost: 0,
            sent,
            first_sent: begin,
            delivered_at: if is_whole { sent } else { Instant::FAR },
            delivered: self.delivered,
        });
    }

    /// Records that bytes up to `end` were sent for the first time. `in_flight` counts the bytes in
    /// the network, including these.
    //= https://datatracker.ietf.org/doc/html/draft-ietf-ccwg-bbr#section-4.1.2.2
    //# If there are packets already in flight, then we need to start delivery rate
    //# samples from the time we received the most recent ACK, to try to ensure that
    //# we include the full time the network needs to deliver all in-flight data.
    pub(crate) fn on_sent(&mut self, now: Instant, end: SeqNum, in_flight: u32) {
        let count = self.transmissions.len();
        let joined = end - self.start_of(count.saturating_sub(1));
        let is_full = count >= TRANSMISSIONS_MAX;
        let is_short = count >= SHORT_FROM && joined <= SHORT_BYTES;
        if let Some(last) = self.transmissions.back_mut()
            && (is_full || is_short && !last.is_delivered && !last.is_resent)
        {
            (last.end, last.sent) = (end, now);
            (last.is_delivered, last.is_merged) = (false, true);
            return;
        }
        self.transmissions.push_back(Transmission {
            end,
            is_delivered: false,
            is_app_limited: self.app_limited != 0,
            is_resent: false,
            is_merged: false,
            in_flight,
            lost: self.lost,
            sent: now,
            first_sent: self.first_sent,
            delivered_at: self.delivered_at,
            delivered: self.delivered,
        });
    }

    /// Records that sequence numbers `left..right` were retransmitted. If the record is full, so
    /// that a transmission cannot be split, the whole transmission gives no rate sample.
    pub(crate) fn on_resent(&mut self, now: Instant, left: SeqNum, right: SeqNum) {
        self.split(left);
        self.split(right);
        let first = self.transmissions.partition_point(|it| it.end.leq(left));
        let mut start = self.start_of(first);
        let (first_sent, is_app_limited) = (self.first_sent, self.app_limited != 0);
        let lost = self.lost;
        for it in self.transmissions.range_mut(first..) {
            if start.geq(right) {
                return;
            }
            let is_whole = left.leq(start) && it.end.leq(right);
            it.delivered_at = if is_whole { self.delivered_at } else { Instant::FAR };
            (it.sent, it.first_sent, it.delivered) = (now, first_sent, self.delivered);
            (it.is_app_limited, it.is_resent, it.lost) = (is_app_limited, true, lost);
            // If bytes are retransmitted that counted as delivered, the peer has discarded them.
            // Count them as not delivered.
            it.is_delivered &= !is_whole;
            start = it.end;
        }
    }

    /// Splits the transmission that contains sequence number `at` into two transmissions, before
    /// and from `at`.
    fn split(&mut self, at: SeqNum) {
        let index = self.transmissions.partition_point(|it| it.end.leq(at));
        if self.transmissions.len() >= TRANSMISSIONS_MAX || self.start_of(index).geq(at) {
            return;
        }
        if let Some(&whole) = self.transmissions.get(index) {
            self.transmissions.insert(index, Transmission { end: at, ..whole });
        }
    }

    /// Handles a SACK of sequence numbers `left..right`, which was not reported before. `is_held`
    /// returns whether the peer has all bytes of a range, which may extend beyond `left..right`.
    pub(crate) fn on_sacked(
        &mut self,
        ack: AckTiming,
        left: SeqNum,
        right: SeqNum,
        is_held: impl Fn(SeqNum, SeqNum) -> bool,
    ) {
        let mut at = self.transmissions.partition_point(|it| it.end.leq(left));
        let mut start = self.start_of(at);
        while at < self.transmissions.len() && start.lt(right) {
            self.note_visit();
            let it = &mut self.transmissions[at];
            if !it.is_delivered {
                it.is_delivered = is_held(start, it.end);
                let of = *it;
                let (from, end) = (start.max(left), of.end.min(right));
                self.note_arrival(ack, of, from, end);
                self.deliver(ack.now, of, end - from);
            }
            start = self.transmissions[at].end;
            at += 1;
        }
    }

    /// Handles a cumulative acknowledgement of all bytes before `una`. `sacked` are the bytes that
    /// SACK reported before.
    pub(crate) fn on_acked(&mut self, ack: AckTiming, una: SeqNum, sacked: &Ranges) {
        while let Some(&front) = self.transmissions.front()
            && self.start.lt(una)
        {
            self.note_visit();
            let end = front.end.min(una);
            if !front.is_delivered {
                let (mut from, mut bytes) = (self.start, 0);
                while let Some((left, right)) = sacked.first_missing(from, end) {
                    self.note_arrival(ack, front, left, right);
                    bytes += right - left;
                    from = right;
                }
                self.deliver(ack.now, front, bytes);
            }
            self.start = end;
            if end == front.end {
                self.transmissions.pop_front();
            }
        }
    }

    /// Records that bytes `left..right` of a transmission arrived. A merged transmission is
    /// recorded only with its last byte, because only the send time of this byte is known.
    fn note_arrival(&mut self, ack: AckTiming, of: Transmission, left: SeqNum, right: SeqNum) {
        if !of.is_merged || right == of.end {
            self.rack.on_delivered(ack, of.sent, left, right, of.is_resent);
        }
    }

    /// Decides whether transmissions from sequence number `from` on that were sent only once are
    /// lost. Also returns the first sequence number considered; the bytes before it were delivered
    /// or retransmitted.
    pub(crate) fn judge(&self, from: SeqNum, timing: LossTiming) -> (SeqNum, LossVerdict) {
        let first = self.transmissions.partition_point(|it| it.end.leq(from));
        let mut start = self.start_of(first).max(from);
        for it in self.transmissions.range(first..) {
            self.note_visit();
            if it.is_delivered || it.is_resent {
                start = it.end;
                continue;
            }
            let Some(end) = self.rack.overtaken(it.sent, start, it.end) else { break };
            let due = self.rack.due(it.sent, timing.window, timing.srtt);
            let is_due = due <= timing.now;
            return (
                start,
                if is_due { LossVerdict::Lost(end) } else { LossVerdict::Overtaken(due) },
            );
        }
        (start, LossVerdict::Pending)
    }

    /// Returns the end of the transmissions from sequence number `from` on that are overdue. No
    /// later transmission needs to have arrived.
    pub(crate) fn overdue_end(&self, from: SeqNum, timing: LossTiming) -> SeqNum {
        let first = self.transmissions.partition_point(|it| it.end.leq(from));
        let is_over = |it: &&Transmission| {
            self.note_visit();
            let due = self.rack.due(it.sent, timing.window, timing.srtt);
            it.is_delivered || it.is_resent || due <= timing.now
        };
        let last = self.transmissions.range(first..).take_while(is_over).last();
        last.map_or(from, |it| it.end)
    }

    /// Returns SND.NXT, the end of the newest transmission.
    pub(crate) fn end(&self) -> SeqNum {
        self.start_of(self.transmissions.len())
    }

    /// Returns the first sequence number of the newest transmission.
    pub(crate) fn last_start(&self) -> SeqNum {
        self.start_of(self.transmissions.len().saturating_sub(1))
    }

    /// Counts `bytes` of a transmission as delivered when they arrive, even if other bytes of the
    /// transmission are missing. Otherwise all its bytes would count at the time when the last of
    /// them arrives, and the sampled rate would be too high.
    fn deliver(&mut self, now: Instant, of: Transmission, bytes: u32) {
        if bytes == 0 {
            return;
        }
        self.delivered += u64::from(bytes);
        self.delivered_at = now;
        //= https://datatracker.ietf.org/doc/html/draft-ietf-ccwg-bbr#section-4.1.2.3
        //# The connection uses the
        //# information from the most recently sent packet to update the rate sample
        let is_newest = match self.newest {
            None => true,
            Some(Newest { of: newest, .. }) => {
                (of.sent, of.end.distance(newest.end)) > (newest.sent, 0)
            }
        };
        if of.delivered_at != Instant::FAR && is_newest {
            let ack_elapsed = now.since(of.delivered_at);
            self.newest = Some(Newest { of, ack_elapsed });
            self.first_sent = of.sent;
        }
    }

    /// Records that `bytes` bytes were marked as lost.
    pub(crate) fn on_lost(&mut self, bytes: u32) {
        self.lost = self.lost.wrapping_add(bytes);
        self.newly_lost = self.newly_lost.saturating_add(bytes);
    }

    /// Marks the sender as application limited: no data is left, although the network has room
    /// beyond `pipe` bytes.
    //= https://datatracker.ietf.org/doc/html/draft-ietf-ccwg-bbr#section-4.1.2.4
    //# An application-limited phase starts when the connection decides to send more
    //# data, at a point in time when the connection had previously run out of data.
    pub(crate) fn set_app_limited(&mut self, pipe: u32) {
        self.app_limited = (self.delivered + u64::from(pipe)).max(1);
    }

    /// Returns the rate sample of the current ACK, which arrived at `now`. As in Linux's
    /// `tcp_rate_gen`, an application-limited sample replaces the last rate only if it is higher. A
    /// sample over a shorter time than the minimum round-trip time `rtt_min` is unreliable.
    pub(crate) fn take_sample(&mut self, now: Instant, rtt_min: Duration) -> Option<RateSample> {
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let Newest { of, ack_elapsed } = self.newest.take()?;
        //= https://datatracker.ietf.org/doc/html/draft-ietf-ccwg-bbr#section-4.1.1.2.4
        //# when the estimator notices that the ack_rate
        //# for a flight is faster than the send rate for the flight, it filters out
        //# the implausible ack_rate by capping the delivery rate sample to be no higher
        //# than the send rate.
        let send_elapsed = of.sent.since(of.first_sent);
        let interval = send_elapsed.max(ack_elapsed);
        let bytes = self.delivered - of.delivered;
        let rate = DeliveryRate { bytes, interval, is_app_limited: of.is_app_limited };
        //= https://datatracker.ietf.org/doc/html/draft-ietf-ccwg-bbr#section-4.1.2.3
        //# Normally we expect interval >= MinRTT.
        let is_reliable = interval >= rtt_min && !interval.is_zero();
        if is_reliable && (!rate.is_app_limited || !rate.is_below(self.rate)) {
            self.rate = rate;
        }
        Some(RateSample {
            rate: if is_reliable { rate.bytes_per_second() } else { 0 },
            delivered: bytes,
            send_elapsed,
            prior_delivered: of.delivered,
            total_delivered: self.delivered,
            lost: self.lost.wrapping_sub(of.lost),
            newly_lost: std::mem::take(&mut self.newly_lost),
            in_flight: of.in_flight,
            is_app_limited: of.is_app_limited,
            // A merged transmission gives no round-trip time, because only the send time of its
            // last byte is known.
            rtt: (!of.is_resent && !of.is_merged).then(|| now.since(of.sent)),
        })
    }

    /// Ends the record, and returns its list of transmissions so that the allocation can be reused.
    pub(crate) fn into_transmissions(self) -> VecDeque<Transmission> {
        self.transmissions
    }

    /// Returns the delivery rate of the last sample.
    pub(crate) fn rate(&self) -> DeliveryRate {
        self.rate
    }

    /// Returns whether the transmissions cover the sequence numbers `una..nxt` in ascending order.
    pub(crate) fn is_in_order(&self, una: SeqNum, nxt: SeqNum) -> bool {
        let mut end = self.start;
        let ascending = self.transmissions.iter().all(|it| {
            let before = std::mem::replace(&mut end, it.end);
            before.lt(it.end)
        });
        ascending && self.start.leq(una) && end == nxt
    }

    /// Returns the first sequence number of the transmission at index `at`.
    fn start_of(&self, at: usize) -> SeqNum {
        match at.checked_sub(1) {
            Some(before) => self.transmissions[before].end,
            None => self.start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISS: SeqNum = SeqNum(0xffff_ff00);

    fn at(ms: u64) -> Instant {
        Instant(1_000_000_000 + ms * 1_000_000)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn all(_: SeqNum, _: SeqNum) -> bool {
        true
    }

    fn ack(time: u64) -> AckTiming {
        AckTiming { now: at(time), echo: None, rtt_min: ms(0) }
    }

    /// Creates a record of 1000-byte transmissions, sent at `times` in milliseconds.
    fn sent_at(times: &[u64]) -> FlightRecord {
        let begin = RecordBegin {
            delivered: 0,
            at: at(0),
            is_app_limited: true,
            rate: DeliveryRate::default(),
        };
        let mut record = FlightRecord::new(VecDeque::new(), ISS, begin);
        record.push_unrecorded(ISS + 1000, at(times[0]), true);
        for (n, time) in times.iter().enumerate().skip(1) {
            let len = 1000 * (n as u32 + 1);
            record.on_sent(at(*time), ISS + len, len);
        }
        record
    }

    fn acked(record: &mut FlightRecord, time: u64, bytes: u32) -> DeliveryRate {
        record.on_acked(ack(time), ISS + bytes, &Ranges::default());
        record.take_sample(at(time), ms(0));
        record.rate()
    }

    fn timing(time: u64, window: u64) -> LossTiming {
        LossTiming { now: at(time), window: ms(window), srtt: ms(100) }
    }

    #[test]
    fn acknowledgements_slower_than_transmissions_give_the_rate() {
        // Four transmissions sent at once, of which the network delivers one every 10 ms.
        let mut record = sent_at(&[0, 0, 0, 0]);
        for n in 1..=4 {
            let rate = acked(&mut record, 100 + 10 * u64::from(n), 1000 * n);
            assert_eq!(rate.interval, ms(100 + 10 * u64::from(n)));
        }
        // Each ACK clocks out a new transmission.
        for n in 5..=8 {
            record.on_sent(at(140), ISS + 1000 * n, 0);
        }
        assert_eq!(acked(&mut record, 250, 5000).bytes_per_second(), 1000 * 1000 / 140);
        assert_eq!(acked(&mut record, 280, 8000).bytes_per_second(), 4000 * 1000 / 140);
    }

    #[test]
    fn transmissions_slower_than_acknowledgements_bound_the_rate() {
        let mut record = sent_at(&[0, 50, 100]);
        // Two delayed ACKs arrive at the same time.
        record.on_acked(ack(110), ISS + 3000, &Ranges::default());
        record.take_sample(at(110), ms(10));
        let rate = record.rate();
        assert_eq!((rate.bytes, rate.interval), (3000, ms(110)));
        // The last transmission is acknowledged after only 10 ms, so the rate is limited by the
        // interval between sending.
        let mut record = sent_at(&[0, 0]);
        acked(&mut record, 90, 2000);
        record.on_sent(at(100), ISS + 3000, 0);
        assert_eq!(acked(&mut record, 110, 3000).interval, ms(100));
    }

    #[test]
    fn a_rate_that_the_program_limited_only_raises_the_last_one() {
        let mut record = sent_at(&[0, 0]);
        assert!(acked(&mut record, 10, 2000).is_app_limited, "the connection was idle before");
        let before = record.rate();
        record.set_app_limited(0);
        record.on_sent(at(20), ISS + 3000, 0);
        assert_eq!(acked(&mut record, 60, 3000), before, "lower");
        // When these bytes are acknowledged, the program no longer limits the rate.
        record.on_sent(at(60), ISS + 4000, 0);
        let rate = acked(&mut record, 100, 4000);
        assert!(!rate.is_app_limited && rate.is_below(before));
    }

    #[test]
    fn splits_a_transmission_that_is_retransmitted_in_part() {
        let mut record = sent_at(&[0, 0]);
        record.on_resent(at(50), ISS + 200, ISS + 500);
        let parts: Vec<_> = record.transmissions.iter().map(|it| (it.end - ISS, it.sent)).collect();
        assert_eq!(parts, [(200, at(0)), (500, at(50)), (1000, at(0)), (2000, at(0))]);
        assert!(record.is_in_order(ISS, ISS + 2000));
        assert_eq!(acked(&mut record, 60, 1000).interval, ms(60));
        record.on_resent(at(70), ISS + 1000, ISS + 2000);
        assert_eq!(acked(&mut record, 100, 2000).interval, ms(40));
    }

    #[test]
    fn a_full_record_is_not_split() {
        let mut record = sent_at(&[0]);
        for n in 1..TRANSMISSIONS_MAX as u32 {
            record.on_sent(at(0), ISS + 1000 * (n + 1), 0);
        }
        record.on_resent(at(50), ISS, ISS + 500);
        assert_eq!(record.transmissions.len(), TRANSMISSIONS_MAX);
        assert_eq!(acked(&mut record, 60, 1000), DeliveryRate::default(), "ambiguous");
    }

    #[test]
    fn transmissions_before_a_delivered_one_are_lost_in_order_of_time() {
        let mut record = sent_at(&[0, 10, 20, 30]);
        assert_eq!(record.judge(ISS, timing(500, 0)), (ISS, LossVerdict::Pending));
        record.on_sacked(ack(120), ISS + 2000, ISS + 3000, |_, end| end.leq(ISS + 3000));
        // The delivered transmission had an RTT of 100 ms. Two transmissions were sent before it.
        assert_eq!(record.judge(ISS, timing(120, 0)), (ISS, LossVerdict::Lost(ISS + 1000)));
        assert_eq!(record.judge(ISS, timing(120, 25)), (ISS, LossVerdict::Overtaken(at(125))));
        assert_eq!(record.judge(ISS + 1000, timing(500, 0)).1, LossVerdict::Lost(ISS + 2000));
        assert_eq!(record.judge(ISS + 2000, timing(500, 0)), (ISS + 3000, LossVerdict::Pending));
    }

    #[test]
    fn parts_of_a_transmission_are_overtaken_by_its_later_bytes() {
        let mut record = sent_at(&[0, 0]);
        record.on_sacked(ack(100), ISS + 400, ISS + 700, |_, end| end.leq(ISS + 700));
        assert_eq!(record.judge(ISS, timing(100, 0)), (ISS, LossVerdict::Lost(ISS + 700)));
        assert_eq!(record.judge(ISS + 700, timing(900, 0)), (ISS + 700, LossVerdict::Pending));
    }

    #[test]
    fn late_first_copies_reveal_reordering() {
        let mut record = sent_at(&[0, 0, 0]);
        record.on_sacked(ack(10), ISS + 2000, ISS + 3000, |start, _| start.geq(ISS + 2000));
        assert_eq!(record.rack.take_arrivals().reordered, 0);
        let mut sacked = Ranges::default();
        sacked.insert(ISS + 2000, ISS + 3000);
        record.on_acked(ack(11), ISS + 1000, &sacked);
        assert_eq!(record.rack.take_arrivals().reordered, 3000);
        // The retransmission arrives after bytes with higher sequence numbers, which is not
        // reordering.
        record.on_resent(at(12), ISS + 1000, ISS + 2000);
        record.on_acked(ack(20), ISS + 3000, &sacked);
        assert_eq!(record.rack.take_arrivals().reordered, 0);
    }

    #[test]
    fn one_ack_of_earlier_and_later_bytes_is_no_reordering() {
        let mut record = sent_at(&[0, 0, 0]);
        record.on_sacked(ack(10), ISS + 2000, ISS + 3000, |start, _| start.geq(ISS + 2000));
        let mut sacked = Ranges::default();
        sacked.insert(ISS + 2000, ISS + 3000);
        record.on_acked(ack(10), ISS + 1000, &sacked);
        assert_eq!(record.rack.take_arrivals().reordered, 0);
    }

    #[test]
    fn selectively_acknowledged_bytes_count_once() {
        let mut record = sent_at(&[0, 0, 0]);
        record.on_sacked(ack(10), ISS + 1000, ISS + 2500, |_, end| end.leq(ISS + 2500));
        assert_eq!(record.delivered, 1500);
        record.on_sacked(ack(20), ISS + 2500, ISS + 3000, all);
        assert_eq!(record.delivered, 2000);
        record.on_acked(ack(30), ISS + 3000, &Ranges::default());
        assert_eq!((record.delivered, record.transmissions.len()), (3000, 0));
        assert!(record.is_in_order(ISS + 3000, ISS + 3000));
    }

    #[test]
    fn bytes_beside_a_hole_count_when_they_arrive() {
        let mut record = sent_at(&[0, 0, 0]);
        let mut sacked = Ranges::default();
        for start in [400, 1400, 2400] {
            let (left, right) = (ISS + start, ISS + start + 600);
            record.on_sacked(ack(10), left, right, |_, _| false);
            sacked.insert(left, right);
        }
        assert_eq!(record.delivered, 1800);
        (0..3).for_each(|n| record.on_resent(at(10), ISS + 1000 * n, ISS + 1000 * n + 400));
        record.on_acked(ack(20), ISS + 1000, &sacked);
        assert_eq!(record.delivered, 2200);
        record.on_acked(ack(20), ISS + 3000, &sacked);
        assert_eq!(record.delivered, 3000);
    }

    #[test]
    fn intervals_below_the_shortest_round_trip_give_no_sample() {
        let mut record = sent_at(&[0, 0]);
        record.on_acked(ack(5), ISS + 2000, &Ranges::default());
        record.take_sample(at(5), ms(6));
        assert_eq!(record.rate(), DeliveryRate::default());
    }

    #[test]
    fn transmissions_beyond_the_limit_join_the_last() {
        let mut record = sent_at(&[0]);
        for n in 1..=TRANSMISSIONS_MAX as u32 + 5 {
            record.on_sent(at(n.into()), ISS + 1000 * (n + 1), 0);
        }
        assert_eq!(record.transmissions.len(), TRANSMISSIONS_MAX);
        assert!(record.is_in_order(ISS, ISS + 1000 * (TRANSMISSIONS_MAX as u32 + 6)));
    }

    #[test]
    fn merged_transmissions_give_no_round_trip_time() {
        let mut record = sent_at(&[0; SHORT_FROM]);
        let end = 1000 * SHORT_FROM as u32;
        record.on_sent(at(10), ISS + end + 1, 0);
        record.on_sent(at(30), ISS + end + 2, 0);
        let mut rtt_of = |time, bytes| {
            record.on_acked(ack(time), ISS + bytes, &Ranges::default());
            record.take_sample(at(time), ms(0)).expect("a sample").rtt
        };
        assert_eq!(rtt_of(100, end), Some(ms(100)));
        // The merged transmission gives no RTT. Its first byte took 100 ms, but only the send time
        // of its last byte is known.
        assert_eq!(rtt_of(110, end + 1), None);
    }

    #[test]
    fn losses_between_samples_are_part_of_the_next_sample() {
        let mut record = sent_at(&[0, 0, 0]);
        let mut losses = |time, bytes| {
            record.on_acked(ack(time), ISS + bytes, &Ranges::default());
            let sample = record.take_sample(at(time), ms(0));
            // Bytes that a timer marks as lost after the ACK are part of the sample.
            record.on_lost(500);
            sample.map(|sample| (sample.newly_lost, sample.lost))
        };
        assert_eq!(losses(100, 1000), Some((0, 0)));
        assert_eq!(losses(101, 1000), None, "nothing was delivered");
        assert_eq!(losses(102, 2000), Some((1000, 1000)));
        assert_eq!(losses(103, 3000), Some((500, 1500)));
    }

    #[test]
    fn single_bytes_cost_little_memory() {
        let mut record = sent_at(&[0]);
        (1..=4000u32).for_each(|n| record.on_sent(at(n.into()), ISS + 1000 + n, 0));
        assert!(record.transmissions.len() <= SHORT_FROM + 4000 / SHORT_BYTES as usize + 1);
        assert!(record.is_in_order(ISS, ISS + 5000));
    }
}
