//! Configuration of an engine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use towpath_shm::spin::BUSY_POLL;
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{Budget, StackConfig};
use towpath_tcp::TcpDefaults;
use towpath_wire::Prefix;

/// Maximum time without progress in sending the last program's data. A connection without a process
/// waits as long at a zero window. As on Linux it is probed after 200 ms, then after twice as long
/// each time, while that is less than `TCP_RTO_MAX` (`tcp_probe_timer`, `tcp_orphan_retries`).
const LEAVE_STALLED: Duration = Duration::from_secs(205);

/// Configuration of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Configuration of the stack. The smaller one of its `sockets_max` and the one below applies.
    pub stack: StackConfig,
    /// Maximum work of the stack in a turn.
    pub budget: Budget,
    /// `interfaces[i]` is driven by port `i` and becomes interface `i + 1`; 0 is loopback.
    pub interfaces: Vec<InterfaceConfig>,
    /// Routes in addition to those that follow from the interfaces' addresses.
    pub routes: Vec<RouteConfig>,
    /// Maximum bytes of FIFO memory. If it is used up, connections wait for memory, and nothing
    /// fails.
    pub memory_cap: u64,
    /// Maximum number of sockets of all programs, at most [`towpath_shm::layout::SLOTS_MAX`].
    pub sockets_max: u32,
    /// Maximum number of processes, at most [`towpath_shm::layout::CHANNELS_MAX`]. If it is
    /// reached, fork and similar calls fail. 0: the engine has no programs, as in a router, and
    /// maps no memory for their sockets.
    pub channels_max: u32,
    /// Buffer sizes of sockets on which programs do not set SO_RCVBUF or SO_SNDBUF.
    pub buffers: Buffers,
    /// Nameserver that programs find in /etc/resolv.conf; `None`: the file's own.
    pub resolver: Option<ResolverConfig>,
    /// Names that programs can resolve in addition to the host's, in the format of
    /// [`towpath_shm::control::call::NAMES`].
    pub names: Arc<str>,
    /// Whether [`crate::Engine::run`] returns after the last program has ended and its data was
    /// sent.
    pub exit_when_unused: bool,
    /// Time without progress in sending that data after which `run` also returns. The peers then
    /// receive a reset.
    pub leave_stalled: Duration,
    /// Whether threads are added on demand. [`crate::Engine::run`] then starts with all shards on
    /// its own thread. A thread that has used a processor for four fifths of 100 ms passes half of
    /// its shards to a new thread. Otherwise each shard has its own thread from the beginning.
    pub threads_by_need: bool,
    /// Time for which a thread polls for work before it sleeps ([`crate::Engine::busy_poll`]), as
    /// long as that usually finds some. A wake-up costs some 10 to 50 µs, mostly to wake an idle
    /// processor. Zero disables polling, and so does a single available processor.
    pub busy_poll: Duration,
}

/// Nameserver that programs find in /etc/resolv.conf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolverConfig {
    /// Address of the nameserver.
    pub address: IpAddr,
    /// Whether only nameservers on the host's loopback are replaced, which programs cannot reach.
    pub only_loopback: bool,
}

/// A configured route, as for `ip route add`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteConfig {
    /// Destination prefix.
    pub prefix: Prefix,
    /// Router; `None` if the destination is on the link.
    pub next_hop: Option<IpAddr>,
    /// Index into [`EngineConfig::interfaces`].
    pub interface: usize,
    /// Priority of the route; the lowest metric wins.
    pub metric: u32,
}

/// Sizes of FIFOs in bytes: initial, and the maximum of autotuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Initial receive buffer: the default of `tcp_rmem` (tcp(7)).
    pub recv: u32,
    /// Maximum receive buffer: the maximum of `tcp_rmem`.
    pub recv_max: u32,
    /// Initial send buffer: the default of `tcp_wmem`.
    pub send: u32,
    /// Maximum send buffer: the maximum of `tcp_wmem`.
    pub send_max: u32,
    /// Both buffers of a datagram socket: Linux's `rmem_default`, enough for three datagrams of
    /// maximum length.
    pub datagram: u32,
}

impl Default for Buffers {
    /// Returns Linux's `tcp_rmem` and `tcp_wmem` (initially 64 KiB, at most 6 and 4 MiB), rounded
    /// to powers of two as memory is allocated.
    fn default() -> Self {
        Self {
            recv: 64 << 10,
            recv_max: 4 << 20,
            send: 64 << 10,
            send_max: 4 << 20,
            datagram: 212_992,
        }
    }
}

impl Buffers {
    /// Limits receive buffers of streams to `bytes`. Programs can exceed the limit by SO_RCVBUF, as
    /// on Linux.
    fn limit_recv(&mut self, bytes: u32) {
        self.recv_max = bytes;
        self.recv = self.recv.min(bytes);
    }
}

impl EngineConfig {
    /// Sets the defaults of TCP connections.
    pub fn set_tcp(&mut self, tcp: &TcpDefaults) {
        tcp.apply(&mut self.stack.tcp);
        if let Some(bytes) = tcp.recv_max {
            self.buffers.limit_recv(bytes);
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            stack: StackConfig::default(),
            budget: Budget::default(),
            interfaces: Vec::new(),
            routes: Vec::new(),
            memory_cap: 1 << 30,
            sockets_max: towpath_shm::layout::SLOTS_MAX,
            channels_max: towpath_shm::layout::CHANNELS_MAX,
            buffers: Buffers::default(),
            resolver: None,
            names: Arc::default(),
            exit_when_unused: false,
            leave_stalled: LEAVE_STALLED,
            threads_by_need: false,
            busy_poll: BUSY_POLL,
        }
    }
}
