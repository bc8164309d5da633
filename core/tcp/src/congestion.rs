//! Congestion control. Windows are in bytes, and an enum selects the algorithm. To add an
//! algorithm, create a file in this folder and add a row to the table below. Options, command lines
//! and reports take their names from the table.
//!
//! An algorithm receives an [`Acked`] for each ACK, and computes the congestion window and
//! optionally a pacing rate. Module `recovery` decides which bytes are lost, and `plan` how many
//! may be sent.

mod algorithm;
mod bbr;
mod cubic;
mod dctcp;
mod epoch;
mod hystart;
mod newreno;
#[cfg(test)]
pub(crate) mod tests;
mod usage;
mod vegas;
mod window;

use self::algorithm::CongestionControl;
pub use self::algorithm::CongestionInfo;
pub(crate) use self::algorithm::{Acked, CongestionStart, IdlePeriod};
use self::bbr::Bbr;
use self::cubic::Cubic;
use self::dctcp::Dctcp;
use self::newreno::NewReno;
use self::usage::WindowUsage;
use self::vegas::Vegas;
use self::window::CongestionWindow;
use core::num::NonZeroU64;
use towpath_wire::tcp::SeqNum;

/// Defines the congestion control algorithms from a table. A row has the variant of
/// [`CongestionKind`], the type of its state, Linux's name, aliases for users, and the
/// specification. The first row is the default.
macro_rules! congestion_controls {
    ($(
        $(#[$doc:meta])*
        $variant:ident($state:ty) = $name:literal, [$($alias:literal),*], $document:literal;
    )+) => {
        /// Names a congestion control algorithm, without its state.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum CongestionKind {
            $($(#[$doc])* $variant,)+
        }

        /// The congestion control algorithm of one connection, with its state.
        #[derive(Debug)]
        enum Algorithm {
            $($variant($state),)+
        }

        impl CongestionKind {
            /// All algorithms. The first is the default.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Names of all algorithms, in the order of `ALL`.
            pub const NAMES: &[&str] = &[$($name),+];

            /// Returns the name of the algorithm, as in Linux's TCP_CONGESTION.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the alternative names that users may write for the algorithm.
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

            fn is_model(&self) -> bool {
                match self {
                    $(Self::$variant(_) => <$state>::IS_MODEL,)+
                }
            }

            fn on_start(&mut self, window: &mut CongestionWindow, start: &CongestionStart) {
                match self {
                    $(Self::$variant(state) => state.on_start(window, start),)+
                }
            }

            fn on_idle_sent(&mut self, window: &mut CongestionWindow, idle: &IdlePeriod) {
                match self {
                    $(Self::$variant(state) => state.on_idle_sent(window, idle),)+
                }
            }

            fn on_restart(&mut self) {
                match self {
                    $(Self::$variant(state) => state.on_restart(),)+
                }
            }

            #[inline]
            fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked) {
                match self {
                    $(Self::$variant(state) => state.on_ack(window, acked),)+
                }
            }

            fn on_loss(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
                match self {
                    $(Self::$variant(state) => state.on_loss(window, flight),)+
                }
            }

            fn on_ecn(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
                match self {
                    $(Self::$variant(state) => state.on_ecn(window, flight),)+
                }
            }

            fn on_undo(&mut self, window: &mut CongestionWindow) {
                match self {
                    $(Self::$variant(state) => state.on_undo(window),)+
                }
            }

            fn info(&self) -> CongestionInfo {
                match self {
                    $(Self::$variant(state) => state.info(),)+
                }
            }

            #[inline]
            fn is_probing_rtt(&self) -> bool {
                match self {
                    $(Self::$variant(state) => state.is_probing_rtt(),)+
                }
            }

            fn on_timeout(&mut self, window: &CongestionWindow) {
                match self {
                    $(Self::$variant(state) => state.on_timeout(window),)+
                }
            }

            #[inline]
            fn pacing_rate(&self) -> Option<NonZeroU64> {
                match self {
                    $(Self::$variant(state) => state.pacing_rate(),)+
                }
            }
        }
    };
}

congestion_controls! {
    /// CUBIC (RFC 9438), the default of Linux and of this crate.
    Cubic(Cubic) = "cubic", [], "RFC 9438";
    /// NewReno (RFC 5681), with the byte counting of RFC 3465.
    NewReno(NewReno) = "reno", ["newreno"], "RFC 5681";
    /// BBR version 3: a model of the path's bandwidth and round-trip time.
    Bbr(Bbr) = "bbr", ["bbr3"], "draft-ietf-ccwg-bbr";
    /// TCP Vegas, which keeps only a few segments queued in the network.
    Vegas(Vegas) = "vegas", [], "Brakmo and Peterson 1995";
    /// DCTCP (RFC 8257): reacts to the fraction of bytes marked with CE, in networks that mark
    /// early.
    Dctcp(Dctcp) = "dctcp", [], "RFC 8257";
}

impl Default for CongestionKind {
    fn default() -> Self {
        Self::ALL[0]
    }
}

impl CongestionKind {
    /// Returns the algorithm with Linux's name `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Returns the algorithm with this name or alias.
    pub fn from_word(word: &str) -> Option<Self> {
        let known = |kind: &Self| kind.name() == word || kind.aliases().contains(&word);
        Self::ALL.iter().copied().find(known)
    }
}

/// Congestion control of one connection.
#[derive(Debug)]
pub(crate) struct Congestion {
    window: CongestionWindow,
    usage: WindowUsage,
    algorithm: Algorithm,
}

/// A loss detected from ACKs: the bytes in flight at that time, and the segment size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossEvent {
    /// Bytes sent but not yet acknowledged cumulatively.
    pub(crate) flight: u32,
    pub(crate) mss: u32,
}

