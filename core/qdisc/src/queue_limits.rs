//! Byte queue limits: how many bytes a device holds at most.
//!
//! A device needs enough bytes to be busy from one report of sent packets to the next. Every byte
//! beyond that is delay that no discipline above the device can remove, because packets in a ring
//! can be neither reordered nor dropped. [`QueueLimits`] finds the number that is just enough, and
//! follows it: the idea of "byte queue limits" (T. Herbert, netdev and LWN.net 454390, 2011). The
//! names are those that Linux shows below `/sys/class/net/*/queues/tx-*/byte_queue_limits`.
//!
//! * **More.** The device ran dry and the limit had held packets back: the limit was too low, by an
//!   unknown amount. The limit grows by half of the bytes that were sent meanwhile.
//! * **Less.** Packets are left when a report comes: their bytes were not needed to bridge the
//!   interval. The least that is left at a report is slack: no interval needs it. The limit shrinks
//!   by the slack when [`QueueLimitsConfig::hold_time_ns`] are over.

/// Bounds of a [`QueueLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimitsConfig {
    /// Lower bound of the limit in bytes.
    pub limit_min: u64,
    /// Upper bound of the limit in bytes.
    pub limit_max: u64,
    /// Time over which slack is watched before the limit shrinks.
    pub hold_time_ns: u64,
}

impl Default for QueueLimitsConfig {
    /// Linux's: no lower bound, half of what 32 bits count, and a second.
    fn default() -> Self {
        Self { limit_min: 0, limit_max: u64::from(u32::MAX / 2), hold_time_ns: 1_000_000_000 }
    }
}

/// State of a [`QueueLimits`] at a moment: samples of it are its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitState {
    /// Bytes that the device may hold before its queue stops.
    pub limit: u64,
    /// Bytes that the device holds.
    pub inflight: u64,
    /// Bytes by which the limit would shrink if the hold time ended now.
    pub slack: u64,
}

/// The limit of one device queue, which learns from the reports of the device.
#[derive(Debug, Clone)]
pub struct QueueLimits {
    config: QueueLimitsConfig,
    limit: u64,
    inflight: u64,
    /// Largest `inflight` less the limit since the last report: the last packet goes over it.
    over: u64,
    /// The last packet reached the limit, which may have held back others.
    has_stopped: bool,
    /// Bytes reported since that packet.
    sent: u64,
    /// Least slack of the reports since `hold_start_ns`; `None` until there is one.
    slack: Option<u64>,
    hold_start_ns: u64,
}

impl QueueLimits {
    /// A limit that lets one packet pass at a time, until the device shows that it needs more.
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

    /// Whether the device may get another packet: it may go over the limit by its own length.
    pub fn has_room(&self) -> bool {
        self.inflight <= self.limit
    }

    /// A packet went to the device.
    pub fn on_queued(&mut self, bytes: u64) {
        self.inflight += bytes;
        self.over = self.over.max(self.inflight.saturating_sub(self.limit));
        (self.has_stopped, self.sent) = (!self.has_room(), 0);
    }

    /// The device reports bytes as sent: more than it holds count as all that it holds.
    pub fn on_completed(&mut self, now_ns: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.inflight = self.inflight.saturating_sub(bytes);
        self.sent = self.sent.saturating_add(bytes);
        if self.inflight == 0 && self.has_stopped {
            let more = (self.sent / 2).max(1);
            self.limit = self.limit.saturating_add(more).min(self.config.limit_max);
            // Slack under another limit says nothing about this one.
            self.slack = None;
        } else if self.inflight > 0 {
            self.note_slack(now_ns);
        }
        self.over = self.inflight.saturating_sub(self.limit);
    }

    /// Limit, bytes in flight and slack as of now.
    pub fn state(&self) -> LimitState {
        let slack = self.slack.unwrap_or(0);
        LimitState { limit: self.limit, inflight: self.inflight, slack }
    }

    /// The device was busy until this report: notes what it had too much, and shrinks the limit
    /// when the hold time is over.
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
