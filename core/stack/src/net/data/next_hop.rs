//! Table of next hops in the data part, with an entry for each host or router that this host sends
//! packets to. An entry has either the link header, or the packets that wait for the neighbour's
//! MAC address.
//!
//! ```text
//!   UNKNOWN ──used──► ASKED ──known──► READY ─┐ used at `tell_at` or later: reported, and used
//!      ▲                │                │  ▲─┘
//!      └────────────────┴────────────────┘
//!             failed, forgotten
//! ```
//!
//! Only control knows whether a neighbour is reachable. The data part reports by a [`DataReport`]
//! that packets are sent to the neighbour. Control answers by a
//! [`NeighborUpdate`](crate::net::messages::NeighborUpdate) with the MAC address, and the time
//! `tell_at` from which uses must be reported again. Packets before this time need no report and no
//! hash computation.
//!
//! Cached routes contain a [`HopId`]. The identifier is valid until its entry is reused for another
//! next hop, even if the neighbour's MAC address changes.

use core::net::IpAddr;
use core::num::NonZeroU16;
use core::time::Duration;
use std::collections::VecDeque;

use hashbrown::HashMap;
use towpath_pool::Packet;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use crate::drop::DropReason;
use crate::net::hash::Keyed;
use crate::net::iface::IfaceId;
use crate::net::limits::{
    NEIGHBOR_PACKET_COST, NEIGHBOR_QUEUE_BYTES_MAX, NEIGHBOR_QUEUES_BYTES_MAX,
    NEIGHBOR_REPORTS_MAX, NEIGHBORS_MOST,
};
use crate::net::link_header::LinkHeader;
use crate::net::messages::{DataReport, HopKey};
use crate::net::route::{Epoch, HopId};

/// An IP packet without link header that waits for the MAC address of its next hop.
/// `Data::transmit` later divides the packet into segments or fragments of at most `mtu` bytes.
#[derive(Debug)]
pub(super) struct Waiting {
    pub packet: Packet,
    pub mtu: u32,
}

impl Waiting {
    fn cost(&self) -> usize {
        self.packet.len() + NEIGHBOR_PACKET_COST
    }
}

/// State of knowledge about the MAC address of a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HopState {
    /// The MAC address is not known. No packet was sent to this next hop since the entry was
    /// created or the address was lost.
    Unknown,
    /// The control part of the IP layer was notified that a packet needs the MAC address. Packets
    /// wait until the address is known.
    Asked,
    Ready {
        link: LinkHeader,
        /// Time from which on the next packet to this next hop is reported to the control part of
        /// the IP layer.
        tell_at: Instant,
    },
}

#[derive(Debug)]
struct HopSlot {
    key: HopKey,
    /// Epoch in which this entry was assigned to the next hop. Identifiers from earlier epochs
    /// refer to another next hop.
    since: Epoch,
    state: HopState,
    /// Whether a packet was sent to this next hop, or a route to it was cached, since the entry was
    /// last considered for eviction.
    used: bool,
    /// Time from which the next confirmation of reachability is reported to the control part.
    confirm_at: Instant,
    queue: Queue,
}

/// Minimum time between two confirmations of reachability that are reported to the control part of
/// the IP layer. A confirmed neighbour is REACHABLE for 15 to 45 s (RFC 4861 §10), so one
/// confirmation per second is enough.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);

/// Packets that wait for the MAC address of a next hop, the oldest first.
#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Waiting>,
    /// Sum of the packets' lengths in bytes, plus [`NEIGHBOR_PACKET_COST`] for each packet.
    cost: usize,
}

impl Queue {
    fn push(&mut self, waiting: Waiting) {
        self.cost += waiting.cost();
        self.packets.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.packets.pop_front()?;
        self.cost -= waiting.cost();
        Some(waiting)
    }

    /// Removes and returns all packets, and subtracts their cost from the sum `queued`.
    fn take(&mut self, queued: &mut usize) -> VecDeque<Waiting> {
        *queued -= core::mem::take(&mut self.cost);
        core::mem::take(&mut self.packets)
    }
}

/// A packet that was dropped because a queue was full, with its interface and the reason for the
/// drop.
pub(super) type Gone = (IfaceId, Packet, DropReason);

