//! Flow control between a queueing discipline and a device: the transmit queue stops when the
//! device is full, and is woken later.

use crate::{Completed, LimitState, QueueLimits, QueueLimitsConfig};

/// State of one transmit queue of a device (Linux's `netdev_queue`).
///
/// A queue is stopped while the device has no free descriptors (`netif_stop_queue`), or while its
/// bytes are at their limit (`netdev_tx_sent_queue`).
#[derive(Debug, Clone)]
pub struct TransmitQueue {
    /// Number of free descriptors at which the queue of a full device is woken.
    wake_room: usize,
    is_full: bool,
    limits: Option<QueueLimits>,
    stats: TransmitStats,
}

/// Counters of a [`TransmitQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransmitStats {
    /// Packets passed to the device.
    pub queued_packets: u64,
    /// Bytes passed to the device.
    pub queued_bytes: u64,
    /// Packets that the device reported as sent.
    pub completed_packets: u64,
    /// Bytes that the device reported as sent.
    pub completed_bytes: u64,
    /// Number of times that the queue stopped because the device had no free descriptors.
    pub stops: u64,
    /// Number of times that the queue was woken after the device had no free descriptors.
    pub wakes: u64,
    /// Number of times that the queue stopped because of the byte limit.
    pub limit_stops: u64,
}

impl TransmitQueue {
    /// Creates a queue that is not stopped. The queue of a full device is woken when `wake_room`
    /// descriptors are free. With a value of one, the queue would stop again after a single packet.
    /// `limits` enables byte queue limits.
    pub fn new(wake_room: usize, limits: Option<QueueLimitsConfig>) -> Self {
        Self {
            wake_room: wake_room.max(1),
            is_full: false,
            limits: limits.map(QueueLimits::new),
            stats: TransmitStats::default(),
        }
    }

    /// Returns whether the queue is stopped, so that no packet may be passed to the device.
    pub fn is_stopped(&self) -> bool {
        self.is_full || self.limits.as_ref().is_some_and(|limits| !limits.has_room())
    }

    /// Records that a packet was passed to the device, which has `room` free descriptors left.
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

    /// Handles a report of the device that packets were sent. The device now has `room` free
    /// descriptors.
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

    /// Returns the number of bytes that may be passed to the device before the queue stops; `None`
    /// without a byte limit.
    pub fn bytes_left(&self) -> Option<u64> {
        let state = self.limits.as_ref()?.state();
        Some((state.limit + 1).saturating_sub(state.inflight))
    }

    /// Returns the number of bytes in the device that are not reported as sent.
    pub fn inflight(&self) -> u64 {
        self.stats.queued_bytes - self.stats.completed_bytes
    }

    /// Returns the state of the byte queue limit; `None` if there is no limit.
    pub fn limits(&self) -> Option<LimitState> {
        self.limits.as_ref().map(QueueLimits::state)
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> TransmitStats {
        self.stats
    }
}
