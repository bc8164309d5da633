//! State of the data part. Other files of this folder add methods to [`Data`].

use std::collections::VecDeque;
use std::sync::Arc;

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;

use super::error_limit::ErrorLimit;
use super::hooks::{PacketHooks, Tracker};
use super::ident::Idents;
use super::mtu::PathMtus;
use super::next_hop::NextHops;
use super::output::Output;
use super::plans::Plans;
use super::reassembly::Reassembly;
use super::redirect_limit::RedirectLimit;
use crate::drop::DropReason;
use crate::net::config::{Forwarding, NetConfig};
use crate::net::hash::{Cheap, Keyed, Random};
use crate::net::iface::IfaceId;
use crate::net::keys::Keys;
use crate::net::limits::DROPPED_MAX;
use crate::net::messages::{ControlPacket, DataReport};
use crate::net::received::{IcmpError, Looped};
use crate::net::snapshot::{Host, Link, Snapshot};
use crate::net::trace::{DataCounters, DroppedCopy, Traffic};

/// Data part of the IP layer [`Net`](crate::net::Net). The data part receives and sends packets,
/// using the last [`Snapshot`] of the configuration. The [module](super) has an overview.
#[derive(Debug)]
pub(in crate::net) struct Data {
    /// Settings and state of packet forwarding; `None` on a host that does not forward packets.
    pub(super) forwarding: Option<Forwarding>,
    /// Number of shards of the host.
    pub(in crate::net) shards: usize,
    pub(in crate::net) hooks: PacketHooks,
    /// Whether copies of dropped packets are kept.
    pub(super) trace_drops: bool,
    pub(in crate::net) counters: DataCounters,
    pub(in crate::net) snapshot: Arc<Snapshot>,
    pub(in crate::net) next_hops: NextHops,
    pub(in crate::net) mtus: PathMtus,
    pub(in crate::net) reassembly: Reassembly,
    pub(super) idents: Idents,
    pub(super) error_limit: ErrorLimit,
    pub(super) redirects: RedirectLimit,
    pub(super) random: Random,
    /// Output queue of each interface, by its index.
    pub(in crate::net) outputs: Vec<Output>,
    /// Traffic counters of each interface, by its index.
    pub(in crate::net) traffic: Vec<Traffic>,
    pub(in crate::net) loopback: VecDeque<Looped>,
    pub(in crate::net) dropped: VecDeque<DroppedCopy>,
    pub(in crate::net) errors: VecDeque<IcmpError>,
    pub(in crate::net) punts: VecDeque<ControlPacket>,
    /// Plans for forwarding the next packets of a batch. The plans are valid only for the current
    /// `snapshot`.
    pub(super) plans: Plans,
}

impl Data {
    /// Creates the data part of shard number `n`, without configuration. Each shard has its own
    /// keys, so that packets of one shard do not reveal the IP identifications of another shard.
    /// Limits of the whole host are divided by the number of `shards`.
    pub(in crate::net) fn new(
        config: NetConfig,
        keys: &Keys,
        now: Instant,
        n: usize,
        shards: usize,
    ) -> Self {
        let tables = Keyed(keys.tables);
        Self {
            forwarding: config.forwarding,
            shards,
            hooks: PacketHooks::new(n),
            trace_drops: config.trace_drops,
            counters: DataCounters::default(),
            snapshot: Arc::new(Snapshot::empty(Cheap(keys.addresses))),
            next_hops: NextHops::new(tables, config.neighbors(), shards),
            mtus: PathMtus::new(tables, shards),
            reassembly: Reassembly::new(tables),
            idents: Idents::new(Keyed(keys.idents), n, shards),
            error_limit: ErrorLimit::new(tables, now, shards as u64),
            redirects: RedirectLimit::new(tables),
            random: Random::new(keys.error_limit),
            outputs: Vec::new(),
            traffic: Vec::new(),
            loopback: VecDeque::new(),
            dropped: VecDeque::new(),
            errors: VecDeque::new(),
            punts: VecDeque::new(),
            plans: Plans::default(),
        }
    }

