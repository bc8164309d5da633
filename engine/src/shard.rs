//! The data path: a stack, its ports, its sockets and the rings of the programs that have them.
//!
//! A shard knows a process by its channel only. The registry knows which process may attach or
//! fork, and its descriptors; the two tell each other by [`mail`](crate::mail).

pub(crate) mod among;
mod asked;
pub(crate) mod askers;
mod births;
pub(crate) mod channels;
mod commands;
pub(crate) mod datagrams;
mod device;
mod diag;
mod disconnect;
mod ending;
pub(crate) mod ends;
mod feeding;
mod filter_room;
mod filters;
mod group_options;
pub(crate) mod holds;
pub(crate) mod host;
mod leaving;
pub(crate) mod lifecycle;
pub(crate) mod linux;
pub(crate) mod option_bits;
pub(crate) mod option_value;
pub(crate) mod options;
mod orders;
mod owners;
mod pacing;
pub(crate) mod place;
pub(crate) mod portions;
pub(crate) mod processor;
mod reuse;
mod rounds;
mod show;
mod sleeping;
pub(crate) mod slots;
mod socket_commands;
mod sources;
pub(crate) mod starved;
mod sweep;
pub(crate) mod tcp_info;
mod tcp_options;
mod tell;
mod turn;
mod urgent;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use towpath_pool::{Pool, Port};
use towpath_ring::EngineStatus;
use towpath_shm::Fd;
use towpath_stack::net::Conflict;
use towpath_stack::{SocketId, Stack};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::ResolverConfig;
use crate::ids::ChannelId;
use crate::lookout::Lookout;
use crate::mail::Notice;
use crate::poller::Poller;
use crate::shard::askers::Rounds;
use crate::shard::ends::Ends;
use crate::shard::filter_room::Filters;
use crate::shard::host::Host;
use crate::shard::leaving::Leaving;
use crate::shard::place::Peer;
use crate::shard::show::Listing;
use crate::shard::sources::{Source, Watch, watch_new};
use crate::shard::starved::Starved;

