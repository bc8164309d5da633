//! Estimates the round-trip time and the retransmission timeout (RFC 6298), in microseconds.

use crate::rack::Reordering;
use crate::time::Instant;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// Estimator of the round-trip time of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rtt {
    /// Smoothed RTT in microseconds; 0 only before the first measurement.
    srtt_us: u32,
    rttvar_us: u32,
    min: RecentMin,
    rto_us: u32,
    rto_min_us: u32,
    rto_max_us: u32,
    /// Number of times that the retransmission timeout was doubled.
    backoff: u8,
    /// Degree of packet reordering that was observed on the path.
    pub(crate) reordering: Reordering,
    /// Send time of the bytes whose RTT is being measured; [`Instant::FAR`] if there are none.
    timed_at: Instant,
    /// Sequence number after the bytes whose RTT is being measured. An ACK at or after it completes
    /// the measurement.
    timed_end: SeqNum,
}

/// Minimum RTT of the last five minutes, Linux's `tcp_min_rtt_wlen`. A shorter time would lose the
/// minimum to a standing queue.
///
/// Packed because of the budget of [`Connection`](crate::Connection). The low 24 bits are the
/// minimum in microseconds, and the upper 8 bits its time in units of 2^35 ns (34 s).
#[derive(Debug, Clone, Copy)]
struct RecentMin(u32);

impl RecentMin {
    /// Maximum that is stored, 16.7 s; also the value before the first sample.
    const MICROS_MAX: u32 = (1 << 24) - 1;
    const UNIT_SHIFT: u32 = 35;
    /// Maximum age of the minimum, in units.
    const AGE_MAX: u8 = (300_000_000_000_u64 >> Self::UNIT_SHIFT) as u8;

    fn micros(self) -> u32 {
        self.0 & Self::MICROS_MAX
    }