    /// Replaces the configuration snapshot that this shard uses.
    #[inline]
    pub(in crate::net) fn follow(&mut self, snapshot: &Arc<Snapshot>) {
        // Called for each packet; changes are rare.
        if !Arc::ptr_eq(&self.snapshot, snapshot) {
            self.adopt(snapshot);
        }
    }

    #[cold]
    fn adopt(&mut self, snapshot: &Arc<Snapshot>) {
        let before = std::mem::replace(&mut self.snapshot, Arc::clone(snapshot));
        let is_other_host = !Arc::ptr_eq(&before.host, &snapshot.host);
        self.hooks.set_rules(snapshot.rules.clone());
        self.plans.clear();
        let count = self.snapshot.host.links.len();
        self.outputs.resize_with(count, Output::default);
        self.traffic.resize(count, Traffic::default());
        let links = before.host.links.iter().zip(&self.snapshot.host.links);
        for ((before, now), traffic) in links.zip(&mut self.traffic) {
            if before.added_at != now.added_at {
                *traffic = Traffic::default();
            }
        }
        if is_other_host {
            self.notify_tracker();
        }
    }

    /// Replaces the packet tracker, such as NAT; `None` removes it.
    pub(in crate::net) fn set_tracker(&mut self, tracker: Option<Box<dyn Tracker>>) {
        self.hooks.set_tracker(tracker);
        self.plans.clear();
        self.notify_tracker();
    }

    /// Notifies the tracker of the addresses in the snapshot.
    fn notify_tracker(&mut self) {
        let Some(tracker) = self.hooks.tracker_mut() else { return };
        let of_link = |link: &Link| {
            let usable = link.addresses.iter().filter(|address| address.is_usable());
            let id = link.id;
            usable.map(move |address| (id, address.addr())).collect::<Vec<_>>()
        };
        let addresses: Vec<_> = self.snapshot.host.links.iter().flat_map(of_link).collect();
        tracker.on_addresses(&addresses);
    }

    /// Returns the tracker, if its type is `T`.
    pub(in crate::net) fn tracker_mut<T: Tracker>(&mut self) -> Option<&mut T> {
        let tracker: &mut dyn core::any::Any = self.hooks.tracker_mut()?;
        tracker.downcast_mut()
    }

    /// Returns whether packets or reports for the control part are queued.
    #[inline]
    pub(in crate::net) fn has_told(&self) -> bool {
        !self.punts.is_empty() || self.next_hops.has_reports()
    }

    /// Removes and returns the oldest packet for the control part.
    #[inline]
    pub(in crate::net) fn take_control_packet(&mut self) -> Option<ControlPacket> {
        self.punts.pop_front()
    }

    /// Removes and returns the oldest report for the control part.
    #[inline]
    pub(in crate::net) fn take_report(&mut self) -> Option<DataReport> {
        self.next_hops.take_report()
    }

    /// Returns the interfaces and addresses in the current snapshot.
    #[inline]
    pub(in crate::net) fn here(&self) -> &Host {
        &self.snapshot.host
    }

    /// Returns an interface of the current snapshot.
    #[inline]
    pub(in crate::net) fn link(&self, iface: IfaceId) -> &Link {
        &self.snapshot.host.links[iface.index()]
    }

    /// Sets whether copies of dropped packets are kept.
    pub(in crate::net) fn set_trace_drops(&mut self, on: bool) {
        self.trace_drops = on;
    }

    /// Drops a packet: counts the reason, and keeps a copy if drops are traced.
    pub(in crate::net) fn drop(
        &mut self,
        iface: IfaceId,
        packet: Packet,
        reason: DropReason,
        pool: &mut Pool,
    ) {
        self.counters.drops.count(reason);
        if let Some(traffic) = self.traffic.get_mut(iface.index()) {
            let dropped = match reason.is_outbound() {
                true => &mut traffic.tx_dropped,
                false => &mut traffic.rx_dropped,
            };
            *dropped += 1;
        }
        if self.trace_drops && self.dropped.len() < DROPPED_MAX {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(0, &mut bytes);
            let arrival_ns = packet.meta.arrival_ns;
            self.dropped.push_back(DroppedCopy { iface, reason, arrival_ns, bytes });
        }
        pool.give(packet);
    }
}
