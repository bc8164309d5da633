//! Errors of socket operations, one enum per operation.

use std::fmt;

use crate::net::RouteError;

macro_rules! refusals {
    ($(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal, )* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $( $(#[$vdoc])* $variant, )* }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( $name::$variant => $text, )* })
            }
        }

        impl std::error::Error for $name {}
    };
}

refusals! {
    /// Error of opening a socket.
    OpenError {
        /// The stack has `sockets_max` sockets.
        TooMany = "too many sockets",
    }
}

refusals! {
    /// Error of binding a socket.
    BindError {
        /// The address is in use (EADDRINUSE).
        AddrInUse = "address in use",
        /// The address does not belong to this host (EADDRNOTAVAIL).
        AddrNotAvailable = "address not available",
        /// The socket is bound already, has another family, or does not exist (EINVAL).
        Invalid = "the socket cannot be bound so",
    }
}

refusals! {
    /// Error of listening.
    ListenError {
        /// Another listener uses the address (EADDRINUSE).
        AddrInUse = "address in use",
        /// The socket is neither a new nor a listening stream socket (EINVAL).
        Invalid = "the socket cannot listen",
    }
}

refusals! {
    /// Immediate error of connecting.
    ConnectError {
        /// No free local port for this peer (EADDRNOTAVAIL).
        NoPort = "no free local port",
        /// The same connection already exists (EADDRINUSE for a bound socket).
        AddrInUse = "the connection exists",
        /// No route, or no source address for it (ENETUNREACH).
        NetUnreachable = "network unreachable",
        /// The socket is connected or connecting (EISCONN).
        Connected = "already connected",
        /// The destination port is 0 (ECONNREFUSED).
        Refused = "nobody listens on port 0",
        /// The peer is IPv6, but the socket is connected from an IPv4 address (EAFNOSUPPORT).
        OtherFamily = "connected with IPv4",
        /// Invalid (EINVAL): a listener, another family, a peer that is not a single host,
        /// 127.0.0.0/8 as the source to another host, or no such socket.
        Invalid = "the socket cannot connect so",
        /// Broadcast address without SO_BROADCAST (EACCES).
        Forbidden = "broadcast not permitted",
        /// A limit on sockets is reached (ENOBUFS).
        TooMany = "too many sockets",
    }
}

refusals! {
    /// Error of sending a datagram.
    SendError {
        /// No destination was given, and the socket is not connected (EDESTADDRREQ).
        NotConnected = "no destination",
        /// No route, or no source address for it (ENETUNREACH).
        NetUnreachable = "network unreachable",
        /// The datagram exceeds the UDP maximum, or the path MTU without fragmentation (EMSGSIZE).
        TooLong = "message too long",
        /// Broadcast address without SO_BROADCAST (EACCES).
        Forbidden = "broadcast not permitted",
        /// No free local port (EAGAIN).
        NoPort = "no free local port",
        /// The device queue is full; the datagram is dropped and counted (ENOBUFS).
        QueueFull = "output queue full",
        /// Invalid (EINVAL): another family, port 0, 127.0.0.0/8 as the source to another host, an
        /// invalid segment size, or no such socket.
        Invalid = "the datagram cannot be sent so",
    }
}

refusals! {
    /// Error of setting an option.
    OptionError {
        /// The socket's kind or state does not support the option (ENOPROTOOPT).
        NotApplicable = "no such option here",
        /// The value is invalid (EINVAL).
        Invalid = "bad option value",
        /// No such interface or address (ENODEV).
        NoInterface = "no such interface",
        /// The multicast group was joined already (EADDRINUSE), or was not joined (EADDRNOTAVAIL).
        Membership = "no such change of membership",
        /// The source of the group was joined already, or was not joined (EADDRNOTAVAIL).
        NotAvailable = "no such change of sources",
        /// Too many multicast groups (ENOBUFS).
        TooMany = "too many memberships",
        /// No such socket (EBADF).
        NoSocket = "no such socket",
    }
}

impl From<RouteError> for ConnectError {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::LoopbackSource | RouteError::Blackhole => ConnectError::Invalid,
            _ => ConnectError::NetUnreachable,
        }
    }
}

impl From<RouteError> for SendError {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::LoopbackSource | RouteError::Blackhole => SendError::Invalid,
            _ => SendError::NetUnreachable,
        }
    }
}
