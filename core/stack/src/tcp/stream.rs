//! Stream sockets with a connection.

use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{Connection, FifoLevels, Instant};

use crate::host::Host;
use crate::net::IfaceId;
use crate::ports::bind_addr::Sharing;
use crate::settings::{FlowSettings, StreamSettings};
use crate::tables::flow::Flow;
use crate::tables::timer::TimerId;
use crate::tcp::path::TcpPath;
use crate::tcp::tuning::RecvTuning;
use crate::unreached::Unreached;

/// A connection whose SYN the owner of the stack accepted before the handshake. For example, a
/// gateway accepts a SYN after it has connected to the destination.
pub(crate) struct EarlyAccept<H: Host> {
    pub flow: Flow,
    pub half_open: u32,
    pub recv: H::Recv,
    pub send: H::Send,
    /// Whether the owner has closed the sending direction. If so, it adds no more bytes to `send`.
    pub shut: bool,
}

/// A stream socket that has or had a connection.
pub(crate) struct StreamSocket<H: Host> {
    pub flow: Flow,
    /// The connection. `None` after the connection has ended, because the socket remains until its
    /// owner closes it.
    pub connection: Option<Connection>,
    pub recv: H::Recv,
    pub send: H::Send,
    pub packet: FlowSettings,
    /// Interface that must be used regardless of routes, because of SO_BINDTODEVICE, a link-local
    /// peer, or an interface that accepts packets to any address.
    pub iface: Option<IfaceId>,
    pub path: Option<TcpPath>,
    pub timer: TimerId,
    /// Sharing options with which the connection is registered as a user of its local port. `None`
    /// if it is not registered.
    pub uses_port: Option<Sharing>,
    /// Last ICMP error that reported the peer as unreachable.
    pub unreachable: Option<Unreached>,
    pub buffer_events: BufferEvents,
    pub tuning: RecvTuning,
    /// Time at which the sizes of the buffers were last adapted.
    pub tuned_at: Instant,
}

/// Events of a connection's buffers that `tx` has not yet handled; several events of one kind are
/// merged. The owner is notified of received bytes when they arrive, and of other events by `tx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BufferEvents(u8);

impl BufferEvents {
    const READABLE: u8 = 1;
    const WRITABLE: u8 = 2;
    const URGENT: u8 = 4;
    const URGENT_NEW: u8 = 8;

    /// Records that the owner was notified of received bytes. Returns false if it was already
    /// notified since `tx` last handled the connection's events.
    #[inline]
    pub fn note_readable(&mut self) -> bool {
        let is_new = self.0 & Self::READABLE == 0;
        self.0 |= Self::READABLE;
        is_new
    }

    pub fn add_writable(&mut self) {
        self.0 |= Self::WRITABLE;
    }

    pub fn add_urgent(&mut self, is_new: bool) {
        self.0 |= Self::URGENT | if is_new { Self::URGENT_NEW } else { 0 };
    }

    /// Returns whether urgent data has arrived since the last visit: `None` if not, otherwise
    /// whether the urgent mark has moved.
    pub fn urgent(self) -> Option<bool> {
        (self.0 & Self::URGENT != 0).then_some(self.0 & Self::URGENT_NEW != 0)
    }

    pub fn is_quiet(self) -> bool {
        self.0 & (Self::WRITABLE | Self::URGENT) == 0
    }

    pub fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE != 0
    }
}

impl<H: Host> StreamSocket<H> {
    /// Creates the stream socket of a new connection. The route is looked up when the connection
    /// sends for the first time.
    pub fn new(
        now: Instant,
        flow: Flow,
        connection: Connection,
        settings: &StreamSettings,
        iface: Option<IfaceId>,
        recv: H::Recv,
        send: H::Send,
    ) -> Self {
        Self {
            flow,
            connection: Some(connection),
            recv,
            send,
            packet: settings.packet.towards(flow.remote),
            iface,
            path: None,
            timer: TimerId::NONE,
            uses_port: None,
            unreachable: None,
            buffer_events: BufferEvents::default(),
            tuning: RecvTuning::default(),
            tuned_at: now,
        }
    }

    /// Adapts the segment size of the connection to the path MTU, which has changed.
    pub fn on_path_mtu(&mut self) {
        if let (Some(path), Some(connection)) = (&self.path, &mut self.connection) {
            connection.on_path_mtu(self.packet.limit(self.flow.mss_for(path.mtu())));
        }
    }

    /// Returns whether the connection is being aborted, and its RST was not sent yet.
    pub fn is_aborting(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_aborting)
    }

    /// Returns how full the buffers of the connection are.
    pub fn buffers(&self) -> FifoLevels {
        FifoLevels {
            recv_free: self.recv.free(),
            recv_capacity: self.recv.capacity(),
            recv_unread: self.recv.unread(),
            send_len: self.send.len(),
            send_capacity: self.send.capacity(),
        }
    }

    /// Requests a notification of the program's next read, if a window update or an acknowledgment
    /// may depend on the read. Returns true if one of these is already due because of an earlier
    /// read.
    pub fn watch_reads(&mut self, now: Instant) -> bool {
        let buffers = self.buffers();
        let Some(connection) = &mut self.connection else { return false };
        if !connection.awaits_reads(buffers) {
            return false;
        }
        self.recv.await_read();
        let buffers = self.buffers();
        self.connection.as_mut().is_some_and(|connection| connection.on_recv_consumed(now, buffers))
    }
}
