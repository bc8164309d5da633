//! Proportional rate reduction (RFC 9937): how much to send for each ACK of fast recovery.

/// State of proportional rate reduction in one recovery. All counts are in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Prr {
    /// `RecoverFS` of RFC 9937: bytes in flight when the recovery began.
    recover_fs: u32,
    delivered: u32,
    out: u32,
}

/// An ACK received during fast recovery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecoveryAck {
    /// Bytes that this ACK newly reports as received.
    pub(crate) delivered: u32,
    /// Estimated bytes in flight after this ACK.
    pub(crate) pipe: u32,
    /// Whether the ACK advanced SND.UNA and revealed no loss.
    pub(crate) is_safe: bool,
    pub(crate) ssthresh: u32,
    pub(crate) mss: u32,
}

impl Prr {
    /// Creates the state of a recovery that begins with `recover_fs` bytes in flight.
    pub(super) fn new(recover_fs: u32) -> Prr {
        Prr { recover_fs: recover_fs.max(1), delivered: 0, out: 0 }
    }

    /// Returns the number of bytes in flight when the recovery began.
    pub(super) fn recover_fs(&self) -> u32 {
        self.recover_fs
    }

    /// Records that `bytes` were sent during the recovery.
    pub(super) fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// Returns the congestion window after this ACK, or `None` if the ACK delivered nothing.
    pub(super) fn on_ack(&mut self, ack: RecoveryAck) -> Option<u32> {
        if ack.delivered == 0 && self.delivered > 0 {
            return None;
        }
        self.delivered = self.delivered.saturating_add(ack.delivered);
        let mut quota = if ack.pipe > ack.ssthresh {
            let target = u64::from(self.delivered) * u64::from(ack.ssthresh);
            let target = target.div_ceil(u64::from(self.recover_fs));
            u32::try_from(target).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            let conservative = self.delivered.saturating_sub(self.out).max(ack.delivered);
            let growth = if ack.is_safe { ack.mss } else { 0 };
            conservative.saturating_add(growth).min(ack.ssthresh - ack.pipe)
        };
        // The first retransmission of a recovery is sent at once.
        //= https://www.rfc-editor.org/rfc/rfc9937#section-6.2
        //# Force a fast retransmit upon entering recovery
        if self.out == 0 {
            quota = quota.max(ack.mss);
        }
        Some(ack.pipe.saturating_add(quota))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn ack(delivered: u32, pipe: u32) -> RecoveryAck {
        RecoveryAck { delivered, pipe, is_safe: false, ssthresh: 10 * MSS, mss: MSS }
    }

    #[test]
    fn sends_in_proportion_to_the_reduction() {
        // Twenty segments are in flight, one of them is lost, and the congestion window is to be
        // halved.
        let mut prr = Prr::new(20 * MSS);
        let (mut pipe, mut sent) = (19 * MSS, 0);
        for _ in 0..18 {
            pipe -= MSS;
            let window = prr.on_ack(ack(MSS, pipe)).expect("delivered");
            let segments = (window - pipe) / MSS;
            prr.on_sent(segments * MSS);
            pipe += segments * MSS;
            sent += segments;
        }
        assert_eq!((sent, pipe), (9, 10 * MSS));
    }

    #[test]
    fn sends_the_first_retransmission_at_once() {
        let mut prr = Prr::new(20 * MSS);
        assert_eq!(prr.on_ack(ack(1, 15 * MSS)), Some(16 * MSS));
    }

    #[test]
    fn below_ssthresh_sends_no_more_than_arrived() {
        let mut prr = Prr::new(20 * MSS);
        prr.on_ack(ack(MSS, 2 * MSS));
        prr.on_sent(MSS);
        assert_eq!(prr.on_ack(ack(MSS, 2 * MSS)), Some(3 * MSS), "a loss: packet conservation");
        prr.on_sent(MSS);
        let safe = RecoveryAck { is_safe: true, ..ack(MSS, 2 * MSS) };
        assert_eq!(prr.on_ack(safe), Some(4 * MSS), "no loss: one segment more");
    }

    #[test]
    fn does_not_exceed_ssthresh() {
        let mut prr = Prr::new(20 * MSS);
        assert_eq!(prr.on_ack(ack(15 * MSS, 9 * MSS)), Some(10 * MSS));
    }

    #[test]
    fn an_ack_that_delivers_nothing_changes_nothing() {
        let mut prr = Prr::new(20 * MSS);
        prr.on_ack(ack(MSS, 15 * MSS));
        assert_eq!(prr.on_ack(ack(0, 15 * MSS)), None);
    }
}
