//! The tree of nodes, and the mapping of prefixes and addresses to nodes.
//!
//! ```text
//!    an address   0 010100 001010 110000 …   the root uses one bit, other nodes use six
//!                 │ └─┬──┘ └─┬──┘
//!    root ────────┘   │      │    inside: prefixes of 0 to 5 more bits, by place    1
//!      └─► below[0] ──┘      │                                                    2   3
//!            └─► below[20] ──┘                                                   4 5 6 7 … 63
//! ```
//!
//! Nodes begin at 1, 7, 13, 19, … bits. Prefixes of 24 bits are therefore inside the node that
//! begins at 19, and those of 48 inside the node at 43. Most prefixes of real tables have these
//! lengths. With nodes at 6, 12, 18 and 24 bits, each prefix of 24 bits would need its own node.
//!
//! A lookup or a change visits at most 7 nodes for IPv4 and 23 for IPv6, regardless of the number
//! of prefixes.

use std::sync::Arc;

use crate::matching::Matching;

/// Number of address bits by which a trie node selects a child.
const STRIDE: u32 = 6;
/// Number of address bits by which the root of the trie selects a child.
const ROOT_STRIDE: u32 = 1;
/// Maximum number of trie nodes on the path of an address of 128 bits.
pub(crate) const NODES_MAX: usize = 23;
const _: () = assert!(ROOT_STRIDE + (NODES_MAX as u32 - 1) * STRIDE > u128::BITS);

/// A prefix: its left-aligned bits, and its length in bits. The bits after the length are 0.
pub type Bits = (u128, u8);

/// A map from prefixes of at most 128 bits to values.
#[derive(Debug, Clone)]
pub struct Trie<T>(Arc<TrieNode<T>>);

#[derive(Debug, Clone)]
pub(crate) struct TrieNode<T> {
    /// Bitmap of the prefixes that end in this node. [`place_of`] returns the bit number of a
    /// prefix.
    inside: u64,
    /// Bitmap of this node's children. The bit number of a child is the value of the six address
    /// bits that follow the bits of this node.
    below: u64,
    /// Values of the prefixes in the bitmap `inside`, in the order of their bits.
    values: Vec<T>,
    /// Child nodes, in the order of their bits in the bitmap `below`.
    nodes: Vec<Arc<TrieNode<T>>>,
}

impl<T> Default for TrieNode<T> {
    fn default() -> Self {
        Self { inside: 0, below: 0, values: Vec::new(), nodes: Vec::new() }
    }
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Trie<T> {
    /// Returns the value of the longest prefix that matches `addr`.
    #[inline]
    pub fn longest(&self, addr: u128) -> Option<&T> {
        let (mut node, mut rest, mut found) = (&*self.0, addr, None);
        let mut step = first_step(addr);
        rest <<= ROOT_STRIDE;
        loop {
            let places = node.inside & ANCESTORS[step as usize];
            if places != 0 {
                found = Some((node, places.ilog2()));
            }
            let Some(next) = node.node(step) else { break };
            node = next;
            step = (rest >> (u128::BITS - STRIDE)) as u32;
            rest <<= STRIDE;
        }
        found.map(|(node, place)| node.value(place))
    }

    /// Returns the values of all prefixes that match `addr`, longest first.
    pub fn matching(&self, addr: u128) -> Matching<'_, T> {
        Matching::new(&self.0, addr)
    }

    /// Returns the value of exactly the given prefix.
    pub fn get(&self, (addr, len): Bits) -> Option<&T> {
        let mut node = &*self.0;
        for depth in 0..depth_of(len) {
            node = node.node(step(addr, depth))?;
        }
        let place = place_of((addr, len));
        (node.inside >> place & 1 == 1).then(|| node.value(place))
    }

    /// Calls `show` for the prefix `(addr, len)`, and for each prefix of at most `len_max` bits
    /// inside it. Shorter prefixes are shown before the longer prefixes that they contain.
    pub(crate) fn each_within<'a>(
        &'a self,
        (addr, len): Bits,
        len_max: u8,
        show: &mut impl FnMut(Bits, &'a T),
    ) {
        let mut node = &*self.0;
        let depth = depth_of(len);
        for depth in 0..depth {
            let Some(next) = node.node(step(addr, depth)) else { return };
            node = next;
        }
        let begin = addr & !u128::MAX.checked_shr(begin_of(depth)).unwrap_or(0);
        let is_within = |bits: u128| (bits ^ addr).checked_shr(u128::BITS - u32::from(len));
        node.each((begin, depth), len_max, &mut |(bits, own), value| {
            if own >= len && is_within(bits).unwrap_or(0) == 0 {
                show((bits, own), value);
            }
        });
    }

