//! Challenge ACKs (RFC 5961): how many of them a half-open or open connection sends.

use crate::config::{CHALLENGE_ACKS_MAX, CHALLENGE_PERIOD_MS};
use crate::time::Instant;

/// At most [`CHALLENGE_ACKS_MAX`] answers to doubtful segments a
/// period, so that nobody makes us reflect traffic or loop with a confused peer (RFC 5961 §7).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChallengeLimit {
    /// The number of the period, of which there are less than 2²⁰ before milliseconds wrap, and in
    /// the lowest byte the answers in it.
    period_and_used: u32,
}

impl ChallengeLimit {
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let period = now.millis() / CHALLENGE_PERIOD_MS;
        if self.period_and_used >> 8 != period {
            self.period_and_used = period << 8;
        }
        let allowed = self.period_and_used & 0xff < u32::from(CHALLENGE_ACKS_MAX);
        self.period_and_used += u32::from(allowed);
        allowed
    }
}
