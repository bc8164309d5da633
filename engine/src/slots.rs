//! The engine's private half of every socket that programs can see.
//!
//! What lies in the shared [`Slot`] is for programs to read; the engine decides by what is here.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};

use towpath_ring::{EngineRecv, EngineSend, Region};
use towpath_shm::layout::{Kind, RawAddr, Slot, event, flags};
use towpath_stack::SocketId;
use towpath_tcp::{CongestionKind, Instant};

use crate::channels::ChannelId;

/// TCP states as Linux numbers them, for [`Slot::state`].
pub(crate) mod state {
    pub(crate) const ESTABLISHED: u32 = 1;
    pub(crate) const SYN_SENT: u32 = 2;
    pub(crate) const SYN_RECV: u32 = 3;
    pub(crate) const FIN_WAIT1: u32 = 4;
    pub(crate) const FIN_WAIT2: u32 = 5;
    pub(crate) const TIME_WAIT: u32 = 6;
    pub(crate) const CLOSE: u32 = 7;
    pub(crate) const CLOSE_WAIT: u32 = 8;
    pub(crate) const LAST_ACK: u32 = 9;
    pub(crate) const LISTEN: u32 = 10;
    pub(crate) const CLOSING: u32 = 11;
}

/// AF_INET.
pub(crate) const AF_INET: u32 = 2;
/// AF_INET6.
pub(crate) const AF_INET6: u32 = 10;

/// One socket.
#[derive(Debug)]
pub(crate) struct Entry {
    pub generation: u32,
    /// In the stack; None when the stack has let go of it.
    pub id: Option<SocketId>,
    /// Earlier sockets of the stack under this slot, whose end is still to be told.
    pub former: u32,
    pub kind: Kind,
    /// [`AF_INET`] or [`AF_INET6`].
    pub family: u32,
    /// [`flags`], as published.
    pub flags: u32,
    /// Processes that have a descriptor for it.
    pub holders: Vec<ChannelId>,
    /// Events to be told at the end of the turn.
    pub news: u8,
    /// A program wrote impossible things into its FIFOs.
    pub hostile: bool,
    /// Nobody has it any more; it waits for the stack to finish.
    pub closing: bool,
    /// A connection that no program has claimed: the listener's slot and generation.
    pub unclaimed: Option<(u32, u32)>,
    /// SO_RCVBUF and SO_SNDBUF, doubled as Linux does; 0: autotuned.
    pub rcvbuf: u32,
    /// See `rcvbuf`.
    pub sndbuf: u32,
    /// IP_FREEBIND.
    pub free_bind: bool,
    /// TCP_SYNCNT; 0: never set.
    pub syn_retries: u8,
    /// TCP_LINGER2; 0: the default.
    pub linger2_s: i8,
    /// Nobody holds it, but it is in a message: kept until then.
    pub parked: Option<Instant>,
    /// TCP_DEFER_ACCEPT of a listener; 0: off.
    pub defer_accept_s: u32,
    /// An accepted connection that waits for its first bytes, until then.
    pub deferred: Option<Instant>,
    /// What the program bound it to.
    pub bound: Option<SocketAddr>,
    /// TCP_CONGESTION, if it was set.
    pub congestion: Option<CongestionKind>,
    /// What the stack does not hold for us: listeners and datagram sockets.
    pub owned: Option<Box<Owned>>,
    /// It stands in the sweep's queue.
    pub swept: bool,
    /// Where its transmit FIFO was, and since when, when the sweep last looked.
    pub tx_seen: (u32, Instant),
}

/// FIFOs that the engine itself works on.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// [`towpath_shm::layout::AcceptRecord`]s or datagrams.
    pub rx: Option<EngineRecv>,
    /// Datagrams.
    pub tx: Option<EngineSend>,
    /// Bytes of `tx` that are in packets and not to be overwritten before these are out.
    pub tx_lent: u32,
    /// Connections that were put into `rx` and not claimed, oldest first.
    pub children: VecDeque<Child>,
}

/// A connection in an accept queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub slot: u32,
    pub generation: u32,
    /// Position in the listener's FIFO behind its record.
    pub end: u32,
}

impl Entry {
    /// Its own FIFOs, made when first needed.
    pub fn owned(&mut self) -> &mut Owned {
        self.owned.get_or_insert_default()
    }

    pub fn is_datagram(&self) -> bool {
        matches!(self.kind, Kind::Datagram | Kind::Echo)
    }
}

/// All sockets.
#[derive(Debug)]
pub(crate) struct Slots {
    region: Region,
    entries: Vec<Option<Box<Entry>>>,
    /// Of every slot that was ever used; odd while in use.
    generations: Vec<u32>,
    free: Vec<u32>,
    max: u32,
    /// Slots with news.
    posted: Vec<u32>,
}

