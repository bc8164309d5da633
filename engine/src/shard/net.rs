//! The stack of a shard, its ports, and the descriptors that wake it.

pub(crate) mod describe;
pub(crate) mod sources;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use towpath_pool::{Pool, Port};
use towpath_ring::EngineStatus;
use towpath_shm::layout::RawAddr;
use towpath_stack::net::{Conflict, Interface};
use towpath_stack::{ShardId, SocketId, SocketInfo, Stack};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::poller::Poller;
use crate::shard::net::sources::{PortWatch, ShardSource, watch, watch_new};
use crate::shard::peers::message::PeerMessage;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::slots::present_on;

pub(crate) type OnConflict = Arc<dyn Fn(&Conflict) + Send + Sync>;
pub(crate) type DropTrace = Arc<dyn Fn(DroppedPacket<'_>) + Send + Sync>;

/// A packet that the stack dropped, for a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedPacket<'a> {
    /// Time of the drop, in ns on the engine's clock.
    pub now_ns: u64,
    /// 0: loopback; port `i` drives interface `i + 1`.
    pub interface: u16,
    /// The packet was to be sent; otherwise it was received.
    pub outbound: bool,
    /// The name of its counter, [`towpath_stack::DropReason::as_str`].
    pub reason: &'static str,
    /// From the link header on, or from the first header that it had.
    pub bytes: &'a [u8],
}

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
    pub drop_trace: Option<DropTrace>,
    /// Listener for addresses that another host has as well.
    pub on_conflict: Option<OnConflict>,
}

impl Net {
    /// A net whose clock and ports are the host's. Fails if the kernel has no epoll set for it.
    pub fn new(
        stack: Stack<Sockets>,
        ports: Vec<Box<dyn Port + Send>>,
        status: EngineStatus,
        clock: Clock,
    ) -> io::Result<Self> {
        let (mut poller, mut watched) = (Poller::new()?, Vec::new());
        watch_new(&mut poller, &ports, &mut watched)?;
        let pool = Pool::default();
        let (drop_trace, on_conflict) = (None, None);
        Ok(Self { stack, ports, pool, clock, status, poller, watched, drop_trace, on_conflict })
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

    /// Reports addresses of this host that another host has as well.
    pub fn tell_conflicts(&mut self) {
        let Some(tell) = &self.on_conflict else { return };
        while let Some(conflict) = self.stack.net.take_conflict() {
            tell(&conflict);
        }
    }

    /// Passes dropped packets to the trace.
    pub fn show_dropped(&mut self, now: Instant) {
        let Some(trace) = &self.drop_trace else { return };
        while let Some(dropped) = self.stack.net.take_dropped() {
            trace(DroppedPacket {
                now_ns: now.0,
                interface: dropped.iface.0,
                outbound: dropped.reason.is_outbound(),
                reason: dropped.reason.as_str(),
                bytes: &dropped.bytes,
            });
        }
    }

    /// Waits for the events that each port needs now.
    pub fn watch_ports(&mut self) {
        // epoll can only fail for want of a valid descriptor: nothing would ever wake us again.
        let watched = watch(&mut self.poller, &self.ports, &mut self.watched);
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
