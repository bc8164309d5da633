//! Why an operation on a socket is refused: one small enum an operation.

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
    /// Why a socket cannot be opened.
    OpenError {
        /// The stack holds `sockets_max` sockets.
        TooMany = "too many sockets",
    }
}

refusals! {
    /// Why an address cannot be bound.
    BindError {
        /// Another socket has it (EADDRINUSE).
        AddrInUse = "address in use",
        /// Not one of our addresses (EADDRNOTAVAIL).
        AddrNotAvailable = "address not available",
        /// Bound already, the other family, or no such socket (EINVAL).
        Invalid = "the socket cannot be bound so",
    }
}

refusals! {
    /// Why a socket cannot listen.
    ListenError {
        /// Another listener has the address (EADDRINUSE).
        AddrInUse = "address in use",
        /// Not a fresh or listening stream socket (EINVAL).
        Invalid = "the socket cannot listen",
    }
}

refusals! {
    /// Why a connect fails at once.
    ConnectError {
        /// No free port towards that peer (EADDRNOTAVAIL).
        NoPort = "no free local port",
        /// Exactly this connection exists (EADDRINUSE for a bound socket).
        AddrInUse = "the connection exists",
        /// No route, or no source address for it (ENETUNREACH).
        NetUnreachable = "network unreachable",
        /// Connected already, or connecting (EISCONN).
        Connected = "already connected",
        /// To port 0 (ECONNREFUSED).
        Refused = "nobody listens on port 0",
        /// An IPv6 peer of a socket that is connected from an IPv4 address (EAFNOSUPPORT).
        OtherFamily = "connected with IPv4",
        /// A listener, the other family, a peer that is not one host, from 127.0.0.0/8 to another
        /// host, or no such socket (EINVAL).
        Invalid = "the socket cannot connect so",
        /// To a broadcast address without permission (EACCES).
        Forbidden = "broadcast not permitted",
        /// No room for another socket (ENOBUFS).
        TooMany = "too many sockets",
    }
}

refusals! {
    /// Why a datagram is not sent.
    SendError {
        /// No destination given and none connected (EDESTADDRREQ).
        NotConnected = "no destination",
        /// No route, or no source address for it (ENETUNREACH).
        NetUnreachable = "network unreachable",
        /// Longer than UDP can carry, or than the path MTU without fragmentation (EMSGSIZE).
        TooLong = "message too long",
        /// To a broadcast address without permission (EACCES).
        Forbidden = "broadcast not permitted",
        /// No free local port (EAGAIN).
        NoPort = "no free local port",
        /// The device does not keep up; the datagram is lost and counted (ENOBUFS).
        QueueFull = "output queue full",
        /// The other family, port 0 named, from 127.0.0.0/8 to another host, a bad segment size, or
        /// no such socket (EINVAL).
        Invalid = "the datagram cannot be sent so",
    }
}

refusals! {
    /// Why an option is not set.
    OptionError {
        /// The socket's kind or state has no such option (ENOPROTOOPT).
        NotApplicable = "no such option here",
        /// The value is out of range (EINVAL).
        Invalid = "bad option value",
        /// No such interface or address (ENODEV).
        NoInterface = "no such interface",
        /// A multicast group was joined already (EADDRINUSE) or never (EADDRNOTAVAIL).
        Membership = "no such change of membership",
        /// A source of a multicast group was joined already, or never (EADDRNOTAVAIL).
        NotAvailable = "no such change of sources",
        /// Too many multicast groups (ENOBUFS).
        TooMany = "too many memberships",
        /// The id names no socket (EBADF).
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
