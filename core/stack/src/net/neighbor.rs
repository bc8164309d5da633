//! Neighbours and their MAC addresses: one state machine (RFC 4861 §7.3.2) for ARP and neighbour
//! discovery, which differ only in the messages.
//!
//! ```text
//!   resolve ─► INCOMPLETE ──answer──► REACHABLE ◄──answer, or the transport says so──┐
//!                  │ 3 unanswered        │ 15 to 45 s                                │
//!                  ▼                     ▼                                           │
//!                gone ◄─3 unanswered─ PROBE ◄─5 s─ DELAY ◄─used─ STALE ──────────────┘
//! ```
//!
//! Unsolicited answers make no entries. A host that asks for our address makes one, so that we need not ask
//! back; anybody can ask in the name of many, and therefore neighbours that only were heard of have a table
//! of their own: they displace each other, and never one that packets of ours go to (RFC 6583 §7.1). It
//! sends nothing itself: it says what to send.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use std::collections::VecDeque;

use towpath_pool::Packet;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::hash::Keyed;
use super::iface::IfaceId;
use super::limits::{
    ARP_LOCK_TIME, DELAY_FIRST_PROBE_TIME, MULTICAST_SOLICITS_MAX, NEIGHBOR_PACKET_COST,
    NEIGHBOR_QUEUE_BYTES_MAX, NEIGHBOR_QUEUES_BYTES_MAX, NEIGHBORS_HEARD_MAX, NEIGHBORS_MAX,
    RETRANS_TIME, UNICAST_SOLICITS_MAX,
};
use super::lru::Lru;
use crate::drop::DropReason;

/// A neighbour, as it is shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbor {
    /// On which interface.
    pub iface: IfaceId,
    /// Its address.
    pub addr: IpAddr,
    /// Its MAC address, once known.
    pub mac: Option<MacAddr>,
    /// How sure that is.
    pub state: NeighborState,
    /// It forwards packets.
    pub router: bool,
}

/// How sure a neighbour's MAC address is (RFC 4861 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborState {
    /// Being asked for.
    Incomplete,
    /// Confirmed not long ago.
    Reachable,
    /// Known, not confirmed, not in use.
    Stale,
    /// In use; the transport may still confirm it.
    Delay,
    /// In use and being asked by unicast whether it is still there.
    Probe,
}

/// An address on a link.
pub(super) type Key = (IfaceId, IpAddr);

/// A question to be sent: to everybody, or to one MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Solicit {
    pub key: Key,
    pub to: Option<MacAddr>,
}

/// An IP packet without link header that waits for its neighbour. It is whole: it becomes segments or
/// fragments of at most `mtu` bytes when it goes.
#[derive(Debug)]
pub(super) struct Waiting {
    pub packet: Packet,
    pub mtu: u32,
}

/// What a neighbour says about itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Advert {
    pub mac: Option<MacAddr>,
    pub solicited: bool,
    pub override_: bool,
    pub router: Option<bool>,
}

/// What to do with a packet for a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolved {
    /// Send it there.
    Mac(MacAddr),
    /// Queue it.
    Wait,
    /// Queue it, and ask.
    Ask,
}

/// What [`Neighbors::on_timeout`] wants done.
#[derive(Debug)]
pub(super) enum Event {
    Solicit(Solicit),
    /// It does not answer; the packets cannot be sent.
    Failed(Key, Vec<Waiting>),
}

/// What an advertisement led to.
#[derive(Debug, Default)]
pub(super) struct Heeded {
    /// Packets that waited for the neighbour.
    pub waiting: Vec<Waiting>,
    /// It was a router, and advertises that it no longer is one.
    pub no_router: bool,
}

/// All neighbours.
#[derive(Debug)]
pub(super) struct Neighbors {
    /// Those that packets of ours go to.
    used: Lru<Key, Entry>,
    /// Those that told where they are, and that nothing was sent to since: all of them STALE.
    heard: Lru<Key, Heard>,
    /// Not later than the first deadline of any entry.
    next: Instant,
    /// Entries that had to make room for others.
    displaced: u64,
    /// What all queues cost together.
    queued: usize,
    /// RetransTimer of IPv6 neighbours, by interface, where routers set one (RFC 4861 §6.3.2).
    retrans: Vec<Option<Duration>>,
}

#[derive(Debug)]
struct Entry {
    state: State,
    mac: MacAddr,
    /// Since when `mac` is its address: see [`Neighbors::contradicts`].
    since: Instant,
    router: bool,
    queue: Queue,
}

