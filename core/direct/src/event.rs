//! Events of a node's sockets.

use std::net::SocketAddr;

use towpath_stack::{PendingId, SocketError};

use crate::handle::SocketHandle;

/// Event of a node. Several events of one kind since the last poll may be reported once, so after
/// `Readable`, read until [`crate::ReadError::Empty`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// A connection is established. The node opened it or accepted its SYN, or a listener of
    /// another shard (a stack on another thread) accepts it.
    Connected(SocketHandle),
    /// A listener has a connection that can be accepted.
    Incoming(SocketHandle),
    /// The socket has received bytes or datagrams.
    Readable(SocketHandle),
    /// A connection whose send buffer was full has space again.
    Writable(SocketHandle),
    /// The peer has closed its sending direction; the stream ends after the unread bytes.
    PeerClosed(SocketHandle),
    /// The connection has failed, or an ICMP error reports that a datagram was not delivered.
    Failed(SocketHandle, SocketError),
    /// A closed socket was removed, so its handle is no longer valid. `Closed` is always the last
    /// event of a socket.
    Closed(SocketHandle),
    /// A SYN arrived on an interface that accepts packets to any address. The SYN waits for
    /// [`crate::Node::accept_syn`] or [`crate::Node::refuse_syn`].
    Syn(PendingSyn),
    /// The stack dropped a SYN that was reported as an event. Its sender stopped retransmitting, or
    /// too many SYNs were waiting.
    SynForgotten(PendingId),
}

/// SYN received on an interface that accepts packets to any address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingSyn {
    /// Identifier of the SYN, to accept or refuse it.
    pub id: PendingId,
    /// Destination address and port of the SYN.
    pub local: SocketAddr,
    /// Source address and port of the SYN.
    pub remote: SocketAddr,
}

/// Set of a socket's pending events, with one bit for each kind of event. Several events of one
/// kind use the same bit, so pending events need a fixed amount of memory.
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

    /// Removes and returns the pending event that comes first in the life of a connection. The
    /// event constants are in this order, so it is the lowest bit.
    pub fn take(&mut self) -> Option<Self> {
        let lowest = self.0 & self.0.wrapping_neg();
        self.0 &= !lowest;
        (lowest != 0).then_some(Self(lowest))
    }
}
