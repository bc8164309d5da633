//! The engine's private half of every socket that programs can see.
//!
//! The shared [`Slot`] is for programs to read; the engine decides by its own [`Entry`].

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Relaxed, Release};

use towpath_ring::{EngineRecv, EngineSend, LastEvent, Region, are_out, end_generation};
use towpath_shm::layout::{Kind, RawAddr, Slot, event, flags};
use towpath_stack::net::IfaceId;
use towpath_stack::{DatagramError, ListenerName, SocketId, is_on_link};
use towpath_tcp::{CongestionKind, Instant};

use crate::ids::ChannelId;
use crate::shard::holds::Holds;
use crate::shard::linux::state;

/// AF_INET.
pub(crate) const AF_INET: u32 = 2;
/// AF_INET6.
pub(crate) const AF_INET6: u32 = 10;

/// A socket's entry. Budget: each connection has one, so values that few sockets have are in boxes.
#[derive(Debug)]
pub(crate) struct Entry {
    pub generation: u32,
    /// In the stack; None when the stack has let go of it.
    pub id: Option<SocketId>,
    /// Sockets of the stack that `id` has replaced under this slot, and whose `Closed` has not come
    /// yet. The next `former` events `Closed` for this slot are about those.
    pub former: u32,
    pub kind: Kind,
    /// [`AF_INET`] or [`AF_INET6`].
    pub family: u32,
    /// [`flags`], as published.
    pub flags: u32,
    /// Processes that have a descriptor for it, or whose queue it is in.
    pub holders: Holders,
    /// [`event`] bits that programs are told of at the end of the turn.
    pub news: u8,
    /// A program wrote impossible positions or lengths into its FIFOs: the socket is reset, and
    /// nothing that its slot says is looked at any more.
    pub hostile: bool,
    /// No process has the socket any more; it waits for the stack to finish.
    pub closing: bool,
    /// The slot stands in [`Host::to_sweep`](crate::shard::host::Host::to_sweep) for this socket.
    pub swept: bool,
    /// State that the stack does not hold for us: of listeners and datagram sockets.
    pub owned: Option<Box<Owned>>,
    rare: Option<Box<Rare>>,
}

const _: () = assert!(size_of::<Option<Entry>>() <= 72);

/// SO_MAX_PACING_RATE of a socket without a bound, as Linux has it.
pub(crate) const UNPACED: u64 = u64::MAX;

/// Options that were set, and states that a socket is in for a while. Most sockets have none of it,
/// and no box for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rare {
    /// SO_RCVBUF and SO_SNDBUF, doubled as Linux does; 0: autotuned.
    pub rcvbuf: u32,
    /// See `rcvbuf`.
    pub sndbuf: u32,
    /// TCP_WINDOW_CLAMP; 0: none.
    pub window_clamp: u32,
    /// IP_FREEBIND.
    pub free_bind: bool,
    /// IP_LOCAL_PORT_RANGE: first and last port to be chosen; 0: no bound.
    pub local_ports: (u16, u16),
    /// SO_MAX_PACING_RATE; [`UNPACED`]: no bound.
    pub max_pacing_rate: u64,
    /// TCP_SYNCNT; 0: never set.
    pub syn_retries: u8,
    /// IP_MINTTL and IPV6_MINHOPCOUNT.
    pub min_ttl: u8,
    /// See `min_ttl`.
    pub min_hops: u8,
    /// TCP_MAXSEG; 0: what the path carries.
    pub mss_max: u16,
    /// TCP_LINGER2; 0: the default.
    pub linger2_s: i8,
    /// TCP_SAVE_SYN.
    pub save_syn: bool,
    /// TCP_FASTOPEN; 0: off.
    pub fast_open_queue: u32,
    /// No process holds the socket, but it lies in a message: if none adopts it until then it is
    /// closed.
    pub parked: Option<Instant>,
    /// SO_BINDTODEVICE as an interface's number; 0: none.
    pub device: u32,
    /// TCP_DEFER_ACCEPT of a listener; 0: off.
    pub defer_accept_s: u32,
    /// An accepted connection that waits for its first bytes, until then.
    pub deferred: Option<Instant>,
    /// The listener that it is offered to then, when that is in another shard.
    pub to_offer: Option<ListenerName>,
    /// TCP_CONGESTION, if it was set.
    pub congestion: Option<CongestionKind>,
    /// SO_LOCK_FILTER.
    pub filter_locked: bool,
    /// MSG_ZEROCOPY: number of the first send that was not reported, and of the next one.
    pub zero_copied: (u32, u32),
    /// SO_INCOMING_CPU as it was set, and how much had come then.
    pub processor: Option<(i32, u32)>,
}

