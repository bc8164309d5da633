//! Reassembly of fragments, for IPv4 and IPv6.
//!
//! ```text
//!   ranks, by how many datagrams a source has      its line, by when it was heard of last
//!     64 ─► source ─► source                       oldest ─► … ─► youngest
//!      ⋮        └───────────────────────────────────► datagram ─► datagram: pieces
//!   1..4 ─► source ─► source ─► source
//! ```
//!
//! Source addresses of fragments can be forged. Each limit is therefore the number of datagrams or
//! bytes that an attacker must send to make a host lose a datagram. A source is charged for the
//! bytes received from it.
//!
//! - If a source exceeds its limit, that source loses the datagram that received no fragment for
//!   longest.
//! - If all sources together exceed their limit, the source with the most datagrams loses one by
//!   the same rule.
//! - Sources with at most four datagrams, as honest hosts have, count as equal. Among these, the
//!   source that sent no fragment for longest loses a datagram.
//!
//! A datagram whose fragments keep arriving is therefore lost only to a flood. Between two of its
//! fragments, more datagrams must start than the limits allow.
//!
//! If two fragments overlap, the whole datagram is dropped. Otherwise different hosts could
//! assemble different packets from the same fragments. The work per fragment is constant, whatever
//! the number of datagrams.

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

/// Identity of a datagram. The interface belongs to it, because of link-local addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub iface: IfaceId,
    pub src: IpAddr,
    pub dst: IpAddr,
    /// 0 for IPv6, where the identification alone tells datagrams apart (RFC 8200 §4.5).
    pub protocol: u8,
    pub ident: u32,
}

/// A fragment, and the fields of its packet's headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fragment {
    pub key: Key,
    /// Place in the datagram, bytes.
    pub offset: usize,
    pub more: bool,
    /// The IP headers, up to the fragment's bytes, from the start of the linear part.
    pub header: (usize, usize),
    /// End of the fragment's bytes, in the linear part too.
    pub end: usize,
    pub tos: u8,
    /// IPv6: place of the next-header field that names the fragment header, and its new value.
    pub next_header: Option<(usize, u8)>,
    /// The packet came to a group or broadcast address.
    pub group: bool,
}

impl Fragment {
    fn len(&self) -> usize {
        self.end - self.header.1
    }
}

/// Outcome of adding a fragment.
#[derive(Debug)]
pub(super) enum Added {
    /// Kept until the missing fragments come.
    Kept,
    /// A copy of one that is here.
    Duplicate,
    /// The datagram is complete: a packet that starts with its IP header.
    Complete(Packet),
    /// The fragment is lost, and its whole datagram unless the fragment alone is at fault.
    Lost(DropReason),
}

/// A datagram whose fragments did not all come in time.
#[derive(Debug)]
pub(super) struct Expired {
    pub key: Key,
    /// Packet of the first fragment, if it came, for the error to the sender.
    pub quote: Option<Vec<u8>>,
    pub group: bool,
}

/// Datagrams given up for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GivenUp {
    /// Their source had more than its share.
    pub source: u64,
    /// All sources together had too much.
    pub all: u64,
}

/// A source as limits count it: an interface, and an address or IPv6 prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Share(IfaceId, IpAddr);

/// All datagrams in reassembly.
#[derive(Debug)]
pub(in crate::net) struct Reassembly {
    index: HashMap<Key, u32, Keyed>,
    /// Each stands in the line of its source.
    datagrams: Queue<Entry>,
    by_share: HashMap<Share, u32, Keyed>,
    /// Each stands in the line of its rank; the source with the latest fragment is the youngest.
    sources: Queue<Source>,
    /// Sources by how many datagrams they have, see [`rank`].
    ranks: [List; RANKS],
    /// Deadlines of datagrams. All datagrams of an IP version wait equally long: the first to begin
    /// expires first.
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
    /// Its datagrams; the one without a fragment for longest is the oldest.
    line: List,
    bytes: usize,
}

#[derive(Debug)]
struct ReassemblyDeadline {
    at: Instant,
    key: Key,
}

/// Datagrams that a source may have before its rank rises. A host with a few fragmented datagrams
/// under way is thereby no worse off than a host with one. Few enough that a dozen sources are
/// needed to fill the memory with datagrams of this rank, however long they are.
const ALIKE_MAX: usize = 4;
const _: () = assert!(REASSEMBLY_BYTES_MAX / (ALIKE_MAX * (65_575 + 2 * OVERHEAD)) >= 12);
const RANKS: usize = REASSEMBLY_SOURCE_DATAGRAMS_MAX - ALIKE_MAX + 1;

/// Memory of a datagram besides its pieces: entries of tables, which may have as many free.
const OVERHEAD: usize = 1024;
const _: () = assert!(
    2 * (size_of::<Entry>() + size_of::<Source>() + size_of::<ReassemblyDeadline>())
        + 2 * (size_of::<(Key, u32)>() + size_of::<(Share, u32)>() + 6 * size_of::<u64>())
        <= OVERHEAD
);
// A datagram fits its source's share however it is cut, so there is another one to give up. Its
// header may be as long as an IPv6 packet's extension headers.
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

    /// Takes a copy of the fragment in `packet`, which is all in the linear part.
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

    /// Datagrams given up for others since last asked.
    pub(super) fn take_given_up(&mut self) -> GivenUp {
        core::mem::take(&mut self.given_up)
    }

    /// Something came of a datagram: it and its source are given up after all others.
    fn renew(&mut self, index: u32) {
        let Some(entry) = self.datagrams.get(index) else { return };
        let Some(source) = self.sources.get_mut(entry.source) else { return };
        let (at, rank) = (entry.source, rank(source.line.len()));
        self.datagrams.renew(&mut source.line, index);
        self.sources.renew(&mut self.ranks[rank], at);
    }

    /// Begins a datagram, for which another one may have to go.
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

    /// A source has one datagram more, and a fresh fragment.
    fn move_up(&mut self, source: u32, rank: usize) {
        match &mut self.ranks[rank.saturating_sub(1)..=rank] {
            [from, to] => self.sources.shift(from, to, source),
            [line, ..] => self.sources.renew(line, source),
            [] => unreachable!("a rank has a line"),
        }
    }

    /// The source that `share` belongs to; a new one gets a place in the first rank.
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

    /// Takes a datagram out of all tables.
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

    /// Gives up datagrams until `source`, and all sources together, are within their limits. The
    /// datagram that just got a fragment goes last, and alone it is within any limit.
    fn make_room(&mut self, source: u32) {
        while self.sources.get(source).is_some_and(|s| s.bytes > REASSEMBLY_SOURCE_BYTES_MAX) {
            self.give_up_of(source);
            self.given_up.source += 1;
        }
        while self.bytes > REASSEMBLY_BYTES_MAX {
            self.give_up_of_greatest();
        }
    }

    /// Gives up the oldest datagram of the source with the most. Among equal sources it is the one
    /// without a fragment for longest.
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

    /// Gives up expired datagrams.
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

/// The rank of sources with `count` datagrams; a few datagrams count as none.
fn rank(count: usize) -> usize {
    count.saturating_sub(ALIKE_MAX)
}

/// Hosts choose their IPv6 addresses within a prefix: it is their network that has a share.
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
