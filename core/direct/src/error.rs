//! Why a call on a node is refused: an enum for each kind of call.

use thiserror::Error;
use towpath_stack::{BindError, ConnectError, ListenError, OpenError, OptionError, SocketError};

/// Why a socket is not made. Nothing is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SetUpError {
    /// The node has `sockets_max` sockets, those that are closing among them.
    #[error("the node has {0} sockets, which is its limit")]
    TooMany(usize),
    /// The stack has no room.
    #[error("opening a socket: {0}")]
    Open(#[from] OpenError),
    /// The local address is taken, or is none of the node's.
    #[error("binding: {0}")]
    Bind(#[from] BindError),
    /// The local address has a listener.
    #[error("listening: {0}")]
    Listen(#[from] ListenError),
    /// The stack refuses the peer or has no route to it.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    /// An option does not fit the socket.
    #[error("setting an option: {0}")]
    Option(#[from] OptionError),
    /// The SYN was given up meanwhile.
    #[error("the SYN was given up")]
    SynForgotten,
}

/// Why nothing is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Nothing is there now: wait for [`crate::NodeEvent::Readable`].
    #[error("nothing to read yet")]
    Empty,
    /// The connection is over, and all bytes that came are read.
    #[error("the connection failed: {0:?}")]
    Failed(SocketError),
    /// The handle names no connection.
    #[error("the handle names no open connection")]
    NoConnection,
}

/// Why nothing is taken to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The send buffer is full: wait for [`crate::NodeEvent::Writable`].
    #[error("the send buffer is full")]
    Full,
    /// [`crate::Node::shutdown`] was called: the stream has its end.
    #[error("the stream was shut down")]
    ShutDown,
    /// The connection is over.
    #[error("the connection failed: {0:?}")]
    Failed(SocketError),
    /// The handle names no connection.
    #[error("the handle names no open connection")]
    NoConnection,
}
