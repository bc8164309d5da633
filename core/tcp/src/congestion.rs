//! Congestion control, in bytes, behind one closed enum. An algorithm is a file in this folder and
//! a row in the table below; options, command lines and reports take names from the table.
//!
//! The module only decides how large the window is. `recovery` decides when bytes count as lost,
//! and `plan` how much the window lets go.

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

/// The table of congestion controls. A row has the variant of [`CongestionKind`], the type, Linux's
/// name, other names that users may write, and the document. The first row is the default.
macro_rules! congestion_controls {
    ($(
        $(#[$doc:meta])*
        $variant:ident($state:ty) = $name:literal, [$($alias:literal),*], $document:literal;
    )+) => {
        /// Algorithms of congestion control.
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
            /// All algorithms, the default first.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Names of all algorithms, in the same order.
            pub const NAMES: &[&str] = &[$($name),+];

            /// Name of the algorithm, as TCP_CONGESTION has it on Linux.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Other names that users may write.
            pub const fn aliases(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($alias),*],)+
                }
            }

            /// The document that specifies the algorithm.
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
    /// RFC 9438: Linux's default, and so ours.
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
    /// The algorithm of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The algorithm that a user names, by any of its names.
    pub fn from_word(word: &str) -> Option<Self> {
        let known = |kind: &Self| kind.name() == word || kind.aliases().contains(&word);
        Self::ALL.iter().copied().find(known)
    }
}

/// Growth and reduction of a congestion window.
trait CongestionControl {
    /// Window after `bytes` of `acked` were acknowledged in congestion avoidance, before which it
    /// was `cwnd`.
    fn on_ack(
        &mut self,
        epoch: &mut Epoch,
        now: Instant,
        cwnd: u32,
        bytes: u32,
        acked: &Acked,
    ) -> u32;

    /// Slow-start threshold after a loss, with `flight` bytes in flight.
    fn on_loss(&mut self, cwnd: u32, flight: u32) -> u32;

    /// The retransmission timer fired.
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

/// Bytes and circumstances of an acknowledgement of new bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    pub(crate) bytes: u32,
    pub(crate) mss: u32,
    pub(crate) srtt: Duration,
    /// The window held the sender back when these bytes were sent.
    pub(crate) limited: bool,
    /// Slow start after a timeout.
    pub(crate) after_timeout: bool,
}

/// No window grows past this: RFC 7323's largest receive window.
const CWND_MAX: u32 = 1 << 30;

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

    /// Changes the algorithm and keeps the window.
    pub(crate) fn set_kind(&mut self, kind: CongestionKind) {
        if self.kind() != kind {
            self.algorithm = Algorithm::new(kind);
            self.epoch = Epoch::NONE;
        }
    }

    /// The segment size became known or changed; the window counts in bytes and stays, but is never
    /// less than a segment.
    pub(crate) fn on_mss(&mut self, mss: u32) {
        self.cwnd = self.cwnd.max(mss);
    }

    /// The handshake is over: RFC 6928's window, or one segment when a SYN was lost.
    pub(crate) fn on_established(&mut self, mss: u32, initial_window: u8, syn_lost: bool) {
        let segments = if syn_lost { 1 } else { u32::from(initial_window.max(1)) };
        self.cwnd = mss * segments;
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion
    //# avoidance, and exponential backoff of RTO to avoid creating congestion collapse conditions
    //# (MUST-19).
    pub(crate) fn on_ack(&mut self, now: Instant, acked: Acked) {
        // RFC 5681 §4.1, RFC 9438 §5.8: a window that was not used was not tested, and does not
        // grow.
        if !acked.limited {
            return self.epoch.pause(now);
        }
        self.epoch.go_on(now);
        let mut bytes = acked.bytes;
        if self.in_slow_start() {
            // RFC 3465's L = 2 segments an ACK is for receivers that acknowledge every second
            // segment. A receiver that coalesces acknowledges dozens at once, and the limit would
            // cut slow start to a twentieth. So, as RFC 9406 §4.2 allows, it holds only after a
            // timeout.
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

    /// The sender begins again after `idle` with nothing in flight.
    pub(crate) fn on_idle_over(&mut self, idle: Duration) {
        self.epoch.leave_out(idle);
    }

    /// Loss was found by duplicate or selective ACKs: the window is reduced once for all of it.
    pub(crate) fn on_loss(&mut self, flight: u32, mss: u32) {
        self.reduce(flight, mss);
        self.cwnd = self.ssthresh;
    }

    /// The retransmission timer fired; `again`: for a segment that it has sent again before, so
    /// that ssthresh stays.
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

    /// The window for a sender that was silent for longer than a timeout.
    pub(crate) fn restart_window(&self, mss: u32, initial_window: u8) -> u32 {
        self.cwnd.min(mss * u32::from(initial_window.max(1)))
    }

    /// Sends begin again after silence (RFC 5681 §4.1).
    pub(crate) fn on_restart(&mut self, mss: u32, initial_window: u8) {
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        self.cwnd = self.restart_window(mss, initial_window);
        self.epoch = Epoch::NONE;
    }
}
