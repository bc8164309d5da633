//! Sources of flows: the number of flows of each source address, and its evictable flows.
//!
//! Each source has one list of evictable flows per [`EvictionRank`], ordered by the time of their
//! last packets. The list of large sources is updated when a source crosses the bound. Therefore
//! the search for the largest source does not depend on the number of sources.

use core::mem::replace;
use core::net::IpAddr;

use crate::flow::{EvictionRank, NONE, TrackedFlow};
use crate::index::Index;
use crate::tuple::HashKey;

/// Divisor: a source is large if more than 1/LARGE_PART of the table are evictable flows of it.
/// There are fewer than LARGE_PART large sources. A lower value would leave more sources that fill
/// the table together and are not large. With a higher value, a flood from forged addresses would
/// evict the flows of a client that has only a few hundred.
const LARGE_PART: usize = 64;

/// Source address with its flows.
#[derive(Debug, Clone, Copy)]
struct FlowSource {
    /// IPv4 address, or the first 64 bits of an IPv6 address, because one host can use all
    /// addresses of a /64.
    addr: IpAddr,
    flows: u32,
    next_free: u32,
    /// Evictable flows, one list per rank.
    evictable: [EvictableList; EvictionRank::ALL.len()],
}

/// First and last evictable flow of a source and a rank.
#[derive(Debug, Clone, Copy)]
struct EvictableList {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// Sources of all tracked flows. The memory for the maximum number is reserved on creation.
#[derive(Debug)]
pub(crate) struct FlowSources {
    slots: Vec<FlowSource>,
    /// First unused slot. Unused slots form a list linked by their `next_free` field.
    free: u32,
    index: Index,
    key: HashKey,
    /// Slots of the sources with more than `large_above` evictable flows.
    large: Vec<u32>,
    large_above: u32,
}

impl FlowSource {
    fn evictable_len(&self) -> u32 {
        self.evictable.iter().map(|list| list.len).sum()
    }
}

impl FlowSources {
    pub(crate) fn new(flows_max: usize, key: HashKey) -> Self {
        Self {
            slots: Vec::with_capacity(flows_max),
            free: NONE,
            index: Index::new(flows_max),
            key,
            large: Vec::with_capacity(LARGE_PART),
            large_above: (flows_max / LARGE_PART).max(1) as u32,
        }
    }

    /// Returns the number of flows of a source address.
    pub(crate) fn flows_of(&self, addr: IpAddr) -> u32 {
        self.find(source_key(addr)).map_or(0, |slot| self.slots[slot as usize].flows)
    }

    /// Counts a new flow of a source address, and returns the slot of the source.
    pub(crate) fn add(&mut self, addr: IpAddr) -> u32 {
        let addr = source_key(addr);
        if let Some(slot) = self.find(addr) {
            self.slots[slot as usize].flows += 1;
            return slot;
        }
        let empty = EvictableList { oldest: NONE, newest: NONE, len: 0 };
        let evictable = [empty; EvictionRank::ALL.len()];
        let source = FlowSource { addr, flows: 1, next_free: NONE, evictable };
        let slot = match self.slots.get_mut(self.free as usize) {
            Some(free) => {
                let slot = replace(&mut self.free, free.next_free);
                *free = source;
                slot
            }
            None => {
                self.slots.push(source);
                self.slots.len() as u32 - 1
            }
        };
        self.index.insert(self.key.of_end(addr, 0, 0, 0), slot);
        slot
    }

    /// Removes a flow from the count of its source. The slot is free after the last flow.
    pub(crate) fn remove(&mut self, slot: u32) {
        let source = &mut self.slots[slot as usize];
        source.flows -= 1;
        if source.flows == 0 {
            let hash = self.key.of_end(source.addr, 0, 0, 0);
            source.next_free = replace(&mut self.free, slot);
            self.index.remove(hash, slot);
        }
    }

    /// Appends a flow to the list of its source and rank, if the flow is evictable.
    pub(crate) fn link(&mut self, flows: &mut [TrackedFlow], id: u32) {
        let flow = &flows[id as usize];
        let (slot, Some(rank)) = (flow.source, flow.class.eviction_rank()) else { return };
        let source = &mut self.slots[slot as usize];
        let list = &mut source.evictable[rank as usize];
        list.len += 1;
        let older = replace(&mut list.newest, id);
        match flows.get_mut(older as usize) {
            Some(older) => older.source_newer = id,
            None => list.oldest = id,
        }
        let flow = &mut flows[id as usize];
        (flow.source_older, flow.source_newer) = (older, NONE);
        if source.evictable_len() == self.large_above + 1 {
            self.large.push(slot);
        }
    }

    /// Removes a flow from the list of its source and rank, if the flow is evictable.
    pub(crate) fn unlink(&mut self, flows: &mut [TrackedFlow], id: u32) {
        let &TrackedFlow { source: slot, source_older, source_newer, class, .. } =
            &flows[id as usize];
        let Some(rank) = class.eviction_rank() else { return };
        let source = &mut self.slots[slot as usize];
        let list = &mut source.evictable[rank as usize];
        list.len -= 1;
        match flows.get_mut(source_older as usize) {
            Some(older) => older.source_newer = source_newer,
            None => list.oldest = source_newer,
        }
        match flows.get_mut(source_newer as usize) {
            Some(newer) => newer.source_older = source_older,
            None => list.newest = source_older,
        }
        if source.evictable_len() == self.large_above {
            self.large.retain(|large| *large != slot);
        }
    }

    /// Returns the flow to evict from the large source with the most evictable flows. Unanswered
    /// flows go first, unless the source has more answered ones. Otherwise such a source would lose
    /// each new flow before its answer arrives.
    pub(crate) fn victim(&self) -> Option<u32> {
        let sources = self.large.iter().map(|slot| &self.slots[*slot as usize]);
        let largest = sources.max_by_key(|source| source.evictable_len())?;
        let [unanswered, answered] = largest.evictable;
        Some(if unanswered.len >= answered.len { unanswered.oldest } else { answered.oldest })
    }

    /// Returns the memory reserved for the sources in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<FlowSource>()
            + self.large.capacity() * size_of::<u32>()
            + self.index.bytes()
    }

    fn find(&self, addr: IpAddr) -> Option<u32> {
        let hash = self.key.of_end(addr, 0, 0, 0);
        self.index.find(hash, |slot| self.slots[slot as usize].addr == addr)
    }
}

fn source_key(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => addr,
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
    }
}
