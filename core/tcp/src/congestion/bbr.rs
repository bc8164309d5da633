//! BBR version 3 (draft-ietf-ccwg-bbr-06): sets congestion window and pacing rate by a model of the
//! path's bandwidth and round-trip time. Names are those of the BBR draft's pseudocode, for
//! comparison.
//!
//! ```text
//!   Startup → Drain → Down → Cruise → Refill → Up ─┐        ProbeRtt interrupts any state
//!                      ↑                           │        when the minimum round-trip time
//!                      └───────────────────────────┘        has not been seen for 5 s
//! ```
//!
//! Module `state` has the state machine, and `path` the estimators. The reaction to ECN marks is
//! not implemented, because the draft leaves it to other documents.

mod path;
mod state;
#[cfg(test)]
mod tests;

use self::path::{LossRound, PathModel, RoundCount};
use self::state::{BbrProbe, BbrState};
use super::algorithm::{Acked, CongestionControl, CongestionInfo, CongestionStart, IdlePeriod};
use super::window::CongestionWindow;
use crate::flight::RateSample;
use crate::time::Instant;
use core::num::NonZeroU64;
use core::time::Duration;

/// BBR.PacingMarginPercent of the BBR draft: the pacing rate is this percentage below the
/// bandwidth, to keep queues short.
const PACING_MARGIN_PERCENT: u64 = 1;
/// BBR.Beta of the BBR draft, in percent: factor by which the long-term bound on bytes in flight is
/// reduced after too many losses.
const BETA_PERCENT: u64 = 70;
/// BBR.LossThresh of the BBR draft, in percent: maximum loss rate that is tolerated while probing
/// for bandwidth.
const LOSS_THRESH_PERCENT: u64 = 2;
/// BBRStartupFullLossCnt of the BBR draft: number of ACKs revealing losses in a round trip that can
/// end Startup.
const STARTUP_FULL_LOSS_COUNT: u8 = 6;
/// BBR.MinPipeCwnd of the BBR draft: minimum congestion window in segments.
const MIN_PIPE_CWND: u64 = 4;
/// Value of an upper bound on bandwidth or bytes in flight that is not known yet.
const INFINITE: u64 = u64::MAX;

/// State of the BBR algorithm. Boxed, because it is larger than the states of all other algorithms
/// together.
#[derive(Debug, Default)]
pub(super) struct Bbr(Box<BbrModel>);

/// Model of the path, and the control values derived from it.
#[derive(Debug, Default)]
struct BbrModel {
    state: BbrState,
    path: PathModel,
    rounds: RoundCount,
    loss: LossRound,
    probe: BbrProbe,
    /// C.pacing_rate of the BBR draft in bytes per second; 0 before the algorithm starts.
    pacing_rate: u64,
    /// C.InitialCwnd of the BBR draft: initial congestion window in bytes.
    initial_cwnd: u32,
    /// BBR.prior_cwnd of the BBR draft: last congestion window in bytes before losses or the
    /// ProbeRTT state reduced it.
    prior_cwnd: u32,
    mss: u32,
    /// Whether the initial pacing rate was computed from a measured round-trip time.
    has_rtt: bool,
    /// Whether loss recovery or a retransmission timeout currently limits the congestion window.
    in_loss_recovery: bool,
    idle_restart: bool,
}

/// Data of the ACK being processed, with its delivery rate sample.
#[derive(Debug, Clone, Copy)]
struct AckSample<'a> {
    acked: &'a Acked,
    rs: RateSample,
}

impl CongestionControl for Bbr {
    const IS_MODEL: bool = true;

    fn on_start(&mut self, window: &mut CongestionWindow, start: &CongestionStart) {
        let model = &mut self.0;
        (model.initial_cwnd, model.mss) = (window.cwnd, start.mss);
        model.init_pacing_rate(start.srtt);
    }

