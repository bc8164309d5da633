//! The engine service that runs a handler: converts events of sockets to calls of the handler.
//!
//! Each call of the handler is followed by [`HandlerService::apply`], and every connection ends in
//! [`HandlerService::end`]. A call may request actions for further connections. The actions are
//! applied later, in `on_turn`, so that calls of the handler are never nested.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::{fmt, io, mem};

use towpath_direct::{DirectConfig, NodeEvent, PrivateSockets, SetUpError, SocketHandle};
use towpath_engine::Service;
use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_stack::Instant;

use super::conn::{Conn, ConnId};
use super::conn_action::{CloseReason, ConnAction};
use super::conn_table::{CallGate, ConnTable};
use super::counters::SharedCounters;
use super::handler_remote::{HandlerMail, HandlerMailbox, HandlerRemote};
use super::handler_shard::{HandlerShard, UdpId};
use super::handler_trait::Handler;
use super::options::FirstSockets;
use super::service_core::ServiceCore;

/// Maximum number of messages from other threads that are handled in one iteration of the event
/// loop, so that packets are not delayed. Further messages wait for the next iteration.
const MESSAGES_A_TURN: usize = 256;

/// A handler on one shard, with its connections and their states.
pub(super) struct HandlerService<H: Handler> {
    handler: H,
    /// The handler's states of connections, by the index of the socket handle.
    states: Vec<Option<H::State>>,
    core: ServiceCore,
    counters: Arc<SharedCounters>,
    first: FirstSockets,
    mailbox: Arc<HandlerMailbox<H, H::State>>,
    /// Messages that other threads have sent and that are not handled yet.
    mail: VecDeque<HandlerMail<H, H::State>>,
    /// Actions for connections that handler calls have requested. Stored in a field only to reuse
    /// the memory of the list.
    requested: Vec<(SocketHandle, ConnAction)>,
}

impl<H: Handler> HandlerService<H> {
    pub fn new(
        handler: H,
        shard: usize,
        first: FirstSockets,
        counters: Arc<SharedCounters>,
    ) -> io::Result<Self> {
        Ok(Self {
            handler,
            states: Vec::new(),
            core: ServiceCore::new(shard, Arc::clone(&counters), first.streams),
            counters,
            first,
            mailbox: Arc::new(HandlerMailbox::new()?),
            mail: VecDeque::new(),
            requested: Vec::new(),
        })
    }

    /// Begins to call the handler for a connection whose handshake is complete. An accepted
    /// connection is not in the table yet, so this adds it.
    fn open(&mut self, handle: SocketHandle, sockets: &mut dyn PrivateSockets) {
        let is_outgoing = self.core.table.get_mut(handle).is_some_and(|entry| {
            entry.gate = CallGate::Open;
            true
        });
        if !is_outgoing {
            self.core.table.insert(handle, CallGate::Open);
            self.core.count_connections();
        }
        self.core.table.touch(handle, sockets.now());
        let Self { handler, core, counters, .. } = self;
        let mut conn = Conn::new(core, sockets, handle, is_outgoing);
        let made = guarded(counters, || handler.accepted(&mut conn));
        conn.settle();
        match made {
            Some(Some(state)) => {
                counters.accepted.add(1);
                self.store(handle, state);
            }
            Some(None) | None => self.forget(handle, sockets),
        }
    }

    fn store(&mut self, handle: SocketHandle, state: H::State) {
        let index = handle.index();
        if index >= self.states.len() {
            self.states.resize_with(index + 1, || None);
        }
        self.states[index] = Some(state);
    }

    /// Resets and removes a connection for which the handler has no state.
    fn forget(&mut self, handle: SocketHandle, sockets: &mut dyn PrivateSockets) {
        if self.core.table.remove(handle) {
            self.counters.closed.add(1);
            self.core.count_connections();
        }
        sockets.abort(handle);
    }