/// A socket on which nothing was set.
static ORDINARY: Rare = Rare {
    rcvbuf: 0,
    sndbuf: 0,
    window_clamp: 0,
    free_bind: false,
    local_ports: (0, 0),
    max_pacing_rate: UNPACED,
    syn_retries: 0,
    min_ttl: 0,
    min_hops: 0,
    mss_max: 0,
    linger2_s: 0,
    save_syn: false,
    fast_open_queue: 0,
    parked: None,
    device: 0,
    defer_accept_s: 0,
    deferred: None,
    to_offer: None,
    congestion: None,
    filter_locked: false,
    zero_copied: (0, 0),
    processor: None,
};

impl Rare {
    /// The size that options give the receive buffer; 0: autotuned.
    pub fn recv_fixed(&self) -> u32 {
        match (self.rcvbuf, self.window_clamp) {
            (0, other) | (other, 0) => other,
            (rcvbuf, clamp) => rcvbuf.min(clamp),
        }
    }
}

/// A process that holds a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub id: ChannelId,
    /// The last event that the process was told about the socket.
    pub last: LastEvent,
}

/// The processes that hold a socket: one as a rule, many of a listener with workers.
#[derive(Debug, Default)]
pub(crate) enum Holders {
    #[default]
    None,
    /// No process, but an accept queue: a connection that no program has claimed. The listener's
    /// slot and generation.
    Unclaimed(u32, u32),
    One(Holder),
    // A pointer where a vector would be three words in every socket.
    #[allow(clippy::box_collection, reason = "most sockets have one holder")]
    Many(Box<Vec<Holder>>),
}

const _: () = assert!(size_of::<Holders>() == 16);

impl Deref for Holders {
    type Target = [Holder];

    fn deref(&self) -> &[Holder] {
        match self {
            Holders::None | Holders::Unclaimed(..) => &[],
            Holders::One(holder) => std::slice::from_ref(holder),
            Holders::Many(holders) => holders,
        }
    }
}

impl DerefMut for Holders {
    fn deref_mut(&mut self) -> &mut [Holder] {
        match self {
            Holders::None | Holders::Unclaimed(..) => &mut [],
            Holders::One(holder) => std::slice::from_mut(holder),
            Holders::Many(holders) => holders,
        }
    }
}

impl Holders {
    pub fn push(&mut self, id: ChannelId) {
        let new = Holder { id, last: LastEvent::default() };
        match self {
            Holders::None | Holders::Unclaimed(..) => *self = Holders::One(new),
            Holders::One(first) => *self = Holders::Many(Box::new(vec![*first, new])),
            Holders::Many(holders) => holders.push(new),
        }
    }

    pub fn remove(&mut self, id: ChannelId) {
        match self {
            Holders::None | Holders::Unclaimed(..) => return,
            Holders::One(_) => {}
            Holders::Many(holders) => holders.retain(|holder| holder.id != id),
        }
        match **self {
            [last] if last.id != id => *self = Holders::One(last),
            [] | [_] => *self = Holders::None,
            _ => {}
        }
    }
}

