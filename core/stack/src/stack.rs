//! The stack: its tables and their lookups. Other files add methods to [`Stack`], which this file
//! does not use; `turn` calls them in order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use towpath_pool::Batch;
use towpath_tcp::{Instant, SeqNum, isn};

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
    /// Settings of new connections; the route overrides the segment sizes.
    pub tcp: towpath_tcp::Config,
    /// Settings of the IP layer.
    pub net: NetConfig,
    /// Ephemeral port range for binds and connects without a given port. The default is that of
    /// Linux's `ip_local_port_range`.
    pub ephemeral: RangeInclusive<u16>,
    /// Maximum number of sockets of all kinds, including closed ones that are not removed yet;
    /// beyond it, [`crate::OpenError::TooMany`].
    pub sockets_max: usize,
    /// Maximum number of half-open connections ([`limits::SYN_CACHE_MAX`]). A listener may have at
    /// most as many as there are free entries.
    pub syn_cache_max: usize,
    /// Maximum number of connections in TIME-WAIT; the oldest is evicted (drop reason
    /// `time_wait_full`).
    pub time_wait_max: usize,
    /// Maximum number of undecided SYNs on any-address interfaces ([`Host::syn`]).
    pub pending_max: usize,
    /// Maximum number of connections whose socket was closed. Beyond it, closing resets the
    /// connection (counter `tcp_orphans_aborted`).
    pub orphans_max: usize,
    /// Observer of sockets that receive packets from unknown peers.
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

/// Host: the IP layer with sockets. See the [crate page](crate) for the required calls and an
/// example.
pub struct Stack<H: Host> {
    /// IP layer: interfaces, addresses, routes.
    pub net: Net,
    pub(crate) config: StackConfig,
    pub(crate) sockets: Slab<StackSocket<H>>,
    pub(crate) ended: EndedParts,
    /// Connections by 4-tuple.
    pub(crate) flows: FlowTable,
    pub(crate) ports: LocalPorts,
    pub(crate) handshakes: Handshakes,
    pub(crate) fast_opens: FastOpens,
    pub(crate) time_waits: TimeWaits,
    pub(crate) datagrams: DatagramTables,
    pub(crate) wheel: TimerWheel<TimerOwner>,
    pub(crate) keys: SocketKeys,
    pub(crate) paths: Paths,
    /// Sockets that `tx` has to visit, each once; [`Socket::dirty`] marks the entries.
    pub(crate) dirty: VecDeque<SocketId>,
    /// Connections that wait for room in a device's queue.
    pub(crate) output_lines: OutputLines,
    /// Events caused by calls of the owner, queued until [`Stack::tell`] delivers them.
    pub(crate) events: Outbox,
    pub(crate) counters: Counters,
    /// The loopback queue may contain packets, so the owner has to call `turn` again.
    pub(crate) loopback_due: bool,
    /// Batch for received packets, kept between turns to reuse its memory.
    pub(crate) rx: Batch,
    pub(crate) shards: PeerShards,
}

/// Object that a timer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerOwner {
    /// A connection, by the index of its socket.
    Socket(u32),
    /// A half-open connection, by its index in the SYN cache.
    HalfOpen(u32),
}

impl<H: Host> Stack<H> {
    /// Size in bytes of a boxed stream socket with its connection, without buffer memory.
    pub const STREAM_BYTES: usize = size_of::<StreamSocket<H>>();
    /// Size in bytes of a slab entry of any socket.
    pub const SOCKET_BYTES: usize = Slab::<StackSocket<H>>::ENTRY_BYTES;

    /// Creates a host with only the loopback interface; see [`Net::add_interface`]. `seed` must be
    /// random and secret; the same seed, calls and times give the same run. `now` must not be 0,
    /// which means "never" in some fields.
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
    /// * Give each shard a queue of every device. A packet may arrive at any shard, but is cheapest
    ///   at its owner ([`Owners`]).
    /// * If a [turn](Stack::turn) reports [mail](crate::Turn::mail), wake the sleeping shards among
    ///   the receivers. Before a thread sleeps, and after it has announced so, call
    ///   [`Stack::has_mail`] again. Otherwise messages sent since [`Stack::next_timeout`] are
    ///   missed.
    /// * Implement [`Host::accept_for`] and [`Host::enqueue`], because connections of a listener
    ///   are in all shards and its accept queue is in one.
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
            fast_opens: FastOpens::new(keys.fast_open, keys.table),
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

    /// Returns the configuration given to [`Stack::new`], which cannot be changed.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Adds a socket to the list of connections that may have something to send, unless it is
    /// listed already.
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        let id = SocketId(self.sockets.id(index));
        if let Some(socket) = self.sockets.get_mut(index)
            && !socket.dirty
        {
            socket.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Returns the index of an existing socket.
    #[inline]
    pub(crate) fn index(&self, id: SocketId) -> Option<u32> {
        self.sockets.find(id.0)
    }

    /// Finds the entry of a TCP 4-tuple: a connection, a half-open one, a TIME-WAIT, or an
    /// undecided SYN.
    #[inline]
    pub(crate) fn find_flow(&self, hash: u64, flow: &Flow) -> Option<FlowRef> {
        self.flows.find(hash, |at| self.flow_of(at).is_some_and(|theirs| theirs == flow))
    }

    /// Returns the socket and user of the connection between two addresses. Returns `None` for
    /// half-open connections and TIME-WAITs, which have no socket.
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

    /// Returns the initial sequence number of a connection. `iss_min` is the end of the sequence
    /// numbers used by an old connection between the same ports.
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

    /// Counts a drop of a packet that was freed before, or never built.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.net.count_drop(reason);
    }
}
