//! What happens because nothing happened.

use crate::connection::{Connection, State, pending};
use crate::event::TimerKind;
use crate::recovery::Phase;
use crate::time::Instant;
use core::time::Duration;

/// Deadlines, and what they count. [`Instant::FAR`] is off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timers {
    /// Of retransmission, or with `persisting` of the next window probe: never both, since the latter
    /// runs only with nothing in flight.
    pub(crate) retransmit: Instant,
    pub(crate) delayed_ack: Instant,
    pub(crate) keepalive: Instant,
    pub(crate) fin_wait2: Instant,
    pub(crate) cork: Instant,
    /// When the oldest bytes in flight were sent, or the peer last acknowledged new ones.
    pub(crate) unacked_since: Instant,
    /// When the peer was last heard.
    pub(crate) last_recv: Instant,
    pub(crate) persisting: bool,
    /// A soft ICMP error came since the last progress.
    pub(crate) unreachable: bool,
    /// Timeouts in a row without progress.
    pub(crate) retransmits: u8,
    /// Window probes in a row without an answer.
    pub(crate) window_probes: u8,
    pub(crate) persist_backoff: u8,
    pub(crate) keepalive_probes: u8,
}

impl Timers {
    pub(crate) fn new(now: Instant) -> Timers {
        Timers {
            retransmit: Instant::FAR,
            delayed_ack: Instant::FAR,
            keepalive: Instant::FAR,
            fin_wait2: Instant::FAR,
            cork: Instant::FAR,
            unacked_since: now,
            last_recv: now,
            persisting: false,
            unreachable: false,
            retransmits: 0,
            window_probes: 0,
            persist_backoff: 0,
            keepalive_probes: 0,
        }
    }

    pub(crate) fn stop(&mut self) {
        let last_recv = self.last_recv;
        *self = Timers::new(last_recv);
    }
}

fn after(start: Instant, millis: u32) -> Instant {
    start + Duration::from_millis(u64::from(millis))
}

impl Connection {
    /// The earliest deadline and what it is for; `None` when nothing is waited for.
    pub fn next_timeout(&self) -> Option<(Instant, TimerKind)> {
        let timers = &self.timers;
        let retransmit = if timers.persisting { TimerKind::Persist } else { TimerKind::Retransmit };
        let mut earliest = (timers.retransmit, retransmit);
        let others = [
            (timers.delayed_ack, TimerKind::DelayedAck),
            (timers.cork, TimerKind::Cork),
            (timers.keepalive, TimerKind::KeepAlive),
            (timers.fin_wait2, TimerKind::FinWait2),
            (self.user_deadline(), TimerKind::UserTimeout),
        ];
        for timer in others {
            if timer.0 < earliest.0 {
                earliest = timer;
            }
        }
        (earliest.0 != Instant::FAR).then_some(earliest)
    }