/// Congestion window and slow-start threshold before a reduction, restored if the loss turns out to
/// be spurious.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PriorWindow {
    cwnd: u32,
    ssthresh: u32,
}

impl Congestion {
    pub(crate) fn new(
        kind: CongestionKind,
        mss: u32,
        initial_window: u8,
        iss: SeqNum,
    ) -> Congestion {
        Congestion {
            window: CongestionWindow::new(mss * u32::from(initial_window.max(1))),
            usage: WindowUsage::new(iss),
            algorithm: Algorithm::new(kind),
        }
    }

    #[inline]
    pub(crate) fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    pub(crate) fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// Returns whether the congestion window is below half of the slow-start threshold.
    pub(crate) fn in_first_half_of_slow_start(&self) -> bool {
        self.window.cwnd < self.window.ssthresh / 2
    }

    pub(crate) fn kind(&self) -> CongestionKind {
        self.algorithm.kind()
    }

    /// Returns whether the algorithm is based on a model of the path. The window's reaction to
    /// losses and idle periods is then left to the algorithm.
    pub(crate) fn is_model(&self) -> bool {
        self.algorithm.is_model()
    }

    /// Returns the pacing rate of the algorithm in payload bytes per second; `None` if it does not
    /// pace.
    #[inline]
    pub(crate) fn pacing_rate(&self) -> Option<NonZeroU64> {
        self.algorithm.pacing_rate()
    }

    /// Changes the algorithm. The congestion window stays the same.
    pub(crate) fn set_kind(&mut self, kind: CongestionKind, start: &CongestionStart) {
        if self.kind() != kind {
            self.algorithm = Algorithm::new(kind);
            self.algorithm.on_start(&mut self.window, start);
        }
    }

    /// Handles a change of the segment size. Window and threshold count bytes, so they change only
    /// if they are below their minimum of one and two segments. Otherwise no segment would fit in
    /// the congestion window, also after recovery, which sets the window to the threshold.
    pub(crate) fn on_mss(&mut self, mss: u32) {
        self.window.cwnd = self.window.cwnd.max(mss);
        self.window.ssthresh = self.window.ssthresh.max(2 * mss);
    }

