//! Search tree over rules that are boxes (one range per lane): the compiled form of a list for one
//! IP version.
//!
//! An inner node divides its rules among children by some bits of one lane, which is called a cut.
//! Rules that are wide in that lane would be in most children. The wide rules form a separate tree
//! instead, the node's *wide* branch. The wide branch cuts other lanes, and each search visits it
//! too. A leaf has a few rules, which are compared one by one.
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
//! A leaf compares a packet with all lanes of its rules. The inner nodes only exclude rules, and
//! need not examine bits that all rules of a node have in common.

mod build;
mod cut;

pub(crate) use build::Item;

use crate::fields::{FlowState, FlowStates};
use crate::rule::Action;

/// Maximum number of cuts on the path from the root to a leaf. Each search initializes a stack of
/// this length for the wide branches to visit. Lists of 100,000 rules need four cuts.
const CUTS_MAX: usize = 16;
/// Maximum depth of the tree, including wide branches within wide branches. Bounds the recursion
/// when the tree is built.
const DEPTH_MAX: usize = 128;

/// Placeholder for no rule: higher than all valid rule numbers.
const NO_RULE: u32 = u32::MAX;
/// Placeholder for no node: not a valid node index.
const NO_NODE: u32 = u32::MAX;
/// Value of `CutNode::lane` that marks a leaf.
const LEAF: u8 = u8::MAX;

/// Search tree over the rules of one IP version.
#[derive(Debug, Default)]
pub(crate) struct CutTree<const LANES: usize> {
    nodes: Vec<CutNode>,
    bounds: Vec<LaneBounds<LANES>>,
    /// Action and other fields of the rules, at the same indices as their `bounds`.
    ends: Vec<LeafEnd>,
}

/// Node of the search tree. The children of a node are adjacent in the array of nodes.
#[derive(Debug, Clone, Copy)]
struct CutNode {
    /// Lowest rule number in the subtree below this node.
    best: u32,
    /// Inner node: index of its first child. Leaf: index of its first rule.
    base: u32,
    /// Inner node: index of its wide branch, the subtree of rules that are too wide to be divided.
    /// Leaf: number of its rules.
    wide: u32,
    /// Number of the lane (header field) whose bits select the child, or [`LEAF`].
    lane: u8,
    /// Position of the lowest bit of the lane that selects the child.
    shift: u8,
    /// Mask of the bits that select the child, after the lane was shifted by `shift`.
    mask: u16,
}

const _: () = assert!(size_of::<CutNode>() == 16);

/// Ranges of a rule, prepared so that one comparison per lane (header field) suffices: a number is
/// within its range if `number - low <= span`. Both sides are offset by 2³¹, because SSE2 has only
/// signed comparisons.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct LaneBounds<const LANES: usize> {
    low: [u32; LANES],
    span: [i32; LANES],
}

/// Remaining fields of a rule in a leaf, read only if the packet is within the rule's ranges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafEnd {
    /// Index of the rule in the access list.
    pub(crate) order: u32,
    pub(crate) flags_mask: u8,
    pub(crate) flags_set: u8,
    pub(crate) states: FlowStates,
    /// Action of the rule, unless the rule is special.
    pub(crate) action: Action,
    pub(crate) log: bool,
    /// Whether the rule has parts that the tree does not contain.
    pub(crate) is_special: bool,
}

const _: () = assert!(size_of::<LeafEnd>() == 12);

/// TCP flags and flow state of a packet, which a leaf compares with its rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafFields {
    pub(crate) tcp_flags: u8,
    pub(crate) state: FlowState,
    /// Lowest index of a rule that is examined.
    pub(crate) first: u32,
}

/// Compares a packet with the parts of a special rule that the tree does not contain.
pub(crate) trait SpecialRules {
    /// Returns whether the packet meets the conditions of the rule with index `order`.
    fn accept(&self, order: u32) -> bool;
}

/// Work of searching the tree for one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Number of tree nodes visited.
    pub nodes: u32,
    /// Maximum number of rules compared.
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
    pub(crate) fn find(
        &self,
        point: &[u32; LANES],
        fields: LeafFields,
        special: &impl SpecialRules,
    ) -> Option<&LeafEnd> {
        self.search(point, fields, special, |_| {})
    }

    /// Returns how many nodes a search for this packet visits, and an upper bound of the number of
    /// rules that it compares.
    pub(crate) fn effort(
        &self,
        point: &[u32; LANES],
        fields: LeafFields,
        special: &impl SpecialRules,
    ) -> Effort {
        let mut effort = Effort::default();
        self.search(point, fields, special, |node| {
            effort.nodes += 1;
            effort.rules += if node.lane == LEAF { node.wide } else { 0 };
        });
        effort
    }

    /// Searches the tree for the values of the packet's lanes (header fields), and calls `on_visit`
    /// for each node visited.
    #[inline(always)]
    fn search(
        &self,
        point: &[u32; LANES],
        fields: LeafFields,
        special: &impl SpecialRules,
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
                if let Some(end) = self.first_in(node, point, fields, special)
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

    /// Returns the first rule in a leaf of the search tree that the packet matches.
    #[inline(always)]
    fn first_in(
        &self,
        leaf: &CutNode,
        point: &[u32; LANES],
        fields: LeafFields,
        special: &impl SpecialRules,
    ) -> Option<&LeafEnd> {
        let range = leaf.base as usize..leaf.base as usize + leaf.wide as usize;
        let bounds = self.bounds.get(range.clone())?;
        let ends = self.ends.get(range)?;
        // Continue behind a rule that did not decide. Otherwise a leaf of such rules would be
        // compared from its beginning for each rule.
        let mut start = match fields.first {
            0 => 0,
            first => ends.partition_point(|end| end.order < first),
        };
        loop {
            // The inner loop has no call, which would keep the point out of vector registers.
            let found =
                bounds.get(start..)?.iter().zip(&ends[start..]).position(|(bounds, end)| {
                    bounds.contain(point)
                        && fields.tcp_flags & end.flags_mask == end.flags_set
                        && end.states.contains(fields.state)
                });
            start += found?;
            let end = &ends[start];
            if !end.is_special || special.accept(end.order) {
                return Some(end);
            }
            start += 1;
        }
    }

    /// Returns the size of the search tree in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.nodes.as_slice())
            + size_of_val(self.bounds.as_slice())
            + size_of_val(self.ends.as_slice())
    }
}
