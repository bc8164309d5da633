//! Events of a node's sockets.

use std::net::SocketAddr;

use towpath_stack::{PendingId, SocketError};

use crate::handle::SocketHandle;

/// Event of a node. An event may stand for several of the same kind since the last poll, so after
/// `Readable` read until `Empty`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// The handshake of a connect, an accepted SYN, or a connection to a listener of another shard
    /// has completed.
    Connected(SocketHandle),
    /// A listener has a connection to accept.
    Incoming(SocketHandle),
    /// Bytes or datagrams are available.
    Readable(SocketHandle),
    /// The send buffer has space again.
    Writable(SocketHandle),
    /// The peer has closed its direction: the stream ends after the unread bytes.
    PeerClosed(SocketHandle),
    /// The connection has failed, or a datagram could not be delivered.
    Failed(SocketHandle, SocketError),
    /// A closed socket was removed, so its handle is dead. Always the last event.
    Closed(SocketHandle),
    /// A SYN on an any-address interface awaits [`crate::Node::accept_syn`] or
    /// [`crate::Node::refuse_syn`].
    Syn(PendingSyn),
    /// A reported SYN was dropped, because its sender stopped retransmitting or too many were
    /// pending.
    SynForgotten(PendingId),
}

/// SYN received on an any-address interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingSyn {
    /// Identifier for accepting or refusing.
    pub id: PendingId,
    /// Destination address.
    pub local: SocketAddr,
    /// Source address.
    pub remote: SocketAddr,
}

/// Set of pending events of a socket; one bit per kind bounds their number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PendingEvents(u8);

impl PendingEvents {
    pub const CONNECTED: Self = Self(1);
    pub const INCOMING: Self = Self(2);
    pub const READABLE: Self = Self(4);
    pub const WRITABLE: Self = Self(8);
    pub const PEER_CLOSED: Self = Self(16);
    pub const FAILED: Self = Self(32);
    pub const CLOSED: Self = Self(64);

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Takes the first event in the order of the constants, which follows the life of a connection.
    pub fn take(&mut self) -> Option<Self> {
        let lowest = self.0 & self.0.wrapping_neg();
        self.0 &= !lowest;
        (lowest != 0).then_some(Self(lowest))
    }
}
