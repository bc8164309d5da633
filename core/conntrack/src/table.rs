//! Table of tracked flows, limited in total and per source address.

use crate::flow::{FlowClass, FlowTimeouts, NONE, TrackedFlow};
use crate::index::Index;
use crate::sources::FlowSources;
use crate::tuple::{FlowDirection, HashKey, Tuple};

/// Resolution in nanoseconds at which the time of a flow's last packet is recorded. A flow
/// therefore moves to the end of its class list at most once per second, because a move writes to
/// up to six flows.
pub(crate) const REFRESH_NS: u64 = 1_000_000_000;

/// Maximum number of expired flows that one call of [`TrackedFlows::expire`] removes from each
/// class. The call is made while a packet is processed, so the limit bounds the delay of the
/// packet.
const EXPIRED_MAX: usize = 64;

/// Factor: a source may have at most SOURCE_PART times as many flows as new flows can still obtain,
/// because established flows are never evicted. If they leave 1/8 of the table, for example, a
/// single source may have the other 7/8. The bound leaves room for clients with few flows.
const SOURCE_PART: usize = 7;

/// Reason why a new flow is not added to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableRefusal {
    /// The table is full, and none of its flows may be evicted.
    Full,
    /// The source address already has its maximum number of flows, or [`SOURCE_PART`] times as many
    /// as new flows can obtain.
    SourceFull,
}

/// First and last flow of a class, ordered by the time of their last packets.
#[derive(Debug, Clone, Copy)]
struct ClassList {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// All tracked flows. The memory for the maximum number is reserved on creation; the kernel commits
/// pages when they are used.
#[derive(Debug)]
pub(crate) struct TrackedFlows {
    flows: Vec<TrackedFlow>,
    /// First unused slot of the flow table. Unused slots form a list linked by their `newer` field.
    free: u32,
    flows_max: usize,
    per_source_max: u32,
    index: Index,
    lists: [ClassList; FlowClass::ALL.len()],
    timeouts_ns: [u64; FlowClass::ALL.len()],
    sources: FlowSources,
    key: HashKey,
}

/// Reason why a flow was removed from the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowRemoval {
    /// No packet arrived within the timeout of the flow's class.
    Expired,
    /// The flow was evicted because the table was full, to make room for a new flow. No source had
    /// a large part of the table.
    Evicted,
    /// Like [`Self::Evicted`], but the source of the evicted flow had a large part of the table.
    SourceEvicted,
    /// The operator removed the flow, or the router lost the address that the flow was translated
    /// to.
    Deleted,
}

impl TrackedFlows {
    pub(crate) fn new(
        flows_max: usize,
        per_source_max: u32,
        timeouts: &FlowTimeouts,
        key: HashKey,
    ) -> Self {
        Self {
            flows: Vec::with_capacity(flows_max),
            free: NONE,
            flows_max,
            per_source_max,
            index: Index::new(2 * flows_max),
            lists: [ClassList { oldest: NONE, newest: NONE, len: 0 }; FlowClass::ALL.len()],
            timeouts_ns: timeouts.0.map(|time| time.as_nanos() as u64 + REFRESH_NS),
            sources: FlowSources::new(flows_max, key),
            key,
        }
    }

