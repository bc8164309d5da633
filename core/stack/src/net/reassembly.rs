//! Putting fragments together, IPv4 and IPv6 alike.
//!
//! Each datagram is one growing buffer and the list of its filled ranges. Memory is bounded in all and
//! by source, and any overlap costs the whole datagram, so that no two readers of the same fragments
//! can see different packets.

use core::net::IpAddr;
use core::ops::Range;
use core::time::Duration;

use hashbrown::HashMap;
use towpath_pool::{Meta, Packet, Pool};
use towpath_tcp::Instant;

use super::hash::Keyed;
use super::iface::IfaceId;
use super::limits::{
    FRAGMENTS_MAX, REASSEMBLY_BYTES_MAX, REASSEMBLY_DATAGRAMS_MAX, REASSEMBLY_SOURCE_BYTES_MAX,
    REASSEMBLY_V4_TIME, REASSEMBLY_V6_TIME,
};
use super::lru::Lru;
use super::offload::refresh_ipv4_checksum;
use crate::drop::DropReason;

/// Which datagram a fragment is of. Link-local addresses make the interface part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub iface: IfaceId,
    pub src: IpAddr,
    pub dst: IpAddr,
    /// 0 for IPv6, where the identification alone tells datagrams apart (RFC 8200 §4.5).
    pub protocol: u8,
    pub ident: u32,
}

/// One fragment, and what its packet says of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fragment {
    pub key: Key,
    /// Place in the datagram, bytes.
    pub offset: usize,
    pub more: bool,
    /// The IP headers, up to the fragment's bytes, from the start of the linear part.
    pub header: (usize, usize),
    /// End of the fragment's bytes.
    pub end: usize,
    pub tos: u8,
    /// IPv6: where the next-header field that names the fragment header is, in the IP headers, and
    /// what to write there.
    pub next_header: Option<(usize, u8)>,
    /// It came to a group or broadcast address.
    pub group: bool,
}

/// What became of a fragment.
#[derive(Debug)]
pub(super) enum Added {
    /// Others are missing still.
    Kept,
    /// A copy of one that is here.
    Duplicate,
    /// The datagram is complete: a packet that starts with its IP header.
    Complete(Packet),
    /// The fragment and its whole datagram are lost.
    Lost(DropReason),
}

/// A datagram whose fragments did not all come in time.
#[derive(Debug)]
pub(super) struct Expired {
    pub key: Key,
    /// What the sender is told about: the first fragment's packet, if it came.
    pub quote: Option<Vec<u8>>,
    pub group: bool,
}

/// All datagrams in reassembly.
#[derive(Debug)]
pub(super) struct Reassembly {
    datagrams: Lru<Key, Datagram>,
    /// Memory in use, by source.
    by_source: HashMap<IpAddr, usize, Keyed>,
    bytes: usize,
    /// Not later than the first deadline.
    next: Instant,
    lost: u64,
}

#[derive(Debug)]
struct Datagram {
    data: Vec<u8>,
    /// Filled parts of `data`, in order, touching ones apart.
    filled: Vec<Range<usize>>,
    /// Known once the last fragment is here.
    total: Option<usize>,
    /// IP headers of the first fragment.
    header: Vec<u8>,
    next_header: Option<(usize, u8)>,
    /// ECN fields seen, one bit for each of the four.
    ecn: u8,
    group: bool,
    until: Instant,
}

/// What a datagram costs besides its bytes, about.
const OVERHEAD: usize = 512;

