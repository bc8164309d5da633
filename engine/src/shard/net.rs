//! The network stack of a shard, its ports, and the poller with the descriptors that wake it.

pub(crate) mod describe;
pub(crate) mod observers;
pub(crate) mod ports;
pub(crate) mod sources;

use std::io;
use std::net::SocketAddr;

use towpath_pool::{Pool, Port};
use towpath_ring::EngineStatus;
use towpath_shm::layout::RawAddr;
use towpath_stack::net::Interface;
use towpath_stack::{Budget, IfaceId, ShardId, SocketId, SocketInfo, Stack};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::poller::Poller;
use crate::shard::net::observers::Observers;
use crate::shard::net::ports::ShardPorts;
use crate::shard::net::sources::ShardSource;
use crate::shard::peers::message::PeerMessage;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::slots::present_on;

/// The network part of a shard (event loop): a stack, its ports, and the poller that wakes the
/// shard.
pub(crate) struct Net {
    pub stack: Stack<Sockets>,
    pub ports: ShardPorts,
    pub pool: Pool,
    pub clock: Clock,
    /// Status page in shared memory. Programs read in it whether the engine sleeps, and the maximum
    /// length of a datagram that needs no check by the engine.
    pub status: EngineStatus,
    pub poller: Poller<ShardSource>,
    /// Maximum amount of work of the stack in one iteration (turn) of the shard's event loop.
    pub budget: Budget,
    pub observers: Observers,
}

impl Net {
    /// Creates the network part of a shard: its stack, clock, ports and poller.
    ///
    /// # Errors
    /// Fails if the kernel cannot create an epoll set.
    pub fn new(
        stack: Stack<Sockets>,
        ports: Vec<Box<dyn Port + Send>>,
        status: EngineStatus,
        clock: Clock,
        budget: Budget,
    ) -> io::Result<Self> {
        let (mut poller, mut list) = (Poller::new()?, ShardPorts::default());
        for (port, iface) in ports.into_iter().zip(1..) {
            list.attach(&mut poller, IfaceId(iface), port)?;
        }
        let (pool, observers, ports) = (Pool::default(), Observers::default(), list);
        Ok(Self { stack, ports, pool, clock, status, poller, budget, observers })
    }

    /// Starts polling the port of an interface that was added at run time.
    pub fn attach(&mut self, iface: IfaceId, port: Box<dyn Port + Send>) -> io::Result<()> {
        // Let the stack use the latest configuration first. Otherwise it would drop the first
        // packets of the new port.
        self.stack.net.catch_up();
        self.ports.attach(&mut self.poller, iface, port)
    }

    /// Removes and returns the port of a removed interface, and drops packets queued for it.
    pub fn detach(&mut self, now: Instant, iface: IfaceId) -> Option<Box<dyn Port + Send>> {
        self.stack.detach(now, iface, &mut self.pool);
        self.ports.detach(&mut self.poller, iface)
    }

    /// Sends a message to another shard.
    pub fn tell_shard(&mut self, shard: ShardId, word: PeerMessage) {
        self.stack.tell_owner(shard, word.into());
    }

    /// Returns the current state of a socket in the stack.
    pub fn info(&self, id: SocketId) -> Option<SocketInfo> {
        self.stack.info(self.clock.now(), id)
    }

    /// Returns the time at which the next timer of the stack or of a port expires. `None`: no timer
    /// is running.
    pub fn next_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(|port| port.next_timeout_ns()).map(Instant);
        ports.chain(self.stack.next_timeout()).min()
    }

    /// Passes dropped packets, logged packets and address conflicts to the observers. `more` is
    /// true if another iteration of the event loop follows without a sleep.
    pub fn notify_observers(&mut self, now: Instant, more: bool) {
        self.observers.notify(&mut self.stack.net, now, more);
    }

    /// Updates the events for which each port is polled: received packets, and free space in the
    /// transmit queue.
    pub fn watch_ports(&mut self) {
        // Panic on an error: epoll_ctl fails only for an invalid descriptor, and then no event
        // could ever wake this thread.
        let Self { poller, ports, observers, .. } = self;
        let watched = ports.watch(poller, |iface| observers.device_gone(iface));
        watched.expect("the engine's own epoll works");
    }

    /// Converts an address of this host to the form that a socket of `family` reports to its
    /// program.
    pub(crate) fn present_own(&self, family: u32, addr: SocketAddr) -> RawAddr {
        let is_its = |iface: &&Interface| {
            iface.addresses().iter().any(|address| address.addr() == addr.ip())
        };
        let iface = self.stack.net.interfaces().find(is_its).map(Interface::id);
        present_on(family, addr, iface)
    }
}
