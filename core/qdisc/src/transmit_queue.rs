//! Flow control between a discipline and a device: a full device stops the queue and wakes it.

use crate::{Completed, LimitState, QueueLimits, QueueLimitsConfig};

/// The state of one transmit queue of a device (Linux's `netdev_queue`).
///
/// Two reasons stop a queue, independently: the device has no descriptor left
/// (`netif_stop_queue`), or its bytes are at their limit (`netdev_tx_sent_queue`). The queue runs
/// when neither holds.
#[derive(Debug, Clone)]
pub struct TransmitQueue {
    /// Free descriptors from which on a device that was full takes packets again.
    wake_room: usize,
    is_full: bool,
    limits: Option<QueueLimits>,
    stats: TransmitStats,
}

/// Counters of a [`TransmitQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransmitStats {
    /// Packets that went to the device.
    pub queued_packets: u64,
    /// Bytes that went to the device.
    pub queued_bytes: u64,
    /// Packets that the device has reported as sent.
    pub completed_packets: u64,
    /// Bytes that the device has reported as sent.
    pub completed_bytes: u64,
    /// Stops because the device had no descriptor left.
    pub stops: u64,
    /// Ends of such stops.
    pub wakes: u64,
    /// Stops because the bytes of the device were at their limit.
    pub limit_stops: u64,
}

impl TransmitQueue {
    /// A queue that runs. A device that was full wakes it with `wake_room` free descriptors: one at
    /// a time would stop it again at once. `limits` is for byte queue limits.
    pub fn new(wake_room: usize, limits: Option<QueueLimitsConfig>) -> Self {
        Self {
            wake_room: wake_room.max(1),
            is_full: false,
            limits: limits.map(QueueLimits::new),
            stats: TransmitStats::default(),
        }
    }

    /// Whether the device gets no packet now.
    pub fn is_stopped(&self) -> bool {
        self.is_full || self.limits.as_ref().is_some_and(|limits| !limits.has_room())
    }

    /// A packet went to the device, which has `room` descriptors left.
    pub fn on_queued(&mut self, bytes: u64, room: usize) {
        self.stats.queued_packets += 1;
        self.stats.queued_bytes += bytes;
        if room == 0 && !self.is_full {
            self.is_full = true;
            self.stats.stops += 1;
        }
        if let Some(limits) = &mut self.limits {
            let had_room = limits.has_room();
            limits.on_queued(bytes);
            self.stats.limit_stops += u64::from(had_room && !limits.has_room());
        }
    }

    /// The device has reported packets as sent, and has `room` descriptors now.
    pub fn on_completed(&mut self, now_ns: u64, completed: Completed, room: usize) {
        self.stats.completed_packets += completed.packets as u64;
        self.stats.completed_bytes += completed.bytes;
        if let Some(limits) = &mut self.limits {
            limits.on_completed(now_ns, completed.bytes);
        }
        if self.is_full && room >= self.wake_room {
            self.is_full = false;
            self.stats.wakes += 1;
        }
    }

    /// Bytes that the device may still get by its limit before it stops; `None` without a limit.
    pub fn bytes_left(&self) -> Option<u64> {
        let state = self.limits.as_ref()?.state();
        Some((state.limit + 1).saturating_sub(state.inflight))
    }

    /// Bytes that the device holds.
    pub fn inflight(&self) -> u64 {
        self.stats.queued_bytes - self.stats.completed_bytes
    }

    /// The byte queue limit; `None` without one.
    pub fn limits(&self) -> Option<LimitState> {
        self.limits.as_ref().map(QueueLimits::state)
    }

    /// Counters.
    pub fn stats(&self) -> TransmitStats {
        self.stats
    }
}
