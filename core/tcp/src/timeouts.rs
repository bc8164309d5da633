//! Timers of a connection (RFC 9293 §3.10.8): the next deadline, and the handling of expired ones.

use crate::config::SYN_LINEAR_TIMEOUTS;
use crate::connection::{Connection, LastReset};
use crate::event::pending;
use crate::receive_space::WhenRead;
use crate::recovery::Phase;
use crate::state::State;
use crate::time::Instant;
use crate::timers::TimerKind;
use crate::watch::{PeerWatch, Silence};
use core::time::Duration;

impl Connection {
    /// Returns the earliest deadline, or [`Instant::FAR`] if no timer runs.
    #[inline]
    pub fn next_deadline(&self) -> Instant {
        let timers = &self.timers;
        let next = timers.probe().min(timers.retransmit).min(timers.delayed_ack).min(timers.hold);
        let next = next.min(self.recovery.reorder_deadline()).min(self.pacing_deadline());
        match &self.watch {
            Some(watch) => next.min(watch.keepalive).min(self.user_deadline()),
            None => next,
        }
    }

    /// Returns the earliest deadline and its timer; `None` if no timer runs.
    pub fn next_timeout(&self) -> Option<(Instant, TimerKind)> {
        let next = self.next_deadline();
        let timers = &self.timers;
        let retransmit = if timers.persisting { TimerKind::Persist } else { TimerKind::Retransmit };
        let hold = match self.state {
            State::FinWait2 => TimerKind::FinWait2,
            _ => TimerKind::Cork,
        };
        let keepalive = self.watch.as_ref().map_or(Instant::FAR, |watch| watch.keepalive);
        let all = [
            // If a tail loss probe and a retransmission timeout are due at the same time, the probe
            // comes first and replaces the timeout.
            (timers.probe(), TimerKind::TailLossProbe),
            (timers.retransmit, retransmit),
            (timers.delayed_ack, TimerKind::DelayedAck),
            (timers.hold, hold),
            (self.recovery.reorder_deadline(), TimerKind::Reordering),
            (self.pacing_deadline(), TimerKind::Pacing),
            (keepalive, TimerKind::KeepAlive),
            (self.user_deadline(), TimerKind::UserTimeout),
        ];
        all.into_iter().find(|(at, _)| *at == next && next != Instant::FAR)
    }

    /// Handles all timers that expired until `due`, which must not be after `now`. Call `plan`
    /// afterwards. A caller that is late should advance `due` in steps, so that it can process the
    /// peer's answer to one step before the next step.
    pub fn on_timeout(&mut self, due: Instant, now: Instant) {
        if self.timers.delayed_ack <= due {
            self.timers.delayed_ack = Instant::FAR;
            self.owed.ack = true;
            // The program did not send data in time to carry the ACK. Do not expect it the next
            // time.
            self.rcv.when_read = WhenRead::Nothing;
        }
        if self.pacing_deadline() <= due {
            self.fire_pacing();
        }
        let held = self.timers.hold <= due;
        if held && self.state != State::FinWait2 {
            self.timers.hold = Instant::FAR;
            self.owed.cork_flush = true;
        }
        if self.user_deadline() <= due {
            return self.give_up();
        }
        if self.recovery.reorder_deadline() <= due {
            self.on_reordering_timeout(now);
        }
        if self.timers.probe() <= due {
            self.on_probe_timeout();
            if self.recovery.is_probe_due() {
                self.timers.retransmit = now + self.rtt.rto();
            }
        }
        if self.timers.retransmit <= due {
            match (self.timers.persisting, self.state) {
                (true, _) => self.on_persist_timeout(),
                (false, State::SynSent | State::SynReceived) => self.on_syn_timeout(now),
                (false, _) => self.on_retransmit_timeout(now),
            }
        }
        if self.watch.as_ref().is_some_and(|watch| watch.keepalive <= due) {
            self.on_keepalive_timeout(now);
        }
        if held && self.state == State::FinWait2 {
            self.enter_closed();
        }
    }

    /// Ends the connection because the peer does not answer (RFC 9293 §3.8.3, R2).
    pub(crate) fn give_up(&mut self) {
        let reason =
            if self.timers.unreachable { pending::UNREACHABLE } else { pending::TIMED_OUT };
        self.enter_closed();
        self.raise(reason);
    }