impl Slots {
    pub fn new(region: &Region, max: u32) -> Self {
        Self {
            region: region.clone(),
            entries: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            max,
            posted: Vec::new(),
        }
    }

    /// A fresh socket that nobody holds. Nothing of its slot is known to programs before
    /// [`Slots::publish`]. None: the table is full.
    pub fn allocate(&mut self, kind: Kind, family: u32, protocol: u32) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.entries.len() as u32) < self.max => {
                self.entries.push(None);
                self.generations.push(0);
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        let generation = self.generations[index as usize].wrapping_add(1);
        self.generations[index as usize] = generation;
        self.entries[index as usize] = Some(Box::new(Entry {
            generation,
            id: None,
            former: 0,
            kind,
            family,
            flags: 0,
            holders: Vec::new(),
            news: 0,
            hostile: false,
            closing: false,
            unclaimed: None,
            rcvbuf: 0,
            sndbuf: 0,
            free_bind: false,
            syn_retries: 0,
            linger2_s: 0,
            defer_accept_s: 0,
            deferred: None,
            parked: None,
            bound: None,
            congestion: None,
            owned: None,
            swept: false,
            tx_seen: (0, Instant::ZERO),
        }));
        reset(self.shared(index));
        let shared = self.shared(index);
        shared.kind.store(kind as u32, Relaxed);
        shared.family.store(family, Relaxed);
        shared.protocol.store(protocol, Relaxed);
        Some(index)
    }

    /// From here on handles of it are valid.
    pub fn publish(&self, index: u32) {
        self.shared(index).generation.store(self.generations[index as usize], Release);
    }

    /// The socket is gone for good.
    pub fn release(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        drop(entry);
        let generation = self.generations[index as usize].wrapping_add(1);
        self.generations[index as usize] = generation;
        let shared = self.shared(index);
        shared.generation.store(generation, Release);
        shared.kind.store(Kind::Free as u32, Relaxed);
        // Whoever still sleeps on it finds the generation changed.
        towpath_ring::wake(shared);
        self.free.push(index);
    }

    pub fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)?.as_deref_mut()
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
        if let Some(entry) = self.entries.get_mut(index as usize).and_then(Option::as_deref_mut) {
            if entry.news == 0 {
                self.posted.push(index);
            }
            entry.news |= bits;
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

    /// Sets flags that are published at the end of the turn, after the state that goes with them: who
    /// sees the flags relies on it.
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
        self.shared(index).flags.store(now, Release);
    }

    /// The connection is over, in both directions: `errno` 0 when in peace.
    pub fn fail(&mut self, index: u32, errno: i32) {
        let shared = self.shared(index);
        if errno != 0 {
            shared.error.store(errno, Release);
        }
        shared.state.store(state::CLOSE, Release);
        let over = flags::TX_CLOSED | flags::DEAD;
        self.set_flags(index, over, flags::CONNECTING);
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
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((index as u32, entry.as_deref()?)))
    }

    /// Number of sockets.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
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

/// Everything as a fresh socket has it on Linux. Not the FIFOs: their ends start with them.
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
        &slot.rx_head,
        &slot.tx_tail,
        &slot.tx_dirty,
        &slot.tx_wanted,
        &slot.waiters,
        &slot.rx_lock,
        &slot.tx_lock,
        &slot.file_flags,
        &slot.shut,
        &slot.rcvtimeo_us,
        &slot.sndtimeo_us,
        &slot.option_bits,
        &slot.rcvbuf,
        &slot.sndbuf,
        &slot.user_timeout_ms,
        &slot.linger,
        &slot.tos,
        &slot.ttl,
        &slot.connect_asked,
        &slot.in_flight,
    ] {
        word.store(0, Relaxed);
    }
    slot.error.store(0, Relaxed);
    slot.state.store(state::CLOSE, Relaxed);
    slot.rcvlowat.store(1, Relaxed);
    slot.keepidle.store(7200, Relaxed);
    slot.keepintvl.store(75, Relaxed);
    slot.keepcnt.store(9, Relaxed);
    slot.local.store(&RawAddr::default());
    slot.remote.store(&RawAddr::default());
}

/// What an accepted connection takes over from its listener, as on Linux.
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
        (&child.keepcnt, &listener.keepcnt),
        (&child.user_timeout_ms, &listener.user_timeout_ms),
        (&child.linger, &listener.linger),
        (&child.tos, &listener.tos),
        (&child.ttl, &listener.ttl),
    ] {
        to.store(from.load(Relaxed), Relaxed);
    }
}
