//! Supervision of the peer at the program's request: keep-alive and user timeout.
//!
//! Most connections use neither, so their state is boxed and exists only while one is enabled.

use crate::config::KeepAliveConfig;
use crate::time::{Instant, millis};
use core::time::Duration;

/// State of keep-alive and user timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerWatch {
    /// Deadline of the keep-alive timer; [`Instant::FAR`] if off.
    pub(crate) keepalive: Instant,
    /// Time at which the oldest bytes in flight were sent, or new ones were acknowledged, whichever
    /// is later.
    unacked_since: Instant,
    /// Keep-alive idle time in ms; 0 if keep-alive is disabled.
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
    /// User timeout in ms; 0 if disabled.
    user_timeout_ms: u32,
    probes_max: u8,
    /// Keep-alive probes without an answer so far.
    probes: u8,
}

/// Action when the keep-alive timer expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// No action yet, because the peer was heard recently or data is in flight.
    Bearable,
    /// Send a probe.
    Probe,
    /// Give up, because too many probes are unanswered.
    TooLong,
}

/// Converts to milliseconds, for settings in which zero means disabled; rounds values below one up.
fn millis_on(duration: Option<Duration>) -> u32 {
    duration.map_or(0, |duration| millis(duration).max(1))
}

impl PeerWatch {
    /// Creates the state with both features disabled.
    pub(crate) fn new(unacked_since: Instant) -> PeerWatch {
        PeerWatch {
            keepalive: Instant::FAR,
            unacked_since,
            keepalive_idle_ms: 0,
            keepalive_interval_ms: 0,
            user_timeout_ms: 0,
            probes_max: 0,
            probes: 0,
        }
    }

    pub(crate) fn set_keepalive(&mut self, keepalive: Option<KeepAliveConfig>) {
        self.keepalive_idle_ms = millis_on(keepalive.map(|keepalive| keepalive.idle));
        if let Some(KeepAliveConfig { idle: _, interval, probes }) = keepalive {
            self.keepalive_interval_ms = millis(interval).max(1);
            self.probes_max = probes;
        }
        self.probes = 0;
    }

    pub(crate) fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.user_timeout_ms = millis_on(timeout);
    }

    /// Whether keep-alive or the user timeout is enabled.
    pub(crate) fn is_on(&self) -> bool {
        self.keepalive_idle_ms > 0 || self.user_timeout_ms > 0
    }

    /// Restarts the user timeout.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.unacked_since = now;
    }

    /// Resets the probe count, because the peer was heard.
    #[inline]
    pub(crate) fn note_heard(&mut self) {
        self.probes = 0;
    }

    /// Returns the number of unanswered keep-alive probes.
    pub(crate) fn probes(&self) -> u8 {
        self.probes
    }

    /// Returns the deadline of the user timeout, for a connection that waits for an ACK.
    pub(crate) fn user_deadline(&self) -> Instant {
        match self.user_timeout_ms {
            0 => Instant::FAR,
            millis => self.unacked_since.after_millis(millis),
        }
    }

    /// Handles the keep-alive timer of a synchronized connection; `idle` means nothing in flight.
    pub(crate) fn on_keepalive_timeout(
        &mut self,
        now: Instant,
        idle: bool,
        last_recv: Instant,
    ) -> Silence {
        if self.keepalive_idle_ms == 0 {
            self.keepalive = Instant::FAR;
            return Silence::Bearable;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
        //# Implementers MAY include "keep-alives" in their TCP implementations (MAY-5), although
        //# this practice is not universally accepted.
        let idle_until = last_recv.after_millis(self.keepalive_idle_ms);
        if !idle || idle_until > now {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
            //# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or
            //# acknowledgment packets have been received for the connection within an interval (MUST-26).
            self.keepalive = idle_until.max(now.after_millis(self.keepalive_interval_ms));
            return Silence::Bearable;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
        //# if a keep-alive mechanism is implemented it MUST NOT interpret failure to respond to any
        //# specific probe as a dead connection (MUST-29).
        if self.probes >= self.probes_max {
            return Silence::TooLong;
        }
        self.probes += 1;
        self.keepalive = now.after_millis(self.keepalive_interval_ms);
        Silence::Probe
    }

    /// Restarts the keep-alive timer of a synchronized connection.
    pub(crate) fn arm_keepalive(&mut self, last_recv: Instant) {
        self.keepalive = match self.keepalive_idle_ms {
            0 => Instant::FAR,
            idle => last_recv.after_millis(idle),
        };
    }
}
