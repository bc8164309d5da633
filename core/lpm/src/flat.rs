//! A flat copy of the IPv4 prefixes of a trie. A lookup reads four memory locations; with many
//! prefixes, two of these are not in a cache.
//!
//! ```text
//!   address   7 bits      7 bits      10 bits              8 bits
//!             Root ─────► Middle ───► Block: runs of /24 ─► Sub: runs of addresses
//!             /0 to /7    /8 to /14   /15 to /24            /25 to /32
//! ```
//!
//! Each level stores only prefixes of the lengths in the last line of the figure. If no prefix of a
//! level matches an address, the lookup uses the result of the level before. A change of a prefix
//! therefore affects one level: the default route affects no block, and a host route no
//! neighbouring networks. The tables of a level are immutable and shared by clones, like the nodes
//! of a trie.
//!
//! Equal values of adjacent slots (a run) are stored once, as in DXR (Zec, Rizzo and Mikuc, 2012).
//! A look-up counts the bits at which runs start to find the run, as in Poptrie (Asai and Ohara,
//! 2015).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::runs::SlotRuns;
use crate::trie::{Bits, Trie};

/// Number of address bits that index the root table, and that index each middle table.
const PAGE_BITS: u32 = 7;
const PAGE: usize = 1 << PAGE_BITS;
/// Number of address bits that the root, a middle table and a block use together.
const BLOCK_LEN: u8 = 24;
/// Number of 64-bit words in the bitmap of a block, which has 1024 slots. A sub table has 256
/// slots, and therefore 4 words.
const BLOCK_WORDS: usize = 16;
const SUB_WORDS: usize = 4;
/// Number of addresses that are looked up at a time, interleaved. A core can have about this many
/// memory reads outstanding.
const WALKS: usize = 32;

/// A flat copy of the prefixes of a [`Trie`] whose first 32 bits are an IPv4 address.
///
/// ```
/// use towpath_lpm::{Flat, Trie};
///
/// let (mut trie, mut flat) = (Trie::default(), Flat::default());
/// for prefix in [(0x0a << 120, 8), (0x0a010200 << 96, 24)] {
///     trie.set(prefix, prefix.1);
///     flat.note(prefix);
/// }
/// flat.update(&trie);
/// assert_eq!(flat.find(0x0a010203), Some(&24));
/// assert_eq!(flat.find(0x0a010303), Some(&8));
/// ```
#[derive(Debug, Clone)]
pub struct Flat<T> {
    root: Arc<Root<T>>,
    /// Parts of the flat table that are outdated and must be computed again from the trie.
    stale: BTreeSet<Part>,
}

/// Identifies a part of the flat table: the root, or one of the smaller tables below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Root,
    /// A middle table, identified by the first 7 bits of the addresses in it.
    Middle(usize),
    /// A block, identified by the first 14 bits of the addresses in it.
    Block(usize),
    /// A sub table, identified by the first 24 bits of its addresses.
    Sub(usize),
}

#[derive(Debug, Clone)]
struct Root<T> {
    /// For each value of the first 7 address bits, the value of the longest matching prefix of up
    /// to 7 bits. Empty as long as there is no such prefix.
    own: Vec<Option<T>>,
    middles: Vec<Option<Arc<Middle<T>>>>,
}

#[derive(Debug, Clone)]
struct Middle<T> {
    own: Vec<Option<T>>,
    blocks: Vec<Option<Arc<Block<T>>>>,
}

#[derive(Debug, Clone)]
struct Block<T> {
    runs: SlotRuns<BLOCK_WORDS, T>,
    /// Sub tables, sorted by slot number. Each one belongs to a /24 network that contains longer
    /// prefixes.
    subs: Vec<(u16, Arc<SlotRuns<SUB_WORDS, T>>)>,
}

impl<T> Default for Flat<T> {
    fn default() -> Self {
        let root = Root { own: Vec::new(), middles: Vec::new() };
        Self { root: Arc::new(root), stale: BTreeSet::new() }
    }
}

impl<T> Flat<T> {
    /// Returns the value of the longest prefix that matches `addr`.
    #[inline]
    pub fn find(&self, addr: u32) -> Option<&T> {
        let block = self.block(addr).and_then(|block| block.find(addr));
        block.or_else(|| self.find_short(addr))
    }

