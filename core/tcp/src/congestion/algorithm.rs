//! Interface of a congestion control algorithm, and the facts that it receives.

use super::window::CongestionWindow;
use crate::flight::RateSample;
use crate::time::Instant;
use core::num::NonZeroU64;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// A congestion control algorithm: growth and reduction of a congestion window.
pub(super) trait CongestionControl {
    /// Whether the algorithm derives its window from a model of the path. The algorithm then
    /// decides alone how the window reacts to losses and idle periods.
    const IS_MODEL: bool = false;

    /// Initializes the state, when the handshake is complete or the program selects the algorithm.
    fn on_start(&mut self, _window: &mut CongestionWindow, _start: &CongestionStart) {}

    /// Handles a transmission with nothing in flight.
    fn on_idle_sent(&mut self, _window: &mut CongestionWindow, _idle: &IdlePeriod) {}

    /// Handles a reduction of the window after a long idle period.
    fn on_restart(&mut self) {}

    /// Updates the window after an ACK.
    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked);

    /// Returns the slow-start threshold after a loss, with `flight` bytes in flight.
    fn on_loss(&mut self, window: &CongestionWindow, flight: u32) -> u32;

    /// Returns the slow-start threshold after the peer reported packets marked with CE.
    fn on_ecn(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
        self.on_loss(window, flight)
    }

    /// Handles the expiry of the retransmission timer.
    fn on_timeout(&mut self, _window: &CongestionWindow) {}

    /// Handles a loss that turned out to be spurious. Window and threshold are restored already.
    fn on_undo(&mut self, _window: &mut CongestionWindow) {
        self.on_restart();
    }

    /// Returns the values of the algorithm that programs can read (TCP_CC_INFO).
    fn info(&self) -> CongestionInfo {
        CongestionInfo::None
    }

    /// Whether the algorithm drains the path on purpose, so that delivery rates are too low.
    fn is_probing_rtt(&self) -> bool {
        false
    }

    /// Returns the rate in payload bytes per second, if the algorithm paces.
    fn pacing_rate(&self) -> Option<NonZeroU64> {
        None
    }
}

/// Values of a congestion control algorithm that programs can read (TCP_CC_INFO).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CongestionInfo {
    /// The algorithm has no values of its own.
    #[default]
    None,
    /// Linux's `struct tcpvegas_info`.
    Vegas {
        /// Whether the queue is being measured, because nothing was lost recently.
        is_enabled: bool,
        /// Samples in the current round trip.
        samples: u32,
        /// Minimum round-trip time of the connection; `None` before the first measurement.
        base_rtt: Option<Duration>,
        /// Minimum of the current round trip.
        min_rtt: Option<Duration>,
    },
    /// Linux's `struct tcp_dctcp_info`.
    Dctcp {
        /// Estimated fraction of marked bytes, in 1/1024.
        alpha: u32,
        /// Marked bytes in the current observation window.
        bytes_marked: u32,
        /// Acknowledged bytes in the current observation window.
        bytes_acked: u32,
    },
    /// Linux's `struct tcp_bbr_info`.
    Bbr {
        /// Estimated bandwidth in bytes per second.
        bandwidth: u64,
        /// Minimum round-trip time; `None` before the first measurement.
        min_rtt: Option<Duration>,
        /// Pacing rate relative to the bandwidth, in percent.
        pacing_gain_percent: u32,
        /// Window relative to the bandwidth-delay product, in percent.
        cwnd_gain_percent: u32,
    },
}

/// State of a connection whose algorithm starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CongestionStart {
    pub(crate) mss: u32,
    /// Smoothed round-trip time; `None` before the first measurement.
    pub(crate) srtt: Option<Duration>,
}

/// A period with nothing in flight, which ends with a transmission.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdlePeriod {
    pub(crate) now: Instant,
    pub(crate) length: Duration,
    /// Whether the program had nothing to send.
    pub(crate) is_app_limited: bool,
}

/// An ACK, and its context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    pub(crate) now: Instant,
    /// Payload bytes that the ACK acknowledges cumulatively.
    pub(crate) bytes: u32,
    /// Bytes newly acknowledged, cumulatively or selectively.
    pub(crate) delivered: u32,
    /// Delivered bytes that the peer reported as marked with CE.
    pub(crate) marked: u32,
    pub(crate) mss: u32,
    pub(crate) srtt: Duration,
    /// Round-trip time of the newest bytes that this ACK acknowledges; `None` if ambiguous.
    pub(crate) rtt: Option<Duration>,
    /// Delivery rate sample; only for algorithms with [`CongestionControl::IS_MODEL`], and for
    /// flights of several transmissions.
    pub(crate) sample: Option<RateSample>,
    /// Bytes in the network after this ACK (RFC 6675 `pipe`).
    pub(crate) in_flight: u32,
    /// SND.UNA and SND.NXT after this ACK.
    pub(crate) snd_una: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    /// Whether the congestion window was fully used in the last round trip.
    pub(crate) limited: bool,
    /// Whether recovery from a loss detected by ACKs is in progress.
    pub(crate) in_recovery: bool,
    /// Whether this is slow start after a timeout.
    pub(crate) after_timeout: bool,
    /// Whether several losses in a round trip can be detected (selective acknowledgements).
    pub(crate) sack: bool,
}
