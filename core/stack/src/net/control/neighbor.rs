//! Neighbours and their MAC addresses. ARP and neighbour discovery differ only in their messages,
//! and use the same state machine (RFC 4861 §7.3.2).
//!
//! ```text
//!      used ─► INCOMPLETE ──answer──► REACHABLE ◄──answer, or the transport says so──┐
//!                  │ 3 unanswered        │ 15 to 45 s                                │
//!                  ▼                     ▼                                           │
//!                gone ◄─3 unanswered─ PROBE ◄─5 s─ DELAY ◄─used─ STALE ──────────────┘
//! ```
//!
//! Unsolicited advertisements create no entries. A request for our address creates an entry for its
//! sender, which saves a solicitation. Since any host can send requests with forged senders, such
//! entries are in a separate table until we send packets to the neighbour. Entries there evict only
//! each other, and never a neighbour in use (RFC 6583 §7.1).
//!
//! The state machine sends no packets. Its methods return due solicitations and [`NeighborUpdate`]s
//! for the data parts.

mod reachability;

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use towpath_tcp::Instant;
use towpath_wire::MacAddr;

pub(super) use self::reachability::reachable_time;
use self::reachability::{Entry, Fate, ReachabilityState};
use crate::net::hash::Keyed;
use crate::net::iface::IfaceId;
use crate::net::limits::{
    ARP_LOCK_TIME, DELAY_FIRST_PROBE_TIME, MULTICAST_SOLICITS_MAX, NEIGHBORS_ASKED_MAX,
    NEIGHBORS_HEARD_MAX, RETRANS_TIME,
};
use crate::net::lru::Lru;
use crate::net::messages::{HopKey, NeighborUpdate, Parts};

/// Entry of the neighbour table, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighborInfo {
    /// Interface to whose link the neighbour is attached.
    pub iface: IfaceId,
    /// IP address of the neighbour.
    pub addr: IpAddr,
    /// MAC address of the neighbour; `None` if it is not known yet.
    pub mac: Option<MacAddr>,
    /// Reachability state of the neighbour.
    pub state: NeighborState,
    /// Whether the neighbour is a router (flag IsRouter of RFC 4861).
    pub router: bool,
}

/// Reachability state of a neighbour (RFC 4861 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborState {
    /// Solicitations (ARP requests) were sent, and not answered yet.
    Incomplete,
    /// The neighbour was recently confirmed to be reachable.
    Reachable,
    /// The MAC address is known, but the neighbour was not confirmed recently. We have sent no
    /// packets to the neighbour since the last confirmation expired.
    Stale,
    /// Packets are being sent to the neighbour, and we wait for TCP to confirm that it is
    /// reachable.
    Delay,
    /// Packets are being sent to the neighbour, and we probe it by unicast solicitations.
    Probe,
    /// The operator has set the entry. The entry is never probed, and remains until the operator
    /// removes it.
    Permanent,
}

/// A solicitation to be sent: by broadcast or multicast, or to one MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Solicit {
    pub key: HopKey,
    pub to: Option<MacAddr>,
}

/// Contents of a neighbour advertisement or ARP reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Advert {
    pub mac: Option<MacAddr>,
    pub solicited: bool,
    pub override_: bool,
    pub router: Option<bool>,
}

/// An action that the caller of [`Neighbors::on_timeout`] must perform.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Solicit(Solicit),
    /// The neighbour has answered none of the solicitations, so its entry is removed.
    Failed(HopKey),
}

/// Tables of a host's neighbours.
#[derive(Debug)]
pub(super) struct Neighbors {
    /// Neighbours to which we send packets, in LRU order.
    used: Lru<HopKey, Entry>,
    /// Neighbours in the table `used` whose MAC address is not known yet (state INCOMPLETE).
    asked: Lru<HopKey, ()>,
    /// Neighbours that we know only because they sent requests to us; we have not sent packets to
    /// them since. Their state is always STALE.
    heard: Lru<HopKey, Heard>,
    /// Neighbours that the operator has set. Permanent neighbours are in none of the other tables.
    permanent: BTreeMap<HopKey, Permanent>,
    /// Lower bound of the deadlines of all entries. Before this time, no entry is due.
    next: Instant,
    /// Number of neighbour entries that were evicted since the last call of
    /// [`Self::take_displaced`].
    displaced: u64,
    /// Neighbour updates that were not sent to the shards yet.
    news: VecDeque<(Parts, NeighborUpdate)>,
    /// For each interface, the time between IPv6 solicitations that a router has advertised
    /// (RetransTimer, RFC 4861 §6.3.2); `None` if no router has.
    retrans: Vec<Option<Duration>>,
}

