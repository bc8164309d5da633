//! A bound on the rate of sending (SO_MAX_PACING_RATE), kept as by Linux's internal pacing. Bytes
//! go in bursts of a millisecond's worth, and a timer of the connection starts the next burst.
//!
//! Payload counts, headers and bare acknowledgements do not. A retransmission timeout sends its one
//! segment at once (as `tcp_retransmit_timer`), or a slow rate would look like a dead path.

use crate::connection::Connection;
use crate::counters::SendLimit;
use crate::pacer::Pacer;
use crate::plan::{Idle, Transmit, TransmitKind};
use crate::time::Instant;
use core::num::NonZeroU64;

impl Connection {
    /// Most bytes of payload that are sent in a second; `None` sends as fast as windows allow. The
    /// caller visits the connection, for bytes may go at once or wait for another time.
    pub fn set_max_pacing_rate(&mut self, rate: Option<NonZeroU64>) {
        match (self.counters.pacing_mut(), rate) {
            (Some(pacer), Some(rate)) => pacer.set_rate(rate),
            (None, None) => {}
            (_, rate) => self.counters.rare_mut().pacing = rate.map(Pacer::new),
        }
    }

    pub(crate) fn max_pacing_rate(&self) -> Option<NonZeroU64> {
        Some(self.counters.pacing()?.rate)
    }

    /// At most `max_payload` bytes, and not more than a burst.
    pub(crate) fn within_burst(&self, max_payload: u32) -> u32 {
        match self.counters.pacing() {
            Some(pacer) => max_payload.min(pacer.burst(self.segment_size())),
            None => max_payload,
        }
    }

    /// A plan that windows allow, if the rate allows it, too.
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

    /// Payload went out.
    #[inline]
    pub(crate) fn note_paced(&mut self, now: Instant, bytes: u32) {
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.on_sent(now, bytes);
        }
    }

    /// Bytes wait for the rate. The sender counts as busy meanwhile, as on Linux.
    pub(crate) fn arm_pacing(&mut self, now: Instant) {
        self.counters.enter(now, SendLimit::Network);
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.wake = pacer.next;
        }
    }

    /// Deadline of the pacing timer.
    #[inline]
    pub(crate) fn pacing_deadline(&self) -> Instant {
        self.counters.pacing().map_or(Instant::FAR, |pacer| pacer.wake)
    }

    /// The next plan may send.
    pub(crate) fn fire_pacing(&mut self) {
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.wake = Instant::FAR;
        }
    }
}