/// FIFOs that the engine itself works on.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// [`towpath_shm::layout::AcceptRecord`]s or datagrams.
    pub rx: Option<EngineRecv>,
    /// Datagrams.
    pub tx: Option<EngineSend>,
    /// Datagrams that found no room in `rx`, or that a filter dropped.
    pub drops: u64,
    /// Reports that the program has not read (IP_RECVERR), oldest first.
    pub errors: VecDeque<DatagramError>,
    /// When datagrams were sent that the program wants to know of, oldest first.
    pub sent: VecDeque<SentAt>,
    /// SO_TIMESTAMPING, as far as sending is concerned.
    pub stamping: Stamping,
    /// The slot stands in [`Shard::to_send`](crate::shard::Shard::to_send).
    pub backlogged: bool,
    /// Bytes of `tx` that are in packets and not to be overwritten before these are out.
    pub tx_lent: u32,
    /// Connections that were put into `rx` and not claimed, oldest first. Their slots may be in
    /// other shards.
    pub children: VecDeque<Child>,
    /// As many may wait there, and one more.
    pub backlog: u32,
}

/// SO_TIMESTAMPING: reports of sent datagrams that a program wants.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stamping {
    /// SOF_TIMESTAMPING_TX_SOFTWARE.
    pub on: bool,
    /// SOF_TIMESTAMPING_OPT_ID: the number of the next one.
    pub next_id: Option<u32>,
}

/// When a datagram was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentAt {
    /// Its number; 0 where the program did not ask for numbers.
    pub id: u32,
    pub unix_ns: u64,
}

/// A connection in an accept queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub slot: u32,
    pub generation: u32,
    /// Position in the listener's FIFO behind its record.
    pub end: u32,
    /// The connection was popped, and is reset if no process claims it in time.
    pub orphaned: bool,
}

impl Entry {
    fn new(generation: u32, kind: Kind, family: u32) -> Self {
        Self {
            generation,
            id: None,
            former: 0,
            kind,
            family,
            flags: 0,
            holders: Holders::None,
            news: 0,
            hostile: false,
            closing: false,
            swept: false,
            owned: None,
            rare: None,
        }
    }

    /// Values that few sockets change.
    pub fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&ORDINARY)
    }

    /// Changes what few sockets have; memory for it is there while there is something to keep.
    pub fn set_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_else(|| Box::new(ORDINARY.clone()));
        change(&mut rare);
        self.rare = Some(rare).filter(|rare| **rare != ORDINARY);
    }

    /// The listener's slot and generation, of a connection that no program has claimed.
    pub fn unclaimed(&self) -> Option<(u32, u32)> {
        match self.holders {
            Holders::Unclaimed(listener, generation) => Some((listener, generation)),
            _ => None,
        }
    }

    /// Its own FIFOs, made when first needed.
    pub fn owned(&mut self) -> &mut Owned {
        self.owned.get_or_insert_default()
    }

    pub fn is_datagram(&self) -> bool {
        matches!(self.kind, Kind::Datagram | Kind::Echo)
    }
}

/// All sockets, in chunks: growing moves nothing and wastes less than a chunk.
#[derive(Debug)]
pub(crate) struct Slots {
    region: Region,
    /// The first of the shard's.
    first: u32,
    chunks: Vec<Vec<Place>>,
    free: Vec<u32>,
    max: u32,
    count: usize,
    /// Slots with news.
    posted: Vec<u32>,
    /// Free slots that a thread is inside still, which came for the last socket there.
    in_use: Holds,
    /// Slots that came into `in_use` since somebody asked.
    awaited: Vec<u32>,
}

/// A slot that was used at least once.
#[derive(Debug)]
enum Place {
    Taken(Entry),
    /// The generation of the last socket there, plus one: odd ones are in use.
    Free {
        generation: u32,
    },
}

const CHUNK: usize = 256;

impl Slots {
    /// From the slot `first` on, `max` of them.
    pub fn new(region: &Region, first: u32, max: u32) -> Self {
        Self {
            region: region.clone(),
            first,
            chunks: Vec::new(),
            free: Vec::new(),
            max,
            count: 0,
            posted: Vec::new(),
            in_use: Holds::default(),
            awaited: Vec::new(),
        }
    }

