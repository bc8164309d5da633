//! Parts of a socket. Sockets live in one slab. Big kinds are boxed, so that the small ones do not
//! pay for them.
//!
//! Budget: one end of an idle connection costs at most 1 KiB in all, with FIFOs that own no memory
//! while they are empty. Bytes, as the allocator rounds them:
//!
//! | what | checked in | bytes |
//! |---|---|---|
//! | slot, shared with programs | `memory/shm`: `layout/slot.rs` | 256 |
//! | [`StreamSocket`], boxed: 520 | `engine`: `host.rs` | 528 |
//! | — of it the TCP connection | `core/tcp`: `connection.rs` | 336 |
//! | — of it both ends of FIFOs | `memory/ring`: `engine_recv.rs`, `engine_send.rs` | 48 + 56 |
//! | — of it flow, path, timers, settings of packets | | 80 |
//! | [`StackSocket`] in the slab | `engine`: `host.rs` | 40 |
//! | the engine's `Entry` | `engine`: `slots.rs` | 72 |
//! | flow, in a table between 7/16 and 7/8 full | `flow.rs` | 10 to 21 |
//! | a client's port: 26 in a B-tree half to wholly full | `users.rs` | 30 to 60 |
//!
//! A keepalive or a user timeout adds 48, a history of loss 48, SO_RCVBUF, SO_SNDBUF and their like
//! 96. Payload that was sent without a copy adds 144 until its FIFO has no memory any more
//! (`memory/ring`: `pins.rs`). `tests/tests/idle.rs` measures the sum.

use std::net::{IpAddr, SocketAddr};

use crate::host::{BindOptions, Family, Host};
use crate::net::IfaceId;
use crate::ports::bind_addr::{BindAddr, PortProtocol, Sharing};
use crate::settings::StreamSettings;
use crate::tables::slab::Slab;
use crate::tcp::listener::{AmongShards, ListeningSocket};
use crate::tcp::stream::{EarlyAccept, StreamSocket};
use crate::udp::socket::DatagramSocket;

/// A socket.
pub(crate) struct StackSocket<H: Host> {
    /// The owner's number.
    pub user: u32,
    pub family: Family,
    /// The address and port it holds in the table of its protocol. Connections hold none: clients'
    /// are chosen when they connect, servers' children use the listener's.
    pub bound: Option<Box<BoundAddr>>,
    /// The socket is in [`Stack::dirty`](crate::Stack), the list of sockets to visit.
    pub dirty: bool,
    /// Obstacle for which its connection sends no more.
    pub waits: Waits,
    /// The owner closed it.
    pub orphan: bool,
    pub kind: SocketRole<H>,
}

impl<H: Host> StackSocket<H> {
    /// A socket that holds no address, and that nothing is due for.
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

    /// SO_BINDTODEVICE, for a socket that has no connection.
    pub fn device(&self) -> Option<IfaceId> {
        match &self.kind {
            SocketRole::Fresh(settings) => settings.device,
            SocketRole::Listener(listener) => listener.settings.device,
            SocketRole::Datagram(datagram) => datagram.device,
            SocketRole::EarlyAccept(_) | SocketRole::Stream(_) => None,
        }
    }

    /// Drops the cached target: an input of it, as the bound address, has changed.
    pub fn forget_target(&mut self) {
        if let SocketRole::Datagram(datagram) = &mut self.kind {
            datagram.last_target = None;
        }
    }

    /// Whether it is the shadow of a socket of another shard.
    pub fn is_shadow(&self) -> bool {
        match &self.kind {
            SocketRole::Listener(listener) => {
                matches!(listener.among.as_deref(), Some(AmongShards::Shadow { .. }))
            }
            SocketRole::Datagram(datagram) => datagram.shadow_of.is_some(),
            _ => false,
        }
    }

    /// Whether it holds a port by a bind.
    pub fn has_port(&self) -> bool {
        self.bound.as_deref().is_some_and(BoundAddr::has_port)
    }
}

impl<H: Host> Slab<StackSocket<H>> {
    /// The stream at `index`.
    #[inline]
    pub fn stream(&self, index: u32) -> Option<&StreamSocket<H>> {
        match &self.get(index)?.kind {
            SocketRole::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The stream at `index`, to be changed.
    #[inline]
    pub fn stream_mut(&mut self, index: u32) -> Option<&mut StreamSocket<H>> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The listener at `index`.
    #[inline]
    pub fn listener(&self, index: u32) -> Option<&ListeningSocket> {
        match &self.get(index)?.kind {
            SocketRole::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// The listener at `index`, to be changed.
    #[inline]
    pub fn listener_mut(&mut self, index: u32) -> Option<&mut ListeningSocket> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// The datagram socket at `index`.
    #[inline]
    pub fn datagram(&self, index: u32) -> Option<&DatagramSocket> {
        match &self.get(index)?.kind {
            SocketRole::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    /// The datagram socket at `index`, to be changed.
    #[inline]
    pub fn datagram_mut(&mut self, index: u32) -> Option<&mut DatagramSocket> {
        match &mut self.get_mut(index)?.kind {
            SocketRole::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }
}

/// Obstacle for which a connection with unsent bytes does not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// For nothing: it sends at its next visit.
    ForNothing,
    /// The device's queue is full; the connection is in the line for it.
    InLine,
    /// Its share is used up: its device has to take some of its queued packets.
    ForShare,
}

/// The kinds and, for streams, the stages of life.
pub(crate) enum SocketRole<H: Host> {
    /// A stream socket that neither listens nor has a connection.
    Fresh(Box<StreamSettings>),
    Listener(Box<ListeningSocket>),
    /// Made by `accept_pending`: its handshake is in the SYN cache.
    EarlyAccept(Box<EarlyAccept<H>>),
    Stream(Box<StreamSocket<H>>),
    Datagram(Box<DatagramSocket>),
}

impl<H: Host> SocketRole<H> {
    /// The table in which its port is held.
    pub fn table(&self) -> PortProtocol {
        match self {
            SocketRole::Datagram(datagram) => datagram.table(),
            _ => PortProtocol::Tcp,
        }
    }
}

/// A local address and the hold on a port of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundAddr {
    /// As it was bound. While the socket is connected its hold is for the address in use only.
    pub addr: BindAddr,
    /// 0: none. The connection that it was chosen for is over, and the address alone was named.
    pub port: u16,
    /// The program named the port, so that it stays until the socket is closed (Linux's
    /// SOCK_BINDPORT_LOCK).
    pub is_port_named: bool,
    pub options: BindOptions,
}

impl BoundAddr {
    /// Whether it holds one.
    pub fn has_port(&self) -> bool {
        self.port != 0
    }

    /// As a program sees it.
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }

    /// The address, unspecified for the wildcards.
    pub fn ip(&self) -> IpAddr {
        match self.addr {
            BindAddr::AnyV4 => IpAddr::from([0; 4]),
            BindAddr::AnyV6 | BindAddr::AnyDual => IpAddr::from([0; 16]),
            BindAddr::Ip(ip) => ip,
        }
    }

    /// The source to route from, if the bind fixed one.
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
