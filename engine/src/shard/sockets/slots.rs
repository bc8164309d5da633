//! Table of the sockets of a shard, with the engine's private state of each socket.
//!
//! Programs can write to the shared [`Slot`], so the engine stores the values that it relies on in
//! the private [`SlotEntry`].

mod entry;
mod holders;
mod options;
mod stamping;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{Relaxed, Release};

use towpath_ring::{Region, are_out, end_generation};
use towpath_shm::layout::{Kind, RawAddr, Slot, event, flags};
use towpath_stack::is_on_link;
use towpath_stack::net::IfaceId;

use self::options::reset;
use crate::shard::sockets::linux::state;
use crate::shard::sockets::slot_set::SlotSet;

pub(crate) use self::entry::{Child, Owned, Rare, SlotEntry, UNPACED};
pub(crate) use self::holders::{Holder, Holders};
pub(crate) use self::options::inherit;
pub(crate) use self::stamping::{STAMPS_MAX, Stamp};

/// The address family AF_INET.
pub(crate) const AF_INET: u32 = 2;
/// The address family AF_INET6.
pub(crate) const AF_INET6: u32 = 10;

/// Table of all sockets of a shard. The table grows by chunks of 256 slots, so that existing
/// entries are never moved.
#[derive(Debug)]
pub(crate) struct Slots {
    region: Region,
    /// Number of the first slot that belongs to this shard.
    first: u32,
    chunks: Vec<Vec<SlotState>>,
    free: Vec<u32>,
    max: u32,
    count: usize,
    /// Slots with new event bits, whose processes must be notified.
    posted: Vec<u32>,
    /// Freed slots that cannot be reused yet, because a program's thread still holds the lock of
    /// the closed socket.
    in_use: SlotSet,
    /// Slots that were added to `in_use` since the last [`Self::take_awaited`].
    awaited: Vec<u32>,
}

/// State of a slot that was used at least once.
#[derive(Debug)]
enum SlotState {
    Taken(SlotEntry),
    /// The slot is free. `generation` is the next even number after the generation of the last
    /// socket; slots in use have odd generations.
    Free {
        generation: u32,
    },
}

const CHUNK: usize = 256;

impl Slots {
    /// Creates an empty table for `max` slots, whose numbers begin at `first`.
    pub fn new(region: &Region, first: u32, max: u32) -> Self {
        Self {
            region: region.clone(),
            first,
            chunks: Vec::new(),
            free: Vec::new(),
            max,
            count: 0,
            posted: Vec::new(),
            in_use: SlotSet::default(),
            awaited: Vec::new(),
        }
    }

