//! Chooses the lane (header field) and bits by which the rules of a tree node are best divided
//! among its children.

use super::build::{BITS_MAX, Item};
use crate::lanes::Range;

/// A possible cut of a tree node: the lane (header field) and the bits of it that select a child.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) lane: usize,
    /// Range of lane values that is divided among the children.
    pub(super) whole: Range,
    pub(super) shift: u32,
    pub(super) bits: u32,
    /// Maximum number of children that a rule may be copied to. A rule that spans more children
    /// goes to the wide branch, a separate subtree.
    children_max: u32,
    /// Maximum width in bits of a rule that is put into children. A wider rule goes to the wide
    /// branch, a separate subtree.
    class_max: u32,
}

/// A cut of a tree node, with the estimated cost of a search in the node after the cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) cut: Cut,
    pub(super) work: f32,
    /// Number of additional copies of rules: the rules in all children and the wide branch, minus
    /// the rules of the node.
    pub(super) copies: usize,
}

/// Percentages of a lane's rules, narrowest first, that candidate cuts divide among children. The
/// remaining, wider rules go to the wide branch, a separate subtree.
const NARROW_PERCENT: [usize; 4] = [100, 90, 70, 40];

/// Estimates the cost of searching among `rules` rules, in units of one node visit. Only used to
/// compare cuts. Assumes that comparing four rules costs two visits, and that each node halves the
/// list.
pub(super) fn work_of(rules: f32) -> f32 {
    match rules {
        0.0 => 0.0,
        ..=4.0 => 1.0 + 0.5 * rules,
        _ => 3.0 + 2.0 * (rules / 4.0).log2(),
    }
}

impl Cut {
    /// Returns the first and last child that a rule spans; `None` if the rule is too wide for
    /// children.
    pub(super) fn children(&self, range: Range, region: Range) -> Option<(u32, u32)> {
        let clipped = range.clip(region);
        if range.covers(region) || class_of(clipped) > self.class_max {
            return None;
        }
        let (first, last) = (clipped.first >> self.shift, clipped.last >> self.shift);
        let offset = self.whole.first >> self.shift;
        (last - first < self.children_max).then_some((first - offset, last - offset))
    }

    /// Returns the range of lane values that select `child`.
    pub(super) const fn range_of(&self, child: u32) -> Range {
        let first = self.whole.first + (child << self.shift);
        Range { first, last: first + ((1 << self.shift) - 1) }
    }

    fn plan<const LANES: usize>(
        self,
        items: &[Item<LANES>],
        list: &[u32],
        region: Range,
        counts: &mut Vec<u32>,
    ) -> Option<Plan> {
        counts.clear();
        counts.resize(1 << self.bits, 0);
        let mut wide = 0;
        for item in list {
            match self.children(items[*item as usize].rule.lanes[self.lane], region) {
                Some((first, last)) => {
                    counts[first as usize..=last as usize].iter_mut().for_each(|count| *count += 1);
                }
                None => wide += 1,
            }
        }
        let (mut sum, mut squares, mut largest) = (0u64, 0u64, 0);
        for count in counts {
            sum += u64::from(*count);
            squares += u64::from(*count).pow(2);
            largest = largest.max(*count);
        }
        if sum == 0 || largest as usize >= list.len() || wide >= list.len() {
            return None;
        }
        // Average two estimates: the cost for a packet that matches a random rule, and for a packet
        // in the largest child.
        let usual = work_of(squares as f32 / sum as f32);
        let narrow = (usual + work_of(largest as f32)) / 2.0;
        let work = 1.0 + narrow + work_of(wide as f32);
        Some(Plan { cut: self, work, copies: sum as usize + wide - list.len() })
    }
}

/// Returns the width of a range in bits: 0 for a single value.
const fn class_of(range: Range) -> u32 {
    32 - (range.last - range.first).leading_zeros()
}

/// Returns the cheapest cut of a node's rules; `None` if no cut divides them.
pub(super) fn choose<const LANES: usize>(
    items: &[Item<LANES>],
    list: &[u32],
    region: &[Range; LANES],
    children_max: u32,
    counts: &mut Vec<u32>,
) -> Option<Plan> {
    let mut best: Option<Plan> = None;
    for (lane, region) in region.iter().enumerate() {
        let cuts = cuts_of(items, list, *region, lane, children_max);
        for cut in cuts.into_iter().flatten().flatten() {
            let plan = cut.plan(items, list, *region, counts);
            let is_better = |plan: &Plan| best.is_none_or(|best| plan.work < best.work);
            best = plan.filter(is_better).or(best);
        }
    }
    best
}

/// Returns the candidate cuts of a lane (header field). For each of [`NARROW_PERCENT`], there is
/// one cut with many children and one with few.
fn cuts_of<const LANES: usize>(
    items: &[Item<LANES>],
    list: &[u32],
    region: Range,
    lane: usize,
    children_max: u32,
) -> [[Option<Cut>; 2]; NARROW_PERCENT.len()] {
    // For each width in bits: number of rules, lowest value and highest value.
    let mut classes = [(0usize, u32::MAX, 0u32); 33];
    let mut narrow = 0;
    for item in list {
        let range = items[*item as usize].rule.lanes[lane];
        if range.covers(region) {
            continue;
        }
        let clipped = range.clip(region);
        let class = &mut classes[class_of(clipped) as usize];
        *class = (class.0 + 1, class.1.min(clipped.first), class.2.max(clipped.last));
        narrow += 1;
    }
    let mut last_class = None;
    NARROW_PERCENT.map(|percent| {
        let wanted = (narrow * percent).div_ceil(100);
        let (mut count, mut first, mut last) = (0, u32::MAX, 0);
        for (class, rules) in (0u32..).zip(classes) {
            count += rules.0;
            (first, last) = (first.min(rules.1), last.max(rules.2));
            if count >= wanted && count > 0 {
                if last_class.replace(class) == Some(class) {
                    break;
                }
                return new_cuts(lane, Range { first, last }, count, children_max, class);
            }
        }
        [None; 2]
    })
}

/// Creates two cuts for `count` rules whose values are within `all`. The fine cut has about two
/// children per rule. The coarse cut has children that are as wide as the widest rule, so that few
/// rules are copied.
fn new_cuts(
    lane: usize,
    all: Range,
    count: usize,
    children_max: u32,
    class_max: u32,
) -> [Option<Cut>; 2] {
    let width = 32 - (all.first ^ all.last).leading_zeros();
    if width == 0 {
        return [None; 2];
    }
    let low = u32::MAX >> (32 - width);
    let whole = Range { first: all.first & !low, last: all.first | low };
    let fine = width.min(count.ilog2() + 1).min(BITS_MAX);
    let coarse = width.saturating_sub(class_max).clamp(1, fine);
    let cut = |bits| Cut { lane, whole, shift: width - bits, bits, children_max, class_max };
    [Some(cut(fine)), (coarse < fine).then(|| cut(coarse))]
}
