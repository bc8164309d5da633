//! The device at the end of a transmit path: where packets leave for a wire.

/// A device that takes packets into a ring of descriptors and reports them when they are sent.
///
/// A descriptor is in use from [`Device::transmit`] until a call of [`Device::poll_completed`]
/// reports its packet. A device that raises one interrupt for several packets reports them
/// together. Real devices fit as well: a TAP device reports a packet when its write returns, a
/// network card when its driver cleans the ring.
pub trait Device<T>: Send {
    /// Free descriptors: packets that the device takes now.
    fn room(&self) -> usize;

    /// Takes a packet to be sent.
    ///
    /// # Errors
    /// The packet, when [`Device::room`] is 0.
    fn transmit(&mut self, now_ns: u64, item: T) -> Result<(), T>;

    /// Packets whose descriptors are free again since the last call.
    fn poll_completed(&mut self, now_ns: u64) -> Completed;

    /// Time of the next call of [`Device::poll_completed`] that can report packets. None: the
    /// device is idle, or wakes its owner by other means.
    fn next_timeout_ns(&self) -> Option<u64>;
}

/// Packets that a device reports as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completed {
    /// Number of packets.
    pub packets: usize,
    /// Bytes of the packets.
    pub bytes: u64,
}
