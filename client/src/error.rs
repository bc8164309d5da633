//! Errors on the program's side.

/// Error of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The engine has ended, or the socket was closed.
    Dead,
    /// The call would have to wait.
    WouldBlock,
    /// A signal handler made the call, which needs a lock or bytes of the interrupted call.
    Interrupting,
    /// A signal handler ran while the call waited.
    Interrupted,
    /// A signal handler forked while the call waited, and this is the child. Repeat the call on the
    /// child's own attachment.
    Forked,
    /// The time limit has passed.
    TimedOut,
    /// The socket is not connected.
    NotConnected,
    /// The socket does not listen (any more).
    NotListening,
    /// The socket is closed for sending.
    Closed,
    /// The datagram is longer than the socket may queue.
    TooLong,
    /// The engine or the network refused, with an errno of Linux.
    Refused(i32),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dead => f.write_str("the engine is gone"),
            Self::WouldBlock => f.write_str("it would block"),
            Self::Interrupting => f.write_str("the interrupted call is in the way"),
            Self::Interrupted => f.write_str("interrupted by a signal"),
            Self::Forked => f.write_str("begun by the process that forked this one"),
            Self::TimedOut => f.write_str("timed out"),
            Self::NotConnected => f.write_str("not connected"),
            Self::NotListening => f.write_str("not listening"),
            Self::Closed => f.write_str("closed for sending"),
            Self::TooLong => f.write_str("datagram too long"),
            Self::Refused(errno) => write!(f, "refused with errno {errno}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Refused(errno.raw_os_error())
    }
}
