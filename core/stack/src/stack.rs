//! The stack: its tables, and lookups in them. Other files add methods to [`Stack`], which this
//! file does not use. The module `turn` calls these methods in order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use towpath_pool::Batch;
use towpath_tcp::{FastOpenKeys, Instant, SeqNum, isn};

use crate::counters::Counters;
use crate::drop::DropReason;
use crate::host::{Host, SocketId};
use crate::keys::SocketKeys;
use crate::limits;
use crate::net::{Keys, Net, NetConfig};
use crate::outbox::Outbox;
use crate::ports::bind_addr::PortProtocol;
use crate::ports::binds::Binds;
use crate::ports::ephemeral::Ephemeral;
use crate::ports::local::LocalPorts;
use crate::ports::receiver_watch::ReceiverWatch;
use crate::shards::{Member, Owners, PeerShards};
use crate::socket::{SocketRole, StackSocket};
use crate::tables::flow::{Flow, FlowRef, FlowTable};
use crate::tables::slab::Slab;
use crate::tables::timer::TimerWheel;
use crate::tcp::ended::EndedParts;
use crate::tcp::fast_open::FastOpens;
use crate::tcp::handshake::Handshakes;
use crate::tcp::output_lines::OutputLines;
use crate::tcp::path::Paths;
use crate::tcp::stream::StreamSocket;
use crate::tcp::time_wait::TimeWaits;
use crate::udp::DatagramTables;

/// Configuration of a [`Stack`].
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Settings of new connections, except that their segment sizes depend on the route.
    pub tcp: towpath_tcp::Config,
    /// Settings of the IP layer.
    pub net: NetConfig,
    /// Range of ephemeral ports, from which binds and connects choose a port if none is specified.
    /// The default is that of Linux's `ip_local_port_range`.
    pub ephemeral: RangeInclusive<u16>,
    /// Maximum number of sockets of all kinds, including closed ones that are not removed yet.
    /// Beyond it, opening a socket fails with [`crate::OpenError::TooMany`].
    pub sockets_max: usize,
    /// Maximum number of half-open connections, see [`limits::SYN_CACHE_MAX`]. A single listener
    /// may have at most as many half-open connections as there are free entries.
    pub syn_cache_max: usize,
    /// Maximum number of connections in TIME-WAIT. Beyond it, the oldest one is evicted (drop
    /// reason `time_wait_full`).
    pub time_wait_max: usize,
    /// Maximum number of SYNs that the owner has neither accepted nor refused yet ([`Host::syn`]).
    pub pending_max: usize,
    /// Maximum number of connections whose socket the program has closed. Beyond it, closing a
    /// socket resets its connection (counter `tcp_orphans_aborted`).
    pub orphans_max: usize,
    /// Observer that is called when a socket starts or stops to accept packets from new peers.
    pub receivers: Option<Arc<dyn ReceiverWatch>>,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            tcp: towpath_tcp::Config::default(),
            net: NetConfig::default(),
            ephemeral: 32768..=60999,
            sockets_max: limits::SOCKETS_MAX,
            syn_cache_max: limits::SYN_CACHE_MAX,
            time_wait_max: limits::TIME_WAIT_MAX,
            pending_max: limits::PENDING_MAX,
            orphans_max: limits::ORPHANS_MAX,
            receivers: None,
        }
    }
}

/// A host: the IP layer and its sockets. The [crate page](crate) has the required calls and an
/// example.
pub struct Stack<H: Host> {
    /// IP layer, with interfaces, addresses and routes.
    pub net: Net,
    pub(crate) config: StackConfig,
    pub(crate) sockets: Slab<StackSocket<H>>,
    pub(crate) ended: EndedParts,
    /// Table of connections, by local and remote address and port.
    pub(crate) flows: FlowTable,
    pub(crate) ports: LocalPorts,
    pub(crate) handshakes: Handshakes,
    pub(crate) fast_opens: FastOpens,
    pub(crate) time_waits: TimeWaits,
    pub(crate) datagrams: DatagramTables,
    pub(crate) wheel: TimerWheel<TimerOwner>,
    pub(crate) keys: SocketKeys,
    pub(crate) paths: Paths,
    /// Sockets that may have something to send, each once. [`Socket::dirty`] is set in their
    /// entries.
    pub(crate) dirty: VecDeque<SocketId>,
    /// Connections that wait for space in the queue of a device.
    pub(crate) output_lines: OutputLines,
    /// Events caused by calls of the owner. The events are queued until [`Stack::tell`] delivers
    /// them.
    pub(crate) events: Outbox,
    pub(crate) counters: Counters,
    /// Whether the loopback queue may contain packets. If so, the owner must call `turn` again.
    pub(crate) loopback_due: bool,
    /// Batch into which packets are received. The batch is kept between turns of the event loop, to
    /// reuse its memory.
    pub(crate) rx: Batch,
    pub(crate) shards: PeerShards,
}