    fn on_syn_timeout(&mut self, now: Instant) {
        let linear = if self.state == State::SynSent { SYN_LINEAR_TIMEOUTS } else { 0 };
        if self.are_syns_exhausted(linear) {
            return self.give_up();
        }
        self.timers.retransmits += 1;
        //= https://www.rfc-editor.org/rfc/rfc6298#section-5
        //= type=exception
        //= reason=The first SYNs are repeated at the initial timeout, as by Linux: a listener that had no place is asked again soon, and a SYN is small. From then on the timeout doubles.
        //# (5.5) The host MUST set RTO <- RTO * 2 ("back off the timer").
        if self.timers.retransmits > linear {
            self.rtt.back_off();
        }
        self.owed.syn = true;
        let rare = self.counters.rare_mut();
        rare.retransmitted = rare.retransmitted.wrapping_add(1);
        self.timers.retransmit = now + self.rtt.rto();
    }

    /// Returns whether the SYN was retransmitted often enough, or for long enough. As on Linux,
    /// retransmissions at the initial timeout add to the number of retries. The time limit is that
    /// of retries with exponential backoff only: 2^(retries + 1) - 1 initial timeouts.
    fn are_syns_exhausted(&self, linear: u8) -> bool {
        let (sent, retries) = (u32::from(self.timers.retransmits), self.settings.syn_retries);
        let timeouts = |doublings: u32| 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let linear = u32::from(linear);
        let spent = match sent.checked_sub(linear) {
            Some(doubled) if linear > 0 => {
                timeouts(doubled + 1).saturating_add(u64::from(linear) - 1)
            }
            _ => u64::from(sent) + 1,
        };
        let limit = timeouts(u32::from(retries) + 1) - 1;
        sent >= u32::from(retries) + linear || (linear > 0 && spent >= limit)
    }

