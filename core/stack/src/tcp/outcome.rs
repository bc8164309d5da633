//! Steps after the module `tx` has let a connection send: events for the owner, the timer, and
//! buffer sizes. A connection that has ended leaves an entry in TIME-WAIT.

use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{ConnectionEvent, Instant, State, TimeWait};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Host, SocketError, SocketEvent};
use crate::socket::SocketRole;
use crate::stack::{Stack, TimerOwner};
use crate::tables::flow::FlowRef;
use crate::tables::timer::TimerId;
use crate::tcp::fast_open::HandshakeEnd;
use crate::tcp::stream::StreamSocket;
use crate::tcp::time_wait::TimeWaitFlow;
use crate::tcp::tuning::{PERIOD_MIN, period};
use crate::unreached::Unreached;

impl<H: Host> Stack<H> {
    /// Delivers the events of a connection, and arms its timer. Called when the connection has
    /// nothing more to send at present, or waits for its device.
    pub(crate) fn after_visit(&mut self, cx: &mut Cx<'_, H>, index: u32) {
        loop {
            let Some(socket) = self.sockets.get_mut(index) else { return };
            let (user, orphan) = (socket.user, socket.orphan);
            let SocketRole::Stream(stream) = &mut socket.kind else { return };
            let Some(connection) = &mut stream.connection else { return };
            let Some(event) = connection.poll_event() else {
                let next = Some(connection.next_deadline()).filter(|at| *at != Instant::FAR);
                self.wheel.set(&mut stream.timer, next, TimerOwner::Socket(index));
                if !orphan && stream.send.is_room_made_by_sending() {
                    cx.host.event(user, SocketEvent::Writable);
                }
                return;
            };
            let end = match event {
                ConnectionEvent::Reset => HandshakeEnd::Reset,
                ConnectionEvent::TimedOut | ConnectionEvent::Unreachable => HandshakeEnd::NoAnswer,
                _ => HandshakeEnd::Over,
            };
            let was_accepted = self.end_fast_open(cx.now, index, end);
            let Some(socket) = self.sockets.get_mut(index) else { return };
            let SocketRole::Stream(stream) = &mut socket.kind else { return };
            let told = match event {
                ConnectionEvent::Connected if was_accepted => None,
                ConnectionEvent::Connected => Some(SocketEvent::Connected),
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6
                //# If the local TCP connection is closed by the remote side due to a FIN or RST
                //# received from the remote side, then the local application MUST be informed
                //# whether it closed normally or was aborted (MUST-12).
                ConnectionEvent::PeerClosed => Some(SocketEvent::PeerClosed),
                ConnectionEvent::Reset => Some(SocketEvent::Error(SocketError::Reset)),
                ConnectionEvent::Refused => Some(SocketEvent::Error(SocketError::Refused)),
                ConnectionEvent::TimedOut => Some(SocketEvent::Error(SocketError::TimedOut)),
                ConnectionEvent::Unreachable => {
                    let why = stream.unreachable.unwrap_or(Unreached::Host);
                    Some(SocketEvent::Error(why.into()))
                }
                ConnectionEvent::TimeWait(state) => {
                    self.end_connection(cx.now, index, Some(state));
                    None
                }
                ConnectionEvent::Closed => {
                    self.end_connection(cx.now, index, None);
                    None
                }
                _ => None,
            };
            if let Some(event) = told.filter(|_| !orphan) {
                cx.host.event(user, event);
            }
            if let Some(SocketEvent::Error(_)) = told {
                self.counters.tcp_failures += 1;
            }
        }
    }