    /// Looks up several addresses at a time. Interleaving the lookups lets their cache misses
    /// overlap.
    #[inline]
    pub fn find_all<'a>(&'a self, addrs: &[u32], found: &mut [Option<&'a T>]) {
        for (addrs, found) in addrs.chunks(WALKS).zip(found.chunks_mut(WALKS)) {
            let mut blocks = [None; WALKS];
            let mut places = [None; WALKS];
            for (block, addr) in blocks.iter_mut().zip(addrs) {
                *block = self.block(*addr);
            }
            for ((place, block), addr) in places.iter_mut().zip(blocks).zip(addrs) {
                *place = block.and_then(|block| block.place(*addr));
            }
            for ((found, addr), walk) in found.iter_mut().zip(addrs).zip(blocks.iter().zip(places))
            {
                *found = match walk {
                    (Some(block), Some(place)) => block.runs.value(place),
                    (Some(block), None) => block.find(*addr),
                    (None, _) => None,
                };
            }
            for (found, addr) in found.iter_mut().zip(addrs) {
                *found = found.or_else(|| self.find_short(*addr));
            }
        }
    }

    #[inline]
    fn middle(&self, addr: u32) -> Option<&Middle<T>> {
        self.root.middles.get(root_slot(addr))?.as_deref()
    }

    #[inline]
    fn block(&self, addr: u32) -> Option<&Block<T>> {
        self.middle(addr)?.blocks[middle_slot(addr)].as_deref()
    }

    /// Returns the value of the longest prefix of at most 14 bits that matches `addr`.
    fn find_short(&self, addr: u32) -> Option<&T> {
        let middle = self.middle(addr).and_then(|middle| middle.own[middle_slot(addr)].as_ref());
        middle.or_else(|| self.root.own.get(root_slot(addr))?.as_ref())
    }

    /// Records that the value of a prefix has changed, for the next [`update`](Self::update).
    /// Prefixes of more than 32 bits are ignored.
    pub fn note(&mut self, (addr, len): Bits) {
        let addr = (addr >> 96) as usize;
        let part = match len {
            0..=7 => Part::Root,
            8..=14 => Part::Middle(addr >> 25),
            15..=24 => Part::Block(addr >> 18),
            25..=32 => Part::Sub(addr >> 8),
            _ => return,
        };
        self.stale.insert(part);
    }

    /// Returns the memory of the table in bytes. Memory to which the values point is not included.
    pub fn bytes(&self) -> usize {
        const COUNTS: usize = 2 * size_of::<usize>();
        let page = |own: usize| own * (size_of::<Option<T>>() + size_of::<usize>());
        let block = |block: &Block<T>| {
            let sub = COUNTS + size_of::<SlotRuns<SUB_WORDS, T>>();
            let subs = block.subs.iter().map(|(_, runs)| sub + runs.bytes());
            let list = block.subs.capacity() * size_of::<(u16, Arc<SlotRuns<SUB_WORDS, T>>)>();
            COUNTS + size_of::<Block<T>>() + block.runs.bytes() + list + subs.sum::<usize>()
        };
        let middle = |middle: &Middle<T>| {
            let blocks = middle.blocks.iter().flatten().map(|it| block(it));
            COUNTS + size_of::<Middle<T>>() + page(PAGE) + blocks.sum::<usize>()
        };
        let middles = self.root.middles.iter().flatten().map(|it| middle(it));
        COUNTS + size_of::<Root<T>>() + page(self.root.own.len()) + middles.sum::<usize>()
    }
}

