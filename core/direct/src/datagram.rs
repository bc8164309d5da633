//! UDP and ICMP echo sockets.

use std::net::{IpAddr, SocketAddr};

use towpath_pool::{Fragments, Port};
use towpath_ring::Payload;
use towpath_stack::net::EchoOut;
use towpath_stack::{DatagramFrom, SendError};

use crate::calls::PrivateSockets;
use crate::error::SetUpError;
use crate::handle::SocketHandle;
use crate::node::Node;
use crate::table::ReceivedDatagram;

impl<P: Port + ?Sized> Node<P> {
    /// Opens a UDP socket at `local`; port 0 chooses a free port.
    ///
    /// # Errors
    /// [`SetUpError::Bind`] if the address is in use or does not belong to the node;
    /// [`SetUpError::TooMany`] if the limit of sockets is reached.
    pub fn udp(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.calls().udp(local)
    }

    /// Opens an ICMP echo socket ("ping socket") at the address of `local`. The port of `local` is
    /// the echo identifier; 0 chooses a free identifier.
    ///
    /// # Errors
    /// Same as [`Node::udp`].
    pub fn echo(&mut self, local: SocketAddr) -> Result<SocketHandle, SetUpError> {
        self.calls().echo(local)
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// See [`towpath_stack::Stack::send_datagram`]; [`SendError::Invalid`] if the socket was
    /// removed.
    pub fn send_to(
        &mut self,
        handle: SocketHandle,
        remote: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        self.calls().send_to(handle, remote, bytes)
    }

    /// Sends one ICMP echo request with sequence number `seq`. [`Node::recv_from`] returns the
    /// reply, and [`echo_seq`](Node::echo_seq) extracts its sequence number.
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
        self.calls().ping(handle, remote, seq, data)
    }

    /// Removes and returns the oldest received datagram of a socket.
    pub fn recv_from(&mut self, handle: SocketHandle) -> Option<ReceivedDatagram> {
        self.calls().recv_from(handle)
    }

    /// Returns the sequence number of an ICMP echo reply; `None` for other ICMP messages.
    pub fn echo_seq(message: &[u8]) -> Option<u16> {
        let is_reply = matches!(message.first(), Some(0 | 129));
        let number = message.get(6..8).filter(|_| is_reply)?;
        Some(u16::from_be_bytes([number[0], number[1]]))
    }

    /// Sends a UDP datagram from any source address, to answer a [`crate::Stray::Datagram`].
    ///
    /// # Errors
    /// See [`towpath_stack::Stack::send_datagram_from`].
    pub fn send_datagram_from(
        &mut self,
        from: &DatagramFrom,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let (now, payload) = (self.now(), Payload::new(bytes, Fragments::empty()));
        self.stack.send_datagram_from(now, from, &payload, &mut self.pool)?;
        self.direct.sent.note(from.local, from.remote);
        Ok(())
    }

    /// Sends an ICMP echo message from any source address, to answer a [`crate::Stray::Echo`].
    ///
    /// # Errors
    /// See [`towpath_stack::Stack::send_echo_from`].
    pub fn send_echo_from(&mut self, out: &EchoOut, data: &[u8]) -> Result<(), SendError> {
        let (now, payload) = (self.now(), Payload::new(data, Fragments::empty()));
        self.stack.send_echo_from(now, out, &payload, &mut self.pool).map(|_| ())
    }
}
