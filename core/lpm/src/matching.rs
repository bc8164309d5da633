//! Iteration over all prefixes that match an address.

use crate::trie::{NODES_MAX, TrieNode, step};

/// Iterator over the values of all prefixes that match an address, longest prefix first.
#[derive(Debug)]
pub struct Matching<'a, T> {
    addr: u128,
    /// Trie nodes on the path of the address, beginning with the root.
    nodes: [Option<&'a TrieNode<T>>; NODES_MAX],
    /// Number of entries of `nodes` that are still to be searched, including the current one.
    left: usize,
    /// Bitmap of the matching prefixes in the current node that were not returned yet.
    places: u64,
}

impl<'a, T> Matching<'a, T> {
    pub(crate) fn new(root: &'a TrieNode<T>, addr: u128) -> Self {
        let mut matching = Self { addr, nodes: [None; NODES_MAX], left: 0, places: 0 };
        let mut next = Some(root);
        while let Some(node) = next {
            matching.nodes[matching.left] = Some(node);
            let step = step(addr, matching.left);
            matching.left += 1;
            next = node.node(step);
        }
        matching.enter();
        matching
    }

    /// Returns the number of trie nodes on the path of the address.
    #[cfg(test)]
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.iter().flatten().count()
    }

    fn enter(&mut self) {
        let Some(depth) = self.left.checked_sub(1) else { return };
        self.places = self.nodes[depth].map_or(0, |node| node.places(step(self.addr, depth)));
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
        Some(node.value(place))
    }
}
