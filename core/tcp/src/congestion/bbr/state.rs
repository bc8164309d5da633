//! State machine of BBR: when to speed up, to drain the queue, and to probe for the minimum
//! round-trip time.

use super::super::algorithm::Acked;
use super::super::window::CongestionWindow;
use super::{AckSample, BbrModel, INFINITE, STARTUP_FULL_LOSS_COUNT, is_inflight_too_high};
use crate::time::Instant;
use core::time::Duration;

/// BBR.ProbeRTTDuration of the BBR draft: minimum duration of a probe for the minimum round-trip
/// time.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// Maximum number of round trips in the Drain state.
const DRAIN_ROUNDS: u32 = 3;
/// Maximum number of round trips between two probes for bandwidth, so that competing flows of Reno
/// and CUBIC have time to grow.
const RENO_ROUNDS_MAX: u64 = 63;

/// BBR.state of the BBR draft. `Down`, `Cruise`, `Refill` and `Up` are the states of ProbeBW, which
/// probes for bandwidth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum BbrState {
    #[default]
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl BbrState {
    /// Returns BBR.pacing_gain of the BBR draft in percent: pacing rate relative to the estimated
    /// bandwidth.
    pub(super) fn pacing_gain_percent(self) -> u64 {
        match self {
            BbrState::Startup => 277,
            BbrState::Drain => 50,
            BbrState::Down => 90,
            BbrState::Up => 125,
            BbrState::Cruise | BbrState::Refill | BbrState::ProbeRtt => 100,
        }
    }

    /// Returns BBR.cwnd_gain of the BBR draft in percent: congestion window relative to the
    /// bandwidth-delay product.
    pub(super) fn cwnd_gain_percent(self) -> u64 {
        match self {
            BbrState::ProbeRtt => 50,
            BbrState::Up => 225,
            _ => 200,
        }
    }

    /// Returns whether this state raises the sending rate to find more bandwidth: IsProbingBW() of
    /// the BBR draft.
    pub(super) fn is_probing_bw(self) -> bool {
        matches!(self, BbrState::Startup | BbrState::Refill | BbrState::Up)
    }

    /// Returns whether this is one of the four ProbeBW states: IsInAProbeBWState() of the BBR
    /// draft.
    pub(super) fn is_probe_bw(self) -> bool {
        matches!(self, BbrState::Down | BbrState::Cruise | BbrState::Refill | BbrState::Up)
    }
}

/// BBR.ack_phase of the BBR draft: to which probe for bandwidth the arriving ACKs belong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AckPhase {
    #[default]
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// Progress of the probes for bandwidth and for the minimum round-trip time.
#[derive(Debug, Default)]
pub(super) struct BbrProbe {
    ack_phase: AckPhase,
    pub(super) is_bw_sample: bool,
    pub(super) prev_too_high: bool,
    is_prev_precautionary: bool,
    /// Bytes acknowledged since the bound `inflight_longterm` grew last, and bytes that must be
    /// acknowledged before it grows by a segment.
    up_acked: u64,
    up_acked_per_inc: u64,
    up_rounds: u32,
    pub(super) rounds_since_up: u32,
    /// Seed for the random time between two probes for bandwidth.
    pub(super) seed: u32,
    wait: Duration,
    cycle_stamp: Instant,
    drain_start_round: u32,
    /// BBR.probe_rtt_done_stamp of the BBR draft: end of the ProbeRTT state; `None` until few
    /// enough bytes are in flight.
    rtt_done: Option<Instant>,
    is_rtt_round_done: bool,
    pub(super) undo_state: Option<BbrState>,
}

impl BbrModel {
    /// Leaves Startup if the bandwidth no longer grows or losses are high: CheckStartupDone() and
    /// CheckStartupHighLoss() of the BBR draft.
    pub(super) fn check_startup_done(&mut self, ack: AckSample<'_>) {
        if self.state != BbrState::Startup {
            return;
        }
        let is_enough = !ack.acked.sack && self.loss.events > 0
            || self.loss.is_start && self.loss.events >= STARTUP_FULL_LOSS_COUNT;
        if ack.acked.in_recovery && is_enough && is_inflight_too_high(ack) {
            self.probe.undo_state = Some(BbrState::Startup);
            self.path.full.is_reached = true;
            self.path.inflight_longterm = self.path.bdp(100).max(self.loss.inflight_latest);
        }
        if self.path.full.is_reached {
            self.state = BbrState::Drain;
            self.probe.drain_start_round = self.rounds.count;
        }
    }

    /// Leaves Drain when the queue is empty: CheckDrainDone() of the BBR draft.
    pub(super) fn check_drain_done(&mut self, acked: &Acked) {
        if self.state != BbrState::Drain {
            return;
        }
        let rounds = self.rounds.count.wrapping_sub(self.probe.drain_start_round);
        if u64::from(acked.in_flight) <= self.inflight(100) || rounds > DRAIN_ROUNDS {
            self.start_down(acked.now);
        }
    }

