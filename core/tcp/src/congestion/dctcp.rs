//! DCTCP (RFC 8257): reduces the congestion window in proportion to the fraction of bytes marked
//! with CE. Otherwise it behaves like NewReno.

use super::algorithm::{Acked, CongestionControl, CongestionInfo};
use super::newreno::NewReno;
use super::window::CongestionWindow;
use towpath_wire::tcp::SeqNum;

/// Value of [`Dctcp::alpha`] if all bytes were marked: Linux's `DCTCP_MAX_ALPHA`.
const ALPHA_MAX: u32 = 1024;
/// The estimation gain g is 2 to the power of -4.
//= https://www.rfc-editor.org/rfc/rfc8257#section-4.2
//# A fixed estimation gain of 1/16 is used in some implementations.
//= https://www.rfc-editor.org/rfc/rfc8257#section-4.2
//# An efficient kernel implementation MAY scale the DCTCP.Alpha value for efficient computation
//# using shift operations.
const GAIN_SHIFT: u32 = 4;

/// State of DCTCP; all counters are in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dctcp {
    reno: NewReno,
    /// Sequence number at which the current observation window ends.
    window_end: SeqNum,
    acked: u32,
    marked: u32,
    /// Estimated fraction of bytes marked with CE, in units of 1/1024.
    alpha: u16,
    is_started: bool,
}

impl Default for Dctcp {
    fn default() -> Dctcp {
        Dctcp {
            reno: NewReno::default(),
            window_end: SeqNum(0),
            acked: 0,
            marked: 0,
            alpha: ALPHA_MAX as u16,
            is_started: false,
        }
    }
}

impl CongestionControl for Dctcp {
    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked) {
        if !self.is_started {
            (self.is_started, self.window_end) = (true, acked.snd_nxt);
        }
        self.acked = self.acked.saturating_add(acked.delivered);
        self.marked = self.marked.saturating_add(acked.marked.min(acked.delivered));
        //= https://www.rfc-editor.org/rfc/rfc8257#section-3.3
        //# an observation window ends when all bytes in flight at the beginning of the window have
        //# been acknowledged.
        if acked.snd_nxt - acked.snd_una <= acked.snd_nxt - self.window_end {
            self.update_alpha();
            self.window_end = acked.snd_nxt;
        }
        self.reno.on_ack(window, acked);
    }

    // A lost packet is a stronger signal than a mark, so halve the window.
    //= https://www.rfc-editor.org/rfc/rfc8257#section-3.5
    //# A DCTCP sender MUST react to loss episodes in the same way as conventional TCP
    //= https://www.rfc-editor.org/rfc/rfc8257#section-3.5
    //# the cwnd and other state variables like ssthresh MUST be changed in the same way that a
    //# conventional TCP would have changed them.
    fn on_loss(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
        self.reno.on_loss(window, flight)
    }

    fn on_ecn(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
        self.reno.on_loss(window, flight);
        //= https://www.rfc-editor.org/rfc/rfc8257#section-3.3
        //# the sender SHOULD update cwnd as follows: cwnd = cwnd * (1 - DCTCP.Alpha / 2)
        let reduction = u64::from(window.cwnd) * u64::from(self.alpha) / u64::from(2 * ALPHA_MAX);
        window.cwnd - reduction as u32
    }

    fn info(&self) -> CongestionInfo {
        CongestionInfo::Dctcp {
            alpha: self.alpha.into(),
            bytes_marked: self.marked,
            bytes_acked: self.acked,
        }
    }
}

impl Dctcp {
    /// Updates the estimate at the end of an observation window.
    //= https://www.rfc-editor.org/rfc/rfc8257#section-3.3
    //# The current estimate is stored in a new TCP state variable, DCTCP.Alpha, which is
    //# initialized to 1 and SHOULD be updated as follows: DCTCP.Alpha = DCTCP.Alpha * (1 - g) + g *
    //# M
    fn update_alpha(&mut self) {
        if self.acked == 0 {
            return;
        }
        let fraction = u64::from(self.marked) * u64::from(ALPHA_MAX) / u64::from(self.acked);
        let alpha = u32::from(self.alpha);
        // The decay rounds up, so that the estimate reaches 0 without marks.
        //= https://www.rfc-editor.org/rfc/rfc8257#section-4.2
        //# A scaling implementation SHOULD ensure that DCTCP.Alpha is able to reach 0
        let decay = alpha.div_ceil(1 << GAIN_SHIFT);
        let alpha = alpha - decay + (fraction as u32 >> GAIN_SHIFT);
        //= https://www.rfc-editor.org/rfc/rfc8257#section-4.2
        //# DCTCP.Alpha MUST be clamped after an update.
        self.alpha = alpha.min(ALPHA_MAX) as u16;
        (self.acked, self.marked) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ISS, MSS, acked};
    use super::*;
    use crate::time::Instant;

    /// Acknowledges 100 segments, the first `marked` of which were marked with CE.
    fn round(dctcp: &mut Dctcp, window: &mut CongestionWindow, number: u32, marked: u32) {
        for n in 0..100 {
            let una = ISS + (number * 100 + n + 1) * MSS;
            let acked = Acked {
                marked: if n < marked { MSS } else { 0 },
                snd_una: una,
                snd_nxt: ISS + (number + 1) * 100 * MSS + n * MSS,
                limited: false,
                ..acked(Instant(0), MSS)
            };
            dctcp.on_ack(window, &acked);
        }
    }

    #[test]
    fn alpha_follows_the_fraction_of_marked_bytes() {
        let (mut dctcp, mut window) = (Dctcp::default(), CongestionWindow::new(100 * MSS));
        (0..200).for_each(|number| round(&mut dctcp, &mut window, number, 25));
        // A quarter of 1024. The estimate is approximate, because it decays in whole units.
        assert!((240..=272).contains(&dctcp.alpha), "{}", dctcp.alpha);
        assert_eq!(dctcp.on_loss(&window, 100 * MSS), 50 * MSS, "a loss halves the window");
        let reduced = dctcp.on_ecn(&window, 100 * MSS);
        assert!((86 * MSS..=89 * MSS).contains(&reduced), "{reduced}");
        (200..400).for_each(|number| round(&mut dctcp, &mut window, number, 0));
        assert_eq!(dctcp.alpha, 0);
        assert_eq!(dctcp.on_ecn(&window, 100 * MSS), 100 * MSS);
    }

    #[test]
    fn the_first_mark_halves_the_window() {
        let mut dctcp = Dctcp::default();
        let window = CongestionWindow::new(100 * MSS);
        assert_eq!(dctcp.on_ecn(&window, 100 * MSS), 50 * MSS);
    }
}
