//! Values by prefix, found by the longest one that an address begins with: a tree bitmap (Eatherton, Varghese and
//! Dittia, "Tree bitmap: hardware/software IP lookups with incremental updates", 2004).
//!
//! ```text
//!    an address   001010 110000 000111 …        each node decides six bits
//!                 └─┬──┘ └─┬──┘
//!    root ──────────┘      │       inside: prefixes of 0 to 5 more bits, by place  1
//!      └─► below[001010] ──┘                                                     2   3
//!            └─► below[110000] …                                                4 5 6 7 … 63
//! ```
//!
//! A look-up takes one node for six bits: 6 at most for IPv4 and 22 for IPv6, however many prefixes there are. So
//! does a change. A copy of the whole takes nothing: nodes are shared, and a change copies those on its way that are.

use std::sync::Arc;

/// Bits that a node decides.
const STRIDE: u32 = 6;
/// Most nodes on a way: for 128 bits.
pub(super) const NODES_MAX: usize = 22;
const _: () = assert!(NODES_MAX as u32 * STRIDE > u128::BITS);

/// A prefix: its bits from the highest on, and how many they are. What comes behind them is 0.
pub(super) type Bits = (u128, u8);

/// Values by prefix of at most 128 bits.
#[derive(Debug, Clone)]
pub(super) struct Trie<T>(Arc<Node<T>>);

#[derive(Debug, Clone)]
struct Node<T> {
    /// Prefixes that end here, by [`place_of`].
    inside: u64,
    /// Which six bits lead to another node.
    below: u64,
    /// One for each bit of `inside`, in their order.
    values: Vec<T>,
    /// One for each bit of `below`, in their order.
    nodes: Vec<Arc<Node<T>>>,
}

impl<T> Default for Node<T> {
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
    /// The values of all prefixes that `addr` begins with, the longest first.
    pub(super) fn matching(&self, addr: u128) -> Matching<'_, T> {
        let mut matching = Matching { addr, nodes: [None; NODES_MAX], left: 0, places: 0 };
        let mut next = Some(&self.0);
        while let Some(node) = next {
            matching.nodes[matching.left] = Some(&**node);
            let step = step(addr, matching.left);
            matching.left += 1;
            next = node.node(step);
        }
        matching.enter();
        matching
    }

    /// The value of one prefix.
    pub(super) fn get(&self, (addr, len): Bits) -> Option<&T> {
        let mut node = &*self.0;
        for depth in 0..usize::from(len) / STRIDE as usize {
            node = node.node(step(addr, depth))?;
        }
        let place = place_of((addr, len));
        (node.inside >> place & 1 == 1).then(|| &node.values[rank(node.inside, place)])
    }
}

impl<T: Clone> Trie<T> {
    /// Gives a prefix a value.
    pub(super) fn set(&mut self, bits: Bits, value: T) {
        let (addr, len) = bits;
        let mut node = Arc::make_mut(&mut self.0);
        for depth in 0..usize::from(len) / STRIDE as usize {
            let step = step(addr, depth);
            let at = rank(node.below, step);
            if node.below >> step & 1 == 0 {
                node.below |= 1 << step;
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
                node.values.insert(at, value);
            }
        }
    }

    /// Takes the value of a prefix away, if it has one.
    pub(super) fn remove(&mut self, bits: Bits) {
        if self.get(bits).is_some() {
            remove_below(&mut self.0, bits, 0);
        }
    }
}

/// Removes a value that is there. True when nothing is left of the node.
fn remove_below<T: Clone>(node: &mut Arc<Node<T>>, bits: Bits, depth: usize) -> bool {
    let node = Arc::make_mut(node);
    if depth < usize::from(bits.1) / STRIDE as usize {
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

impl<T> Node<T> {
    fn node(&self, step: u32) -> Option<&Arc<Self>> {
        (self.below >> step & 1 == 1).then(|| &self.nodes[rank(self.below, step)])
    }
}

/// What [`Trie::matching`] gives.
#[derive(Debug)]
pub(super) struct Matching<'a, T> {
    addr: u128,
    /// The nodes on the way.
    nodes: [Option<&'a Node<T>>; NODES_MAX],
    /// How many of them are left, the one included that is looked at.
    left: usize,
    /// Prefixes of that one that match and were not given yet.
    places: u64,
}

impl<'a, T> Matching<'a, T> {
    /// Nodes that the address leads through.
    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        self.nodes.iter().flatten().count()
    }

    fn enter(&mut self) {
        let Some(depth) = self.left.checked_sub(1) else { return };
        let inside = self.nodes[depth].map_or(0, |node| node.inside);
        self.places = inside & ANCESTORS[step(self.addr, depth) as usize];
    }
}

impl<'a, T> Iterator for Matching<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        while self.places == 0 {
            self.left = self.left.checked_sub(1).filter(|left| *left > 0)?;
            self.enter();
        }
        let place = self.places.ilog2();
        self.places &= !(1 << place);
        let node = self.nodes[self.left - 1]?;
        Some(&node.values[rank(node.inside, place)])
    }
}

/// The six bits of an address that the node at `depth` decides.
fn step(addr: u128, depth: usize) -> u32 {
    (addr << (depth as u32 * STRIDE) >> (u128::BITS - STRIDE)) as u32
}

/// Where a prefix is inside its node: as in a heap the one without bits has place 1, and one with a bit more has twice
/// the place, plus that bit.
fn place_of((addr, len): Bits) -> u32 {
    let (depth, rest) = (usize::from(len) / STRIDE as usize, u32::from(len) % STRIDE);
    1 << rest | step(addr, depth) >> (STRIDE - rest)
}

/// How many bits are set below `at`.
fn rank(bits: u64, at: u32) -> usize {
    (bits & ((1 << at) - 1)).count_ones() as usize
}

/// The places of the prefixes that six bits begin with.
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

    /// Prefixes and addresses of few different bits, so that they meet.
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

    /// All values that match, found by looking at each.
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
                // What was copied before stays what it was.
                prop_assert_eq!(before.get(*bits), was.get(bits));
            }
            let known = changes.iter().map(|(bits, _)| bits.0);
            for addr in asked.iter().copied().chain(known) {
                let found: Vec<_> = trie.matching(addr).copied().collect();
                prop_assert_eq!(found, naive(&all, addr));
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
                // 192.168.1.1/32 and others, all over the space.
                trie.set(((addr ^ (n * 0x9e37_79b1 % (1 << 32)) << 96), 32), n);
            }
            let matching = trie.matching(addr);
            assert_eq!((matching.nodes(), matching.count()), (6, 1), "with {count}");
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
        let shared = |a: &Node<u128>, b: &Node<u128>| {
            a.nodes.iter().zip(&b.nodes).filter(|(a, b)| Arc::ptr_eq(a, b)).count()
        };
        let (mut old, mut new) = (&before.0, &trie.0);
        for _ in 0..4 {
            assert!(!Arc::ptr_eq(old, new));
            assert_eq!(shared(old, new), old.nodes.len() - 1);
            (old, new) = (&old.nodes[0], &new.nodes[0]);
        }
        // The node of the prefix itself is the last one that was copied.
        assert!(!Arc::ptr_eq(old, new) && old.nodes.is_empty());
    }
}
