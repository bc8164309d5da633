//! Host: a stack, its ports and its sockets, driven by their owner.

use towpath_pool::{Pool, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{
    Budget, IfaceId, Instant, OptionError, SocketInfo, SocketOption, Stack, StackConfig, Turn,
};
use towpath_wire::{MacAddr, Prefix};

use crate::calls::{DirectCalls, PrivateSockets};
use crate::direct::{Direct, DirectConfig, DirectCounters, Stray};
use crate::event::NodeEvent;
use crate::handle::SocketHandle;
use crate::table::{DirectEntry, DirectKind, SocketLife};

/// Settings of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeConfig {
    /// Settings of the protocol stack.
    pub stack: StackConfig,
    /// Limits of the node's sockets and events.
    pub direct: DirectConfig,
    /// Maximum amount of work, such as the number of packets, of one call of [`Node::turn`].
    pub budget: Budget,
}

/// Host. See the [crate page](crate) for the required calls and an example.
///
/// The fields are public, so that all methods of the stack are available. `ports[i]` drives
/// interface `i + 1` of the stack.
pub struct Node<P: Port + ?Sized = dyn Port> {
    /// Protocol stack of the node.
    pub stack: Stack<Direct>,
    /// Sockets of the node and their pending events.
    pub direct: Direct,
    /// Devices, in the order of the stack's interfaces.
    pub ports: Vec<Box<P>>,
    /// Memory of packets. Several nodes on one thread may share a pool: their owner then swaps it
    /// into this field before each call of [`Node::turn`].
    pub pool: Pool,
    budget: Budget,
    /// Time of the last call of [`Node::turn`]. Socket calls use it until the next turn.
    now: Instant,
}

impl<P: Port + ?Sized> Node<P> {
    /// Creates a host with only a loopback interface. Sequence numbers and ports derive from
    /// `seed`; the same seed, calls and times produce the same packets. `now` must not be 0.
    pub fn new(config: NodeConfig, seed: [u8; 32], now: Instant) -> Self {
        Self {
            stack: Stack::new(config.stack, seed, now),
            direct: Direct::new(config.direct),
            ports: Vec::new(),
            pool: Pool::default(),
            budget: config.budget,
            now,
        }
    }

    /// Adds a port and its interface with an MTU of 1500 bytes. Use [`Node::add_interface`] for
    /// other configurations.
    pub fn add_port(&mut self, name: &str, port: Box<P>, addresses: &[Prefix]) -> IfaceId {
        let config = InterfaceConfig {
            name: name.to_owned(),
            link: port.link_type(),
            // A locally administered address, whose last byte is the number of the port.
            mac: MacAddr([2, 0, 0, 0, 0, self.ports.len() as u8 + 1]),
            mtu: 1500,
            offloads: port.offloads(),
            addresses: addresses.to_vec(),
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        self.add_interface(config, port)
    }

    /// Adds a port and its interface. The link type and the offloads of `config` must be those of
    /// `port`.
    pub fn add_interface(&mut self, config: InterfaceConfig, port: Box<P>) -> IfaceId {
        self.ports.push(port);
        self.stack.net.add_interface(self.now, config)
    }

    /// Runs the stack once: receives packets, handles expired timers and sends packets. If the
    /// result has `more` set, call this again immediately.
    pub fn turn(&mut self, now: Instant) -> Turn {
        self.now = now;
        let Self { stack, direct, ports, pool, budget, now } = self;
        stack.turn(*now, direct, ports, pool, *budget)
    }

    /// Returns the time at which [`Node::turn`] must be called if no packet arrives before. A time
    /// in the past means that work is pending.
    pub fn next_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(|port| port.next_timeout_ns()).map(Instant);
        ports.chain(self.stack.next_timeout()).min()
    }

