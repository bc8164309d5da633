//! Byte queue limits: the maximum number of bytes in a device.
//!
//! A device needs enough bytes to stay busy between two completion reports. Every byte beyond that
//! is delay that no discipline above the device can remove, because packets in a ring can be
//! neither reordered nor dropped. [`QueueLimits`] finds the minimum, and adapts to changes: the
//! idea of "byte queue limits" (T. Herbert, netdev and LWN.net 454390, 2011). Names are those in
//! Linux's `/sys/class/net/*/queues/tx-*/byte_queue_limits`.
//!
//! * **Increase.** If the device ran dry while the limit held packets back, the limit was too low
//!   by an unknown amount. The limit then grows by half of the bytes sent meanwhile.
//! * **Decrease.** Bytes that are left at a report were not needed to bridge the interval. Their
//!   minimum over all reports is slack. After [`QueueLimitsConfig::hold_time_ns`] the limit shrinks
//!   by the slack.

/// Configuration of [`QueueLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimitsConfig {
    /// Minimum of the limit in bytes.
    pub limit_min: u64,
    /// Maximum of the limit in bytes.
    pub limit_max: u64,
    /// Time for which slack is observed before the limit shrinks, in ns.
    pub hold_time_ns: u64,
}

impl Default for QueueLimitsConfig {
    /// Returns Linux's defaults: minimum 0, maximum half of the 32-bit range, hold time one second.
    fn default() -> Self {
        Self { limit_min: 0, limit_max: u64::from(u32::MAX / 2), hold_time_ns: 1_000_000_000 }
    }
}

/// A snapshot of [`QueueLimits`], for traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitState {
    /// Maximum bytes in the device before its queue stops.
    pub limit: u64,
    /// Bytes in the device.
    pub inflight: u64,
    /// Bytes by which the limit would shrink if the hold time ended now.
    pub slack: u64,
}

/// The limit of one device queue, adapted to the completion reports of the device.
#[derive(Debug, Clone)]
pub struct QueueLimits {
    config: QueueLimitsConfig,
    limit: u64,
    inflight: u64,
    /// Maximum excess of `inflight` over the limit since the last report; the last packet may
    /// exceed it.
    over: u64,
    /// Whether the last packet reached the limit, which may have held back further packets.
    has_stopped: bool,
    /// Bytes reported as sent since that packet.
    sent: u64,
    /// Minimum slack of the reports since `hold_start_ns`; `None` if there was no report.
    slack: Option<u64>,
    hold_start_ns: u64,
}

impl QueueLimits {
    /// Creates a limit that initially allows one packet at a time.
    pub fn new(config: QueueLimitsConfig) -> Self {
        Self {
            config,
            limit: config.limit_min,
            inflight: 0,
            over: 0,
            has_stopped: false,
            sent: 0,
            slack: None,
            hold_start_ns: 0,
        }
    }

    /// Returns whether the device may get another packet, which may exceed the limit by its length.
    pub fn has_room(&self) -> bool {
        self.inflight <= self.limit
    }

    /// Records that a packet was passed to the device.
    pub fn on_queued(&mut self, bytes: u64) {
        self.inflight += bytes;
        self.over = self.over.max(self.inflight.saturating_sub(self.limit));
        (self.has_stopped, self.sent) = (!self.has_room(), 0);
    }

    /// Records bytes that the device reports as sent; at most the bytes in flight count.
    pub fn on_completed(&mut self, now_ns: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.inflight = self.inflight.saturating_sub(bytes);
        self.sent = self.sent.saturating_add(bytes);
        if self.inflight == 0 && self.has_stopped {
            let more = (self.sent / 2).max(1);
            self.limit = self.limit.saturating_add(more).min(self.config.limit_max);
            // Slack measured under the previous limit is meaningless for the new one.
            self.slack = None;
        } else if self.inflight > 0 {
            self.note_slack(now_ns);
        }
        self.over = self.inflight.saturating_sub(self.limit);
    }

    /// Returns the current limit, bytes in flight and slack.
    pub fn state(&self) -> LimitState {
        let slack = self.slack.unwrap_or(0);
        LimitState { limit: self.limit, inflight: self.inflight, slack }
    }

    /// Records the slack of a report at which the device was still busy, and shrinks the limit when
    /// the hold time is over.
    fn note_slack(&mut self, now_ns: u64) {
        let spare = self.inflight.saturating_sub(self.over);
        let slack = match self.slack {
            Some(slack) => slack.min(spare),
            None => {
                self.hold_start_ns = now_ns;
                spare
            }
        };
        self.slack = Some(slack);
        if now_ns.saturating_sub(self.hold_start_ns) >= self.config.hold_time_ns {
            self.limit = self.limit.saturating_sub(slack).max(self.config.limit_min);
            self.slack = None;
        }
    }
}
