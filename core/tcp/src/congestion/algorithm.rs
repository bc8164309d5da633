//! Interface of congestion control algorithms, and the types of their arguments.

use super::window::CongestionWindow;
use crate::flight::RateSample;
use crate::time::Instant;
use core::num::NonZeroU64;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// A congestion control algorithm: growth and reduction of a congestion window.
pub(super) trait CongestionControl {
    /// Whether the algorithm derives its window from a model of the path. If so, only the algorithm
    /// decides how the window reacts to losses and idle periods.
    const IS_MODEL: bool = false;

    /// Initializes the algorithm when the handshake is complete, or when the program selects it.
    fn on_start(&mut self, _window: &mut CongestionWindow, _start: &CongestionStart) {}

    /// Handles the first transmission after a period with nothing in flight.
    fn on_idle_sent(&mut self, _window: &mut CongestionWindow, _idle: &IdlePeriod) {}

    /// Resets state that is invalid after an idle period has reduced the congestion window.
    fn on_restart(&mut self) {}

    /// Updates the congestion window after an ACK.
    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked);

    /// Returns the new slow-start threshold after a loss. `flight` is the number of bytes in
    /// flight.
    fn on_loss(&mut self, window: &CongestionWindow, flight: u32) -> u32;

    /// Returns the new slow-start threshold after the peer reported packets marked with CE.
    fn on_ecn(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
        self.on_loss(window, flight)
    }

    /// Handles an expired retransmission timer.
    fn on_timeout(&mut self, _window: &CongestionWindow) {}

    /// Handles a loss that turned out to be spurious. The congestion window and slow-start
    /// threshold were already restored.
    fn on_undo(&mut self, _window: &mut CongestionWindow) {
        self.on_restart();
    }

    /// Returns the values of the algorithm that programs can read (TCP_CC_INFO).
    fn info(&self) -> CongestionInfo {
        CongestionInfo::None
    }

    /// Returns whether the algorithm is sending less on purpose to measure the minimum RTT.
    /// Delivery rates are then too low.
    fn is_probing_rtt(&self) -> bool {
        false
    }

    /// Returns the pacing rate in payload bytes per second; `None` if the algorithm does not pace.
    fn pacing_rate(&self) -> Option<NonZeroU64> {
        None
    }
}

/// Values of a congestion control algorithm that programs can read (TCP_CC_INFO).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CongestionInfo {
    /// The algorithm has no values that programs can read.
    #[default]
    None,
    /// Values of TCP Vegas, as in Linux's `struct tcpvegas_info`.
    Vegas {
        /// Whether Vegas is estimating the queue, because no loss occurred recently.
        is_enabled: bool,
        /// Number of round-trip time samples in the current round trip.
        samples: u32,
        /// Minimum round-trip time of the connection; `None` before the first measurement.
        base_rtt: Option<Duration>,
        /// Minimum round-trip time measured in the current round trip; `None` before the first
        /// measurement.
        min_rtt: Option<Duration>,
    },
    /// Values of DCTCP, as in Linux's `struct tcp_dctcp_info`.
    Dctcp {
        /// Estimated fraction of bytes marked with CE, in units of 1/1024.
        alpha: u32,
        /// Bytes marked with CE in the current observation window.
        bytes_marked: u32,
        /// Bytes acknowledged in the current observation window.
        bytes_acked: u32,
    },
    /// Values of BBR, as in Linux's `struct tcp_bbr_info`.
    Bbr {
        /// Estimated bandwidth of the path in bytes per second.
        bandwidth: u64,
        /// Minimum round-trip time of the path; `None` before the first measurement.
        min_rtt: Option<Duration>,
        /// Pacing rate in percent of the estimated bandwidth.
        pacing_gain_percent: u32,
        /// Congestion window in percent of the bandwidth-delay product.
        cwnd_gain_percent: u32,
    },
}

/// State of a connection when a congestion control algorithm is initialized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CongestionStart {
    pub(crate) mss: u32,
    /// Smoothed round-trip time; `None` before the first measurement.
    pub(crate) srtt: Option<Duration>,
}

/// A period with nothing in flight, which ends when bytes are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdlePeriod {
    pub(crate) now: Instant,
    pub(crate) length: Duration,
    /// Whether the period was caused by the program, which had nothing to send.
    pub(crate) is_app_limited: bool,
}

/// Data of an ACK that a congestion control algorithm receives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    pub(crate) now: Instant,
    /// Payload bytes that the ACK acknowledges cumulatively.
    pub(crate) bytes: u32,
    /// Bytes newly acknowledged, cumulatively or selectively.
    pub(crate) delivered: u32,
    /// Bytes in `delivered` that the peer reported as marked with CE.
    pub(crate) marked: u32,
    pub(crate) mss: u32,
    pub(crate) srtt: Duration,
    /// Round-trip time of the newest bytes that this ACK acknowledges; `None` if it is not known
    /// exactly, for example after a retransmission.
    pub(crate) rtt: Option<Duration>,
    /// Delivery rate sample. Only present for algorithms with [`CongestionControl::IS_MODEL`], and
    /// if several transmissions were in flight.
    pub(crate) sample: Option<RateSample>,
    /// Estimated bytes in the network after this ACK (`pipe` of RFC 6675).
    pub(crate) in_flight: u32,
    /// SND.UNA and SND.NXT after this ACK was processed.
    pub(crate) snd_una: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    /// Whether the congestion window was fully used in the last round trip.
    pub(crate) limited: bool,
    /// Whether recovery from a loss detected by ACKs is in progress.
    pub(crate) in_recovery: bool,
    /// Whether the connection is in slow start after a retransmission timeout.
    pub(crate) after_timeout: bool,
    /// Whether selective acknowledgements are in use, so that several losses in one round trip can
    /// be detected.
    pub(crate) sack: bool,
}