/// The object to which a timer belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerOwner {
    /// A connection, given by the index of its socket.
    Socket(u32),
    /// A half-open connection, given by its index in the SYN cache.
    HalfOpen(u32),
}

impl<H: Host> Stack<H> {
    /// Size in bytes of a stream socket with its connection. The memory of its buffers is not
    /// included.
    pub const STREAM_BYTES: usize = size_of::<StreamSocket<H>>();
    /// Size in bytes of the table entry that every socket has.
    pub const SOCKET_BYTES: usize = Slab::<StackSocket<H>>::ENTRY_BYTES;

    /// Creates a host with only the loopback interface. [`Net::add_interface`] adds others. `seed`
    /// must be random and secret. With the same seed, calls and times, the stack behaves the same.
    /// `now` must not be 0, which means "never" in some fields.
    pub fn new(config: StackConfig, seed: [u8; 32], now: Instant) -> Self {
        let keys = SocketKeys::derive(&seed);
        let binds = [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo]
            .map(|of| Binds::alone(keys.table, of));
        let net = Net::new(config.net, Keys::derive(&seed), now);
        Self::assemble(config, net, keys, binds, now)
    }

    /// Creates `count` shards: stacks that together form one host, each for its own thread. With a
    /// count of 1 the result is that of [`Stack::new`].
    ///
    /// # Required calls
    /// * Configure interfaces, addresses and routes in the first shard, which shares them with all
    ///   shards. Configuration calls on other shards panic.
    /// * Assign a queue of every device to each shard. A packet may arrive on any shard, but needs
    ///   the least work on the shard that owns its flow ([`Owners`]).
    /// * If a [turn](Stack::turn) of the event loop reports [mail](crate::Turn::mail), wake those
    ///   of the receiving shards that sleep. After a thread has announced that it will sleep, and
    ///   before it sleeps, call [`Stack::has_mail`] again. Otherwise messages sent since
    ///   [`Stack::next_timeout`] are missed.
    /// * Implement [`Host::accept_for`] and [`Host::enqueue`], because the connections of a
    ///   listener are in all shards, and its accept queue is in one.
    ///
    /// The limits of `config` on the SYN cache, TIME-WAITs, undecided SYNs, orphans and ICMP errors
    /// are divided among the shards. `sockets_max` applies to each shard.
    ///
    /// # Panics
    /// Panics if `count` is not a power of two, or exceeds [`limits::SHARDS_MAX`].
    pub fn shards(config: StackConfig, seed: [u8; 32], now: Instant, count: usize) -> Vec<Self> {
        let owners = Owners::new(&seed, count);
        if count == 1 {
            return vec![Self::new(config, seed, now)];
        }
        let keys = SocketKeys::derive(&seed);
        let members = Member::all(owners, keys.table);
        let Some(common) = members.first().map(|member| Arc::clone(&member.common)) else {
            return Vec::new();
        };
        let share = |all: usize| all.div_ceil(count);
        let config = StackConfig {
            syn_cache_max: share(config.syn_cache_max),
            time_wait_max: share(config.time_wait_max),
            pending_max: share(config.pending_max),
            orphans_max: share(config.orphans_max),
            ..config
        };
        let mut tables = [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo]
            .map(|of| Binds::of_shards(&common, keys.table, of).into_iter());
        let net_keys = |member: &Member| Keys::derive(&seed).of_shard(member.id.0);
        let net_keys: Vec<Keys> = members.iter().map(net_keys).collect();
        let nets = Net::shards(config.net, &net_keys, now);
        let mut stacks = Vec::with_capacity(count);
        for (member, net) in members.into_iter().zip(nets) {
            let binds = tables.each_mut().map(|table| table.next().expect("one for each shard"));
            let stack = Self::assemble(config.clone(), net, keys, binds, now);
            let shards = PeerShards { member: Some(Box::new(member)) };
            stacks.push(Self { shards, ..stack });
        }
        stacks
    }