    /// Updates the minimum. After a move to a longer path, its age ends the old minimum. Otherwise
    /// the reordering window would stay too short for the path.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-6.2
    //# The sender SHOULD track a windowed min-filtered estimate of recent RTT measurements that can
    //# adapt when migrating to significantly longer paths rather than tracking a simple global
    //# minimum of all RTT measurements.
    fn update(&mut self, now: Instant, micros: u32) {
        let at = (now.0 >> Self::UNIT_SHIFT) as u8;
        let age = at.wrapping_sub((self.0 >> 24) as u8);
        let micros = micros.min(Self::MICROS_MAX);
        if micros <= self.micros() || age > Self::AGE_MAX {
            *self = RecentMin(u32::from(at) << 24 | micros);
        }
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

impl Rtt {
    pub(crate) fn new(initial: Duration, min: Duration, max: Duration) -> Rtt {
        let (min, max) = (micros(min).max(1), micros(max).max(1));
        Rtt {
            srtt_us: 0,
            rttvar_us: 0,
            min: RecentMin(RecentMin::MICROS_MAX),
            //= https://www.rfc-editor.org/rfc/rfc6298#section-2
            //# the sender SHOULD set RTO <- 1 second
            rto_us: micros(initial).clamp(min, max.max(min)),
            rto_min_us: min,
            rto_max_us: max.max(min),
            backoff: 0,
            reordering: Reordering::default(),
            timed_at: Instant::FAR,
            timed_end: SeqNum(0),
        }
    }

    /// Starts to measure the RTT of the bytes before sequence number `end`, which are sent at
    /// `now`.
    pub(crate) fn start_timing(&mut self, now: Instant, end: SeqNum) {
        (self.timed_at, self.timed_end) = (now, end);
    }

    /// Stops the measurement because the timed bytes were retransmitted: an acknowledgement may be
    /// for either copy (Karn's algorithm, RFC 6298 §3).
    //= https://www.rfc-editor.org/rfc/rfc6298#section-3
    //# RTT samples MUST NOT be made using segments that were retransmitted
    pub(crate) fn stop_timing(&mut self) {
        self.timed_at = Instant::FAR;
    }

    /// Returns the current RTT measurement: the sequence number after the bytes, and their send
    /// time.
    #[inline]
    pub(crate) fn timed(&self) -> Option<(SeqNum, Instant)> {
        (self.timed_at != Instant::FAR).then_some((self.timed_end, self.timed_at))
    }

    fn is_measured(&self) -> bool {
        self.srtt_us != 0
    }

    /// Updates the estimate with a sample that obeys Karn's algorithm: of bytes sent once, or
    /// identified by a timestamp. Only such a sample resets the backoff. Otherwise, on a path
    /// slower than the timeout, every ACK of retransmitted bytes would restore the short timeout.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.1
    //# The RTO MUST be computed according to the algorithm in [10], including Karn's algorithm for
    //# taking RTT samples (MUST-18).
    //= https://www.rfc-editor.org/rfc/rfc6298#section-5
    //# Note that after retransmitting, once a new RTT measurement is obtained (which can only happen
    //# when new data has been sent and acknowledged), the computations outlined in Section 2 are
    //# performed, including the computation of RTO, which may result in "collapsing" RTO back down
    //# after it has been subject to exponential back off (rule 5.5).
    pub(crate) fn on_sample(&mut self, now: Instant, sample: Duration) {
        let r = micros(sample).max(1);
        self.backoff = 0;
        self.min.update(now, r);
        if self.is_measured() {
            //= https://www.rfc-editor.org/rfc/rfc6298#section-2
            //# RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|
            //# SRTT <- (1 - alpha) * SRTT + alpha * R'
            let error = self.srtt_us.abs_diff(r);
            //= https://www.rfc-editor.org/rfc/rfc6298#section-2
            //# updating RTTVAR and SRTT MUST be computed in the above order.
            //= https://www.rfc-editor.org/rfc/rfc6298#section-2
            //# The above SHOULD be computed using alpha=1/8 and beta=1/4
            self.rttvar_us = self.rttvar_us - self.rttvar_us / 4 + error / 4;
            self.srtt_us = self.srtt_us - self.srtt_us / 8 + r / 8;
        } else {
            //= https://www.rfc-editor.org/rfc/rfc6298#section-2
            //# (2.2) When the first RTT measurement R is made, the host MUST set SRTT <- R RTTVAR
            //# <- R/2
            self.srtt_us = r;
            self.rttvar_us = r / 2;
        }
        // The minimum applies to the margin, as in Linux and FreeBSD. On a steady path the variance
        // approaches zero. With a minimum timeout of 200 ms, a path of 190 ms would have only 10 ms
        // left for a delayed ACK.
        //= https://www.rfc-editor.org/rfc/rfc6298#section-4
        //# if the K*RTTVAR term in the RTO calculation equals zero, the variance term MUST be
        //# rounded to G seconds
        let margin = (4 * u64::from(self.rttvar_us)).max(u64::from(self.rto_min_us));
        //= https://www.rfc-editor.org/rfc/rfc6298#section-2
        //# After the computation, a host MUST update RTO <- SRTT + max (G, K*RTTVAR)
        //= https://www.rfc-editor.org/rfc/rfc6298#section-2
        //# A maximum value MAY be placed on RTO provided it is at least 60 seconds.
        self.rto_us = (u64::from(self.srtt_us) + margin).min(u64::from(self.rto_max_us)) as u32;
    }

    /// Returns the reordering window. A segment counts as lost if segments sent later arrived, and
    /// this time has passed (`RACK.reo_wnd` of RFC 8985 §6.2).
    pub(crate) fn reordering_window(&self) -> Duration {
        match (self.min(), self.srtt()) {
            (Some(min), Some(srtt)) => self.reordering.window(min, srtt),
            _ => Duration::ZERO,
        }
    }

    /// Returns the time at which a tail loss probe is due if its timer starts at `start`.
    /// `is_alone` states that only one segment is in flight. The peer may delay the ACK of a single
    /// segment.
    pub(crate) fn probe_at(&self, start: Instant, is_alone: bool) -> Instant {
        if !self.is_measured() {
            //= https://www.rfc-editor.org/rfc/rfc8985#section-7.2
            //# when there is no SRTT estimate available, the PTO SHOULD be 1 second.
            return start.after_millis(1_000);
        }
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.2
        //# when the FlightSize is one segment, the sender MAY inflate the PTO by TLP.max_ack_delay
        let delay = if is_alone { self.rto_min_us } else { 0 };
        start.after_micros(2 * u64::from(self.srtt_us) + u64::from(delay))
    }

    /// Raises the timeout to three seconds if a SYN was lost and there is no measurement yet (RFC
    /// 6298 §5.7).
    //= https://www.rfc-editor.org/rfc/rfc6298#section-5
    //# the RTO MUST be re-initialized to 3 seconds when data transmission begins
    pub(crate) fn on_handshake_retransmitted(&mut self) {
        if !self.is_measured() {
            self.rto_us = self.rto_us.max(3_000_000).min(self.rto_max_us);
        }
    }

    /// Returns the current retransmission timeout, including backoff.
    pub(crate) fn rto(&self) -> Duration {
        self.rto_after(self.backoff)
    }

    /// Returns the retransmission timeout after it was doubled `doublings` times.
    pub(crate) fn rto_after(&self, doublings: u8) -> Duration {
        Duration::from_micros(self.rto_after_us(doublings))
    }

    fn rto_after_us(&self, doublings: u8) -> u64 {
        let backed_off = u64::from(self.rto_us) << doublings.min(24);
        backed_off.min(u64::from(self.rto_max_us))
    }

    /// Returns the time at which a retransmission timer that starts now expires. Faster than adding
    /// [`Self::rto`], which has to be divided into seconds and nanoseconds.
    #[inline]
    pub(crate) fn rto_at(&self, now: Instant) -> Instant {
        now.after_micros(self.rto_after_us(self.backoff))
    }

    /// Returns the maximum retransmission timeout.
    pub(crate) fn rto_max(&self) -> Duration {
        Duration::from_micros(self.rto_max_us.into())
    }

    /// Returns whether more than the retransmission timeout without backoff has passed since
    /// `start`.
    #[inline]
    pub(crate) fn has_rto_passed(&self, start: Instant, now: Instant) -> bool {
        now > start.after_micros(self.rto_us.into())
    }

    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    pub(crate) fn clear_backoff(&mut self) {
        self.backoff = 0;
    }

    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.is_measured().then(|| Duration::from_micros(u64::from(self.srtt_us)))
    }

    pub(crate) fn rttvar(&self) -> Duration {
        Duration::from_micros(u64::from(self.rttvar_us))
    }

    pub(crate) fn min(&self) -> Option<Duration> {
        self.is_measured().then(|| Duration::from_micros(u64::from(self.min.micros())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtt() -> Rtt {
        Rtt::new(Duration::from_secs(1), Duration::from_millis(200), Duration::from_secs(120))
    }

    #[test]
    fn starts_at_one_second_and_follows_the_path() {
        let mut rtt = rtt();
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        rtt.on_sample(Instant(0), Duration::from_millis(400));
        assert_eq!(rtt.rto(), Duration::from_millis(1200));
        for _ in 0..100 {
            rtt.on_sample(Instant(0), Duration::from_millis(400));
        }
        let rto = rtt.rto();
        assert!(rto >= Duration::from_millis(599) && rto < Duration::from_millis(610), "{rto:?}");
    }

    #[test]
    fn has_a_floor_and_a_ceiling() {
        let mut rtt = rtt();
        rtt.on_sample(Instant(0), Duration::from_micros(50));
        assert_eq!(rtt.rto(), Duration::from_micros(200_050));
        for _ in 0..40 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), Duration::from_secs(120));
        rtt.clear_backoff();
        assert_eq!(rtt.rto(), Duration::from_micros(200_050));
    }

    #[test]
    fn forgets_the_minimum_of_a_path_left_five_minutes_ago() {
        let mut rtt = rtt();
        let minute = |minutes: u64| Instant(minutes * 60 * 1_000_000_000);
        rtt.on_sample(minute(0), Duration::from_millis(10));
        rtt.on_sample(minute(3), Duration::from_millis(80));
        assert_eq!(rtt.min(), Some(Duration::from_millis(10)));
        rtt.on_sample(minute(6), Duration::from_millis(80));
        assert_eq!(rtt.min(), Some(Duration::from_millis(80)));
        // Equal samples renew the minimum.
        rtt.on_sample(minute(10), Duration::from_millis(80));
        rtt.on_sample(minute(14), Duration::from_millis(90));
        assert_eq!(rtt.min(), Some(Duration::from_millis(80)));
    }
}
