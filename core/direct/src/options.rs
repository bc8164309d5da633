//! Options of sockets.

use std::net::SocketAddr;

use towpath_stack::IfaceId;
use towpath_tcp::CongestionKind;

use crate::table::BufferSizes;

/// Options of a connection, or of a listener and the connections that it accepts.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamOptions {
    /// Local address; `None` lets the stack choose one.
    pub local: Option<SocketAddr>,
    /// Buffer sizes of the connection, or of the connections that a listener accepts. If this is
    /// `None`, the default of the node is used.
    pub buffers: Option<BufferSizes>,
    /// Congestion control of the connection, or of the connections that a listener accepts. If this
    /// is `None`, the default of the stack is used.
    pub congestion: Option<CongestionKind>,
    /// Whether Nagle's algorithm is disabled, so that short segments are sent although bytes are in
    /// flight. For a listener, this applies to the connections that it accepts.
    pub nodelay: bool,
    /// Interface to which the socket is restricted (SO_BINDTODEVICE).
    pub device: Option<IfaceId>,
}

/// Options of a UDP socket.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatagramOptions {
    /// Interface to which the socket is restricted (SO_BINDTODEVICE).
    pub device: Option<IfaceId>,
    /// Peer from which alone the socket receives, and whose ICMP errors it reports.
    pub peer: Option<SocketAddr>,
}