/// A neighbour to which we have not sent packets.
#[derive(Debug, Clone, Copy)]
struct Heard {
    mac: MacAddr,
    router: bool,
}

/// A neighbour whose MAC address the operator has set.
#[derive(Debug, Clone, Copy)]
struct Permanent {
    mac: MacAddr,
    users: Parts,
}

impl Neighbors {
    /// Creates tables for `neighbors_max` neighbours with known MAC addresses, and for
    /// [`NEIGHBORS_ASKED_MAX`] neighbours in state INCOMPLETE.
    pub(super) fn new(keys: Keyed, neighbors_max: usize) -> Self {
        Self {
            used: Lru::new(neighbors_max + NEIGHBORS_ASKED_MAX, keys),
            asked: Lru::new(NEIGHBORS_ASKED_MAX, keys),
            heard: Lru::new(NEIGHBORS_HEARD_MAX, keys),
            permanent: BTreeMap::new(),
            next: Instant::FAR,
            displaced: 0,
            news: VecDeque::new(),
            retrans: Vec::new(),
        }
    }

    /// Returns the time between two solicitations to `key`. For neighbour discovery a router can
    /// change this time, for ARP it is constant.
    pub(super) fn retrans_time(&self, (iface, addr): &HopKey) -> Duration {
        retrans_time(&self.retrans, (*iface, *addr))
    }

    /// Sets the time between two solicitations on `iface`, which a router has advertised.
    pub(super) fn set_retrans_time(&mut self, iface: IfaceId, time: Duration) {
        if self.retrans.len() <= iface.index() {
            self.retrans.resize(iface.index() + 1, None);
        }
        self.retrans[iface.index()] = Some(time);
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.next
    }

    /// Returns the number of neighbour entries that were evicted since the last call of this
    /// method.
    pub(super) fn take_displaced(&mut self) -> u64 {
        core::mem::take(&mut self.displaced)
    }

    /// Removes and returns the oldest update, and the set of data parts to which it must be sent.
    pub(super) fn take_update(&mut self) -> Option<(Parts, NeighborUpdate)> {
        self.news.pop_front()
    }

    /// Returns whether updates are pending.
    #[inline]
    pub(super) fn has_updates(&self) -> bool {
        !self.news.is_empty()
    }

    /// Records that the shards `by` sent a packet to the neighbour `key`. Returns true if a
    /// solicitation must be sent. Only the shards `by` receive an update, because other shards that
    /// use the neighbour already know its MAC address.
    pub(super) fn on_used(&mut self, now: Instant, key: HopKey, by: Parts) -> bool {
        let users = Parts::FIRST.and(by);
        if let Some(permanent) = self.permanent.get_mut(&key) {
            permanent.users = permanent.users.and(users);
            self.news.push_back((users, permanent.known(key)));
            return false;
        }
        let Some(entry) = self.used.get_mut(&key) else { return self.begin(now, key, users) };
        entry.users = entry.users.and(users);
        match entry.state {
            ReachabilityState::Incomplete { .. } => return false,
            ReachabilityState::Reachable { until } if now < until => {}
            //= https://www.rfc-editor.org/rfc/rfc4861#section-7.3.3
            //# The first time a node sends a packet to a neighbor whose entry is
            //# STALE, the sender changes the state to DELAY and sets a timer to
            //# expire in DELAY_FIRST_PROBE_TIME seconds.
            ReachabilityState::Reachable { .. } | ReachabilityState::Stale => {
                let until = now + DELAY_FIRST_PROBE_TIME;
                entry.state = ReachabilityState::Delay { until };
                self.next = self.next.min(until);
            }
            ReachabilityState::Delay { .. } | ReachabilityState::Probe { .. } => {}
        }
        self.news.push_back((users, entry.known(now, key)));
        false
    }

    /// Creates the entry of a neighbour when the first packet is sent to it. If the neighbour has
    /// sent requests to us, its MAC address is already known (`heard`).
    fn begin(&mut self, now: Instant, key: HopKey, users: Parts) -> bool {
        let Some(Heard { mac, router }) = self.heard.remove(&key) else {
            self.ask(now, key, users, 1);
            return true;
        };
        let until = now + DELAY_FIRST_PROBE_TIME;
        self.next = self.next.min(until);
        let state = ReachabilityState::Delay { until };
        let entry = Entry { state, mac, since: now, router, users };
        self.news.push_back((users, entry.known(now, key)));
        self.insert(key, entry);
        false
    }

