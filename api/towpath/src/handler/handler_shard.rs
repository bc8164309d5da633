//! Access to the connections and sockets that a handler has on one thread of the stack.

use std::net::SocketAddr;
use std::{fmt, io};

use towpath_direct::{PrivateSockets, SetUpError, SocketHandle, WriteError};
use towpath_stack::{BindError, ConnectError};

use super::conn::ConnId;
use super::conn_action::ConnAction;
use super::conn_table::CallGate;
use super::service_core::ServiceCore;

/// Identifies a UDP socket of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UdpId(pub(super) SocketHandle);

/// All connections and sockets of a handler, on one thread of the stack.
pub struct HandlerShard<'a> {
    pub(super) core: &'a mut ServiceCore,
    pub(super) sockets: &'a mut dyn PrivateSockets,
}

impl HandlerShard<'_> {
    /// Returns the number of this thread of the stack, counted from 0.
    pub fn number(&self) -> usize {
        self.core.shard
    }

    /// Returns the number of the handler's connections on this thread, including outgoing ones
    /// during their handshake.
    pub fn connections(&self) -> usize {
        self.core.table.len()
    }

    /// Writes bytes to another connection of the handler: all bytes, or none if they do not fit
    /// into its send buffer.
    ///
    /// # Errors
    /// `WouldBlock` if they do not fit. `NotConnected` if the connection has ended, or its
    /// handshake is not complete. `BrokenPipe` after [`Conn::end_bytes`](super::Conn::end_bytes),
    /// or if the connection has just failed.
    pub fn write(&mut self, to: ConnId, bytes: &[u8]) -> io::Result<()> {
        match self.core.table.get(to.0) {
            Some(entry) if entry.gate != CallGate::Connecting => {}
            _ => return Err(io::ErrorKind::NotConnected.into()),
        }
        let status = self.sockets.status(to.0);
        if status.is_none_or(|status| status.shut || status.failure.is_some()) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.sockets.send_room(to.0) < bytes.len() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.core.table.touch(to.0, self.sockets.now());
        self.sockets.send(to.0, bytes).map(drop).map_err(|error| match error {
            WriteError::Full => io::ErrorKind::WouldBlock.into(),
            WriteError::ShutDown | WriteError::Failed(_) => io::ErrorKind::BrokenPipe.into(),
            _ => io::ErrorKind::NotConnected.into(),
        })
    }

    /// Calls [`Handler::readable`](super::Handler::readable) of a connection with unread bytes,
    /// after the current call of the handler. Ends [`ConnAction::Pause`].
    pub fn resume(&mut self, id: ConnId) {
        self.request(id, ConnAction::Continue);
    }

    /// Ends a connection as [`ConnAction::Finish`] does, after the current call of the handler. If
    /// the handshake of an outgoing connection is not complete, no call of the handler reports the
    /// end.
    pub fn finish(&mut self, id: ConnId) {
        self.request(id, ConnAction::Finish);
    }

    /// Resets a connection, after the current call of the handler. As for [`Self::finish`], no call
    /// of the handler reports the end if the handshake is not complete.
    pub fn reset(&mut self, id: ConnId) {
        self.request(id, ConnAction::Reset);
    }

    fn request(&mut self, id: ConnId, action: ConnAction) {
        if self.core.table.get(id.0).is_some() {
            self.core.requested.push((id.0, action));
        }
    }

    /// Connects to `to`. [`Handler::accepted`](super::Handler::accepted) is called after the
    /// handshake, or [`Handler::refused`](super::Handler::refused) after its failure.
    ///
    /// # Errors
    /// Fails without a route or a free port, or if the handler has its maximum number of sockets.
    pub fn connect(&mut self, to: SocketAddr) -> io::Result<ConnId> {
        let made = self.sockets.connect_with(to, &self.core.streams);
        let handle = made.map_err(to_io)?;
        self.core.table.insert(handle, CallGate::Connecting);
        self.core.count_connections();
        Ok(ConnId(handle))
    }

    /// Opens a UDP socket bound to the address `at`. Port 0 chooses a free port.
    ///
    /// # Errors
    /// Fails if the address is in use or does not belong to this stack, or if the handler has its
    /// maximum number of sockets.
    pub fn udp(&mut self, at: SocketAddr) -> io::Result<UdpId> {
        let handle = self.sockets.udp(at).map_err(to_io)?;
        self.core.udp.push(handle);
        Ok(UdpId(handle))
    }

    /// Returns the handler's UDP sockets: those of [`super::ServeOptions::udp`], in order, and then
    /// those of [`Self::udp`].
    pub fn udp_sockets(&self) -> impl Iterator<Item = UdpId> + '_ {
        self.core.udp.iter().copied().map(UdpId)
    }

    /// Returns the local address of a UDP socket.
    pub fn udp_addr(&self, socket: UdpId) -> Option<SocketAddr> {
        self.sockets.ends(socket.0).0
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// Fails without a route, if the datagram is too long, or if the queue of the link is full.
    pub fn send_to(&mut self, socket: UdpId, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        self.sockets.send_to(socket.0, to, bytes).map_err(io::Error::other)
    }

    /// Closes a UDP socket.
    pub fn close_udp(&mut self, socket: UdpId) {
        self.core.udp.retain(|open| *open != socket.0);
        self.sockets.close(socket.0);
    }
}

/// Converts an error of creating a socket to the kind that a system call would report.
fn to_io(error: SetUpError) -> io::Error {
    let kind = match error {
        SetUpError::Bind(BindError::AddrInUse) => io::ErrorKind::AddrInUse,
        SetUpError::Bind(BindError::AddrNotAvailable)
        | SetUpError::Connect(ConnectError::NoPort) => io::ErrorKind::AddrNotAvailable,
        SetUpError::Connect(ConnectError::NetUnreachable) => io::ErrorKind::NetworkUnreachable,
        SetUpError::Connect(ConnectError::Refused) => io::ErrorKind::ConnectionRefused,
        SetUpError::Connect(ConnectError::Forbidden) => io::ErrorKind::PermissionDenied,
        SetUpError::Connect(ConnectError::Invalid) => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl fmt::Debug for HandlerShard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerShard").field("number", &self.number()).finish_non_exhaustive()
    }
}
