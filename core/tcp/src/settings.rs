//! The part of the configuration that a connection keeps. User calls can change these settings.

use crate::config::{Config, DELAYED_ACK_MAX};
use crate::time::millis;
use core::time::Duration;

/// Settings of a connection, in a compact form of [`Config`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionSettings {
    pub(crate) time_wait_ms: u32,
    pub(crate) fin_wait2_ms: u32,
    pub(crate) mss_recv: u16,
    /// Maximum delay of an ACK in milliseconds, at most 499 (MUST-40).
    pub(crate) delayed_ack_ms: u16,
    /// Maximum time in milliseconds for which TCP_CORK holds back a short segment. Limited to
    /// 65535, because a sender that waits for more than a minute would seem to hang.
    pub(crate) cork_ms: u16,
    pub(crate) initial_window: u8,
    pub(crate) nodelay: bool,
    pub(crate) corked: bool,
    pub(crate) syn_retries: u8,
    pub(crate) retries: u8,
    pub(crate) orphan_retries: u8,
}

impl ConnectionSettings {
    pub(crate) fn new(config: &Config) -> ConnectionSettings {
        ConnectionSettings {
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

    pub(crate) fn set_delayed_ack(&mut self, delay: Duration) {
        self.delayed_ack_ms = delayed_ack_ms(delay);
    }
}

fn delayed_ack_ms(delay: Duration) -> u16 {
    delay.min(DELAYED_ACK_MAX).as_millis() as u16
}
