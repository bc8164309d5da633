//! Calls on TCP connections and listeners.

use std::net::SocketAddr;

use towpath_pool::{Fragments, Port};
use towpath_stack::{PendingId, ReceivedFields, Refusal, SocketState};

use crate::calls::PrivateSockets;
use crate::direct::make_buffers;
use crate::error::{ReadError, SetUpError, WriteError};
use crate::handle::SocketHandle;
use crate::node::Node;
use crate::options::StreamOptions;
use crate::table::{BufferSizes, DirectKind, SocketLife};

impl<P: Port + ?Sized> Node<P> {
    /// Listens on `local`; the accept queue holds `backlog + 1` connections.
    ///
    /// # Errors
    /// [`SetUpError::Bind`] and [`SetUpError::Listen`] if the address is in use or does not belong
    /// to the node; [`SetUpError::TooMany`] if the limit of sockets is reached.
    pub fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<SocketHandle, SetUpError> {
        self.calls().listen(local, backlog)
    }

    /// Listens on `local` with the given options for the connections that are accepted.
    ///
    /// # Errors
    /// Same as [`Node::listen`].
    pub fn listen_with(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError> {
        self.calls().listen_with(local, backlog, options)
    }

    /// Begins to connect to `remote`. The event [`crate::NodeEvent::Connected`] or `Failed`
    /// follows.
    ///
    /// # Errors
    /// [`SetUpError::Connect`] if there is no route or no free port; [`SetUpError::TooMany`] if the
    /// limit of sockets is reached.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.calls().connect(remote)
    }