    /// Returns the memory of the trie's nodes in bytes. Memory to which the values point is not
    /// included.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl<T: Clone> Trie<T> {
    /// Sets the value of a prefix.
    pub fn set(&mut self, bits: Bits, value: T) {
        let (addr, len) = bits;
        let mut node = Arc::make_mut(&mut self.0);
        for depth in 0..depth_of(len) {
            let step = step(addr, depth);
            let at = rank(node.below, step);
            if node.below >> step & 1 == 0 {
                node.below |= 1 << step;
                // Reserve space for exactly one more child. Tries have many nodes, and most of them
                // have few children.
                node.nodes.reserve_exact(1);
                node.nodes.insert(at, Arc::default());
            }
            node = Arc::make_mut(&mut node.nodes[at]);
        }
        let place = place_of(bits);
        let at = rank(node.inside, place);
        match node.inside >> place & 1 {
            1 => node.values[at] = value,
            _ => {
                node.inside |= 1 << place;
                node.values.reserve_exact(1);
                node.values.insert(at, value);
            }
        }
    }

    /// Removes a prefix and its value, if the trie contains it.
    pub fn remove(&mut self, bits: Bits) {
        if self.get(bits).is_some() {
            remove_below(&mut self.0, bits, 0);
        }
    }
}

/// Removes a prefix that exists in the subtree of `node`. Returns true if `node` is empty
/// afterwards.
fn remove_below<T: Clone>(node: &mut Arc<TrieNode<T>>, bits: Bits, depth: usize) -> bool {
    let node = Arc::make_mut(node);
    if depth < depth_of(bits.1) {
        let step = step(bits.0, depth);
        let at = rank(node.below, step);
        if remove_below(&mut node.nodes[at], bits, depth + 1) {
            node.below &= !(1 << step);
            node.nodes.remove(at);
        }
    } else {
        let place = place_of(bits);
        node.values.remove(rank(node.inside, place));
        node.inside &= !(1 << place);
    }
    node.inside == 0 && node.below == 0
}

impl<T> TrieNode<T> {
    /// Returns the child node for `step`, the value of the next six address bits.
    #[inline]
    pub(crate) fn node(&self, step: u32) -> Option<&Self> {
        (self.below >> step & 1 == 1).then(|| &*self.nodes[rank(self.below, step)])
    }

    /// Returns the bitmap of the prefixes in this node that match `step`, the value of six address
    /// bits.
    pub(crate) fn places(&self, step: u32) -> u64 {
        self.inside & ANCESTORS[step as usize]
    }

    /// Returns the value of the prefix with bit number `place` in this node.
    #[inline]
    pub(crate) fn value(&self, place: u32) -> &T {
        &self.values[rank(self.inside, place)]
    }

    /// Calls `show` for the prefixes in this node and in the nodes below it. `addr` has the address
    /// bits that lead to this node.
    fn each<'a>(
        &'a self,
        (addr, depth): (u128, usize),
        len_max: u8,
        show: &mut impl FnMut(Bits, &'a T),
    ) {
        let begin = begin_of(depth);
        let behind = |bits: u32, count: u32| {
            addr | u128::from(bits).checked_shl(u128::BITS - count).unwrap_or(0) >> begin
        };
        for (place, value) in ones(self.inside).zip(&self.values) {
            let rest = place.ilog2();
            if begin + rest <= len_max.into() {
                show((behind(place - (1 << rest), rest), (begin + rest) as u8), value);
            }
        }
        if begin_of(depth + 1) <= len_max.into() {
            for (step, node) in ones(self.below).zip(&self.nodes) {
                node.each((behind(step, STRIDE), depth + 1), len_max, show);
            }
        }
    }

    fn bytes(&self) -> usize {
        // The allocation of an `Arc` begins with two reference counters.
        let own = 2 * size_of::<usize>() + size_of::<Self>();
        let values = self.values.capacity() * size_of::<T>();
        let nodes = self.nodes.capacity() * size_of::<Arc<Self>>();
        own + values + nodes + self.nodes.iter().map(|node| node.bytes()).sum::<usize>()
    }
}

/// Returns the depth of the trie node that contains prefixes of `len` bits; the root has depth 0.
fn depth_of(len: u8) -> usize {
    let len = u32::from(len);
    (if len < ROOT_STRIDE { 0 } else { 1 + (len - ROOT_STRIDE) / STRIDE }) as usize
}

/// Returns the number of address bits that the nodes above `depth` use.
fn begin_of(depth: usize) -> u32 {
    depth.checked_sub(1).map_or(0, |more| ROOT_STRIDE + more as u32 * STRIDE)
}

/// Returns the address bit by which the root selects a child, as the highest of six bits.
#[inline]
fn first_step(addr: u128) -> u32 {
    const _: () = assert!(ROOT_STRIDE == 1);
    ((addr >> (u128::BITS - 1)) as u32) << (STRIDE - 1)
}

/// Returns the six address bits by which the node at `depth` selects a child.
pub(crate) fn step(addr: u128, depth: usize) -> u32 {
    match depth {
        0 => first_step(addr),
        _ => (addr << begin_of(depth) >> (u128::BITS - STRIDE)) as u32,
    }
}