    /// Calls [`Handler::readable`] unless the connection is paused or waits for room to send.
    fn read(&mut self, handle: SocketHandle, sockets: &mut dyn PrivateSockets) {
        if self.core.table.get(handle).is_some_and(|entry| entry.gate == CallGate::Open) {
            self.call(handle, sockets, CallKind::Bytes, |handler, conn, state| {
                handler.readable(conn, state)
            });
        }
    }

    /// Calls [`Handler::writable`] if the connection waited for room to send.
    fn write(&mut self, handle: SocketHandle, sockets: &mut dyn PrivateSockets) {
        if self.core.table.get(handle).is_some_and(|entry| entry.gate == CallGate::AwaitsRoom) {
            self.call(handle, sockets, CallKind::Bytes, |handler, conn, state| {
                handler.writable(conn, state)
            });
        }
    }

    fn call(
        &mut self,
        handle: SocketHandle,
        sockets: &mut dyn PrivateSockets,
        kind: CallKind,
        callback: impl FnOnce(&mut H, &mut Conn<'_>, &mut H::State) -> ConnAction,
    ) {
        let Self { handler, states, core, counters, .. } = self;
        let Some(Some(state)) = states.get_mut(handle.index()) else { return };
        let now = sockets.now();
        core.table.touch(handle, now);
        let mut conn = Conn::new(core, sockets, handle, false);
        let result = guarded(counters, || callback(handler, &mut conn, state));
        conn.settle();
        match result {
            Some(action) => self.apply(handle, action, kind, sockets),
            None => self.end(handle, ConnAction::Reset, CloseReason::Panicked, sockets),
        }
    }

    /// Applies the action that a call of the handler has returned.
    fn apply(
        &mut self,
        handle: SocketHandle,
        action: ConnAction,
        kind: CallKind,
        sockets: &mut dyn PrivateSockets,
    ) {
        let before = self.core.table.get(handle).map(|entry| entry.gate);
        let gate = match action {
            // A timer or a message does not end the wait for send buffer space. `writable` is still
            // called later.
            ConnAction::Continue
                if kind == CallKind::Message && before == Some(CallGate::AwaitsRoom) =>
            {
                return;
            }
            ConnAction::Continue => CallGate::Open,
            // The send buffer is empty and cannot grow, so no event would ever call `writable`.
            // Treat the action as `Continue`.
            ConnAction::AwaitRoom if is_send_empty(handle, sockets) => CallGate::Open,
            ConnAction::AwaitRoom => CallGate::AwaitsRoom,
            ConnAction::Pause => CallGate::Paused,
            ConnAction::Finish => {
                return self.end(handle, action, CloseReason::Finished, sockets);
            }
            ConnAction::Reset => return self.end(handle, action, CloseReason::Reset, sockets),
        };
        if let Some(entry) = self.core.table.get_mut(handle) {
            entry.gate = gate;
        }
        // The peer has sent its FIN, and this call has reported it to the handler, so close the
        // connection.
        let is_over = kind == CallKind::Bytes && gate == CallGate::Open;
        if is_over && sockets.status(handle).is_none_or(|status| status.ended) {
            self.end(handle, ConnAction::Finish, CloseReason::Finished, sockets);
        }
    }

    /// Ends a connection, and passes its state to [`Handler::closed`].
    fn end(
        &mut self,
        handle: SocketHandle,
        how: ConnAction,
        reason: CloseReason,
        sockets: &mut dyn PrivateSockets,
    ) {
        if !self.core.table.remove(handle) {
            return;
        }
        match how {
            ConnAction::Reset => sockets.abort(handle),
            _ => {
                // Discard unread bytes first. The stack would reset a connection that is closed
                // with unread bytes.
                let _ = sockets.discard(handle, usize::MAX);
                sockets.shutdown(handle);
                sockets.close(handle);
            }
        }
        let Self { handler, states, core, counters, .. } = self;
        counters.closed.add(1);
        core.count_connections();
        let Some(state) = states.get_mut(handle.index()).and_then(Option::take) else { return };
        let mut shard = HandlerShard { core, sockets };
        guarded(counters, || handler.closed(&mut shard, ConnId(handle), state, reason));
    }

    /// Handles an error of a connection or of a sent datagram.
    fn fail(
        &mut self,
        handle: SocketHandle,
        reason: CloseReason,
        sockets: &mut dyn PrivateSockets,
    ) {
        match self.core.table.get(handle).map(|entry| entry.gate) {
            // The handle belongs to a UDP socket. Ignore its lost datagram, because UDP is
            // unreliable.
            None => {}
            Some(CallGate::Connecting) => {
                self.forget(handle, sockets);
                let Self { handler, core, counters, .. } = self;
                let mut shard = HandlerShard { core, sockets };
                guarded(counters, || handler.refused(&mut shard, ConnId(handle), reason));
            }
            Some(_) => self.end(handle, ConnAction::Reset, reason, sockets),
        }
    }

    /// Passes all datagrams received by a socket to the handler. Their number is bounded by
    /// [`DirectConfig::datagram_bytes_max`].
    fn datagrams(&mut self, socket: SocketHandle, sockets: &mut dyn PrivateSockets) {
        while let Some(datagram) = sockets.recv_from(socket) {
            let Self { handler, core, counters, .. } = self;
            let mut shard = HandlerShard { core, sockets };
            let (from, bytes) = (datagram.meta.remote, &datagram.bytes);
            guarded(counters, || handler.datagram(&mut shard, UdpId(socket), from, bytes));
            sockets.recycle(datagram.bytes);
        }
    }

    /// Handles messages from other threads. Returns whether there were any.
    fn take_mail(&mut self, sockets: &mut dyn PrivateSockets) -> bool {
        if self.mail.is_empty() {
            self.mailbox.take(&mut self.mail);
        }
        let count = self.mail.len().min(MESSAGES_A_TURN);
        for _ in 0..count {
            let Some(mail) = self.mail.pop_front() else { break };
            match mail {
                HandlerMail::Conn(ConnId(handle), work) => self.resume_with(handle, work, sockets),
                HandlerMail::Shard(work) => {
                    let Self { handler, core, counters, .. } = self;
                    let mut shard = HandlerShard { core, sockets };
                    guarded(counters, || work(handler, &mut shard));
                }
            }
        }
        count > 0
    }

    fn resume_with(
        &mut self,
        handle: SocketHandle,
        work: impl FnOnce(&mut H, &mut Conn<'_>, &mut H::State) -> ConnAction,
        sockets: &mut dyn PrivateSockets,
    ) {
        if self.core.table.get(handle).is_none_or(|entry| entry.gate == CallGate::Connecting) {
            // Guard the drop, because destructors of values that the closure owns may panic.
            guarded(&self.counters, || drop(work));
            return;
        }
        self.call(handle, sockets, CallKind::Message, work);
        self.read_unread(handle, sockets);
    }

    /// Calls the handler if a connection has unread bytes, or if the peer has sent its FIN.
    fn read_unread(&mut self, handle: SocketHandle, sockets: &mut dyn PrivateSockets) {
        let unread = sockets.buffers(handle).map_or(0, |(recv, _)| recv.unread());
        if unread > 0 || sockets.status(handle).is_some_and(|status| status.ended) {
            self.read(handle, sockets);
        }
    }

    /// Applies the actions that calls of the handler requested for connections. Returns whether
    /// there were any.
    fn take_requests(&mut self, sockets: &mut dyn PrivateSockets) -> bool {
        let mut requested = mem::take(&mut self.requested);
        mem::swap(&mut requested, &mut self.core.requested);
        let is_any = !requested.is_empty();
        for (handle, action) in requested.drain(..) {
            // Skip a connection that ended after the action was requested.
            let Some(entry) = self.core.table.get_mut(handle) else { continue };
            match (action, entry.gate) {
                (ConnAction::Continue, CallGate::Paused) => {
                    entry.gate = CallGate::Open;
                    self.read_unread(handle, sockets);
                }
                (ConnAction::Continue, CallGate::Open) => self.read_unread(handle, sockets),
                (ConnAction::Continue, _) => {}
                (ConnAction::Finish, _) => {
                    self.end(handle, action, CloseReason::Finished, sockets);
                }
                _ => self.end(handle, ConnAction::Reset, CloseReason::Reset, sockets),
            }
        }
        self.requested = requested;
        is_any
    }

    /// Calls the handler for connections whose timer has fired. Returns whether there were any.
    fn fire_timers(&mut self, now: Instant, sockets: &mut dyn PrivateSockets) -> bool {
        let (mut moves, mut is_any) = (ConnTable::timer_budget(), false);
        while let Some(handle) = self.core.table.next_fired(now, &mut moves) {
            is_any = true;
            self.resume_with(handle, |handler, conn, state| handler.timer(conn, state), sockets);
        }
        is_any
    }
}

impl<H: Handler> Service for HandlerService<H> {
    fn limits(&self) -> DirectConfig {
        self.first.limits
    }

    fn start(&mut self, sockets: &mut dyn PrivateSockets) -> Result<(), SetUpError> {
        self.core.table = ConnTable::new(sockets.now());
        // Only the first shard listens, and distributes the connections to the handlers of all
        // shards.
        if self.core.shard == 0 {
            for address in &self.first.listen {
                sockets.listen_with(*address, self.first.backlog, &self.first.streams)?;
            }
            for address in &self.first.udp {
                self.core.udp.push(sockets.udp(*address)?);
            }
        }
        let remote = HandlerRemote::new(Arc::clone(&self.mailbox));
        self.handler.started(&mut HandlerShard { core: &mut self.core, sockets }, remote);
        Ok(())
    }

    fn on_event(&mut self, event: NodeEvent, sockets: &mut dyn PrivateSockets) {
        match event {
            NodeEvent::Incoming(listener) => {
                while let Some(child) = sockets.accept(listener) {
                    self.open(child, sockets);
                }
            }
            NodeEvent::Connected(handle) => self.open(handle, sockets),
            // Sockets that are not in the connection table are UDP sockets. Searching the list
            // `udp` instead would be slow if there are many UDP sockets.
            NodeEvent::Readable(handle) if self.core.table.get(handle).is_none() => {
                self.datagrams(handle, sockets);
            }
            NodeEvent::Readable(handle) | NodeEvent::PeerClosed(handle) => {
                self.read(handle, sockets);
            }
            NodeEvent::Writable(handle) => self.write(handle, sockets),
            NodeEvent::Failed(handle, error) => self.fail(handle, error.into(), sockets),
            // The connection was removed from the table when it was closed.
            _ => {}
        }
    }

    fn on_turn(&mut self, now: Instant, sockets: &mut dyn PrivateSockets) -> bool {
        let mut worked = self.take_mail(sockets);
        worked |= self.take_requests(sockets);
        worked |= self.fire_timers(now, sockets);
        self.core.table.release_idle(now, sockets);
        worked || !self.core.requested.is_empty()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.core.table.next_timeout()
    }

    fn notification(&self) -> Option<BorrowedFd<'_>> {
        Some(self.mailbox.bell())
    }
}

impl<H: Handler> Drop for HandlerService<H> {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

impl<H: Handler> fmt::Debug for HandlerService<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerService").field("core", &self.core).finish_non_exhaustive()
    }
}

/// Reason for a call of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// Bytes arrived, or the send buffer has room again.
    Bytes,
    /// A timer fired, or another thread sent a message.
    Message,
}

/// Calls the handler, and measures the duration. Returns `None` if the handler panicked.
fn guarded<T>(counters: &SharedCounters, call: impl FnOnce() -> T) -> Option<T> {
    let begin = std::time::Instant::now();
    // Unwind safety: the connection's state is dropped after a panic. The handler's own state may
    // be inconsistent, as after any panic on a thread that continues.
    let result = catch_unwind(AssertUnwindSafe(call));
    counters.count_call(begin.elapsed());
    if result.is_err() {
        counters.panics.add(1);
    }
    result.ok()
}

fn is_send_empty(handle: SocketHandle, sockets: &mut dyn PrivateSockets) -> bool {
    sockets.buffers(handle).is_none_or(|(_, send)| send.is_empty())
}
