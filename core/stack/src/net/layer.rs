//! What the IP layer of a host consists of. What it does with that is in the files that add to [`Net`], of which
//! this one uses none, but for adding the loopback interface.

use std::collections::VecDeque;

use towpath_pool::{Batch, Packet, Pool};
use towpath_tcp::Instant;

use super::confirmed::Confirmed;
use super::error_limit::ErrorLimit;
use super::hash::{self, Keyed, Random};
use super::ident::Idents;
use super::iface::{IfaceId, Interface};
use super::limits::DROPPED_MAX;
use super::locals::Locals;
use super::mtu::PathMtus;
use super::neighbor::Neighbors;
use super::reassembly::Reassembly;
use super::received::{IcmpError, Looped};
use super::route::RouteTable;
use super::schedule::Schedule;
use super::trace::{Dropped, NetCounters};
use crate::drop::DropReason;

/// What the owner of a [`Net`] decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Keep copies of dropped packets for [`Net::take_dropped`].
    pub trace_drops: bool,
}

impl Default for NetConfig {
    /// No trace.
    fn default() -> Self {
        Self { trace_drops: false }
    }
}

/// Secrets, random and from outside: they make identifiers unpredictable and tables immune to
/// chosen keys. The same keys give the same run.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Hashes tables.
    pub tables: [u64; 2],
    /// Makes IP identifications.
    pub idents: [u64; 2],
    /// Makes interface identifiers (RFC 7217): keep it over restarts to keep addresses.
    pub interface_ids: [u64; 2],
    /// Seeds jitter.
    pub random: u64,
}

impl Keys {
    /// All keys from one secret.
    pub fn derive(seed: &[u8; 32]) -> Self {
        let key = |label: u64| hash::derive(seed, b"", label);
        Self {
            tables: [key(1), key(2)],
            idents: [key(3), key(4)],
            interface_ids: [key(5), key(6)],
            random: key(7),
        }
    }

    /// Those of one of several stacks that are one host: its identifications are not those of the others.
    pub(crate) fn of_shard(self, shard: u8) -> Self {
        let [first, second] = self.idents;
        let idents = [first, second ^ u64::from(shard)];
        Self { idents, random: self.random ^ u64::from(shard), ..self }
    }
}

/// The IP layer of one host. See the [module](super).
///
/// The owner calls [`receive`](Self::receive) for each packet of a device and
/// [`receive_looped`](Self::receive_looped) for each of [`take_loopback`](Self::take_loopback), submits
/// [`output`](Self::output) to the devices, and calls [`on_timeout`](Self::on_timeout) when
/// [`next_timeout`](Self::next_timeout) has come. Packets that stay queued over the end of a turn need
/// [`settle`](Self::settle).
#[derive(Debug)]
pub struct Net {
    pub(super) config: NetConfig,
    /// What happened so far.
    pub counters: NetCounters,
    pub(super) ifaces: Vec<Interface>,
    pub(super) locals: Locals,
    pub(super) routes: RouteTable,
    pub(super) mtus: PathMtus,
    pub(super) neighbors: Neighbors,
    pub(super) confirmed: Option<Confirmed>,
    pub(super) reassembly: Reassembly,
    pub(super) idents: Idents,
    pub(super) error_limit: ErrorLimit,
    pub(super) schedule: Schedule,
    pub(super) interface_ids: Keyed,
    pub(super) random: Random,
    pub(super) loopback: VecDeque<Looped>,
    pub(super) dropped: VecDeque<Dropped>,
    pub(super) errors: VecDeque<IcmpError>,
}

impl Net {
    /// A host with nothing but the loopback interface.
    pub fn new(config: NetConfig, keys: Keys, now: Instant) -> Self {
        let tables = Keyed(keys.tables);
        let mut net = Self {
            config,
            counters: NetCounters::default(),
            ifaces: Vec::new(),
            locals: Locals::default(),
            routes: RouteTable::new(tables),
            mtus: PathMtus::new(tables),
            neighbors: Neighbors::new(tables),
            confirmed: None,
            reassembly: Reassembly::new(tables),
            idents: Idents::new(Keyed(keys.idents)),
            error_limit: ErrorLimit::new(tables, now),
            schedule: Schedule::default(),
            interface_ids: Keyed(keys.interface_ids),
            random: Random::new(keys.random),
            loopback: VecDeque::new(),
            dropped: VecDeque::new(),
            errors: VecDeque::new(),
        };
        net.add_loopback(now);
        net
    }

    /// Packets that the device of `iface` shall send, in order. They must be taken from the front; what stays is
    /// offered again. Panics when there is no such interface.
    pub fn output(&mut self, iface: IfaceId) -> &mut Batch {
        &mut self.ifaces[iface.index()].output
    }

    /// Packets that wait for the device of `iface`.
    #[inline]
    pub(crate) fn output_len(&self, iface: IfaceId) -> usize {
        self.ifaces.get(iface.index()).map_or(0, |iface| iface.output.len())
    }

    /// Packets on their way out: those that a device did not take yet, and those whose neighbour is asked.
    pub fn waiting(&self) -> usize {
        let output = self.ifaces.iter().map(|iface| iface.output.len());
        output.sum::<usize>() + self.neighbors.waiting()
    }

    /// Packets of this host to itself that wait to be received.
    pub fn loopback_len(&self) -> usize {
        self.loopback.len()
    }

    /// The next packet of this host to itself; it goes to [`receive_looped`](Self::receive_looped).
    pub fn take_loopback(&mut self) -> Option<Looped> {
        self.loopback.pop_front()
    }

    /// The next error about a packet that never left this host: its neighbour does not answer.
    pub fn take_error(&mut self) -> Option<IcmpError> {
        self.errors.pop_front()
    }

    /// Throws a packet away: counts why, and keeps a copy when drops are traced.
    pub fn drop(&mut self, iface: IfaceId, packet: Packet, reason: DropReason, pool: &mut Pool) {
        self.counters.drops.count(reason);
        if self.config.trace_drops && self.dropped.len() < DROPPED_MAX {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(0, &mut bytes);
            let arrival_ns = packet.meta.arrival_ns;
            self.dropped.push_back(Dropped { iface, reason, arrival_ns, bytes });
        }
        pool.give(packet);
    }

    /// The oldest traced drop not yet taken.
    pub fn take_dropped(&mut self) -> Option<Dropped> {
        self.dropped.pop_front()
    }

    /// Whether dropped packets are kept from now on.
    pub fn set_trace_drops(&mut self, on: bool) {
        self.config.trace_drops = on;
    }
}
