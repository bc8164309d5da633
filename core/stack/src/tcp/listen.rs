//! Listening sockets, from listen(2) to the accept queue.

use crate::error::ListenError;
use crate::host::{Host, ListenerNote, SocketId};
use crate::ports::bind_addr::PortProtocol;
use crate::ports::holds::PortHolder;
use crate::socket::SocketRole;
use crate::stack::Stack;
use crate::tcp::listener::{AmongShards, ListeningSocket};

impl<H: Host> Stack<H> {
    /// Makes a stream socket a listener, or changes the backlog of a listener. If the socket is not
    /// bound, a port is chosen.
    ///
    /// As on Linux, the accept queue holds `backlog + 1` connections. While the queue is full, SYNs
    /// and the last ACKs of handshakes are not answered.
    ///
    /// # Errors
    /// [`ListenError::AddrInUse`] if another listener uses the address, or if no port is free.
    pub fn listen(&mut self, id: SocketId, backlog: u32) -> Result<(), ListenError> {
        self.listen_with(id, backlog, ListenerNote::default())
    }

    /// Like [`Stack::listen`]. `note` is data that the owner attaches to the listener
    /// ([`Stack::set_note`]). Other shards have the data from the first connection on.
    ///
    /// # Errors
    /// Same as for [`Stack::listen`].
    pub fn listen_with(
        &mut self,
        id: SocketId,
        backlog: u32,
        note: ListenerNote,
    ) -> Result<(), ListenError> {
        let index = self.index(id).ok_or(ListenError::Invalid)?;
        let socket = self.sockets.get_mut(index).ok_or(ListenError::Invalid)?;
        match &mut socket.kind {
            SocketRole::Listener(listener) => {
                listener.backlog = backlog;
                self.set_note(id, note);
                self.tell_of_room(index);
                return Ok(());
            }
            SocketRole::Fresh(_) => {}
            _ => return Err(ListenError::Invalid),
        }
        let device = socket.device();
        self.auto_bind(id).map_err(|_| ListenError::AddrInUse)?;
        let Some(socket) = self.sockets.get_mut(index) else { return Err(ListenError::Invalid) };
        let (SocketRole::Fresh(settings), Some(bound)) =
            (&socket.kind, socket.bound.as_deref().copied())
        else {
            return Err(ListenError::Invalid);
        };
        let holder = PortHolder {
            socket: index,
            addr: bound.addr,
            sharing: bound.options.sharing(),
            listening: true,
            device,
        };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# Every passive OPEN call either creates a new connection record in LISTEN state, or it
        //# returns an error; it MUST NOT affect any previously created connection record (MUST-41).
        if !self.ports.tcp.try_listen(bound.port, &holder) {
            return Err(ListenError::AddrInUse);
        }
        let mut listener = Box::new(ListeningSocket::new(**settings, backlog));
        if listener.settings.fast_open_queue == 0
            && self.config.tcp.fast_open.serves_all_listeners()
        {
            listener.settings.fast_open_queue = backlog;
        }
        listener.among = self.shards.member.as_ref().map(|member| Box::new(member.original(note)));
        listener.publish();
        socket.kind = SocketRole::Listener(listener);
        let sharing = bound.options.sharing();
        self.in_order(PortProtocol::Tcp, index, bound.port, |stack| {
            let receivers = &mut stack.ports.tcp.receivers;
            receivers.insert(bound.addr, bound.port, index, device, sharing);
            receivers.set_processor(bound.addr, bound.port, index, bound.options.processor);
            true
        });
        Ok(())
    }

    /// Frees the place of a connection that the program took from the accept queue. Call this once
    /// for each connection, even if the owner closes the connection instead of accepting it. While
    /// all places are taken, the listener answers no SYNs.
    pub fn accepted(&mut self, listener: SocketId) {
        let Some(index) = self.index(listener) else { return };
        if let Some(state) = self.sockets.listener_mut(index) {
            state.waiting = state.waiting.saturating_sub(1);
        }
        self.tell_of_room(index);
    }

    /// Replaces the data that the owner attached to a listener (its note). Connections that are
    /// accepted later get the new data.
    pub fn set_note(&mut self, listener: SocketId, note: ListenerNote) {
        let Some(index) = self.index(listener) else { return };
        if let Some(state) = self.sockets.listener_mut(index)
            && let Some(AmongShards::Original { note: before, .. }) = state.among.as_deref_mut()
            && *before != note
        {
            *before = note;
            self.in_order(PortProtocol::Tcp, index, 0, |_| true);
        }
    }
}