    /// A fresh socket that nobody holds. Nothing of its slot is known to programs before
    /// [`Slots::publish`]. None: the table is full.
    pub fn allocate(&mut self, kind: Kind, family: u32, protocol: u32) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let place = self.place_mut(index)?;
        let Place::Free { generation } = *place else { unreachable!("a free slot is taken") };
        *place = Place::Taken(Entry::new(generation.wrapping_add(1), kind, family));
        self.count += 1;
        reset(self.shared(index));
        let shared = self.shared(index);
        shared.kind.store(kind as u32, Relaxed);
        shared.family.store(family, Relaxed);
        shared.protocol.store(protocol as u8, Relaxed);
        Some(index)
    }

    /// Adds a slot. None: there are as many as there may be.
    fn grow(&mut self) -> Option<u32> {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut()?;
        let index = u32::try_from(before + chunk.len()).ok().filter(|index| *index < self.max)?;
        chunk.push(Place::Free { generation: 0 });
        Some(self.first + index)
    }

    fn place(&self, index: u32) -> Option<&Place> {
        let nth = index.checked_sub(self.first)? as usize;
        self.chunks.get(nth / CHUNK)?.get(nth % CHUNK)
    }

    fn place_mut(&mut self, index: u32) -> Option<&mut Place> {
        let nth = index.checked_sub(self.first)? as usize;
        self.chunks.get_mut(nth / CHUNK)?.get_mut(nth % CHUNK)
    }

    /// From here on handles of it are valid.
    pub fn publish(&self, index: u32) {
        if let Some(entry) = self.get(index) {
            self.shared(index).generation.store(entry.generation, Release);
        }
    }

    /// The socket is gone for good. Its slot is used again when no thread is inside any more.
    pub fn release(&mut self, index: u32) {
        let Some(place) = self.place_mut(index) else { return };
        let Place::Taken(entry) = place else { return };
        let generation = entry.generation.wrapping_add(1);
        *place = Place::Free { generation };
        self.count -= 1;
        let shared = self.shared(index);
        let are_out = end_generation(shared, generation);
        shared.kind.store(Kind::Free as u32, Relaxed);
        // A thread that still sleeps on it finds the generation changed.
        towpath_ring::wake(shared);
        if are_out.is_ok() {
            self.free.push(index);
        } else {
            self.in_use.insert(index);
            self.awaited.push(index);
        }
    }

    /// Slots that cannot be used again yet, since the last call. The caller
    /// [collects](Self::collect) them.
    pub fn take_awaited(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.awaited)
    }

    /// A slot that could not be collected is to be looked at once more.
    pub fn await_again(&mut self, index: u32) {
        self.awaited.push(index);
    }

    /// Puts a slot among the free ones if no thread is inside any more. Err: one is, which tells
    /// when it is out; the number of its process's channel.
    pub fn collect(&mut self, index: u32) -> Result<(), u32> {
        if self.in_use.contains(index) {
            are_out(self.shared(index))?;
            self.in_use.remove(index);
            self.free.push(index);
        }
        Ok(())
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&Entry> {
        match self.place(index)? {
            Place::Taken(entry) => Some(entry),
            Place::Free { .. } => None,
        }
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        match self.place_mut(index)? {
            Place::Taken(entry) => Some(entry),
            Place::Free { .. } => None,
        }
    }

    /// The socket of a handle that a program gave.
    pub fn find(&mut self, index: u32, generation: u32) -> Option<&mut Entry> {
        self.get_mut(index).filter(|entry| entry.generation == generation && !entry.closing)
    }

    /// The part that programs see.
    ///
    /// # Panics
    /// When there is no such slot; indexes come from `allocate`.
    pub fn shared(&self, index: u32) -> &Slot {
        self.region.slot(index).expect("slots of the engine exist")
    }

    /// Notes that something happened; programs are told at the end of the turn.
    pub fn post(&mut self, index: u32, bits: u8) {
        let Some(entry) = self.get_mut(index) else { return };
        let is_first = entry.news == 0;
        entry.news |= bits;
        if is_first {
            self.posted.push(index);
        }
    }

    /// Puts it among those that something happened to, if that has been noted and not told.
    pub fn post_again(&mut self, index: u32) {
        if self.get(index).is_some_and(|entry| entry.news != 0) {
            self.posted.push(index);
        }
    }

    /// The slots that something happened to since the last call.
    pub fn take_posted(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.posted)
    }

    /// Gives the list back for the next turn.
    pub fn reuse_posted(&mut self, mut list: Vec<u32>) {
        list.clear();
        if self.posted.is_empty() {
            self.posted = list;
        }
    }

    /// Whether somebody is to be told something.
    pub fn has_news(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Sets flags that are published at the end of the turn, after the state that goes with them. A
    /// program that sees the flags relies on that state.
    pub fn note_flags(&mut self, index: u32, set: u32) {
        if let Some(entry) = self.get_mut(index) {
            entry.flags |= set;
        }
    }

    /// Changes the published flags.
    pub fn set_flags(&mut self, index: u32, set: u32, clear: u32) {
        let Some(entry) = self.get_mut(index) else {
            return;
        };
        entry.flags = entry.flags & !clear | set;
        let now = entry.flags;
        let published = &self.shared(index).flags;
        // The receive FIFO has set that one (`EngineRecv::mark_urgent`).
        published.store(now | published.load(Relaxed) & flags::URGENT, Release);
    }

    /// The connection is over, in both directions: `errno` 0 when in peace.
    pub fn fail(&mut self, index: u32, errno: i32) {
        let shared = self.shared(index);
        if errno != 0 {
            shared.error.store(errno, Release);
        }
        shared.state.store(state::CLOSE, Release);
        let over = flags::TX_CLOSED | flags::DEAD;
        let opening = self.get(index).map_or(0, |entry| entry.flags & flags::OPENING);
        // A connection that never was one may be tried again.
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

    /// Indexes and entries of all sockets.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.chunks.iter().flatten().zip(self.first..).filter_map(|(place, index)| match place {
            Place::Taken(entry) => Some((index, entry)),
            Place::Free { .. } => None,
        })
    }

    /// Beyond the last slot that was ever used.
    pub fn end(&self) -> u32 {
        let last = self.chunks.last().map_or(0, Vec::len);
        self.first + (self.chunks.len().saturating_sub(1) * CHUNK + last) as u32
    }

    /// The first slot of the shard's.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Whether less than an eighth of the table is free.
    pub fn is_almost_full(&self) -> bool {
        self.count >= (self.max - self.max / 8) as usize
    }

    /// Number of sockets.
    pub fn len(&self) -> usize {
        self.count
    }
}