    /// Creates an entry in state INCOMPLETE, for which `sent` solicitations count as already sent.
    fn ask(&mut self, now: Instant, key: HopKey, users: Parts, sent: u8) {
        let again = now + self.retrans_time(&key);
        self.next = self.next.min(again);
        let state = ReachabilityState::Incomplete { sent, again };
        if let Some((displaced, ())) = self.asked.insert(key, ()) {
            let users = self.used.remove(&displaced).map_or(Parts::FIRST, |entry| entry.users);
            self.forget(displaced, users);
        }
        let mac = MacAddr::UNSPECIFIED;
        self.insert(key, Entry { state, mac, since: now, router: false, users });
    }

    /// Creates an entry for a single solicitation, unless the neighbour has one. Returns whether
    /// the solicitation must be sent. No packets wait for the answer.
    pub(super) fn probe(&mut self, now: Instant, key: HopKey) -> bool {
        if self.is_known(&key) {
            return false;
        }
        self.ask(now, key, Parts::FIRST, MULTICAST_SOLICITS_MAX);
        true
    }

    /// Restarts the solicitations of all incomplete IPv6 neighbours of an interface. Before, the
    /// interface had no source address for them.
    pub(super) fn ask_again(&mut self, now: Instant, iface: IfaceId) -> Vec<Solicit> {
        let again = now + retrans_time(&self.retrans, (iface, Ipv6Addr::UNSPECIFIED.into()));
        self.next = self.next.min(again);
        let asked = self.used.iter_mut().filter_map(|(key, entry)| match &mut entry.state {
            ReachabilityState::Incomplete { sent, again: at }
                if key.0 == iface && key.1.is_ipv6() =>
            {
                (*sent, *at) = (1, again);
                Some(Solicit { key: *key, to: None })
            }
            _ => None,
        });
        asked.collect()
    }

    fn insert(&mut self, key: HopKey, entry: Entry) {
        if let Some((displaced, Entry { users, .. })) = self.used.insert(key, entry) {
            self.asked.remove(&displaced);
            self.forget(displaced, users);
        }
    }

    fn forget(&mut self, key: HopKey, users: Parts) {
        self.displaced += 1;
        self.news.push_back((users, NeighborUpdate::Forgotten(key)));
    }

    /// Updates the sender of a request. `create` is set if the request was for our address.
    //= https://www.rfc-editor.org/rfc/rfc4861#section-7.2.3
    //# If an entry already exists, and the cached link-layer address differs from the one in the
    //# received Source Link-Layer option, the cached address should be replaced by the received
    //# address, and the entry's reachability state MUST be set to STALE.
    pub(super) fn on_question(&mut self, now: Instant, key: HopKey, mac: MacAddr, create: bool) {
        if !mac.is_unicast() || self.permanent.contains_key(&key) {
            return;
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
            return;
        };
        if matches!(entry.state, ReachabilityState::Incomplete { .. }) || entry.mac != mac {
            self.asked.remove(&key);
            (entry.mac, entry.since) = (mac, now);
            entry.state = ReachabilityState::Stale;
            self.news.push_back((entry.users, entry.known(now, key)));
        }
    }

    /// Handles a neighbour advertisement (RFC 4861 §7.2.5). Returns true if the neighbour was a
    /// router and is no longer one.
    ///
    /// The data parts get an update only if the entry changes, because any host can send redundant
    /// advertisements.
    pub(super) fn on_advert(
        &mut self,
        now: Instant,
        key: HopKey,
        advert: Advert,
        reachable_until: Instant,
    ) -> bool {
        let Some(entry) = self.used.get_mut(&key) else { return self.on_unasked(&key, advert) };
        let mac = advert.mac.filter(|mac| mac.is_unicast());
        let confirmed = ReachabilityState::Reachable { until: reachable_until };
        if matches!(entry.state, ReachabilityState::Incomplete { .. }) {
            let Some(mac) = mac else { return false };
            self.asked.remove(&key);
            (entry.mac, entry.since) = (mac, now);
            entry.state = if advert.solicited { confirmed } else { ReachabilityState::Stale };
        } else if let Some(mac) = mac.filter(|mac| *mac != entry.mac) {
            if !advert.override_ {
                //= https://www.rfc-editor.org/rfc/rfc4861#section-7.2.5
                //# If the state of the entry is REACHABLE, set it to STALE, but
                //# do not update the entry in any other way.
                if matches!(entry.state, ReachabilityState::Reachable { .. }) {
                    entry.state = ReachabilityState::Stale;
                    self.news.push_back((entry.users, entry.known(now, key)));
                }
                return false;
            }
            (entry.mac, entry.since) = (mac, now);
            entry.state = if advert.solicited { confirmed } else { ReachabilityState::Stale };
        } else {
            if advert.solicited {
                entry.state = confirmed;
            }
            return change(&mut entry.router, advert.router);
        }
        self.news.push_back((entry.users, entry.known(now, key)));
        change(&mut entry.router, advert.router)
    }