    /// Allocates a slot for a new socket. Programs can use the socket only after
    /// [`Slots::publish`]. Returns `None` if the table is full.
    pub fn allocate(&mut self, kind: Kind, family: u32, protocol: u32) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let place = self.place_mut(index)?;
        let SlotState::Free { generation } = *place else { unreachable!("a free slot is taken") };
        *place = SlotState::Taken(SlotEntry::new(generation.wrapping_add(1), kind, family));
        self.count += 1;
        reset(self.shared(index));
        let shared = self.shared(index);
        shared.kind.store(kind as u32, Relaxed);
        shared.family.store(family, Relaxed);
        shared.protocol.store(protocol as u8, Relaxed);
        Some(index)
    }

    /// Appends a free slot to the table, and returns its number. Returns `None` if the table has
    /// its maximum size.
    fn grow(&mut self) -> Option<u32> {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut()?;
        let index = u32::try_from(before + chunk.len()).ok().filter(|index| *index < self.max)?;
        chunk.push(SlotState::Free { generation: 0 });
        Some(self.first + index)
    }

    fn place(&self, index: u32) -> Option<&SlotState> {
        let nth = index.checked_sub(self.first)? as usize;
        self.chunks.get(nth / CHUNK)?.get(nth % CHUNK)
    }

    fn place_mut(&mut self, index: u32) -> Option<&mut SlotState> {
        let nth = index.checked_sub(self.first)? as usize;
        self.chunks.get_mut(nth / CHUNK)?.get_mut(nth % CHUNK)
    }

    /// Writes the generation of a slot to shared memory. From then on, programs can use the socket
    /// by its slot and generation.
    pub fn publish(&self, index: u32) {
        if let Some(entry) = self.get(index) {
            self.shared(index).generation.store(entry.generation, Release);
        }
    }

    /// Frees the slot of a socket that has ended. The slot is reused only after all threads of
    /// programs have released its lock.
    pub fn release(&mut self, index: u32) {
        let Some(place) = self.place_mut(index) else { return };
        let SlotState::Taken(entry) = place else { return };
        let generation = entry.generation.wrapping_add(1);
        *place = SlotState::Free { generation };
        self.count -= 1;
        let shared = self.shared(index);
        let are_out = end_generation(shared, generation);
        shared.kind.store(Kind::Free as u32, Relaxed);
        // Wake threads of programs that sleep on this socket, so that they notice the changed
        // generation.
        towpath_ring::wake(shared);
        if are_out.is_ok() {
            self.free.push(index);
        } else {
            self.in_use.insert(index);
            self.awaited.push(index);
        }
    }

    /// Removes and returns the slots that could not be reused since the last call. The caller must
    /// call [`Self::collect`] for each.
    pub fn take_awaited(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.awaited)
    }

    /// Adds a slot again to the result of [`Self::take_awaited`], because a thread still holds its
    /// lock.
    pub fn await_again(&mut self, index: u32) {
        self.awaited.push(index);
    }

    /// Makes a freed slot available for new sockets. Fails if a program's thread holds its lock,
    /// and returns the channel number of the thread's process. The thread notifies the engine when
    /// it releases the lock.
    pub fn collect(&mut self, index: u32) -> Result<(), u32> {
        if self.in_use.contains(index) {
            are_out(self.shared(index))?;
            self.in_use.remove(index);
            self.free.push(index);
        }
        Ok(())
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&SlotEntry> {
        match self.place(index)? {
            SlotState::Taken(entry) => Some(entry),
            SlotState::Free { .. } => None,
        }
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut SlotEntry> {
        match self.place_mut(index)? {
            SlotState::Taken(entry) => Some(entry),
            SlotState::Free { .. } => None,
        }
    }

    /// Returns the socket that a program has named by slot and generation. `None` if the socket
    /// does not exist or is being closed.
    pub fn find(&mut self, index: u32, generation: u32) -> Option<&mut SlotEntry> {
        self.get_mut(index).filter(|entry| entry.generation == generation && !entry.closing)
    }

    /// Returns the part of a slot that is in memory shared with programs.
    ///
    /// # Panics
    /// Panics if there is no such slot. Valid numbers come from `allocate`.
    pub fn shared(&self, index: u32) -> &Slot {
        self.region.slot(index).expect("slots of the engine exist")
    }

    /// Sets event bits of a socket. Programs are notified at the end of the current iteration of
    /// the event loop.
    pub fn post(&mut self, index: u32, bits: u8) {
        let Some(entry) = self.get_mut(index) else { return };
        let is_first = entry.news == 0;
        entry.news |= bits;
        if is_first {
            self.posted.push(index);
        }
    }

    /// Queues a slot for notification again if programs were not yet notified of all its event
    /// bits.
    pub fn post_again(&mut self, index: u32) {
        if self.get(index).is_some_and(|entry| entry.news != 0) {
            self.posted.push(index);
        }
    }

    /// Removes and returns the slots whose event bits were set since the last call.
    pub fn take_posted(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.posted)
    }

    /// Takes back an emptied list of slots, to reuse its memory.
    pub fn reuse_posted(&mut self, mut list: Vec<u32>) {
        list.clear();
        if self.posted.is_empty() {
            self.posted = list;
        }
    }

    /// Returns whether any socket has event bits of which programs were not notified.
    pub fn has_events(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Sets flags of a socket without publishing them. Programs see the flags at the end of the
    /// iteration of the event loop, after the state that belongs to the flags.
    pub fn note_flags(&mut self, index: u32, set: u32) {
        if let Some(entry) = self.get_mut(index) {
            entry.flags |= set;
        }
    }

    /// Sets and clears flags of a socket, and publishes them at once.
    pub fn set_flags(&mut self, index: u32, set: u32, clear: u32) {
        let Some(entry) = self.get_mut(index) else {
            return;
        };
        entry.flags = entry.flags & !clear | set;
        let now = entry.flags;
        let published = &self.shared(index).flags;
        // Do not change the flag `URGENT`, which the receive FIFO sets (`EngineRecv::mark_urgent`).
        published.store(now | published.load(Relaxed) & flags::URGENT, Release);
    }

    /// Marks a connection as ended in both directions. `errno` is its error, or 0 after an orderly
    /// close.
    pub fn fail(&mut self, index: u32, errno: i32) {
        let shared = self.shared(index);
        if errno != 0 {
            shared.error.store(errno, Release);
        }
        shared.state.store(state::CLOSE, Release);
        let over = flags::TX_CLOSED | flags::DEAD;
        let opening = self.get(index).map_or(0, |entry| entry.flags & flags::OPENING);
        // After a connect that failed before the handshake was complete, the program may retry.
        let connected = if opening != 0 { flags::CONNECTED } else { 0 };
        self.set_flags(index, over, flags::CONNECTING | flags::OPENING | connected);
        self.post(
            index,
            event::RX
                | event::TX
                | event::RDHUP
                | event::HUP
                | if errno != 0 { event::ERROR } else { 0 },
        );
    }

    /// Iterates over all sockets: slot numbers and entries.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &SlotEntry)> {
        self.chunks.iter().flatten().zip(self.first..).filter_map(|(place, index)| match place {
            SlotState::Taken(entry) => Some((index, entry)),
            SlotState::Free { .. } => None,
        })
    }

    /// Returns the highest slot number that was ever used, plus one.
    pub fn end(&self) -> u32 {
        let last = self.chunks.last().map_or(0, Vec::len);
        self.first + (self.chunks.len().saturating_sub(1) * CHUNK + last) as u32
    }

    /// Returns the number of the first slot that belongs to this shard.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Returns whether less than an eighth of the table's slots are free.
    pub fn is_almost_full(&self) -> bool {
        self.count >= (self.max - self.max / 8) as usize
    }

    /// Returns the number of sockets in the table.
    pub fn len(&self) -> usize {
        self.count
    }
}

