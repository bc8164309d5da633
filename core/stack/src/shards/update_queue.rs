//! Queue of updates of neighbours and path MTUs that the first shard has sent, and another shard
//! has not read yet.
//!
//! Updates do not use the rings between shards, so that a flood of announcements on the link causes
//! no packet loss. Updates also never wait for space. A newer update of a neighbour or path MTU
//! replaces a waiting one. A shard reads a counter once per batch of packets to detect updates.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use crate::limits::{PATH_MTUS_WAITING_MAX, UPDATES_WAITING_MAX};
use crate::net::{HopKey, NeighborUpdate};

/// Updates for one shard, aligned to separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct UpdateQueue {
    /// Number of updates that were added so far. The number is incremented after an update was
    /// added.
    said: AtomicU64,
    unheard: Mutex<Unheard>,
}

impl UpdateQueue {
    /// Adds an update for the shard that reads this queue. Returns false if there were too many
    /// updates. Some are then lost, and the shard is notified of the loss.
    pub fn say(&self, news: NeighborUpdate) -> bool {
        let mut unheard = self.unheard.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = unheard.add(news);
        // Use Release, so that a thread that reads the number also sees the updates.
        self.said.fetch_add(1, Ordering::Release);
        has_room
    }

    /// Returns whether more than `heard` updates were added, so that there are unread ones.
    #[inline]
    pub fn has_more(&self, heard: u64) -> bool {
        self.said.load(Ordering::Acquire) != heard
    }

    /// Removes and returns all unread updates; `heard` is the number of updates that were read
    /// before, and is increased. Returns `None` if another thread holds the lock. A later call then
    /// finds the updates.
    #[inline]
    pub fn hear(&self, heard: &mut u64) -> Option<Unheard> {
        if !self.has_more(*heard) {
            return None;
        }
        let mut unheard = match self.unheard.try_lock() {
            Ok(unheard) => unheard,
            Err(TryLockError::Poisoned(unheard)) => unheard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // Relaxed is enough, because `said` changes only while the lock is held.
        *heard = self.said.load(Ordering::Relaxed);
        Some(std::mem::take(&mut *unheard))
    }
}

/// Updates that were sent to a shard (stack), and that the shard has not read yet.
#[derive(Debug, Default)]
pub(crate) struct Unheard {
    /// Latest update of each neighbour; at most [`UPDATES_WAITING_MAX`] entries.
    hops: BTreeMap<HopKey, NeighborUpdate>,
    /// Whether earlier updates were lost. Updates about failed neighbours are not counted.
    all_forgotten: bool,
    /// Updates of path MTUs, one per path; at most [`PATH_MTUS_WAITING_MAX`] entries.
    ways: VecDeque<NeighborUpdate>,
}

impl Unheard {
    fn add(&mut self, news: NeighborUpdate) -> bool {
        match news {
            NeighborUpdate::Known { key, .. } | NeighborUpdate::Failed(key) => {
                self.add_hop(key, news)
            }
            // Keep the failure. Packets that wait for the neighbour must still cause an ICMP error.
            NeighborUpdate::Forgotten(key)
                if matches!(self.hops.get(&key), Some(NeighborUpdate::Failed(_))) =>
            {
                true
            }
            NeighborUpdate::Forgotten(key) => self.add_hop(key, news),
            NeighborUpdate::AllForgotten => {
                self.lose();
                true
            }
            NeighborUpdate::TooBig { way, mtu } => self.add_way(way, mtu),
        }
    }

    fn add_hop(&mut self, key: HopKey, news: NeighborUpdate) -> bool {
        let has_room = self.hops.len() < UPDATES_WAITING_MAX || self.hops.contains_key(&key);
        if !has_room {
            self.lose();
        }
        self.hops.insert(key, news);
        has_room
    }

    /// Drops all updates except failures of neighbours. If failures alone occupy more than half of
    /// the space, they are dropped as well. Packets that wait for a failed neighbour then cause an
    /// ICMP error only after three more requests.
    fn lose(&mut self) {
        self.hops.retain(|_, news| matches!(news, NeighborUpdate::Failed(_)));
        if self.hops.len() > UPDATES_WAITING_MAX / 2 {
            self.hops.clear();
        }
        self.all_forgotten = true;
    }

    fn add_way(&mut self, of: HopKey, to: u32) -> bool {
        for news in &mut self.ways {
            if let NeighborUpdate::TooBig { way, mtu } = news
                && *way == of
            {
                *mtu = to.min(*mtu);
                return true;
            }
        }
        let has_room = self.ways.len() < PATH_MTUS_WAITING_MAX;
        if !has_room {
            self.ways.pop_front();
        }
        self.ways.push_back(NeighborUpdate::TooBig { way: of, mtu: to });
        has_room
    }

