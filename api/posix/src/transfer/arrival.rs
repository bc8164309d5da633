//! Results of receive calls.

use towpath_shm::layout::DatagramHeader;

use crate::report::ErrorQueueEntry;

/// Result of a receive call, besides the bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arrival {
    /// Result of the call.
    pub len: usize,
    /// Header with the sender's address, or `None` on a stream.
    pub header: Option<DatagramHeader>,
    /// MSG_TRUNC and the like.
    pub flags: i32,
    /// Entry of the error queue.
    pub report: Option<ErrorQueueEntry>,
}
