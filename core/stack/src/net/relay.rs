//! Exchange of messages between the IP layers of a host's shards (stacks). The first shard receives
//! messages for the control part from the other shards, and sends them neighbour updates. The
//! caller transports the messages.

use towpath_pool::Pool;
use towpath_tcp::Instant;

use super::control_access::{ControlAccess, Shared};
use super::layer::Net;
use super::messages::{ControlPacket, DataReport, HopKey, NeighborUpdate, Parts, ToControl};
use crate::drop::DropReason;

impl Net {
    /// Adopts the newest snapshot of the configuration. A single stack always uses the newest one.
    #[inline]
    pub fn catch_up(&mut self) {
        let (ControlAccess::First(shared) | ControlAccess::Other(shared)) = &self.seat else {
            return;
        };
        let snapshots = shared.snapshots();
        if snapshots != self.seen {
            self.seen = snapshots;
            self.data.follow(&shared.snapshot());
        }
    }

    /// Adopts the newest configuration snapshot before a batch of packets. If another thread holds
    /// the lock of the snapshot, it is adopted before the next batch instead.
    #[inline]
    pub(crate) fn catch_up_if_free(&mut self) {
        let (ControlAccess::First(shared) | ControlAccess::Other(shared)) = &self.seat else {
            return;
        };
        self.hurries_seen = shared.hurries();
        let snapshots = shared.snapshots();
        if snapshots != self.seen
            && let Some(snapshot) = shared.snapshot_if_free(self.data.here().links.len())
        {
            self.seen = snapshots;
            self.data.follow(&snapshot);
        }
    }

    /// Returns whether this shard has work about which it received no message. Either the control
    /// part of the IP layer got an earlier deadline, or routes have changed.
    #[inline]
    pub(crate) fn has_unseen(&self) -> bool {
        let routes = |shared: &Shared| shared.routes() != self.data.snapshot.generation;
        match &self.seat {
            ControlAccess::Alone(_) => false,
            ControlAccess::First(shared) => routes(shared) || shared.hurries() != self.hurries_seen,
            ControlAccess::Other(shared) => routes(shared),
        }
    }

    /// Returns whether there are messages for other shards of this host.
    #[inline]
    pub(crate) fn has_for_others(&self) -> bool {
        match self.seat {
            ControlAccess::Alone(_) => false,
            ControlAccess::First(_) => {
                !self.news.is_empty() || self.woken_for != self.route_generation()
            }
            ControlAccess::Other(_) => self.data.has_told() || self.hurries_first,
        }
    }

    /// Removes and returns the next message for the first shard. Returns `None` in the first shard
    /// itself.
    pub(crate) fn take_for_control(&mut self, pool: &mut Pool) -> Option<ToControl> {
        if !matches!(self.seat, ControlAccess::Other(_)) {
            return None;
        }
        if let Some(mut punt) = self.data.take_control_packet() {
            // Copy the payload into the packet. The payload may be in a send buffer, which only
            // this thread may access.
            punt.packet_mut().linearize(pool);
            return Some(ToControl::Punt(Box::new(punt)));
        }
        self.data.take_report().map(ToControl::Notice)
    }

    /// Drops all packets for the control part, because the queue to the first shard is full.
    pub(crate) fn drop_for_control(&mut self, pool: &mut Pool) {
        while let Some(punt) = self.data.take_control_packet() {
            self.drop_control_packet(punt, pool);
        }
    }

    fn drop_control_packet(&mut self, punt: ControlPacket, pool: &mut Pool) {
        let (iface, packet) = punt.into_packet();
        self.data.drop(iface, packet, DropReason::ShardFull, pool);
    }

    /// Handles a message that the first shard received from the shard `from`.
    pub(crate) fn on_told(&mut self, now: Instant, from: u8, told: ToControl, pool: &mut Pool) {
        let by = Parts::one(from);
        match (told, &self.seat) {
            (ToControl::Punt(punt), ControlAccess::First(_)) => self.data.punts.push_back(*punt),
            (ToControl::Punt(punt), _) => self.drop_control_packet(*punt, pool),
            (ToControl::Notice(DataReport::TooBig { way, mtu }), _) => {
                if let Some(mtu) = self.data.hear_path_mtu(now, way, mtu) {
                    let others = Parts::OTHERS.without(by);
                    self.news.push_back((others, NeighborUpdate::TooBig { way, mtu }));
                }
            }
            (ToControl::Notice(notice), ControlAccess::First(shared)) => {
                shared.with(|control| control.on_report(now, by, notice, pool));
            }
            (ToControl::Notice(_), _) => {}
        }
        self.exchange(now, pool);
    }

    /// Sends a path MTU that a socket of this shard has accepted to all shards.
    ///
    /// An attacker that knows a socket's port can forge reports about many new paths, each of which
    /// causes work in all shards. The rate is therefore limited. Further path MTUs are sent when a
    /// router reports them again.
    pub(super) fn share_path_mtu(&mut self, now: Instant, way: HopKey, mtu: u32) {
        if matches!(self.seat, ControlAccess::Alone(_)) {
            return;
        }
        let mut told = self.data.mtus.may_tell(now);
        if !told {
            self.data.counters.path_mtus_untold += 1;
        } else if matches!(self.seat, ControlAccess::First(_)) {
            self.news.push_back((Parts::OTHERS, NeighborUpdate::TooBig { way, mtu }));
        } else {
            told = self.data.next_hops.tell(DataReport::TooBig { way, mtu });
        }
        if !told {
            self.data.mtus.set_untold(way);
        }
    }

    /// Removes and returns the next neighbour update that the first shard must send, and the set of
    /// shards that need it.
    pub(crate) fn take_neighbor_update(&mut self) -> Option<(Parts, NeighborUpdate)> {
        self.news.pop_front()
    }

    /// Handles a neighbour update that the first shard sent to this shard.
    pub(crate) fn on_neighbor_update(
        &mut self,
        now: Instant,
        news: NeighborUpdate,
        pool: &mut Pool,
    ) {
        self.data.on_neighbor_update(now, news, pool);
        self.data.clear_up(pool);
    }

    /// Returns the set of shards (stacks) to be woken, and clears the set. Changed routes wake all
    /// other shards, because their connections may wait for a device that their new route does not
    /// use. Reports for the control part wake the first shard.
    pub(crate) fn take_wakes(&mut self) -> Parts {
        let generation = self.data.snapshot.generation;
        match self.seat {
            ControlAccess::First(_) if self.woken_for != generation => {
                self.woken_for = generation;
                Parts::OTHERS
            }
            ControlAccess::Other(_) if core::mem::take(&mut self.hurries_first) => Parts::FIRST,
            _ => Parts::NONE,
        }
    }
}