    /// Returns the updates in the required order: failures of neighbours, then the loss of updates
    /// if any were lost, then all remaining updates.
    pub fn into_update(self) -> impl Iterator<Item = NeighborUpdate> {
        let (failed, others): (Vec<_>, Vec<_>) =
            self.hops.into_values().partition(|news| matches!(news, NeighborUpdate::Failed(_)));
        let lost = self.all_forgotten.then_some(NeighborUpdate::AllForgotten);
        failed.into_iter().chain(lost).chain(others).chain(self.ways)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use towpath_tcp::Instant;
    use towpath_wire::MacAddr;

    use super::*;
    use crate::net::IfaceId;

    fn nth(n: usize) -> HopKey {
        (IfaceId(1), IpAddr::V4((0x0a00_0000 + n as u32).into()))
    }

    fn known(n: usize, at: u8) -> NeighborUpdate {
        NeighborUpdate::Known {
            key: nth(n),
            mac: MacAddr([2, 0, 0, 0, 0, at]),
            tell_at: Instant(1),
        }
    }

    fn heard(bulletin: &UpdateQueue, heard: &mut u64) -> Vec<NeighborUpdate> {
        assert!(bulletin.has_more(*heard));
        let unheard = bulletin.hear(heard).expect("nobody has the lock");
        assert!(!bulletin.has_more(*heard) && bulletin.hear(heard).is_none());
        unheard.into_update().collect()
    }

    #[test]
    fn of_a_neighbour_and_a_way_the_last_news_count() {
        let (bulletin, mut seen) = (UpdateQueue::default(), 0);
        let too_big = |n, mtu| NeighborUpdate::TooBig { way: nth(n), mtu };
        for at in 0..=255 {
            assert!(bulletin.say(known(1, at)) && bulletin.say(known(2, 9)));
            assert!(bulletin.say(too_big(3, 1500 - u32::from(at))));
        }
        bulletin.say(NeighborUpdate::Failed(nth(2)));
        bulletin.say(NeighborUpdate::Forgotten(nth(2)));
        let expected = [NeighborUpdate::Failed(nth(2)), known(1, 255), too_big(3, 1245)];
        assert_eq!(heard(&bulletin, &mut seen), expected);
        bulletin.say(known(1, 1));
        bulletin.say(NeighborUpdate::Forgotten(nth(1)));
        assert_eq!(heard(&bulletin, &mut seen), [NeighborUpdate::Forgotten(nth(1))]);
    }

    #[test]
    fn when_there_are_too_many_neighbours_are_forgotten_and_failures_are_not() {
        let (bulletin, mut seen) = (UpdateQueue::default(), 0);
        bulletin.say(NeighborUpdate::Failed(nth(0)));
        for n in 1..UPDATES_WAITING_MAX {
            assert!(bulletin.say(known(n, 1)));
        }
        assert!(bulletin.say(known(5, 2)), "it takes the place of the last");
        assert!(!bulletin.say(known(UPDATES_WAITING_MAX, 1)));
        let expected = [
            NeighborUpdate::Failed(nth(0)),
            NeighborUpdate::AllForgotten,
            known(UPDATES_WAITING_MAX, 1),
        ];
        assert_eq!(heard(&bulletin, &mut seen), expected);
        // The number of failures of neighbours is limited, too.
        for n in 0..=UPDATES_WAITING_MAX {
            assert_eq!(bulletin.say(NeighborUpdate::Failed(nth(n))), n < UPDATES_WAITING_MAX);
        }
        let expected =
            [NeighborUpdate::Failed(nth(UPDATES_WAITING_MAX)), NeighborUpdate::AllForgotten];
        assert_eq!(heard(&bulletin, &mut seen), expected);
    }

    #[test]
    fn path_mtus_have_room_of_their_own() {
        let (bulletin, mut seen) = (UpdateQueue::default(), 0);
        bulletin.say(known(1, 1));
        for n in 0..=PATH_MTUS_WAITING_MAX {
            let has_room = bulletin.say(NeighborUpdate::TooBig { way: nth(n), mtu: 1000 });
            assert_eq!(has_room, n < PATH_MTUS_WAITING_MAX);
        }
        let heard = heard(&bulletin, &mut seen);
        assert_eq!(heard.len(), 1 + PATH_MTUS_WAITING_MAX);
        assert_eq!(heard[..2], [known(1, 1), NeighborUpdate::TooBig { way: nth(1), mtu: 1000 }]);
    }
}
