//! Congestion control, in bytes, dispatched by an enum. To add an algorithm, create a file in this
//! folder and a row in the table below. Options, command lines and reports take their names from
//! the table.
//!
//! Only the window is computed here. `recovery` decides which bytes are lost, and `plan` decides
//! how much may be sent.

mod cubic;
mod epoch;
mod newreno;
#[cfg(test)]
mod tests;

use self::cubic::Cubic;
use self::epoch::Epoch;
use self::newreno::NewReno;
use crate::time::Instant;
use core::time::Duration;

/// Table of the congestion control algorithms. A row has the variant of [`CongestionKind`], its
/// state type, Linux's name, aliases for users, and the specification. The first row is the
/// default.
macro_rules! congestion_controls {
    ($(
        $(#[$doc:meta])*
        $variant:ident($state:ty) = $name:literal, [$($alias:literal),*], $document:literal;
    )+) => {
        /// A congestion control algorithm.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum CongestionKind {
            $($(#[$doc])* $variant,)+
        }

        /// The algorithm of one connection, with its state.
        #[derive(Debug, Clone, Copy)]
        enum Algorithm {
            $($variant($state),)+
        }

        impl CongestionKind {
            /// All algorithms; the default is the first.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Names of all algorithms, in the order of `ALL`.
            pub const NAMES: &[&str] = &[$($name),+];

            /// Returns the name of the algorithm, as in Linux's TCP_CONGESTION.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns alternative names that users may write.
            pub const fn aliases(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($alias),*],)+
                }
            }

            /// Returns the document that specifies the algorithm.
            pub const fn document(self) -> &'static str {
                match self {
                    $(Self::$variant => $document,)+
                }
            }
        }

        impl Algorithm {
            fn new(kind: CongestionKind) -> Self {
                match kind {
                    $(CongestionKind::$variant => Self::$variant(<$state>::default()),)+
                }
            }

            fn kind(&self) -> CongestionKind {
                match self {
                    $(Self::$variant(_) => CongestionKind::$variant,)+
                }
            }

            #[inline]
            fn on_ack(
                &mut self,
                epoch: &mut Epoch,
                now: Instant,
                cwnd: u32,
                bytes: u32,
                acked: &Acked,
            ) -> u32 {
                match self {
                    $(Self::$variant(state) => state.on_ack(epoch, now, cwnd, bytes, acked),)+
                }
            }

            fn on_loss(&mut self, cwnd: u32, flight: u32) -> u32 {
                match self {
                    $(Self::$variant(state) => state.on_loss(cwnd, flight),)+
                }
            }

            fn on_timeout(&mut self) {
                match self {
                    $(Self::$variant(state) => state.on_timeout(),)+
                }
            }
        }
    };
}

congestion_controls! {
    /// RFC 9438: the default of Linux and of this crate.
    Cubic(Cubic) = "cubic", [], "RFC 9438";
    /// RFC 5681, with the byte counting of RFC 3465.
    NewReno(NewReno) = "reno", ["newreno"], "RFC 5681";
}

impl Default for CongestionKind {
    fn default() -> Self {
        Self::ALL[0]
    }
}

impl CongestionKind {
    /// Returns the algorithm with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Returns the algorithm with this name or alias.
    pub fn from_word(word: &str) -> Option<Self> {
        let known = |kind: &Self| kind.name() == word || kind.aliases().contains(&word);
        Self::ALL.iter().copied().find(known)
    }
}

/// A congestion control algorithm: growth and reduction of a congestion window.
trait CongestionControl {
    /// Returns the new window after `bytes` of `acked` were acknowledged in congestion avoidance;
    /// `cwnd` is the current window.
    fn on_ack(
        &mut self,
        epoch: &mut Epoch,
        now: Instant,
        cwnd: u32,
        bytes: u32,
        acked: &Acked,
    ) -> u32;

    /// Returns the slow-start threshold after a loss, with `flight` bytes in flight.
    fn on_loss(&mut self, cwnd: u32, flight: u32) -> u32;

    /// Handles the expiry of the retransmission timer.
    fn on_timeout(&mut self) {}
}

/// The congestion window of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Congestion {
    epoch: Epoch,
    cwnd: u32,
    ssthresh: u32,
    algorithm: Algorithm,
}

/// An ACK that delivers bytes or reveals a loss, and its context.
#[allow(dead_code, reason = "model-based algorithms read all fields")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    /// Bytes acknowledged cumulatively.
    pub(crate) bytes: u32,
    /// Bytes that this ACK acknowledges first, cumulatively or selectively.
    pub(crate) delivered: u32,
    /// Bytes that this ACK marked as lost, including lost retransmissions.
    pub(crate) lost: u32,
    /// Whether fast recovery was in progress when the ACK arrived. `recovery` then computes the
    /// window (see [`Congestion::on_recovery_window`]).
    pub(crate) in_recovery: bool,
    pub(crate) mss: u32,
    pub(crate) srtt: Duration,
    /// Whether the congestion window limited the sender when these bytes were sent.
    pub(crate) limited: bool,
    /// Whether this is slow start after a timeout.
    pub(crate) after_timeout: bool,
}

/// A loss that ACKs revealed.
#[allow(dead_code, reason = "model-based algorithms read all fields")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossEvent {
    /// Bytes sent and not acknowledged cumulatively.
    pub(crate) flight: u32,
    /// Bytes newly marked as lost.
    pub(crate) lost: u32,
    pub(crate) mss: u32,
}

/// Window and threshold before a reduction, restored if the loss was spurious.
#[allow(dead_code, reason = "undo constructs it")]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PriorWindow {
    cwnd: u32,
    ssthresh: u32,
}