/// Table of the hosts and routers to which packets are sent.
#[derive(Debug)]
pub(in crate::net) struct NextHops {
    index: HashMap<HopKey, u16, Keyed>,
    /// Indices of recently used entries, at the position that [`recent_slot`] computes. A router
    /// sends many packets to few next hops, and finds their entries here without computing a keyed
    /// hash.
    recent: [u16; RECENT],
    places: Vec<HopSlot>,
    /// Index of the entry at which the next search for an entry to evict begins.
    hand: usize,
    epoch: Epoch,
    /// Sum of the costs in bytes of all packets that wait for MAC addresses.
    queued: usize,
    /// Maximum of `queued`: this data part's fraction of [`NEIGHBOR_QUEUES_BYTES_MAX`].
    queued_max: usize,
    /// Maximum number of entries in the table.
    places_max: usize,
    /// Reports about next hops that wait to be sent to the control part; at most
    /// [`NEIGHBOR_REPORTS_MAX`].
    notices: VecDeque<DataReport>,
    /// Failed router that was last reported as avoided, and the time from which it is reported
    /// again. A packet avoids a failed router by using another route.
    avoided: Option<(HopKey, Instant)>,
    gone: VecDeque<Gone>,
    displaced: u64,
    /// Number of reports to the control part of the IP layer that were lost because the queue was
    /// full.
    untold: u64,
    /// Number of keyed hashes that were computed, for tests.
    #[cfg(test)]
    pub(in crate::net) hashes: u64,
}

impl NextHops {
    /// Creates the table of one of `shards` data parts, with at most `places_max` entries.
    pub(super) fn new(keys: Keyed, places_max: usize, shards: usize) -> Self {
        Self {
            index: HashMap::with_hasher(keys),
            recent: [0; RECENT],
            places: Vec::new(),
            hand: 0,
            epoch: Epoch::default(),
            queued: 0,
            queued_max: NEIGHBOR_QUEUES_BYTES_MAX / shards,
            places_max,
            notices: VecDeque::new(),
            avoided: None,
            gone: VecDeque::new(),
            displaced: 0,
            untold: 0,
            #[cfg(test)]
            hashes: 0,
        }
    }

    /// Returns the identifier of a next hop, and creates an entry for it if necessary.
    pub(in crate::net) fn at(&mut self, key: HopKey) -> HopId {
        let slot = recent_slot(&key);
        let recent = self.recent[slot];
        let is_there = self.places.get(usize::from(recent)).is_some_and(|place| place.key == key);
        let index = if is_there { recent } else { self.find(key) };
        self.recent[slot] = index;
        let place = &mut self.places[usize::from(index)];
        place.used = true;
        let number = NonZeroU16::MIN.saturating_add(index);
        HopId { place: number, epoch: self.epoch }
    }

    /// Finds the entry of a next hop by its hash, and creates it if necessary. Returns its index.
    fn find(&mut self, key: HopKey) -> u16 {
        #[cfg(test)]
        {
            self.hashes += 1;
        }
        match self.index.get(&key) {
            Some(index) => *index,
            None => self.begin(key),
        }
    }

    fn begin(&mut self, key: HopKey) -> u16 {
        let index = match self.places.len() {
            len if len < self.places_max => {
                self.places.push(HopSlot {
                    key,
                    since: self.epoch,
                    state: HopState::Unknown,
                    used: true,
                    confirm_at: Instant::ZERO,
                    queue: Queue::default(),
                });
                len
            }
            _ => self.give_up_one(key),
        };
        self.index.insert(key, index as u16);
        index as u16
    }

    /// Evicts a next hop that was not used recently, and assigns its entry to `key` (clock
    /// algorithm). An entry that was used since the previous search is skipped once. A program that
    /// sends to many addresses therefore cannot evict a next hop that is constantly in use. A
    /// search visits each entry at most twice; the amortized cost is constant.
    fn give_up_one(&mut self, key: HopKey) -> usize {
        while core::mem::take(&mut self.places[self.hand].used) {
            self.hand = (self.hand + 1) % self.places.len();
        }
        let index = self.hand;
        self.hand = (self.hand + 1) % self.places.len();
        let since = self.begin_epoch();
        let place = &mut self.places[index];
        let packets = place.queue.take(&mut self.queued);
        let full = DropReason::NeighborQueueFull;
        self.gone.extend(packets.into_iter().map(|waiting| (place.key.0, waiting.packet, full)));
        self.index.remove(&place.key);
        let (state, confirm_at) = (HopState::Unknown, Instant::ZERO);
        *place = HopSlot { key, since, state, used: true, confirm_at, queue: Queue::default() };
        self.displaced += 1;
        index
    }

