//! Byte queue limits: the maximum number of bytes in a device.
//!
//! A device needs enough bytes to stay busy between two completion reports. Every byte beyond that
//! adds delay. The queueing discipline cannot reduce it, because packets in the device's ring can
//! be neither reordered nor dropped. [`QueueLimits`] finds the minimum, and adapts it to changes.
//! The method is known as "byte queue limits" (T. Herbert, netdev and LWN.net 454390, 2011).
//! Names are those in Linux's `/sys/class/net/*/queues/tx-*/byte_queue_limits`.
//!
//! * **Increase.** If the device became idle while the limit prevented further packets, the limit
//!   was too low by an unknown amount. The limit then grows by half of the bytes that were sent in
//!   this time.
//! * **Decrease.** Bytes that the device has not sent at a report were not needed to keep it busy
//!   until then. Their minimum over all reports is slack. After [`QueueLimitsConfig::hold_time_ns`]
//!   the limit shrinks by the slack.

/// Configuration of [`QueueLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimitsConfig {
    /// Minimum to which the limit may shrink, in bytes.
    pub limit_min: u64,
    /// Maximum to which the limit may grow, in bytes.
    pub limit_max: u64,
    /// Time in nanoseconds for which unneeded bytes are observed before the limit shrinks.
    pub hold_time_ns: u64,
}

impl Default for QueueLimitsConfig {
    /// Returns Linux's defaults: a minimum of 0, a maximum of half the 32-bit range, and a hold
    /// time of one second.
    fn default() -> Self {
        Self { limit_min: 0, limit_max: u64::from(u32::MAX / 2), hold_time_ns: 1_000_000_000 }
    }
}

/// State of [`QueueLimits`] at one time, for traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitState {
    /// Number of bytes in the device from which on no further packet is passed to the device.
    pub limit: u64,
    /// Number of bytes in the device that are not reported as sent.
    pub inflight: u64,
    /// Number of bytes by which the limit would shrink if the hold time ended now.
    pub slack: u64,
}

/// The byte limit of one device queue. The limit adapts to the device's reports of sent bytes.
#[derive(Debug, Clone)]
pub struct QueueLimits {
    config: QueueLimitsConfig,
    limit: u64,
    inflight: u64,
    /// Maximum number of bytes by which `inflight` exceeded the limit since the last report. The
    /// last packet passed to the device may exceed the limit.
    over: u64,
    /// Whether the last packet passed to the device reached the limit, which may have stopped
    /// further packets.
    has_stopped: bool,
    /// Number of bytes reported as sent since the packet that reached the limit was passed to the
    /// device.
    sent: u64,
    /// Minimum number of bytes that the device did not need, over all reports since
    /// `hold_start_ns`; `None` if there was no report.
    slack: Option<u64>,
    hold_start_ns: u64,
}

impl QueueLimits {
    /// Creates a limit that at first allows one packet at a time.
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

    /// Returns whether another packet may be passed to the device. Its last bytes may exceed the
    /// limit.
    pub fn has_room(&self) -> bool {
        self.inflight <= self.limit
    }

    /// Records that a packet was passed to the device.
    pub fn on_queued(&mut self, bytes: u64) {
        self.inflight += bytes;
        self.over = self.over.max(self.inflight.saturating_sub(self.limit));
        (self.has_stopped, self.sent) = (!self.has_room(), 0);
    }

    /// Handles a report of the device that `bytes` were sent. Bytes beyond those in flight are
    /// ignored.
    pub fn on_completed(&mut self, now_ns: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.inflight = self.inflight.saturating_sub(bytes);
        self.sent = self.sent.saturating_add(bytes);
        if self.inflight == 0 && self.has_stopped {
            let more = (self.sent / 2).max(1);
            self.limit = self.limit.saturating_add(more).min(self.config.limit_max);
            // Discard the slack, because it was measured under the previous limit.
            self.slack = None;
        } else if self.inflight > 0 {
            self.note_slack(now_ns);
        }
        self.over = self.inflight.saturating_sub(self.limit);
    }

    /// Returns the limit, the bytes in flight and the slack.
    pub fn state(&self) -> LimitState {
        let slack = self.slack.unwrap_or(0);
        LimitState { limit: self.limit, inflight: self.inflight, slack }
    }

    /// Handles a report at which the device was still busy. Records how many bytes in the device
    /// were not needed, and shrinks the limit at the end of the hold time.
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
