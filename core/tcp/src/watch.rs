//! Watching over a peer at the program's wish: keepalive and user timeout.
//!
//! Most connections have neither, so that both live in one box which there is only while one is on.

use crate::config::KeepAliveConfig;
use crate::time::{Instant, millis};
use core::time::Duration;

/// PeerWatch over a silent peer: keepalive, and the user timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerWatch {
    /// [`Instant::FAR`] is off.
    pub(crate) keepalive: Instant,
    /// When the oldest bytes in flight were sent, or the peer last acknowledged new ones.
    unacked_since: Instant,
    /// 0 is off.
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
    /// 0 is off.
    user_timeout_ms: u32,
    probes_max: u8,
    /// Unanswered ones so far.
    probes: u8,
}

/// Step against a silent peer when the keepalive timer fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Nothing yet: it is not silent, or not for long enough.
    Bearable,
    /// Send a probe.
    Probe,
    /// Too many probes are unanswered: give up.
    TooLong,
}

/// In milliseconds, for settings where zero means off: less than one is rounded up to one.
fn millis_on(duration: Option<Duration>) -> u32 {
    duration.map_or(0, |duration| millis(duration).max(1))
}

impl PeerWatch {
    /// Watches for nothing yet.
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

    /// Whether it watches for anything.
    pub(crate) fn is_on(&self) -> bool {
        self.keepalive_idle_ms > 0 || self.user_timeout_ms > 0
    }

    /// The user timeout counts from here.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.unacked_since = now;
    }

    /// The peer is alive, whatever keepalive probes were unanswered.
    #[inline]
    pub(crate) fn note_heard(&mut self) {
        self.probes = 0;
    }

    /// Keepalive probes without an answer.
    pub(crate) fn probes(&self) -> u8 {
        self.probes
    }

    /// The deadline of the user timeout, for a connection that waits for an acknowledgement.
    pub(crate) fn user_deadline(&self) -> Instant {
        match self.user_timeout_ms {
            0 => Instant::FAR,
            millis => self.unacked_since.after_millis(millis),
        }
    }

    /// The keepalive timer of a synchronised connection fired. `idle`: nothing of it is in flight.
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

    /// (Re)starts the wait for silence of a synchronised connection.
    pub(crate) fn arm_keepalive(&mut self, last_recv: Instant) {
        self.keepalive = match self.keepalive_idle_ms {
            0 => Instant::FAR,
            idle => last_recv.after_millis(idle),
        };
    }
}
