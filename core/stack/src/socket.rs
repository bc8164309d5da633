//! Entries of the socket table, which are stored in one slab. The state of most kinds of sockets is
//! boxed, to keep the entries small.
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
//! A connection that receives more than 64 KiB, or that lost packets, has a box of rarely used
//! counters. `tests/tests/idle.rs` measures the sum.

use std::net::{IpAddr, SocketAddr};

use crate::host::{BindOptions, Family, Host};
use crate::net::IfaceId;
use crate::ports::bind_addr::{BindAddr, PortProtocol, Sharing};
use crate::settings::StreamSettings;
use crate::tables::slab::Slab;
use crate::tcp::listener::{AmongShards, ListeningSocket};
use crate::tcp::stream::{EarlyAccept, StreamSocket};
use crate::udp::socket::DatagramSocket;

/// An entry of the socket table, for any kind of socket.
pub(crate) struct StackSocket<H: Host> {
    /// Number that the owner of the stack assigned to the socket.
    pub user: u32,
    pub family: Family,
    /// Address and port to which the socket is bound. `None` for connections without a bind: the
    /// stack chose the port of a client, and accepted connections use that of their listener.
    pub bound: Option<Box<BoundAddr>>,
    /// Whether the socket is in [`Stack::dirty`](crate::Stack), the list of sockets that may have
    /// something to send.
    pub dirty: bool,
    /// Reason why the connection must not send at present, if any.
    pub waits: Waits,
    /// Whether the owner of the stack has closed the socket.
    pub orphan: bool,
    pub kind: SocketRole<H>,
}

impl<H: Host> StackSocket<H> {
    /// Creates an entry for an unbound socket.
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

    /// Returns the interface to which a socket without a connection is restricted
    /// (SO_BINDTODEVICE).
    pub fn device(&self) -> Option<IfaceId> {
        match &self.kind {
            SocketRole::Fresh(settings) => settings.device,
            SocketRole::Listener(listener) => listener.settings.device,
            SocketRole::Datagram(datagram) => datagram.device,
            SocketRole::EarlyAccept(_) | SocketRole::Stream(_) => None,
        }
    }

    /// Discards the cached route of a datagram socket, because its bound address, or an option that
    /// affects the route, has changed.
    pub fn forget_target(&mut self) {
        if let SocketRole::Datagram(datagram) = &mut self.kind {
            datagram.last_target = None;
        }
    }

    /// Returns whether this entry represents a socket of another shard (stack).
    pub fn is_shadow(&self) -> bool {
        match &self.kind {
            SocketRole::Listener(listener) => {
                matches!(listener.among.as_deref(), Some(AmongShards::Shadow { .. }))
            }
            SocketRole::Datagram(datagram) => datagram.shadow_of.is_some(),
            _ => false,
        }
    }

    /// Returns whether the socket is bound to a port.
    pub fn has_port(&self) -> bool {
        self.bound.as_deref().is_some_and(BoundAddr::has_port)
    }
}

impl<H: Host> Slab<StackSocket<H>> {
    /// Returns the connection at `index` of the socket table; `None` for other sockets.
    #[inline]
    pub fn stream(&self, index: u32) -> Option<&StreamSocket<H>> {
        match &self.get(index)?.kind {
            SocketRole::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the connection at `index` of the socket table for changes; `None` for other sockets.
    #[inline]
    pub fn stream_mut(&mut self, index: u32) -> Option<&mut StreamSocket<H>> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the listener at `index` of the socket table; `None` for other sockets.
    #[inline]
    pub fn listener(&self, index: u32) -> Option<&ListeningSocket> {
        match &self.get(index)?.kind {
            SocketRole::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// Returns the listener at `index` of the socket table for changes; `None` for other sockets.
    #[inline]
    pub fn listener_mut(&mut self, index: u32) -> Option<&mut ListeningSocket> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// Returns the datagram socket at `index` of the socket table; `None` for other sockets.
    #[inline]
    pub fn datagram(&self, index: u32) -> Option<&DatagramSocket> {
        match &self.get(index)?.kind {
            SocketRole::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    /// Returns the datagram socket at `index` of the socket table for changes; `None` for other
    /// sockets.
    #[inline]
    pub fn datagram_mut(&mut self, index: u32) -> Option<&mut DatagramSocket> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }
}

/// Reason why a connection with unsent bytes cannot send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The connection does not wait. The connection sends when the stack next processes the list of
    /// connections that may have something to send.
    ForNothing,
    /// The device queue is full, and the connection is in the list of connections that wait for the
    /// device.
    InLine,
    /// The connection has reached its own limit of packets in the device queue.
    ForShare,
}

/// Kind of a socket. A stream socket changes its kind when it listens or connects.
pub(crate) enum SocketRole<H: Host> {
    /// A stream socket that neither listens nor has a connection.
    Fresh(Box<StreamSettings>),
    Listener(Box<ListeningSocket>),
    /// A socket that was created by `accept_pending`, and whose handshake is not complete.
    EarlyAccept(Box<EarlyAccept<H>>),
    Stream(Box<StreamSocket<H>>),
    Datagram(Box<DatagramSocket>),
}

impl<H: Host> SocketRole<H> {
    /// Returns the protocol whose port table contains the socket.
    pub fn table(&self) -> PortProtocol {
        match self {
            SocketRole::Datagram(datagram) => datagram.table(),
            _ => PortProtocol::Tcp,
        }
    }
}

/// Local address and port to which a socket is bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundAddr {
    /// Address to which the socket is bound. While the socket is connected, only the address of the
    /// connection is reserved in the port table.
    pub addr: BindAddr,
    /// Local port. 0 if the program specified only an address, and the connection for which the
    /// stack chose a port has ended.
    pub port: u16,
    /// Whether the program chose the port. A port that the program chose is kept until the socket
    /// is closed (Linux's SOCK_BINDPORT_LOCK).
    pub is_port_named: bool,
    pub options: BindOptions,
}

impl BoundAddr {
    /// Returns whether the socket has a port.
    pub fn has_port(&self) -> bool {
        self.port != 0
    }

    /// Returns the local address and port, as the program sees them.
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }

    /// Returns the local IP address. For a wildcard, this is the unspecified address.
    pub fn ip(&self) -> IpAddr {
        match self.addr {
            BindAddr::AnyV4 => IpAddr::from([0; 4]),
            BindAddr::AnyV6 | BindAddr::AnyDual => IpAddr::from([0; 16]),
            BindAddr::Ip(ip) => ip,
        }
    }

    /// Returns the local address as source for a route lookup; `None` for a wildcard.
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
