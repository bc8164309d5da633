//! Configuration of an engine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use towpath_shm::spin::BUSY_POLL;
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{Budget, StackConfig};
use towpath_tcp::TcpDefaults;
use towpath_wire::Prefix;

/// Maximum time without progress in sending the remaining data of programs that have ended. Linux
/// keeps a connection without a process for the same time if the peer's window is zero. Linux
/// probes the window after 200 ms, then at intervals that double up to `TCP_RTO_MAX`
/// (`tcp_probe_timer`, `tcp_orphan_retries`).
const LEAVE_STALLED: Duration = Duration::from_secs(205);

/// Configuration of an engine (a network stack, its interfaces, and the programs that use it).
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Configuration of the stack. If its `sockets_max` differs from that of the engine, the
    /// smaller one applies.
    pub stack: StackConfig,
    /// Maximum amount of work of the stack in one iteration of the event loop.
    pub budget: Budget,
    /// Network interfaces. The port with index `i` drives `interfaces[i]`, which becomes interface
    /// `i + 1`; interface 0 is loopback.
    pub interfaces: Vec<InterfaceConfig>,
    /// Routes in addition to those to the networks of the interfaces.
    pub routes: Vec<RouteConfig>,
    /// Maximum number of bytes of FIFO memory (socket buffers). When it is used up, connections
    /// wait for memory, but nothing fails.
    pub memory_cap: u64,
    /// Maximum number of sockets of all programs, at most [`towpath_shm::layout::SLOTS_MAX`].
    pub sockets_max: u32,
    /// Maximum number of processes, at most [`towpath_shm::layout::CHANNELS_MAX`]. When it is
    /// reached, fork and similar calls fail. If it is 0, as in a router, the engine has no programs
    /// and maps no memory for their sockets.
    pub channels_max: u32,
    /// Buffer sizes of sockets whose program has not set SO_RCVBUF or SO_SNDBUF.
    pub buffers: Buffers,
    /// Nameserver that programs find in /etc/resolv.conf. With `None`, the file is not changed.
    pub resolver: Option<ResolverConfig>,
    /// Host names that programs can resolve in addition to those of the host. The format is
    /// described at [`towpath_shm::control::call::NAMES`].
    pub names: Arc<str>,
    /// Whether [`crate::Engine::run`] returns after the last program has ended and its data was
    /// sent.
    pub exit_when_unused: bool,
    /// Time after which [`crate::Engine::run`] returns although data of ended programs is unsent,
    /// if sending makes no progress. The peers then receive a reset.
    pub leave_stalled: Duration,
    /// Whether threads are created on demand. [`crate::Engine::run`] then starts with all shards
    /// (event loops) on its own thread. A thread that has used a CPU for 80 of the last 100 ms
    /// passes half of its shards to a new thread. If false, each shard has its own thread from the
    /// start.
    pub threads_by_need: bool,
    /// Time for which a thread polls for work before it sleeps ([`crate::Engine::busy_poll`]), as
    /// long as polling usually finds some. A wake-up costs some 10 to 50 µs, mostly to wake an idle
    /// processor. Zero disables polling, and so does a single available processor.
    pub busy_poll: Duration,
}

/// Nameserver that programs find in /etc/resolv.conf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolverConfig {
    /// Address of the nameserver.
    pub address: IpAddr,
    /// Whether only nameservers on the host's loopback are replaced, because programs of the run
    /// cannot reach these.
    pub only_loopback: bool,
}

/// A configured route, with the parameters of `ip route add`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteConfig {
    /// Prefix of the route's destinations.
    pub prefix: Prefix,
    /// Address of the router. `None` if destinations are directly on the link.
    pub next_hop: Option<IpAddr>,
    /// Index of the route's interface in [`EngineConfig::interfaces`].
    pub interface: usize,
    /// Metric of the route. Among routes with equal prefixes, the one with the lowest metric is
    /// used.
    pub metric: u32,
}

/// Sizes of socket buffers in bytes: initial sizes, and maximum sizes of autotuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Initial size of receive buffers in bytes, the default of `tcp_rmem` (tcp(7)).
    pub recv: u32,
    /// Maximum size of receive buffers in bytes, the maximum of `tcp_rmem` (tcp(7)).
    pub recv_max: u32,
    /// Initial size of send buffers in bytes, the default of `tcp_wmem` (tcp(7)).
    pub send: u32,
    /// Maximum size of send buffers in bytes, the maximum of `tcp_wmem` (tcp(7)).
    pub send_max: u32,
    /// Size in bytes of both the send and the receive buffer of a datagram socket. The size is
    /// Linux's `rmem_default`, enough for three datagrams of maximum length.
    pub datagram: u32,
}

impl Default for Buffers {
    /// Returns the sizes of Linux's `tcp_rmem` and `tcp_wmem`: initially 64 KiB, at most 6 and 4
    /// MiB. The sizes are rounded to powers of two, as memory is allocated.
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
    /// Limits the receive buffers of streams to `bytes`. As on Linux, programs can exceed the limit
    /// by SO_RCVBUF.
    pub(crate) fn limit_recv(&mut self, bytes: u32) {
        self.recv_max = bytes;
        self.recv = Self::default().recv.min(bytes);
    }
}

impl EngineConfig {
    /// Sets the default options of TCP connections.
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
