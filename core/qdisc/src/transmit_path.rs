//! A queueing discipline above a device, with flow control between the two.

use crate::{Device, Dropped, Qdisc, Queueable, TransmitQueue};

/// The transmit path of a host: a queueing discipline, a [`TransmitQueue`] and a [`Device`].
///
/// While the [`TransmitQueue`] is stopped, packets wait in the queueing discipline, which can
/// reorder and drop them. The discipline can no longer do so once packets are in the device.
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
    /// Creates a transmit path. The queueing discipline and the device must be empty.
    pub fn new(qdisc: Box<dyn Qdisc<T>>, queue: TransmitQueue, device: D) -> Self {
        Self { qdisc, queue, device }
    }

    /// Enqueues a packet in the queueing discipline, which may drop this packet or other packets.
    pub fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        self.qdisc.enqueue(now_ns, item, drops);
    }

    /// Handles the device's reports of sent packets, and passes further packets to the device until
    /// the transmit queue stops.
    pub fn run(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) {
        let completed = self.device.poll_completed(now_ns);
        if completed.packets > 0 {
            self.queue.on_completed(now_ns, completed, self.device.room());
        }
        while !self.queue.is_stopped() && self.device.room() > 0 {
            let Some(item) = self.qdisc.dequeue(now_ns, drops) else { break };
            let bytes = item.bytes() as u64;
            // `room` is not 0, so the device has a free descriptor and accepts the packet.
            let is_taken = self.device.transmit(now_ns, item).is_ok();
            debug_assert!(is_taken, "a device with room refused a packet");
            self.queue.on_queued(bytes, self.device.room());
        }
    }

    /// Returns the time in nanoseconds at which [`TransmitPath::run`] has work: the device reports
    /// a sent packet, or the queueing discipline may send a delayed packet.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let is_running = !self.queue.is_stopped() && self.qdisc.stats().backlog_packets > 0;
        let held = self.qdisc.next_timeout_ns().filter(|_| is_running);
        [self.device.next_timeout_ns(), held].into_iter().flatten().min()
    }

    /// Returns the number of packets of at most `bytes` that the path would pass to the device
    /// immediately. A sender with its own queue should enqueue no more than this.
    pub fn room(&self, bytes: u64) -> usize {
        if self.queue.is_stopped() || self.qdisc.stats().backlog_packets > 0 {
            return 0;
        }
        let by_limit = self.queue.bytes_left().map_or(u64::MAX, |left| left.div_ceil(bytes.max(1)));
        self.device.room().min(usize::try_from(by_limit).unwrap_or(usize::MAX))
    }

    /// Returns the queueing discipline of this path.
    pub fn qdisc(&self) -> &dyn Qdisc<T> {
        &*self.qdisc
    }

    /// Returns the state of flow control between the queueing discipline and the device.
    pub fn queue(&self) -> &TransmitQueue {
        &self.queue
    }

    /// Returns the device of this path.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device of this path for changes, for example to advance a simulated device in
    /// time.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }
}
