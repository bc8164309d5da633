//! Reassembly of fragments, for IPv4 and IPv6.
//!
//! ```text
//!   ranks, by how many datagrams a source has      its line, by when it was heard of last
//!     64 ─► source ─► source                       oldest ─► … ─► youngest
//!      ⋮        └───────────────────────────────────► datagram ─► datagram: pieces
//!   1..4 ─► source ─► source ─► source
//! ```
//!
//! Source addresses of fragments can be forged. Each limit therefore determines how many datagrams
//! or bytes an attacker must send so that another host's datagram is dropped. Received bytes count
//! toward the limit of their source.
//!
//! - If a source exceeds its limit, its datagram that has received no fragment for the longest time
//!   is dropped.
//! - If all sources together exceed their limit, a datagram of the source with the most datagrams
//!   is dropped, by the same rule.
//! - Sources with at most four datagrams, as honest hosts have, count as equal. Among these, a
//!   datagram of the source that has sent no fragment for the longest time is dropped.
//!
//! A datagram whose fragments keep arriving is therefore dropped only in a flood. More datagrams
//! than the limits allow must begin between two of its fragments.
//!
//! If two fragments overlap, the whole datagram is dropped. Otherwise different hosts could
//! assemble different packets from the same fragments. The work per fragment is constant,
//! regardless of the number of datagrams.

mod datagram;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv6Addr};

use hashbrown::HashMap;
use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;

use crate::drop::DropReason;
use crate::net::hash::Keyed;
use crate::net::iface::IfaceId;
use crate::net::limits::{
    FRAGMENTS_MAX, REASSEMBLY_BYTES_MAX, REASSEMBLY_DATAGRAMS_MAX, REASSEMBLY_SOURCE_BYTES_MAX,
    REASSEMBLY_SOURCE_DATAGRAMS_MAX, REASSEMBLY_SOURCE_V6_BITS, REASSEMBLY_V4_TIME,
    REASSEMBLY_V6_TIME,
};
use crate::tables::slab::{List, Queue};
use datagram::{Datagram, PIECE_OVERHEAD, check_bounds};

/// Identifies an incomplete datagram. Includes the interface, because link-local addresses are
/// unique only on their link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub iface: IfaceId,
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Transport protocol of the datagram. 0 for IPv6, where it does not identify a datagram (RFC
    /// 8200 §4.5).
    pub protocol: u8,
    pub ident: u32,
}

/// A received fragment, and fields of its headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fragment {
    pub key: Key,
    /// Offset of the fragment's data in the payload of the datagram, in bytes.
    pub offset: usize,
    pub more: bool,
    /// Start and end offset of the fragment's IP headers in the packet's linear part.
    pub header: (usize, usize),
    /// End offset of the fragment's data in the packet's linear part.
    pub end: usize,
    pub tos: u8,
    /// For IPv6, the offset of the next-header field that refers to the fragment header, and the
    /// value of this field in the reassembled packet.
    pub next_header: Option<(usize, u8)>,
    /// Whether the fragment was sent to a multicast or broadcast address.
    pub group: bool,
}

impl Fragment {
    fn len(&self) -> usize {
        self.end - self.header.1
    }
}

/// Result of adding a fragment to the reassembly.
#[derive(Debug)]
pub(super) enum Added {
    /// The fragment was stored. Other fragments of its datagram are still missing.
    Kept,
    /// The same fragment was already received, so it is ignored.
    Duplicate,
    /// The datagram is complete and was reassembled into this packet, which begins with its IP
    /// header.
    Complete(Packet),
    /// The fragment was dropped. Its whole datagram was dropped, too, unless the fragment itself
    /// was invalid.
    Lost(DropReason),
}

/// A datagram that was still incomplete at its reassembly timeout.
#[derive(Debug)]
pub(super) struct Expired {
    pub key: Key,
    /// The first fragment as a packet, to be quoted in an ICMP error to the sender; `None` if it
    /// did not arrive.
    pub quote: Option<Vec<u8>>,
    pub group: bool,
}

