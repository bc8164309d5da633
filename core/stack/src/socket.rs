//! Socket entries, which are stored in one slab. Large kinds are boxed, to keep the slab entries
//! small.
//!
//! Budget: one end of an idle connection takes at most 1 KiB in total, with FIFOs that hold no
//! memory while empty. Sizes in bytes, as rounded by the allocator:
//!
//! | item | checked in | bytes |
//! |---|---|---|
//! | slot, shared with programs | `memory/shm`: `layout/slot.rs` | 256 |
//! | [`StreamSocket`], boxed: 520 | `engine`: `host.rs` | 528 |
//! | — including the TCP connection | `core/tcp`: `connection.rs` | 336 |
//! | — including the FIFO ends | `memory/ring`: `engine_recv.rs`, `engine_send.rs` | 48 + 56 |
//! | — including flow, path, timers, packet settings | | 80 |
//! | [`StackSocket`] in the slab | `engine`: `host.rs` | 40 |
//! | the engine's `Entry` | `engine`: `slots.rs` | 72 |
//! | flow table entry, at a load of 7/16 to 7/8 | `flow.rs` | 10 to 21 |
//! | port of a client: 26 in a B-tree that is half to completely full | `users.rs` | 30 to 60 |
//!
//! A keepalive or user timeout adds 48, loss history 48, and SO_RCVBUF, SO_SNDBUF and similar
//! options 96. Zero-copy payload adds 144 until its FIFO has no memory (`memory/ring`: `pins.rs`).
//! A receiver of more than 64 KiB has the box of rare counters, as a sender that lost packets.
//! `tests/tests/idle.rs` measures the sum.

use std::net::{IpAddr, SocketAddr};

use crate::host::{BindOptions, Family, Host};
use crate::net::IfaceId;
use crate::ports::bind_addr::{BindAddr, PortProtocol, Sharing};
use crate::settings::StreamSettings;
use crate::tables::slab::Slab;
use crate::tcp::listener::{AmongShards, ListeningSocket};
use crate::tcp::stream::{EarlyAccept, StreamSocket};
use crate::udp::socket::DatagramSocket;

/// A socket of the stack, of any kind.
pub(crate) struct StackSocket<H: Host> {
    /// Number assigned by the owner.
    pub user: u32,
    pub family: Family,
    /// Bound address and port in the table of its protocol. Connections hold none: ports of clients
    /// are chosen at connect, and children of listeners use the listener's.
    pub bound: Option<Box<BoundAddr>>,
    /// Whether the socket is in [`Stack::dirty`](crate::Stack), the list of sockets to visit.
    pub dirty: bool,
    /// Reason why the connection must not send now, if any.
    pub waits: Waits,
    /// Whether the owner has closed the socket.
    pub orphan: bool,
    pub kind: SocketRole<H>,
}

impl<H: Host> StackSocket<H> {
    /// Creates an unbound socket without pending work.
    pub fn new(user: u32, family: Family, kind: SocketRole<H>) -> Self {
        Self {
            user,
            family,
            bound: None,
            dirty: false,
            waits: Waits::ForNothing,
            orphan: false,
            kind,
        }
    }

    /// Returns SO_BINDTODEVICE of a socket without a connection.
    pub fn device(&self) -> Option<IfaceId> {
        match &self.kind {
            SocketRole::Fresh(settings) => settings.device,
            SocketRole::Listener(listener) => listener.settings.device,
            SocketRole::Datagram(datagram) => datagram.device,
            SocketRole::EarlyAccept(_) | SocketRole::Stream(_) => None,
        }
    }

    /// Drops the cached target, because the bound address or another input has changed.
    pub fn forget_target(&mut self) {
        if let SocketRole::Datagram(datagram) = &mut self.kind {
            datagram.last_target = None;
        }
    }

    /// Returns whether this is the shadow of a peer shard's socket.
    pub fn is_shadow(&self) -> bool {
        match &self.kind {
            SocketRole::Listener(listener) => {
                matches!(listener.among.as_deref(), Some(AmongShards::Shadow { .. }))
            }
            SocketRole::Datagram(datagram) => datagram.shadow_of.is_some(),
            _ => false,
        }
    }

