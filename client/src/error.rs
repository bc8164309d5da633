//! Errors of socket calls, in the program's process.

/// Error of a socket call or of a request to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The engine has ended, or the socket was closed.
    Dead,
    /// The call would have to wait, but must not (EAGAIN).
    WouldBlock,
    /// The call comes from a signal handler, and needs a lock or bytes of the interrupted call.
    Interrupting,
    /// A signal handler ran while the call waited (EINTR).
    Interrupted,
    /// A signal handler forked while the call waited, and this is the child. Repeat the call over
    /// the child's own attachment to the engine.
    Forked,
    /// The timeout of the call has passed.
    TimedOut,
    /// The socket is not connected (ENOTCONN).
    NotConnected,
    /// The socket is not listening, or no longer.
    NotListening,
    /// The socket is shut down for writing, or was never connected (EPIPE).
    Closed,
    /// The datagram is longer than the socket's send buffer allows (EMSGSIZE).
    TooLong,
    /// The engine rejected the call, or the socket had a pending error. Contains Linux's errno.
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