    fn on_idle_sent(&mut self, window: &mut CongestionWindow, idle: &IdlePeriod) {
        if idle.is_app_limited {
            self.0.restart_from_idle(window, idle.now);
        }
    }

    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked) {
        let model = &mut self.0;
        model.mss = acked.mss;
        if !model.has_rtt && !acked.srtt.is_zero() {
            model.init_pacing_rate(Some(acked.srtt));
        }
        if let Some(rs) = acked.sample {
            model.on_sample(window, AckSample { acked, rs });
        }
        let in_loss_recovery = acked.in_recovery || acked.after_timeout;
        if model.in_loss_recovery && !in_loss_recovery {
            model.restore_cwnd(window);
            model.bound_cwnd_for_model(window);
        }
        model.in_loss_recovery = in_loss_recovery;
    }

    /// Saves the congestion window at the start of recovery. The model itself reacts to lost bytes
    /// with later ACKs, so the slow-start threshold is unchanged.
    fn on_loss(&mut self, window: &CongestionWindow, _flight: u32) -> u32 {
        self.0.save_cwnd(window);
        window.ssthresh
    }

    fn on_ecn(&mut self, window: &CongestionWindow, _flight: u32) -> u32 {
        window.ssthresh
    }

    fn on_timeout(&mut self, window: &CongestionWindow) {
        self.0.save_cwnd(window);
        self.0.save_state_upon_loss();
        self.0.in_loss_recovery = true;
    }

    fn on_undo(&mut self, window: &mut CongestionWindow) {
        self.0.on_spurious_loss(window);
    }

    fn pacing_rate(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.pacing_rate)
    }

    fn info(&self) -> CongestionInfo {
        let model = &self.0;
        CongestionInfo::Bbr {
            bandwidth: model.path.bw,
            min_rtt: model.path.min_rtt(),
            pacing_gain_percent: model.state.pacing_gain_percent() as u32,
            cwnd_gain_percent: model.state.cwnd_gain_percent() as u32,
        }
    }

    fn is_probing_rtt(&self) -> bool {
        self.0.state == BbrState::ProbeRtt
    }
}

impl BbrModel {
    /// Sets the initial pacing rate from the smoothed round-trip time: InitPacingRate() of the BBR
    /// draft.
    fn init_pacing_rate(&mut self, srtt: Option<Duration>) {
        self.has_rtt = srtt.is_some();
        let srtt = srtt.unwrap_or(Duration::from_millis(1)).max(Duration::from_micros(1));
        let nominal = u64::from(self.initial_cwnd) * 1_000_000 / srtt.as_micros() as u64;
        self.pacing_rate = (BbrState::Startup.pacing_gain_percent() * nominal / 100).max(1);
        if self.has_rtt {
            self.path.begin_min_rtt(srtt);
        }
    }

    /// Updates model and control values for an ACK: UpdateOnACK() of the BBR draft.
    fn on_sample(&mut self, window: &mut CongestionWindow, ack: AckSample<'_>) {
        self.path.begin(ack.acked.now);
        self.probe.seed = ack.acked.snd_nxt.0;
        if ack.rs.newly_lost > 0 {
            self.on_lost(window, ack);
        }
        self.loss.update_latest(&ack.rs);
        self.update_congestion_signals(window, &ack.rs);
        let is_full = self.path.full.is_reached;
        self.path.update_aggregation(ack.acked, window.cwnd, self.rounds.count, is_full);
        self.path.full.check(&ack.rs, self.rounds.is_start);
        self.check_startup_done(ack);
        self.check_drain_done(ack.acked);
        self.update_cycle_phase(window, ack);
        self.path.update_min_rtt(ack.acked);
        self.check_probe_rtt(window, ack);
        self.loss.advance_latest(&ack.rs);
        self.path.bw = self.path.max_bw().min(self.path.bw_shortterm);
        self.set_pacing_rate(self.state.pacing_gain_percent());
        self.set_cwnd(window, ack);
    }

    /// Updates the estimates of bandwidth and congestion: UpdateCongestionSignals() of the BBR
    /// draft.
    fn update_congestion_signals(&mut self, window: &CongestionWindow, rs: &RateSample) {
        self.rounds.update(rs);
        if self.rounds.is_start {
            self.probe.rounds_since_up = self.probe.rounds_since_up.saturating_add(1);
        }
        self.path.update_max_bw(rs);
        if !self.loss.is_start {
            return;
        }
        if !self.state.is_probing_bw() && self.loss.is_in_round {
            self.path.reduce_shortterm(&self.loss, window.cwnd);
        }
        self.loss.is_in_round = false;
    }

    /// Handles the bytes marked as lost since the last sample: HandleLostPacket() of the BBR draft.
    /// We use the sample's bytes in flight, because the lost bytes were sent shortly before the
    /// acknowledged ones.
    fn on_lost(&mut self, window: &mut CongestionWindow, ack: AckSample<'_>) {
        if !self.loss.is_in_round {
            self.loss.round_delivered = ack.rs.total_delivered;
            self.save_cwnd(window);
            self.save_state_upon_loss();
        }
        self.loss.is_in_round = true;
        self.loss.events = self.loss.events.saturating_add(1);
        if !self.probe.is_bw_sample || !is_inflight_too_high(ack) {
            return;
        }
        let in_flight = inflight_at_loss(ack);
        self.on_inflight_too_high(window, ack, in_flight);
    }

