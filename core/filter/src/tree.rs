//! A search tree over the boxes of rules: the compiled form of a list for one IP version.
//!
//! An inner node *cuts*: some bits of one lane choose a child. Rules that are too wide in that lane
//! would be in most children. Their place is a tree of their own, the node's *wide* branch, which
//! cuts other lanes and is searched as well. A leaf has a few rules, compared one by one.
//!
//! ```text
//!            src, bits 31..24
//!     ┌────┬────┬─┴──┬─────────► wide: rules of any source
//!   leaf  dport     leaf              dport, bits 15..6
//!         ┌─┴──┐                      ┌────┬──┴─┐
//!       leaf  leaf                  leaf  leaf  leaf
//! ```
//!
//! Each node knows the lowest number of a rule below it. The search leaves out a node whose lowest
//! number is above that of a match: a wide branch of low priority costs one comparison.
//!
//! A leaf compares whole boxes, with all lanes, so that the tree only has to rule rules out. Bits
//! that all rules of a node share can therefore be skipped.

mod build;
mod cut;

pub(crate) use build::Item;

use crate::rule::Action;

/// Limit on cuts between the root and a leaf, and with it on wide branches that wait for a search.
/// Lists of 100,000 rules need four; every judgement clears so many places.
const CUTS_MAX: usize = 16;
/// Limit on the depth of a tree with wide branches of wide branches, which keeps recursion short.
const DEPTH_MAX: usize = 128;

/// Number of no rule: above all rules.
const NO_RULE: u32 = u32::MAX;
/// Place of no node.
const NO_NODE: u32 = u32::MAX;
/// `CutNode::lane` of a leaf.
const LEAF: u8 = u8::MAX;

/// The compiled rules of one IP version.
#[derive(Debug, Default)]
pub(crate) struct CutTree<const LANES: usize> {
    nodes: Vec<CutNode>,
    bounds: Vec<LaneBounds<LANES>>,
    /// Rules that `bounds` at the same places belong to.
    ends: Vec<LeafEnd>,
}

/// A node. Children of a node stand beside each other.
#[derive(Debug, Clone, Copy)]
struct CutNode {
    /// Lowest number of a rule here and below.
    best: u32,
    /// First child, or a leaf's first rule.
    base: u32,
    /// Root of the wide branch, or how many rules a leaf has.
    wide: u32,
    /// Lane that chooses the child, or [`LEAF`].
    lane: u8,
    /// Place of the lowest bit that chooses.
    shift: u8,
    /// Bits that choose, as a mask.
    mask: u16,
}

const _: () = assert!(size_of::<CutNode>() == 16);

/// Bounds of a box, ready for one comparison a lane: `number - low <= span` for numbers inside.
/// Both sides are moved by 2³¹, because SSE2 compares signed numbers alone.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct LaneBounds<const LANES: usize> {
    low: [u32; LANES],
    span: [i32; LANES],
}

/// The rest of a rule in a leaf, read only when a packet is within its bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafEnd {
    /// Number of the rule in the order of the list.
    pub(crate) order: u32,
    pub(crate) flags_mask: u8,
    pub(crate) flags_set: u8,
    pub(crate) action: Action,
    pub(crate) log: bool,
}

/// Work of one search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Nodes that are visited.
    pub nodes: u32,
    /// Rules that are compared at most.
    pub rules: u32,
}

const SIGN: u32 = 1 << 31;

impl<const LANES: usize> LaneBounds<LANES> {
    fn new(lanes: &[crate::lanes::Range; LANES]) -> Self {
        Self {
            low: lanes.map(|range| range.first.wrapping_add(SIGN)),
            span: lanes.map(|range| ((range.last - range.first) ^ SIGN) as i32),
        }
    }

    #[inline(always)]
    fn contain(&self, point: &[u32; LANES]) -> bool {
        let mut outside = 0;
        for ((number, low), span) in point.iter().zip(&self.low).zip(&self.span) {
            outside |= u32::from(number.wrapping_sub(*low) as i32 > *span);
        }
        outside == 0
    }
}

impl<const LANES: usize> CutTree<LANES> {
    /// The rule with the lowest number that a packet matches.
    #[inline]
    pub(crate) fn find(&self, point: &[u32; LANES], flags: u8) -> Option<&LeafEnd> {
        self.search(point, flags, |_| {})
    }

    /// Nodes that the search for a packet visits, and rules that it compares at most.
    pub(crate) fn effort(&self, point: &[u32; LANES], flags: u8) -> Effort {
        let mut effort = Effort::default();
        self.search(point, flags, |node| {
            effort.nodes += 1;
            effort.rules += if node.lane == LEAF { node.wide } else { 0 };
        });
        effort
    }

    /// The search, which shows each node that it visits.
    #[inline(always)]
    fn search(
        &self,
        point: &[u32; LANES],
        flags: u8,
        mut on_visit: impl FnMut(&CutNode),
    ) -> Option<&LeafEnd> {
        let mut found = None;
        let mut found_order = NO_RULE;
        let mut waiting = [0; CUTS_MAX];
        let mut waiting_len = 0;
        let mut at = 0;
        while let Some(node) = self.nodes.get(at as usize) {
            if node.best < found_order {
                on_visit(node);
                if node.lane != LEAF {
                    if node.wide != NO_NODE {
                        waiting[waiting_len] = node.wide;
                        waiting_len += 1;
                    }
                    let bits = point[usize::from(node.lane) % LANES] >> (node.shift & 31);
                    at = node.base + (bits & u32::from(node.mask));
                    continue;
                }
                if let Some(end) = self.first_in(node, point, flags)
                    && end.order < found_order
                {
                    found_order = end.order;
                    found = Some(end);
                }
            }
            if waiting_len == 0 {
                break;
            }
            waiting_len -= 1;
            at = waiting[waiting_len];
        }
        found
    }

    /// The first rule of a leaf that a packet matches.
    #[inline(always)]
    fn first_in(&self, leaf: &CutNode, point: &[u32; LANES], flags: u8) -> Option<&LeafEnd> {
        let range = leaf.base as usize..leaf.base as usize + leaf.wide as usize;
        let bounds = self.bounds.get(range.clone())?;
        let ends = self.ends.get(range)?;
        bounds.iter().zip(ends).find_map(|(bounds, end)| {
            let is_match = bounds.contain(point) && flags & end.flags_mask == end.flags_set;
            is_match.then_some(end)
        })
    }

    /// Bytes that the tree takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.nodes.as_slice())
            + size_of_val(self.bounds.as_slice())
            + size_of_val(self.ends.as_slice())
    }
}
