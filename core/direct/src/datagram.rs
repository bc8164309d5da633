//! UDP and ICMP echo sockets.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use towpath_pool::{Fragments, Port};
use towpath_ring::Payload;
use towpath_stack::net::EchoOut;
use towpath_stack::{BindOptions, DatagramFrom, DatagramOut, SendError, SocketKind};

use crate::error::SetUpError;
use crate::handle::SocketHandle;
use crate::node::Node;
use crate::table::{Kind, ReceivedDatagram};

/// Length of an ICMP echo header in bytes (RFC 792, RFC 4443 §4.1).
const ECHO_HEADER_LEN: usize = 8;

impl<P: Port + ?Sized> Node<P> {
    /// Opens a UDP socket at `local`; port 0 chooses a free port.
    ///
    /// # Errors
    /// [`SetUpError::Bind`] if the address is in use or does not belong to the node;
    /// [`SetUpError::TooMany`].
    pub fn udp(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.datagram_socket(SocketKind::Datagram, local)
    }

    /// Opens an echo socket ("ping socket") at the address of `local`, whose port is the
    /// identifier; 0 chooses a free identifier.
    ///
    /// # Errors
    /// Same as [`Node::udp`].
    pub fn echo(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.datagram_socket(SocketKind::Echo, local)
    }

    fn datagram_socket(
        &mut self,
        of: SocketKind,
        local: SocketAddr,
    ) -> Result<SocketHandle, SetUpError> {
        let kind = Kind::Datagram { received: VecDeque::new(), bytes: 0 };
        let handle = self.open(of, local, kind)?;
        let id = self.direct.open(handle).ok_or(SetUpError::SynForgotten)?.id;
        let made = self.stack.bind(id, local, BindOptions::default()).map_err(SetUpError::from);
        self.keep_if(handle, made.map(|_| ()))
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// See [`towpath_stack::Stack::send_datagram`]; [`SendError::Invalid`] if the handle is dead.
    pub fn send_to(
        &mut self,
        handle: SocketHandle,
        remote: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let out = DatagramOut { remote: Some(remote), ..DatagramOut::default() };
        let payload = Payload::new(bytes, Fragments::empty());
        self.send_datagram(handle, &out, &payload)
    }

    /// Sends one echo request with sequence number `seq`. [`Node::recv_from`] returns the reply,
    /// and [`echo_seq`](Node::echo_seq) extracts its sequence number.
    ///
    /// # Errors
    /// Same as [`Node::send_to`].
    pub fn ping(
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

    fn send_datagram(
        &mut self,
        handle: SocketHandle,
        out: &DatagramOut,
        payload: &Payload<'_>,
    ) -> Result<(), SendError> {
        let id = self.direct.open(handle).ok_or(SendError::Invalid)?.id;
        let now = self.now();
        self.stack.send_datagram(now, id, out, payload, &mut self.pool).map(|_| ())
    }

    /// Returns the oldest received datagram of a socket.
    pub fn recv_from(&mut self, handle: SocketHandle) -> Option<ReceivedDatagram> {
        let Kind::Datagram { received, bytes } = &mut self.direct.open_mut(handle)?.kind else {
            return None;
        };
        let datagram = received.pop_front()?;
        *bytes -= ReceivedDatagram::size(datagram.bytes.len());
        Some(datagram)
    }

    /// Returns the sequence number of an echo reply; `None` for other messages.
    pub fn echo_seq(message: &[u8]) -> Option<u16> {
        let is_reply = matches!(message.first(), Some(0 | 129));
        let number = message.get(6..8).filter(|_| is_reply)?;
        Some(u16::from_be_bytes([number[0], number[1]]))
    }

    /// Sends a datagram from any source address, to answer a [`crate::Stray::Datagram`].
    ///
    /// # Errors
    /// See [`towpath_stack::Stack::send_datagram_from`].
    pub fn send_datagram_from(
        &mut self,
        from: &DatagramFrom,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let (now, payload) = (self.now(), Payload::new(bytes, Fragments::empty()));
        self.stack.send_datagram_from(now, from, &payload, &mut self.pool).map(|_| ())
    }

    /// Sends an echo message from any source address, to answer a [`crate::Stray::Echo`].
    ///
    /// # Errors
    /// See [`towpath_stack::Stack::send_echo_from`].
    pub fn send_echo_from(&mut self, out: &EchoOut, data: &[u8]) -> Result<(), SendError> {
        let (now, payload) = (self.now(), Payload::new(data, Fragments::empty()));
        self.stack.send_echo_from(now, out, &payload, &mut self.pool).map(|_| ())
    }
}
