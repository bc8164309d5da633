//! Errno values of Linux, and conversions of the stack's errors to them.

use towpath_shm::control::ControlReply;
use towpath_stack::{
    BindError, ConnectError, ListenError, OpenError, OptionError, SendError, SocketError,
};

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EBADF: i32 = 9;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const EACCES: i32 = 13;
pub(crate) const ENODEV: i32 = 19;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EPIPE: i32 = 32;
pub(crate) const ENONET: i32 = 64;
pub(crate) const EPROTO: i32 = 71;
pub(crate) const EDESTADDRREQ: i32 = 89;
pub(crate) const EMSGSIZE: i32 = 90;
pub(crate) const ENOPROTOOPT: i32 = 92;
pub(crate) const EPROTONOSUPPORT: i32 = 93;
pub(crate) const EOPNOTSUPP: i32 = 95;
pub(crate) const EAFNOSUPPORT: i32 = 97;
pub(crate) const EADDRINUSE: i32 = 98;
pub(crate) const EADDRNOTAVAIL: i32 = 99;
pub(crate) const ENETUNREACH: i32 = 101;
pub(crate) const ECONNRESET: i32 = 104;
pub(crate) const ENOBUFS: i32 = 105;
pub(crate) const EISCONN: i32 = 106;
pub(crate) const ENOTCONN: i32 = 107;
pub(crate) const ETIMEDOUT: i32 = 110;
pub(crate) const ECONNREFUSED: i32 = 111;
pub(crate) const EHOSTDOWN: i32 = 112;
pub(crate) const EHOSTUNREACH: i32 = 113;
pub(crate) const EALREADY: i32 = 114;

/// An errno to return to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl Errno {
    /// Returns a reply that rejects a request with this errno.
    pub fn refusal(self) -> ControlReply {
        ControlReply { errno: self.0, ..ControlReply::default() }
    }
}

impl From<OpenError> for Errno {
    fn from(_: OpenError) -> Self {
        Self(ENOBUFS)
    }
}

impl From<BindError> for Errno {
    fn from(error: BindError) -> Self {
        Self(match error {
            BindError::AddrInUse => EADDRINUSE,
            BindError::AddrNotAvailable => EADDRNOTAVAIL,
            _ => EINVAL,
        })
    }
}

impl From<ListenError> for Errno {
    fn from(error: ListenError) -> Self {
        Self(match error {
            ListenError::AddrInUse => EADDRINUSE,
            _ => EINVAL,
        })
    }
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Self {
        Self(match error {
            ConnectError::NoPort | ConnectError::AddrInUse => EADDRNOTAVAIL,
            ConnectError::NetUnreachable => ENETUNREACH,
            ConnectError::Connected => EISCONN,
            ConnectError::OtherFamily => EAFNOSUPPORT,
            ConnectError::Refused => ECONNREFUSED,
            ConnectError::Forbidden => EACCES,
            ConnectError::TooMany => ENOBUFS,
            _ => EINVAL,
        })
    }
}

impl From<SendError> for Errno {
    fn from(error: SendError) -> Self {
        Self(match error {
            SendError::NotConnected => EDESTADDRREQ,
            SendError::NetUnreachable => ENETUNREACH,
            SendError::TooLong => EMSGSIZE,
            SendError::Forbidden => EACCES,
            SendError::NoPort => EAGAIN,
            SendError::QueueFull => ENOBUFS,
            _ => EINVAL,
        })
    }
}

impl From<OptionError> for Errno {
    fn from(error: OptionError) -> Self {
        Self(match error {
            OptionError::NotApplicable => ENOPROTOOPT,
            OptionError::NoInterface => ENODEV,
            OptionError::Membership | OptionError::NotAvailable => EADDRNOTAVAIL,
            OptionError::TooMany => ENOBUFS,
            OptionError::NoSocket => EBADF,
            _ => EINVAL,
        })
    }
}

impl From<SocketError> for Errno {
    fn from(error: SocketError) -> Self {
        Self(match error {
            SocketError::Reset => ECONNRESET,
            SocketError::Refused | SocketError::PortUnreachable => ECONNREFUSED,
            SocketError::TimedOut => ETIMEDOUT,
            SocketError::HostUnreachable => EHOSTUNREACH,
            SocketError::NetUnreachable => ENETUNREACH,
            SocketError::ProtocolUnreachable => ENOPROTOOPT,
            SocketError::SourceRouteFailed => EOPNOTSUPP,
            SocketError::HostUnknown => EHOSTDOWN,
            SocketError::HostIsolated => ENONET,
            SocketError::Prohibited => EACCES,
            SocketError::BadHeader => EPROTO,
            SocketError::MessageTooBig(_) => EMSGSIZE,
            SocketError::AddrNotAvailable => EADDRNOTAVAIL,
            _ => EPROTO,
        })
    }
}
