//! The device at the end of a transmit path.

/// A device that queues packets in a ring of descriptors, and reports when they are sent.
///
/// A descriptor is in use from [`Device::transmit`] until a call of [`Device::poll_completed`]
/// reports its packet as sent. A device with interrupt coalescing reports several packets together.
///
/// Real devices can implement this trait. A TAP device reports a packet when its write returns, and
/// a network card when its driver cleans the ring.
pub trait Device<T>: Send {
    /// Returns the number of free descriptors.
    fn room(&self) -> usize;

    /// Queues a packet for transmission.
    ///
    /// # Errors
    /// Returns the packet if [`Device::room`] is 0.
    fn transmit(&mut self, now_ns: u64, item: T) -> Result<(), T>;

    /// Returns the packets that the device has reported as sent since the last call. Their
    /// descriptors are free again.
    fn poll_completed(&mut self, now_ns: u64) -> Completed;

    /// Returns the time in nanoseconds at which the next call of [`Device::poll_completed`] can
    /// report packets. Returns `None` if the device is idle, or if it notifies its owner itself,
    /// for example by a file descriptor.
    fn next_timeout_ns(&self) -> Option<u64>;
}

/// Packets that a device has reported as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completed {
    /// Number of packets.
    pub packets: usize,
    /// Total bytes of the packets.
    pub bytes: u64,
}
