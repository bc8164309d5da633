//! Decisions of an engine's owner.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use towpath_shm::spin::BUSY_POLL;
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{Budget, StackConfig};
use towpath_wire::Prefix;

/// Limit on the time for which no peer takes a byte of the last program's data. A connection
/// without a process waits as long at a shut window. As on Linux it is probed after 200 ms, then
/// after twice as long each time, while that is less than `TCP_RTO_MAX` (`tcp_probe_timer`,
/// `tcp_orphan_retries`).
const LEAVE_STALLED: Duration = Duration::from_secs(205);

/// An engine's configuration.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The stack's configuration. The smaller one of its `sockets_max` and the one below applies.
    pub stack: StackConfig,
    /// How much the stack does in a turn.
    pub budget: Budget,
    /// `interfaces[i]` is driven by port `i` and becomes interface `i + 1`; 0 is loopback.
    pub interfaces: Vec<InterfaceConfig>,
    /// Beyond those that follow from the interfaces' addresses.
    pub routes: Vec<RouteConfig>,
    /// Most bytes of FIFO memory. Beyond, connections wait for memory; nothing fails.
    pub memory_cap: u64,
    /// Most sockets of all programs, at most [`towpath_shm::layout::SLOTS_MAX`].
    pub sockets_max: u32,
    /// Maximum number of processes, at most [`towpath_shm::layout::CHANNELS_MAX`]. Beyond, fork and
    /// its kin fail. 0: the engine has no programs, as a router, and maps no memory for their
    /// sockets.
    pub channels_max: u32,
    /// How much memory sockets have, if programs set nothing (SO_RCVBUF, SO_SNDBUF).
    pub buffers: Buffers,
    /// The nameserver that programs find in /etc/resolv.conf; None: those that stand there.
    pub resolver: Option<ResolverConfig>,
    /// Names that programs find beside those of the host: the text of
    /// [`towpath_shm::control::call::NAMES`].
    pub names: Arc<str>,
    /// [`crate::Engine::run`] returns when the last program has gone, after what it left behind
    /// was sent.
    pub exit_when_unused: bool,
    /// `run` also returns when no peer has taken a byte of such data for this long; the peers then
    /// see a reset.
    pub leave_stalled: Duration,
    /// [`crate::Engine::run`] turns all shards on its own thread at first. Whenever a thread has
    /// used a processor for four fifths of 100 ms, half of its shards go to another one. If this is
    /// not set, each shard has a thread from the beginning.
    pub threads_by_need: bool,
    /// Time for which a thread goes on looking for work before it sleeps
    /// ([`crate::Engine::busy_poll`]), as long as it finds some as a rule. A wake-up costs some 10
    /// to 50 µs, much of it until an idle processor is awake. Zero: it sleeps at once, as it does
    /// where it may use a single processor.
    pub busy_poll: Duration,
}

/// The nameserver that programs find in /etc/resolv.conf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolverConfig {
    /// Where it is.
    pub address: IpAddr,
    /// The nameserver replaces nameservers on the host's loopback, which is not the stack's, and no
    /// others.
    pub only_loopback: bool,
}

/// A route that an operator gives, as `ip route add` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteConfig {
    /// Where to.
    pub prefix: Prefix,
    /// The router; None: on the link.
    pub next_hop: Option<IpAddr>,
    /// Index into [`EngineConfig::interfaces`].
    pub interface: usize,
    /// The lowest wins.
    pub metric: u32,
}

/// Sizes of FIFOs in bytes: a fresh stream's, and where autotuning ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Receive, at first: the middle of `tcp_rmem` (tcp(7)).
    pub recv: u32,
    /// Receive, largest: the last of `tcp_rmem`.
    pub recv_max: u32,
    /// Transmit, at first: the middle of `tcp_wmem`.
    pub send: u32,
    /// Transmit, largest: the last of `tcp_wmem`.
    pub send_max: u32,
    /// Both of a datagram socket: Linux's `rmem_default`, which also holds three of the longest.
    pub datagram: u32,
}

impl Default for Buffers {
    /// Linux's `tcp_rmem` and `tcp_wmem` (64 KiB windows at first, 6 and 4 MiB at most), in the
    /// powers of two that memory comes in.
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
