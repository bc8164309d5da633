//! The stack of an interceptor with its tables, protected by one lock.

use std::task::{Context, Poll, Waker};
use std::{fmt, io};

use towpath_direct::{Node, NodeEvent, PendingSyn, SocketHandle, Stray};
use towpath_stack::net::{EchoOut, Fragmenting, Unreachable};
use towpath_stack::{
    DatagramFrom, DropReason, EchoMeta, IfaceId, Instant, PendingId, ReceivedFields, Refusal,
    SocketOption,
};
use towpath_uplink::now_ns;

use super::client::ClientKey;
use super::counters::InterceptCounters;
use super::datagrams::DatagramQueue;
use super::echo::{EchoPolicy, EchoQueue};
use super::error::{ended, of_option, of_read, of_send, of_write};
use super::limits::InterceptLimits;
use super::source::StagedSource;
use super::streams::{IdleLimits, MemoryLimits, StreamTable, SweepStep};
use super::syns::SynTable;
use super::wakers::WaitId;

/// Interface of the stack on which intercepted packets arrive. The only other interface is
/// loopback.
const SOURCE_IFACE: IfaceId = IfaceId(1);

/// Stack, sockets and queues. The lock of [`SharedCore`](super::handle::SharedCore) protects it.
pub(super) struct Core {
    /// Network stack. For each iteration of its event loop, the runner lends the source of packets
    /// to it.
    pub(super) node: Node<StagedSource>,
    streams: StreamTable,
    pub(super) syns: SynTable,
    pub(super) datagrams: DatagramQueue,
    pub(super) echoes: EchoQueue,
    counters: InterceptCounters,
    limits: InterceptLimits,
    /// Whether the program still has a socket or another part of the interceptor.
    pub(super) is_held: bool,
    /// Whether the program still has the listener.
    pub(super) is_listening: bool,
    has_ended: bool,
    /// Waker of the runner while it sleeps.
    runner: Option<Waker>,
    /// Whether the runner pauses until the program has read received datagrams.
    is_pausing: bool,
    /// Whether a call of a socket has queued a packet since the last turn of the event loop.
    is_due: bool,
    /// Wakers to call after the lock is released.
    due: Vec<Waker>,
    /// Wakers to drop after the lock is released, because dropping one may drop a future that takes
    /// the lock.
    pub(super) unused: Vec<Waker>,
    /// Steps of the current search for idle connections. A field only to reuse its memory.
    steps: Vec<SweepStep>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn new(node: Node<StagedSource>, limits: InterceptLimits, echo: EchoPolicy) -> Self {
        Self {
            node,
            streams: StreamTable::default(),
            syns: SynTable::default(),
            datagrams: DatagramQueue::default(),
            echoes: EchoQueue::new(echo),
            counters: InterceptCounters::default(),
            limits,
            is_held: true,
            is_listening: true,
            has_ended: false,
            runner: None,
            is_pausing: false,
            is_due: false,
            due: Vec::new(),
            unused: Vec::new(),
            steps: Vec::new(),
        }
    }

    // ---- Calls of the runner

    /// Runs one iteration of the stack's event loop, and passes received data and events to the
    /// sockets. Returns whether more work is pending.
    pub(super) fn turn(&mut self) -> bool {
        (self.is_due, self.is_pausing) = (false, false);
        // The runner is awake, so calls of sockets need not wake it.
        self.runner = None;
        let now = Instant(now_ns());
        let turn = self.node.turn(now);
        while let Some(event) = self.node.poll_event() {
            self.on_event(event);
        }
        while let Some(stray) = self.node.take_stray() {
            self.on_stray(stray);
        }
        self.datagrams.wake_readers(&mut self.due);
        self.echoes.wake_readers(&mut self.due);
        if turn.sent > 0 {
            self.datagrams.senders.wake(&mut self.due);
        }
        self.counters.packets_received += turn.received as u64;
        self.counters.packets_sent += turn.sent as u64;
        self.sweep(now);
        turn.more || self.is_due
    }

    /// Returns the time of the next timer in ns. The runner may sleep until then if nothing
    /// happens.
    pub(super) fn next_timeout_ns(&self) -> Option<u64> {
        let node = self.node.next_timeout().map(|at| at.0);
        node.into_iter().chain(self.streams.next_sweep_ns()).min()
    }