    /// Returns the number of flows in the table, including those that have expired but were not yet
    /// removed.
    pub(crate) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.len as usize).sum()
    }

    /// Returns the number of flows of `class`.
    pub(crate) fn len_of(&self, class: FlowClass) -> usize {
        self.lists[class as usize].len as usize
    }

    /// Returns the highest number of flows that the table has held at once.
    pub(crate) fn slots(&self) -> u32 {
        self.flows.len() as u32
    }

    /// Returns the flow in the table slot `id`; `None` if the slot is empty.
    pub(crate) fn get(&self, id: u32) -> Option<&TrackedFlow> {
        self.flows.get(id as usize).filter(|flow| flow.is_live)
    }

    #[inline]
    pub(crate) fn at(&self, id: u32) -> &TrackedFlow {
        &self.flows[id as usize]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, id: u32) -> &mut TrackedFlow {
        &mut self.flows[id as usize]
    }

    /// Returns the flow whose packets have this tuple, and the direction of these packets.
    #[inline]
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<(u32, FlowDirection)> {
        let entry = self.index.find(tuple.hash(self.key), |entry| {
            self.flows[(entry >> 1) as usize].tuples[(entry & 1) as usize] == *tuple
        })?;
        let way = if entry & 1 == 0 { FlowDirection::Original } else { FlowDirection::Reply };
        Some((entry >> 1, way))
    }

    /// Returns the nanoseconds until a flow expires; 0 if it has expired.
    pub(crate) fn left_ns(&self, id: u32, now_ns: u64) -> u64 {
        let flow = self.at(id);
        (flow.last_ns + self.timeouts_ns[flow.class as usize]).saturating_sub(now_ns)
    }

    /// Adds a flow whose tuples are not in the table. Calls `removed` for each flow that is removed
    /// to make room.
    pub(crate) fn insert(
        &mut self,
        mut flow: TrackedFlow,
        now_ns: u64,
        mut removed: impl FnMut(u32, &TrackedFlow, FlowRemoval),
    ) -> Result<u32, TableRefusal> {
        let src = flow.tuples[0].src;
        let obtainable = self.flows_max - self.len() + self.evictable_len();
        if obtainable == 0 {
            return Err(TableRefusal::Full);
        }
        let flows = self.sources.flows_of(src);
        if flows >= self.per_source_max || flows as usize >= SOURCE_PART * obtainable {
            return Err(TableRefusal::SourceFull);
        }
        if self.len() >= self.flows_max {
            let (victim, why) = self.victim().ok_or(TableRefusal::Full)?;
            self.remove(victim, why, &mut removed);
        }
        flow.source = self.sources.add(src);
        (flow.last_ns, flow.is_live) = (now_ns, true);
        let id = self.free;
        let id = match self.flows.get_mut(id as usize) {
            Some(slot) => {
                self.free = slot.newer;
                flow.generation = slot.generation.wrapping_add(1);
                *slot = flow;
                id
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
        };
        for (way, tuple) in (0..).zip(&flow.tuples) {
            self.index.insert(tuple.hash(self.key), id << 1 | way);
        }
        self.link(id);
        Ok(id)
    }

    /// Removes a flow from the table.
    pub(crate) fn remove(
        &mut self,
        id: u32,
        why: FlowRemoval,
        removed: &mut impl FnMut(u32, &TrackedFlow, FlowRemoval),
    ) {
        self.unlink(id);
        let flow = *self.at(id);
        for (way, tuple) in (0..).zip(&flow.tuples) {
            self.index.remove(tuple.hash(self.key), id << 1 | way);
        }
        self.sources.remove(flow.source);
        removed(id, &flow, why);
        let free = self.free;
        let slot = self.at_mut(id);
        (slot.is_live, slot.newer) = (false, free);
        self.free = id;
    }

    /// Updates the class of a flow and the time of its last packet.
    #[inline]
    pub(crate) fn refresh(&mut self, id: u32, class: FlowClass, now_ns: u64) {
        let flow = self.at(id);
        if flow.class != class || now_ns.saturating_sub(flow.last_ns) >= REFRESH_NS {
            self.unlink(id);
            let flow = self.at_mut(id);
            (flow.class, flow.last_ns) = (class, now_ns);
            self.link(id);
        }
    }

    /// Removes up to [`EXPIRED_MAX`] expired flows of each class. Returns whether there may be more
    /// of them.
    pub(crate) fn expire(
        &mut self,
        now_ns: u64,
        removed: &mut impl FnMut(u32, &TrackedFlow, FlowRemoval),
    ) -> bool {
        let mut has_more = false;
        for class in 0..self.lists.len() {
            has_more |= (0..EXPIRED_MAX).all(|_| {
                let oldest = self.lists[class].oldest;
                let is_expired = oldest != NONE && self.left_ns(oldest, now_ns) == 0;
                if is_expired {
                    self.remove(oldest, FlowRemoval::Expired, removed);
                }
                is_expired
            });
        }
        has_more
    }

    /// Returns the flow to evict from a full table. If a source has a large part of the table, it
    /// loses one of its own flows, and clients with few flows keep theirs. Otherwise returns the
    /// evictable flow whose last packet is oldest. A flood of forged packets therefore evicts no
    /// established flow.
    fn victim(&self) -> Option<(u32, FlowRemoval)> {
        if let Some(id) = self.sources.victim() {
            return Some((id, FlowRemoval::SourceEvicted));
        }
        let oldest = evictable_classes().map(|class| self.lists[class as usize].oldest);
        let oldest = oldest.filter(|id| *id != NONE).min_by_key(|id| self.at(*id).last_ns)?;
        Some((oldest, FlowRemoval::Evicted))
    }

    fn evictable_len(&self) -> usize {
        evictable_classes().map(|class| self.len_of(class)).sum()
    }

    fn link(&mut self, id: u32) {
        let class = self.at(id).class as usize;
        let newest = self.lists[class].newest;
        let flow = self.at_mut(id);
        (flow.older, flow.newer) = (newest, NONE);
        match newest {
            NONE => self.lists[class].oldest = id,
            newest => self.at_mut(newest).newer = id,
        }
        self.lists[class].newest = id;
        self.lists[class].len += 1;
        self.sources.link(&mut self.flows, id);
    }

    fn unlink(&mut self, id: u32) {
        let &TrackedFlow { older, newer, class, .. } = self.at(id);
        match older {
            NONE => self.lists[class as usize].oldest = newer,
            older => self.at_mut(older).newer = newer,
        }
        match newer {
            NONE => self.lists[class as usize].newest = older,
            newer => self.at_mut(newer).older = older,
        }
        self.lists[class as usize].len -= 1;
        self.sources.unlink(&mut self.flows, id);
    }

    /// Returns the memory reserved for the table in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.flows.capacity() * size_of::<TrackedFlow>() + self.sources.bytes() + self.index.bytes()
    }
}

fn evictable_classes() -> impl Iterator<Item = FlowClass> {
    FlowClass::ALL.into_iter().filter(|class| class.eviction_rank().is_some())
}
