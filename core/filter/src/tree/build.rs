//! Builds a [`CutTree`] within limits on its memory: a node's cut divides its rules among children.
//!
//! Two limits proportional to the number of rules bound the memory for any list of rules:
//!
//! - A rule that spans several children is copied to each, up to [`COPIES_PER_RULE`] copies per
//!   rule in total. Beyond it, such a rule goes to the node's wide branch, a separate subtree.
//! - There are at most [`SLOTS_PER_RULE`] nodes per rule. Beyond it, a node becomes a leaf,
//!   regardless of its number of rules.
//!
//! Beyond these limits, memory stays bounded but a search is slower. In the worst case it compares
//! every rule.

use super::cut::{self, Cut, Plan};
use super::{CUTS_MAX, CutNode, CutTree, DEPTH_MAX, LEAF, LaneBounds, LeafEnd, NO_NODE, NO_RULE};
use crate::fields::FlowStates;
use crate::lanes::{Range, RuleBox};

/// Maximum number of copies of rules in children, in addition to the original, per rule of the
/// list.
const COPIES_PER_RULE: usize = 2;
/// Maximum number of tree nodes per rule of the list. A cut has about two children per rule, and
/// most lists need three cuts.
const SLOTS_PER_RULE: usize = 8;
/// Number of tree nodes that are allowed in addition to [`SLOTS_PER_RULE`] per rule, because a list
/// of a few rules needs more.
const SLOTS_MIN: usize = 64;
/// Maximum number of bits that select a child: 2^14 children take 256 KiB, which fit in the L2
/// cache.
pub(super) const BITS_MAX: u32 = 14;
/// Maximum number of children that a rule is copied to in one cut, unless the limit on all copies
/// is reached before.
const CHILDREN_MAX: u32 = 4;
/// Nodes with at most this number of rules become leaves at once, because comparing so few rules
/// costs less than a cut.
const LEAF_RULES: usize = 3;

/// A rule for the search tree, in the form of ranges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<const LANES: usize> {
    pub(crate) rule: RuleBox<LANES>,
    pub(crate) end: LeafEnd,
}

/// Depth of a node in the search tree.
#[derive(Debug, Clone, Copy, Default)]
struct Depth {
    /// Number of cuts on the path from the root, not counting wide branches.
    cuts: usize,
    /// Number of nodes on the path from the root, including wide branches.
    nodes: usize,
}

impl Depth {
    const fn of_child(self) -> Self {
        Self { cuts: self.cuts + 1, nodes: self.nodes + 1 }
    }

    const fn of_wide(self) -> Self {
        Self { cuts: self.cuts, nodes: self.nodes + 1 }
    }

    const fn is_full(self) -> bool {
        self.cuts >= CUTS_MAX || self.nodes >= DEPTH_MAX
    }
}

struct TreeBuilder<'a, const LANES: usize> {
    items: &'a [Item<LANES>],
    tree: CutTree<LANES>,
    copies_left: usize,
    slots_left: usize,
    counts: Vec<u32>,
}

impl<const LANES: usize> CutTree<LANES> {
    /// Builds the search tree of `items`, which are in ascending order of rule number.
    pub(crate) fn build(items: &[Item<LANES>]) -> Self {
        let mut builder = TreeBuilder {
            items,
            tree: Self { nodes: Vec::new(), bounds: Vec::new(), ends: Vec::new() },
            copies_left: COPIES_PER_RULE * items.len(),
            slots_left: SLOTS_PER_RULE * items.len() + SLOTS_MIN,
            counts: Vec::new(),
        };
        let root = builder.reserve(1);
        let all = Range { first: 0, last: u32::MAX };
        builder.fill(root, without_repetitions(items), &[all; LANES], Depth::default());
        let mut tree = builder.tree;
        tree.nodes.shrink_to_fit();
        tree.bounds.shrink_to_fit();
        tree.ends.shrink_to_fit();
        tree
    }
}

/// Returns the indices of all items, except items with the same ranges as an earlier item. The
/// second of two equal items can never be the first match, unless the first one is special. A
/// special item has conditions besides its ranges, or does not decide.
fn without_repetitions<const LANES: usize>(items: &[Item<LANES>]) -> Vec<u32> {
    let mut list: Vec<u32> = (0..items.len() as u32).collect();
    list.sort_by(|a, b| {
        let (a, b) = (&items[*a as usize], &items[*b as usize]);
        a.rule.cmp(&b.rule).then(a.end.order.cmp(&b.end.order))
    });
    list.dedup_by(|later, earlier| {
        let (later, earlier) = (&items[*later as usize], &items[*earlier as usize]);
        later.rule == earlier.rule && !earlier.end.is_special
    });
    list.sort_unstable();
    list
}