    /// Sets the initial congestion window after the handshake: that of RFC 6928, or one segment if
    /// a SYN was lost.
    pub(crate) fn on_established(
        &mut self,
        start: &CongestionStart,
        initial_window: u8,
        syn_lost: bool,
    ) {
        let segments = if syn_lost { 1 } else { u32::from(initial_window.max(1)) };
        self.window.cwnd = start.mss * segments;
        self.algorithm.on_start(&mut self.window, start);
    }

    /// Records that payload up to sequence number `nxt` was sent. `pipe` bytes are estimated to be
    /// in the network.
    #[inline]
    pub(crate) fn on_sent(&mut self, una: SeqNum, nxt: SeqNum, pipe: u32, mss: u32) {
        let is_full = pipe.saturating_add(mss) > self.window.cwnd;
        self.usage.on_sent(una, nxt, is_full);
    }

    /// Records a retransmission. The congestion window then counts as fully used.
    pub(crate) fn on_retransmitted(&mut self, una: SeqNum, nxt: SeqNum) {
        self.usage.on_sent(una, nxt, true);
    }

    /// Returns whether the congestion window was fully used in the last round trip. In slow start,
    /// use of half the window suffices, so that it can grow to twice the bytes in flight.
    pub(crate) fn is_limited(&self) -> bool {
        self.usage.is_full() || !self.is_model() && self.usage.suffices_for_slow_start(&self.window)
    }

    pub(crate) fn info(&self) -> CongestionInfo {
        self.algorithm.info()
    }

