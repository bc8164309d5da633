//! Errors of calls on a node, one enum per kind of call.

use thiserror::Error;
use towpath_stack::{BindError, ConnectError, ListenError, OpenError, OptionError, SocketError};

/// Error of creating a socket. The socket is not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SetUpError {
    /// The node has `sockets_max` sockets; closed sockets that are not removed yet are included.
    #[error("the node has {0} sockets, which is its limit")]
    TooMany(usize),
    /// A limit of the stack on its sockets is reached.
    #[error("opening a socket: {0}")]
    Open(#[from] OpenError),
    /// The local address is in use or does not belong to the node.
    #[error("binding: {0}")]
    Bind(#[from] BindError),
    /// Another socket listens on the local address.
    #[error("listening: {0}")]
    Listen(#[from] ListenError),
    /// The stack rejects the peer or has no route to it.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    /// The option cannot be set on this kind of socket.
    #[error("setting an option: {0}")]
    Option(#[from] OptionError),
    /// The stack has dropped the SYN that was to be accepted.
    #[error("the SYN was given up")]
    SynForgotten,
}

/// Error of reading from a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No data is available: wait for [`crate::NodeEvent::Readable`].
    #[error("nothing to read yet")]
    Empty,
    /// The connection has failed, and all received bytes were read.
    #[error("the connection failed: {0:?}")]
    Failed(SocketError),
    /// The handle does not refer to an open connection.
    #[error("the handle names no open connection")]
    NoConnection,
}

/// Error of writing to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The send buffer is full: wait for [`crate::NodeEvent::Writable`].
    #[error("the send buffer is full")]
    Full,
    /// [`crate::Node::shutdown`] was called, so the stream has ended.
    #[error("the stream was shut down")]
    ShutDown,
    /// The connection has failed.
    #[error("the connection failed: {0:?}")]
    Failed(SocketError),
    /// The handle does not refer to an open connection.
    #[error("the handle names no open connection")]
    NoConnection,
}