    /// Starts a new epoch, because of a change that invalidates cached next hops.
    pub(in crate::net) fn begin_epoch(&mut self) -> Epoch {
        self.epoch = self.epoch.next();
        self.epoch
    }

    /// Returns whether `epoch` is not earlier than `since`.
    #[inline]
    pub(in crate::net) fn is_since(&self, epoch: Epoch, since: Epoch) -> bool {
        epoch.age(self.epoch) <= since.age(self.epoch)
    }

    pub(in crate::net) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the interface and the address of a next hop; `None` if the identifier is no longer
    /// valid.
    #[inline]
    pub(in crate::net) fn key(&self, id: HopId) -> Option<HopKey> {
        let place = self.places.get(index(id))?;
        self.is_since(id.epoch, place.since).then_some(place.key)
    }

    /// Returns the link header for a packet to a next hop; `None` if the packet must wait for the
    /// MAC address.
    #[inline]
    pub(super) fn link(&mut self, now: Instant, id: HopId) -> Option<LinkHeader> {
        self.key(id)?;
        let place = &mut self.places[index(id)];
        place.used = true;
        match &mut place.state {
            HopState::Ready { link, tell_at } => {
                let (link, is_due) = (*link, now >= *tell_at);
                let used = DataReport::Used(place.key);
                // If the report queue is full, the use could not be reported. Keep `tell_at`, so
                // that the next packet to this next hop tries again.
                if is_due
                    && self.tell(used)
                    && let HopState::Ready { tell_at, .. } = &mut self.places[index(id)].state
                {
                    *tell_at = Instant::FAR;
                }
                Some(link)
            }
            HopState::Asked => None,
            HopState::Unknown => {
                // If the report queue is full, the use could not be reported. Keep the state, so
                // that the next packet tries again; this packet is dropped.
                let used = DataReport::Used(place.key);
                if self.tell(used) {
                    self.places[index(id)].state = HopState::Asked;
                }
                None
            }
        }
    }

    /// Returns the link header of a recently used next hop, without computing a hash. Returns
    /// `None` if the next hop is not found this way, or its use must be reported. The caller then
    /// uses [`link`](Self::link).
    #[inline]
    pub(super) fn ready(&mut self, now: Instant, key: &HopKey) -> Option<LinkHeader> {
        let recent = usize::from(self.recent[recent_slot(key)]);
        let place = self.places.get_mut(recent).filter(|place| place.key == *key)?;
        match place.state {
            HopState::Ready { link, tell_at } if now < tell_at => {
                place.used = true;
                Some(link)
            }
            _ => None,
        }
    }

    /// Reports to the control part of the IP layer that a next hop is reachable, because TCP made
    /// progress through it (RFC 4861 §7.3.1).
    #[inline]
    pub(in crate::net) fn confirm(&mut self, now: Instant, id: HopId) {
        let Some(key) = self.key(id) else { return };
        let place = &self.places[index(id)];
        if let HopState::Ready { link, .. } = &place.state
            && now >= place.confirm_at
        {
            let confirmed = DataReport::Confirmed { key, mac: link.dst() };
            if self.tell(confirmed) {
                self.places[index(id)].confirm_at = now + CONFIRM_INTERVAL;
            }
        }
    }

    /// Reports to the control part that a packet uses another route because `router` has failed, so
    /// that the control part probes `router` now.
    pub(super) fn on_avoided(&mut self, now: Instant, router: HopKey) {
        // The control part may run on another thread, and take some time to answer. Until then, do
        // not report the same router for each packet.
        if self.avoided.is_some_and(|(last, again)| last == router && now < again) {
            return;
        }
        if self.tell(DataReport::Avoided(router)) {
            self.avoided = Some((router, now + CONFIRM_INTERVAL));
        }
    }