    fn assemble(
        config: StackConfig,
        net: Net,
        keys: SocketKeys,
        binds: [Binds; 3],
        now: Instant,
    ) -> Self {
        Self {
            net,
            sockets: Slab::default(),
            ended: EndedParts::default(),
            flows: FlowTable::default(),
            ports: LocalPorts::new(binds, Ephemeral::new(&config.ephemeral)),
            handshakes: Handshakes::default(),
            fast_opens: FastOpens::new(fast_open_keys(&config.tcp, &keys), keys.table),
            time_waits: TimeWaits::new(config.tcp.time_wait),
            datagrams: DatagramTables::default(),
            wheel: TimerWheel::new(now),
            keys,
            paths: Paths::default(),
            dirty: VecDeque::new(),
            output_lines: OutputLines::default(),
            events: Outbox::default(),
            counters: Counters::default(),
            loopback_due: false,
            rx: Batch::new(),
            shards: PeerShards::default(),
            config,
        }
    }

    /// Returns the counters of the socket layer.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the configuration given to [`Stack::new`], with the changes of [`Stack::set_tcp`].
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Replaces the settings of new connections. Connections of existing listeners use them, too,
    /// except for options that the program has set. Existing connections keep their settings. Each
    /// shard must be changed on its own. Changes of [`towpath_tcp::Config::time_wait`] have no
    /// effect.
    pub fn set_tcp(&mut self, tcp: towpath_tcp::Config) {
        self.fast_opens.set_keys(fast_open_keys(&tcp, &self.keys));
        self.config.tcp = tcp;
    }

    /// Adds a socket to the list of sockets that may have something to send, unless it is already
    /// in the list.
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        let id = SocketId(self.sockets.id(index));
        if let Some(socket) = self.sockets.get_mut(index)
            && !socket.dirty
        {
            socket.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Returns the index of a socket in the table; `None` if the socket was removed.
    #[inline]
    pub(crate) fn index(&self, id: SocketId) -> Option<u32> {
        self.sockets.find(id.0)
    }

    /// Finds the entry for a pair of endpoints. The entry is a connection, a half-open connection,
    /// a TIME-WAIT, or a SYN that the owner has neither accepted nor refused.
    #[inline]
    pub(crate) fn find_flow(&self, hash: u64, flow: &Flow) -> Option<FlowRef> {
        self.flows.find(hash, |at| self.flow_of(at).is_some_and(|theirs| theirs == flow))
    }

    /// Returns the socket and the user number of the connection between two endpoints. Returns
    /// `None` for half-open connections and those in TIME-WAIT, which have no socket.
    pub fn connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<(SocketId, u32)> {
        let flow = Flow {
            local: local.ip(),
            remote: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        };
        match self.find_flow(self.keys.table.ends(&flow), &flow)? {
            FlowRef::Socket(index) => {
                let socket = self.sockets.get(index)?;
                Some((SocketId(self.sockets.id(index)), socket.user))
            }
            _ => None,
        }
    }

    fn flow_of(&self, at: FlowRef) -> Option<&Flow> {
        match at {
            FlowRef::Socket(index) => match &self.sockets.get(index)?.kind {
                SocketRole::Stream(stream) => Some(&stream.flow),
                _ => None,
            },
            FlowRef::HalfOpen(index) => {
                self.handshakes.half_open.get(index).map(|entry| &entry.flow)
            }
            FlowRef::TimeWait(index) => self.time_waits.get(index).map(|entry| &entry.flow),
            FlowRef::Pending(index) => self.handshakes.pending.get(index).map(|entry| &entry.flow),
        }
    }

    /// Returns the initial sequence number of a new connection. If an earlier connection used the
    /// same addresses and ports, `iss_min` is the number after its last sequence number.
    pub(crate) fn initial_sequence(
        &self,
        now: Instant,
        flow: &Flow,
        iss_min: Option<SeqNum>,
    ) -> SeqNum {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.4.1
        //# F() MUST NOT be computable from the outside (MUST-9)
        let iss = isn::initial_sequence(self.keys.isn.flow(flow), now);
        iss_min.map_or(iss, |min| isn::not_before(min, iss))
    }

    pub(crate) fn timestamp_offset(&self, flow: &Flow) -> u32 {
        self.keys.timestamps.flow(flow) as u32
    }

    /// Counts a dropped packet that was already freed, or that was never created.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.net.count_drop(reason);
    }
}

/// Returns the keys of Fast Open cookies: the configured ones, or a random key of this host.
fn fast_open_keys(tcp: &towpath_tcp::Config, keys: &SocketKeys) -> FastOpenKeys {
    let random = FastOpenKeys { primary: keys.fast_open.0, backup: None };
    tcp.fast_open_keys.unwrap_or(random)
}
