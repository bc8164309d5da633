//! Errors on the program's side.

/// Why an operation did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The engine is gone, or the socket is of an engine that is gone.
    Dead,
    /// The call would have to wait, and was asked not to.
    WouldBlock,
    /// The call was made in a signal handler, and needs a lock or bytes of the interrupted call.
    Interrupting,
    /// A signal handler ran while it waited.
    Interrupted,
    /// A signal handler forked while the call waited, and this is the child: the call is to be
    /// begun again, on the child's own attachment.
    Forked,
    /// The time to wait was up.
    TimedOut,
    /// The socket is not connected.
    NotConnected,
    /// The socket does not listen (any more).
    NotListening,
    /// Nothing can be sent any more.
    Closed,
    /// A datagram that cannot fit.
    TooLong,
    /// The engine or the network said no, with an errno as Linux numbers them.
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