    /// Returns whether the runner must pause, because too many datagrams are queued. The program
    /// then reads datagrams, and the call that has read enough of them wakes the runner.
    pub(super) fn pauses(&mut self) -> bool {
        self.is_pausing = self.datagrams.is_crowded(&self.limits);
        self.is_pausing
    }

    /// Returns whether the program has dropped all parts of the interceptor, and all connections
    /// have ended.
    pub(super) fn is_over(&self) -> bool {
        !self.is_held && self.node.direct.is_empty()
    }

    /// Ends all sockets: further calls fail, and waiting tasks are woken.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
        self.streams.wake_all(&mut self.due);
        self.syns.acceptors.wake(&mut self.due);
        self.datagrams.wake_all(&mut self.due);
        self.echoes.wake_all(&mut self.due);
    }

    /// Moves the wakers that must be called without the lock to `to`.
    pub(super) fn take_due(&mut self, to: &mut Vec<Waker>) {
        to.append(&mut self.due);
    }

    /// Stores the waker of the runner, which is about to sleep.
    pub(super) fn sleep(&mut self, cx: &Context<'_>) {
        self.runner = Some(cx.waker().clone());
    }

    pub(super) fn take_runner(&mut self) -> Option<Waker> {
        self.runner.take()
    }

    /// Returns the waker of the sleeping runner if a call of a socket has left work for the next
    /// turn.
    pub(super) fn runner_if_due(&mut self) -> Option<Waker> {
        self.runner.as_ref()?;
        let now = self.node.now();
        let has_read = self.is_pausing && self.datagrams.has_room(&self.limits);
        let is_due =
            has_read || self.is_due || self.node.stack.next_timeout().is_some_and(|at| at <= now);
        if is_due { self.runner.take() } else { None }
    }

    /// Reads the clock, and sets it as the current time of the stack.
    pub(super) fn look_at_clock(&mut self) {
        self.node.set_now(Instant(now_ns()));
    }

    // ---- Calls of the listener

    pub(super) fn poll_accept(
        &mut self,
        id: WaitId,
        cx: &Context<'_>,
    ) -> Poll<io::Result<(PendingSyn, ReceivedFields)>> {
        self.check()?;
        while let Some(syn) = self.syns.pop() {
            // The stack has already dropped this SYN, since its fields are no longer stored. Skip
            // it.
            if let Some(fields) = self.node.syn_fields(syn.id) {
                return Poll::Ready(Ok((syn, fields)));
            }
        }
        self.unused.extend(self.syns.acceptors.register(id, cx));
        Poll::Pending
    }

    /// Answers a SYN with a SYN-ACK.
    pub(super) fn accept(&mut self, syn: &PendingSyn) -> io::Result<SocketHandle> {
        self.check()?;
        if !self.syns.decide(syn.id) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the client has given up"));
        }
        let client = ClientKey::of(syn.remote.ip());
        let sizes = if self.streams.has_spent(client, self.limits.memory_per_source) {
            self.counters.over_memory_per_source += 1;
            None
        } else {
            let sizes = self.streams.sizes(self.limits.memory);
            self.counters.over_memory += u64::from(sizes.is_none());
            sizes
        };
        let Some(sizes) = sizes else {
            self.node.refuse_syn(syn.id, Refusal::Ignore);
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let handle = self.node.accept_syn_with(syn.id, sizes).map_err(|error| {
            self.node.refuse_syn(syn.id, Refusal::Ignore);
            io::Error::other(error.to_string())
        })?;
        let now_ns = self.node.now().0;
        self.streams.insert(handle, client, now_ns);
        self.is_due = true;
        Ok(handle)
    }

    pub(super) fn refuse(&mut self, syn: PendingId, refusal: Refusal) {
        if !self.has_ended && self.syns.decide(syn) {
            let is_ignored = refusal == Refusal::Ignore;
            self.counters.ignored += u64::from(is_ignored);
            self.counters.refused += u64::from(!is_ignored);
            self.node.refuse_syn(syn, refusal);
            self.is_due = true;
        }
    }

    /// Refuses all SYNs that are still queued after the listener was dropped.
    pub(super) fn stop_listening(&mut self) {
        self.is_listening = false;
        while let Some(syn) = self.syns.pop() {
            self.refuse(syn.id, Refusal::Reset);
        }
    }

    // ---- Calls of connections

    /// Waits for the completion of the handshake.
    pub(super) fn poll_connected(
        &mut self,
        handle: SocketHandle,
        cx: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        if let Err(error) = self.node.peek(handle)
            && let Some(error) = of_read(error)
        {
            return Poll::Ready(Err(error));
        }
        match self.streams.get(handle) {
            Some(entry) if entry.is_connected => Poll::Ready(Ok(())),
            _ => {
                self.streams.wait_to_write(handle, cx);
                Poll::Pending
            }
        }
    }

    pub(super) fn poll_read(
        &mut self,
        handle: SocketHandle,
        cx: &Context<'_>,
        to: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        match self.node.recv(handle, to) {
            Ok(bytes) => {
                self.touch(handle, bytes);
                Poll::Ready(Ok(bytes))
            }
            Err(error) => match of_read(error) {
                Some(error) => Poll::Ready(Err(error)),
                None => {
                    self.streams.wait_to_read(handle, cx);
                    Poll::Pending
                }
            },
        }
    }

    pub(super) fn poll_write(
        &mut self,
        handle: SocketHandle,
        cx: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        match self.node.send(handle, bytes) {
            Ok(bytes) => {
                self.touch(handle, bytes);
                Poll::Ready(Ok(bytes))
            }
            Err(error) => match of_write(error) {
                Some(error) => Poll::Ready(Err(error)),
                None => {
                    self.streams.wait_to_write(handle, cx);
                    Poll::Pending
                }
            },
        }
    }

    pub(super) fn shutdown(&mut self, handle: SocketHandle) -> io::Result<()> {
        self.check()?;
        self.node.shutdown(handle);
        Ok(())
    }

    /// Closes a connection: after its last byte is sent, or immediately by a reset if `resets`.
    pub(super) fn close(&mut self, handle: SocketHandle, resets: bool) {
        match resets {
            true => self.node.abort(handle),
            false => self.node.close(handle),
        }
        self.streams.note_drop(handle);
        self.is_due = true;
    }

    pub(super) fn set_option(
        &mut self,
        handle: SocketHandle,
        option: SocketOption,
    ) -> io::Result<()> {
        self.check()?;
        self.node.set_option(handle, option).map_err(of_option)
    }

    /// Returns IP header fields of the last received segment; `None` before the first segment.
    pub(super) fn received_fields(&self, handle: SocketHandle) -> Option<ReceivedFields> {
        self.node.received_fields(handle)
    }

    fn touch(&mut self, handle: SocketHandle, bytes: usize) {
        let now_ns = self.node.now().0;
        let InterceptLimits { memory: total, memory_per_source: per_source, .. } = self.limits;
        let memory = MemoryLimits { total, per_source };
        if let Some(max) = self.streams.touch(handle, bytes, now_ns, memory) {
            self.node.raise_buffers(handle, max, max);
        }
    }

    // ---- Calls of datagram and echo sockets

    pub(super) fn poll_send(
        &mut self,
        from: &DatagramFrom,
        bytes: &[u8],
        id: WaitId,
        cx: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        self.is_due = true;
        match self.node.send_datagram_from(from, bytes) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => match of_send(error) {
                Some(error) => Poll::Ready(Err(error)),
                None => {
                    self.unused.extend(self.datagrams.senders.register(id, cx));
                    Poll::Pending
                }
            },
        }
    }

    pub(super) fn refuse_datagram(
        &mut self,
        answer: &DatagramFrom,
        payload: &[u8],
        why: Unreachable,
    ) -> io::Result<()> {
        self.check()?;
        self.node.refuse_datagram(SOURCE_IFACE, answer, payload, why);
        self.is_due = true;
        Ok(())
    }

    /// Answers an echo request. If the output queue is full, the reply is dropped, as if the
    /// network had lost it.
    pub(super) fn send_echo_reply(&mut self, meta: &EchoMeta, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.is_due = true;
        let out = EchoOut {
            src: meta.local,
            dst: meta.remote,
            reply: true,
            ident: meta.ident,
            seq: meta.seq,
            ttl: None,
            tos: meta.tos,
            fragmenting: Fragmenting::Anywhere,
        };
        match self.node.send_echo_from(&out, data).map_err(of_send) {
            Err(Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns an error if the runner has ended.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.has_ended { Err(ended()) } else { Ok(()) }
    }

    pub(super) fn counters(&self) -> InterceptCounters {
        let drops = self.node.stack.net.counters().data.drops;
        InterceptCounters {
            connections: self.streams.len(),
            undecided: self.syns.len(),
            memory_reserved: self.streams.reserved(),
            over_turn: self.node.counters().strays_dropped,
            over_undecided: drops.of(DropReason::PendingFull),
            packets_dropped: drops.total(),
            ..self.counters
        }
    }

    // ---- Events of the stack

    fn on_event(&mut self, event: NodeEvent) {
        let due = &mut self.due;
        match event {
            NodeEvent::Syn(syn) => self.on_syn(syn),
            NodeEvent::SynForgotten(id) => {
                self.counters.forgotten += u64::from(self.syns.forget(id));
            }
            NodeEvent::Connected(handle) => {
                self.counters.accepted += 1;
                self.streams.connect(handle, due);
            }
            NodeEvent::Readable(handle) | NodeEvent::PeerClosed(handle) => {
                self.streams.note_arrival(handle, self.node.now().0);
                self.streams.wake_reader(handle, due);
            }
            NodeEvent::Writable(handle) => {
                self.streams.note_arrival(handle, self.node.now().0);
                let room = self.node.send_room(handle);
                self.streams.wake_writer(handle, room, due);
            }
            NodeEvent::Failed(handle, _) => self.streams.wake_both(handle, due),
            NodeEvent::Closed(handle) => {
                self.streams.wake_both(handle, due);
                self.streams.remove(handle);
            }
            _ => {}
        }
    }

    /// Queues a SYN for the listener, or refuses or ignores it if a limit is reached.
    fn on_syn(&mut self, syn: PendingSyn) {
        let client = ClientKey::of(syn.remote.ip());
        let InterceptLimits { connections, connections_per_source, undecided_per_source, .. } =
            self.limits;
        let counters = &mut self.counters;
        let counter = if !self.is_listening {
            counters.refused += 1;
            // Run the event loop again without delay, which sends the reset.
            self.is_due = true;
            return self.node.refuse_syn(syn.id, Refusal::Reset);
        } else if self.streams.len() + self.syns.len() >= connections {
            &mut counters.over_connections
        } else if self.streams.count_of(client) + self.syns.count_of(client)
            >= connections_per_source
        {
            &mut counters.over_connections_per_source
        } else if self.syns.count_of(client) >= undecided_per_source {
            &mut counters.over_undecided_per_source
        } else if self.streams.has_spent(client, self.limits.memory_per_source) {
            &mut counters.over_memory_per_source
        } else if self.streams.sizes(self.limits.memory).is_none() {
            &mut counters.over_memory
        } else {
            self.syns.push(syn);
            return self.syns.acceptors.wake(&mut self.due);
        };
        *counter += 1;
        self.node.refuse_syn(syn.id, Refusal::Ignore);
    }

    fn on_stray(&mut self, stray: Stray) {
        match stray {
            Stray::Datagram(meta, bytes) => {
                let (limits, counters) = (&self.limits, &mut self.counters);
                if let Some(bytes) = self.datagrams.push(meta, bytes, limits, counters) {
                    self.node.recycle(bytes);
                }
            }
            Stray::Error(error) => {
                let (limits, counters) = (&self.limits, &mut self.counters);
                self.datagrams.errors.push(error.from, error, limits, counters);
            }
            Stray::Echo(meta, data) => {
                let (limits, counters) = (&self.limits, &mut self.counters);
                if let Some((meta, data)) = self.echoes.push(meta, data, limits, counters) {
                    // Ignore an error: the sender of the echo request handles a missing reply like
                    // a lost one.
                    let _ = self.send_echo_reply(&meta, &data);
                }
            }
        }
    }

    fn sweep(&mut self, now: Instant) {
        let mut steps = std::mem::take(&mut self.steps);
        self.streams.sweep(now.0, &IdleLimits::new(&self.limits), &mut steps);
        for step in steps.drain(..) {
            match step {
                SweepStep::Release(handle) => self.node.release_idle(handle),
                SweepStep::Reset(handle) => {
                    self.counters.idle_resets += 1;
                    self.reset_idle(handle);
                }
                SweepStep::ResetAtLimit(handle) => {
                    self.counters.idle_resets_at_limit += 1;
                    self.reset_idle(handle);
                }
            }
        }
        self.steps = steps;
    }

    fn reset_idle(&mut self, handle: SocketHandle) {
        self.node.abort(handle);
        self.streams.wake_both(handle, &mut self.due);
        self.is_due = true;
    }
}
