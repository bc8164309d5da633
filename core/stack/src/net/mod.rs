//! The IP layer: from frames to transport packets for this host, and back. It knows no sockets.
//!
//! ```text
//!            receive()                                        send()
//!  frame ─► link ─► ip: validate ─► reassemble ─► local?    packet ─► ip header ─► fragment? ─► segment?
//!             │ arp    │ martians       │ quotas    │          │ checksum               │
//!             ▼        ▼                ▼           ▼          ▼                        ▼
//!         neighbor   drop()          reassembly   Received   loopback queue     neighbor ─► output()
//!                                                                 └─► receive_looped()
//! ```
//!
//! Reading order: [`receive`](Net::receive) in `receive.rs` and [`send`](Net::send) in `send.rs` are the
//! two paths, one page each; `received` is what the one gives, `ip` what the other is told. `iface`, `locals`, `route` and `next_hops` say what this host is and where
//! packets go, `learnt` what routers said about that, `mtu` how big packets may be. `neighbor` finds MAC
//! addresses by ARP and neighbour discovery, one state machine for both; `ndp` asks and answers for IPv6,
//! `slaac` listens to routers and makes addresses, `discovery` keeps what they said; `groups` has what was joined, and `membership` reports it.
//! `reassembly` and `fragment` are each other's inverse, `offload` does what a device cannot on the way out,
//! and `gro` is the same for the way in. `icmp` reads errors, `report` makes them, `error_limit` says how many.
//! `schedule` has what is to be done later, `timeouts` does it. Every limit is in `limits`.
//!
//! Budget: a TCP segment to an address of ours costs one hash lookup (its destination) on the way in and
//! one (its neighbour) on the way out, and no allocation.

mod arp;
mod control;
mod discovery;
mod error_limit;
mod fragment;
mod gro;
mod groups;
pub(crate) mod hash;
mod icmp;
mod ident;
mod iface;
mod ip;
mod learnt;
pub mod limits;
mod locals;
mod lru;
mod membership;
pub(crate) mod mtu;
mod ndp;
mod neighbor;
mod next_hops;
mod offload;
mod reachable;
mod reassembly;
mod receive;
mod received;
mod report;
mod route;
mod schedule;
mod send;
mod slaac;
#[cfg(test)]
mod tests;
mod timeouts;
mod trace;

use std::collections::VecDeque;

use towpath_pool::Batch;
use towpath_tcp::Instant;

use error_limit::ErrorLimit;
use hash::{Keyed, Random};
use ident::Idents;
use locals::Locals;
use mtu::PathMtus;
use neighbor::Neighbors;
use reachable::Confirmed;
use reassembly::Reassembly;
use route::RouteTable;
use schedule::Schedule;

pub use gro::coalesce;
pub use iface::{Address, AddressState, IfaceId, Interface, InterfaceConfig, Origin};
pub use ip::{Fragmenting, Ip};
pub use neighbor::{Neighbor, NeighborState};
pub use offload::verify_transport;
pub use received::{Echo, IcmpError, Local, Looped, Received};
pub use report::Unreachable;
pub use route::{Route, RouteEntry, RouteError};
pub use send::{EchoOut, SendError};
pub use trace::{Dropped, NetCounters};

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
}

/// The IP layer of one host. See the [module](self).
///
/// The owner calls [`receive`](Self::receive) for each packet of a device and
/// [`receive_looped`](Self::receive_looped) for each of [`take_loopback`](Self::take_loopback), submits
/// [`output`](Self::output) to the devices, and calls [`on_timeout`](Self::on_timeout) when
/// [`next_timeout`](Self::next_timeout) has come. Packets that stay queued over the end of a turn need
/// [`settle`](Self::settle).
#[derive(Debug)]
pub struct Net {
    config: NetConfig,
    /// What happened so far.
    pub counters: NetCounters,
    ifaces: Vec<Interface>,
    locals: Locals,
    routes: RouteTable,
    mtus: PathMtus,
    neighbors: Neighbors,
    confirmed: Option<Confirmed>,
    reassembly: Reassembly,
    idents: Idents,
    error_limit: ErrorLimit,
    schedule: Schedule,
    interface_ids: Keyed,
    random: Random,
    loopback: VecDeque<Looped>,
    dropped: VecDeque<Dropped>,
    errors: VecDeque<IcmpError>,
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
}
