//! Events: news of a node's sockets.

use std::net::SocketAddr;

use towpath_stack::{PendingId, SocketError};

use crate::handle::SocketHandle;

/// News of a node. Each stands for any number of the same kind since the last one polled:
/// after `Readable` read until there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// The handshake of a connect, or of an accepted SYN, is done.
    Connected(SocketHandle),
    /// A listener has a connection to accept.
    Incoming(SocketHandle),
    /// Bytes or datagrams can be read.
    Readable(SocketHandle),
    /// The send buffer has room again.
    Writable(SocketHandle),
    /// The peer sends no more: after the unread bytes comes the end of the stream.
    PeerClosed(SocketHandle),
    /// The connection is over, or the network says that a datagram did not arrive.
    Failed(SocketHandle, SocketError),
    /// A socket that its owner closed is gone: the handle is dead. Always the last event.
    Closed(SocketHandle),
    /// A SYN waits on an any-address interface for [`crate::Node::accept_syn`] or
    /// [`crate::Node::refuse_syn`].
    Syn(PendingSyn),
    /// A SYN that was reported is given up: its sender stopped asking, or there were too many.
    SynForgotten(PendingId),
}

/// A SYN to an address that may be anybody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingSyn {
    /// Name for the decision.
    pub id: PendingId,
    /// Address that the SYN was sent to.
    pub local: SocketAddr,
    /// Address of its sender.
    pub remote: SocketAddr,
}

/// Events of a socket that wait to be polled, a bit each: so their number is bounded.
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

    /// Takes the first in the order of the constants, which is that of a connection's life.
    pub fn take(&mut self) -> Option<Self> {
        let lowest = self.0 & self.0.wrapping_neg();
        self.0 &= !lowest;
        (lowest != 0).then_some(Self(lowest))
    }
}