impl<const LANES: usize> TreeBuilder<'_, LANES> {
    /// Builds the node at `slot` for the rules in `list`, which are in ascending order of number.
    /// `region` contains all packets that reach this node and match one of the rules.
    fn fill(&mut self, slot: u32, mut list: Vec<u32>, region: &[Range; LANES], depth: Depth) {
        self.forget_covered(&mut list, region);
        let is_short = list.len() <= LEAF_RULES || depth.is_full();
        let plan = if is_short { None } else { self.plan(&list, region) };
        match plan {
            Some(plan) => self.fill_cut(slot, &list, region, &plan.cut, depth),
            None => self.fill_leaf(slot, &list),
        }
    }

    /// Removes the rules after the first rule that matches all packets of `region`. The removed
    /// rules can never be the first match.
    fn forget_covered(&self, list: &mut Vec<u32>, region: &[Range; LANES]) {
        let covers = |item: &u32| {
            let Item { rule, end } = &self.items[*item as usize];
            let all = rule.lanes.iter().zip(region).all(|(range, region)| range.covers(*region));
            all && !end.is_special
                && rule.flags_mask == 0
                && rule.flags_set == 0
                && rule.states == FlowStates::ANY
        };
        if let Some(covering) = list.iter().position(covers) {
            list.truncate(covering + 1);
        }
    }

    /// Returns the best cut (division of the rules among children) within the memory limits.
    /// Returns `None` if comparing all rules is cheaper.
    fn plan(&mut self, list: &[u32], region: &[Range; LANES]) -> Option<Plan> {
        let mut counts = core::mem::take(&mut self.counts);
        let mut plan = cut::choose(self.items, list, region, CHILDREN_MAX, &mut counts);
        if plan.is_some_and(|plan| plan.copies > self.copies_left) {
            plan = cut::choose(self.items, list, region, 1, &mut counts);
        }
        self.counts = counts;
        let comparing = 1.0 + 0.5 * list.len() as f32;
        plan.filter(|plan| plan.work < comparing && (1 << plan.cut.bits) < self.slots_left)
    }

    fn fill_leaf(&mut self, slot: u32, list: &[u32]) {
        let base = self.tree.ends.len() as u32;
        for item in list {
            let Item { rule, end } = &self.items[*item as usize];
            self.tree.bounds.push(LaneBounds::new(&rule.lanes));
            self.tree.ends.push(*end);
        }
        let (best, wide) = (self.best_of(list), list.len() as u32);
        self.tree.nodes[slot as usize] =
            CutNode { best, base, wide, lane: LEAF, shift: 0, mask: 0 };
    }

    fn fill_cut(
        &mut self,
        slot: u32,
        list: &[u32],
        region: &[Range; LANES],
        cut: &Cut,
        depth: Depth,
    ) {
        let parts = Parts::new(self.items, list, region[cut.lane], cut);
        self.copies_left -= parts.members.len() + parts.wide.len() - list.len();
        let base = self.reserve(1 << cut.bits);
        let wide = if parts.wide.is_empty() { NO_NODE } else { self.reserve(1) };
        self.tree.nodes[slot as usize] = CutNode {
            best: self.best_of(list),
            base,
            wide,
            lane: cut.lane as u8,
            shift: cut.shift as u8,
            mask: ((1u32 << cut.bits) - 1) as u16,
        };
        for child in 0..1 << cut.bits {
            let mut region = *region;
            region[cut.lane] = cut.range_of(child);
            self.fill(base + child, parts.of(child).to_vec(), &region, depth.of_child());
        }
        if wide != NO_NODE {
            self.fill(wide, parts.wide, region, depth.of_wide());
        }
    }

    fn best_of(&self, list: &[u32]) -> u32 {
        list.first().map_or(NO_RULE, |item| self.items[*item as usize].end.order)
    }

    /// Reserves `count` adjacent tree nodes, and returns the index of the first.
    fn reserve(&mut self, count: usize) -> u32 {
        let first = self.tree.nodes.len();
        let empty = CutNode { best: NO_RULE, base: 0, wide: 0, lane: LEAF, shift: 0, mask: 0 };
        self.tree.nodes.resize(first + count, empty);
        self.slots_left -= count;
        first as u32
    }
}

/// Rules of a node that a cut divides: the rules of each child in order, and the rules that are too
/// wide for a child.
struct Parts {
    /// The rules of child `n` are `members[starts[n]..starts[n + 1]]`.
    starts: Vec<u32>,
    members: Vec<u32>,
    wide: Vec<u32>,
}

impl Parts {
    fn new<const LANES: usize>(
        items: &[Item<LANES>],
        list: &[u32],
        region: Range,
        cut: &Cut,
    ) -> Self {
        let children =
            |item: &u32| cut.children(items[*item as usize].rule.lanes[cut.lane], region);
        let mut starts = vec![0u32; (1 << cut.bits) + 1];
        for (first, last) in list.iter().filter_map(children) {
            starts[first as usize + 1..=last as usize + 1].iter_mut().for_each(|n| *n += 1);
        }
        for child in 1..starts.len() {
            starts[child] += starts[child - 1];
        }
        let mut next = starts.clone();
        let mut members = vec![0; starts[1 << cut.bits] as usize];
        let mut wide = Vec::new();
        for item in list {
            let Some((first, last)) = children(item) else {
                wide.push(*item);
                continue;
            };
            for next in &mut next[first as usize..=last as usize] {
                members[*next as usize] = *item;
                *next += 1;
            }
        }
        Self { starts, members, wide }
    }

    fn of(&self, child: u32) -> &[u32] {
        let child = child as usize;
        &self.members[self.starts[child] as usize..self.starts[child + 1] as usize]
    }
}