impl Reassembly {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            datagrams: Lru::new(REASSEMBLY_DATAGRAMS_MAX, keys),
            by_source: HashMap::with_hasher(keys),
            bytes: 0,
            next: Instant::FAR,
            lost: 0,
        }
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.next
    }

    /// Takes a copy of the fragment in `packet`.
    pub(super) fn add(
        &mut self,
        now: Instant,
        fragment: &Fragment,
        packet: &Packet,
        pool: &mut Pool,
    ) -> Added {
        let key = fragment.key;
        let len = fragment.end - fragment.header.1;
        if fragment.more && (len == 0 || !len.is_multiple_of(8)) {
            return Added::Lost(DropReason::FragmentInvalid);
        }
        if self.datagrams.get_mut(&key).is_none() {
            self.start(now, fragment);
        }
        let Some(datagram) = self.datagrams.get_mut(&key) else {
            return Added::Lost(DropReason::FragmentLimit);
        };
        let before = datagram.cost();
        let result = datagram.insert(fragment, packet);
        let grown = datagram.cost() - before;
        self.charge(key.src, grown);
        match result {
            Err(reason) => self.lose(&key, reason),
            Ok(true) => Added::Duplicate,
            Ok(false) if self.over_source_limit(key.src) => {
                self.lose(&key, DropReason::FragmentLimit)
            }
            Ok(false) => {
                self.evict(&key);
                self.finish(&key, packet.meta, pool)
            }
        }
    }

    /// Datagrams given up to make room since last asked.
    pub(super) fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    fn start(&mut self, now: Instant, fragment: &Fragment) {
        let time = timeout_for(&fragment.key);
        let until = now + time;
        self.next = self.next.min(until);
        let datagram = Datagram {
            data: Vec::new(),
            filled: Vec::new(),
            total: None,
            header: Vec::new(),
            next_header: None,
            ecn: 0,
            group: fragment.group,
            until,
        };
        self.charge(fragment.key.src, OVERHEAD);
        if let Some((key, gone)) = self.datagrams.insert(fragment.key, datagram) {
            self.release(key.src, gone.cost());
            self.lost += 1;
        }
    }

    fn charge(&mut self, src: IpAddr, bytes: usize) {
        self.bytes += bytes;
        *self.by_source.entry(src).or_insert(0) += bytes;
    }

    fn release(&mut self, src: IpAddr, bytes: usize) {
        self.bytes -= bytes;
        if let Some(used) = self.by_source.get_mut(&src) {
            *used -= bytes;
            if *used == 0 {
                self.by_source.remove(&src);
            }
        }
    }

    fn over_source_limit(&self, src: IpAddr) -> bool {
        self.by_source.get(&src).is_some_and(|used| *used > REASSEMBLY_SOURCE_BYTES_MAX)
    }

    fn remove(&mut self, key: &Key) -> Option<Datagram> {
        let datagram = self.datagrams.remove(key)?;
        self.release(key.src, datagram.cost());
        Some(datagram)
    }

    fn lose(&mut self, key: &Key, reason: DropReason) -> Added {
        self.remove(key);
        Added::Lost(reason)
    }

    /// Gives up the datagrams that nothing was heard of for longest, but not `keep`.
    fn evict(&mut self, keep: &Key) {
        while self.bytes > REASSEMBLY_BYTES_MAX {
            let Some(oldest) = self.datagrams.oldest().copied().filter(|key| key != keep) else {
                return;
            };
            self.remove(&oldest);
            self.lost += 1;
        }
    }

    fn finish(&mut self, key: &Key, meta: Meta, pool: &mut Pool) -> Added {
        if !self.datagrams.peek(key).is_some_and(Datagram::is_complete) {
            return Added::Kept;
        }
        let Some(datagram) = self.remove(key) else { return Added::Kept };
        match datagram.into_packet(meta, pool) {
            Some(packet) => Added::Complete(packet),
            None => Added::Lost(DropReason::FragmentInvalid),
        }
    }

    /// Gives up what waited too long.
    pub(super) fn on_timeout(&mut self, now: Instant) -> Vec<Expired> {
        if now < self.next {
            return Vec::new();
        }
        let due = |datagram: &Datagram| datagram.until <= now;
        let keys: Vec<_> =
            self.datagrams.iter().filter(|(_, d)| due(d)).map(|(key, _)| *key).collect();
        let expired = keys.into_iter().filter_map(|key| {
            let datagram = self.remove(&key)?;
            let (group, quote) = (datagram.group, datagram.quote());
            Some(Expired { key, quote, group })
        });
        let expired = expired.collect();
        let deadlines = self.datagrams.iter().map(|(_, datagram)| datagram.until);
        self.next = deadlines.min().unwrap_or(Instant::FAR);
        expired
    }
}

fn timeout_for(key: &Key) -> Duration {
    if key.src.is_ipv4() { REASSEMBLY_V4_TIME } else { REASSEMBLY_V6_TIME }
}

impl Datagram {
    fn cost(&self) -> usize {
        OVERHEAD + self.data.len()
    }

