//! Errors of socket operations. Each operation has its own enum.

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
        /// The stack has reached its limit of sockets, `sockets_max`.
        TooMany = "too many sockets",
    }
}

refusals! {
    /// Error of binding a socket.
    BindError {
        /// The local address is in use by another socket (EADDRINUSE).
        AddrInUse = "address in use",
        /// The local address does not belong to this host (EADDRNOTAVAIL).
        AddrNotAvailable = "address not available",
        /// The socket is already bound or does not exist, or the address is of another address
        /// family (EINVAL).
        Invalid = "the socket cannot be bound so",
    }
}

refusals! {
    /// Error of listening on a socket.
    ListenError {
        /// Another listener uses the local address (EADDRINUSE).
        AddrInUse = "address in use",
        /// The socket is neither a new stream socket nor a listener (EINVAL).
        Invalid = "the socket cannot listen",
    }
}

refusals! {
    /// Error of a connect call that fails immediately.
    ConnectError {
        /// No local port is free for a connection to this peer (EADDRNOTAVAIL).
        NoPort = "no free local port",
        /// A connection with the same addresses and ports already exists (EADDRINUSE for a bound
        /// socket).
        AddrInUse = "the connection exists",
        /// There is no route to the peer, or no source address for the route (ENETUNREACH).
        NetUnreachable = "network unreachable",
        /// The socket is already connected or connecting (EISCONN).
        Connected = "already connected",
        /// The destination port is 0 (ECONNREFUSED).
        Refused = "nobody listens on port 0",
        /// The peer's address is IPv6, but the socket already has an IPv4 address (EAFNOSUPPORT).
        OtherFamily = "connected with IPv4",
        /// The call is invalid (EINVAL). The socket listens or does not exist, or the peer is of
        /// another address family or not a single host. A source in 127.0.0.0/8 is invalid if the
        /// peer is another host.
        Invalid = "the socket cannot connect so",
        /// The destination is a broadcast address, and SO_BROADCAST is not set (EACCES).
        Forbidden = "broadcast not permitted",
        /// A limit on sockets is reached (ENOBUFS).
        TooMany = "too many sockets",
    }
}

refusals! {
    /// Error of sending a datagram.
    SendError {
        /// The call has no destination, and the socket is not connected (EDESTADDRREQ).
        NotConnected = "no destination",
        /// There is no route to the destination, or no source address for the route (ENETUNREACH).
        NetUnreachable = "network unreachable",
        /// The datagram exceeds the maximum of UDP, or exceeds the path MTU and must not be
        /// fragmented (EMSGSIZE).
        TooLong = "message too long",
        /// The destination is a broadcast address, and SO_BROADCAST is not set (EACCES).
        Forbidden = "broadcast not permitted",
        /// No local port is free (EAGAIN).
        NoPort = "no free local port",
        /// The device queue is full, so the datagram was dropped and counted (ENOBUFS).
        QueueFull = "output queue full",
        /// The call is invalid (EINVAL). The destination is of another address family or has port
        /// 0, the segment size is invalid, or the socket does not exist. A source in 127.0.0.0/8 is
        /// invalid if the destination is another host.
        Invalid = "the datagram cannot be sent so",
    }
}

refusals! {
    /// Error of setting a socket option.
    OptionError {
        /// The option does not apply to this kind of socket, or to its current state (ENOPROTOOPT).
        NotApplicable = "no such option here",
        /// The value of the option is invalid (EINVAL).
        Invalid = "bad option value",
        /// There is no such interface or address (ENODEV).
        NoInterface = "no such interface",
        /// The multicast group is already joined (EADDRINUSE), or is not joined (EADDRNOTAVAIL).
        Membership = "no such change of membership",
        /// The source of the multicast group is already joined, or is not joined (EADDRNOTAVAIL).
        NotAvailable = "no such change of sources",
        /// The socket has joined too many multicast groups (ENOBUFS).
        TooMany = "too many memberships",
        /// The socket does not exist (EBADF).
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