    /// Enters the ProbeBW state Down: StartProbeBW_DOWN() of the BBR draft.
    pub(super) fn start_down(&mut self, now: Instant) {
        self.loss.reset();
        self.probe.up_acked_per_inc = INFINITE;
        self.pick_probe_wait();
        self.probe.cycle_stamp = now;
        self.probe.ack_phase = AckPhase::ProbeStopping;
        self.rounds.start(self.rounds.delivered);
        self.state = BbrState::Down;
    }

    /// Chooses a random time until the next probe: PickProbeWait() of the BBR draft. Sequence
    /// numbers start at random values, so we use them as random numbers. Otherwise flows could
    /// probe at the same time.
    fn pick_probe_wait(&mut self) {
        let random = self.probe.seed.wrapping_mul(0x9e37_79b9) >> 8;
        self.probe.rounds_since_up = random & 1;
        self.probe.wait = Duration::from_millis(2000 + u64::from(random >> 1) % 1000);
    }

    /// Enters the ProbeBW state Refill: StartProbeBW_REFILL() of the BBR draft.
    pub(super) fn start_refill(&mut self, delivered: u64) {
        self.path.reset_shortterm();
        (self.probe.up_rounds, self.probe.up_acked) = (0, 0);
        self.probe.is_prev_precautionary = false;
        self.probe.ack_phase = AckPhase::Refilling;
        self.rounds.start(delivered);
        self.state = BbrState::Refill;
    }

    /// Enters the ProbeBW state Up: StartProbeBW_UP() of the BBR draft.
    fn start_up(&mut self, window: &CongestionWindow, ack: AckSample<'_>) {
        self.probe.ack_phase = AckPhase::ProbeStarting;
        self.rounds.start(ack.rs.total_delivered);
        self.path.full.reset(ack.rs.rate);
        self.state = BbrState::Up;
        self.raise_longterm_slope(window);
    }

    /// Moves through the ProbeBW states: UpdateProbeBWCyclePhase() of the BBR draft.
    pub(super) fn update_cycle_phase(&mut self, window: &CongestionWindow, ack: AckSample<'_>) {
        if !self.path.full.is_reached || self.adapt_longterm(window, ack) {
            return;
        }
        if self.state == BbrState::Up && self.is_time_to_go_down(window, ack) {
            self.probe.prev_too_high = false;
            return self.start_down(ack.acked.now);
        }
        match self.state {
            BbrState::Down | BbrState::Cruise if self.is_time_to_probe(window, ack.acked.now) => {
                self.start_refill(ack.rs.total_delivered);
            }
            BbrState::Down if self.is_time_to_cruise(ack.acked) => self.state = BbrState::Cruise,
            BbrState::Refill if self.rounds.is_start => {
                self.probe.is_bw_sample = true;
                self.start_up(window, ack);
            }
            _ => {}
        }
    }

    /// Returns whether a probe for bandwidth is due: IsTimeToProbeBW() and
    /// IsRenoCoexistenceProbeTime() of the BBR draft.
    fn is_time_to_probe(&self, window: &CongestionWindow, now: Instant) -> bool {
        let reno_rounds = self.target_inflight(window) / u64::from(self.mss);
        now > self.probe.cycle_stamp + self.probe.wait
            || u64::from(self.probe.rounds_since_up) >= reno_rounds.clamp(1, RENO_ROUNDS_MAX)
    }

    /// Returns whether to leave Down for Cruise: IsTimeToCruise() of the BBR draft.
    fn is_time_to_cruise(&self, acked: &Acked) -> bool {
        let in_flight = u64::from(acked.in_flight);
        in_flight <= self.inflight_with_headroom() && in_flight <= self.inflight(100)
    }

    /// Returns whether to leave Up for Down: IsTimeToGoDown() of the BBR draft.
    fn is_time_to_go_down(&mut self, window: &CongestionWindow, ack: AckSample<'_>) -> bool {
        let longterm = self.path.inflight_longterm;
        if self.probe.prev_too_high && u64::from(ack.acked.in_flight) >= longterm {
            self.probe.is_prev_precautionary = true;
            return true;
        }
        if ack.acked.limited && u64::from(window.cwnd) >= longterm {
            self.path.full.reset(ack.rs.rate);
            return false;
        }
        self.path.full.is_now
    }

    /// Doubles the growth of the long-term bound with each round trip in Up:
    /// RaiseInflightLongtermSlope() of the BBR draft.
    fn raise_longterm_slope(&mut self, window: &CongestionWindow) {
        let growth = 1u64 << self.probe.up_rounds;
        self.probe.up_rounds = (self.probe.up_rounds + 1).min(30);
        let per_inc = (u64::from(window.cwnd) / growth).max(self.mss.into());
        self.probe.up_acked_per_inc = per_inc;
    }