    /// Updates a neighbour to which we have not sent packets; it remains STALE.
    fn on_unasked(&mut self, key: &HopKey, advert: Advert) -> bool {
        let Some(heard) = self.heard.get_mut(key) else { return false };
        if let Some(mac) = advert.mac.filter(|mac| mac.is_unicast() && *mac != heard.mac) {
            if !advert.override_ {
                return false;
            }
            heard.mac = mac;
        }
        change(&mut heard.router, advert.router)
    }

    /// Returns whether we have solicited `key` and expect its answer. ARP replies do not have the
    /// solicited flag of neighbour advertisements.
    pub(super) fn is_asked(&self, key: &HopKey) -> bool {
        let state = self.used.peek(key).map(|entry| entry.state);
        matches!(
            state,
            Some(ReachabilityState::Incomplete { .. } | ReachabilityState::Probe { .. })
        )
    }

    /// Returns whether `key` answered with a MAC address other than `mac` within the last
    /// [`ARP_LOCK_TIME`]. ARP has no override flag, so as on Linux, the first answer is kept for
    /// this time. Otherwise a later forged reply could replace the first answer. Several ARP
    /// proxies on the link would also keep changing the entry.
    pub(super) fn contradicts(&self, now: Instant, key: &HopKey, mac: MacAddr) -> bool {
        self.used.peek(key).is_some_and(|entry| {
            let known = !matches!(entry.state, ReachabilityState::Incomplete { .. });
            known && entry.mac != mac && now < entry.since + ARP_LOCK_TIME
        })
    }

    /// Confirms that a neighbour with the address `mac` is reachable, because TCP connections in
    /// the shard `by` made progress through it (RFC 4861 §7.3.1).
    pub(super) fn confirm(
        &mut self,
        now: Instant,
        by: Parts,
        key: HopKey,
        mac: MacAddr,
        reachable_until: Instant,
    ) {
        if let Some(entry) = self.used.get_mut(&key)
            && entry.mac == mac
            && !matches!(entry.state, ReachabilityState::Incomplete { .. })
        {
            entry.state = ReachabilityState::Reachable { until: reachable_until };
            self.news.push_back((Parts::FIRST.and(by), entry.known(now, key)));
        }
    }

    /// Returns the MAC address of the neighbour `key`, if it is known.
    pub(super) fn mac(&self, key: &HopKey) -> Option<MacAddr> {
        if let Some(permanent) = self.permanent.get(key) {
            return Some(permanent.mac);
        }
        match self.used.peek(key) {
            Some(entry) => {
                (!matches!(entry.state, ReachabilityState::Incomplete { .. })).then_some(entry.mac)
            }
            None => self.heard.peek(key).map(|heard| heard.mac),
        }
    }

    /// Returns whether the neighbour `key` has an entry, in any state.
    pub(super) fn is_known(&self, key: &HopKey) -> bool {
        self.used.peek(key).is_some()
            || self.heard.peek(key).is_some()
            || self.permanent.contains_key(key)
    }

    /// Returns the number of entries that the operator has set.
    pub(super) fn permanent_len(&self) -> usize {
        self.permanent.len()
    }

    /// Returns whether the operator has set the entry of `key`.
    pub(super) fn is_permanent(&self, key: &HopKey) -> bool {
        self.permanent.contains_key(key)
    }

    /// Sets a permanent MAC address for the neighbour `key`. Shards that use the neighbour are
    /// updated, so that they send the packets that wait for the address.
    pub(super) fn set_permanent(&mut self, key: HopKey, mac: MacAddr) {
        let users = self.take(&key).unwrap_or(Parts::FIRST);
        let permanent = Permanent { mac, users };
        self.news.push_back((users, permanent.known(key)));
        self.permanent.insert(key, permanent);
    }

    /// Removes the neighbour `key`, because the operator requests it. The next packet to the
    /// neighbour then causes a solicitation. Returns false if the neighbour had no entry.
    pub(super) fn remove(&mut self, key: HopKey) -> bool {
        let Some(users) = self.take(&key) else { return false };
        self.news.push_back((users, NeighborUpdate::Forgotten(key)));
        true
    }

