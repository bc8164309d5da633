//! Chooses initial sequence numbers (RFC 6528).

use crate::time::Instant;
use towpath_wire::tcp::SeqNum;

/// Computes ISN = M + F(addresses, ports, secret). `hash` is F, a keyed hash computed by the
/// caller, which has the addresses and the secret.
///
//= https://www.rfc-editor.org/rfc/rfc9293#section-3.4.1
//# A TCP implementation MUST use the above type of "clock" for clock-
//# driven selection of initial sequence numbers (MUST-8)
//= https://www.rfc-editor.org/rfc/rfc9293#section-3.4.1
//# SHOULD generate its initial sequence numbers with the expression: ISN = M + F(localip,
//# localport, remoteip, remoteport, secretkey) where M is the 4 microsecond timer, and F() is a
//# pseudorandom function (PRF) of the connection's identifying parameters ("localip, localport,
//# remoteip, remoteport") and a secret key ("secretkey") (SHLD-1).
pub fn initial_sequence(hash: u64, now: Instant) -> SeqNum {
    let clock = (now.micros() / 4) as u32;
    SeqNum((hash as u32 ^ (hash >> 32) as u32).wrapping_add(clock))
}

/// Returns the initial sequence number of a connection whose ports belong to an older connection in
/// TIME-WAIT. The result is `iss`, or `min` ([`TimeWait::iss_min`](crate::TimeWait::iss_min)) if
/// `iss` is before `min`.
///
/// The older connection's numbers advanced with the bytes sent, `iss` with time, so either may be
/// ahead. The two numbers are compared by the shorter distance. Therefore no number from `min` back
/// to half the sequence space is reused.
pub fn not_before(min: SeqNum, iss: SeqNum) -> SeqNum {
    if iss.distance(min) < 0 { min } else { iss }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn the_clock_ticks_every_four_microseconds() {
        let first = initial_sequence(0x1234_5678_9abc_def0, Instant(5_000));
        let later =
            initial_sequence(0x1234_5678_9abc_def0, Instant(5_000) + Duration::from_micros(400));
        assert_eq!(later.distance(first), 100);
        assert_ne!(first, initial_sequence(0x1234_5678_9abc_def1, Instant(5_000)));
    }

    #[test]
    fn the_numbers_of_an_old_connection_may_lie_anywhere() {
        let min = SeqNum(0xffff_ff00);
        for ahead in [0, 1, 0x6000_0001, 0x7fff_ffff] {
            assert_eq!(not_before(min, min + ahead), min + ahead);
        }
        for behind in [1, 0x6000_0001, 0x8000_0000] {
            assert_eq!(not_before(min, min - behind), min);
        }
    }
}
