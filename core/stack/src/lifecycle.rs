//! The life of a socket: open, listen, close, gone.

use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{Instant, State};

use crate::error::{ListenError, OpenError};
use crate::host::{
    BindOptions, Family, Host, Linger, ListenerNote, SocketEvent, SocketId, SocketKind,
};
use crate::ports::bind_addr::Table;
use crate::ports::holds::Holder;
use crate::socket::{Bound, Datagram, Kind, Listener, PacketSettings, Settings, Socket};
use crate::stack::Stack;
use crate::tables::flow::FlowRef;
use crate::tcp::fast_open::End;

impl<H: Host> Stack<H> {
    /// The receive buffer of a connection, for an owner that reads it between turns. Say
    /// [`Stack::recv_taken`] afterwards.
    pub fn recv_buffer(&mut self, id: SocketId) -> Option<&mut H::Recv> {
        let index = self.index(id)?;
        match &mut self.sockets.get_mut(index)?.kind {
            Kind::Stream(stream) => Some(&mut stream.recv),
            Kind::EarlyAccept(early) => Some(&mut early.recv),
            _ => None,
        }
    }

    /// The send buffer of a connection, for an owner that writes it between turns. Say
    /// [`Stack::send_ready`] afterwards.
    pub fn send_buffer(&mut self, id: SocketId) -> Option<&mut H::Send> {
        let index = self.index(id)?;
        match &mut self.sockets.get_mut(index)?.kind {
            Kind::Stream(stream) => Some(&mut stream.send),
            Kind::EarlyAccept(early) => Some(&mut early.send),
            _ => None,
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
            SocketKind::Stream => Kind::Fresh(Box::new(self.default_settings())),
            SocketKind::Datagram => Kind::Datagram(Box::new(Datagram::new(false, family))),
            SocketKind::Echo => Kind::Datagram(Box::new(Datagram::new(true, family))),
        };
        let index = self.sockets.insert(Socket::new(user, family, kind));
        Ok(SocketId(self.sockets.id(index)))
    }

    /// The settings of sockets on which nothing was set.
    pub(crate) fn default_settings(&self) -> Settings {
        Settings {
            tcp: self.config.tcp,
            packet: PacketSettings::default(),
            device: None,
            binding: BindOptions::default(),
            fast_open_queue: 0,
            save_syn: false,
        }
    }

    /// Makes a stream socket a listener, or changes the backlog of one. An unbound socket gets a
    /// port.
    ///
    /// The accept queue holds `backlog + 1` children, as on Linux. While it is full SYNs are not
    /// answered, and neither are the last ACKs of handshakes under way.
    ///
    /// # Errors
    /// [`ListenError::AddrInUse`] also when no port can be chosen.
    pub fn listen(&mut self, id: SocketId, backlog: u32) -> Result<(), ListenError> {
        self.listen_with(id, backlog, ListenerNote::default())
    }

    /// The same, with the listener's note for other shards from its first connection on. See
    /// [`Stack::set_note`].
    ///
    /// # Errors
    /// As for [`Stack::listen`].
    pub fn listen_with(
        &mut self,
        id: SocketId,
        backlog: u32,
        note: ListenerNote,
    ) -> Result<(), ListenError> {
        let index = self.index(id).ok_or(ListenError::Invalid)?;
        let socket = self.sockets.get_mut(index).ok_or(ListenError::Invalid)?;
        match &mut socket.kind {
            Kind::Listener(listener) => {
                listener.backlog = backlog;
                self.set_note(id, note);
                self.tell_of_room(index);
                return Ok(());
            }
            Kind::Fresh(_) => {}
            _ => return Err(ListenError::Invalid),
        }
        let device = socket.device();
        self.auto_bind(id).map_err(|_| ListenError::AddrInUse)?;
        let Some(socket) = self.sockets.get_mut(index) else { return Err(ListenError::Invalid) };
        let (Kind::Fresh(settings), Some(bound)) = (&socket.kind, socket.bound.as_deref().copied())
        else {
            return Err(ListenError::Invalid);
        };
        let holder = Holder {
            socket: index,
            addr: bound.addr,
            sharing: bound.options.sharing(),
            listening: true,
            device,
        };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# Every passive OPEN call either creates a new connection record in LISTEN state, or it
        //# returns an error; it MUST NOT affect any previously created connection record (MUST-41).
        if !self.tcp_binds.try_listen(bound.port, &holder) {
            return Err(ListenError::AddrInUse);
        }
        let mut listener = Box::new(Listener::new(**settings, backlog));
        listener.among = self.member.as_ref().map(|member| Box::new(member.original(note)));
        listener.publish();
        socket.kind = Kind::Listener(listener);
        let sharing = bound.options.sharing();
        self.in_order(Table::Tcp, index, bound.port, |stack| {
            let receivers = &mut stack.tcp_binds.receivers;
            receivers.insert(bound.addr, bound.port, index, device, sharing);
            receivers.set_processor(bound.addr, bound.port, index, bound.options.processor);
            true
        });
        Ok(())
    }