impl<T: Clone + PartialEq> Flat<T> {
    /// Updates the table from `trie`, for all prefixes that were recorded by [`note`](Self::note).
    pub fn update(&mut self, trie: &Trie<T>) {
        for part in core::mem::take(&mut self.stale) {
            let root = Arc::make_mut(&mut self.root);
            if root.own.is_empty() {
                root.own = vec![None; PAGE];
                root.middles = vec![None; PAGE];
            }
            let at = match part {
                Part::Root => {
                    root.own = paint::<PAGE, T>(trie, 0, 0, PAGE_BITS as u8);
                    continue;
                }
                Part::Middle(at) => at << 25,
                Part::Block(at) => at << 18,
                Part::Sub(at) => at << 8,
            } as u32;
            let middle = root.middles[root_slot(at)].get_or_insert_default();
            let middle = Arc::make_mut(middle);
            if let Part::Middle(_) = part {
                middle.own = paint::<PAGE, T>(trie, at, PAGE_BITS as u8, 2 * PAGE_BITS as u8);
                continue;
            }
            let block = &mut middle.blocks[middle_slot(at)];
            let whole = Arc::make_mut(block.get_or_insert_default());
            match part {
                Part::Sub(_) => whole.update_sub(trie, at),
                _ => {
                    let values =
                        paint::<{ 64 * BLOCK_WORDS }, T>(trie, at, 2 * PAGE_BITS as u8, BLOCK_LEN);
                    whole.runs.replace(&values);
                }
            }
            if whole.runs.is_empty() && whole.subs.is_empty() {
                *block = None;
            }
        }
    }
}

impl<T> Default for Middle<T> {
    fn default() -> Self {
        let (own, blocks) = (0..PAGE).map(|_| (None, None)).unzip();
        Self { own, blocks }
    }
}

impl<T> Default for Block<T> {
    fn default() -> Self {
        Self { runs: SlotRuns::default(), subs: Vec::new() }
    }
}

impl<T> Block<T> {
    /// Returns the value of the longest matching prefix that has more than 14 bits.
    fn find(&self, addr: u32) -> Option<&T> {
        let slot = block_slot(addr);
        let sub = self.sub_at(slot).ok().and_then(|at| self.subs[at].1.find(sub_slot(addr)));
        sub.or_else(|| self.runs.find(slot))
    }

    /// Returns the index of the address's value in the block's runs. Returns `None` if prefixes of
    /// more than 24 bits may match.
    #[inline]
    fn place(&self, addr: u32) -> Option<usize> {
        let slot = block_slot(addr);
        (!self.runs.is_marked(slot)).then(|| self.runs.place(slot))
    }

    fn sub_at(&self, slot: usize) -> Result<usize, usize> {
        self.subs.binary_search_by_key(&slot, |(slot, _)| usize::from(*slot))
    }
}

impl<T: Clone + PartialEq> Block<T> {
    fn update_sub(&mut self, trie: &Trie<T>, addr: u32) {
        let slot = block_slot(addr);
        let values = paint::<{ 64 * SUB_WORDS }, T>(trie, addr, BLOCK_LEN, u32::BITS as u8);
        let mut runs = SlotRuns::default();
        runs.replace(&values);
        match (self.sub_at(slot), runs.is_empty()) {
            (Ok(at), false) => self.subs[at].1 = Arc::new(runs),
            (Err(at), false) => self.subs.insert(at, (slot as u16, Arc::new(runs))),
            (Ok(at), true) => drop(self.subs.remove(at)),
            (Err(_), true) => {}
        }
        self.runs.mark(self.subs.iter().map(|(slot, _)| usize::from(*slot)));
    }
}

/// Computes the values of a table's slots from prefixes of more than `above` and at most `len`
/// bits. The slot index is the last log2(`SLOTS`) of the first `len` address bits.
fn paint<const SLOTS: usize, T: Clone>(
    trie: &Trie<T>,
    addr: u32,
    above: u8,
    len: u8,
) -> Vec<Option<T>> {
    let mut values: Vec<Option<&T>> = vec![None; SLOTS];
    let shift = u128::BITS - u32::from(len);
    trie.each_within((u128::from(addr) << 96, above), len, &mut |(bits, own), value| {
        // Prefixes of at most `above` bits are stored in the table of the level above. No level is
        // above the root, so the root includes the default route.
        if own > above || above == 0 {
            let first = (bits >> shift) as usize % SLOTS;
            values[first..first + (1 << (len - own))].fill(Some(value));
        }
    });
    values.into_iter().map(|value| value.cloned()).collect()
}

#[inline]
fn root_slot(addr: u32) -> usize {
    (addr >> 25) as usize
}

#[inline]
fn middle_slot(addr: u32) -> usize {
    (addr >> 18) as usize % PAGE
}

#[inline]
fn block_slot(addr: u32) -> usize {
    (addr >> 8) as usize % (64 * BLOCK_WORDS)
}

fn sub_slot(addr: u32) -> usize {
    addr as usize % (64 * SUB_WORDS)
}

#[cfg(test)]
mod tests;