    /// Raises the long-term bound on bytes in flight while probing: ProbeInflightLongtermUpward()
    /// of the BBR draft.
    fn probe_longterm_upward(&mut self, window: &CongestionWindow, acked: &Acked) {
        if !acked.limited || u64::from(window.cwnd) < self.path.inflight_longterm {
            return;
        }
        self.probe.up_acked += u64::from(acked.delivered);
        let per_inc = self.probe.up_acked_per_inc.max(1);
        let delta = self.probe.up_acked / per_inc;
        self.probe.up_acked %= per_inc;
        self.path.inflight_longterm += delta * u64::from(self.mss);
        if self.rounds.is_start {
            self.raise_longterm_slope(window);
        }
    }

    /// Updates the long-term bounds from an ACK: AdaptLongTermModel() of the BBR draft. Returns
    /// true if it also entered the next state.
    fn adapt_longterm(&mut self, window: &CongestionWindow, ack: AckSample<'_>) -> bool {
        let is_probe_bw = self.state.is_probe_bw();
        match self.probe.ack_phase {
            AckPhase::ProbeStarting if self.rounds.is_start => {
                self.probe.ack_phase = AckPhase::ProbeFeedback;
            }
            AckPhase::ProbeStopping if self.rounds.is_start => {
                self.probe.is_bw_sample = false;
                self.probe.ack_phase = AckPhase::Init;
                if is_probe_bw && !ack.rs.is_app_limited {
                    self.path.advance_max_bw();
                }
                let is_safe = self.probe.is_prev_precautionary && !self.probe.prev_too_high;
                if is_probe_bw && is_safe {
                    self.start_refill(ack.rs.total_delivered);
                    return true;
                }
            }
            _ => {}
        }
        if !is_inflight_too_high(ack) && self.path.inflight_longterm != INFINITE {
            let longterm = self.path.inflight_longterm.max(ack.rs.in_flight.into());
            self.path.inflight_longterm = longterm;
            if self.state == BbrState::Up {
                self.probe_longterm_upward(window, ack.acked);
            }
        }
        false
    }

    /// Enters or leaves the ProbeRTT state if due: CheckProbeRTT() of the BBR draft.
    pub(super) fn check_probe_rtt(&mut self, window: &mut CongestionWindow, ack: AckSample<'_>) {
        let is_due = self.path.is_rtt_expired() && !self.idle_restart;
        if self.state != BbrState::ProbeRtt && is_due {
            self.save_cwnd(window);
            self.state = BbrState::ProbeRtt;
            self.probe.rtt_done = None;
            self.probe.ack_phase = AckPhase::ProbeStopping;
            self.rounds.start(ack.rs.total_delivered);
        }
        if self.state == BbrState::ProbeRtt {
            self.on_ack_in_probe_rtt(window, ack);
        }
        self.idle_restart &= ack.rs.delivered == 0;
    }

    /// Handles an ACK in the ProbeRTT state: HandleProbeRTT() of the BBR draft.
    fn on_ack_in_probe_rtt(&mut self, window: &mut CongestionWindow, ack: AckSample<'_>) {
        let acked = ack.acked;
        if self.probe.rtt_done.is_some() {
            self.probe.is_rtt_round_done |= self.rounds.is_start;
            if self.probe.is_rtt_round_done {
                self.check_probe_rtt_done(window, acked.now);
            }
        } else if u64::from(acked.in_flight) <= self.probe_rtt_cwnd() {
            self.probe.rtt_done = Some(acked.now + PROBE_RTT_DURATION);
            self.probe.is_rtt_round_done = false;
            self.rounds.start(ack.rs.total_delivered);
        }
    }

    /// Returns the congestion window in the ProbeRTT state: ProbeRTTCwnd() of the BBR draft.
    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp_multiple(BbrState::ProbeRtt.cwnd_gain_percent()).max(self.min_pipe_cwnd())
    }

    /// Leaves the ProbeRTT state when its time is over: CheckProbeRTTDone() and ExitProbeRTT() of
    /// the BBR draft.
    pub(super) fn check_probe_rtt_done(&mut self, window: &mut CongestionWindow, now: Instant) {
        if self.probe.rtt_done.is_none_or(|done| now <= done) {
            return;
        }
        self.path.schedule_probe_rtt(now);
        self.restore_cwnd(window);
        self.path.reset_shortterm();
        if !self.path.full.is_reached {
            self.state = BbrState::Startup;
            return;
        }
        // Skip Down, because ProbeRTT has already drained the queue.
        self.start_down(now);
        self.state = BbrState::Cruise;
    }
}