    /// Returns whether the algorithm is sending less on purpose to measure the minimum RTT.
    /// Delivery rates are then too low.
    #[inline]
    pub(crate) fn is_probing_rtt(&self) -> bool {
        self.algorithm.is_probing_rtt()
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion
    //# avoidance, and exponential backoff of RTO to avoid creating congestion collapse conditions
    //# (MUST-19).
    #[inline]
    pub(crate) fn on_ack(&mut self, acked: &Acked) {
        self.algorithm.on_ack(&mut self.window, acked);
    }

    /// Handles the first transmission after a period with nothing in flight.
    pub(crate) fn on_idle_over(&mut self, idle: &IdlePeriod) {
        self.algorithm.on_idle_sent(&mut self.window, idle);
    }

    /// Reduces the window, once per loss event, after loss was detected by duplicate or selective
    /// ACKs.
    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.6
    //# the sender MUST reduce cwnd and ssthresh immediately upon entering loss recovery
    pub(crate) fn on_loss(&mut self, loss: LossEvent) {
        self.reduce(loss.flight, loss.mss);
        if !self.is_model() {
            self.window.cwnd = self.window.ssthresh;
        }
    }

    /// Reduces the window once more, because a retransmission was lost. `is_recovery` is true in
    /// fast recovery. The window of fast recovery follows the ACKs and may be small at the moment.
    /// The reduction therefore starts from the window with which the recovery would end.
    pub(crate) fn on_retransmission_lost(&mut self, loss: LossEvent, is_recovery: bool) {
        if is_recovery {
            self.on_recovery_exit();
        }
        self.on_loss(loss);
    }

    /// Returns the congestion window and slow-start threshold, to be saved before a reduction and
    /// restored by [`Self::undo`].
    pub(crate) fn prior(&self) -> PriorWindow {
        PriorWindow { cwnd: self.window.cwnd, ssthresh: self.window.ssthresh }
    }

    /// Returns the state to restore by [`Self::undo`] if the retransmission timeout in fast
    /// recovery was spurious. The earlier losses were real, so the restored window is the one at
    /// the end of recovery.
    pub(crate) fn prior_in_recovery(&self) -> PriorWindow {
        let PriorWindow { cwnd, ssthresh } = self.prior();
        PriorWindow { cwnd: cwnd.min(ssthresh), ssthresh }
    }

    /// Sets the window that proportional rate reduction computed for an ACK of fast recovery. A
    /// model keeps its own window.
    //= https://www.rfc-editor.org/rfc/rfc9937#section-5
    //# PRR MAY be used in conjunction with any congestion control algorithm that intends to make a
    //# multiplicative decrease in its sending rate over approximately the time scale of one
    //# round-trip time
    pub(crate) fn on_recovery_window(&mut self, cwnd: u32) {
        if !self.is_model() {
            self.window.cwnd = cwnd;
        }
    }

    /// Handles the end of fast recovery.
    //= https://www.rfc-editor.org/rfc/rfc9937#section-6.4
    //# On the completion of a PRR episode, PRR executes the following: cwnd = ssthresh
    //= https://www.rfc-editor.org/rfc/rfc6582#section-3.2
    //# Set cwnd to either (1) min (ssthresh, max(FlightSize, SMSS) + SMSS) or (2) ssthresh
    pub(crate) fn on_recovery_exit(&mut self) {
        if !self.is_model() {
            self.window.cwnd = self.window.ssthresh;
        }
    }

    /// Restores the state before a reduction, because the loss was spurious.
    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.9.1
    //# When a spurious timeout is detected, a TCP implementation MAY follow the response algorithm
    //# described in [RFC4015] to restore the congestion control state
    pub(crate) fn undo(&mut self, prior: PriorWindow) {
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.9.2
        //# In rare cases, when the detection happens long after a spurious fast retransmit event
        //# and the current cwnd is already higher than cwnd_prior, CUBIC SHOULD continue to use the
        //# current and the most recent values of these variables.
        if !self.is_model() && self.window.cwnd > prior.cwnd {
            return;
        }
        self.window.cwnd = self.window.cwnd.max(prior.cwnd);
        self.window.ssthresh = self.window.ssthresh.max(prior.ssthresh);
        self.algorithm.on_undo(&mut self.window);
    }

    /// Reduces the congestion window, at most once per round trip, after the peer reported packets
    /// marked with CE.
    pub(crate) fn on_ecn(&mut self, loss: LossEvent) {
        if !self.is_model() {
            let window = &mut self.window;
            window.ssthresh = self.algorithm.on_ecn(window, loss.flight).max(2 * loss.mss);
            window.cwnd = window.cwnd.min(window.ssthresh);
        }
    }

    /// Reduces the congestion window to one segment after a retransmission timeout. If `again` is
    /// true, the same segment timed out before, and the slow-start threshold is unchanged.
    pub(crate) fn on_timeout(&mut self, flight: u32, mss: u32, again: bool) {
        if !again {
            self.reduce(flight, mss);
        }
        self.algorithm.on_timeout(&self.window);
        //= https://www.rfc-editor.org/rfc/rfc8257#section-3.5
        //# upon a timeout, the cwnd MUST be set to no more than the loss window (1 full-sized
        //# segment), regardless of previous cwnd reductions in a given window of data.
        self.window.cwnd = mss;
    }

    fn reduce(&mut self, flight: u32, mss: u32) {
        let ssthresh = self.algorithm.on_loss(&self.window, flight);
        self.window.ssthresh = ssthresh.max(2 * mss);
    }

    /// Returns the congestion window of a sender that was idle for longer than a retransmission
    /// timeout.
    pub(crate) fn restart_window(&self, mss: u32, initial_window: u8) -> u32 {
        if self.is_model() {
            return self.window.cwnd;
        }
        self.window.cwnd.min(mss * u32::from(initial_window.max(1)))
    }

    /// Reduces the congestion window when sending resumes after an idle period (RFC 5681 §4.1).
    pub(crate) fn on_restart(&mut self, mss: u32, initial_window: u8) {
        if !self.is_model() {
            self.window.ssthresh = self.window.ssthresh.max(self.window.cwnd / 4 * 3);
            self.window.cwnd = self.restart_window(mss, initial_window);
            self.algorithm.on_restart();
        }
    }
}
