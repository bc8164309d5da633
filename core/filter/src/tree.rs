//! Search tree over rule boxes: the compiled form of a list for one IP version.
//!
//! An inner node *cuts*: some bits of one lane select a child. Rules that are wide in that lane
//! would be in most children, so they form a separate tree, the node's *wide* branch. The wide
//! branch cuts other lanes and is searched as well. A leaf has a few rules, which are compared one
//! by one.
//!
//! ```text
//!            src, bits 31..24
//!     ┌────┬────┬─┴──┬─────────► wide: rules of any source
//!   leaf  dport     leaf              dport, bits 15..6
//!         ┌─┴──┐                      ┌────┬──┴─┐
//!       leaf  leaf                  leaf  leaf  leaf
//! ```
//!
//! Each node stores the lowest rule number below it. The search skips nodes whose lowest number is
//! above that of a match, so a wide branch of low priority costs one comparison.
//!
//! A leaf compares whole boxes in all lanes, so the tree only has to exclude rules. Therefore it
//! can skip bits that all rules of a node share.

mod build;
mod cut;

pub(crate) use build::Item;

use crate::fields::{FlowState, FlowStates};
use crate::rule::Action;

/// Maximum number of cuts from the root to a leaf, which also bounds the stack of wide branches.
/// Lists of 100,000 rules need four. Each judgement initializes a stack of this length.
const CUTS_MAX: usize = 16;
/// Maximum depth including nested wide branches; bounds the recursion.
const DEPTH_MAX: usize = 128;

/// Rule number above all valid ones.
const NO_RULE: u32 = u32::MAX;
/// Invalid node index.
const NO_NODE: u32 = u32::MAX;
/// Value of `CutNode::lane` in a leaf.
const LEAF: u8 = u8::MAX;

/// Compiled rules of one IP version.
#[derive(Debug, Default)]
pub(crate) struct CutTree<const LANES: usize> {
    nodes: Vec<CutNode>,
    bounds: Vec<LaneBounds<LANES>>,
    /// Rules at the same indices as their `bounds`.
    ends: Vec<LeafEnd>,
}

/// Tree node. The children of a node are consecutive.
#[derive(Debug, Clone, Copy)]
struct CutNode {
    /// Lowest rule number in this subtree.
    best: u32,
    /// Index of the first child, or of a leaf's first rule.
    base: u32,
    /// Index of the wide branch, or a leaf's number of rules.
    wide: u32,
    /// Lane that selects the child, or [`LEAF`].
    lane: u8,
    /// Position of the lowest selecting bit.
    shift: u8,
    /// Mask of the selecting bits.
    mask: u16,
}

const _: () = assert!(size_of::<CutNode>() == 16);

/// Box bounds prepared for one comparison per lane: `number - low <= span` if inside. Both sides
/// are offset by 2³¹, because SSE2 has only signed comparisons.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct LaneBounds<const LANES: usize> {
    low: [u32; LANES],
    span: [i32; LANES],
}

/// Remaining fields of a rule in a leaf, read only if a packet is within its bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafEnd {
    /// Index of the rule in the list.
    pub(crate) order: u32,
    pub(crate) flags_mask: u8,
    pub(crate) flags_set: u8,
    pub(crate) states: FlowStates,
    pub(crate) action: Action,
    pub(crate) log: bool,
}

/// Fields of a packet that are compared with a rule in a leaf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafFields {
    pub(crate) tcp_flags: u8,
    pub(crate) state: FlowState,
}

/// Work of one search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Number of visited nodes.
    pub nodes: u32,
    /// Maximum number of compared rules.
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
    /// Returns the matching rule with the lowest number.
    #[inline]
    pub(crate) fn find(&self, point: &[u32; LANES], fields: LeafFields) -> Option<&LeafEnd> {
        self.search(point, fields, |_| {})
    }

    /// Returns the number of visited nodes and the maximum number of compared rules.
    pub(crate) fn effort(&self, point: &[u32; LANES], fields: LeafFields) -> Effort {
        let mut effort = Effort::default();
        self.search(point, fields, |node| {
            effort.nodes += 1;
            effort.rules += if node.lane == LEAF { node.wide } else { 0 };
        });
        effort
    }

    /// Searches the tree and calls `on_visit` for each visited node.
    #[inline(always)]
    fn search(
        &self,
        point: &[u32; LANES],
        fields: LeafFields,
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
                if let Some(end) = self.first_in(node, point, fields)
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

    /// Returns the first matching rule of a leaf.
    #[inline(always)]
    fn first_in(
        &self,
        leaf: &CutNode,
        point: &[u32; LANES],
        fields: LeafFields,
    ) -> Option<&LeafEnd> {
        let range = leaf.base as usize..leaf.base as usize + leaf.wide as usize;
        let bounds = self.bounds.get(range.clone())?;
        let ends = self.ends.get(range)?;
        bounds.iter().zip(ends).find_map(|(bounds, end)| {
            let is_match = bounds.contain(point)
                && fields.tcp_flags & end.flags_mask == end.flags_set
                && end.states.contains(fields.state);
            is_match.then_some(end)
        })
    }

    /// Returns the size of the tree in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.nodes.as_slice())
            + size_of_val(self.bounds.as_slice())
            + size_of_val(self.ends.as_slice())
    }
}
