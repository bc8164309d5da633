//! Calls on sockets whose buffers are in private memory of the process.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use towpath_pool::{Fragments, Pool};
use towpath_ring::{HeapRecv, HeapSend, Payload, RecvBuffer};
use towpath_stack::{DatagramOut, Host, Instant, Linger, SendError, SocketKind, Stack};

use crate::direct::{Direct, make_buffers};
use crate::error::{ReadError, SetUpError, WriteError};
use crate::handle::SocketHandle;
use crate::options::{DatagramOptions, StreamOptions};
use crate::table::{DirectEntry, DirectKind, ReceivedDatagram, SocketLife, StreamStatus};

/// Length of an ICMP echo header in bytes (RFC 792, RFC 4443 §4.1).
const ECHO_HEADER_LEN: usize = 8;

/// A [`Host`] of a stack with sockets whose buffers are in private memory. Other sockets may have
/// buffers elsewhere.
pub trait PrivateHost: Host {
    /// Converts buffers in private memory to the buffer types of the host's sockets.
    fn buffers(recv: HeapRecv, send: HeapSend) -> (Self::Recv, Self::Send);

    /// Returns the receive buffer as one in private memory; `None` if the socket's buffers are
    /// elsewhere.
    fn heap_recv(recv: &mut Self::Recv) -> Option<&mut HeapRecv>;

    /// Returns the send buffer as one in private memory; `None` if the socket's buffers are
    /// elsewhere.
    fn heap_send(send: &mut Self::Send) -> Option<&mut HeapSend>;
}

impl PrivateHost for Direct {
    fn buffers(recv: HeapRecv, send: HeapSend) -> (HeapRecv, HeapSend) {
        (recv, send)
    }

    fn heap_recv(recv: &mut HeapRecv) -> Option<&mut HeapRecv> {
        Some(recv)
    }

    fn heap_send(send: &mut HeapSend) -> Option<&mut HeapSend> {
        Some(send)
    }
}

/// Socket calls for sockets whose buffers are in private memory, not shared with other processes.
/// The caller runs on the same thread as the stack.
pub trait PrivateSockets {
    /// Returns the time at which the calls take place.
    fn now(&self) -> Instant;

    /// Listens on `local`; the accept queue holds `backlog + 1` connections.
    ///
    /// # Errors
    /// [`SetUpError::Bind`] and [`SetUpError::Listen`] if the address is in use or does not belong
    /// to the host; [`SetUpError::TooMany`] if the limit of sockets is reached.
    fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<SocketHandle, SetUpError>;

