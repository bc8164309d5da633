//! Why a stack cannot be started or ended, and the client's errors as those of std.

use std::time::Duration;
use std::{fmt, io};

use rustix::io::Errno;
use towpath_client::Error;
use towpath_engine::EngineError;
use towpath_uplink::PlanError;

/// Why [`Builder::start`](crate::Builder::start) made no stack. Each says what to do.
///
/// As an [`io::Error`] it has the kind of its cause, as `AddrInUse` for a port that is taken.
///
/// `Debug` writes the sentence, too, because that is what a `main` prints that returns the error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The builder was not told how the stack is connected.
    #[error("the stack has no link: call rootless(), tap(NAME) or loopback() on the builder")]
    NoLink,
    /// The builder was told two ways in which the stack is connected.
    #[error("the stack has two links: call one of rootless(), tap(NAME) and loopback()")]
    TwoLinks,
    /// A value that the builder was given is wrong, or does not go with the others. The sentence
    /// begins with the call.
    #[error("{0}")]
    Option(String),
    /// The link cannot be opened: a port is taken, or rights are missing.
    #[error("{message}")]
    Link {
        /// The cause.
        kind: io::ErrorKind,
        /// The sentence that says what failed, and what to do.
        message: String,
    },
    /// The process may not map as much address space as a stack takes (RLIMIT_AS).
    #[error(
        "the stack has no room in the address space of this process: a stack maps about 130 GiB, \
         most of it never used; raise the limit (RLIMIT_AS), as with `ulimit -v unlimited`"
    )]
    AddressSpace,
    /// The stack's thread panicked while it made the engine: a defect of this library.
    #[error("the thread of the stack panicked while it started: please report its message")]
    Panicked,
    /// The operating system refused a descriptor, a thread, or memory.
    #[error("the stack cannot be started: {0}{advice}", advice = advice(.0))]
    System(io::Error),
}

/// Why [`Stack::shutdown`](crate::Stack::shutdown) could not send everything.
///
/// `Debug` writes the sentence, as that of [`StartError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Peers did not take everything in time; their connections were reset.
    #[error(
        "{bytes} bytes were not delivered within {linger:?}, and their connections were reset: \
         give peers more time by linger()"
    )]
    Unsent {
        /// Bytes that were not acknowledged, an end of a stream counted as one.
        bytes: u64,
        /// The time that was waited: [`Builder::linger`](crate::Builder::linger).
        linger: Duration,
    },
    /// The stack's thread had ended by itself, with everything that was not sent: a defect of
    /// this library.
    #[error("the thread of the stack ended before the stack did: please report its message")]
    Failed,
    /// The stack belongs to the process that forked this one.
    #[error("the stack belongs to the parent of this process: end it there")]
    Forked,
}

impl StartError {
    /// An engine that this process cannot attach to.
    pub(crate) fn from_client(error: Error) -> Self {
        match error {
            Error::Refused(errno) if errno == Errno::NOMEM.raw_os_error() => Self::AddressSpace,
            // The kernel closes descriptors on their way where the process has no numbers for them.
            // An engine of the same build makes no other mistake in its answers.
            Error::Refused(errno) if errno == Errno::PROTO.raw_os_error() => {
                Self::System(Errno::MFILE.into())
            }
            error => Self::System(io_error(error)),
        }
    }

    /// An engine that cannot be made.
    pub(crate) fn from_engine(error: EngineError) -> Self {
        match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::OutOfMemory => Self::AddressSpace,
            error => Self::System(error),
        }
    }

    /// A link that cannot be opened, or values that contradict each other.
    pub(crate) fn from_plan(error: PlanError) -> Self {
        let kind = match &error {
            PlanError::PortTaken { error, .. } => error.kind(),
            PlanError::System { source, .. } | PlanError::Capture(source) => source.kind(),
            PlanError::AddressTaken { .. } => io::ErrorKind::AddrInUse,
            PlanError::NoNetwork => io::ErrorKind::AddrNotAvailable,
            PlanError::Device(error) => error.kind,
            PlanError::Host(_) => io::ErrorKind::PermissionDenied,
            _ => return Self::Option(with_causes(&error)),
        };
        Self::Link { kind, message: with_causes(&error) }
    }
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The rest of a sentence that says what helps against an error of the system.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => {
            ": a stack takes some 30 descriptors; raise the limit, as with `ulimit -n`"
        }
        Some(Errno::NFILE) => ": the machine has no descriptors left (sysctl fs.file-max)",
        Some(Errno::AGAIN) => {
            ": there is no room for another thread; raise the limit (`ulimit -u`, or -v)"
        }
        _ => "",
    }
}

/// An error and the errors that caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        let kind = match &error {
            StartError::NoLink | StartError::TwoLinks | StartError::Option(_) => {
                io::ErrorKind::InvalidInput
            }
            StartError::Link { kind, .. } => *kind,
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
    crate::exiting::wait();
    io::Error::new(
        io::ErrorKind::NetworkDown,
        "the towpath stack of this socket has ended, or is that of the parent of this process: \
         start another stack",
    )
}
