//! Calls of connections and listeners.

use std::collections::VecDeque;
use std::net::SocketAddr;

use towpath_pool::{Fragments, Port};
use towpath_ring::{HeapSend, Payload, RecvBuffer};
use towpath_stack::{
    BindOptions, Linger, PendingId, Refusal, SocketKind, SocketOption, SocketState,
};
use towpath_tcp::CongestionKind;

use crate::direct::{family_of, make_buffers};
use crate::error::{ReadError, SetUpError, WriteError};
use crate::handle::SocketHandle;
use crate::node::Node;
use crate::table::{BufferSizes, Kind, SocketLife};

/// Options of a connection, or of a listener and its children.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamOptions {
    /// Local address; chosen by the stack if `None`.
    pub local: Option<SocketAddr>,
    /// Buffer sizes (for a listener, of its children); the node's default if `None`.
    pub buffers: Option<BufferSizes>,
    /// Congestion control (for a listener, of its children); the stack's default if `None`.
    pub congestion: Option<CongestionKind>,
}

impl<P: Port + ?Sized> Node<P> {
    /// Listens on `local`; the accept queue holds `backlog + 1` connections.
    ///
    /// # Errors
    /// [`SetUpError::Bind`] and [`SetUpError::Listen`] if the address is in use or does not belong
    /// to the node; [`SetUpError::TooMany`].
    pub fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<SocketHandle, SetUpError> {
        self.listen_with(local, backlog, &StreamOptions::default())
    }