    /// Returns whether the socket holds a port by a bind.
    pub fn has_port(&self) -> bool {
        self.bound.as_deref().is_some_and(BoundAddr::has_port)
    }
}

impl<H: Host> Slab<StackSocket<H>> {
    /// Returns the stream at `index`.
    #[inline]
    pub fn stream(&self, index: u32) -> Option<&StreamSocket<H>> {
        match &self.get(index)?.kind {
            SocketRole::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the stream at `index`, mutably.
    #[inline]
    pub fn stream_mut(&mut self, index: u32) -> Option<&mut StreamSocket<H>> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the listener at `index`.
    #[inline]
    pub fn listener(&self, index: u32) -> Option<&ListeningSocket> {
        match &self.get(index)?.kind {
            SocketRole::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// Returns the listener at `index`, mutably.
    #[inline]
    pub fn listener_mut(&mut self, index: u32) -> Option<&mut ListeningSocket> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// Returns the datagram socket at `index`.
    #[inline]
    pub fn datagram(&self, index: u32) -> Option<&DatagramSocket> {
        match &self.get(index)?.kind {
            SocketRole::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    /// Returns the datagram socket at `index`, mutably.
    #[inline]
    pub fn datagram_mut(&mut self, index: u32) -> Option<&mut DatagramSocket> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }
}

/// Reason for which a connection with unsent bytes cannot send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The connection does not wait, and sends at its next visit.
    ForNothing,
    /// The device's queue is full; the connection is in the device's waiting line.
    InLine,
    /// The connection waits because its share of the device's queue is used up.
    ForShare,
}

/// Socket kinds and, for streams, stages.
pub(crate) enum SocketRole<H: Host> {
    /// Stream socket that neither listens nor has a connection.
    Fresh(Box<StreamSettings>),
    Listener(Box<ListeningSocket>),
    /// A socket created by `accept_pending`, whose handshake is still in the SYN cache.
    EarlyAccept(Box<EarlyAccept<H>>),
    Stream(Box<StreamSocket<H>>),
    Datagram(Box<DatagramSocket>),
}

impl<H: Host> SocketRole<H> {
    /// Returns the protocol of the port table.
    pub fn table(&self) -> PortProtocol {
        match self {
            SocketRole::Datagram(datagram) => datagram.table(),
            _ => PortProtocol::Tcp,
        }
    }
}

/// Local address and port of a bound socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundAddr {
    /// Bound address. While the socket is connected, only the address in use is reserved.
    pub addr: BindAddr,
    /// Local port. 0 if only the address was bound explicitly, and the connection for which the
    /// port was chosen has ended.
    pub port: u16,
    /// Whether the program chose the port, so that it is kept until close (Linux's
    /// SOCK_BINDPORT_LOCK).
    pub is_port_named: bool,
    pub options: BindOptions,
}

impl BoundAddr {
    /// Returns whether a port is reserved.
    pub fn has_port(&self) -> bool {
        self.port != 0
    }

    /// Returns the address as seen by the program.
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }

    /// Returns the IP address, unspecified for wildcards.
    pub fn ip(&self) -> IpAddr {
        match self.addr {
            BindAddr::AnyV4 => IpAddr::from([0; 4]),
            BindAddr::AnyV6 | BindAddr::AnyDual => IpAddr::from([0; 16]),
            BindAddr::Ip(ip) => ip,
        }
    }

    /// Returns the source address for routing, if the bind fixed one.
    pub fn source(&self) -> Option<IpAddr> {
        match self.addr {
            BindAddr::Ip(ip) => Some(ip),
            _ => None,
        }
    }
}

impl BindOptions {
    pub(crate) fn sharing(&self) -> Sharing {
        Sharing { reuse_addr: self.reuse_addr, reuse_port: self.reuse_port }
    }
}
