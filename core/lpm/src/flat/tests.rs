use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

/// Generates clustered addresses with overlapping prefixes, and arbitrary addresses.
fn addr() -> impl Strategy<Value = u32> {
    let clustered = (0u32..3, 0u32..32, any::<bool>()).prop_map(|(high, at, ones)| {
        high << 30 | (if ones { u32::MAX >> 2 } else { 0 }) ^ (1 << at)
    });
    prop_oneof![3 => clustered, 1 => any::<u32>()]
}

fn prefix() -> impl Strategy<Value = (u32, u8)> {
    let len = prop_oneof![0u8..=32, Just(24), Just(32), 14u8..=25];
    (addr(), len).prop_map(|(addr, len)| (addr & mask(len), len))
}

fn bits((addr, len): (u32, u8)) -> Bits {
    (u128::from(addr) << 96, len)
}

/// Finds the value of the longest prefix by a linear search.
fn naive(all: &BTreeMap<(u32, u8), u8>, addr: u32) -> Option<&u8> {
    let matching = all.iter().filter(|((first, len), _)| addr & mask(*len) == *first);
    matching.max_by_key(|((_, len), _)| *len).map(|(_, value)| value)
}

proptest! {
    #[test]
    fn finds_what_a_look_at_all_prefixes_finds(
        changes in prop::collection::vec((prefix(), any::<bool>(), 0u8..4), 1..150),
        at_once in 1usize..20,
        asked in prop::collection::vec(addr(), 40),
    ) {
        let (mut trie, mut flat, mut all) = (Trie::default(), Flat::default(), BTreeMap::new());
        let mut snapshots: Vec<(Flat<u8>, BTreeMap<_, _>)> = Vec::new();
        for batch in changes.chunks(at_once) {
            for (prefix, added, value) in batch {
                match added {
                    true => {
                        trie.set(bits(*prefix), *value);
                        all.insert(*prefix, *value);
                    }
                    false => {
                        trie.remove(bits(*prefix));
                        all.remove(prefix);
                    }
                }
                flat.note(bits(*prefix));
            }
            flat.update(&trie);
            snapshots.push((flat.clone(), all.clone()));
        }
        let ends = |(first, len): (u32, u8)| [first, first | !mask(len)];
        let known = changes.iter().flat_map(|(prefix, ..)| ends(*prefix));
        let asked: Vec<u32> = asked.into_iter().chain(known).collect();
        // Snapshots must not change, whatever changed later.
        for (flat, all) in snapshots.iter().rev().take(4) {
            let mut found = vec![None; asked.len()];
            flat.find_all(&asked, &mut found);
            for (addr, found) in asked.iter().zip(found) {
                let wanted = naive(all, *addr);
                prop_assert_eq!(flat.find(*addr), wanted, "{:08x}", addr);
                prop_assert_eq!(found, wanted, "{:08x}", addr);
            }
        }
        for prefix in all.keys() {
            trie.remove(bits(*prefix));
            flat.note(bits(*prefix));
        }
        flat.update(&trie);
        let is_empty = |middle: &Arc<Middle<u8>>| middle.blocks.iter().all(Option::is_none);
        prop_assert!(flat.root.middles.iter().flatten().all(is_empty));
        prop_assert!(asked.iter().all(|addr| flat.find(*addr).is_none()));
    }
}

#[test]
fn a_change_copies_no_block_but_its_own() {
    let (mut trie, mut flat) = (Trie::default(), Flat::default());
    for n in 0..20_000_u32 {
        let prefix = bits((n.reverse_bits(), 24));
        trie.set(prefix, n);
        flat.note(prefix);
    }
    flat.update(&trie);
    let before = flat.clone();
    let copied = |flat: &Flat<u32>| {
        let blocks = |flat: &Flat<u32>| {
            let middles = flat.root.middles.iter().flatten();
            let all = middles.flat_map(|middle| middle.blocks.iter().flatten());
            all.map(Arc::as_ptr).collect::<BTreeSet<_>>()
        };
        blocks(flat).difference(&blocks(&before)).count()
    };
    for (prefix, wanted) in [((0, 0), 0), ((0, 8), 0), ((0, 15), 1), ((1 << 8, 32), 1)] {
        let mut after = before.clone();
        let mut changed = trie.clone();
        changed.set(bits(prefix), 7);
        after.note(bits(prefix));
        after.update(&changed);
        assert_eq!(copied(&after), wanted, "{prefix:?}");
    }
}
