//! The trait of event handlers.

use std::net::SocketAddr;

use super::conn::{Conn, ConnId};
use super::conn_action::{CloseReason, ConnAction};
use super::handler_remote::HandlerRemote;
use super::handler_shard::{HandlerShard, UdpId};

/// Handles the events of connections, on the stack's thread. The [module](super) has an example.
///
/// Calls must not block. The stack has one handler for each of its threads.
pub trait Handler: Sized + Send + 'static {
    /// State that the handler keeps for each connection.
    type State: Default + Send + 'static;

    /// Called once, before the first event. `remote` gives other threads access to the handler.
    fn started(&mut self, shard: &mut HandlerShard<'_>, remote: HandlerRemote<Self, Self::State>) {
        let _ = (shard, remote);
    }

    /// Creates the state of an accepted connection, or of an [outgoing](HandlerShard::connect) one
    /// after its handshake. `None` resets the connection.
    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<Self::State> {
        let _ = conn;
        Some(Self::State::default())
    }

    /// Handles received bytes, and the peer's FIN ([`ByteReader::is_ended`]).
    ///
    /// Bytes that are not consumed stay in the buffer. The next call, after more bytes have
    /// arrived, sees them again.
    ///
    /// [`ByteReader::is_ended`]: super::ByteReader::is_ended
    fn readable(&mut self, conn: &mut Conn<'_>, state: &mut Self::State) -> ConnAction;

    /// Called after [`ConnAction::AwaitRoom`], when the send buffer has more room.
    ///
    /// [`Self::readable`] is not called for bytes that have arrived during the wait, so an
    /// implementation of this method should end by calling it. If the peer has sent its FIN
    /// meanwhile, [`ConnAction::Continue`] finishes the connection and discards unread bytes.
    fn writable(&mut self, conn: &mut Conn<'_>, state: &mut Self::State) -> ConnAction {
        self.readable(conn, state)
    }

    /// Handles the timer that was set by [`Conn::set_timer`]. By default, the connection ends.
    fn timer(&mut self, conn: &mut Conn<'_>, state: &mut Self::State) -> ConnAction {
        let _ = (conn, state);
        ConnAction::Finish
    }

    /// Takes back the state of a connection that has ended. Called once for each state; `id` is no
    /// longer valid.
    fn closed(
        &mut self,
        shard: &mut HandlerShard<'_>,
        id: ConnId,
        state: Self::State,
        reason: CloseReason,
    ) {
        let _ = (shard, id, state, reason);
    }

    /// Handles the failure of an [outgoing](HandlerShard::connect) connection before its handshake
    /// was complete.
    fn refused(&mut self, shard: &mut HandlerShard<'_>, id: ConnId, reason: CloseReason) {
        let _ = (shard, id, reason);
    }

    /// Handles a datagram that arrived at one of the handler's UDP sockets.
    fn datagram(
        &mut self,
        shard: &mut HandlerShard<'_>,
        socket: UdpId,
        from: SocketAddr,
        bytes: &[u8],
    ) {
        let _ = (shard, socket, from, bytes);
    }
}