    /// The program took a child off the accept queue: its place is free. Call once for each child,
    /// also when the owner closes it instead: with all places taken, the listener answers no SYN.
    pub fn accepted(&mut self, listener: SocketId) {
        let index = self.index(listener);
        let socket = index.and_then(|index| self.sockets.get_mut(index));
        if let Some(Kind::Listener(state)) = socket.map(|socket| &mut socket.kind) {
            state.waiting = state.waiting.saturating_sub(1);
        }
        if let Some(index) = index {
            self.tell_of_room(index);
        }
    }

    /// Bytes were put into the send buffer: the next turn sends as many as the windows allow. Calls
    /// for sockets that are gone do nothing.
    pub fn send_ready(&mut self, id: SocketId) {
        if let Some(index) = self.index(id) {
            self.mark_dirty(index);
        }
    }

    /// Sends the SYN of a connection in SYN-SENT once more, for an owner that knows that the peer
    /// dropped it. The time at which the connection is given up stays the same.
    pub fn repeat_syn(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        if let Some(Kind::Stream(stream)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
            && let Some(connection) = &mut stream.connection
        {
            connection.repeat_syn();
            self.mark_dirty(index);
        }
    }

    /// The program read from the receive buffer. Without this call a peer whose window is shut
    /// learns of the room by its own, infrequent probes only (RFC 9293 §3.8.6.1).
    pub fn recv_taken(&mut self, now: Instant, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        let Some(Kind::Stream(stream)) = self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return;
        };
        let buffers = stream.buffers();
        if let Some(connection) = &mut stream.connection {
            connection.on_recv_consumed(now, buffers);
            self.mark_dirty(index);
        }
    }

    /// The program sends no more: FIN follows the last byte of the send buffer, into which the
    /// owner puts nothing more.
    pub fn shutdown_send(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
            Some(Kind::Stream(stream)) => {
                if let Some(connection) = &mut stream.connection {
                    connection.shutdown_send();
                    self.mark_dirty(index);
                }
            }
            // Once the handshake is over.
            Some(Kind::EarlyAccept(early)) => early.shut = true,
            _ => {}
        }
    }

    /// The SYN of a connect with Fast Open no longer waits for bytes.
    pub fn open_without_bytes(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        let kind = self.sockets.get_mut(index).map(|socket| &mut socket.kind);
        if let Some(Kind::Stream(stream)) = kind
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
        let Kind::Stream(stream) = &mut socket.kind else { return self.remove_socket(now, index) };
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
            let Some(Kind::Stream(stream)) =
                self.sockets.get_mut(index).map(|socket| &mut socket.kind)
            else {
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
        self.end_fast_open(now, index, End::Over);
        if !self.saved_syns.is_empty() {
            self.saved_syns.remove(&index);
        }
        // Leave all tables before the slot is freed, since another socket may get it then.
        self.stop_listening(index);
        let Some(socket) = self.sockets.remove(index) else { return };
        let Socket { user, bound, orphan, kind, family: _, dirty: _, waits: _ } = socket;
        self.orphans -= usize::from(orphan);
        self.events.push_back((user, SocketEvent::Closed));
        match kind {
            // A datagram socket has left its tables before.
            Kind::Datagram(_) => return,
            Kind::Stream(mut stream) => {
                self.wheel.cancel(&mut stream.timer);
                if stream.connection.is_some() {
                    self.flows.remove(self.keys.table.ends(&stream.flow), FlowRef::Socket(index));
                    self.give_flow_back(&stream.flow);
                }
                if let Some(sharing) = stream.uses_port {
                    self.tcp_binds.unuse_port(stream.flow.local_port, stream.flow.local, sharing);
                }
            }
            Kind::Fresh(_) | Kind::Listener(_) | Kind::EarlyAccept(_) => {}
        }
        if let Some(bound) = bound {
            self.tcp_binds.release(bound.port, index);
        }
    }

    /// A listener takes no more connections.
    pub(crate) fn stop_listening(&mut self, index: u32) {
        let socket = self.sockets.get(index);
        let Some(socket) = socket.filter(|it| matches!(it.kind, Kind::Listener(_))) else { return };
        let Some(Bound { addr, port, .. }) = socket.bound.as_deref().copied() else { return };
        self.in_order(Table::Tcp, index, port, |stack| {
            stack.tcp_binds.receivers.remove(addr, port, index);
            false
        });
    }

    /// Removes the half-open connections of a listener or of a socket that was accepted early. No
    /// segment is sent: the next one of each peer is answered by a RST.
    pub(crate) fn close_half_open(&mut self, index: u32) {
        while let Some(socket) = self.sockets.get(index) {
            let at = match &socket.kind {
                Kind::Listener(listener) => listener.half_open.front(),
                Kind::EarlyAccept(early) => {
                    self.handshakes.half_open.get(early.half_open).map(|_| early.half_open)
                }
                _ => None,
            };
            let Some(at) = at else { return };
            self.remove_half_open(at);
        }
    }
}
