//! Limits the send rate to that of the congestion control algorithm and to the program's maximum
//! (SO_MAX_PACING_RATE). Bytes are sent in bursts of one millisecond, as by Linux's internal
//! pacing. A timer of the connection starts the next burst.
//!
//! Only payload is counted, not headers or ACKs without data. A retransmission after a timeout is
//! not paced (as in `tcp_retransmit_timer`). Otherwise a low rate would look like a dead path.

use crate::connection::Connection;
use crate::counters::SendLimit;
use crate::pacer::Pacer;
use crate::plan::{Idle, Transmit, TransmitKind};
use crate::time::Instant;
use core::num::NonZeroU64;

impl Connection {
    /// Sets the maximum rate in payload bytes per second; `None` removes the limit. Call `plan`
    /// afterwards, because bytes may be due now, and the timer's deadline may have changed.
    pub fn set_max_pacing_rate(&mut self, limit: Option<NonZeroU64>) {
        self.set_pacing(self.congestion.pacing_rate(), limit);
    }

    /// Sets the pacing rate from the congestion control algorithm, whose rate may have changed.
    #[inline]
    pub(crate) fn update_pacing(&mut self) {
        if let Some(rate) = self.congestion.pacing_rate() {
            self.set_pacing(Some(rate), self.max_pacing_rate());
        }
    }

    /// Sets the pacing rate of the algorithm and the program's limit. The lower one is used;
    /// without both, the connection is not paced.
    pub(crate) fn set_pacing(&mut self, rate: Option<NonZeroU64>, limit: Option<NonZeroU64>) {
        let lower = rate.into_iter().chain(limit).min();
        match (self.counters.pacing_mut(), lower) {
            (Some(pacer), Some(rate)) => {
                pacer.limit = limit;
                pacer.set_rate(rate);
            }
            (None, None) => {}
            (_, lower) => {
                self.counters.rare_mut().pacing = lower.map(|rate| Pacer::new(rate, limit));
            }
        }
    }

    pub(crate) fn max_pacing_rate(&self) -> Option<NonZeroU64> {
        self.counters.pacing()?.limit
    }

    /// Limits `max_payload` to the size of a burst in bytes.
    #[inline]
    pub(crate) fn within_burst(&self, max_payload: u32) -> u32 {
        match self.counters.pacing() {
            Some(pacer) => max_payload.min(self.burst(pacer)),
            None => max_payload,
        }
    }

    /// Returns the maximum size of a burst. Not inlined, so that `within_burst` is cheap for
    /// connections without pacing.
    #[inline(never)]
    fn burst(&self, pacer: &Pacer) -> u32 {
        pacer.burst(self.segment_size())
    }

    /// Returns the given plan if the pacing rate permits sending it now, otherwise
    /// [`Idle::Pacing`].
    pub(crate) fn pace(
        &self,
        now: Instant,
        planned: Result<Transmit, Idle>,
    ) -> Result<Transmit, Idle> {
        match self.counters.pacing() {
            Some(pacer) if pacer.next > now => {
                let at_once = |transmit: &Transmit| {
                    transmit.kind == TransmitKind::Retransmit && self.recovery.is_forced()
                };
                planned.and_then(|it| if at_once(&it) { Ok(it) } else { Err(Idle::Pacing) })
            }
            _ => planned,
        }
    }

    /// Records that `bytes` of payload were sent, for pacing.
    #[inline]
    pub(crate) fn note_paced(&mut self, now: Instant, bytes: u32) {
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.on_sent(now, bytes);
        }
    }

    /// Starts the pacing timer because bytes are waiting to be sent. Until it expires, the sender
    /// counts as limited by the network, as on Linux.
    pub(crate) fn arm_pacing(&mut self, now: Instant) {
        self.counters.enter(now, SendLimit::Network);
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.wake = pacer.next;
        }
    }

    /// Returns the deadline of the pacing timer; [`Instant::FAR`] if it is off.
    #[inline]
    pub(crate) fn pacing_deadline(&self) -> Instant {
        self.counters.pacing().map_or(Instant::FAR, |pacer| pacer.wake)
    }

    /// Handles the expiry of the pacing timer, after which `plan` may send again.
    pub(crate) fn fire_pacing(&mut self) {
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.wake = Instant::FAR;
        }
    }
}