/// An address as a program with a socket of `family` sees it: IPv4-mapped on AF_INET6.
pub(crate) fn present(family: u32, addr: SocketAddr) -> RawAddr {
    match addr {
        SocketAddr::V4(v4) if family == AF_INET6 => {
            RawAddr::new(SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()))
        }
        _ => RawAddr::new(addr),
    }
}

/// The same, with the interface that a link-local address is one of (RFC 4007 §6) by the number
/// that programs know it by.
pub(crate) fn present_on(family: u32, addr: SocketAddr, iface: Option<IfaceId>) -> RawAddr {
    let scope = match addr.ip() {
        IpAddr::V6(ip) if is_on_link(ip) => iface.map_or(0, |iface| u32::from(iface.0) + 1),
        _ => 0,
    };
    RawAddr { scope, ..present(family, addr) }
}

/// Everything as a fresh socket has it on Linux. Not the FIFOs: their ends start with them. The
/// locks stay: late threads take them, find the generation changed, and give them back. `asleep`
/// stays, too: a thread that slept on the socket before is woken with the next one's first event,
/// and finds the generation changed.
fn reset(slot: &Slot) {
    for word in [
        &slot.flags,
        &slot.rx_cap,
        &slot.tx_cap,
        &slot.tx_shift,
        &slot.rx_shift,
        &slot.rx_tail,
        &slot.tx_head,
        &slot.rx_wanted,
        &slot.tx_unacked,
        &slot.tx_limit,
        &slot.tx_goal,
        &slot.more,
        &slot.rx_head,
        &slot.tx_tail,
        &slot.tx_dirty,
        &slot.tx_wanted,
        &slot.file_flags,
        &slot.shut,
        &slot.rcvtimeo_us,
        &slot.sndtimeo_us,
        &slot.option_bits,
        &slot.rcvbuf,
        &slot.sndbuf,
        &slot.user_timeout_ms,
        &slot.linger,
        &slot.tclass,
        &slot.in_flight,
        &slot.notsent_lowat,
        &slot.peek_off,
    ] {
        word.store(0, Relaxed);
    }
    slot.connect_asked.store(0, Relaxed);
    slot.urgent.store(0, Relaxed);
    slot.tos.store(0, Relaxed);
    slot.ttl.store(0, Relaxed);
    slot.hops.store(0, Relaxed);
    slot.error.store(0, Relaxed);
    slot.owner.store(0, Relaxed);
    slot.state.store(state::CLOSE, Relaxed);
    slot.rcvlowat.store(1, Relaxed);
    slot.keepidle.store(7200, Relaxed);
    slot.keepintvl.store(75, Relaxed);
    slot.keepcnt.store(9, Relaxed);
    slot.local.store(&RawAddr::default());
    slot.remote.store(&RawAddr::default());
}