/// Packets that wait for a neighbour, the oldest first.
#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Waiting>,
    /// What they cost: their bytes, and [`NEIGHBOR_PACKET_COST`] for each.
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

    /// Takes all, and their cost off `queued`.
    fn take(&mut self, queued: &mut usize) -> Vec<Waiting> {
        *queued -= core::mem::take(&mut self.cost);
        core::mem::take(&mut self.packets).into()
    }
}

impl Waiting {
    fn cost(&self) -> usize {
        self.packet.len() + NEIGHBOR_PACKET_COST
    }
}

/// A neighbour that nothing was sent to.
#[derive(Debug, Clone, Copy)]
struct Heard {
    mac: MacAddr,
    router: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Incomplete { sent: u8, again: Instant },
    Reachable { until: Instant },
    Stale,
    Delay { until: Instant },
    Probe { sent: u8, again: Instant },
}

impl Neighbors {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            used: Lru::new(NEIGHBORS_MAX, keys),
            heard: Lru::new(NEIGHBORS_HEARD_MAX, keys),
            next: Instant::FAR,
            displaced: 0,
            queued: 0,
            retrans: Vec::new(),
        }
    }

    /// Time between solicitations to `key`. A router's word is about neighbour discovery, and not about ARP.
    pub(super) fn retrans_time(&self, (iface, addr): &Key) -> Duration {
        retrans_time(&self.retrans, (*iface, *addr))
    }

    /// A router of `iface` set the time between solicitations there.
    pub(super) fn set_retrans_time(&mut self, iface: IfaceId, time: Duration) {
        if self.retrans.len() <= iface.index() {
            self.retrans.resize(iface.index() + 1, None);
        }
        self.retrans[iface.index()] = Some(time);
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.next
    }

    /// Entries that had to make room for others since last asked.
    pub(super) fn take_displaced(&mut self) -> u64 {
        core::mem::take(&mut self.displaced)
    }

    /// Where a packet to `key` goes. An entry that had to make room comes back with its packets.
    #[inline]
    pub(super) fn resolve(
        &mut self,
        now: Instant,
        key: Key,
    ) -> (Resolved, Option<(Key, Vec<Waiting>)>) {
        let Some(entry) = self.used.get_mut(&key) else { return self.begin(now, key) };
        match entry.state {
            State::Reachable { until } if now < until => {}
            State::Incomplete { .. } => return (Resolved::Wait, None),
            //= https://www.rfc-editor.org/rfc/rfc4861#section-7.3.3
            //# The first time a node sends a packet to a neighbor whose entry is
            //# STALE, the sender changes the state to DELAY and sets a timer to
            //# expire in DELAY_FIRST_PROBE_TIME seconds.
            State::Reachable { .. } | State::Stale => {
                let until = now + DELAY_FIRST_PROBE_TIME;
                entry.state = State::Delay { until };
                self.next = self.next.min(until);
            }
            State::Delay { .. } | State::Probe { .. } => {}
        }
        (Resolved::Mac(entry.mac), None)
    }

    /// Makes the entry for the first packet to a neighbour, which may have told its MAC address before.
    fn begin(&mut self, now: Instant, key: Key) -> (Resolved, Option<(Key, Vec<Waiting>)>) {
        let Some(Heard { mac, router }) = self.heard.remove(&key) else {
            return (Resolved::Ask, self.ask(now, key, 1));
        };
        let until = now + DELAY_FIRST_PROBE_TIME;
        self.next = self.next.min(until);
        let state = State::Delay { until };
        let entry = Entry { state, mac, since: now, router, queue: Queue::default() };
        (Resolved::Mac(mac), self.insert(key, entry))
    }

    /// Makes an entry of a neighbour that has been asked for `sent` times.
    fn ask(&mut self, now: Instant, key: Key, sent: u8) -> Option<(Key, Vec<Waiting>)> {
        let again = now + self.retrans_time(&key);
        self.next = self.next.min(again);
        let state = State::Incomplete { sent, again };
        let (mac, queue) = (MacAddr::UNSPECIFIED, Queue::default());
        self.insert(key, Entry { state, mac, since: now, router: false, queue })
    }

    /// Whether to ask, once, for a neighbour that is not known: nothing waits for it.
    pub(super) fn probe(&mut self, now: Instant, key: Key) -> (bool, Option<(Key, Vec<Waiting>)>) {
        if self.used.peek(&key).is_some() || self.heard.peek(&key).is_some() {
            return (false, None);
        }
        (true, self.ask(now, key, MULTICAST_SOLICITS_MAX))
    }

    /// Asks anew for all IPv6 neighbours of `iface` that are being asked for: there was no address to ask
    /// from.
    pub(super) fn ask_again(&mut self, now: Instant, iface: IfaceId) -> Vec<Solicit> {
        let again = now + retrans_time(&self.retrans, (iface, Ipv6Addr::UNSPECIFIED.into()));
        self.next = self.next.min(again);
        let asked = self.used.iter_mut().filter_map(|(key, entry)| match &mut entry.state {
            State::Incomplete { sent, again: at } if key.0 == iface && key.1.is_ipv6() => {
                (*sent, *at) = (1, again);
                Some(Solicit { key: *key, to: None })
            }
            _ => None,
        });
        asked.collect()
    }

    fn insert(&mut self, key: Key, entry: Entry) -> Option<(Key, Vec<Waiting>)> {
        let (key, mut gone) = self.used.insert(key, entry)?;
        self.displaced += 1;
        let packets = gone.queue.take(&mut self.queued);
        (!packets.is_empty()).then_some((key, packets))
    }

    /// Keeps a packet until its neighbour answers; returns those that had to go for it, and why. The last one
    /// of a neighbour stays in any case, as long as there is room for one of each.
    //= https://www.rfc-editor.org/rfc/rfc1122#section-2.3.2.2
    //# The link layer SHOULD save (rather than discard) at least
    //# one (the latest) packet of each set of packets destined to
    //# the same unresolved IP address, and transmit the saved
    //# packet when the address has been resolved.
    pub(super) fn enqueue(
        &mut self,
        key: Key,
        packet: Waiting,
    ) -> Vec<(IfaceId, Packet, DropReason)> {
        let full = DropReason::NeighborQueueFull;
        let Some(Entry { queue, .. }) = self.used.get_mut(&key) else {
            return vec![(key.0, packet.packet, full)];
        };
        let mut gone = Vec::new();
        let before = queue.cost;
        queue.push(packet);
        while queue.cost > NEIGHBOR_QUEUE_BYTES_MAX && queue.packets.len() > 1 {
            gone.extend(queue.pop().map(|waiting| (key.0, waiting.packet, full)));
        }
        self.queued = self.queued - before + queue.cost;
        while self.queued > NEIGHBOR_QUEUES_BYTES_MAX {
            gone.extend(self.take_from_longest());
        }
        gone
    }

    /// Drops the oldest packet of the neighbour with the longest queue: a sender to hosts that do not answer
    /// thereby loses packets of its own, not the few that others send.
    fn take_from_longest(&mut self) -> Option<(IfaceId, Packet, DropReason)> {
        let (key, entry) = self.used.iter_mut().max_by_key(|(_, entry)| entry.queue.cost)?;
        let before = entry.queue.cost;
        let waiting = entry.queue.pop()?;
        self.queued -= before - entry.queue.cost;
        Some((key.0, waiting.packet, DropReason::NeighborQueuesFull))
    }

    /// Someone who asks tells where it is. `create` when it asked for an address of ours. Returns the
    /// packets that waited for it.
    //= https://www.rfc-editor.org/rfc/rfc4861#section-7.2.3
    //# If an entry already exists, and the cached link-layer address differs from the one in the
    //# received Source Link-Layer option, the cached address should be replaced by the received
    //# address, and the entry's reachability state MUST be set to STALE.
    pub(super) fn on_question(
        &mut self,
        now: Instant,
        key: Key,
        mac: MacAddr,
        create: bool,
    ) -> Vec<Waiting> {
        if !mac.is_unicast() {
            return Vec::new();
        }
        let Some(entry) = self.used.get_mut(&key) else {
            match self.heard.get_mut(&key) {
                Some(heard) => heard.mac = mac,
                None if create => {
                    let gone = self.heard.insert(key, Heard { mac, router: false });
                    self.displaced += u64::from(gone.is_some());
                }
                None => {}
            }
            return Vec::new();
        };
        if matches!(entry.state, State::Incomplete { .. }) || entry.mac != mac {
            (entry.mac, entry.since) = (mac, now);
            entry.state = State::Stale;
        }
        entry.queue.take(&mut self.queued)
    }

    /// A neighbour answers, or announces itself (RFC 4861 §7.2.5).
    pub(super) fn on_advert(
        &mut self,
        now: Instant,
        key: Key,
        advert: Advert,
        reachable_until: Instant,
    ) -> Heeded {
        let Some(entry) = self.used.get_mut(&key) else { return self.on_unasked(&key, advert) };
        let mac = advert.mac.filter(|mac| mac.is_unicast());
        let confirmed = State::Reachable { until: reachable_until };
        if matches!(entry.state, State::Incomplete { .. }) {
            let Some(mac) = mac else { return Heeded::default() };
            (entry.mac, entry.since) = (mac, now);
            entry.state = if advert.solicited { confirmed } else { State::Stale };
        } else if let Some(mac) = mac.filter(|mac| *mac != entry.mac) {
            if !advert.override_ {
                //= https://www.rfc-editor.org/rfc/rfc4861#section-7.2.5
                //# If the state of the entry is REACHABLE, set it to STALE, but
                //# do not update the entry in any other way.
                if matches!(entry.state, State::Reachable { .. }) {
                    entry.state = State::Stale;
                }
                return Heeded::default();
            }
            (entry.mac, entry.since) = (mac, now);
            entry.state = if advert.solicited { confirmed } else { State::Stale };
        } else if advert.solicited {
            entry.state = confirmed;
        }
        let no_router = change(&mut entry.router, advert.router);
        Heeded { waiting: entry.queue.take(&mut self.queued), no_router }
    }

    /// A neighbour announces itself that nothing was sent to: it is STALE and remains so.
    fn on_unasked(&mut self, key: &Key, advert: Advert) -> Heeded {
        let Some(heard) = self.heard.get_mut(key) else { return Heeded::default() };
        if let Some(mac) = advert.mac.filter(|mac| mac.is_unicast() && *mac != heard.mac) {
            if !advert.override_ {
                return Heeded::default();
            }
            heard.mac = mac;
        }
        Heeded { waiting: Vec::new(), no_router: change(&mut heard.router, advert.router) }
    }

    /// Whether an answer from `key` is expected: an ARP reply has no flag that says so.
    pub(super) fn is_asked(&self, key: &Key) -> bool {
        let state = self.used.peek(key).map(|entry| entry.state);
        matches!(state, Some(State::Incomplete { .. } | State::Probe { .. }))
    }

    /// Whether `key` told within the last [`ARP_LOCK_TIME`], in an answer, that it is elsewhere than at `mac`.
    /// ARP has no flag that says whether an answer replaces another one: as on Linux the first one holds for
    /// that time, so that a later reply, which may be forged, cannot replace it within a second, and several
    /// proxies that all answer do not change the entry with each reply.
    pub(super) fn contradicts(&self, now: Instant, key: &Key, mac: MacAddr) -> bool {
        self.used.peek(key).is_some_and(|entry| {
            let known = !matches!(entry.state, State::Incomplete { .. });
            known && entry.mac != mac && now < entry.since + ARP_LOCK_TIME
        })
    }

    /// The transport heard from beyond this neighbour (RFC 4861 §7.3.1).
    pub(super) fn confirm(&mut self, key: &Key, reachable_until: Instant) {
        if let Some(entry) = self.used.get_mut(key)
            && !matches!(entry.state, State::Incomplete { .. })
        {
            entry.state = State::Reachable { until: reachable_until };
        }
    }

    /// Where `key` is, if that is known.
    pub(super) fn mac(&self, key: &Key) -> Option<MacAddr> {
        match self.used.peek(key) {
            Some(entry) => (!matches!(entry.state, State::Incomplete { .. })).then_some(entry.mac),
            None => self.heard.peek(key).map(|heard| heard.mac),
        }
    }

    pub(super) fn set_router(&mut self, key: &Key, router: bool) {
        if let Some(entry) = self.used.get_mut(key) {
            entry.router = router;
        } else if let Some(heard) = self.heard.get_mut(key) {
            heard.router = router;
        }
    }

    /// Moves every entry whose time has come on.
    pub(super) fn on_timeout(&mut self, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        if now < self.next {
            return events;
        }
        let mut failed = Vec::new();
        for (key, entry) in self.used.iter_mut() {
            match entry.on_timeout(now, retrans_time(&self.retrans, *key)) {
                Fate::Rest => {}
                Fate::Ask => events.push(Event::Solicit(Solicit { key: *key, to: None })),
                Fate::Probe => {
                    events.push(Event::Solicit(Solicit { key: *key, to: Some(entry.mac) }));
                }
                Fate::Fail => failed.push(*key),
            }
        }
        for key in failed {
            let packets =
                self.used.remove(&key).map(|mut entry| entry.queue.take(&mut self.queued));
            events.push(Event::Failed(key, packets.unwrap_or_default()));
        }
        let deadlines = self.used.iter().filter_map(|(_, entry)| entry.deadline());
        self.next = deadlines.min().unwrap_or(Instant::FAR);
        events
    }

    /// Packets that wait for an answer.
    pub(super) fn waiting(&self) -> usize {
        self.used.iter().map(|(_, entry)| entry.queue.packets.len()).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Neighbor> {
        let used = self.used.iter().map(|((iface, addr), entry)| {
            let state = match entry.state {
                State::Incomplete { .. } => NeighborState::Incomplete,
                State::Reachable { .. } => NeighborState::Reachable,
                State::Stale => NeighborState::Stale,
                State::Delay { .. } => NeighborState::Delay,
                State::Probe { .. } => NeighborState::Probe,
            };
            let mac = (state != NeighborState::Incomplete).then_some(entry.mac);
            Neighbor { iface: *iface, addr: *addr, mac, state, router: entry.router }
        });
        used.chain(self.heard.iter().map(|((iface, addr), heard)| Neighbor {
            iface: *iface,
            addr: *addr,
            mac: Some(heard.mac),
            state: NeighborState::Stale,
            router: heard.router,
        }))
    }
}