/// Number of incomplete datagrams that were dropped because a limit was exceeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GivenUp {
    /// Datagrams dropped because their source exceeded its limit.
    pub source: u64,
    /// Datagrams dropped because all sources together exceeded their limit.
    pub all: u64,
}

/// A source of fragments to which a limit applies: an interface, and an IPv4 address or an IPv6
/// prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Share(IfaceId, IpAddr);

/// All datagrams whose fragments have not all arrived.
#[derive(Debug)]
pub(in crate::net) struct Reassembly {
    index: HashMap<Key, u32, Keyed>,
    /// Incomplete datagrams. Each one is also in the list `line` of its source address.
    datagrams: Queue<Entry>,
    by_share: HashMap<Share, u32, Keyed>,
    /// Sources of fragments. Each source is in the list of its rank (`ranks`), sorted by the time
    /// of its last fragment.
    sources: Queue<Source>,
    /// Lists of sources of fragments. The index is the rank that [`rank`] computes from the number
    /// of incomplete datagrams of the source.
    ranks: [List; RANKS],
    /// Deadlines of the datagrams. All datagrams of one IP version have the same timeout, so each
    /// list is in the order of expiry.
    deadlines: Queue<ReassemblyDeadline>,
    v4: List,
    v6: List,
    bytes: usize,
    given_up: GivenUp,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    source: u32,
    deadline: u32,
    datagram: Datagram,
}

#[derive(Debug)]
struct Source {
    share: Share,
    /// Incomplete datagrams of this source address, sorted by the time of their last fragment.
    line: List,
    bytes: usize,
}

#[derive(Debug)]
struct ReassemblyDeadline {
    at: Instant,
    key: Key,
}

/// Sources with at most this many incomplete datagrams are treated equally when a datagram must be
/// dropped. A host that sends a few fragmented datagrams at once is then treated like a host that
/// sends one. At least a dozen such sources are needed to fill the reassembly memory.
const ALIKE_MAX: usize = 4;
const _: () = assert!(REASSEMBLY_BYTES_MAX / (ALIKE_MAX * (65_575 + 2 * OVERHEAD)) >= 12);
const RANKS: usize = REASSEMBLY_SOURCE_DATAGRAMS_MAX - ALIKE_MAX + 1;

/// Memory in bytes that a datagram needs in addition to its fragments. The value is the size of its
/// table entries, counted twice because a hash table may be half empty.
const OVERHEAD: usize = 1024;
const _: () = assert!(
    2 * (size_of::<Entry>() + size_of::<Source>() + size_of::<ReassemblyDeadline>())
        + 2 * (size_of::<(Key, u32)>() + size_of::<(Share, u32)>() + 6 * size_of::<u64>())
        <= OVERHEAD
);
// A single datagram must not exceed the limit of its source, however it is fragmented. Otherwise
// dropping other datagrams would not make enough room for it. Its headers may be as long as the
// extension headers of an IPv6 packet.
const _: () =
    assert!(OVERHEAD + 2 * 65_575 + FRAGMENTS_MAX * PIECE_OVERHEAD <= REASSEMBLY_SOURCE_BYTES_MAX);
const _: () = assert!(REASSEMBLY_SOURCE_BYTES_MAX < REASSEMBLY_BYTES_MAX);
const _: () = assert!(1 < REASSEMBLY_SOURCE_DATAGRAMS_MAX);
const _: () = assert!(REASSEMBLY_SOURCE_DATAGRAMS_MAX < REASSEMBLY_DATAGRAMS_MAX);