/// Returns the bit number of a prefix in the bitmap of its node. Prefixes are numbered like a
/// binary heap: the empty prefix has number 1, and appending a bit `b` to prefix `n` gives number
/// `2n + b`.
fn place_of((addr, len): Bits) -> u32 {
    let depth = depth_of(len);
    let rest = u32::from(len) - begin_of(depth);
    1 << rest | step(addr, depth) >> (STRIDE - rest)
}

/// Returns the numbers of the bits that are set, lowest first.
fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(place)
    })
}

/// Returns the number of bits that are set below bit `at`.
#[inline]
fn rank(bits: u64, at: u32) -> usize {
    (bits & ((1 << at) - 1)).count_ones() as usize
}

/// For each value of six address bits, the bitmap of all prefixes of these bits, which are the
/// prefixes in a node that match.
const ANCESTORS: [u64; 1 << STRIDE] = {
    let mut all = [0; 1 << STRIDE];
    let mut bits = 0;
    while bits < all.len() {
        let mut place = (bits | 1 << STRIDE) >> 1;
        while place > 0 {
            all[bits] |= 1 << place;
            place >>= 1;
        }
        bits += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn mask(len: u8) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
    }

    /// Generates addresses: clustered ones, whose prefixes overlap, and arbitrary ones.
    fn addr() -> impl Strategy<Value = u128> {
        let clustered = (0u32..4, 0u32..128, any::<bool>()).prop_map(|(high, at, ones)| {
            let low = if ones { u128::MAX } else { 0 };
            u128::from(high) << 126 | (low >> 2) ^ (1 << at)
        });
        prop_oneof![clustered, any::<u128>()]
    }

    fn prefix() -> impl Strategy<Value = Bits> {
        (addr(), 0u8..=128).prop_map(|(addr, len)| (addr & mask(len), len))
    }

    /// Finds the values of all prefixes that match `addr` by a linear search, to verify the trie.
    fn naive(all: &BTreeMap<Bits, u32>, addr: u128) -> Vec<u32> {
        let mut found: Vec<_> =
            all.iter().filter(|((bits, len), _)| addr & mask(*len) == *bits).collect();
        found.sort_by_key(|((_, len), _)| core::cmp::Reverse(*len));
        found.into_iter().map(|(_, value)| *value).collect()
    }

    proptest! {
        #[test]
        fn finds_what_a_look_at_all_prefixes_finds(
            changes in prop::collection::vec((prefix(), any::<bool>()), 1..120),
            asked in prop::collection::vec(addr(), 20),
        ) {
            let (mut trie, mut all) = (Trie::default(), BTreeMap::new());
            for (n, (bits, added)) in (0..).zip(&changes) {
                let (before, was) = (trie.clone(), all.clone());
                match added {
                    true => {
                        trie.set(*bits, n);
                        all.insert(*bits, n);
                    }
                    false => {
                        trie.remove(*bits);
                        all.remove(bits);
                    }
                }
                prop_assert_eq!(trie.get(*bits), all.get(bits));
                // A clone of the trie that was made before the change must still have the old
                // value.
                prop_assert_eq!(before.get(*bits), was.get(bits));
            }
            let known = changes.iter().map(|(bits, _)| bits.0);
            for addr in asked.iter().copied().chain(known) {
                let (found, wanted) = (trie.matching(addr), naive(&all, addr));
                prop_assert_eq!(trie.longest(addr), wanted.first());
                prop_assert_eq!(found.copied().collect::<Vec<_>>(), wanted);
            }
            for bits in all.keys() {
                trie.remove(*bits);
            }
            prop_assert_eq!((trie.0.inside, trie.0.below), (0, 0));
        }
    }

    #[test]
    fn a_look_up_takes_as_many_nodes_with_many_prefixes_as_with_one() {
        let addr = 0xc0a8_0101_u128 << 96;
        for count in [1, 100, 100_000] {
            let mut trie = Trie::default();
            for n in 0..count {
                // Insert 192.168.1.1/32, and host prefixes spread over the address space.
                trie.set(((addr ^ (n * 0x9e37_79b1 % (1 << 32)) << 96), 32), n);
            }
            let matching = trie.matching(addr);
            assert_eq!((matching.nodes(), matching.count()), (7, 1), "with {count}");
        }
    }

    #[test]
    fn a_change_copies_the_nodes_on_its_way_alone() {
        let mut trie = Trie::default();
        for n in 0..10_000_u128 {
            trie.set((n.reverse_bits(), 24), n);
        }
        let before = trie.clone();
        trie.set((0, 24), 1);
        let shared = |a: &TrieNode<u128>, b: &TrieNode<u128>| {
            a.nodes.iter().zip(&b.nodes).filter(|(a, b)| Arc::ptr_eq(a, b)).count()
        };
        let (mut old, mut new) = (&before.0, &trie.0);
        for _ in 0..4 {
            assert!(!Arc::ptr_eq(old, new));
            assert_eq!(shared(old, new), old.nodes.len() - 1);
            (old, new) = (&old.nodes[0], &new.nodes[0]);
        }
        // The node with the changed prefix was copied, and it has no children.
        assert!(!Arc::ptr_eq(old, new) && old.nodes.is_empty());
    }
}