/// Takes over what a neighbour says of itself; true when it was a router and no longer is.
fn change(router: &mut bool, said: Option<bool>) -> bool {
    let was = core::mem::replace(router, said.unwrap_or(*router));
    was && !*router
}

/// What becomes of an entry at its deadline.
enum Fate {
    Rest,
    Ask,
    Probe,
    Fail,
}

impl Entry {
    fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Incomplete { again, .. } | State::Probe { again, .. } => Some(again),
            State::Delay { until } => Some(until),
            // Nothing happens when a confirmation runs out: the next use finds out.
            State::Reachable { .. } | State::Stale => None,
        }
    }

    fn on_timeout(&mut self, now: Instant, retrans_time: Duration) -> Fate {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Fate::Rest;
        }
        let again = now + retrans_time;
        match &mut self.state {
            State::Incomplete { sent, .. } if *sent >= MULTICAST_SOLICITS_MAX => Fate::Fail,
            State::Probe { sent, .. } if *sent >= UNICAST_SOLICITS_MAX => Fate::Fail,
            State::Incomplete { sent, again: at } => {
                (*sent, *at) = (*sent + 1, again);
                Fate::Ask
            }
            State::Probe { sent, again: at } => {
                (*sent, *at) = (*sent + 1, again);
                Fate::Probe
            }
            State::Delay { .. } => {
                self.state = State::Probe { sent: 1, again };
                Fate::Probe
            }
            State::Reachable { .. } | State::Stale => Fate::Rest,
        }
    }
}

