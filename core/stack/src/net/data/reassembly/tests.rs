use proptest::prelude::*;

use super::*;
use crate::net::hash::Random;

const NOW: Instant = Instant(0);
const SENDER: &str = "192.0.2.1";
/// Offset at which a small fragment costs most, if all bytes before it are allocated.
const FAR_OFFSET: usize = 65_504;

fn key(src: &str, ident: u32) -> Key {
    let src: IpAddr = src.parse().unwrap();
    let dst = if src.is_ipv4() { "10.0.0.1" } else { "fd00::1" };
    let protocol = if src.is_ipv4() { 17 } else { 0 };
    Key { iface: IfaceId(1), src, dst: dst.parse().unwrap(), protocol, ident }
}

/// Creates the headers of a fragment: an IPv4 header, or an IPv6 header with a fragment header.
/// Fields that reassembly does not read are 0.
fn headers(v4: bool) -> Vec<u8> {
    let mut header = vec![0; if v4 { 20 } else { 48 }];
    header[0] = if v4 { 0x45 } else { 0x60 };
    header
}

struct World {
    reassembly: Reassembly,
    pool: Pool,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self { reassembly: Reassembly::new(Keyed([1, 2])), pool: Pool::default(), now: NOW }
    }

    fn add(&mut self, ident: u32, offset: usize, data: &[u8], more: bool) -> Added {
        self.add_of(key(SENDER, ident), offset, data, more)
    }

    fn add_of(&mut self, key: Key, offset: usize, data: &[u8], more: bool) -> Added {
        let v4 = key.src.is_ipv4();
        let header = headers(v4);
        let end = header.len() + data.len();
        let mut packet = self.pool.take(end);
        packet.push_back(end).unwrap().copy_from_slice(&[&header, data].concat());
        let fragment = Fragment {
            key,
            offset,
            more,
            header: (0, header.len()),
            end,
            tos: 0,
            next_header: (!v4).then_some((6, 17)),
            group: false,
        };
        let added = self.reassembly.add(self.now, &fragment, &packet, &mut self.pool);
        self.pool.give(packet);
        self.reassembly.check();
        added
    }

    /// Sends a small fragment of a datagram that stays incomplete.
    fn spoof(&mut self, src: &str, ident: u32) {
        assert!(matches!(self.add_of(key(src, ident), FAR_OFFSET, &[0; 8], false), Added::Kept));
    }

    /// Sends a datagram in fragments of 1480 bytes, and calls `between` before each. Returns
    /// whether the datagram was reassembled.
    fn arrives(&mut self, key: Key, len: usize, mut between: impl FnMut(&mut Self, u32)) -> bool {
        let data = pattern(len);
        let pieces = data.chunks(1480).enumerate();
        let mut whole = None;
        for (n, piece) in pieces {
            between(self, n as u32);
            let (from, more) = (n * 1480, (n + 1) * 1480 < len);
            if let Added::Complete(packet) = self.add_of(key, from, piece, more) {
                assert!(!more && whole.is_none());
                whole = Some(packet.linear()[if key.src.is_ipv4() { 20 } else { 40 }..].to_vec());
                self.pool.give(packet);
            }
        }
        whole.is_some_and(|whole| whole == data)
    }
}