    /// Puts a fragment in its place; true when it was here already.
    fn insert(&mut self, fragment: &Fragment, packet: &Packet) -> Result<bool, DropReason> {
        let (from, len) = (fragment.offset, fragment.end - fragment.header.1);
        let to = from + len;
        // The IP header of the whole, 20 or 40 bytes at least, counts for IPv4 only.
        if to + if fragment.key.src.is_ipv4() { 20 } else { 0 } > 65535 {
            return Err(DropReason::FragmentInvalid);
        }
        let beyond = self.total.is_some_and(|total| to > total);
        let shorter = !fragment.more && self.data.len() > to;
        let other_end = !fragment.more && self.total.is_some_and(|total| total != to);
        if beyond || shorter || other_end {
            return Err(DropReason::FragmentInvalid);
        }
        let at = self.filled.partition_point(|filled| filled.end <= from);
        match self.filled.get(at) {
            Some(filled) if *filled == (from..to) && self.is_copy(fragment, packet) => {
                return Ok(true);
            }
            //= https://www.rfc-editor.org/rfc/rfc8200#section-4.5
            //# If any of the fragments being reassembled overlap with any
            //# other fragments being reassembled for the same packet,
            //# reassembly of that packet must be abandoned and all the
            //# fragments that have been received for that packet must be
            //# discarded
            Some(filled) if filled.start < to => return Err(DropReason::FragmentOverlap),
            _ => {}
        }
        if self.filled.len() >= FRAGMENTS_MAX {
            return Err(DropReason::FragmentLimit);
        }
        self.filled.insert(at, from..to);
        self.store(fragment, packet, from, to);
        Ok(false)
    }

    fn is_copy(&self, fragment: &Fragment, packet: &Packet) -> bool {
        let mut bytes = vec![0; fragment.end - fragment.header.1];
        packet.copy_to(fragment.header.1, &mut bytes);
        self.data.get(fragment.offset..fragment.offset + bytes.len()) == Some(&bytes)
    }

    fn store(&mut self, fragment: &Fragment, packet: &Packet, from: usize, to: usize) {
        if self.data.len() < to {
            self.data.resize(to, 0);
        }
        packet.copy_to(fragment.header.1, &mut self.data[from..to]);
        if !fragment.more {
            self.total = Some(to);
        }
        self.ecn |= 1 << (fragment.tos & 3);
        self.group |= fragment.group;
        if from == 0 {
            self.header = packet.linear()[fragment.header.0..fragment.header.1].to_vec();
            self.next_header = fragment.next_header;
        }
    }

    fn is_complete(&self) -> bool {
        let Some(total) = self.total else { return false };
        // Without overlaps, the ranges fill the whole exactly when their lengths add up to it.
        self.filled.iter().map(|filled| filled.end - filled.start).sum::<usize>() == total
    }

    /// The packet as it was before somebody cut it; `None` when its parts contradict each other.
    fn into_packet(mut self, meta: Meta, pool: &mut Pool) -> Option<Packet> {
        let ecn = merged_ecn(self.ecn)?;
        match self.next_header {
            Some((at, next_header)) => {
                *self.header.get_mut(at)? = next_header;
                let whole = self.header.len().checked_sub(towpath_wire::ipv6_ext::FRAGMENT_LEN)?;
                self.header.truncate(whole);
                let payload_len = whole.checked_sub(40)? + self.data.len();
                let payload_len = u16::try_from(payload_len).ok()?;
                self.header.get_mut(4..6)?.copy_from_slice(&payload_len.to_be_bytes());
                let byte = self.header.get_mut(1)?;
                *byte = *byte & 0xcf | ecn << 4;
            }
            None => {
                let total_len = u16::try_from(self.header.len() + self.data.len()).ok()?;
                self.header.get_mut(2..4)?.copy_from_slice(&total_len.to_be_bytes());
                self.header.get_mut(6..8)?.fill(0);
                let byte = self.header.get_mut(1)?;
                *byte = *byte & 0xfc | ecn;
                refresh_ipv4_checksum(&mut self.header);
            }
        }
        let mut packet = pool.take(self.header.len() + self.data.len());
        let room = packet.push_back(self.header.len() + self.data.len())?;
        let (header, data) = room.split_at_mut(self.header.len());
        header.copy_from_slice(&self.header);
        data.copy_from_slice(&self.data);
        packet.meta = Meta { arrival_ns: meta.arrival_ns, ..Meta::default() };
        Some(packet)
    }

