//! What can be set on a connection, at its birth and later.

use crate::config::{Config, DELAYED_ACK_MAX, KeepAlive, QUICK_ACKS};
use crate::congestion::CongestionKind;
use crate::connection::{Connection, millis};
use crate::state::State;
use crate::time::Instant;
use core::time::Duration;

/// The part of [`Config`] that is needed again, small.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) time_wait_ms: u32,
    pub(crate) fin_wait2_ms: u32,
    pub(crate) mss_recv: u16,
    /// At most 499 (MUST-40).
    pub(crate) delayed_ack_ms: u16,
    /// At most 65535, a minute: a sender that holds a short segment back for longer seems to hang.
    pub(crate) cork_ms: u16,
    pub(crate) initial_window: u8,
    pub(crate) nodelay: bool,
    pub(crate) corked: bool,
    pub(crate) syn_retries: u8,
    pub(crate) retries: u8,
    pub(crate) orphan_retries: u8,
}

impl Settings {
    pub(crate) fn new(config: &Config) -> Settings {
        Settings {
            time_wait_ms: millis(config.time_wait),
            fin_wait2_ms: millis(config.fin_wait2_timeout),
            mss_recv: config.mss_recv,
            delayed_ack_ms: delayed_ack_ms(config.delayed_ack),
            cork_ms: u16::try_from(config.cork.as_millis()).unwrap_or(u16::MAX),
            initial_window: config.initial_window,
            nodelay: config.nodelay,
            corked: false,
            syn_retries: config.syn_retries,
            retries: config.retries,
            orphan_retries: config.orphan_retries,
        }
    }

    pub(crate) fn delayed_ack(&self) -> Duration {
        Duration::from_millis(u64::from(self.delayed_ack_ms))
    }
}

fn delayed_ack_ms(delay: Duration) -> u16 {
    delay.min(DELAYED_ACK_MAX).as_millis() as u16
}

impl Connection {
    /// Nagle's algorithm off (true) or on (MUST-17).
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.settings.nodelay = nodelay;
    }

    /// Holds short segments back, for 200 ms at most, until this is taken away.
    pub fn set_cork(&mut self, corked: bool) {
        self.settings.corked = corked;
        if !corked {
            self.stop_cork();
        }
    }

    /// The program said with its last bytes that more will follow at once (MSG_MORE): as a cork, until
    /// told otherwise.
    pub fn more_coming(&mut self, more: bool) {
        self.more_coming = more;
        if !more && !self.settings.corked {
            self.stop_cork();
        }
    }

    /// In FIN-WAIT-2 the same timer limits the wait for the peer's FIN, and runs on.
    fn stop_cork(&mut self) {
        if self.state != State::FinWait2 {
            self.timers.hold = Instant::FAR;
        }
    }

    /// Probes a silent peer, or stops doing so.
    pub fn set_keepalive(&mut self, keepalive: Option<KeepAlive>) {
        self.watch_peer(|watch| watch.set_keepalive(keepalive));
        self.arm_keepalive();
    }

    /// How long sent bytes may stay unacknowledged, in place of [`Config::user_timeout`]. What is in
    /// flight already counts from when something was last sent or heard.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.watch_peer(|watch| watch.set_user_timeout(timeout));
    }

    /// Times a SYN is sent again, in place of [`Config::syn_retries`].
    pub fn set_syn_retries(&mut self, retries: u8) {
        self.settings.syn_retries = retries;
    }

    /// How long a closed socket waits for the peer's FIN, in place of [`Config::fin_wait2_timeout`].
    pub fn set_fin_wait2_timeout(&mut self, timeout: Duration) {
        self.settings.fin_wait2_ms = millis(timeout);
    }

    /// True sends what is due now and the next ACKs without delay; false goes back to delaying.
    pub fn set_quickack(&mut self, quick: bool) {
        self.quick_acks = if quick { QUICK_ACKS } else { 0 };
        if quick && self.timers.delayed_ack != Instant::FAR {
            self.owed.ack = true;
        }
    }

    /// The window stays, the way in which it grows changes.
    pub fn set_congestion(&mut self, kind: CongestionKind) {
        self.congestion.set_kind(kind);
    }

    /// At most 499 ms (MUST-40).
    pub fn set_delayed_ack(&mut self, delay: Duration) {
        self.settings.delayed_ack_ms = delayed_ack_ms(delay);
    }
}
