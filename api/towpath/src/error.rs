//! Why a stack cannot be started or ended, and the client's errors as those of std.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use towpath_client::Error;
use towpath_engine::EngineError;

/// Why [`Builder::start`](crate::Builder::start) made no stack. Each says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The builder was not told how the stack is connected.
    #[error("the stack has no link: call rootless(), tap(NAME) or loopback() on the builder")]
    NoLink,
    /// The process may not map as much address space as a stack takes (RLIMIT_AS).
    #[error(
        "the stack has no room in the address space of this process: a stack maps \
         about 130 GiB, most of it never used; raise the limit, as with `ulimit -v unlimited`"
    )]
    AddressSpace,
    /// The stack's thread panicked while it made the engine: a defect of this library.
    #[error("the thread of the stack panicked while it started: please report its message")]
    Panicked,
    /// The operating system refused a descriptor, a thread, or memory.
    #[error("the stack cannot be started: {0}")]
    System(#[source] io::Error),
}

/// Why [`Stack::shutdown`](crate::Stack::shutdown) could not send everything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Peers did not take everything in time; their connections were reset.
    #[error("{bytes} bytes were not delivered within {linger:?}, and their connections were reset")]
    Unsent {
        /// Bytes that were not acknowledged, an end of a stream counted as one.
        bytes: u64,
        /// The time that was waited: [`Builder::linger`](crate::Builder::linger).
        linger: Duration,
    },
    /// The stack's thread panicked: a defect of this library.
    #[error("the thread of the stack panicked: please report its message")]
    Failed,
    /// The stack belongs to the process that forked this one.
    #[error("the stack belongs to the parent of this process: end it there")]
    Forked,
}

impl StartError {
    /// For an engine that cannot be made.
    pub(crate) fn from_engine(error: EngineError) -> Self {
        match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::OutOfMemory => Self::AddressSpace,
            error => Self::System(error),
        }
    }

    /// For an engine that this process cannot attach to.
    pub(crate) fn from_client(error: Error) -> Self {
        match error {
            Error::Refused(errno) if errno == Errno::NOMEM.raw_os_error() => Self::AddressSpace,
            error => Self::System(io_error(error)),
        }
    }
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        let kind = match &error {
            StartError::NoLink => io::ErrorKind::InvalidInput,
            StartError::AddressSpace => io::ErrorKind::OutOfMemory,
            StartError::Panicked => io::ErrorKind::Other,
            StartError::System(source) => source.kind(),
        };
        Self::new(kind, error)
    }
}

impl From<ShutdownError> for io::Error {
    fn from(error: ShutdownError) -> Self {
        let kind = match error {
            ShutdownError::Unsent { .. } => io::ErrorKind::TimedOut,
            ShutdownError::Failed => io::ErrorKind::Other,
            ShutdownError::Forked => io::ErrorKind::Unsupported,
        };
        Self::new(kind, error)
    }
}

/// An error of a call on a socket, as std has it for a socket of the kernel.
///
/// `Refused` keeps its errno ([`io::Error::raw_os_error`]); so have the others that Linux has an
/// errno for. `Dead` and `Forked`, which no socket of the kernel knows, are
/// [`io::ErrorKind::NetworkDown`], the kind of ENETDOWN, with a sentence that says what happened.
pub(crate) fn io_error(error: Error) -> io::Error {
    let errno = match error {
        Error::Refused(errno) => return io::Error::from_raw_os_error(errno),
        Error::WouldBlock | Error::TimedOut => Errno::AGAIN,
        Error::Interrupted => Errno::INTR,
        // A lock is in the way that the interrupted call has.
        Error::Interrupting => Errno::DEADLK,
        Error::NotConnected => Errno::NOTCONN,
        Error::NotListening => Errno::INVAL,
        Error::Closed => Errno::PIPE,
        Error::TooLong => Errno::MSGSIZE,
        Error::Dead | Error::Forked => return down(),
        // `Error` is to grow.
        other => return io::Error::other(other),
    };
    io::Error::from_raw_os_error(errno.raw_os_error())
}

#[cold]
fn down() -> io::Error {
    io::Error::new(
        io::ErrorKind::NetworkDown,
        "the towpath stack of this socket has ended, or is that of the parent of this process: \
         start another stack",
    )
}