/// Converts an address for programs with a socket of `family`. For AF_INET6, an IPv4 address
/// becomes an IPv4-mapped one.
pub(crate) fn present(family: u32, addr: SocketAddr) -> RawAddr {
    match addr {
        SocketAddr::V4(v4) if family == AF_INET6 => {
            RawAddr::new(SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()))
        }
        _ => RawAddr::new(addr),
    }
}

/// Converts an address as [`present`] does. The scope id of a link-local address is the 1-based
/// number of its interface (RFC 4007 §6).
pub(crate) fn present_on(family: u32, addr: SocketAddr, iface: Option<IfaceId>) -> RawAddr {
    let scope = match addr.ip() {
        IpAddr::V6(ip) if is_on_link(ip) => iface.map_or(0, |iface| u32::from(iface.0) + 1),
        _ => 0,
    };
    RawAddr { scope, ..present(family, addr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(max: u32) -> Slots {
        Slots::new(&Region::create().expect("memory"), 0, max)
    }

    #[test]
    fn a_slot_used_again_has_another_generation() {
        let mut slots = slots(2);
        let index = slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        let generation = slots.get(index).expect("it is there").generation;
        assert!(slots.find(index, generation).is_some());
        slots.release(index);
        slots.release(index);
        assert!(slots.find(index, generation).is_none());
        assert_eq!((slots.len(), slots.free.len()), (0, 1));
        assert_eq!(slots.allocate(Kind::Stream, AF_INET, 6), Some(index));
        assert!(slots.find(index, generation).is_none());
        assert!(slots.find(index, generation + 2).is_some());
    }

    #[test]
    fn the_table_has_an_end_and_crosses_chunks() {
        let max = CHUNK as u32 + 3;
        let mut slots = slots(max);
        for index in 0..max {
            assert_eq!(slots.allocate(Kind::Datagram, AF_INET6, 17), Some(index));
        }
        assert_eq!(slots.allocate(Kind::Datagram, AF_INET6, 17), None);
        assert_eq!(slots.allocate(Kind::Datagram, AF_INET6, 17), None);
        slots.release(5);
        assert_eq!(slots.iter().map(|(index, _)| index).filter(|index| *index < 7).count(), 6);
        assert_eq!(slots.len() as u32, max - 1);
        assert_eq!(slots.allocate(Kind::Datagram, AF_INET6, 17), Some(5));
    }
}