    /// Connects with the given local address, buffers and congestion control.
    ///
    /// # Errors
    /// Same as [`Node::connect`], and [`SetUpError::Bind`] if the local address cannot be used.
    pub fn connect_with(
        &mut self,
        remote: SocketAddr,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError> {
        self.calls().connect_with(remote, options)
    }

    /// Connects from any source address, as a gateway does. No port is bound, and `local` need not
    /// belong to the node; port 0 chooses a port.
    ///
    /// # Errors
    /// [`SetUpError::Connect`], see [`towpath_stack::Stack::connect_from`]; [`SetUpError::TooMany`]
    /// if the limit of sockets is reached.
    pub fn connect_from(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<SocketHandle, SetUpError> {
        self.room()?;
        let (recv, send) = make_buffers(self.direct.config.buffers);
        let handle = self.direct.add(DirectKind::Stream, SocketLife::Open);
        let made = self.stack.connect_from(self.now(), local, remote, handle.index, recv, send);
        match made {
            Ok(id) => {
                if let Some(entry) = self.direct.table.get_mut(handle) {
                    entry.id = id;
                }
                Ok(handle)
            }
            Err(error) => {
                self.direct.table.remove(handle.index);
                Err(error.into())
            }
        }
    }

    /// Removes and returns the oldest connection of a listener's accept queue.
    pub fn accept(&mut self, listener: SocketHandle) -> Option<SocketHandle> {
        self.calls().accept(listener)
    }

    /// Accepts a SYN of the event [`crate::NodeEvent::Syn`]. The event
    /// [`crate::NodeEvent::Connected`] follows.
    ///
    /// # Errors
    /// [`SetUpError::SynForgotten`] if the stack has dropped the SYN; [`SetUpError::TooMany`] if
    /// the limit of sockets is reached.
    pub fn accept_syn(&mut self, syn: PendingId) -> Result<SocketHandle, SetUpError> {
        self.accept_syn_with(syn, self.direct.config.buffers)
    }

    /// Accepts a SYN like [`Node::accept_syn`], with the given buffer sizes.
    ///
    /// # Errors
    /// Same as [`Node::accept_syn`].
    pub fn accept_syn_with(
        &mut self,
        syn: PendingId,
        buffers: BufferSizes,
    ) -> Result<SocketHandle, SetUpError> {
        self.room()?;
        let (recv, send) = make_buffers(buffers);
        let handle = self.direct.add(DirectKind::Stream, SocketLife::Open);
        let now = self.now();
        let made = self.stack.accept_pending(now, syn, handle.index, recv, send, &mut self.pool);
        match (made, self.direct.table.get_mut(handle)) {
            (Some(id), Some(entry)) => {
                entry.id = id;
                Ok(handle)
            }
            _ => {
                self.direct.table.remove(handle.index);
                Err(SetUpError::SynForgotten)
            }
        }
    }

    /// Refuses a SYN of the event [`crate::NodeEvent::Syn`]. Has no effect if the stack has dropped
    /// the SYN.
    pub fn refuse_syn(&mut self, syn: PendingId, refusal: Refusal) {
        let now = self.now();
        self.stack.refuse_pending(now, syn, refusal, &mut self.pool);
    }

    /// Returns the IP header fields of a SYN that waits to be accepted; `None` if the stack has
    /// dropped it.
    pub fn syn_fields(&self, syn: PendingId) -> Option<ReceivedFields> {
        self.stack.pending_fields(syn)
    }

    /// Returns the IP header fields of the last segment that a connection received. Returns `None`
    /// before the first segment after the handshake, and if the connection was removed.
    pub fn received_fields(&self, handle: SocketHandle) -> Option<ReceivedFields> {
        self.direct.open(handle)?.received
    }

    /// Copies as many of `bytes` as fit into the send buffer and returns their number, at least
    /// one.
    ///
    /// # Errors
    /// [`WriteError::Full`] if the buffer is full; after other errors the connection accepts no
    /// more bytes.
    pub fn send(&mut self, handle: SocketHandle, bytes: &[u8]) -> Result<usize, WriteError> {
        self.calls().send(handle, bytes)
    }

    /// Returns the free space of a connection's send buffer in bytes.
    pub fn send_room(&mut self, handle: SocketHandle) -> usize {
        self.calls().send_room(handle)
    }

    /// Copies received bytes to `to`, removes them from the receive buffer, and returns their
    /// number; 0 at the end of the stream.
    ///
    /// # Errors
    /// [`ReadError::Empty`] if no data is available; [`ReadError::Failed`] if the connection has
    /// failed and all its bytes were read.
    pub fn recv(&mut self, handle: SocketHandle, to: &mut [u8]) -> Result<usize, ReadError> {
        self.calls().recv(handle, to)
    }

    /// Returns the received bytes without removing them; empty at the end of the stream.
    ///
    /// # Errors
    /// Same as [`Node::recv`].
    pub fn peek(&mut self, handle: SocketHandle) -> Result<Fragments, ReadError> {
        self.calls().peek(handle)
    }

    /// Discards up to `max` received bytes without copying them, and returns their number.
    ///
    /// # Errors
    /// Same as [`Node::recv`].
    pub fn discard(&mut self, handle: SocketHandle, max: usize) -> Result<usize, ReadError> {
        self.calls().discard(handle, max)
    }

    /// Closes the sending direction after the bytes written so far; the caller can still read.
    pub fn shutdown(&mut self, handle: SocketHandle) {
        self.calls().shutdown(handle)
    }

    /// Returns the local and the remote address of a socket. The remote address is `None` unless
    /// the socket is a connection.
    pub fn ends(&self, handle: SocketHandle) -> (Option<SocketAddr>, Option<SocketAddr>) {
        self.info(handle).map_or((None, None), |info| (info.local, info.remote))
    }

    /// Returns the state of a socket; `None` if the socket was removed.
    pub fn state(&self, handle: SocketHandle) -> Option<SocketState> {
        self.info(handle).map(|info| info.state)
    }

    pub(crate) fn room(&self) -> Result<(), SetUpError> {
        if self.direct.is_full() {
            return Err(SetUpError::TooMany(self.direct.config.sockets_max));
        }
        Ok(())
    }
}
