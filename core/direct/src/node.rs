//! A host: a stack, its ports and its sockets, turned by their owner.

use towpath_pool::{Pool, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{
    Budget, IfaceId, Instant, Linger, OptionError, SocketInfo, SocketOption, Stack, StackConfig,
    Turn,
};
use towpath_wire::{MacAddr, Prefix};

use crate::direct::{Direct, DirectConfig, DirectCounters, Stray};
use crate::event::NodeEvent;
use crate::handle::SocketHandle;
use crate::table::{Entry, Kind, SocketLife};

/// Settings of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeConfig {
    /// Settings of the stack.
    pub stack: StackConfig,
    /// Limits of what the node keeps beside it.
    pub direct: DirectConfig,
    /// How much one turn may do.
    pub budget: Budget,
}

/// A host. See the [crate page](crate) for the caller's duty and an example.
///
/// The fields may be used directly: whatever the calls here do not offer, the stack does.
/// `ports[i]` drives interface `i + 1` of the stack.
pub struct Node<P: Port + ?Sized = dyn Port> {
    /// The protocols.
    pub stack: Stack<Direct>,
    /// Sockets and events.
    pub direct: Direct,
    /// Devices, in the order of the interfaces.
    pub ports: Vec<Box<P>>,
    /// Memory of packets. Several nodes of one thread may share one: swap it in around each turn.
    pub pool: Pool,
    budget: Budget,
    /// Time of the last turn: calls between two turns happen then.
    now: Instant,
}

impl<P: Port + ?Sized> Node<P> {
    /// A host with the loopback interface alone. `seed` is what its sequence numbers and ports come
    /// from; the same seed, calls and times give the same packets. `now` is not 0.
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

    /// Adds a port and its interface with 1500 bytes of MTU. [`Node::add_interface`] is for others.
    pub fn add_port(&mut self, name: &str, port: Box<P>, addresses: &[Prefix]) -> IfaceId {
        let config = InterfaceConfig {
            name: name.to_owned(),
            link: port.link_type(),
            // Locally administered; the link's other end has another number in its last byte.
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

    /// Adds a port and its interface. Link type and offloads have to be the port's own.
    pub fn add_interface(&mut self, config: InterfaceConfig, port: Box<P>) -> IfaceId {
        self.ports.push(port);
        self.stack.net.add_interface(self.now, config)
    }

    /// Receives, fires timers, sends. When the result says `more`, turn again without waiting.
    pub fn turn(&mut self, now: Instant) -> Turn {
        self.now = now;
        let Self { stack, direct, ports, pool, budget, now } = self;
        stack.turn(*now, direct, ports, pool, *budget)
    }

    /// When the next turn is due though nothing arrives; in the past when there is work now.
    pub fn next_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(|port| port.next_timeout_ns()).map(Instant);
        ports.chain(self.stack.next_timeout()).min()
    }

    /// The next event, oldest socket first; `None` when all are taken.
    pub fn poll_event(&mut self) -> Option<NodeEvent> {
        self.direct.poll_event()
    }

    /// The next packet to a foreign address that no socket takes, of an any-address interface.
    pub fn take_stray(&mut self) -> Option<Stray> {
        self.direct.take_stray()
    }

    /// Time of the last turn.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How often a limit of the node was reached; [`Stack::counters`] has those of the stack.
    pub fn counters(&self) -> DirectCounters {
        self.direct.counters
    }

    /// A snapshot of a socket, with TCP's figures of a connection; `None` when the handle is dead.
    pub fn info(&self, handle: SocketHandle) -> Option<SocketInfo> {
        self.stack.info(self.now, self.direct.table.get(handle)?.id)
    }

    /// Memory of all sockets' buffers in bytes, as far as it was ever written to.
    pub fn buffer_bytes(&mut self) -> u64 {
        let Self { stack, direct, .. } = self;
        let of = |entry: &Entry| match &entry.kind {
            Kind::Listener { .. } => 0,
            Kind::Datagram { bytes, .. } => *bytes as u64,
            Kind::Stream => {
                let recv = stack.recv_buffer(entry.id).map_or(0, |buffer| buffer.memory_bytes());
                let send = stack.send_buffer(entry.id).map_or(0, |buffer| buffer.memory_bytes());
                u64::from(recv) + u64::from(send)
            }
        };
        direct.table.iter().map(of).sum()
    }

    /// Sockets that their owner may call, in the order of their places. Children in accept queues
    /// are not among them.
    pub fn handles(&self) -> impl Iterator<Item = SocketHandle> + '_ {
        self.direct
            .table
            .iter()
            .filter(|entry| entry.life == SocketLife::Open)
            .map(|entry| entry.handle)
    }

    /// Sets an option, as [`SocketOption::Congestion`].
    ///
    /// # Errors
    /// [`OptionError::NoSocket`] when the handle is dead; others as [`Stack::set_option`] says.
    pub fn set_option(
        &mut self,
        handle: SocketHandle,
        option: SocketOption,
    ) -> Result<(), OptionError> {
        let id = self.direct.open(handle).ok_or(OptionError::NoSocket)?.id;
        self.stack.set_option(id, option)
    }

    /// Ends a socket: written bytes still go out. [`NodeEvent::Closed`] comes when it is gone,
    /// which takes a connection until its peer has closed, too. Dead handles do nothing.
    pub fn close(&mut self, handle: SocketHandle) {
        self.end(handle, Linger::Default);
    }

    /// Ends a connection with a reset; other sockets as [`Node::close`] does.
    pub fn abort(&mut self, handle: SocketHandle) {
        self.end(handle, Linger::Abort);
    }

    fn end(&mut self, handle: SocketHandle, linger: Linger) {
        let Some(entry) = self.direct.open_mut(handle) else { return };
        entry.life = SocketLife::Closing;
        // Events from before say nothing any more, but for `Closed`.
        entry.pending = Default::default();
        let id = entry.id;
        if let Kind::Listener { children, .. } = &mut entry.kind {
            for child in std::mem::take(children) {
                self.abandon(child);
            }
        }
        self.stack.close(self.now, id, linger);
    }

    /// Resets a child that its owner never saw.
    fn abandon(&mut self, child: SocketHandle) {
        let Some(entry) = self.direct.table.get_mut(child) else { return };
        entry.life = SocketLife::Silent;
        let id = entry.id;
        self.stack.close(self.now, id, Linger::Abort);
    }
}