    /// Ends a connection. If the connection must stay in TIME-WAIT, adds an entry to the table of
    /// such connections. The socket remains until its owner closes it.
    fn end_connection(&mut self, now: Instant, index: u32, time_wait: Option<TimeWait>) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let orphan = socket.orphan;
        let held = socket.bound.as_deref().filter(|bound| bound.has_port());
        let sharing = held.map(|bound| bound.options.sharing());
        let SocketRole::Stream(stream) = &mut socket.kind else { return };
        let buffers = stream.buffers();
        let connection = stream.connection.take();
        if let Some(connection) = connection.filter(|_| !orphan) {
            self.ended.keep(index, connection.info(now, buffers));
        }
        self.wheel.cancel(&mut stream.timer);
        let hash = self.keys.table.ends(&stream.flow);
        match time_wait {
            Some(state) => {
                // The socket may release its port before TIME-WAIT ends. Register the connection in
                // TIME-WAIT as a user of the port, so that no other socket gets the port.
                if stream.uses_port.is_none()
                    && let Some(sharing) = sharing
                {
                    self.ports.tcp.use_port(stream.flow.local_port, stream.flow.local, sharing);
                }
                let entry = TimeWaitFlow {
                    flow: stream.flow,
                    state,
                    packet: stream.packet,
                    iface: stream.iface,
                    uses_port: stream.uses_port.take().or(sharing),
                };
                let at = self.time_waits.insert(entry);
                self.show_time_wait(at, Some(now));
                self.flows.replace(hash, FlowRef::Socket(index), FlowRef::TimeWait(at));
                if self.time_waits.len() > self.config.time_wait_max
                    && let Some(oldest) = self.time_waits.oldest()
                {
                    self.count_drop(DropReason::TimeWaitFull);
                    self.remove_time_wait(oldest);
                }
            }
            None => {
                self.flows.remove(hash, FlowRef::Socket(index));
                let (flow, sharing) = (stream.flow, stream.uses_port.take());
                if let Some(sharing) = sharing {
                    self.ports.tcp.unuse_port(flow.local_port, flow.local, sharing);
                }
                self.shards.give_back(&flow);
            }
        }
        self.free_chosen_port(index);
        if orphan {
            self.remove_socket(now, index);
        }
    }

    /// Handles the timer of a connection. The timer may have fired before the current deadline of
    /// the connection.
    pub(crate) fn on_socket_timeout(&mut self, until: Instant, now: Instant, index: u32) {
        let Some(stream) = self.sockets.stream_mut(index) else {
            return;
        };
        stream.timer = TimerId::NONE;
        let Some(connection) = &mut stream.connection else { return };
        match connection.next_timeout() {
            Some((due, _)) if due <= until => {
                connection.on_timeout(until, now);
                self.mark_dirty(index);
            }
            // The deadline was postponed after the timer was armed. The timer has fired too early,
            // so arm it again.
            next => {
                self.wheel.set(&mut stream.timer, next.map(|(at, _)| at), TimerOwner::Socket(index))
            }
        }
    }
}

/// Notifies the owner of the buffer events since the last call for this connection, once for each
/// kind of event.
pub(crate) fn notify_owner<H: Host>(
    host: &mut H,
    user: u32,
    orphan: bool,
    stream: &mut StreamSocket<H>,
) {
    let events = std::mem::take(&mut stream.buffer_events);
    if events.is_quiet() || orphan {
        return;
    }
    if events.is_writable() {
        host.event(user, SocketEvent::Writable);
    }
    if let Some(is_new) = events.urgent() {
        host.event(user, SocketEvent::Urgent { is_new });
    }
}

/// Adapts the sizes of the buffers, once per round-trip time. The receive buffer is sized by the
/// rate at which the program reads, and the send buffer by the congestion window.
pub(crate) fn tune<H: Host>(now: Instant, stream: &mut StreamSocket<H>) {
    // Fast path: less than the minimum period has passed.
    if now < stream.tuned_at + PERIOD_MIN {
        return;
    }
    let Some(connection) = &stream.connection else { return };
    if now < stream.tuned_at + period(connection.recv_rtt()) {
        return;
    }
    if connection.state() == State::SynSent {
        return;
    }
    let wanted = connection.send_buffer_wanted();
    let (received, held) = (connection.bytes_received(), connection.bytes_out_of_order());
    let buffers = stream.buffers();
    stream.tuned_at = now;
    // Count at most as many bytes behind gaps as the program has read. Otherwise a peer that never
    // fills a gap would make the buffer grow.
    let read = received.saturating_sub(buffers.recv_unread.into());
    let held = held.min(u32::try_from(read).unwrap_or(u32::MAX));
    let wanted_recv = stream.tuning.on_period(received as u32, buffers.recv_unread, held);
    stream.recv.want_capacity(wanted_recv);
    if wanted > buffers.send_capacity {
        stream.send.want_capacity(wanted);
    }
}
