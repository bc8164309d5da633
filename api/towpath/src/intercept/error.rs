//! Errors of building an interceptor, and errors of its sockets.

use std::{fmt, io};

use towpath_direct::{ReadError, WriteError};
use towpath_stack::{OptionError, SendError, SocketError};
use towpath_tap::{HostError, OpenError};

/// Reason why [`InterceptBuilder::build`](super::InterceptBuilder::build) failed. Every message
/// says what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum InterceptError {
    /// The builder has no source of packets.
    #[error(
        "there is no source of packets: call tun(), tap(), descriptor(), channels() or packets()"
    )]
    NoSource,
    /// A value is invalid. The message begins with the builder's method.
    #[error("{0}")]
    Option(String),
    /// The device cannot be opened.
    #[error("{0}")]
    Device(#[from] OpenError),
    /// The kernel's end of the device cannot be configured.
    #[error("{0}")]
    Host(#[from] HostError),
    /// The operating system refused random bytes.
    #[error("cannot get random bytes: {0}")]
    System(io::Error),
}

impl fmt::Debug for InterceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<InterceptError> for io::Error {
    fn from(error: InterceptError) -> Self {
        let kind = match &error {
            InterceptError::NoSource | InterceptError::Option(_) => io::ErrorKind::InvalidInput,
            InterceptError::Device(OpenError::NotPermitted { .. } | OpenError::TunForbidden)
            | InterceptError::Host(HostError::NotPermitted { .. }) => {
                io::ErrorKind::PermissionDenied
            }
            InterceptError::Device(OpenError::Busy { .. }) => io::ErrorKind::AddrInUse,
            InterceptError::Device(OpenError::NoTun)
            | InterceptError::Host(HostError::NoInterface { .. }) => io::ErrorKind::NotFound,
            InterceptError::Device(OpenError::Io { source, .. })
            | InterceptError::Host(HostError::Io { source, .. })
            | InterceptError::System(source) => source.kind(),
            InterceptError::Device(_) | InterceptError::Host(_) => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error.to_string())
    }
}

/// Returns the error of every call after the runner has ended.
pub(super) fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NetworkDown, "the runner of the interceptor has ended")
}

/// Returns the error of a connection that the interceptor itself has reset. Only
/// [`InterceptLimits::idle`](super::InterceptLimits::idle) causes such resets.
fn idle() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the connection was idle for too long")
}

/// Converts the error of a connection to an I/O error.
pub(super) fn failed(error: SocketError) -> io::Error {
    io::Error::from(match error {
        SocketError::Reset => io::ErrorKind::ConnectionReset,
        SocketError::TimedOut => io::ErrorKind::TimedOut,
        SocketError::NetUnreachable => io::ErrorKind::NetworkUnreachable,
        SocketError::HostUnreachable
        | SocketError::HostUnknown
        | SocketError::HostIsolated
        | SocketError::SourceRouteFailed => io::ErrorKind::HostUnreachable,
        SocketError::Prohibited => io::ErrorKind::PermissionDenied,
        SocketError::MessageTooBig(_) => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::ConnectionRefused,
    })
}

/// Converts the error of a read to an I/O error; `None` if the caller must wait for data.
pub(super) fn of_read(error: ReadError) -> Option<io::Error> {
    match error {
        ReadError::Empty => None,
        ReadError::Failed(error) => Some(failed(error)),
        _ => Some(idle()),
    }
}

/// Converts the error of a write to an I/O error; `None` if the caller must wait for room.
pub(super) fn of_write(error: WriteError) -> Option<io::Error> {
    match error {
        WriteError::Full => None,
        WriteError::Failed(error) => Some(failed(error)),
        WriteError::ShutDown => Some(io::ErrorKind::BrokenPipe.into()),
        _ => Some(idle()),
    }
}

/// Converts the error of sending a datagram to an I/O error; `None` if the caller must wait for
/// room in the queue.
pub(super) fn of_send(error: SendError) -> Option<io::Error> {
    let kind = match error {
        SendError::QueueFull => return None,
        SendError::NetUnreachable => io::ErrorKind::NetworkUnreachable,
        SendError::Forbidden => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::InvalidInput,
    };
    Some(io::Error::new(kind, error.to_string()))
}

/// Converts the error of a socket option to an I/O error.
pub(super) fn of_option(error: OptionError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}