    /// Listens on `local` with the given options for the connections that are accepted.
    ///
    /// # Errors
    /// Same as [`Self::listen`].
    fn listen_with(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError>;

    /// Begins to connect to `remote`. The event [`crate::NodeEvent::Connected`] or `Failed`
    /// follows.
    ///
    /// # Errors
    /// [`SetUpError::Connect`] if there is no route or no free port; [`SetUpError::TooMany`] if the
    /// limit of sockets is reached.
    fn connect(&mut self, remote: SocketAddr) -> Result<SocketHandle, SetUpError>;

    /// Connects with the given local address, buffers and congestion control.
    ///
    /// # Errors
    /// Same as [`Self::connect`], and [`SetUpError::Bind`].
    fn connect_with(
        &mut self,
        remote: SocketAddr,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError>;

    /// Takes the oldest connection from a listener's accept queue.
    fn accept(&mut self, listener: SocketHandle) -> Option<SocketHandle>;

    /// Copies as many of `bytes` as fit into the send buffer and returns their number, at least
    /// one.
    ///
    /// # Errors
    /// [`WriteError::Full`] if the buffer is full. After other errors the connection accepts no
    /// more bytes.
    fn send(&mut self, handle: SocketHandle, bytes: &[u8]) -> Result<usize, WriteError>;

    /// Returns the free space of a connection's send buffer in bytes.
    fn send_room(&mut self, handle: SocketHandle) -> usize;

    /// Copies received bytes to `to`, removes them from the receive buffer, and returns their
    /// number; 0 at the end of the stream.
    ///
    /// # Errors
    /// [`ReadError::Empty`] if no data is available; [`ReadError::Failed`] if the connection has
    /// failed and all its bytes were read.
    fn recv(&mut self, handle: SocketHandle, to: &mut [u8]) -> Result<usize, ReadError>;

    /// Returns the received bytes without removing them; there are none at the end of the stream.
    ///
    /// # Errors
    /// Same as [`Self::recv`].
    fn peek(&mut self, handle: SocketHandle) -> Result<Fragments, ReadError>;

    /// Borrows the received bytes as at most two slices, without removing them. Call
    /// [`Self::discard`] to remove them.
    ///
    /// # Errors
    /// As for [`Self::recv`].
    fn slices(&mut self, handle: SocketHandle) -> Result<[&[u8]; 2], ReadError>;

    /// Discards up to `max` received bytes without copying them, and returns their number.
    ///
    /// # Errors
    /// Same as [`Self::recv`].
    fn discard(&mut self, handle: SocketHandle, max: usize) -> Result<usize, ReadError>;

    /// Borrows the receive and send buffer of an open connection, to read and write their bytes in
    /// place. Call [`Self::buffers_used`] afterwards. Returns `None` if the connection was removed
    /// or its handshake failed.
    fn buffers(&mut self, handle: SocketHandle) -> Option<(&mut HeapRecv, &mut HeapSend)>;

    /// Notifies the stack that the caller removed bytes from the receive buffer, or added bytes to
    /// the send buffer, through [`Self::buffers`]. The stack then updates the window or sends.
    fn buffers_used(&mut self, handle: SocketHandle, was_read: bool, was_written: bool);

    /// Returns the state of an open connection; `None` if the socket was removed.
    fn status(&self, handle: SocketHandle) -> Option<StreamStatus>;

    /// Returns the local and the remote address of a socket; `None` for an address that is not set.
    fn ends(&self, handle: SocketHandle) -> (Option<SocketAddr>, Option<SocketAddr>);

    /// Frees buffer memory that contains no bytes, and the memory that TCP reuses for sent packets.
    /// Intended for idle connections, because the next byte allocates the memory again.
    fn release_idle(&mut self, handle: SocketHandle);

    /// Closes the sending direction after the bytes written so far; the caller can still read.
    fn shutdown(&mut self, handle: SocketHandle);

    /// Opens a UDP socket at `local`; port 0 chooses a free port.
    ///
    /// # Errors
    /// [`SetUpError::Bind`] if the address is in use or does not belong to the host;
    /// [`SetUpError::TooMany`] if the limit of sockets is reached.
    fn udp(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError>;

    /// Opens a UDP socket at `local` with options.
    ///
    /// # Errors
    /// Same as [`Self::udp`], and [`SetUpError::Connect`] if there is no route to the peer.
    fn udp_with(
        &mut self,
        local: SocketAddr,
        options: &DatagramOptions,
    ) -> Result<SocketHandle, SetUpError>;

    /// Opens an ICMP echo socket ("ping socket") at the address of `local`. The port of `local` is
    /// the echo identifier; 0 chooses a free identifier.
    ///
    /// # Errors
    /// Same as [`Self::udp`].
    fn echo(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError>;

    /// Sends one datagram.
    ///
    /// # Errors
    /// See [`towpath_stack::Stack::send_datagram`]; [`SendError::Invalid`] if the socket was
    /// removed.
    fn send_to(
        &mut self,
        handle: SocketHandle,
        remote: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), SendError>;

    /// Sends one datagram from `local`, an address of the host.
    ///
    /// # Errors
    /// Same as [`Self::send_to`].
    fn send_from(
        &mut self,
        handle: SocketHandle,
        local: IpAddr,
        remote: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), SendError>;

    /// Sends one ICMP echo request with sequence number `seq`. [`Self::recv_from`] returns the
    /// reply, and [`echo_seq`](crate::Node::echo_seq) extracts its sequence number.
    ///
    /// # Errors
    /// Same as [`Self::send_to`].
    fn ping(
        &mut self,
        handle: SocketHandle,
        remote: IpAddr,
        seq: u16,
        data: &[u8],
    ) -> Result<(), SendError>;

    /// Removes and returns the oldest received datagram of a socket.
    fn recv_from(&mut self, handle: SocketHandle) -> Option<ReceivedDatagram>;

    /// Returns the memory of a received datagram for reuse, so that a later datagram needs no
    /// allocation.
    fn recycle(&mut self, bytes: Vec<u8>);

    /// Closes a socket. Bytes written before are still sent. The event
    /// [`NodeEvent::Closed`](crate::NodeEvent::Closed) follows once the socket is removed. A
    /// connection is removed only after the peer has closed it, too. Has no effect if the socket
    /// was removed.
    fn close(&mut self, handle: SocketHandle);

    /// Resets a connection; other sockets are closed as by [`Self::close`].
    fn abort(&mut self, handle: SocketHandle);
}

/// Socket calls of a stack, borrowed together with its sockets. All calls use the same time.
pub struct DirectCalls<'a, H: PrivateHost> {
    /// The stack that processes the packets of the sockets.
    pub stack: &'a mut Stack<H>,
    /// The sockets of `stack` whose buffers are in private memory.
    pub direct: &'a mut Direct,
    /// The pool from which packets are allocated.
    pub pool: &'a mut Pool,
    /// The time at which the calls take place.
    pub now: Instant,
}

impl<H: PrivateHost> PrivateSockets for DirectCalls<'_, H> {
    fn now(&self) -> Instant {
        self.now
    }

    fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<SocketHandle, SetUpError> {
        self.listen_with(local, backlog, &StreamOptions::default())
    }

    fn listen_with(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError> {
        let buffers = options.buffers.unwrap_or(self.direct.config.buffers);
        let kind = DirectKind::Listener { children: VecDeque::new(), buffers };
        let handle = self.open(SocketKind::Stream, local, kind)?;
        let made = self.set_up_stream(handle, Some(local), options).and_then(|id| {
            self.stack.listen(id, backlog)?;
            Ok(())
        });
        self.keep_if(handle, made)
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.connect_with(remote, &StreamOptions::default())
    }

    fn connect_with(
        &mut self,
        remote: SocketAddr,
        options: &StreamOptions,
    ) -> Result<SocketHandle, SetUpError> {
        let handle = self.open(SocketKind::Stream, remote, DirectKind::Stream)?;
        let (recv, send) = make_buffers(options.buffers.unwrap_or(self.direct.config.buffers));
        let (recv, send) = H::buffers(recv, send);
        let made = self.set_up_stream(handle, options.local, options).and_then(|id| {
            self.stack.connect(self.now, id, remote, recv, send)?;
            Ok(())
        });
        self.keep_if(handle, made)
    }

    fn accept(&mut self, listener: SocketHandle) -> Option<SocketHandle> {
        let entry = self.direct.open_mut(listener)?;
        let listener = entry.id;
        let DirectKind::Listener { children, .. } = &mut entry.kind else { return None };
        let child = children.pop_front()?;
        self.stack.accepted(listener);
        self.direct.table.get_mut(child)?.life = SocketLife::Open;
        self.direct.queue(child.index);
        Some(child)
    }

    fn send(&mut self, handle: SocketHandle, bytes: &[u8]) -> Result<usize, WriteError> {
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

    fn send_room(&mut self, handle: SocketHandle) -> usize {
        self.sending(handle).map_or(0, |(_, buffer)| buffer.room() as usize)
    }

    fn recv(&mut self, handle: SocketHandle, to: &mut [u8]) -> Result<usize, ReadError> {
        let unread = self.peek(handle)?;
        let n = (unread.len() as usize).min(to.len());
        unread.slice(0, n as u32).copy_to(0, &mut to[..n]);
        drop(unread);
        self.consume(handle, n as u32);
        Ok(n)
    }

    fn peek(&mut self, handle: SocketHandle) -> Result<Fragments, ReadError> {
        let entry = self.direct.open(handle).ok_or(ReadError::NoConnection)?;
        let (id, ended, failure) = (entry.id, entry.ended, entry.failure);
        // A connection whose handshake has failed has no buffers.
        let without_buffer = failure.map_or(ReadError::NoConnection, ReadError::Failed);
        let unread = self.stack.recv_buffer(id).and_then(H::heap_recv);
        let unread = unread.ok_or(without_buffer)?.peek();
        match failure {
            _ if !unread.is_empty() || ended => Ok(unread),
            Some(error) => Err(ReadError::Failed(error)),
            None => Err(ReadError::Empty),
        }
    }

    fn slices(&mut self, handle: SocketHandle) -> Result<[&[u8]; 2], ReadError> {
        self.peek(handle)?;
        let id = self.direct.open(handle).ok_or(ReadError::NoConnection)?.id;
        let recv = self.stack.recv_buffer(id).and_then(H::heap_recv);
        Ok(recv.ok_or(ReadError::NoConnection)?.slices())
    }

    fn discard(&mut self, handle: SocketHandle, max: usize) -> Result<usize, ReadError> {
        let n = self.peek(handle)?.len().min(u32::try_from(max).unwrap_or(u32::MAX));
        self.consume(handle, n);
        Ok(n as usize)
    }

    fn buffers(&mut self, handle: SocketHandle) -> Option<(&mut HeapRecv, &mut HeapSend)> {
        let id = self.direct.open(handle)?.id;
        let (recv, send) = self.stack.buffers(id)?;
        H::heap_recv(recv).zip(H::heap_send(send))
    }

    fn buffers_used(&mut self, handle: SocketHandle, was_read: bool, was_written: bool) {
        let Some(id) = self.direct.open(handle).map(|entry| entry.id) else { return };
        if was_read {
            self.stack.recv_taken(self.now, id);
        }
        if was_written {
            self.stack.send_ready(id);
        }
    }

    fn status(&self, handle: SocketHandle) -> Option<StreamStatus> {
        let DirectEntry { ended, shut, failure, .. } = self.direct.open(handle)?;
        Some(StreamStatus { ended: *ended, shut: *shut, failure: *failure })
    }

    fn ends(&self, handle: SocketHandle) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let entry = self.direct.table.get(handle);
        let info = entry.and_then(|entry| self.stack.info(self.now, entry.id));
        info.map_or((None, None), |info| (info.local, info.remote))
    }

    fn release_idle(&mut self, handle: SocketHandle) {
        let Some(id) = self.direct.open(handle).map(|entry| entry.id) else { return };
        if let Some((recv, send)) = self.buffers(handle) {
            recv.release_idle();
            send.release_idle();
        }
        self.stack.release_idle_memory(id);
    }

    fn shutdown(&mut self, handle: SocketHandle) {
        let Some(entry) = self.direct.open_mut(handle) else { return };
        entry.shut = true;
        let id = entry.id;
        self.stack.shutdown_send(id);
    }

    fn udp(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.udp_with(local, &DatagramOptions::default())
    }

    fn udp_with(
        &mut self,
        local: SocketAddr,
        options: &DatagramOptions,
    ) -> Result<SocketHandle, SetUpError> {
        self.datagram_socket(SocketKind::Datagram, local, options)
    }

    fn echo(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.datagram_socket(SocketKind::Echo, local, &DatagramOptions::default())
    }

    fn send_to(
        &mut self,
        handle: SocketHandle,
        remote: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let out = DatagramOut { remote: Some(remote), ..DatagramOut::default() };
        let payload = Payload::new(bytes, Fragments::empty());
        self.send_datagram(handle, &out, &payload)
    }

    fn send_from(
        &mut self,
        handle: SocketHandle,
        local: IpAddr,
        remote: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let (remote, local) = (Some(remote), Some(local));
        let out = DatagramOut { remote, local, ..DatagramOut::default() };
        self.send_datagram(handle, &out, &Payload::new(bytes, Fragments::empty()))
    }

    fn ping(
        &mut self,
        handle: SocketHandle,
        remote: IpAddr,
        seq: u16,
        data: &[u8],
    ) -> Result<(), SendError> {
        let kind = if remote.is_ipv4() { 8 } else { 128 };
        let mut message = vec![0; ECHO_HEADER_LEN + data.len()];
        message[0] = kind;
        message[6..8].copy_from_slice(&seq.to_be_bytes());
        message[ECHO_HEADER_LEN..].copy_from_slice(data);
        let remote = Some(SocketAddr::new(remote, 0));
        let out = DatagramOut { remote, ..DatagramOut::default() };
        self.send_datagram(handle, &out, &Payload::new(&message, Fragments::empty()))
    }

    fn recv_from(&mut self, handle: SocketHandle) -> Option<ReceivedDatagram> {
        let DirectKind::Datagram { received, bytes } = &mut self.direct.open_mut(handle)?.kind
        else {
            return None;
        };
        let datagram = received.pop_front()?;
        *bytes -= ReceivedDatagram::size(datagram.bytes.len());
        Some(datagram)
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.direct.spare.give(bytes);
    }

    fn close(&mut self, handle: SocketHandle) {
        self.end(handle, Linger::Default);
    }

    fn abort(&mut self, handle: SocketHandle) {
        self.end(handle, Linger::Abort);
    }
}

impl<H: PrivateHost> DirectCalls<'_, H> {
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
        let buffer = self.stack.send_buffer(id).and_then(H::heap_send);
        let buffer = buffer.ok_or(WriteError::NoConnection)?;
        Ok((id, buffer))
    }

    fn consume(&mut self, handle: SocketHandle, n: u32) {
        let Some(id) = self.direct.open(handle).map(|entry| entry.id).filter(|_| n > 0) else {
            return;
        };
        if let Some(buffer) = self.stack.recv_buffer(id).and_then(H::heap_recv) {
            buffer.consume(n);
            debug_assert!(buffer.unread() <= buffer.capacity());
        }
        self.stack.recv_taken(self.now, id);
    }

    fn send_datagram(
        &mut self,
        handle: SocketHandle,
        out: &DatagramOut,
        payload: &Payload<'_>,
    ) -> Result<(), SendError> {
        let id = self.direct.open(handle).ok_or(SendError::Invalid)?.id;
        let now = self.now;
        self.stack.send_datagram(now, id, out, payload, self.pool).map(|_| ())
    }

    fn end(&mut self, handle: SocketHandle, linger: Linger) {
        let Some(entry) = self.direct.open_mut(handle) else { return };
        entry.life = SocketLife::Closing;
        // Discard pending events: after a close, only the event `Closed` follows.
        entry.pending = Default::default();
        let id = entry.id;
        if let DirectKind::Listener { children, .. } = &mut entry.kind {
            for child in std::mem::take(children) {
                self.abandon(child);
            }
        }
        self.stack.close(self.now, id, linger);
    }

    /// Resets a connection that the listener never accepted.
    fn abandon(&mut self, child: SocketHandle) {
        let Some(entry) = self.direct.table.get_mut(child) else { return };
        entry.life = SocketLife::Silent;
        let id = entry.id;
        self.stack.close(self.now, id, Linger::Abort);
    }
}
