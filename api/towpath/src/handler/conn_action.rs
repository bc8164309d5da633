//! Results of handler calls, and reasons why a connection ended.

use towpath_stack::SocketError;

/// Action that the stack takes for a connection after a call of its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnAction {
    /// Calls [`readable`](super::Handler::readable) when more bytes arrive. If the peer has sent
    /// its FIN, closes the connection.
    Continue,
    /// Calls [`writable`](super::Handler::writable) when the send buffer has more room than now.
    /// Until then, [`readable`](super::Handler::readable) is not called. Same as `Continue` if the
    /// send buffer is empty. A timer or a [message](super::HandlerRemote::call) that returns
    /// `Continue` does not end this wait.
    AwaitRoom,
    /// Does not call [`readable`](super::Handler::readable) until another thread has
    /// [called](super::HandlerRemote::call) the connection, or another call has
    /// [resumed](super::HandlerShard::resume) it. The timer continues. If
    /// [`timer`](super::Handler::timer) returns `Continue`, this also resumes the connection.
    Pause,
    /// Closes the connection after all written bytes are sent. Unread bytes are discarded.
    Finish,
    /// Sends a reset, and drops the connection at once.
    Reset,
}

/// Reason why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The handler closed the connection, or both ends have sent their FIN.
    Finished,
    /// The handler has reset the connection.
    Reset,
    /// The handler panicked.
    Panicked,
    /// The peer has reset the connection.
    PeerReset,
    /// The peer refused the connection.
    Refused,
    /// The peer did not answer before the timeout of the connection attempt or of retransmission.
    TimedOut,
    /// The network reported that the peer cannot be reached.
    Unreachable,
}

impl From<SocketError> for CloseReason {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Reset => Self::PeerReset,
            SocketError::Refused => Self::Refused,
            SocketError::TimedOut => Self::TimedOut,
            _ => Self::Unreachable,
        }
    }
}
