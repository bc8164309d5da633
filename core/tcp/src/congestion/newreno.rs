//! NewReno (RFC 5681), with the byte counting of RFC 3465.

use super::algorithm::{Acked, CongestionControl};
use super::window::CongestionWindow;

/// NewReno: grows the congestion window by one segment for each window of acknowledged bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged since the window last grew by a segment.
    counted: u32,
}

impl CongestionControl for NewReno {
    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked) {
        if window.may_grow(acked) {
            let bytes = window.slow_start(acked, acked.bytes);
            self.counted = self.counted.saturating_add(bytes);
            if bytes > 0 && self.counted >= window.cwnd {
                self.counted -= window.cwnd;
                window.set(window.cwnd.saturating_add(acked.mss));
            }
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc5681#section-3.2
    //# As specified in [RFC3042], the additional data sent in limited transmit MUST NOT be
    //# included in this calculation.
    fn on_loss(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
        self.counted = 0;
        // Bytes in flight above cwnd were sent by limited transmit (RFC 3042) and must not count.
        flight.min(window.cwnd) / 2
    }

    /// Reduces the window with beta_ecn = 0.8 (RFC 8511 section 3.1).
    fn on_ecn(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
        self.counted = 0;
        (u64::from(flight.min(window.cwnd)) * 4 / 5) as u32
    }
}