    /// Queues a packet until the neighbour's MAC address is known. Packets evicted from a full
    /// queue go to [`take_gone`](Self::take_gone). The newest packet of each neighbour is kept,
    /// unless the limit on all queues together is reached.
    //= https://www.rfc-editor.org/rfc/rfc1122#section-2.3.2.2
    //# The link layer SHOULD save (rather than discard) at least
    //# one (the latest) packet of each set of packets destined to
    //# the same unresolved IP address, and transmit the saved
    //# packet when the address has been resolved.
    pub(super) fn enqueue(&mut self, id: HopId, waiting: Waiting) {
        let full = DropReason::NeighborQueueFull;
        let Some(HopSlot { key, queue, state, .. }) = self.places.get_mut(index(id)) else {
            return;
        };
        if *state == HopState::Unknown {
            return self.gone.push_back((key.0, waiting.packet, full));
        }
        let before = queue.cost;
        queue.push(waiting);
        while queue.cost > NEIGHBOR_QUEUE_BYTES_MAX && queue.packets.len() > 1 {
            self.gone.extend(queue.pop().map(|waiting| (key.0, waiting.packet, full)));
        }
        self.queued = self.queued - before + queue.cost;
        while self.queued > self.queued_max {
            self.drop_from_longest();
        }
    }

    /// Drops the oldest packet from the longest queue of a next hop. A program that sends to hosts
    /// that do not answer therefore loses its own packets, and not those of other programs.
    fn drop_from_longest(&mut self) {
        let longest = self.places.iter_mut().max_by_key(|place| place.queue.cost);
        let Some(HopSlot { key, queue, .. }) = longest else { return };
        let before = queue.cost;
        let Some(waiting) = queue.pop() else { return };
        self.queued -= before - queue.cost;
        self.gone.push_back((key.0, waiting.packet, DropReason::NeighborQueuesFull));
    }

    /// Sets the link header of a next hop whose MAC address is now known. Returns the packets that
    /// waited for the address.
    pub(super) fn on_known(
        &mut self,
        key: HopKey,
        link: LinkHeader,
        tell_at: Instant,
    ) -> VecDeque<Waiting> {
        self.change(key, HopState::Ready { link, tell_at })
    }

    /// Removes the link header of a next hop. Returns the packets that waited for the MAC address.
    pub(super) fn on_lost(&mut self, key: HopKey) -> VecDeque<Waiting> {
        self.change(key, HopState::Unknown)
    }

    fn change(&mut self, key: HopKey, state: HopState) -> VecDeque<Waiting> {
        let Some(index) = self.index.get(&key) else { return VecDeque::new() };
        let place = &mut self.places[usize::from(*index)];
        place.state = state;
        place.queue.take(&mut self.queued)
    }

    /// Removes the link headers of all next hops. Returns the next hops for which packets waited.
    pub(super) fn on_all_lost(&mut self) -> Vec<HopKey> {
        let mut waited = Vec::new();
        for place in &mut self.places {
            place.state = HopState::Unknown;
            waited.extend((!place.queue.packets.is_empty()).then_some(place.key));
        }
        waited
    }

    /// Queues a report to the control part. Returns false if the queue is full.
    pub(in crate::net) fn tell(&mut self, notice: DataReport) -> bool {
        let has_room = self.notices.len() < NEIGHBOR_REPORTS_MAX;
        match has_room {
            true => self.notices.push_back(notice),
            false => self.untold += 1,
        }
        has_room
    }