pub(crate) type OnConflict = Arc<dyn Fn(&Conflict) + Send + Sync>;
pub(crate) type DropTrace = Arc<dyn Fn(DroppedPacket<'_>) + Send + Sync>;

/// A packet that the stack threw away, for a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedPacket<'a> {
    /// When, in ns on the engine's clock.
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

/// The part of an engine that one thread turns at a time.
pub(crate) struct Shard {
    pub stack: Stack<Host>,
    pub host: Host,
    pub ports: Vec<Box<dyn Port + Send>>,
    pub pool: Pool,
    pub clock: Clock,
    /// The status page: whether the engine sleeps, and how long a datagram may be without a
    /// question.
    pub status: EngineStatus,
    pub poller: Poller<Source>,
    /// The other shards, each at the place of its number. Empty when it is alone.
    pub peers: Vec<Option<Peer>>,
    /// Bell that the other shards ring.
    pub bell: Option<Arc<Fd>>,
    /// How each port is watched.
    watched: Vec<Watch>,
    woken: Vec<Source>,
    /// When the descriptors were looked at last, and what was found.
    looked: Instant,
    /// The registry has something to say or to do.
    pub registry_calls: bool,
    /// Shards of the same thread that have something to do, a bit each.
    pub shards_call: u16,
    /// Its thread may be awake all the same, for other shards.
    pub is_asleep: bool,
    /// When it has something to do, as of its last turn. None: it waits for others.
    pub due: Option<Instant>,
    /// Turns in which there was nothing to do, until now.
    pub idle_turns: u32,
    /// The registry has told it something since it fell asleep.
    pub told: bool,
    pub lookout: Lookout,
    /// Value of the counter `work` at the end of the last turn.
    worked: u64,
    /// Notices that the registry is told next.
    pub notices: Vec<Notice>,
    pub rounds: Rounds,
    /// Processes with something that is done in portions. Ids are used again: one without it is
    /// passed over.
    pub to_go_on: VecDeque<ChannelId>,
    /// Holds that all of it may bring about.
    pub promised: usize,
    /// Clones by the time until which their processes have to begin: after that they are no longer
    /// given the sockets that their parents open.
    pub to_disinherit: VecDeque<(Instant, ChannelId)>,
    /// Channels of programs that run and have not said HELLO, by the time until which they may:
    /// after that they hold what they inherit.
    pub to_restrict: VecDeque<(Instant, ChannelId)>,
    pub listings: VecDeque<Listing>,
    /// The first slot of the next shard, with which a listing of all goes on.
    pub next_shard: Option<u32>,
    pub resolver: Option<ResolverConfig>,
    /// See [`crate::EngineConfig::names`].
    pub names: Arc<str>,
    /// Number under which the registry waits for the end of sending: there are no processes, or the
    /// engine ends with one that is gone.
    unused: Option<u64>,
    /// How far that is which they left to be sent; None until then.
    leaving: Option<Leaving>,
    /// The sockets that are waited for. None: all that there are.
    left_behind: Option<Vec<SocketId>>,
    pub leave_stalled: Duration,
    pub stopped: bool,
    pub ends: Ends,
    /// Processes that broke the rules of the channel. A process may stand here twice.
    pub to_cut_off: Vec<ChannelId>,
    /// Connections taken off an accept queue and not claimed: the time at which they are reset,
    /// their slots and generations.
    pub to_reset_unclaimed: VecDeque<(Instant, u32, u32)>,
    /// Sockets in messages that no process holds, by the time at which they are closed and their
    /// slots. The channel held the socket last; None once that is gone, because its id is used
    /// again.
    pub to_close_parked: BTreeMap<(Instant, u32), Option<ChannelId>>,
    /// Slots of sockets that are gone and that a thread is in still, and the channel of the
    /// thread's process.
    pub to_reuse: BTreeMap<u32, ChannelId>,
    /// Sockets whose programs wait for transmit memory.
    pub starved: Starved,
    /// Sockets of which not all holders have been told yet what happened.
    pub to_tell: VecDeque<Telling>,
    pub sweep_at: Instant,
    /// Datagram sockets with more to send than one turn may.
    pub to_send: VecDeque<u32>,
    pub filters: Filters,
    /// Datagram sockets whose FIFO lends bytes to packets of this turn.
    pub to_return: Vec<u32>,
    /// Closed sockets whose close(2) waits for the peer (SO_LINGER).
    pub to_tell_lingering: VecDeque<u32>,
    /// When the rest of `to_tell_lingering` is looked at, if there were too many for one turn.
    pub lingering_at: Option<Instant>,
    pub drop_trace: Option<DropTrace>,
    /// Listener for addresses that another host has as well.
    pub on_conflict: Option<OnConflict>,
}

/// A socket of which not all holders have been told yet what happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Telling {
    pub slot: u32,
    pub generation: u32,
    pub bits: u8,
    /// Holders that have not been told: the first ones. The last are told first. New holders are
    /// added at that end and look for themselves, and leaving ones move no other out of the rest.
    pub left: usize,
}

impl Shard {
    /// A shard without sockets, whose clock is the host's.
    pub fn new(
        stack: Stack<Host>,
        host: Host,
        (ports, status): (Vec<Box<dyn Port + Send>>, EngineStatus),
        clock: Clock,
    ) -> io::Result<Self> {
        let now = host.now;
        let (mut poller, mut watched) = (Poller::new()?, Vec::new());
        watch_new(&mut poller, &ports, &mut watched)?;
        Ok(Self {
            stack,
            host,
            ports,
            pool: Pool::default(),
            clock,
            status,
            poller,
            peers: Vec::new(),
            bell: None,
            watched,
            woken: Vec::new(),
            looked: Instant::ZERO,
            registry_calls: false,
            shards_call: 0,
            is_asleep: false,
            due: None,
            idle_turns: 0,
            told: false,
            lookout: Lookout::new(Duration::ZERO),
            worked: 0,
            notices: Vec::new(),
            rounds: Rounds::default(),
            to_go_on: VecDeque::new(),
            promised: 0,
            to_disinherit: VecDeque::new(),
            to_restrict: VecDeque::new(),
            listings: VecDeque::new(),
            next_shard: None,
            resolver: None,
            names: Arc::default(),
            unused: None,
            leaving: None,
            left_behind: None,
            leave_stalled: Duration::ZERO,
            stopped: false,
            ends: Ends::default(),
            to_cut_off: Vec::new(),
            to_reset_unclaimed: VecDeque::new(),
            to_close_parked: BTreeMap::new(),
            to_reuse: BTreeMap::new(),
            starved: Starved::new(now),
            to_tell: VecDeque::new(),
            sweep_at: now,
            to_send: VecDeque::new(),
            filters: Filters::default(),
            to_return: Vec::new(),
            to_tell_lingering: VecDeque::new(),
            lingering_at: None,
            drop_trace: None,
            on_conflict: None,
        })
    }
}