/// Options that an accepted connection takes over from its listener, as on Linux.
pub(crate) fn inherit(child: &Slot, listener: &Slot) {
    for (to, from) in [
        (&child.option_bits, &listener.option_bits),
        (&child.rcvlowat, &listener.rcvlowat),
        (&child.rcvtimeo_us, &listener.rcvtimeo_us),
        (&child.sndtimeo_us, &listener.sndtimeo_us),
        (&child.rcvbuf, &listener.rcvbuf),
        (&child.sndbuf, &listener.sndbuf),
        (&child.keepidle, &listener.keepidle),
        (&child.keepintvl, &listener.keepintvl),
        (&child.user_timeout_ms, &listener.user_timeout_ms),
        (&child.linger, &listener.linger),
        (&child.tclass, &listener.tclass),
        (&child.notsent_lowat, &listener.notsent_lowat),
        (&child.peek_off, &listener.peek_off),
    ] {
        to.store(from.load(Relaxed), Relaxed);
    }
    child.keepcnt.store(listener.keepcnt.load(Relaxed), Relaxed);
    for (to, from) in [(&child.tos, &listener.tos), (&child.ttl, &listener.ttl)] {
        to.store(from.load(Relaxed), Relaxed);
    }
    child.hops.store(listener.hops.load(Relaxed), Relaxed);
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

    #[test]
    fn holders_are_few_or_many() {
        let mut holders = Holders::default();
        let [a, b, c] = [1, 2, 3].map(ChannelId);
        let ids = |holders: &Holders| holders.iter().map(|it| it.id).collect::<Vec<_>>();
        holders.remove(a);
        assert!(holders.is_empty());
        holders.push(a);
        holders.remove(b);
        assert_eq!(ids(&holders), [a]);
        holders.push(b);
        holders.push(c);
        assert_eq!(ids(&holders), [a, b, c]);
        holders.remove(a);
        assert_eq!(ids(&holders), [b, c]);
        holders.remove(c);
        assert!(matches!(holders, Holders::One(last) if last.id == b));
        holders.remove(b);
        assert!(matches!(holders, Holders::None));
        // A process that lets go of a connection it never had takes nothing off a queue.
        holders = Holders::Unclaimed(3, 1);
        holders.remove(a);
        assert!(matches!(holders, Holders::Unclaimed(3, 1)) && holders.is_empty());
        holders.push(a);
        assert_eq!(ids(&holders), [a]);
    }

    #[test]
    fn what_is_rare_is_kept_while_it_differs() {
        let mut entry = Entry::new(1, Kind::Stream, AF_INET);
        entry.set_rare(|rare| rare.parked = None);
        assert!(entry.rare.is_none());
        entry.set_rare(|rare| rare.sndbuf = 9);
        assert_eq!(entry.rare().sndbuf, 9);
        entry.set_rare(|rare| rare.sndbuf = 0);
        assert!(entry.rare.is_none());
    }
}