fn retrans_time(by_iface: &[Option<Duration>], (iface, addr): Key) -> Duration {
    let set = by_iface.get(iface.index()).copied().flatten();
    set.filter(|_| addr.is_ipv6()).unwrap_or(RETRANS_TIME)
}

/// How long a confirmation lasts: 0.5 to 1.5 of `base`, by `draw` out of 1024.
pub(super) fn reachable_time(base: Duration, draw: u64) -> Duration {
    base / 2 + base * (draw as u32 % 1024) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_pool::Pool;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const ANSWER: Advert =
        Advert { mac: Some(MAC), solicited: true, override_: true, router: None };

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    fn key() -> Key {
        (IfaceId(1), "10.0.0.2".parse().unwrap())
    }

    fn state(neighbors: &Neighbors) -> Option<NeighborState> {
        neighbors.iter().find(|n| n.addr == key().1).map(|n| n.state)
    }

    fn solicits(events: &[Event]) -> Vec<Option<MacAddr>> {
        events
            .iter()
            .filter_map(|event| match event {
                Event::Solicit(solicit) => Some(solicit.to),
                Event::Failed(..) => None,
            })
            .collect()
    }

    #[test]
    fn asks_three_times_a_second_apart_and_then_fails() {
        let (mut neighbors, mut pool) = (Neighbors::new(Keyed([1, 2])), Pool::default());
        assert_eq!(neighbors.resolve(at(0), key()).0, Resolved::Ask);
        for _ in 0..3 {
            assert_eq!(neighbors.resolve(at(1), key()).0, Resolved::Wait);
            let waiting = Waiting { packet: pool.take(10), mtu: 1500 };
            assert!(neighbors.enqueue(key(), waiting).is_empty());
        }
        assert!(neighbors.on_timeout(at(999)).is_empty());
        assert_eq!(solicits(&neighbors.on_timeout(at(1000))), [None]);
        assert!(neighbors.on_timeout(at(1500)).is_empty());
        assert_eq!(neighbors.next_timeout(), at(2000));
        assert_eq!(solicits(&neighbors.on_timeout(at(2000))), [None]);
        let events = neighbors.on_timeout(at(3000));
        assert!(matches!(&events[..], [Event::Failed(k, p)] if *k == key() && p.len() == 3));
        assert_eq!(neighbors.next_timeout(), Instant::FAR);
        assert_eq!(state(&neighbors), None);
    }

    #[test]
    fn as_much_waits_as_on_linux_and_the_oldest_go_first() {
        let (mut neighbors, mut pool) = (Neighbors::new(Keyed([1, 2])), Pool::default());
        let mut packet = |len: usize| {
            let mut packet = pool.take(len);
            packet.push_back(len).expect("room").fill(0);
            Waiting { packet, mtu: 1500 }
        };
        neighbors.resolve(at(0), key());
        // SYNs of a program that opens hundreds of connections at once.
        let small = NEIGHBOR_QUEUE_BYTES_MAX / (60 + NEIGHBOR_PACKET_COST);
        assert!(small > 300);
        for _ in 0..small {
            assert!(neighbors.enqueue(key(), packet(60)).is_empty());
        }
        let gone = neighbors.enqueue(key(), packet(60_000));
        let lens: Vec<_> = gone.iter().map(|(_, packet, _)| packet.len()).collect();
        let room = small * (60 + NEIGHBOR_PACKET_COST) + 60_000 + NEIGHBOR_PACKET_COST;
        let over = (room - NEIGHBOR_QUEUE_BYTES_MAX).div_ceil(60 + NEIGHBOR_PACKET_COST);
        assert_eq!(lens, vec![60; over]);
        assert_eq!(neighbors.waiting(), small + 1 - over);
    }

    #[test]
    fn what_waits_for_all_neighbours_is_bounded_and_the_longest_queue_pays() {
        let (mut neighbors, mut pool) = (Neighbors::new(Keyed([1, 2])), Pool::default());
        let nth = |n: u32| (IfaceId(1), IpAddr::V4((0x0a00_0000 + n).into()));
        let mut enqueue = |neighbors: &mut Neighbors, n: u32, len: usize| {
            let mut packet = pool.take(len);
            packet.push_back(len).expect("room").fill(0);
            neighbors.resolve(at(0), nth(n));
            neighbors.enqueue(nth(n), Waiting { packet, mtu: 1500 })
        };
        // One program sends a little to each of many, and another as much as may be to some.
        for n in 0..500 {
            assert!(enqueue(&mut neighbors, n, 60).is_empty());
        }
        let mut lost = 0;
        for n in 500..600 {
            for _ in 0..200 {
                for (_, packet, reason) in enqueue(&mut neighbors, n, 1400) {
                    lost += usize::from(reason == DropReason::NeighborQueuesFull);
                    assert_eq!(packet.len(), 1400, "of those that have most");
                }
            }
        }
        let kept = neighbors.waiting() - 500;
        assert!(kept * (1400 + NEIGHBOR_PACKET_COST) <= NEIGHBOR_QUEUES_BYTES_MAX);
        assert!(lost > 0 && kept > 1900, "{kept} of {lost}");
        for n in 0..500 {
            assert_eq!(neighbors.on_advert(at(1), nth(n), ANSWER, at(30_000)).waiting.len(), 1);
        }
        // What left by an answer, by failure or for a newcomer leaves room.
        while neighbors.next_timeout() != Instant::FAR {
            neighbors.on_timeout(neighbors.next_timeout());
        }
        assert_eq!((neighbors.waiting(), neighbors.queued), (0, 0));
        for n in 0..NEIGHBORS_MAX as u32 + 10 {
            enqueue(&mut neighbors, 1000 + n, 60);
        }
        assert_eq!(neighbors.queued, NEIGHBORS_MAX * (60 + NEIGHBOR_PACKET_COST));
    }

    #[test]
    fn an_answer_releases_the_queue_and_use_after_its_time_probes() {
        let (mut neighbors, mut pool) = (Neighbors::new(Keyed([1, 2])), Pool::default());
        neighbors.resolve(at(0), key());
        neighbors.enqueue(key(), Waiting { packet: pool.take(10), mtu: 1500 });
        assert!(neighbors.is_asked(&key()));
        assert_eq!(neighbors.on_advert(at(10), key(), ANSWER, at(30_000)).waiting.len(), 1);
        assert_eq!(neighbors.resolve(at(29_999), key()).0, Resolved::Mac(MAC));
        assert_eq!(state(&neighbors), Some(NeighborState::Reachable));

        assert_eq!(neighbors.resolve(at(30_000), key()).0, Resolved::Mac(MAC));
        assert_eq!(state(&neighbors), Some(NeighborState::Delay));
        assert!(neighbors.on_timeout(at(34_999)).is_empty());
        assert_eq!(solicits(&neighbors.on_timeout(at(35_000))), [Some(MAC)]);
        assert_eq!(state(&neighbors), Some(NeighborState::Probe));
        assert_eq!(solicits(&neighbors.on_timeout(at(36_000))), [Some(MAC)]);
        assert_eq!(neighbors.resolve(at(36_500), key()).0, Resolved::Mac(MAC));
        neighbors.on_advert(at(36_600), key(), ANSWER, at(60_000));
        assert_eq!(state(&neighbors), Some(NeighborState::Reachable));
    }

    #[test]
    fn an_unanswered_probe_forgets_the_neighbour() {
        let mut neighbors = Neighbors::new(Keyed([1, 2]));
        neighbors.on_question(at(0), key(), MAC, true);
        assert_eq!(state(&neighbors), Some(NeighborState::Stale));
        neighbors.resolve(at(0), key());
        for seconds in 5..8 {
            assert_eq!(solicits(&neighbors.on_timeout(at(seconds * 1000))), [Some(MAC)]);
        }
        assert!(matches!(&neighbors.on_timeout(at(8000))[..], [Event::Failed(..)]));
        assert_eq!(neighbors.resolve(at(8000), key()).0, Resolved::Ask);
    }

    #[test]
    fn the_transport_confirms_instead_of_a_probe() {
        let mut neighbors = Neighbors::new(Keyed([1, 2]));
        neighbors.on_question(at(0), key(), MAC, true);
        neighbors.resolve(at(0), key());
        neighbors.confirm(&key(), at(20_000));
        assert!(neighbors.on_timeout(at(5000)).is_empty());
        assert_eq!(state(&neighbors), Some(NeighborState::Reachable));
    }

    #[test]
    fn unasked_answers_make_no_entry_and_only_override_changes_one() {
        let mut neighbors = Neighbors::new(Keyed([1, 2]));
        neighbors.on_advert(at(0), key(), ANSWER, at(1));
        neighbors.on_question(at(0), key(), MAC, false);
        assert_eq!(state(&neighbors), None);

        neighbors.on_question(at(0), key(), MAC, true);
        neighbors.resolve(at(0), key());
        neighbors.confirm(&key(), at(20_000));
        let gentle = Advert { mac: Some(OTHER), solicited: false, override_: false, router: None };
        neighbors.on_advert(at(0), key(), gentle, at(30_000));
        assert_eq!(state(&neighbors), Some(NeighborState::Stale));
        assert_eq!(neighbors.resolve(at(0), key()).0, Resolved::Mac(MAC));
        neighbors.on_advert(at(0), key(), Advert { override_: true, ..gentle }, at(30_000));
        assert_eq!(state(&neighbors), Some(NeighborState::Stale));
        assert_eq!(neighbors.resolve(at(0), key()).0, Resolved::Mac(OTHER));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut neighbors = Neighbors::new(Keyed([1, 2]));
        let nth = |n: u32| (IfaceId(1), IpAddr::V4((0x0a00_0000 + n).into()));
        for n in 0..NEIGHBORS_MAX as u32 * 2 {
            neighbors.resolve(at(0), nth(n));
        }
        assert_eq!(neighbors.iter().count(), NEIGHBORS_MAX);
        assert_eq!(neighbors.resolve(at(0), nth(0)).0, Resolved::Ask);
    }
}