    /// The first fragment's packet, as far as an ICMP error would quote it.
    fn quote(&self) -> Option<Vec<u8>> {
        let first = self.filled.first().filter(|filled| filled.start == 0)?;
        let mut quote = self.header.clone();
        quote.extend_from_slice(&self.data[first.clone()]);
        Some(quote)
    }
}

/// The ECN field of the whole from those of its fragments, as a set of bits.
//= https://www.rfc-editor.org/rfc/rfc3168#section-5.3
//# Further, if any fragment of an IP packet to be reassembled has the CE
//# codepoint set, then one of two actions MUST be taken:
//# * Set the CE codepoint on the reassembled packet.  However, this
//# MUST NOT occur if any of the other fragments contributing to
//# this reassembly carries the Not-ECT codepoint.
//# * The packet is dropped, instead of being reassembled
fn merged_ecn(seen: u8) -> Option<u8> {
    const NOT_ECT: u8 = 1 << 0;
    const ECT_1: u8 = 1 << 1;
    const ECT_0: u8 = 1 << 2;
    const CE: u8 = 1 << 3;
    match seen {
        _ if seen & CE != 0 => (seen & NOT_ECT == 0).then_some(3),
        _ if seen & NOT_ECT != 0 => Some(0),
        _ if seen & ECT_0 != 0 => Some(2),
        _ => Some(u8::from(seen & ECT_1 != 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(0);

    fn key(src: [u8; 4], ident: u32) -> Key {
        Key { iface: IfaceId(1), src: src.into(), dst: [10, 0, 0, 1].into(), protocol: 17, ident }
    }

    fn fragment(
        key: Key,
        offset: usize,
        data: &[u8],
        more: bool,
        pool: &mut Pool,
    ) -> (Fragment, Packet) {
        let mut packet = pool.take(20 + data.len());
        let bytes = packet.push_back(20 + data.len()).unwrap();
        bytes[..20].fill(0);
        bytes[0] = 0x45;
        bytes[20..].copy_from_slice(data);
        let fragment = Fragment {
            key,
            offset,
            more,
            header: (0, 20),
            end: 20 + data.len(),
            tos: 0,
            next_header: None,
            group: false,
        };
        (fragment, packet)
    }

    struct World {
        reassembly: Reassembly,
        pool: Pool,
    }

    impl World {
        fn new() -> Self {
            Self { reassembly: Reassembly::new(Keyed([1, 2])), pool: Pool::default() }
        }

        fn add(&mut self, ident: u32, offset: usize, data: &[u8], more: bool) -> Added {
            self.add_from([192, 0, 2, 1], ident, offset, data, more)
        }

        fn add_from(
            &mut self,
            src: [u8; 4],
            ident: u32,
            offset: usize,
            data: &[u8],
            more: bool,
        ) -> Added {
            let (fragment, packet) = fragment(key(src, ident), offset, data, more, &mut self.pool);
            let added = self.reassembly.add(NOW, &fragment, &packet, &mut self.pool);
            self.pool.give(packet);
            added
        }
    }

    fn complete(added: Added) -> Vec<u8> {
        match added {
            Added::Complete(packet) => packet.linear()[20..].to_vec(),
            other => panic!("not complete: {other:?}"),
        }
    }

    fn lost(added: Added) -> DropReason {
        match added {
            Added::Lost(reason) => reason,
            other => panic!("not lost: {other:?}"),
        }
    }

    #[test]
    fn any_order_gives_the_same_packet() {
        let data: Vec<u8> = (0..100).collect();
        let parts = [(0, 40, true), (40, 80, true), (80, 100, false)];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1], [1, 0, 2], [0, 2, 1]] {
            let mut world = World::new();
            let mut last = Added::Kept;
            for (n, part) in order.into_iter().enumerate() {
                let (from, to, more) = parts[part];
                last = world.add(7, from, &data[from..to], more);
                assert_eq!(matches!(last, Added::Complete(_)), n == 2);
            }
            assert_eq!(complete(last), data);
            assert_eq!(world.reassembly.bytes, 0);
            assert!(world.reassembly.by_source.is_empty());
        }
    }

    #[test]
    fn overlap_costs_the_datagram_but_a_copy_does_not() {
        let mut world = World::new();
        assert!(matches!(world.add(1, 0, &[1; 16], true), Added::Kept));
        assert!(matches!(world.add(1, 0, &[1; 16], true), Added::Duplicate));
        assert_eq!(lost(world.add(1, 8, &[1; 16], true)), DropReason::FragmentOverlap);
        assert_eq!(world.reassembly.datagrams.len(), 0);

        assert!(matches!(world.add(2, 0, &[1; 16], true), Added::Kept));
        assert_eq!(lost(world.add(2, 0, &[2; 16], true)), DropReason::FragmentOverlap);
    }

    #[test]
    fn contradictory_ends_and_impossible_sizes_are_refused() {
        let mut world = World::new();
        assert!(matches!(world.add(1, 16, &[1; 8], false), Added::Kept));
        assert_eq!(lost(world.add(1, 24, &[1; 8], true)), DropReason::FragmentInvalid);
        assert!(matches!(world.add(2, 16, &[1; 8], true), Added::Kept));
        assert_eq!(lost(world.add(2, 0, &[1; 8], false)), DropReason::FragmentInvalid);
        assert_eq!(lost(world.add(3, 65528, &[1; 8], true)), DropReason::FragmentInvalid);
        assert_eq!(lost(world.add(4, 0, &[1; 9], true)), DropReason::FragmentInvalid);
    }

    #[test]
    fn the_number_of_fragments_is_limited() {
        let mut world = World::new();
        for n in 0..FRAGMENTS_MAX {
            assert!(matches!(world.add(1, n * 16, &[0; 8], true), Added::Kept));
        }
        let beyond = world.add(1, FRAGMENTS_MAX * 16, &[0; 8], true);
        assert_eq!(lost(beyond), DropReason::FragmentLimit);
    }

    #[test]
    fn memory_is_limited_by_source_and_in_all() {
        let mut world = World::new();
        let big = |world: &mut World, source: u8, ident| {
            world.add_from([192, 0, 2, source], ident, 32_000, &[0; 8], true)
        };
        let fit = REASSEMBLY_SOURCE_BYTES_MAX / (32_008 + OVERHEAD);
        for ident in 0..fit as u32 {
            assert!(matches!(big(&mut world, 1, ident), Added::Kept));
        }
        assert_eq!(lost(big(&mut world, 1, 1000)), DropReason::FragmentLimit);
        assert_eq!(world.reassembly.take_lost(), 0);
        for source in 2..40 {
            for ident in 0..8 {
                assert!(matches!(big(&mut world, source, ident), Added::Kept));
            }
        }
        assert!(world.reassembly.bytes <= REASSEMBLY_BYTES_MAX);
        assert!(world.reassembly.take_lost() > 0);
    }

    #[test]
    fn the_number_of_datagrams_is_limited() {
        let mut world = World::new();
        for ident in 0..REASSEMBLY_DATAGRAMS_MAX as u32 + 5 {
            world.add(ident, 8, &[0; 8], true);
        }
        assert_eq!(world.reassembly.datagrams.len(), REASSEMBLY_DATAGRAMS_MAX);
        assert_eq!(world.reassembly.take_lost(), 5);
    }

    #[test]
    fn what_waits_too_long_is_given_up_with_the_first_fragment_quoted() {
        let mut world = World::new();
        world.add(1, 0, &[5; 16], true);
        world.add(2, 8, &[5; 16], true);
        assert_eq!(world.reassembly.next_timeout(), NOW + REASSEMBLY_V4_TIME);
        let expired = world.reassembly.on_timeout(NOW + REASSEMBLY_V4_TIME);
        let quotes: Vec<_> = expired.iter().map(|e| e.quote.as_ref().map(Vec::len)).collect();
        assert_eq!(quotes, [Some(36), None]);
        assert_eq!(world.reassembly.bytes, 0);
        assert_eq!(world.reassembly.next_timeout(), Instant::FAR);
    }

    #[test]
    fn ecn_is_merged() {
        assert_eq!(merged_ecn(0b0001), Some(0));
        assert_eq!(merged_ecn(0b0100), Some(2));
        assert_eq!(merged_ecn(0b0010), Some(1));
        assert_eq!(merged_ecn(0b1100), Some(3));
        assert_eq!(merged_ecn(0b1001), None);
    }
}
