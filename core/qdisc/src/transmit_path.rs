//! A discipline above a device, with flow control between both.

use crate::{Device, Dropped, Qdisc, Queueable, TransmitQueue};

/// The transmit path of a host: a discipline, a [`TransmitQueue`] and a [`Device`].
///
/// While the queue is stopped, packets wait in the discipline, which can reorder and drop them. The
/// fewer bytes are in the device, the more the discipline can control.
///
/// # Usage
/// Call [`TransmitPath::run`] after [`TransmitPath::enqueue`], and at
/// [`TransmitPath::next_timeout_ns`].
pub struct TransmitPath<T, D> {
    qdisc: Box<dyn Qdisc<T>>,
    queue: TransmitQueue,
    device: D,
}

impl<T: Queueable, D: Device<T>> TransmitPath<T, D> {
    /// Creates a path; discipline and device should be empty.
    pub fn new(qdisc: Box<dyn Qdisc<T>>, queue: TransmitQueue, device: D) -> Self {
        Self { qdisc, queue, device }
    }

    /// Enqueues a packet in the discipline; may drop it or other packets.
    pub fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        self.qdisc.enqueue(now_ns, item, drops);
    }

    /// Handles completion reports of the device, and passes packets to it until the queue stops.
    pub fn run(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) {
        let completed = self.device.poll_completed(now_ns);
        if completed.packets > 0 {
            self.queue.on_completed(now_ns, completed, self.device.room());
        }
        while !self.queue.is_stopped() && self.device.room() > 0 {
            let Some(item) = self.qdisc.dequeue(now_ns, drops) else { break };
            let bytes = item.bytes() as u64;
            // The device has a free descriptor, so it accepts the packet.
            let is_taken = self.device.transmit(now_ns, item).is_ok();
            debug_assert!(is_taken, "a device with room refused a packet");
            self.queue.on_queued(bytes, self.device.room());
        }
    }

    /// Returns the time at which [`TransmitPath::run`] has work: a completion report, or a packet
    /// that the discipline delays.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let is_running = !self.queue.is_stopped() && self.qdisc.stats().backlog_packets > 0;
        let held = self.qdisc.next_timeout_ns().filter(|_| is_running);
        [self.device.next_timeout_ns(), held].into_iter().flatten().min()
    }

    /// Returns the number of packets of at most `bytes` that would be passed to the device
    /// immediately. A sender with its own queue should offer no more.
    pub fn room(&self, bytes: u64) -> usize {
        if self.queue.is_stopped() || self.qdisc.stats().backlog_packets > 0 {
            return 0;
        }
        let by_limit = self.queue.bytes_left().map_or(u64::MAX, |left| left.div_ceil(bytes.max(1)));
        self.device.room().min(usize::try_from(by_limit).unwrap_or(usize::MAX))
    }

    /// Returns the discipline.
    pub fn qdisc(&self) -> &dyn Qdisc<T> {
        &*self.qdisc
    }

    /// Returns the flow control state.
    pub fn queue(&self) -> &TransmitQueue {
        &self.queue
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, to advance it in time.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }
}