impl Reassembly {
    /// Checks that the charged bytes are those of the entries, and that no source exceeds its
    /// limit.
    fn check(&self) {
        let cost = |entry: &Entry| OVERHEAD + entry.datagram.cost();
        assert_eq!(self.bytes, self.datagrams.iter().map(cost).sum::<usize>());
        assert_eq!(self.bytes, self.sources.iter().map(|source| source.bytes).sum::<usize>());
        let count = self.datagrams.len();
        assert_eq!((count, count), (self.index.len(), self.deadlines.len()));
        assert_eq!(count, self.v4.len() + self.v6.len());
        assert_eq!(count, self.sources.iter().map(|source| source.line.len()).sum::<usize>());
        let mut ranked = [0; RANKS];
        self.sources.iter().for_each(|source| ranked[rank(source.line.len())] += 1);
        assert!(self.ranks.iter().map(List::len).eq(ranked));
        assert_eq!(self.sources.len(), self.ranks.iter().map(List::len).sum::<usize>());
        assert_eq!(self.sources.len(), self.by_share.len());
        assert!(self.bytes <= REASSEMBLY_BYTES_MAX && count <= REASSEMBLY_DATAGRAMS_MAX);
        assert!(self.sources.iter().all(|source| {
            (1..=REASSEMBLY_SOURCE_DATAGRAMS_MAX).contains(&source.line.len())
                && source.bytes <= REASSEMBLY_SOURCE_BYTES_MAX
        }));
    }

