//! A discipline above a device, with the flow control between the two.

use crate::{Device, Dropped, Qdisc, Queueable, TransmitQueue};

/// The way of a packet out of a host: a discipline, a [`TransmitQueue`] and a [`Device`].
///
/// Packets wait in the discipline, where they can be reordered and dropped, for as long as the
/// queue is stopped. The fewer bytes the device holds, the more the discipline decides.
///
/// # The caller's duty
/// [`TransmitPath::enqueue`] packets; call [`TransmitPath::run`] after that, and at
/// [`TransmitPath::next_timeout_ns`].
pub struct TransmitPath<T, D> {
    qdisc: Box<dyn Qdisc<T>>,
    queue: TransmitQueue,
    device: D,
}

impl<T: Queueable, D: Device<T>> TransmitPath<T, D> {
    /// A path whose discipline and device should be empty.
    pub fn new(qdisc: Box<dyn Qdisc<T>>, queue: TransmitQueue, device: D) -> Self {
        Self { qdisc, queue, device }
    }

    /// Queues a packet above the device, or drops it or others.
    pub fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        self.qdisc.enqueue(now_ns, item, drops);
    }

    /// Takes the reports of the device, and gives it packets until the queue stops.
    pub fn run(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) {
        let completed = self.device.poll_completed(now_ns);
        if completed.packets > 0 {
            self.queue.on_completed(now_ns, completed, self.device.room());
        }
        while !self.queue.is_stopped() && self.device.room() > 0 {
            let Some(item) = self.qdisc.dequeue(now_ns, drops) else { break };
            let bytes = item.bytes() as u64;
            // The device has room, so that it takes the packet.
            let is_taken = self.device.transmit(now_ns, item).is_ok();
            debug_assert!(is_taken, "a device with room refused a packet");
            self.queue.on_queued(bytes, self.device.room());
        }
    }

    /// Time at which [`TransmitPath::run`] has work: a report of the device, or a discipline that
    /// holds packets back.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let is_running = !self.queue.is_stopped() && self.qdisc.stats().backlog_packets > 0;
        let held = self.qdisc.next_timeout_ns().filter(|_| is_running);
        [self.device.next_timeout_ns(), held].into_iter().flatten().min()
    }

    /// Packets of at most `bytes` that go to the device at once, without a wait in the discipline.
    /// A sender with a queue of its own offers no more.
    pub fn room(&self, bytes: u64) -> usize {
        if self.queue.is_stopped() || self.qdisc.stats().backlog_packets > 0 {
            return 0;
        }
        let by_limit = self.queue.bytes_left().map_or(u64::MAX, |left| left.div_ceil(bytes.max(1)));
        self.device.room().min(usize::try_from(by_limit).unwrap_or(usize::MAX))
    }

    /// The discipline.
    pub fn qdisc(&self) -> &dyn Qdisc<T> {
        &*self.qdisc
    }

    /// The flow control.
    pub fn queue(&self) -> &TransmitQueue {
        &self.queue
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, to be moved on in time.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }
}
