//! [`Arrival`], the result of a receive call.

use towpath_shm::layout::DatagramHeader;

use crate::report::ErrorQueueEntry;

/// Result of a receive call, apart from the received bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arrival {
    /// Number of bytes received, which the call returns.
    pub len: usize,
    /// Header of the received datagram, which contains the sender's address; `None` for a stream.
    pub header: Option<DatagramHeader>,
    /// Flags that recvmsg(2) returns in `msg_flags`, for example MSG_TRUNC.
    pub flags: i32,
    /// Entry of the socket's error queue, if the call was made with MSG_ERRQUEUE.
    pub report: Option<ErrorQueueEntry>,
}