    fn assert_empty(&self) {
        self.check();
        assert_eq!((self.bytes, self.datagrams.len(), self.next_timeout()), (0, 0, Instant::FAR));
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
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

fn given_up(world: &mut World) -> (u64, u64) {
    let GivenUp { source, all } = world.reassembly.take_given_up();
    (source, all)
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
        world.reassembly.assert_empty();
    }
}

#[test]
fn overlap_costs_the_datagram_but_a_copy_does_not() {
    let mut world = World::new();
    assert!(matches!(world.add(1, 0, &[1; 16], true), Added::Kept));
    assert!(matches!(world.add(1, 0, &[1; 16], true), Added::Duplicate));
    assert_eq!(lost(world.add(1, 8, &[1; 16], true)), DropReason::FragmentOverlap);
    world.reassembly.assert_empty();

    assert!(matches!(world.add(2, 0, &[1; 16], true), Added::Kept));
    assert_eq!(lost(world.add(2, 0, &[2; 16], true)), DropReason::FragmentOverlap);

    // Overlaps at the start of a fragment, over several fragments, and within one.
    for (from, len) in [(24, 16), (0, 64), (40, 8), (32, 8), (32, 24)] {
        assert!(matches!(world.add(3, 32, &[1; 16], true), Added::Kept));
        assert!(matches!(world.add(3, 0, &[1; 8], true), Added::Kept));
        assert_eq!(lost(world.add(3, from, &vec![1; len], true)), DropReason::FragmentOverlap);
        world.reassembly.assert_empty();
    }
}

#[test]
fn contradictory_ends_and_impossible_sizes_are_refused() {
    let mut world = World::new();
    assert!(matches!(world.add(1, 16, &[1; 8], false), Added::Kept));
    assert_eq!(lost(world.add(1, 24, &[1; 8], true)), DropReason::FragmentInvalid);
    assert!(matches!(world.add(2, 16, &[1; 8], true), Added::Kept));
    assert_eq!(lost(world.add(2, 0, &[1; 8], false)), DropReason::FragmentInvalid);
    assert!(matches!(world.add(2, 16, &[1; 8], false), Added::Kept));
    assert_eq!(lost(world.add(2, 0, &[1; 8], false)), DropReason::FragmentInvalid);
    world.reassembly.assert_empty();
    assert_eq!(lost(world.add(3, 65528, &[1; 8], true)), DropReason::FragmentInvalid);
    assert_eq!(lost(world.add(4, 0, &[1; 9], true)), DropReason::FragmentInvalid);
    assert_eq!(lost(world.add(5, 0, &[], true)), DropReason::FragmentInvalid);
    // An invalid fragment leaves no entry.
    world.reassembly.assert_empty();
}

#[test]
fn the_number_of_fragments_is_limited() {
    let mut world = World::new();
    for n in 0..FRAGMENTS_MAX {
        assert!(matches!(world.add(1, n * 16, &[0; 8], true), Added::Kept));
    }
    let beyond = world.add(1, FRAGMENTS_MAX * 16, &[0; 8], true);
    assert_eq!(lost(beyond), DropReason::FragmentLimit);
    world.reassembly.assert_empty();
}

/// Seventeen forged fragments of 36 bytes once made a sender lose all its fragmented datagrams.
#[test]
fn who_is_spoofed_is_heard_all_the_same() {
    for src in [SENDER, "2001:db8::1"] {
        let mut world = World::new();
        for ident in 0..17 {
            world.spoof(src, ident);
        }
        assert!(world.reassembly.bytes < 17 * 1200, "what was received is charged");
        assert!(world.arrives(key(src, 1000), 64_000, |_, _| {}));
        assert_eq!(given_up(&mut world), (0, 0));
        // Send thousands of forged fragments first, and as many as allowed between two real
        // fragments.
        for ident in 0..3000 {
            world.spoof(src, 2000 + ident);
        }
        let between = REASSEMBLY_SOURCE_DATAGRAMS_MAX as u32 - 1;
        let spoof = |world: &mut World, n: u32| {
            for ident in 0..between {
                world.spoof(src, 10_000 + n * between + ident);
            }
        };
        assert!(world.arrives(key(src, 1001), 60_000, spoof));
        let (source, all) = given_up(&mut world);
        assert!(source > 3000 && all == 0);
        assert_eq!(world.reassembly.datagrams.len(), REASSEMBLY_SOURCE_DATAGRAMS_MAX - 1);
    }
}

#[test]
fn many_sources_do_not_push_out_one() {
    // All sources together send more datagrams than fit, between any two fragments of the sender.
    let mut world = World::new();
    let spoof = |world: &mut World, n: u32| {
        for source in 1..=64 {
            for ident in 0..20 {
                world.spoof(&format!("198.51.100.{source}"), n * 20 + ident);
            }
        }
    };
    assert!(world.arrives(key(SENDER, 1), 20_000, spoof));
    let (source, all) = given_up(&mut world);
    assert!(source == 0 && all > 0);

    // As many sources as fit send one datagram each.
    let spoof = |world: &mut World, n: u32| {
        for source in 0..REASSEMBLY_DATAGRAMS_MAX as u32 - 1 {
            let [_, _, c, d] = source.to_be_bytes();
            world.spoof(&format!("10.{n}.{c}.{d}"), 1);
        }
    };
    assert!(world.arrives(key(SENDER, 2), 20_000, spoof));

    // Each source uses up its limit in bytes.
    let mut world = World::new();
    let spoof = |world: &mut World, n: u32| {
        for source in 1..=8 {
            for ident in 0..20 {
                let key = key(&format!("198.51.100.{source}"), n * 20 + ident);
                assert!(matches!(world.add_of(key, 8, &vec![0; 65_000], true), Added::Kept));
            }
        }
    };
    assert!(world.arrives(key(SENDER, 1), 5000, spoof));
    let (source, all) = given_up(&mut world);
    assert!(source > 0 && all > 0);
}

#[test]
fn who_has_a_few_is_not_the_first_to_lose_to_many_with_one_each() {
    let mut world = World::new();
    let piece = |n: usize| [n as u8; 1480];
    for n in 0..4 {
        for source in 0..REASSEMBLY_DATAGRAMS_MAX as u32 - 10 {
            let [_, _, c, d] = source.to_be_bytes();
            world.spoof(&format!("10.{n}.{c}.{d}"), 1);
        }
        for ident in 0..4 {
            let added = world.add(ident, n * 1480, &piece(n), n < 3);
            assert_eq!(matches!(added, Added::Complete(_)), n == 3, "datagram {ident}");
        }
    }
    let (source, all) = given_up(&mut world);
    assert!(source == 0 && all > 0);
}

#[test]
fn a_network_full_of_addresses_has_one_share() {
    let mut world = World::new();
    let spoof = |world: &mut World, n: u32| {
        for host in 0..1000 {
            world.spoof(&format!("2001:db8:0:1:{n:x}::{host:x}"), host);
        }
    };
    assert!(world.arrives(key("2001:db8:0:2::1", 1), 20_000, spoof));
    let (source, all) = given_up(&mut world);
    assert!(source > 1000 && all == 0);
    assert_eq!(world.reassembly.datagrams.len(), REASSEMBLY_SOURCE_DATAGRAMS_MAX);
    // A link-local address on two links counts as two sources.
    let link = |iface| Key { iface: IfaceId(iface), ..key("fe80::1", 7) };
    assert!(matches!(world.add_of(link(1), 0, &[0; 8], true), Added::Kept));
    assert!(matches!(world.add_of(link(2), 0, &[0; 8], true), Added::Kept));
    assert_eq!(world.reassembly.sources.len(), 3);
}

#[test]
fn a_source_beyond_its_share_loses_its_own_oldest() {
    let mut world = World::new();
    assert!(matches!(world.add_of(key("192.0.2.9", 0), 8, &[0; 8], true), Added::Kept));
    let big = vec![0; 60_000];
    let fit = REASSEMBLY_SOURCE_BYTES_MAX / (big.len() + OVERHEAD + PIECE_OVERHEAD + 20);
    for ident in 0..fit as u32 {
        assert!(matches!(world.add(ident, 8, &big, true), Added::Kept));
    }
    assert_eq!(given_up(&mut world), (0, 0));
    // The first datagram gets a fragment, so the second one is the oldest now.
    assert!(matches!(world.add(0, 8, &big, true), Added::Duplicate));
    assert!(matches!(world.add(1000, 8, &big, true), Added::Kept));
    assert_eq!(given_up(&mut world), (1, 0));
    assert!(matches!(world.add(0, 8, &big, true), Added::Duplicate));
    assert!(matches!(world.add(1, 8, &big, true), Added::Kept), "it was gone");
    let others = world.add_of(key("192.0.2.9", 0), 8, &[0; 8], true);
    assert!(matches!(others, Added::Duplicate));
}

#[test]
fn tiny_pieces_cost_what_they_hold() {
    let mut world = World::new();
    for datagram in 0..3000 {
        let key = key(&format!("198.51.{}.{}", datagram / 250, datagram % 250), 1);
        for n in 1..FRAGMENTS_MAX {
            let added = world.add_of(key, n * 16, &[0; 8], true);
            assert!(matches!(added, Added::Kept));
        }
    }
    let each = OVERHEAD + (FRAGMENTS_MAX - 1) * (8 + PIECE_OVERHEAD);
    assert_eq!(world.reassembly.bytes % each, 0);
    assert_eq!(world.reassembly.datagrams.len(), REASSEMBLY_BYTES_MAX / each);
}

#[test]
fn what_waits_too_long_is_given_up_with_the_first_fragment_quoted() {
    let mut world = World::new();
    world.add(1, 0, &[5; 16], true);
    world.add(2, 8, &[5; 16], true);
    world.add_of(key("2001:db8::1", 3), 0, &[5; 16], true);
    assert_eq!(world.reassembly.next_timeout(), NOW + REASSEMBLY_V4_TIME);
    // The time runs from the first fragment; later ones do not prolong it.
    world.now = NOW + REASSEMBLY_V4_TIME / 2;
    world.add(1, 64, &[5; 16], true);
    world.add(4, 0, &[5; 16], true);
    let early = Instant((NOW + REASSEMBLY_V4_TIME).0 - 1);
    assert!(world.reassembly.on_timeout(early).is_empty());
    let mut at = |at: Instant| {
        let expired = world.reassembly.on_timeout(at);
        world.reassembly.check();
        expired.iter().map(|e| (e.key.ident, e.quote.as_ref().map(Vec::len))).collect::<Vec<_>>()
    };
    assert_eq!(at(NOW + REASSEMBLY_V4_TIME), [(1, Some(36)), (2, None)]);
    assert_eq!(at(NOW + REASSEMBLY_V6_TIME), [(4, Some(36)), (3, Some(64))]);
    world.reassembly.assert_empty();
}

/// A datagram and its fragments, which are shuffled, some of them duplicated.
#[derive(Debug, Clone)]
struct Cut {
    key: Key,
    data: Vec<u8>,
    pieces: Vec<(usize, usize)>,
}

fn cut(key: Key, len: usize, random: &mut Random) -> Cut {
    let mut pieces = Vec::new();
    let mut from = 0;
    while from < len {
        // Choose lengths such that no datagram exceeds the maximum number of fragments.
        let most = len.div_ceil(FRAGMENTS_MAX / 2).next_multiple_of(8) as u64;
        let to =
            len.min(from + most as usize / 2 / 8 * 8 + 8 + 8 * random.below(most) as usize / 8);
        pieces.push((from, to.next_multiple_of(8).min(len)));
        from = pieces.last().unwrap().1;
    }
    for _ in 0..random.below(4) {
        let twice = pieces[random.below(pieces.len() as u64) as usize];
        pieces.push(twice);
    }
    for n in (1..pieces.len()).rev() {
        pieces.swap(n, random.below(n as u64 + 1) as usize);
    }
    Cut { key, data: pattern(len), pieces }
}

proptest! {
    #[test]
    fn what_was_cut_is_put_together_whatever_strangers_send(
        lens in prop::collection::vec(1usize..40_000, 1..8),
        seed: u64,
    ) {
        let mut random = Random::new(seed);
        let mut world = World::new();
        let sources = [SENDER, "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8:1::1"];
        let mut cuts: Vec<_> = lens.iter().enumerate().map(|(n, len)| {
            let src = sources[random.below(sources.len() as u64) as usize];
            cut(key(src, n as u32), *len, &mut random)
        }).collect();
        let mut done = vec![false; cuts.len()];
        while cuts.iter().any(|cut| !cut.pieces.is_empty()) {
            // Forge random fragments of other datagrams, from these sources and from other ones.
            for _ in 0..random.below(8) {
                let src = match random.below(2) {
                    0 => sources[random.below(sources.len() as u64) as usize].to_string(),
                    _ => format!("198.51.100.{}", random.below(200)),
                };
                let offset = random.below(8192) as usize * 8;
                let data = vec![0; random.below(300) as usize];
                // Two addresses share a /64, whose limit must also hold the test's own datagrams.
                let key = key(&src, 100 + random.below(25) as u32);
                let more = random.below(2) == 0;
                if let Added::Complete(packet) = world.add_of(key, offset, &data, more) {
                    world.pool.give(packet);
                }
            }
            let left: Vec<_> = (0..cuts.len()).filter(|n| !cuts[*n].pieces.is_empty()).collect();
            let n = left[random.below(left.len() as u64) as usize];
            let Cut { key, data, pieces } = &mut cuts[n];
            let Some((from, to)) = pieces.pop() else { continue };
            // A fragment that arrives after its datagram was complete opens a new one, which is
            // ignored.
            if done[n] {
                continue;
            }
            let whole = match world.add_of(*key, from, &data[from..to], to < data.len()) {
                Added::Kept | Added::Duplicate => continue,
                Added::Complete(packet) => packet,
                Added::Lost(reason) => panic!("{reason:?}"),
            };
            let header = if key.src.is_ipv4() { 20 } else { 40 };
            prop_assert_eq!(&whole.linear()[header..], &data[..]);
            world.pool.give(whole);
            done[n] = true;
        }
        prop_assert!(done.iter().all(|done| *done));
        let GivenUp { all, .. } = world.reassembly.take_given_up();
        prop_assert_eq!(all, 0);
        world.reassembly.on_timeout(NOW + REASSEMBLY_V6_TIME);
        world.reassembly.assert_empty();
    }
}
