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
    /// Settings of the stack.
    pub stack: StackConfig,
    /// Limits of the node's sockets and events.
    pub direct: DirectConfig,
    /// Work limit of one turn.
    pub budget: Budget,
}

/// Host. See the [crate page](crate) for the required calls and an example.
///
/// The fields are public, so that all methods of the stack are available. `ports[i]` drives
/// interface `i + 1` of the stack.
pub struct Node<P: Port + ?Sized = dyn Port> {
    /// Protocol stack.
    pub stack: Stack<Direct>,
    /// Sockets and events.
    pub direct: Direct,
    /// Devices, in the order of the interfaces.
    pub ports: Vec<Box<P>>,
    /// Packet memory. Several nodes of one thread may share a pool by swapping it in for each turn.
    pub pool: Pool,
    budget: Budget,
    /// Time of the last turn, used by calls between turns.
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

    /// Adds a port and its interface with an MTU of 1500 bytes. See [`Node::add_interface`] for
    /// other configurations.
    pub fn add_port(&mut self, name: &str, port: Box<P>, addresses: &[Prefix]) -> IfaceId {
        let config = InterfaceConfig {
            name: name.to_owned(),
            link: port.link_type(),
            // Locally administered address; the last byte is the number of the port.
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

    /// Adds a port and its interface. Link type and offloads must match the port's.
    pub fn add_interface(&mut self, config: InterfaceConfig, port: Box<P>) -> IfaceId {
        self.ports.push(port);
        self.stack.net.add_interface(self.now, config)
    }

    /// Receives packets, fires timers and sends. If the result says `more`, call it again
    /// immediately.
    pub fn turn(&mut self, now: Instant) -> Turn {
        self.now = now;
        let Self { stack, direct, ports, pool, budget, now } = self;
        stack.turn(*now, direct, ports, pool, *budget)
    }

    /// Returns the time of the next turn if no packet arrives; in the past if work is pending.
    pub fn next_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(|port| port.next_timeout_ns()).map(Instant);
        ports.chain(self.stack.next_timeout()).min()
    }

    /// Returns the calls on sockets, at the time of the last turn.
    pub(crate) fn calls(&mut self) -> DirectCalls<'_, Direct> {
        let Self { stack, direct, pool, now, .. } = self;
        DirectCalls { stack, direct, pool, now: *now }
    }

    /// Sets the time of calls until the next turn. A call that starts a timer, such as
    /// [`Node::accept_syn`], would otherwise start it at the time of the last turn.
    pub fn set_now(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Returns the next event; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<NodeEvent> {
        self.direct.poll_event()
    }

    /// Takes the next packet to a foreign address that arrived on an any-address interface.
    pub fn take_stray(&mut self) -> Option<Stray> {
        self.direct.take_stray()
    }

    /// Gives the memory of a [`Stray::Datagram`] back, so that a later one needs no allocation.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.direct.spare.give(bytes);
    }

    /// Returns the time of the last turn, or of [`Node::set_now`].
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the node's limit counters; see [`Stack::counters`] for the stack's.
    pub fn counters(&self) -> DirectCounters {
        self.direct.counters
    }

    /// Returns a snapshot of a socket, with TCP statistics for connections; `None` if the handle is
    /// dead.
    pub fn info(&self, handle: SocketHandle) -> Option<SocketInfo> {
        self.stack.info(self.now, self.direct.table.get(handle)?.id)
    }

    /// Returns the total memory of all socket buffers in bytes; memory never written to is
    /// excluded.
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

    /// Frees buffer memory that holds no bytes, and memory that TCP keeps for its next flight. For
    /// connections that have been idle for a while: the next byte allocates again.
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

    /// Iterates over open sockets by index, excluding children in accept queues.
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
    /// [`OptionError::NoSocket`] if the handle is dead; otherwise see [`Stack::set_option`].
    pub fn set_option(
        &mut self,
        handle: SocketHandle,
        option: SocketOption,
    ) -> Result<(), OptionError> {
        let id = self.direct.open(handle).ok_or(OptionError::NoSocket)?.id;
        self.stack.set_option(id, option)
    }

    /// Closes a socket. Written bytes are still sent. [`NodeEvent::Closed`] follows once it is
    /// removed, for connections after the peer has closed. Does nothing if the handle is dead.
    pub fn close(&mut self, handle: SocketHandle) {
        self.calls().close(handle)
    }

    /// Resets a connection; other sockets are closed as by [`Node::close`].
    pub fn abort(&mut self, handle: SocketHandle) {
        self.calls().abort(handle)
    }
}