    /// Does everything that is due at `now`; afterwards `plan` may have work.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.timers.delayed_ack <= now {
            self.timers.delayed_ack = Instant::FAR;
            self.owed.ack = true;
        }
        if self.timers.cork <= now {
            self.timers.cork = Instant::FAR;
            self.owed.cork_flush = true;
        }
        if self.user_deadline() <= now {
            return self.give_up();
        }
        if self.timers.retransmit <= now {
            match (self.timers.persisting, self.state) {
                (true, _) => self.on_persist_timeout(),
                (false, State::SynSent | State::SynReceived) => self.on_syn_timeout(now),
                (false, _) => self.on_retransmit_timeout(now),
            }
        }
        if self.timers.keepalive <= now {
            self.on_keepalive_timeout(now);
        }
        if self.timers.fin_wait2 <= now {
            self.enter_closed();
        }
    }

    fn user_deadline(&self) -> Instant {
        let waiting = self.snd_nxt != self.snd_una || self.timers.window_probes > 0;
        if self.settings.user_timeout_ms == 0 || !waiting || self.state == State::Closed {
            return Instant::FAR;
        }
        after(self.timers.unacked_since, self.settings.user_timeout_ms)
    }

    /// The peer does not answer any more (RFC 9293 §3.8.3, R2).
    fn give_up(&mut self) {
        let reason =
            if self.timers.unreachable { pending::UNREACHABLE } else { pending::TIMED_OUT };
        self.enter_closed();
        self.raise(reason);
    }

    fn on_syn_timeout(&mut self, now: Instant) {
        if self.timers.retransmits >= self.settings.syn_retries {
            return self.give_up();
        }
        self.timers.retransmits += 1;
        self.rtt.back_off();
        self.owed.syn = true;
        self.counters.retransmitted = self.counters.retransmitted.wrapping_add(1);
        self.timers.retransmit = now + self.rtt.rto();
    }

    fn on_retransmit_timeout(&mut self, now: Instant) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# SHOULD NOT time out the connection if data beyond the right window edge is not acknowledged
        //# (SHLD-17).
        let shut = self.snd_wnd == 0 && self.counters.last_ack_recv + self.rtt.rto() * 2 >= now;
        if !shut {
            if self.timers.retransmits >= self.retries() {
                return self.give_up();
            }
            self.timers.retransmits += 1;
        }
        let again = self.recovery.phase == Phase::Loss;
        let mss = self.mss();
        self.congestion.on_timeout(self.flight(), mss, again);
        let fruitless = shut || self.timers.retransmits > 1;
        self.recovery.enter_loss(self.snd_una, self.snd_nxt, fruitless);
        self.timed = None;
        //= https://www.rfc-editor.org/rfc/rfc6298#section-5
        //# (5.5) The host MUST set RTO <- RTO * 2 ("back off the timer").
        self.rtt.back_off();
        self.timers.retransmit = now + self.rtt.rto();
    }

    fn on_persist_timeout(&mut self) {
        // MUST-37 lets a program wait for ever, but a peer may not hold a connection that has none.
        let patience =
            if self.orphaned { self.timers.persist_backoff } else { self.timers.window_probes };
        if patience >= self.retries() {
            return self.give_up();
        }
        // The next deadline is set when the probe goes, which is when there is something to send.
        self.timers.retransmit = Instant::FAR;
        self.owed.window_probe = true;
    }

    fn on_keepalive_timeout(&mut self, now: Instant) {
        if self.settings.keepalive_idle_ms == 0 || !self.state.is_synchronized() {
            self.timers.keepalive = Instant::FAR;
            return;
        }
        let idle_until = after(self.timers.last_recv, self.settings.keepalive_idle_ms);
        if self.flight() > 0 || idle_until > now {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
            //# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or
            //# acknowledgment packets have been received for the connection within an interval (MUST-26).
            self.timers.keepalive = idle_until.max(after(now, self.settings.keepalive_interval_ms));
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
        //# if a keep-alive mechanism is implemented it MUST NOT interpret failure to respond to any
        //# specific probe as a dead connection (MUST-29).
        if self.timers.keepalive_probes >= self.settings.keepalive_probes {
            return self.give_up();
        }
        self.timers.keepalive_probes += 1;
        self.owed.keepalive = true;
        self.timers.keepalive = after(now, self.settings.keepalive_interval_ms);
    }

    /// (Re)starts the wait for silence.
    pub(crate) fn arm_keepalive(&mut self) {
        let on = self.settings.keepalive_idle_ms > 0 && self.state.is_synchronized();
        self.timers.keepalive = if on {
            after(self.timers.last_recv, self.settings.keepalive_idle_ms)
        } else {
            Instant::FAR
        };
    }

    pub(crate) fn arm_fin_wait2(&mut self, now: Instant) {
        self.timers.fin_wait2 = after(now, self.settings.fin_wait2_ms);
    }

    /// Something is in flight now; the timer runs from the first of it.
    pub(crate) fn arm_retransmit_if_idle(&mut self, now: Instant) {
        if self.timers.retransmit == Instant::FAR || self.timers.persisting {
            self.timers.persisting = false;
            self.timers.retransmit = now + self.rtt.rto();
        }
    }

    /// With nothing in flight no acknowledgement will come by itself: while the window is too small
    /// for a sensible segment, a timer has to ask.
    pub(crate) fn arm_persist(&mut self, now: Instant) {
        let small = self.snd_wnd < self.mss().min(self.max_snd_wnd / 2).max(1);
        if self.flight() == 0 && small {
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
}
