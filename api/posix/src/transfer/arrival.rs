//! Results of receive calls.

use towpath_shm::layout::DatagramHeader;

use crate::report::ErrorQueueEntry;

/// Result of a receive call, besides the bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arrival {
    /// Return value of the call: the number of bytes received.
    pub len: usize,
    /// Header of the datagram with the sender's address; `None` on a stream.
    pub header: Option<DatagramHeader>,
    /// Flags of `msg_flags`, such as MSG_TRUNC.
    pub flags: i32,
    /// Entry of the error queue, if the call was made with MSG_ERRQUEUE.
    pub report: Option<ErrorQueueEntry>,
}
