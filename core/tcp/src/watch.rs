//! Watching over a peer at the program's wish: keepalive and user timeout.
//!
//! Most connections have neither, so that both live in one box which there is only while one is on.

use crate::config::KeepAlive;
use crate::connection::{Connection, millis};
use crate::state::State;
use crate::time::Instant;
use core::time::Duration;

/// What is watched for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
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

/// In milliseconds, for settings where zero means off: less than one is rounded up to one.
fn millis_on(duration: Option<Duration>) -> u32 {
    duration.map_or(0, |duration| millis(duration).max(1))
}

impl Watch {
    pub(crate) fn set_keepalive(&mut self, keepalive: Option<KeepAlive>) {
        self.keepalive_idle_ms = millis_on(keepalive.map(|keepalive| keepalive.idle));
        if let Some(KeepAlive { idle: _, interval, probes }) = keepalive {
            self.keepalive_interval_ms = millis(interval).max(1);
            self.probes_max = probes;
        }
        self.probes = 0;
    }

    pub(crate) fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.user_timeout_ms = millis_on(timeout);
    }
}

impl Connection {
    /// Changes what is watched for.
    pub(crate) fn watch_peer(&mut self, change: impl FnOnce(&mut Watch)) {
        let mut watch = self.watch.as_deref().copied().unwrap_or(Watch {
            keepalive: Instant::FAR,
            unacked_since: self.counters.last_data_sent.max(self.timers.last_recv),
            keepalive_idle_ms: 0,
            keepalive_interval_ms: 0,
            user_timeout_ms: 0,
            probes_max: 0,
            probes: 0,
        });
        change(&mut watch);
        let on = watch.keepalive_idle_ms > 0 || watch.user_timeout_ms > 0;
        self.watch = on.then(|| Box::new(watch));
    }

    /// The peer acknowledged bytes, or sending began after a pause: the user timeout counts from here.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Instant) {
        if let Some(watch) = &mut self.watch {
            watch.unacked_since = now;
        }
    }

    /// The peer sent something acceptable: it is alive, whatever keepalive probes were unanswered.
    #[inline]
    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.timers.last_recv = now;
        if let Some(watch) = &mut self.watch {
            watch.probes = 0;
        }
    }

    /// Keepalive probes without an answer.
    pub(crate) fn keepalive_probes(&self) -> u8 {
        self.watch.as_ref().map_or(0, |watch| watch.probes)
    }

    pub(crate) fn user_deadline(&self) -> Instant {
        let Some(watch) = &self.watch else { return Instant::FAR };
        // As Linux, and as its tcp(7) says: a peer that answers probes of its shut window does not put
        // the deadline off. Acknowledging bytes, or opening the window, does.
        let probing = self.timers.persist_backoff > 0;
        let waiting = self.snd_nxt != self.snd_una || probing;
        if watch.user_timeout_ms == 0 || !waiting || self.state == State::Closed {
            return Instant::FAR;
        }
        watch.unacked_since.after_millis(watch.user_timeout_ms)
    }

    pub(crate) fn on_keepalive_timeout(&mut self, now: Instant) {
        let idle = self.flight() == 0;
        let synchronized = self.state.is_synchronized();
        let last_recv = self.timers.last_recv;
        let Some(watch) = &mut self.watch else { return };
        if watch.keepalive_idle_ms == 0 || !synchronized {
            watch.keepalive = Instant::FAR;
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
        //# Implementers MAY include "keep-alives" in their TCP implementations (MAY-5), although
        //# this practice is not universally accepted.
        let idle_until = last_recv.after_millis(watch.keepalive_idle_ms);
        if !idle || idle_until > now {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
            //# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or
            //# acknowledgment packets have been received for the connection within an interval (MUST-26).
            watch.keepalive = idle_until.max(now.after_millis(watch.keepalive_interval_ms));
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
        //# if a keep-alive mechanism is implemented it MUST NOT interpret failure to respond to any
        //# specific probe as a dead connection (MUST-29).
        if watch.probes >= watch.probes_max {
            // Should the peer be alive after all, it hears that the connection is over (as Linux tells it).
            self.give_up();
            self.owed.reset = true;
            return;
        }
        watch.probes += 1;
        watch.keepalive = now.after_millis(watch.keepalive_interval_ms);
        self.owed.keepalive = true;
    }

    /// (Re)starts the wait for silence.
    pub(crate) fn arm_keepalive(&mut self) {
        let synchronized = self.state.is_synchronized();
        let last_recv = self.timers.last_recv;
        let Some(watch) = &mut self.watch else { return };
        watch.keepalive = if watch.keepalive_idle_ms > 0 && synchronized {
            last_recv.after_millis(watch.keepalive_idle_ms)
        } else {
            Instant::FAR
        };
    }
}
