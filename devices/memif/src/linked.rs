//! The result of the connection establishment.

use towpath_shm::Fd;

use crate::device::MemifDevice;

/// Name of this program and of its interface, which peers show.
pub(crate) const NAME: &str = "towpath";

/// A connected device, and the eventfds of its rings.
#[derive(Debug)]
pub(crate) struct LinkedRings {
    pub(crate) device: MemifDevice,
    /// Eventfd by which the peer notifies this process of frames.
    pub(crate) received: Fd,
    /// Eventfd by which this process notifies the peer of frames.
    pub(crate) sent: Fd,
    /// Name of the peer's interface.
    pub(crate) name: String,
    /// Whether the peer is this program, which never misses that this process begins to wait.
    pub(crate) has_barrier: bool,
}
