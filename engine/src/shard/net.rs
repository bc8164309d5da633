//! The stack of a shard, its ports, and the descriptors that wake it.

pub(crate) mod describe;
pub(crate) mod observers;
pub(crate) mod sources;

use std::io;
use std::net::SocketAddr;

use towpath_pool::{Pool, Port};
use towpath_ring::EngineStatus;
use towpath_shm::layout::RawAddr;
use towpath_stack::net::Interface;
use towpath_stack::{Budget, ShardId, SocketId, SocketInfo, Stack};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::poller::Poller;
use crate::shard::net::observers::Observers;
use crate::shard::net::sources::{PortWatch, ShardSource, watch, watch_new};
use crate::shard::peers::message::PeerMessage;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::slots::present_on;

/// The stack with what it needs to move packets and to be woken.
pub(crate) struct Net {
    pub stack: Stack<Sockets>,
    pub ports: Vec<Box<dyn Port + Send>>,
    pub pool: Pool,
    pub clock: Clock,
    /// The status page: whether the engine sleeps, and how long a datagram may be without a
    /// request.
    pub status: EngineStatus,
    pub poller: Poller<ShardSource>,
    /// Events that each port is watched for.
    watched: Vec<PortWatch>,
    /// How much the stack does in a turn.
    pub budget: Budget,
    pub observers: Observers,
}

impl Net {
    /// A net whose clock and ports are the host's. Fails if the kernel has no epoll set for it.
    pub fn new(
        stack: Stack<Sockets>,
        ports: Vec<Box<dyn Port + Send>>,
        status: EngineStatus,
        clock: Clock,
        budget: Budget,
    ) -> io::Result<Self> {
        let (mut poller, mut watched) = (Poller::new()?, Vec::new());
        watch_new(&mut poller, &ports, &mut watched)?;
        let (pool, observers) = (Pool::default(), Observers::default());
        Ok(Self { stack, ports, pool, clock, status, poller, watched, budget, observers })
    }

    /// Sends a message to another shard.
    pub fn tell_shard(&mut self, shard: ShardId, word: PeerMessage) {
        self.stack.tell_owner(shard, word.into());
    }

    /// Figures of a socket of the stack at this moment.
    pub fn info(&self, id: SocketId) -> Option<SocketInfo> {
        self.stack.info(self.clock.now(), id)
    }

    /// Time of the next event of the stack or of a port.
    pub fn next_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(|port| port.next_timeout_ns()).map(Instant);
        ports.chain(self.stack.next_timeout()).min()
    }

    /// Passes dropped and logged packets and conflicts of addresses to the observers.
    /// `more`: another turn follows at once.
    pub fn notify_observers(&mut self, now: Instant, more: bool) {
        self.observers.notify(&mut self.stack.net, now, more);
    }

    /// Waits for the events that each port needs now.
    pub fn watch_ports(&mut self) {
        // epoll can only fail for want of a valid descriptor: nothing would ever wake us again.
        let Self { poller, ports, watched, observers, .. } = self;
        let watched = watch(poller, ports, watched, |place| observers.device_gone(place));
        watched.expect("the engine's own epoll works");
    }

    /// An address of this host as a program with a socket of `family` sees it.
    pub(crate) fn present_own(&self, family: u32, addr: SocketAddr) -> RawAddr {
        let is_its = |iface: &&Interface| {
            iface.addresses().iter().any(|address| address.addr() == addr.ip())
        };
        let iface = self.stack.net.interfaces().iter().find(is_its).map(Interface::id);
        present_on(family, addr, iface)
    }
}