/// Maximum congestion window: the largest receive window of RFC 7323.
const CWND_MAX: u32 = 1 << 30;

#[allow(dead_code, reason = "undo and proportional rate reduction call the last methods")]
impl Congestion {
    pub(crate) fn new(kind: CongestionKind, mss: u32, initial_window: u8) -> Congestion {
        Congestion {
            epoch: Epoch::NONE,
            cwnd: mss * u32::from(initial_window.max(1)),
            ssthresh: CWND_MAX,
            algorithm: Algorithm::new(kind),
        }
    }

    pub(crate) fn cwnd(&self) -> u32 {
        self.cwnd
    }

    pub(crate) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    pub(crate) fn kind(&self) -> CongestionKind {
        self.algorithm.kind()
    }

    /// Changes the algorithm and keeps the current window.
    pub(crate) fn set_kind(&mut self, kind: CongestionKind) {
        if self.kind() != kind {
            self.algorithm = Algorithm::new(kind);
            self.epoch = Epoch::NONE;
        }
    }

    /// Updates the window after the segment size became known or changed. The window counts bytes,
    /// so it changes only if it is below one segment.
    pub(crate) fn on_mss(&mut self, mss: u32) {
        self.cwnd = self.cwnd.max(mss);
    }

    /// Sets the initial window after the handshake: RFC 6928's, or one segment if a SYN was lost.
    pub(crate) fn on_established(&mut self, mss: u32, initial_window: u8, syn_lost: bool) {
        let segments = if syn_lost { 1 } else { u32::from(initial_window.max(1)) };
        self.cwnd = mss * segments;
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion
    //# avoidance, and exponential backoff of RTO to avoid creating congestion collapse conditions
    //# (MUST-19).
    pub(crate) fn on_ack(&mut self, now: Instant, acked: Acked) {
        // Do not grow a window that the sender has not used (RFC 5681 §4.1, RFC 9438 §5.8). An
        // unused window has not been tested against the path.
        if acked.in_recovery || acked.bytes == 0 {
            return;
        }
        if !acked.limited {
            return self.epoch.pause(now);
        }
        self.epoch.go_on(now);
        let mut bytes = acked.bytes;
        if self.in_slow_start() {
            // RFC 3465's limit of L = 2 segments per ACK assumes a receiver that acknowledges every
            // second segment. A receiver with coalescing acknowledges dozens at once, and the limit
            // would slow slow start by a factor of twenty. We therefore apply it only after a
            // timeout, as RFC 9406 §4.2 allows.
            let limit = if acked.after_timeout { 2 * acked.mss } else { bytes };
            let grow = bytes.min(limit).min(self.ssthresh - self.cwnd);
            self.cwnd += grow;
            bytes -= grow;
            if self.cwnd < self.ssthresh || bytes == 0 || acked.after_timeout {
                return;
            }
        }
        let cwnd = self.algorithm.on_ack(&mut self.epoch, now, self.cwnd, bytes, &acked);
        self.cwnd = cwnd.min(CWND_MAX);
    }

    /// Excludes `idle`, a period with nothing in flight, from the elapsed time of the epoch.
    pub(crate) fn on_idle_over(&mut self, idle: Duration) {
        self.epoch.leave_out(idle);
    }

    /// Reduces the window, once per loss event, after loss was detected by duplicate or selective
    /// ACKs.
    pub(crate) fn on_loss(&mut self, loss: LossEvent) {
        self.reduce(loss.flight, loss.mss);
        self.cwnd = self.ssthresh;
    }

    /// Returns the state to restore by [`Self::undo`]; call it before a reduction.
    pub(crate) fn prior(&self) -> PriorWindow {
        PriorWindow { cwnd: self.cwnd, ssthresh: self.ssthresh }
    }

    /// Sets the window that proportional rate reduction computed for an ACK of fast recovery.
    pub(crate) fn on_recovery_window(&mut self, cwnd: u32) {
        self.cwnd = cwnd;
    }

    /// Handles the end of fast recovery.
    pub(crate) fn on_recovery_exit(&mut self) {
        self.cwnd = self.ssthresh;
    }

    /// Restores the state before a reduction, because the loss was spurious.
    pub(crate) fn undo(&mut self, prior: PriorWindow) {
        self.epoch = Epoch::NONE;
        self.cwnd = self.cwnd.max(prior.cwnd);
        self.ssthresh = self.ssthresh.max(prior.ssthresh);
    }

    /// Reduces the window to one segment after a retransmission timeout. `again` is true if the
    /// same segment timed out before; ssthresh does not change then.
    pub(crate) fn on_timeout(&mut self, flight: u32, mss: u32, again: bool) {
        if !again {
            self.reduce(flight, mss);
        }
        self.epoch = Epoch::NONE;
        self.algorithm.on_timeout();
        self.cwnd = mss;
    }

    fn reduce(&mut self, flight: u32, mss: u32) {
        self.epoch = Epoch::NONE;
        self.ssthresh = self.algorithm.on_loss(self.cwnd, flight).max(2 * mss);
    }

    /// Returns the window of a sender that was idle for longer than a retransmission timeout.
    pub(crate) fn restart_window(&self, mss: u32, initial_window: u8) -> u32 {
        self.cwnd.min(mss * u32::from(initial_window.max(1)))
    }

    /// Restarts sending after an idle period (RFC 5681 §4.1).
    pub(crate) fn on_restart(&mut self, mss: u32, initial_window: u8) {
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        self.cwnd = self.restart_window(mss, initial_window);
        self.epoch = Epoch::NONE;
    }
}
