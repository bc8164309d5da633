//! A connected peer: its control channel, and its rings as soon as they are set up.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, EventData, EventFlags};
use towpath_stream::PeerFinder;

use crate::client::ClientHandshake;
use crate::error::LinkError;
use crate::linked::LinkedRings;
use crate::message::MemifMessage;
use crate::options::MemifOptions;
use crate::ring::MemifRole;
use crate::server::ServerHandshake;
use crate::socket::{self, ReceivedMessage};

/// Maximum number of messages handled before the stack continues with its other work.
const MESSAGES_AT_ONCE: usize = 64;
/// Event data of the eventfd of received frames.
pub(crate) const RING: u64 = PeerFinder::LISTENER + 1;

/// A peer with its control channel.
#[derive(Debug)]
pub(crate) struct MemifPeer {
    socket: UnixStream,
    state: PeerState,
}

#[derive(Debug)]
enum PeerState {
    Server(ServerHandshake),
    Client(ClientHandshake),
    Linked(LinkedRings),
}

impl MemifPeer {
    /// Begins to set up the connection to a peer. `wakes` is the epoll descriptor of the port.
    pub(crate) fn new(
        socket: UnixStream,
        role: MemifRole,
        wakes: BorrowedFd<'_>,
    ) -> Result<Self, LinkError> {
        let state = match role {
            MemifRole::Server => PeerState::Server(ServerHandshake::start(&socket)?),
            MemifRole::Client => PeerState::Client(ClientHandshake::Hello),
        };
        let data = EventData::new_u64(PeerFinder::LISTENER);
        epoll::add(wakes, &socket, data, EventFlags::IN).map_err(io::Error::from)?;
        Ok(Self { socket, state })
    }

    /// Returns the rings; `None` until the connection is set up.
    pub(crate) fn linked(&self) -> Option<&LinkedRings> {
        match &self.state {
            PeerState::Linked(rings) => Some(rings),
            PeerState::Server(_) | PeerState::Client(_) => None,
        }
    }

    /// Returns the rings; `None` until the connection is set up.
    pub(crate) fn linked_mut(&mut self) -> Option<&mut LinkedRings> {
        match &mut self.state {
            PeerState::Linked(rings) => Some(rings),
            PeerState::Server(_) | PeerState::Client(_) => None,
        }
    }

    /// Handles messages that have arrived, up to [`MESSAGES_AT_ONCE`]. The socket stays readable if
    /// there are more. Returns whether the connection was set up.
    pub(crate) fn serve(
        &mut self,
        options: &MemifOptions,
        wakes: BorrowedFd<'_>,
    ) -> Result<bool, LinkError> {
        let mut is_new = false;
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(received) = socket::receive(&self.socket)? else { break };
            if let Some(linked) = self.handle(received, options)? {
                // An eventfd is reported once for each notification, so that it need not be read.
                let flags = EventFlags::IN | EventFlags::ET;
                epoll::add(wakes, &linked.received, EventData::new_u64(RING), flags)
                    .map_err(io::Error::from)?;
                self.state = PeerState::Linked(linked);
                is_new = true;
            }
        }
        Ok(is_new)
    }

    fn handle(
        &mut self,
        received: ReceivedMessage,
        options: &MemifOptions,
    ) -> Result<Option<LinkedRings>, LinkError> {
        match &mut self.state {
            PeerState::Server(handshake) => handshake.handle(&self.socket, received, options),
            PeerState::Client(handshake) => handshake.handle(&self.socket, received, options),
            PeerState::Linked(_) => Err(match received.message {
                MemifMessage::Disconnect(reason) => LinkError::Disconnected(reason),
                _ => LinkError::Unexpected,
            }),
        }
    }

    /// Closes the connection, and tells the peer the reason.
    pub(crate) fn close(self, reason: Option<MemifMessage>, wakes: BorrowedFd<'_>) {
        if let Some(linked) = self.linked() {
            // Remove the eventfd explicitly, because the peer has a duplicate, with which it stays
            // in epoll.
            let _ = epoll::delete(wakes, &linked.received);
        }
        if let Some(message) = reason {
            // Ignore the error: the peer then only sees the end of the connection.
            let _ = socket::send(&self.socket, &message, None);
        }
    }
}