    /// Reduces the long-term bound on bytes in flight after too many losses:
    /// HandleInflightTooHigh() of the BBR draft.
    fn on_inflight_too_high(
        &mut self,
        window: &CongestionWindow,
        ack: AckSample<'_>,
        in_flight: u64,
    ) {
        self.probe.prev_too_high = true;
        self.probe.is_bw_sample = false;
        if !ack.rs.is_app_limited {
            let least = self.target_inflight(window) * BETA_PERCENT / 100;
            self.path.inflight_longterm = in_flight.max(least);
        }
        if self.state == BbrState::Up {
            self.probe.undo_state = Some(BbrState::Up);
            self.start_down(ack.acked.now);
        }
    }

    /// Returns the bytes in flight to aim for, at most the congestion window: TargetInflight() of
    /// the BBR draft.
    fn target_inflight(&self, window: &CongestionWindow) -> u64 {
        self.path.bdp(100).min(window.cwnd.into())
    }

    /// Sets the pacing rate to a percentage of the bandwidth: SetPacingRateWithGain() of the BBR
    /// draft.
    fn set_pacing_rate(&mut self, gain_percent: u64) {
        let rate = u128::from(gain_percent) * u128::from(self.path.bw);
        let rate = rate * u128::from(100 - PACING_MARGIN_PERCENT) / 10_000;
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if rate > 0 && (self.path.full.is_reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// Returns the maximum burst in bytes: SetSendQuantum() of the BBR draft. `Pacer` limits bursts
    /// in the same way.
    fn send_quantum(&self) -> u64 {
        (self.pacing_rate / 1000).min(64 << 10).max(2 * u64::from(self.mss))
    }

    /// Increases a number of bytes in flight to allow for bursts: QuantizationBudget() of the BBR
    /// draft.
    fn quantization_budget(&self, inflight: u64) -> u64 {
        let inflight = inflight.max(3 * self.send_quantum()).max(self.min_pipe_cwnd());
        if self.state == BbrState::Up { inflight + 2 * u64::from(self.mss) } else { inflight }
    }

    fn min_pipe_cwnd(&self) -> u64 {
        MIN_PIPE_CWND * u64::from(self.mss)
    }

    /// Returns a percentage of the bandwidth-delay product in bytes: BDPMultiple() of the BBR
    /// draft.
    fn bdp_multiple(&self, gain_percent: u64) -> u64 {
        match self.path.min_rtt() {
            None => self.initial_cwnd.into(),
            Some(_) => self.path.bdp(gain_percent),
        }
    }

    /// Returns a percentage of the bandwidth-delay product plus an allowance for bursts, in bytes:
    /// Inflight() of the BBR draft.
    fn inflight(&self, gain_percent: u64) -> u64 {
        self.quantization_budget(self.bdp_multiple(gain_percent))
    }

    /// Returns the long-term bound on bytes in flight, less some headroom for other flows:
    /// InflightWithHeadroom() of the BBR draft.
    fn inflight_with_headroom(&self) -> u64 {
        let longterm = self.path.inflight_longterm;
        if longterm == INFINITE {
            return INFINITE;
        }
        // BBR.Headroom of the BBR draft is 0.15.
        let headroom = (longterm * 15 / 100).max(self.mss.into());
        longterm.saturating_sub(headroom).max(self.min_pipe_cwnd())
    }

    /// Sets the congestion window after an ACK: SetCwnd() of the BBR draft.
    fn set_cwnd(&mut self, window: &mut CongestionWindow, ack: AckSample<'_>) {
        let gain = self.state.cwnd_gain_percent();
        let max_inflight =
            self.quantization_budget(self.bdp_multiple(gain) + self.path.extra_acked());
        let mut cwnd = u64::from(window.cwnd);
        if self.path.full.is_reached {
            cwnd = (cwnd + u64::from(ack.acked.delivered)).min(max_inflight);
        } else if cwnd < max_inflight || ack.rs.total_delivered < self.initial_cwnd.into() {
            cwnd += u64::from(ack.acked.delivered);
        }
        cwnd = cwnd.max(self.min_pipe_cwnd());
        if self.state == BbrState::ProbeRtt {
            cwnd = cwnd.min(self.probe_rtt_cwnd());
        }
        window.set(u32::try_from(cwnd).unwrap_or(u32::MAX));
        self.bound_cwnd_for_model(window);
    }

    /// Limits the congestion window to the bounds of the model: BoundCwndForModel() of the BBR
    /// draft.
    fn bound_cwnd_for_model(&self, window: &mut CongestionWindow) {
        let cap = match self.state {
            BbrState::Down | BbrState::Refill | BbrState::Up => self.path.inflight_longterm,
            BbrState::Cruise | BbrState::ProbeRtt => self.inflight_with_headroom(),
            BbrState::Startup | BbrState::Drain => INFINITE,
        };
        let cap = cap.min(self.path.inflight_shortterm).max(self.min_pipe_cwnd());
        window.set(u64::from(window.cwnd).min(cap) as u32);
    }

    /// Saves the congestion window before it is reduced: SaveCwnd() of the BBR draft.
    fn save_cwnd(&mut self, window: &CongestionWindow) {
        let is_modulated = self.in_loss_recovery || self.state == BbrState::ProbeRtt;
        let floor = if is_modulated { self.prior_cwnd } else { 0 };
        self.prior_cwnd = window.cwnd.max(floor);
    }

    /// Restores the saved congestion window if it is larger: RestoreCwnd() of the BBR draft.
    fn restore_cwnd(&self, window: &mut CongestionWindow) {
        window.set(window.cwnd.max(self.prior_cwnd));
    }

    /// Saves the model when a loss is detected: SaveStateUponLoss() of the BBR draft, except that
    /// the congestion window is saved elsewhere.
    fn save_state_upon_loss(&mut self) {
        self.probe.undo_state = None;
        self.path.save();
    }

    /// Restores the saved state after a spurious loss: HandleSpuriousLossDetection() of the BBR
    /// draft.
    fn on_spurious_loss(&mut self, window: &mut CongestionWindow) {
        self.restore_cwnd(window);
        self.loss.is_in_round = false;
        self.path.full.reset(0);
        self.path.restore();
        match self.probe.undo_state.take() {
            Some(BbrState::Startup) if self.state != BbrState::Startup => {
                self.path.full.is_reached = false;
                if self.state != BbrState::ProbeRtt {
                    self.state = BbrState::Startup;
                }
            }
            Some(BbrState::Up)
                if self.state != BbrState::Up && self.state != BbrState::ProbeRtt =>
            {
                let delivered = self.rounds.delivered;
                self.start_refill(delivered);
            }
            _ => {}
        }
    }

    /// Handles the first transmission after an idle period: HandleRestartFromIdle() of the BBR
    /// draft.
    fn restart_from_idle(&mut self, window: &mut CongestionWindow, now: Instant) {
        self.idle_restart = true;
        self.path.restart_aggregation(now);
        if self.state.is_probe_bw() {
            self.set_pacing_rate(100);
        } else if self.state == BbrState::ProbeRtt {
            self.check_probe_rtt_done(window, now);
        }
    }
}

/// Returns whether too many of the bytes in flight were lost: IsInflightTooHigh() of the BBR draft,
/// but only if more than one segment was lost.
///
/// In the draft, a single lost segment suffices if fewer than 50 segments are in flight, because it
/// exceeds BBR.LossThresh. On short paths, each probe with a random loss would then lower
/// `inflight_longterm`. The headroom below that bound would leave bandwidth unused until the next
/// probe.
fn is_inflight_too_high(ack: AckSample<'_>) -> bool {
    let lost = u64::from(ack.rs.lost);
    let limit = u64::from(ack.rs.in_flight) * LOSS_THRESH_PERCENT / 100;
    lost > limit.max(ack.acked.mss.into()) || lost > 0 && !ack.acked.sack
}

/// Returns the bytes in flight at which the loss rate crossed BBR.LossThresh: InflightAtLoss() of
/// the BBR draft.
fn inflight_at_loss(ack: AckSample<'_>) -> u64 {
    let lost = ack.rs.newly_lost.min(ack.rs.lost);
    let inflight_prev = u64::from(ack.rs.in_flight.saturating_sub(lost));
    let lost_prev = u64::from(ack.rs.lost - lost);
    let budget = (LOSS_THRESH_PERCENT * inflight_prev).saturating_sub(100 * lost_prev);
    inflight_prev + budget / (100 - LOSS_THRESH_PERCENT)
}