impl Reassembly {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            index: HashMap::with_hasher(keys),
            datagrams: Queue::default(),
            by_share: HashMap::with_hasher(keys),
            sources: Queue::default(),
            ranks: [List::default(); RANKS],
            deadlines: Queue::default(),
            v4: List::default(),
            v6: List::default(),
            bytes: 0,
            given_up: GivenUp::default(),
        }
    }

    pub(in crate::net) fn next_timeout(&self) -> Instant {
        let first = |line: &List| Some(self.deadlines.get(line.front()?)?.at);
        first(&self.v4).into_iter().chain(first(&self.v6)).min().unwrap_or(Instant::FAR)
    }

    /// Stores a copy of the fragment in `packet`. All bytes of the packet must be in its linear
    /// part.
    pub(super) fn add(
        &mut self,
        now: Instant,
        fragment: &Fragment,
        packet: &Packet,
        pool: &mut Pool,
    ) -> Added {
        if let Err(reason) = check_bounds(fragment) {
            return Added::Lost(reason);
        }
        let index = match self.index.get(&fragment.key) {
            Some(&index) => {
                self.renew(index);
                index
            }
            None => self.start(now, fragment),
        };
        let entry = self.datagrams.get_mut(index).expect("it is in the index, or was just made");
        let before = entry.datagram.cost();
        let result = entry.datagram.insert(fragment, packet.linear());
        let grown = entry.datagram.cost() - before;
        let (source, complete) = (entry.source, entry.datagram.is_complete());
        self.charge(source, grown);
        match result {
            Err(reason) => {
                self.remove(&fragment.key);
                Added::Lost(reason)
            }
            Ok(true) => Added::Duplicate,
            Ok(false) if complete => {
                let whole = self.remove(&fragment.key);
                let packet = whole.and_then(|datagram| datagram.into_packet(packet.meta, pool));
                packet.map_or(Added::Lost(DropReason::FragmentInvalid), Added::Complete)
            }
            Ok(false) => {
                self.make_room(source);
                Added::Kept
            }
        }
    }

    /// Returns how many datagrams were dropped because of limits, since the last call.
    pub(super) fn take_given_up(&mut self) -> GivenUp {
        core::mem::take(&mut self.given_up)
    }

    /// Moves a datagram and its source to the ends of their lists, because a fragment of the
    /// datagram arrived.
    fn renew(&mut self, index: u32) {
        let Some(entry) = self.datagrams.get(index) else { return };
        let Some(source) = self.sources.get_mut(entry.source) else { return };
        let (at, rank) = (entry.source, rank(source.line.len()));
        self.datagrams.renew(&mut source.line, index);
        self.sources.renew(&mut self.ranks[rank], at);
    }

    /// Creates the entry for a new datagram. Drops another datagram if a limit is reached.
    fn start(&mut self, now: Instant, fragment: &Fragment) -> u32 {
        let key = fragment.key;
        let share = share_of(&key);
        if let Some(&source) = self.by_share.get(&share)
            && let Some(of) = self.sources.get(source)
            && of.line.len() >= REASSEMBLY_SOURCE_DATAGRAMS_MAX
        {
            self.give_up_of(source);
            self.given_up.source += 1;
        }
        if self.datagrams.len() >= REASSEMBLY_DATAGRAMS_MAX {
            self.give_up_of_greatest();
        }
        let source = self.source(share);
        let (wait, waiting) = match key.src {
            IpAddr::V4(_) => (REASSEMBLY_V4_TIME, &mut self.v4),
            IpAddr::V6(_) => (REASSEMBLY_V6_TIME, &mut self.v6),
        };
        let deadline = self.deadlines.push(waiting, ReassemblyDeadline { at: now + wait, key });
        let entry = Entry { key, source, deadline, datagram: Datagram::new(fragment.group) };
        let of = self.sources.get_mut(source).expect("found or made just now");
        let index = self.datagrams.push(&mut of.line, entry);
        let count = of.line.len();
        self.move_up(source, rank(count));
        self.index.insert(key, index);
        self.charge(source, OVERHEAD);
        index
    }

    /// Moves a source of fragments to the list of rank `rank`, because it has one more incomplete
    /// datagram.
    fn move_up(&mut self, source: u32, rank: usize) {
        match &mut self.ranks[rank.saturating_sub(1)..=rank] {
            [from, to] => self.sources.shift(from, to, source),
            [line, ..] => self.sources.renew(line, source),
            [] => unreachable!("a rank has a line"),
        }
    }

    /// Returns the index of a source of fragments, and creates its entry if necessary.
    fn source(&mut self, share: Share) -> u32 {
        let (sources, first) = (&mut self.sources, &mut self.ranks[0]);
        let new = Source { share, line: List::default(), bytes: 0 };
        *self.by_share.entry(share).or_insert_with(|| sources.push(first, new))
    }

    fn charge(&mut self, source: u32, bytes: usize) {
        self.bytes += bytes;
        if let Some(source) = self.sources.get_mut(source) {
            source.bytes += bytes;
        }
    }

    /// Removes a datagram from all tables.
    fn remove(&mut self, key: &Key) -> Option<Datagram> {
        let index = self.index.remove(key)?;
        let at = self.datagrams.get(index)?.source;
        let source = self.sources.get_mut(at)?;
        let count = source.line.len();
        let Entry { deadline, datagram, .. } = self.datagrams.remove(&mut source.line, index)?;
        let cost = OVERHEAD + datagram.cost();
        source.bytes -= cost;
        self.bytes -= cost;
        if count > 1 {
            let (from, to) = (rank(count), rank(count - 1));
            if from != to {
                let [to, from] = &mut self.ranks[to..=from] else { unreachable!("two") };
                self.sources.shift(from, to, at);
            }
        } else if let Some(source) = self.sources.remove(&mut self.ranks[0], at) {
            self.by_share.remove(&source.share);
        }
        let waiting = if key.src.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        self.deadlines.remove(waiting, deadline);
        Some(datagram)
    }

    /// Drops datagrams until `source`, and all sources together, are within their limits. The
    /// datagram that just received a fragment is last in its list, and never exceeds a limit alone,
    /// so it is not dropped.
    fn make_room(&mut self, source: u32) {
        while self.sources.get(source).is_some_and(|s| s.bytes > REASSEMBLY_SOURCE_BYTES_MAX) {
            self.give_up_of(source);
            self.given_up.source += 1;
        }
        while self.bytes > REASSEMBLY_BYTES_MAX {
            self.give_up_of_greatest();
        }
    }

    /// Drops the oldest datagram of the source with the most datagrams. Among sources of equal
    /// rank, selects the one that has sent no fragment for the longest time.
    fn give_up_of_greatest(&mut self) {
        let greatest = self.ranks.iter().rev().find_map(List::front);
        self.give_up_of(greatest.expect("who has too much has something"));
        self.given_up.all += 1;
    }

    fn give_up_of(&mut self, source: u32) {
        let oldest = self.sources.get(source).and_then(|source| source.line.front());
        let key = oldest.and_then(|oldest| self.datagrams.get(oldest)).map(|entry| entry.key);
        self.remove(&key.expect("a source has datagrams as long as it is one"));
    }

    /// Removes and returns the datagrams whose reassembly timeout has passed.
    pub(super) fn on_timeout(&mut self, now: Instant) -> Vec<Expired> {
        let mut expired = Vec::new();
        for v4 in [true, false] {
            while let Some(front) = if v4 { self.v4.front() } else { self.v6.front() }
                && let Some(&ReassemblyDeadline { at, key }) = self.deadlines.get(front)
                && at <= now
                && let Some(datagram) = self.remove(&key)
            {
                let (group, quote) = (datagram.group, datagram.quote());
                expired.push(Expired { key, quote, group });
            }
        }
        expired
    }
}

/// Returns the rank of a source with `count` incomplete datagrams. Sources with few datagrams have
/// the same rank 0.
fn rank(count: usize) -> usize {
    count.saturating_sub(ALIKE_MAX)
}

/// Returns the source to whose limit a datagram counts. For IPv6, the source is a prefix, because a
/// host can choose many addresses in its prefix.
fn share_of(key: &Key) -> Share {
    let source = match key.src {
        IpAddr::V4(src) => src.into(),
        IpAddr::V6(src) => {
            let host_bits = 128 - REASSEMBLY_SOURCE_V6_BITS;
            IpAddr::V6(Ipv6Addr::from_bits(src.to_bits() >> host_bits << host_bits))
        }
    };
    Share(key.iface, source)
}
