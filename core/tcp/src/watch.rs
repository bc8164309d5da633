//! Keep-alive and user timeout, by which a program can detect a dead peer.
//!
//! Most connections use neither. The state of both is boxed, and exists only while one of them is
//! enabled.

use crate::config::KeepAliveConfig;
use crate::time::{Instant, millis};
use core::time::Duration;

/// State of keep-alive and user timeout of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerWatch {
    /// Deadline of the keep-alive timer; [`Instant::FAR`] if it is off.
    pub(crate) keepalive: Instant,
    /// Time at which the oldest bytes in flight were sent, or at which the peer last acknowledged
    /// bytes, whichever is later.
    unacked_since: Instant,
    /// Time without a segment of the peer after which probes begin, in milliseconds; 0 if
    /// keep-alive is disabled.
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
    /// User timeout in milliseconds; 0 if it is disabled.
    user_timeout_ms: u32,
    probes_max: u8,
    /// Number of keep-alive probes without an answer so far.
    probes: u8,
}

/// Action when the keep-alive timer expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Nothing, because the peer was heard recently or data is in flight.
    Bearable,
    /// Send a keep-alive probe.
    Probe,
    /// End the connection, because too many probes are unanswered.
    TooLong,
}

/// Converts a setting to milliseconds. Zero means disabled, so a shorter duration than one
/// millisecond is rounded up.
fn millis_on(duration: Option<Duration>) -> u32 {
    duration.map_or(0, |duration| millis(duration).max(1))
}

impl PeerWatch {
    /// Creates the state with keep-alive and user timeout disabled.
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

    /// Returns whether keep-alive or the user timeout is enabled.
    pub(crate) fn is_on(&self) -> bool {
        self.keepalive_idle_ms > 0 || self.user_timeout_ms > 0
    }

    /// Restarts the user timeout from `now`.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.unacked_since = now;
    }

    /// Clears the number of unanswered probes, because a segment of the peer arrived.
    #[inline]
    pub(crate) fn note_heard(&mut self) {
        self.probes = 0;
    }

    /// Returns the number of unanswered keep-alive probes.
    pub(crate) fn probes(&self) -> u8 {
        self.probes
    }

    /// Returns the deadline of the user timeout for a connection that waits for an ACK;
    /// [`Instant::FAR`] if it is disabled.
    pub(crate) fn user_deadline(&self) -> Instant {
        match self.user_timeout_ms {
            0 => Instant::FAR,
            millis => self.unacked_since.after_millis(millis),
        }
    }

    /// Handles the expired keep-alive timer of a synchronized connection. `idle` means that nothing
    /// is in flight.
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

    /// Restarts the keep-alive timer of a synchronized connection. The last segment of the peer
    /// arrived at `last_recv`.
    pub(crate) fn arm_keepalive(&mut self, last_recv: Instant) {
        self.keepalive = match self.keepalive_idle_ms {
            0 => Instant::FAR,
            idle => last_recv.after_millis(idle),
        };
    }
}
