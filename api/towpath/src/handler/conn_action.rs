//! Results of calls of a handler, and reasons for the end of a connection.

use towpath_stack::SocketError;

/// Next step for a connection after a call of its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnAction {
    /// Calls [`readable`](super::Handler::readable) when more bytes arrive. If the peer has ended
    /// its bytes, the connection is finished.
    Continue,
    /// Calls [`writable`](super::Handler::writable) when the send buffer has more room than now.
    /// Does not call [`readable`](super::Handler::readable) before. Same as `Continue` if the send
    /// buffer is empty. A timer or a [message](super::HandlerRemote::call) that returns `Continue`
    /// meanwhile changes nothing.
    AwaitRoom,
    /// Does not call [`readable`](super::Handler::readable) until another thread has
    /// [called](super::HandlerRemote::call) the connection, or another call has
    /// [resumed](super::HandlerShard::resume) it. The timer runs on, and if
    /// [`timer`](super::Handler::timer) returns `Continue`, that resumes the connection, too.
    Pause,
    /// Ends the connection after all written bytes are sent. Unread bytes are discarded.
    Finish,
    /// Resets the connection at once.
    Reset,
}

/// Reason for the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The handler has ended the connection, or both ends have ended their bytes.
    Finished,
    /// The handler has reset the connection.
    Reset,
    /// The handler panicked.
    Panicked,
    /// The peer has reset the connection.
    PeerReset,
    /// The peer refused the connection.
    Refused,
    /// The peer did not answer in time.
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