    /// Returns an object with the socket calls, which use the time of the last call of
    /// [`Node::turn`].
    pub(crate) fn calls(&mut self) -> DirectCalls<'_, Direct> {
        let Self { stack, direct, pool, now, .. } = self;
        DirectCalls { stack, direct, pool, now: *now }
    }

    /// Sets the time of socket calls until the next [`Node::turn`]. Without this, a call that
    /// starts a timer, such as [`Node::accept_syn`], would start it at the time of the last turn.
    pub fn set_now(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Removes and returns the next event; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<NodeEvent> {
        self.direct.poll_event()
    }

    /// Removes and returns the next packet to an address that is not the host's own. The packets
    /// arrive on an interface that accepts packets to any address.
    pub fn take_stray(&mut self) -> Option<Stray> {
        self.direct.take_stray()
    }

    /// Returns the memory of a [`Stray::Datagram`] for reuse, so that a later datagram needs no
    /// allocation.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.direct.spare.give(bytes);
    }

    /// Returns the time that socket calls use: that of the last turn, or of [`Node::set_now`].
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns how often the node's limits were reached; see [`Stack::counters`] for the stack's
    /// counters.
    pub fn counters(&self) -> DirectCounters {
        self.direct.counters
    }

    /// Returns the state of a socket, with TCP statistics for connections; `None` if the socket was
    /// removed.
    pub fn info(&self, handle: SocketHandle) -> Option<SocketInfo> {
        self.stack.info(self.now, self.direct.table.get(handle)?.id)
    }

    /// Returns the total memory of all socket buffers in bytes, without pages that were never
    /// written.
    pub fn buffer_bytes(&mut self) -> u64 {
        let Self { stack, direct, .. } = self;
        let of = |entry: &DirectEntry| match &entry.kind {
            DirectKind::Listener { .. } => 0,
            DirectKind::Datagram { bytes, .. } => *bytes as u64,
            DirectKind::Stream => {
                let recv = stack.recv_buffer(entry.id).map_or(0, |buffer| buffer.memory_bytes());
                let send = stack.send_buffer(entry.id).map_or(0, |buffer| buffer.memory_bytes());
                u64::from(recv) + u64::from(send)
            }
        };
        direct.table.iter().map(of).sum()
    }

    /// Frees buffer memory that contains no bytes, and the memory that TCP reuses for sent packets.
    /// Intended for idle connections, because the next byte allocates the memory again.
    pub fn release_idle(&mut self, handle: SocketHandle) {
        let Some(id) = self.direct.open(handle).map(|entry| entry.id) else { return };
        if let Some(recv) = self.stack.recv_buffer(id) {
            recv.release_idle();
        }
        if let Some(send) = self.stack.send_buffer(id) {
            send.release_idle();
        }
        self.stack.release_idle_memory(id);
    }

    /// Raises the maximum sizes of a connection's buffers. Smaller sizes have no effect.
    pub fn raise_buffers(&mut self, handle: SocketHandle, recv_max: u32, send_max: u32) {
        let Some(id) = self.direct.open(handle).map(|entry| entry.id) else { return };
        if let Some(recv) = self.stack.recv_buffer(id) {
            recv.raise_max(recv_max);
        }
        if let Some(send) = self.stack.send_buffer(id) {
            send.raise_max(send_max);
        }
    }

    /// Iterates over open sockets by index, without connections that wait to be accepted.
    pub fn handles(&self) -> impl Iterator<Item = SocketHandle> + '_ {
        self.direct
            .table
            .iter()
            .filter(|entry| entry.life == SocketLife::Open)
            .map(|entry| entry.handle)
    }

    /// Sets an option, for example [`SocketOption::Congestion`].
    ///
    /// # Errors
    /// [`OptionError::NoSocket`] if the socket was removed; otherwise see [`Stack::set_option`].
    pub fn set_option(
        &mut self,
        handle: SocketHandle,
        option: SocketOption,
    ) -> Result<(), OptionError> {
        let id = self.direct.open(handle).ok_or(OptionError::NoSocket)?.id;
        self.stack.set_option(id, option)
    }

    /// Closes a socket. Bytes written before are still sent. The event [`NodeEvent::Closed`]
    /// follows once the socket is removed; a connection is removed only after the peer has closed
    /// it too. Has no effect if the socket was removed.
    pub fn close(&mut self, handle: SocketHandle) {
        self.calls().close(handle)
    }

    /// Resets a connection; other sockets are closed as by [`Node::close`].
    pub fn abort(&mut self, handle: SocketHandle) {
        self.calls().abort(handle)
    }
}
