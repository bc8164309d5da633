//! Congestion window validation: checks whether the sender uses its whole window. Follows Linux's
//! `tcp_cwnd_validate`, the basis of RFC 7661.

use super::window::CongestionWindow;
use towpath_wire::tcp::SeqNum;

/// Maximum use of the congestion window in the last round trip.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowUsage {
    /// SND.NXT at the last update. The round trip ends when this sequence number is acknowledged.
    end: SeqNum,
    /// Largest number of bytes in flight in this round trip, or [`FULL`] if the window was fully
    /// used.
    flight_max: u32,
}

/// Value of [`WindowUsage::flight_max`] while the window counts as fully used.
const FULL: u32 = u32::MAX;

impl WindowUsage {
    pub(super) fn new(iss: SeqNum) -> WindowUsage {
        WindowUsage { end: iss, flight_max: 0 }
    }

    /// Records a transmission, after which the sequence numbers `una..nxt` are in flight. `is_full`
    /// states that the congestion window has no space for another segment.
    #[inline]
    pub(super) fn on_sent(&mut self, una: SeqNum, nxt: SeqNum, is_full: bool) {
        let flight = if is_full { FULL } else { nxt - una };
        let is_over = nxt - una <= nxt - self.end;
        if is_over || flight > self.flight_max || is_full {
            (self.end, self.flight_max) = (nxt, flight);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.flight_max == FULL
    }

    /// Returns whether slow start may grow the window, because it is less than twice the bytes in
    /// flight.
    pub(super) fn suffices_for_slow_start(&self, window: &CongestionWindow) -> bool {
        window.in_slow_start() && window.cwnd < self.flight_max.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISS: SeqNum = SeqNum(u32::MAX - 5000);

    fn limited(usage: &WindowUsage, cwnd: u32) -> bool {
        usage.suffices_for_slow_start(&CongestionWindow::new(cwnd))
    }

    #[test]
    fn slow_start_grows_to_twice_the_flight() {
        let mut usage = WindowUsage::new(ISS);
        usage.on_sent(ISS, ISS + 5000, false);
        assert!(limited(&usage, 9999) && !limited(&usage, 10_000));
        usage.on_sent(ISS, ISS + 6000, false);
        assert!(limited(&usage, 10_000));
        // The next round trip has a smaller flight. The smaller flight counts only when the larger
        // flight is acknowledged.
        usage.on_sent(ISS + 4000, ISS + 7000, false);
        assert!(limited(&usage, 10_000));
        usage.on_sent(ISS + 7000, ISS + 8000, false);
        assert!(!limited(&usage, 2000));
    }

    #[test]
    fn a_full_window_counts_for_a_round_trip() {
        let mut usage = WindowUsage::new(ISS);
        usage.on_sent(ISS, ISS + 10_000, true);
        assert!(usage.is_full());
        usage.on_sent(ISS + 9000, ISS + 11_000, false);
        assert!(usage.is_full());
        usage.on_sent(ISS + 11_000, ISS + 12_000, false);
        assert!(!usage.is_full());
    }
}