    /// Removes all neighbours of an interface that is set down, like Linux.
    pub(super) fn remove_all_of(&mut self, iface: IfaceId) {
        let keys: Vec<HopKey> = self.iter().map(|known| (known.iface, known.addr)).collect();
        for key in keys.into_iter().filter(|key| key.0 == iface) {
            self.remove(key);
        }
    }

    /// Removes all neighbours of an interface, and the settings that routers advertised on it.
    pub(super) fn on_interface_removed(&mut self, iface: IfaceId) {
        self.remove_all_of(iface);
        if let Some(retrans) = self.retrans.get_mut(iface.index()) {
            *retrans = None;
        }
    }

    /// Removes the neighbours of an interface that has lost its carrier, as Linux does. Keeps the
    /// neighbours that the operator has set.
    pub(super) fn forget_all_of(&mut self, iface: IfaceId) {
        let keys: Vec<HopKey> = self.iter().map(|known| (known.iface, known.addr)).collect();
        for key in keys.into_iter().filter(|key| key.0 == iface) {
            if !self.permanent.contains_key(&key) {
                self.remove(key);
            }
        }
    }

    /// Removes the entry of a neighbour from its table, and returns the shards that use it.
    fn take(&mut self, key: &HopKey) -> Option<Parts> {
        self.asked.remove(key);
        let used = self.used.remove(key).map(|entry| entry.users);
        let heard = self.heard.remove(key).map(|_| Parts::FIRST);
        let permanent = self.permanent.remove(key).map(|entry| entry.users);
        used.or(heard).or(permanent)
    }

    pub(super) fn set_router(&mut self, key: &HopKey, router: bool) {
        if let Some(entry) = self.used.get_mut(key) {
            entry.router = router;
        } else if let Some(heard) = self.heard.get_mut(key) {
            heard.router = router;
        }
    }

    /// Changes the state of all entries whose deadline has passed, and returns the required
    /// actions.
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
            let users = self.used.remove(&key).map_or(Parts::FIRST, |entry| entry.users);
            self.asked.remove(&key);
            self.news.push_back((users, NeighborUpdate::Failed(key)));
            events.push(Event::Failed(key));
        }
        let deadlines = self.used.iter().filter_map(|(_, entry)| entry.deadline());
        self.next = deadlines.min().unwrap_or(Instant::FAR);
        events
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NeighborInfo> {
        let used = self.used.iter().map(|((iface, addr), entry)| {
            let state = match entry.state {
                ReachabilityState::Incomplete { .. } => NeighborState::Incomplete,
                ReachabilityState::Reachable { .. } => NeighborState::Reachable,
                ReachabilityState::Stale => NeighborState::Stale,
                ReachabilityState::Delay { .. } => NeighborState::Delay,
                ReachabilityState::Probe { .. } => NeighborState::Probe,
            };
            let mac = (state != NeighborState::Incomplete).then_some(entry.mac);
            NeighborInfo { iface: *iface, addr: *addr, mac, state, router: entry.router }
        });
        used.chain(self.heard.iter().map(|((iface, addr), heard)| NeighborInfo {
            iface: *iface,
            addr: *addr,
            mac: Some(heard.mac),
            state: NeighborState::Stale,
            router: heard.router,
        }))
        .chain(self.permanent.iter().map(|((iface, addr), permanent)| NeighborInfo {
            iface: *iface,
            addr: *addr,
            mac: Some(permanent.mac),
            state: NeighborState::Permanent,
            router: false,
        }))
    }
}

/// Sets the flag IsRouter of a neighbour to `said`, if given. Returns true if the neighbour was a
/// router and is no longer one.
fn change(router: &mut bool, said: Option<bool>) -> bool {
    let was = core::mem::replace(router, said.unwrap_or(*router));
    was && !*router
}

impl Permanent {
    /// Returns the update for the shards that use this permanent neighbour. The shards need not
    /// report its use (`tell_at`), because a permanent entry never changes state.
    fn known(&self, key: HopKey) -> NeighborUpdate {
        NeighborUpdate::Known { key, mac: self.mac, tell_at: Instant::FAR }
    }
}

fn retrans_time(by_iface: &[Option<Duration>], (iface, addr): HopKey) -> Duration {
    let set = by_iface.get(iface.index()).copied().flatten();
    set.filter(|_| addr.is_ipv6()).unwrap_or(RETRANS_TIME)
}

#[cfg(test)]
mod tests;
