//! The choice of a cut: which bits of which lane part the rules of a node best.

use super::build::{BITS_MAX, Item};
use crate::lanes::Range;

/// A cut of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) lane: usize,
    /// Numbers of the lane that the children divide among them.
    pub(super) whole: Range,
    pub(super) shift: u32,
    pub(super) bits: u32,
    /// Limit on children that a rule is in; a rule of more is wide.
    children_max: u32,
    /// Widest rule, as the place of the highest bit of its length, that may be in children.
    class_max: u32,
}

/// A cut, and the expected work below it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) cut: Cut,
    pub(super) work: f32,
    /// Rules in children and the wide branch together, beyond those of the node.
    pub(super) copies: usize,
}

/// Parts of the narrow rules of a lane, in percent, that a cut may be made for. The others, which
/// are wider, are in the wide branch.
const NARROW_PERCENT: [usize; 4] = [100, 90, 70, 40];

/// Work of a search in a list of so many rules, in visits of nodes: a guess, which has to order
/// cuts well. Four rules are compared in the time of two visits, and a node halves a list.
pub(super) fn work_of(rules: f32) -> f32 {
    match rules {
        0.0 => 0.0,
        ..=4.0 => 1.0 + 0.5 * rules,
        _ => 3.0 + 2.0 * (rules / 4.0).log2(),
    }
}

impl Cut {
    /// First and last child of a rule, or `None` when the rule is wide.
    pub(super) fn children(&self, range: Range, region: Range) -> Option<(u32, u32)> {
        let clipped = range.clip(region);
        if range.covers(region) || class_of(clipped) > self.class_max {
            return None;
        }
        let (first, last) = (clipped.first >> self.shift, clipped.last >> self.shift);
        let offset = self.whole.first >> self.shift;
        (last - first < self.children_max).then_some((first - offset, last - offset))
    }

    /// Numbers of the lane that belong to a child.
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
        // Half the work of a packet of any rule, half that of a packet of the fullest child.
        let usual = work_of(squares as f32 / sum as f32);
        let narrow = (usual + work_of(largest as f32)) / 2.0;
        let work = 1.0 + narrow + work_of(wide as f32);
        Some(Plan { cut: self, work, copies: sum as usize + wide - list.len() })
    }
}

/// Place of the highest bit of a range's length, 0 for one number.
const fn class_of(range: Range) -> u32 {
    32 - (range.last - range.first).leading_zeros()
}

/// The best cut of a node, if one makes progress.
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

/// Possible cuts of a lane, a fine and a coarse one for each of [`NARROW_PERCENT`].
fn cuts_of<const LANES: usize>(
    items: &[Item<LANES>],
    list: &[u32],
    region: Range,
    lane: usize,
    children_max: u32,
) -> [[Option<Cut>; 2]; NARROW_PERCENT.len()] {
    // For each class: number of its rules, their lowest and their highest number.
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

/// The cuts for `count` rules that are within `all`. The fine one has about two children for each
/// rule. Children of the coarse one are as wide as the widest rule, so that it copies few rules.
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
