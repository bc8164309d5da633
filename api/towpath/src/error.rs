//! Errors of starting and ending a stack, and conversion of socket errors to those of std.

use std::time::Duration;
use std::{fmt, io};

use rustix::io::Errno;
use towpath_client::Error;
use towpath_direct::SetUpError;
use towpath_engine::{EngineError, ServiceError};
use towpath_stack::BindError;
use towpath_uplink::PlanError;

/// Reason why [`Builder::start`](crate::Builder::start) failed. Every message says what to do.
///
/// Converted to an [`io::Error`], its kind is that of the cause, such as `AddrInUse` for a used
/// port.
///
/// `Debug` prints the message, too: if `main` returns the error, the runtime prints it by `Debug`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The builder has no link.
    #[error("the stack has no link: call rootless(), tap(NAME) or loopback() on the builder")]
    NoLink,
    /// The builder has two different links.
    #[error("the stack has two links: call one of rootless(), tap(NAME) and loopback()")]
    TwoLinks,
    /// A value is invalid, or contradicts another one. The message begins with the builder's
    /// method.
    #[error("{0}")]
    Option(String),
    /// The link cannot be opened, for example because a port is in use or privileges are missing.
    #[error("{message}")]
    Link {
        /// Kind of the error that prevented the link from being opened.
        kind: io::ErrorKind,
        /// Message that says what failed, and what to do.
        message: String,
    },
    /// The limit on address space (RLIMIT_AS) is too low for a stack.
    #[error(
        "the stack has no room in the address space of this process: a stack maps about 130 GiB, \
         most of it never used; raise the limit (RLIMIT_AS), as with `ulimit -v unlimited`"
    )]
    AddressSpace,
    /// The stack's thread panicked while it created the engine: a bug of this library.
    #[error("the thread of the stack panicked while it started: please report its message")]
    Panicked,
    /// The operating system refused a descriptor, a thread, or memory.
    #[error("the stack cannot be started: {0}{advice}", advice = advice(.0))]
    System(io::Error),
}

/// Reason why [`Stack::shutdown`](crate::Stack::shutdown) failed to send all data.
///
/// `Debug` prints the message, as for [`StartError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Peers did not acknowledge all data in time; their connections were reset.
    #[error(
        "{bytes} bytes were not delivered within {linger:?}, and their connections were reset: \
         give peers more time by linger()"
    )]
    Unsent {
        /// Number of bytes that peers did not acknowledge; a FIN counts as one byte.
        bytes: u64,
        /// Time that the shutdown waited for acknowledgements:
        /// [`Builder::linger`](crate::Builder::linger).
        linger: Duration,
    },
    /// The stack's thread had already ended because of a bug of this library. Unsent data is lost.
    #[error("the thread of the stack ended before the stack did: please report its message")]
    Failed,
    /// The stack belongs to the parent of this process.
    #[error("the stack belongs to the parent of this process: end it there")]
    Forked,
}

impl StartError {
    /// Converts an error of attaching this process to the engine.
    pub(crate) fn from_client(error: Error) -> Self {
        match error {
            Error::Refused(errno) if errno == Errno::NOMEM.raw_os_error() => Self::AddressSpace,
            // EPROTO: the engine's reply lacks its descriptors. The kernel drops descriptors if the
            // process has reached its limit of open ones. An engine of the same build causes this
            // error for no other reason.
            Error::Refused(errno) if errno == Errno::PROTO.raw_os_error() => {
                Self::System(Errno::MFILE.into())
            }
            error => Self::System(io_error(error)),
        }
    }

    /// Converts an error of creating the engine.
    pub(crate) fn from_engine(error: EngineError) -> Self {
        match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::OutOfMemory => Self::AddressSpace,
            error => Self::System(error),
        }
    }

    /// Converts an error of starting an event handler.
    pub(crate) fn from_service(error: ServiceError) -> Self {
        match error {
            ServiceError::Notification(error) => Self::System(error),
            error => {
                let advice = match &error {
                    ServiceError::Socket(SetUpError::Bind(BindError::AddrNotAvailable)) => {
                        "use an address of the stack"
                    }
                    ServiceError::Socket(SetUpError::TooMany(_)) => "raise sockets_max()",
                    _ => "use another address or port",
                };
                Self::Option(format!("serve(): {error}: {advice}"))
            }
        }
    }

    /// Converts an error of opening the link, or a contradiction between values.
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

/// Returns advice for an error of the operating system, to append to its message.
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

/// Formats an error and its causes in one line.
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

/// Converts an error of a socket call to the one that std returns for a kernel socket.
///
/// `Refused` keeps its errno ([`io::Error::raw_os_error`]); other errors get Linux's errno if there
/// is one. Kernel sockets have no equivalent of `Dead` and `Forked`. We return
/// [`io::ErrorKind::NetworkDown`], the kind of ENETDOWN, with a message that explains it.
pub(crate) fn io_error(error: Error) -> io::Error {
    let errno = match error {
        Error::Refused(errno) => return io::Error::from_raw_os_error(errno),
        Error::WouldBlock | Error::TimedOut => Errno::AGAIN,
        Error::Interrupted => Errno::INTR,
        // The call runs in a signal handler, and needs a lock that the interrupted call holds.
        Error::Interrupting => Errno::DEADLK,
        Error::NotConnected => Errno::NOTCONN,
        Error::NotListening => Errno::INVAL,
        Error::Closed => Errno::PIPE,
        Error::TooLong => Errno::MSGSIZE,
        Error::Dead | Error::Forked => return down(),
        // `Error` is non-exhaustive, so future variants have no errno here.
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
