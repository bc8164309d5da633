//! The life of a socket: open, listen, close, gone.

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
    /// The receive buffer of a connection, for an owner that reads it between turns. Say
    /// [`Stack::recv_taken`] afterwards.
    pub fn recv_buffer(&mut self, id: SocketId) -> Option<&mut H::Recv> {
        let index = self.index(id)?;
        match &mut self.sockets.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some(&mut stream.recv),
            SocketRole::EarlyAccept(early) => Some(&mut early.recv),
            _ => None,
        }
    }

    /// The send buffer of a connection, for an owner that writes it between turns. Say
    /// [`Stack::send_ready`] afterwards.
    pub fn send_buffer(&mut self, id: SocketId) -> Option<&mut H::Send> {
        let index = self.index(id)?;
        match &mut self.sockets.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some(&mut stream.send),
            SocketRole::EarlyAccept(early) => Some(&mut early.send),
            _ => None,
        }
    }

    /// Frees memory that the connection keeps for its next flight. For an owner that finds the
    /// connection idle.
    pub fn release_idle_memory(&mut self, id: SocketId) {
        if let Some(index) = self.index(id)
            && let Some(stream) = self.sockets.stream_mut(index)
            && let Some(connection) = &mut stream.connection
        {
            connection.release_idle_memory();
        }
    }

    /// Makes a socket, neither bound nor connected. `user` comes back in every callback about it;
    /// the stack does not look whether another socket has the same.
    ///
    /// # Errors
    /// There are [`StackConfig::sockets_max`](crate::StackConfig::sockets_max) sockets, closed ones
    /// that are not gone yet among them.
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

    /// Sends the SYN of a connection in SYN-SENT once more, for an owner that knows that the peer
    /// dropped it. The time at which the connection is given up stays the same.
    pub fn repeat_syn(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        if let Some(stream) = self.sockets.stream_mut(index)
            && let Some(connection) = &mut stream.connection
        {
            connection.repeat_syn();
            self.mark_dirty(index);
        }
    }

    /// The program sends no more: FIN follows the last byte of the send buffer, into which the
    /// owner puts nothing more.
    pub fn shutdown_send(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
            Some(SocketRole::Stream(stream)) => {
                if let Some(connection) = &mut stream.connection {
                    connection.shutdown_send();
                    self.mark_dirty(index);
                }
            }
            // Once the handshake is over.
            Some(SocketRole::EarlyAccept(early)) => early.shut = true,
            _ => {}
        }
    }

    /// The SYN of a connect with Fast Open no longer waits for bytes.
    pub fn open_without_bytes(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        if let Some(stream) = self.sockets.stream_mut(index)
            && let Some(connection) = &mut stream.connection
        {
            connection.open_without_bytes();
            self.mark_dirty(index);
        }
    }

    /// The owner is done with a socket, and must not use its id any more. [`SocketEvent::Closed`]
    /// follows when the socket and its buffers are gone, for a connection perhaps minutes later.
    ///
    /// A listener's half-open connections end with it. Children in its accept queue are sockets of
    /// their own, and the owner closes each with [`Linger::Abort`].
    pub fn close(&mut self, now: Instant, id: SocketId, linger: Linger) {
        let Some(index) = self.index(id) else { return };
        let too_many = self.orphans >= self.config.orphans_max;
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
            // The program has seen its bytes taken, as those of a connection.
            connection.close_behind_bytes();
        } else {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
            //# A host MAY implement a "half-duplex" TCP close sequence, so that an application that
            //# has called CLOSE cannot continue to read data from the connection (MAY-1).
            connection.close(now);
        }
        socket.orphan = true;
        self.orphans += 1;
        self.mark_dirty(index);
    }

    /// Resets every connection whose peer lacks bytes or the end of the stream, closed ones
    /// included: the stack is about to go. The resets leave with the next turn.
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

    /// Takes a socket out of every table. Its owner gets `Closed`.
    pub(crate) fn remove_socket(&mut self, now: Instant, index: u32) {
        self.close_half_open(index);
        self.forget_datagram(now, index);
        self.end_fast_open(now, index, HandshakeEnd::Over);
        if !self.handshakes.saved_syns.is_empty() {
            self.handshakes.saved_syns.remove(&index);
        }
        // Leave all tables before the slot is freed, since another socket may get it then.
        self.stop_listening(index);
        let Some(socket) = self.sockets.remove(index) else { return };
        let StackSocket { user, bound, orphan, kind, family: _, dirty: _, waits: _ } = socket;
        self.orphans -= usize::from(orphan);
        self.events.push(user, SocketEvent::Closed);
        match kind {
            // A datagram socket has left its tables before.
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