    fn on_retransmit_timeout(&mut self, now: Instant) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# SHOULD NOT time out the connection if data beyond the right window edge is not acknowledged
        //# (SHLD-17).
        // As on Linux, do not give up a peer that keeps its window closed but answers. The
        // exception ends when the program closes the socket. Otherwise peers could keep closed
        // connections for ever.
        let shut = !self.orphaned
            && self.snd.wnd == 0
            && self.timers.last_recv + self.rtt.rto() * 2 >= now;
        //= https://www.rfc-editor.org/rfc/rfc5681#section-4.3
        //# When a TCP sender detects segment loss using the retransmission timer and the given
        //# segment has already been retransmitted by way of the retransmission timer at least once,
        //# the value of ssthresh is held constant.
        // Reduce ssthresh again if the peer has acknowledged bytes since the last timeout, as Linux
        // does: a different segment was lost. If the peer reported the loss of the retransmission
        // in between, fast recovery has begun already.
        let phase = self.recovery.phase;
        let again =
            phase == Phase::Loss && shut || phase.is_repairing() && self.timers.retransmits > 0;
        if !shut {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
            //# The following procedure MUST be used to handle excessive retransmissions of data
            //# segments (MUST-20):
            if self.timers.retransmits >= self.retries() {
                return self.give_up();
            }
            self.timers.retransmits += 1;
        }
        self.note_reduced();
        let fruitless = shut || self.timers.retransmits > 1;
        self.lose_by_timeout(now, again, fruitless);
        self.timers.cancel_probe();
        self.rtt.stop_timing();
        //= https://www.rfc-editor.org/rfc/rfc6298#section-5
        //# (5.5) The host MUST set RTO <- RTO * 2 ("back off the timer").
        self.rtt.back_off();
        self.timers.retransmit = now + self.rtt.rto();
    }

    fn on_persist_timeout(&mut self) {
        // RFC 9293's MUST-37 keeps a connection as long as its peer answers window probes. We
        // follow this rule only until the program closes the socket. Otherwise peers could keep
        // closed connections for ever. Linux keeps a closed connection while probes are less than
        // TCP_RTO_MAX apart (`tcp_probe_timer`). With a timeout of 200 ms that takes 205 s, plus
        // 120 s until the next probe expires.
        let next = self.rtt.rto_after(self.timers.persist_backoff.saturating_add(1));
        let held = self.orphaned && next >= self.rtt.rto_max();
        if held || self.timers.window_probes >= self.retries() {
            return self.give_up();
        }
        // When `emit` sends the probe, it sets the next deadline.
        self.timers.retransmit = Instant::FAR;
        self.owed.window_probe = true;
    }

    pub(crate) fn arm_fin_wait2(&mut self, now: Instant) {
        self.timers.hold = now.after_millis(self.settings.fin_wait2_ms);
    }

    /// Starts the retransmission timer unless it runs already.
    //= https://www.rfc-editor.org/rfc/rfc6298#section-5
    //# Every time a packet containing data is sent (including a retransmission), if the timer is
    //# not running, start it running so that it will expire after RTO seconds
    pub(crate) fn arm_retransmit_if_idle(&mut self, now: Instant) {
        // In CLOSED, bytes sent before a RST are not retransmitted.
        if self.state == State::Closed {
            return;
        }
        if self.timers.retransmit == Instant::FAR || self.timers.persisting {
            self.timers.persisting = false;
            self.timers.retransmit = self.rtt.rto_at(now);
        }
    }

    /// Starts or stops the persist timer for probes of a closed window. The timer is needed while
    /// nothing is in flight, because no ACK will arrive that could announce a larger window.
    pub(crate) fn arm_persist(&mut self, now: Instant) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
        //# Probing of zero (offered) windows MUST be supported (MUST-36).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# If the window shrinks to zero, the TCP implementation MUST probe it in the standard way
        //# (described below) (MUST-35).
        let small = self.snd.wnd < self.mss().min(self.snd.max_wnd / 2).max(1);
        if self.snd.flight() == 0 && small {
            if self.timers.retransmit == Instant::FAR && !self.owed.window_probe {
                self.timers.persisting = true;
                self.timers.retransmit = now + self.persist_interval();
            }
            return;
        }
        if !small {
            self.timers.persist_backoff = 0;
            self.owed.window_probe = false;
        }
        if self.timers.persisting {
            self.timers.persisting = false;
            self.timers.retransmit = Instant::FAR;
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
    //# SHOULD send the first zero-window probe when a zero window has existed for the retransmission
    //# timeout period (SHLD-29) (Section 3.8.1), and SHOULD increase exponentially the interval between
    //# successive probes (SHLD-30).
    pub(crate) fn persist_interval(&self) -> Duration {
        self.rtt.rto_after(self.timers.persist_backoff)
    }

    /// Changes the keep-alive or user timeout settings. Allocates the state of these timers if
    /// needed, and frees the state if both are off.
    pub(crate) fn watch_peer(&mut self, change: impl FnOnce(&mut PeerWatch)) {
        let mut watch = self.watch.as_deref().copied().unwrap_or_else(|| {
            PeerWatch::new(self.counters.last_data_sent.max(self.timers.last_recv))
        });
        change(&mut watch);
        self.watch = watch.is_on().then(|| Box::new(watch));
    }

    /// Restarts the user timeout. Called when the peer acknowledged bytes, or sending resumed after
    /// a pause.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Instant) {
        if let Some(watch) = &mut self.watch {
            watch.note_progress(now);
        }
    }

    /// Records an acceptable segment of the peer, which clears the number of unanswered keep-alive
    /// probes.
    #[inline]
    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.timers.last_recv = now;
        if let Some(watch) = &mut self.watch {
            watch.note_heard();
        }
    }

    fn user_deadline(&self) -> Instant {
        let Some(watch) = &self.watch else { return Instant::FAR };
        // Answers to window probes do not extend the user timeout, as documented in Linux's tcp(7).
        // Only acknowledged bytes or a larger window do.
        let probing = self.timers.persist_backoff > 0;
        let waiting = self.snd.nxt != self.snd.una || probing;
        if !waiting || self.state == State::Closed {
            return Instant::FAR;
        }
        watch.user_deadline()
    }

    fn on_keepalive_timeout(&mut self, now: Instant) {
        let (idle, last_recv) = (self.snd.flight() == 0, self.timers.last_recv);
        let Some(watch) = &mut self.watch else { return };
        if !self.state.is_synchronized() {
            watch.keepalive = Instant::FAR;
            return;
        }
        match watch.on_keepalive_timeout(now, idle, last_recv) {
            Silence::Bearable => {}
            Silence::Probe => self.owed.keepalive = true,
            Silence::TooLong => {
                // As on Linux, send a RST to inform the peer, which may still be alive.
                self.give_up();
                self.owed.reset = LastReset::Now;
            }
        }
    }

    /// Restarts the keep-alive timer, if keep-alive is enabled.
    pub(crate) fn arm_keepalive(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        if self.state.is_synchronized() {
            watch.arm_keepalive(self.timers.last_recv);
        } else {
            watch.keepalive = Instant::FAR;
        }
    }
}