    /// Listens with the given options for the children.
    ///
    /// # Errors
    /// Same as [`Node::listen`].
    pub fn listen_with(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError> {
        let buffers = options.buffers.unwrap_or(self.direct.config.buffers);
        let kind = Kind::Listener { children: VecDeque::new(), buffers };
        let handle = self.open(SocketKind::Stream, local, kind)?;
        let made = self.set_up_stream(handle, Some(local), options).and_then(|id| {
            self.stack.listen(id, backlog)?;
            Ok(())
        });
        self.keep_if(handle, made)
    }

    /// Connects to `remote`; [`crate::NodeEvent::Connected`] or `Failed` follows.
    ///
    /// # Errors
    /// [`SetUpError::Connect`] without a route or a free port; [`SetUpError::TooMany`].
    pub fn connect(&mut self, remote: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.connect_with(remote, &StreamOptions::default())
    }

    /// Connects with the given local address, buffers and congestion control.
    ///
    /// # Errors
    /// Same as [`Node::connect`], and [`SetUpError::Bind`].
    pub fn connect_with(
        &mut self,
        remote: SocketAddr,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError> {
        let handle = self.open(SocketKind::Stream, remote, Kind::Stream)?;
        let (recv, send) = make_buffers(options.buffers.unwrap_or(self.direct.config.buffers));
        let made = self.set_up_stream(handle, options.local, options).and_then(|id| {
            self.stack.connect(self.now(), id, remote, recv, send)?;
            Ok(())
        });
        self.keep_if(handle, made)
    }

    /// Connects from any source address, as a gateway does. No port is bound, and `local` need not
    /// belong to the node; port 0 chooses a port.
    ///
    /// # Errors
    /// [`SetUpError::Connect`], see [`towpath_stack::Stack::connect_from`];
    /// [`SetUpError::TooMany`].
    pub fn connect_from(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<SocketHandle, SetUpError> {
        self.room()?;
        let (recv, send) = make_buffers(self.direct.config.buffers);
        let handle = self.direct.add(Kind::Stream, SocketLife::Open);
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

    /// Takes the oldest connection from a listener's accept queue.
    pub fn accept(&mut self, listener: SocketHandle) -> Option<SocketHandle> {
        let entry = self.direct.open_mut(listener)?;
        let listener = entry.id;
        let Kind::Listener { children, .. } = &mut entry.kind else { return None };
        let child = children.pop_front()?;
        self.stack.accepted(listener);
        self.direct.table.get_mut(child)?.life = SocketLife::Open;
        self.direct.queue(child.index);
        Some(child)
    }

    /// Accepts a SYN on an any-address interface; [`crate::NodeEvent::Connected`] follows.
    ///
    /// # Errors
    /// [`SetUpError::SynForgotten`] if the stack has dropped the SYN; [`SetUpError::TooMany`].
    pub fn accept_syn(&mut self, syn: PendingId) -> Result<SocketHandle, SetUpError> {
        self.room()?;
        let (recv, send) = make_buffers(self.direct.config.buffers);
        let handle = self.direct.add(Kind::Stream, SocketLife::Open);
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

    /// Refuses a SYN on an any-address interface; does nothing if the stack has dropped it.
    pub fn refuse_syn(&mut self, syn: PendingId, refusal: Refusal) {
        let now = self.now();
        self.stack.refuse_pending(now, syn, refusal, &mut self.pool);
    }

    /// Copies as many of `bytes` as fit into the send buffer and returns their number, at least
    /// one.
    ///
    /// # Errors
    /// [`WriteError::Full`] if the buffer is full; other errors are final.
    pub fn send(&mut self, handle: SocketHandle, bytes: &[u8]) -> Result<usize, WriteError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (id, buffer) = self.sending(handle)?;
        let n = buffer.write(&Payload::new(bytes, Fragments::empty()));
        if n == 0 {
            return Err(WriteError::Full);
        }
        self.stack.send_ready(id);
        Ok(n as usize)
    }

    /// Returns the free space of the send buffer in bytes.
    pub fn send_room(&mut self, handle: SocketHandle) -> usize {
        self.sending(handle).map_or(0, |(_, buffer)| buffer.room() as usize)
    }

    fn sending(
        &mut self,
        handle: SocketHandle,
    ) -> Result<(towpath_stack::SocketId, &mut HeapSend), WriteError> {
        let entry = self.direct.open(handle).ok_or(WriteError::NoConnection)?;
        if let Some(error) = entry.failure {
            return Err(WriteError::Failed(error));
        }
        if entry.shut {
            return Err(WriteError::ShutDown);
        }
        let id = entry.id;
        let buffer = self.stack.send_buffer(id).ok_or(WriteError::NoConnection)?;
        Ok((id, buffer))
    }

    /// Moves received bytes to `to`; returns 0 at the end of the stream.
    ///
    /// # Errors
    /// [`ReadError::Empty`] if no data is available; [`ReadError::Failed`] after the last byte of a
    /// failed connection.
    pub fn recv(&mut self, handle: SocketHandle, to: &mut [u8]) -> Result<usize, ReadError> {
        let unread = self.peek(handle)?;
        let n = (unread.len() as usize).min(to.len());
        unread.slice(0, n as u32).copy_to(0, &mut to[..n]);
        drop(unread);
        self.consume(handle, n as u32);
        Ok(n)
    }

    /// Returns the received bytes without removing them; empty at the end of the stream.
    ///
    /// # Errors
    /// Same as [`Node::recv`].
    pub fn peek(&mut self, handle: SocketHandle) -> Result<Fragments, ReadError> {
        let entry = self.direct.open(handle).ok_or(ReadError::NoConnection)?;
        let (id, ended, failure) = (entry.id, entry.ended, entry.failure);
        let unread = self.stack.recv_buffer(id).ok_or(ReadError::NoConnection)?.peek();
        match failure {
            _ if !unread.is_empty() || ended => Ok(unread),
            Some(error) => Err(ReadError::Failed(error)),
            None => Err(ReadError::Empty),
        }
    }

    /// Discards up to `max` received bytes without copying and returns their number, for programs
    /// that only count.
    ///
    /// # Errors
    /// Same as [`Node::recv`].
    pub fn discard(&mut self, handle: SocketHandle, max: usize) -> Result<usize, ReadError> {
        let n = self.peek(handle)?.len().min(u32::try_from(max).unwrap_or(u32::MAX));
        self.consume(handle, n);
        Ok(n as usize)
    }

    fn consume(&mut self, handle: SocketHandle, n: u32) {
        let Some(id) = self.direct.open(handle).map(|entry| entry.id).filter(|_| n > 0) else {
            return;
        };
        if let Some(buffer) = self.stack.recv_buffer(id) {
            buffer.consume(n);
            debug_assert!(buffer.unread() <= buffer.capacity());
        }
        self.stack.recv_taken(self.now(), id);
    }

    /// Closes the sending direction after the bytes written so far; reading remains possible.
    pub fn shutdown(&mut self, handle: SocketHandle) {
        let Some(entry) = self.direct.open_mut(handle) else { return };
        entry.shut = true;
        let id = entry.id;
        self.stack.shutdown_send(id);
    }

    /// Returns the local and remote address of a connection, or the local address of another
    /// socket.
    pub fn ends(&self, handle: SocketHandle) -> (Option<SocketAddr>, Option<SocketAddr>) {
        self.info(handle).map_or((None, None), |info| (info.local, info.remote))
    }

    /// Returns the state of a socket; `None` if the handle is dead.
    pub fn state(&self, handle: SocketHandle) -> Option<SocketState> {
        self.info(handle).map(|info| info.state)
    }

    pub(crate) fn room(&self) -> Result<(), SetUpError> {
        if self.direct.is_full() {
            return Err(SetUpError::TooMany(self.direct.config.sockets_max));
        }
        Ok(())
    }

    /// Opens a socket of the address family of `like`.
    pub(crate) fn open(
        &mut self,
        of: SocketKind,
        like: SocketAddr,
        kind: Kind,
    ) -> Result<SocketHandle, SetUpError> {
        self.room()?;
        let handle = self.direct.add(kind, SocketLife::Open);
        match self.stack.open(of, family_of(like.ip()), handle.index) {
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

    fn set_up_stream(
        &mut self,
        handle: SocketHandle,
        local: Option<SocketAddr>,
        options: &StreamOptions,
    ) -> Result<towpath_stack::SocketId, SetUpError> {
        let id = self.direct.open(handle).ok_or(SetUpError::SynForgotten)?.id;
        if let Some(congestion) = options.congestion {
            self.stack.set_option(id, SocketOption::Congestion(congestion))?;
        }
        if let Some(local) = local {
            let reuse = BindOptions { reuse_addr: true, ..BindOptions::default() };
            self.stack.bind(id, local, reuse)?;
        }
        Ok(id)
    }

    /// Returns the handle, or closes the socket without an event and returns the error.
    pub(crate) fn keep_if(
        &mut self,
        handle: SocketHandle,
        made: Result<(), SetUpError>,
    ) -> Result<SocketHandle, SetUpError> {
        if let (Err(_), Some(entry)) = (&made, self.direct.table.get_mut(handle)) {
            entry.life = SocketLife::Silent;
            let id = entry.id;
            self.stack.close(self.now(), id, Linger::Abort);
        }
        made.map(|()| handle)
    }
}
