//! Socket lifecycle: open, listen, close, remove.

use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{Instant, State};

use crate::error::OpenError;
use crate::host::{Family, Host, Linger, SocketEvent, SocketId, SocketKind};
use crate::settings::StreamSettings;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::FlowRef;
use crate::tcp::fast_open::HandshakeEnd;
use crate::udp::socket::DatagramSocket;

impl<H: Host> Stack<H> {
    /// Returns the receive buffer of a connection, to read between two turns of the event loop.
    /// Call [`Stack::recv_taken`] afterwards.
    pub fn recv_buffer(&mut self, id: SocketId) -> Option<&mut H::Recv> {
        let index = self.index(id)?;
        match &mut self.sockets.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some(&mut stream.recv),
            SocketRole::EarlyAccept(early) => Some(&mut early.recv),
            _ => None,
        }
    }

    /// Returns the send buffer of a connection, to write between two turns of the event loop. Call
    /// [`Stack::send_ready`] afterwards.
    pub fn send_buffer(&mut self, id: SocketId) -> Option<&mut H::Send> {
        let index = self.index(id)?;
        match &mut self.sockets.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some(&mut stream.send),
            SocketRole::EarlyAccept(early) => Some(&mut early.send),
            _ => None,
        }
    }

    /// Returns the receive and the send buffer of a connection, to read and write between two turns
    /// of the event loop. Call [`Stack::recv_taken`] and [`Stack::send_ready`] afterwards.
    pub fn buffers(&mut self, id: SocketId) -> Option<(&mut H::Recv, &mut H::Send)> {
        let index = self.index(id)?;
        match &mut self.sockets.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some((&mut stream.recv, &mut stream.send)),
            SocketRole::EarlyAccept(early) => Some((&mut early.recv, &mut early.send)),
            _ => None,
        }
    }

    /// Frees the memory that an idle connection reuses for sent packets.
    pub fn release_idle_memory(&mut self, id: SocketId) {
        if let Some(index) = self.index(id)
            && let Some(stream) = self.sockets.stream_mut(index)
            && let Some(connection) = &mut stream.connection
        {
            connection.release_idle_memory();
        }
    }

    /// Opens a socket that is neither bound nor connected. `user` is the owner's number of the
    /// socket, which the stack passes to [`Host`] in each callback. The stack does not check that
    /// it is unique.
    ///
    /// # Errors
    /// Fails if the limit [`StackConfig::sockets_max`](crate::StackConfig::sockets_max) is reached.
    /// The limit includes closed sockets that are not removed yet.
    pub fn open(
        &mut self,
        kind: SocketKind,
        family: Family,
        user: u32,
    ) -> Result<SocketId, OpenError> {
        if self.sockets.len() >= self.config.sockets_max {
            return Err(OpenError::TooMany);
        }
        let kind = match kind {
            SocketKind::Stream => SocketRole::Fresh(Box::new(StreamSettings::new(self.config.tcp))),
            SocketKind::Datagram => {
                SocketRole::Datagram(Box::new(DatagramSocket::new(false, family)))
            }
            SocketKind::Echo => SocketRole::Datagram(Box::new(DatagramSocket::new(true, family))),
        };
        let index = self.sockets.insert(StackSocket::new(user, family, kind));
        Ok(SocketId(self.sockets.id(index)))
    }

    /// Retransmits the SYN of a connection in SYN-SENT at once, because the owner knows that the
    /// peer dropped the SYN. The time at which the connection attempt fails does not change.
    pub fn repeat_syn(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        if let Some(stream) = self.sockets.stream_mut(index)
            && let Some(connection) = &mut stream.connection
        {
            connection.repeat_syn();
            self.mark_dirty(index);
        }
    }

    /// Closes the sending direction of a connection. A FIN follows the last byte of the send
    /// buffer, and the owner must not add bytes to the buffer.
    pub fn shutdown_send(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
            Some(SocketRole::Stream(stream)) => {
                if let Some(connection) = &mut stream.connection {
                    connection.shutdown_send();
                    self.mark_dirty(index);
                }
            }
            // The stack closes the sending direction when the handshake has completed.
            Some(SocketRole::EarlyAccept(early)) => early.shut = true,
            _ => {}
        }
    }

    /// Sends the SYN of a TCP Fast Open connect without waiting for bytes to send.
    pub fn open_without_bytes(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        if let Some(stream) = self.sockets.stream_mut(index)
            && let Some(connection) = &mut stream.connection
        {
            connection.open_without_bytes();
            self.mark_dirty(index);
        }
    }

    /// Closes a socket, whose identifier must not be used any more. [`SocketEvent::Closed`] follows
    /// when the socket and its buffers are removed. For a connection, this may be minutes later.
    ///
    /// Half-open connections of a listener are removed with the listener. Connections in its accept
    /// queue are separate sockets, which the owner must close with [`Linger::Abort`].
    pub fn close(&mut self, now: Instant, id: SocketId, linger: Linger) {
        let Some(index) = self.index(id) else { return };
        let too_many = self.ended.orphans >= self.config.orphans_max;
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if socket.orphan {
            return;
        }
        let SocketRole::Stream(stream) = &mut socket.kind else {
            return self.remove_socket(now, index);
        };
        let unread = stream.recv.unread() > 0;
        let Some(connection) = &mut stream.connection else {
            return self.remove_socket(now, index);
        };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
        //# If such a host issues a CLOSE call while received data is still pending in the TCP
        //# connection, or if new data is received after CLOSE is called, its TCP implementation
        //# SHOULD send a RST to show that data was lost (SHLD-3).
        let waits = connection.state() == State::SynSent && connection.is_fast_opening();
        if linger == Linger::Abort || unread || too_many {
            connection.abort();
            self.counters.tcp_orphans_aborted += u64::from(too_many);
        } else if waits && stream.send.len() > 0 {
            // The program has already written bytes, as on an established connection. Send them
            // before the FIN.
            connection.close_behind_bytes();
        } else {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
            //# A host MAY implement a "half-duplex" TCP close sequence, so that an application that
            //# has called CLOSE cannot continue to read data from the connection (MAY-1).
            connection.close(now);
        }
        socket.orphan = true;
        self.ended.orphans += 1;
        self.mark_dirty(index);
    }

    /// Resets every connection whose peer has not received all bytes and the FIN, because the stack
    /// is about to end. Connections whose socket is closed are included. The next turn of the event
    /// loop sends the resets.
    pub fn reset_connections(&mut self) {
        let connections: Vec<u32> = self.sockets.iter().map(|(index, _)| index).collect();
        for index in connections {
            let Some(stream) = self.sockets.stream_mut(index) else {
                continue;
            };
            if let Some(connection) = &mut stream.connection
                && !matches!(connection.state(), State::FinWait2 | State::TimeWait)
            {
                connection.abort();
                self.mark_dirty(index);
            }
        }
    }

    /// Removes a socket from all tables, and sends the event [`SocketEvent::Closed`] to the owner
    /// of the stack.
    pub(crate) fn remove_socket(&mut self, now: Instant, index: u32) {
        self.close_half_open(index);
        self.forget_datagram(now, index);
        self.end_fast_open(now, index, HandshakeEnd::Over);
        self.ended.forget(index);
        if !self.handshakes.saved_syns.is_empty() {
            self.handshakes.saved_syns.remove(&index);
        }
        // Remove the socket from all other tables before its slot is freed, because a new socket
        // may reuse the slot.
        self.stop_listening(index);
        let Some(socket) = self.sockets.remove(index) else { return };
        let StackSocket { user, bound, orphan, kind, family: _, dirty: _, waits: _ } = socket;
        self.ended.orphans -= usize::from(orphan);
        self.events.push(user, SocketEvent::Closed);
        match kind {
            // The tables of a datagram socket no longer contain it, because `forget_datagram` was
            // called above.
            SocketRole::Datagram(_) => return,
            SocketRole::Stream(mut stream) => {
                self.wheel.cancel(&mut stream.timer);
                if stream.connection.is_some() {
                    self.flows.remove(self.keys.table.ends(&stream.flow), FlowRef::Socket(index));
                    self.shards.give_back(&stream.flow);
                }
                if let Some(sharing) = stream.uses_port {
                    self.ports.tcp.unuse_port(stream.flow.local_port, stream.flow.local, sharing);
                }
            }
            SocketRole::Fresh(_) | SocketRole::Listener(_) | SocketRole::EarlyAccept(_) => {}
        }
        if let Some(bound) = bound {
            self.ports.tcp.release(bound.port, index);
        }
    }
}
