//! Challenge ACKs (RFC 5961), and the limit on the number that a half-open or open connection
//! sends.

use crate::config::{CHALLENGE_ACKS_MAX, CHALLENGE_PERIOD_MS};
use crate::time::Instant;

/// Limits challenge ACKs to [`CHALLENGE_ACKS_MAX`] per period. Without a limit, an attacker could
/// make us reflect traffic, or two peers with conflicting states could loop.
//= https://www.rfc-editor.org/rfc/rfc5961#section-7
//# An implementation SHOULD include an ACK throttling mechanism to be conservative.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChallengeLimit {
    /// Number of the current period in the upper 24 bits, below 2²⁰ until the clock's milliseconds
    /// wrap. The lowest byte counts the challenge ACKs sent in that period.
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