    /// Returns whether reports to the control part are queued.
    #[inline]
    pub(super) fn has_reports(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Removes and returns the oldest report to the control part.
    #[inline]
    pub(in crate::net) fn take_report(&mut self) -> Option<DataReport> {
        self.notices.pop_front()
    }

    /// Removes and returns the oldest packet that was evicted from a full queue.
    #[inline]
    pub(super) fn take_gone(&mut self) -> Option<Gone> {
        self.gone.pop_front()
    }

    /// Returns the number of next hops that were evicted since the last call.
    pub(super) fn take_displaced(&mut self) -> u64 {
        core::mem::take(&mut self.displaced)
    }

    /// Returns the number of reports to the control part that were lost since the last call,
    /// because the queue was full.
    pub(super) fn take_untold(&mut self) -> u64 {
        core::mem::take(&mut self.untold)
    }

    /// Returns the number of packets that wait for a MAC address.
    pub(in crate::net) fn waiting(&self) -> usize {
        self.places.iter().map(|place| place.queue.packets.len()).sum()
    }
}

const _: () = assert!(NEIGHBORS_MOST < u16::MAX as usize);

/// Number of entries in [`NextHops::recent`].
const RECENT: usize = 256;

/// Returns the position of a next hop in [`NextHops::recent`]. An attacker can choose next hops
/// with the same position. Each packet to them then costs a keyed hash.
#[inline]
fn recent_slot((iface, addr): &HopKey) -> usize {
    let low = match addr {
        IpAddr::V4(v4) => v4.to_bits() as usize,
        IpAddr::V6(v6) => v6.to_bits() as usize,
    };
    (low ^ iface.index() << 4) % RECENT
}

/// Returns the index of the entry to which an identifier refers.
fn index(id: HopId) -> usize {
    usize::from(id.place.get()) - 1
}

/// Returns the MAC address for a multicast or broadcast IP address. Returns `None` for a unicast
/// address, whose MAC address must be resolved.
pub(super) fn group_mac(next_hop: IpAddr, broadcast: bool) -> Option<MacAddr> {
    match next_hop {
        IpAddr::V4(_) if broadcast => Some(MacAddr::BROADCAST),
        IpAddr::V4(v4) if v4.is_multicast() => Some(MacAddr::from_multicast_v4(v4)),
        IpAddr::V6(v6) if v6.is_multicast() => Some(MacAddr::from_multicast_v6(v6)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use towpath_pool::Pool;

    use super::*;
    use crate::net::limits::NEXT_HOPS_MAX;

    const LINK: LinkHeader = LinkHeader::NONE;

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    fn nth(n: u32) -> HopKey {
        (IfaceId(1), IpAddr::V4((0x0a00_0000 + n).into()))
    }

    fn table() -> NextHops {
        NextHops::new(Keyed([1, 2]), NEXT_HOPS_MAX, 1)
    }

    fn waiting(pool: &mut Pool, len: usize) -> Waiting {
        let mut packet = pool.take(len);
        packet.push_back(len).expect("room").fill(0);
        Waiting { packet, mtu: 1500 }
    }

    /// Sends a packet to a next hop whose MAC address is unknown, so that the packet is queued.
    fn send(hops: &mut NextHops, id: HopId, packet: Waiting) {
        assert_eq!(hops.link(at(0), id), None);
        hops.enqueue(id, packet);
        hops.take_report();
    }

    /// Returns the lengths of the evicted packets, each with the reason for the drop.
    fn gone(hops: &mut NextHops) -> Vec<(usize, DropReason)> {
        let gone = std::iter::from_fn(|| hops.take_gone());
        gone.map(|(_, packet, reason)| (packet.len(), reason)).collect()
    }

    #[test]
    fn uses_are_told_once_until_it_is_time_again() {
        let mut hops = table();
        let id = hops.at(nth(1));
        assert_eq!(hops.take_report(), None, "to be looked up is no use");
        assert_eq!((hops.link(at(0), id), hops.link(at(1), id)), (None, None));
        assert_eq!(hops.take_report(), Some(DataReport::Used(nth(1))));
        assert_eq!(hops.take_report(), None);
        hops.on_known(nth(1), LINK, at(100));
        for (time, told) in [(99, false), (100, true), (500, false)] {
            assert_eq!(hops.link(at(time), id), Some(LINK));
            assert_eq!(hops.take_report().is_some(), told, "at {time} ms");
        }
        hops.on_lost(nth(1));
        assert_eq!(hops.link(at(600), id), None);
        assert_eq!(hops.take_report(), Some(DataReport::Used(nth(1))));
        hops.confirm(at(600), id);
        assert_eq!(hops.take_report(), None, "it is not known where it is");
        hops.on_known(nth(1), LINK, at(9999));
        for (time, told) in [(700, true), (1699, false), (1700, true)] {
            hops.confirm(at(time), id);
            assert_eq!(hops.take_report().is_some(), told, "at {time} ms");
        }
        // The loss of one next hop does not affect the entry of another next hop.
        hops.on_lost(nth(2));
        assert_eq!(hops.link(at(2000), id), Some(LINK));
    }

    #[test]
    fn a_place_that_is_given_to_another_next_hop_kills_the_ids_of_the_first() {
        let (mut hops, mut pool) = (table(), Pool::default());
        let ids: Vec<_> = (0..NEXT_HOPS_MAX as u32).map(|n| hops.at(nth(n))).collect();
        for n in 0..NEXT_HOPS_MAX as u32 {
            send(&mut hops, ids[n as usize], waiting(&mut pool, 60));
            hops.on_known(nth(n), LINK, Instant::FAR);
        }
        hops.enqueue(ids[0], waiting(&mut pool, 61));
        let new = hops.at(nth(5000));
        assert_eq!((hops.key(ids[0]), hops.key(new)), (None, Some(nth(5000))));
        assert_eq!((hops.link(at(0), ids[0]), hops.link(at(0), new)), (None, None));
        assert_eq!(gone(&mut hops), [(61, DropReason::NeighborQueueFull)]);
        assert_eq!((hops.queued, hops.take_displaced()), (0, 1));
        hops.confirm(at(0), ids[0]);
        hops.take_report();
        assert_eq!(hops.take_report(), None, "the dead id confirms nobody");
        // A next hop that is used between two searches for an entry to evict keeps its entry, even
        // if many other next hops are added.
        for n in 0..3 * NEXT_HOPS_MAX as u32 {
            assert_eq!(hops.link(at(0), ids[9]), Some(LINK));
            hops.at(nth(6000 + n));
        }
        assert_eq!(hops.key(ids[9]), Some(nth(9)));
        assert_eq!(hops.places.len(), NEXT_HOPS_MAX);
        assert_eq!(hops.index.len(), NEXT_HOPS_MAX);
    }

    #[test]
    fn as_much_waits_as_on_linux_and_the_oldest_go_first() {
        let (mut hops, mut pool) = (table(), Pool::default());
        let id = hops.at(nth(1));
        // Queue connection requests, as if a program opens hundreds of connections at once.
        let small = NEIGHBOR_QUEUE_BYTES_MAX / (60 + NEIGHBOR_PACKET_COST);
        assert!(small > 300);
        for _ in 0..small {
            send(&mut hops, id, waiting(&mut pool, 60));
        }
        assert!(gone(&mut hops).is_empty());
        send(&mut hops, id, waiting(&mut pool, 60_000));
        let room = small * (60 + NEIGHBOR_PACKET_COST) + 60_000 + NEIGHBOR_PACKET_COST;
        let over = (room - NEIGHBOR_QUEUE_BYTES_MAX).div_ceil(60 + NEIGHBOR_PACKET_COST);
        assert_eq!(gone(&mut hops), vec![(60, DropReason::NeighborQueueFull); over]);
        assert_eq!(hops.waiting(), small + 1 - over);
    }

    #[test]
    fn what_waits_for_all_neighbours_is_bounded_and_the_longest_queue_pays() {
        let (mut hops, mut pool) = (table(), Pool::default());
        let mut enqueue = |hops: &mut NextHops, n: u32, len: usize| {
            let id = hops.at(nth(n));
            send(hops, id, waiting(&mut pool, len));
            gone(hops)
        };
        // Simulate two programs. The first one sends little to each of many hosts, the second one
        // as much as possible to a few hosts.
        for n in 0..500 {
            assert!(enqueue(&mut hops, n, 60).is_empty());
        }
        let mut lost = 0;
        for n in 500..600 {
            for _ in 0..200 {
                for (len, reason) in enqueue(&mut hops, n, 1400) {
                    lost += usize::from(reason == DropReason::NeighborQueuesFull);
                    assert_eq!(len, 1400, "of those that have most");
                }
            }
        }
        let kept = hops.waiting() - 500;
        assert!(kept * (1400 + NEIGHBOR_PACKET_COST) <= NEIGHBOR_QUEUES_BYTES_MAX);
        assert!(lost > 0 && kept > 1900, "{kept} of {lost}");
        for n in 0..500 {
            assert_eq!(hops.on_known(nth(n), LINK, at(30_000)).len(), 1);
        }
        // The sum decreases when packets leave their queue: because of an answer, a failure or an
        // eviction.
        for n in 500..600 {
            hops.on_lost(nth(n));
        }
        assert_eq!((hops.waiting(), hops.queued), (0, 0));
        for n in 0..NEXT_HOPS_MAX as u32 + 10 {
            enqueue(&mut hops, 1000 + n, 60);
        }
        assert_eq!(hops.queued, NEXT_HOPS_MAX * (60 + NEIGHBOR_PACKET_COST));
    }

    /// All shards together queue as many packets as a single shard would. Each shard has enough
    /// space for the longest queue of one next hop.
    #[test]
    fn shards_have_a_part_of_what_waits_each() {
        let (mut hops, mut pool) =
            (NextHops::new(Keyed([1, 2]), NEXT_HOPS_MAX, 16), Pool::default());
        for n in 0..500 {
            let id = hops.at(nth(n));
            send(&mut hops, id, waiting(&mut pool, 1400));
            assert!(hops.queued <= NEIGHBOR_QUEUES_BYTES_MAX / 16);
        }
        assert!(hops.queued >= NEIGHBOR_QUEUE_BYTES_MAX);
        let reasons = gone(&mut hops).into_iter().map(|(_, reason)| reason);
        assert!(
            reasons
                .eq([DropReason::NeighborQueuesFull; 500].into_iter().take(500 - hops.waiting()))
        );
    }

    /// Tests that a packet is not queued if its use could not be reported. The report queue is
    /// full, because the control part does not read it.
    #[test]
    fn what_is_told_is_bounded_and_what_is_not_told_does_not_wait() {
        let (mut hops, mut pool) = (table(), Pool::default());
        for n in 0..NEIGHBOR_REPORTS_MAX as u32 + 10 {
            let id = hops.at(nth(n));
            assert_eq!(hops.link(at(0), id), None);
            hops.enqueue(id, waiting(&mut pool, 60));
        }
        assert_eq!((hops.notices.len(), hops.take_untold()), (NEIGHBOR_REPORTS_MAX, 10));
        assert!(hops.waiting() <= NEXT_HOPS_MAX);
        // After the control part has read one report, there is space for the report of the next
        // packet.
        hops.take_report();
        let id = hops.at(nth(NEIGHBOR_REPORTS_MAX as u32 + 9));
        assert_eq!(hops.link(at(0), id), None);
        hops.enqueue(id, waiting(&mut pool, 61));
        assert_eq!(hops.on_known(hops.key(id).unwrap(), LINK, Instant::FAR).len(), 1);
    }

    /// If the queue is full, a use, a confirmation and an avoided router are reported later, when
    /// it has space.
    #[test]
    fn what_found_no_room_is_told_with_the_next_packet() {
        let mut hops = table();
        let id = hops.at(nth(1));
        hops.on_known(nth(1), LINK, at(100));
        while hops.tell(DataReport::Avoided(nth(9))) {}
        let used = |hops: &mut NextHops, id, ms| {
            assert_eq!(hops.link(at(ms), id), Some(LINK));
            hops.confirm(at(ms), id);
            hops.on_avoided(at(ms), nth(2));
        };
        used(&mut hops, id, 100);
        while hops.take_report().is_some() {}
        for (ms, count) in [(101, 3), (102, 0)] {
            used(&mut hops, id, ms);
            let told: Vec<_> = std::iter::from_fn(|| hops.take_report()).collect();
            assert_eq!(told.len(), count, "{told:?}");
        }
    }

    #[test]
    fn a_router_that_is_avoided_is_told_once_a_second() {
        let mut hops = table();
        let told = |hops: &mut NextHops, ms, n| {
            hops.on_avoided(at(ms), nth(n));
            hops.take_report()
        };
        assert_eq!(told(&mut hops, 0, 1), Some(DataReport::Avoided(nth(1))));
        assert_eq!(told(&mut hops, 999, 1), None);
        assert_eq!(told(&mut hops, 1000, 1), Some(DataReport::Avoided(nth(1))));
        assert_eq!(told(&mut hops, 1001, 2), Some(DataReport::Avoided(nth(2))));
    }
}
