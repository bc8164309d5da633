//! Packet filter rules of a host, with their counters.

use towpath_filter::{Count, Counters, Hook, Rule, Rules};

/// Rules of the packet filter. The rules are immutable, so that each packet is checked against one
/// consistent set.
#[derive(Debug)]
pub struct RuleSet {
    rules: Rules,
    /// Counters of each shard (stack). A shard writes only its own counters.
    counters: Vec<Counters>,
    /// Packet counts that were carried over from earlier rule sets, for rules that both sets
    /// contain.
    inherited: Counters,
}

impl RuleSet {
    /// Creates a rule set with counters for the given number of shards. Rules that are also in
    /// `before` keep their token buckets. Otherwise each change of the rules would fill them.
    pub(super) fn new(rules: Rules, shards: usize, before: Option<&Self>) -> Self {
        let counters = (0..shards).map(|_| Counters::new(&rules)).collect();
        let inherited = Counters::new(&rules);
        let set = Self { rules, counters, inherited };
        if let Some(before) = before.filter(|_| set.rules.has_rates()) {
            // The shard's thread runs this, so compare the few rules with a rate alone.
            for (index, place) in set.rules_of_both(before, |rule| rule.rate.is_some()) {
                for (counters, known) in set.counters.iter().zip(&before.counters) {
                    counters.copy_bucket(index, known, place);
                }
            }
        }
        set
    }

    /// Adds the counts of the earlier rule set `before`, for rules and default actions that are
    /// equal in both sets. Call this once, after all shards (stacks) have stopped using `before`.
    pub fn inherit(&self, before: &Self) {
        for (index, place) in self.rules_of_both(before, |_| true) {
            self.inherited.add_to_rule(index, before.count_of_rule(place));
        }
        for hook in Hook::ALL {
            if before.rules.default_of(hook) == self.rules.default_of(hook) {
                self.inherited.add_to_default(hook, before.count_of_default(hook));
            }
        }
    }

    /// Iterates over the wanted rules that are equal in both sets: the index in this set, and the
    /// index in `before`.
    fn rules_of_both(
        &self,
        before: &Self,
        is_wanted: fn(&Rule) -> bool,
    ) -> impl Iterator<Item = (u32, u32)> {
        let mut old = (0..).zip(before.rules.iter()).peekable();
        (0..).zip(self.rules.iter()).filter_map(move |(index, rule)| {
            while old.next_if(|(_, known)| known.id < rule.id).is_some() {}
            let (place, _) = old.next_if(|(_, known)| is_wanted(rule) && *known == rule)?;
            Some((index, place))
        })
    }

    /// Returns the rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the counters of one shard.
    pub(super) fn counters(&self, shard: usize) -> &Counters {
        &self.counters[shard]
    }

    /// Returns how many packets have matched the rule at `index`, in all shards. Includes the
    /// counts from earlier rule sets.
    pub fn count_of_rule(&self, index: u32) -> Count {
        self.sum(|counters| counters.of_rule(index))
    }

    /// Returns how many packets have matched no rule at `hook`, in all shards.
    pub fn count_of_default(&self, hook: Hook) -> Count {
        self.sum(|counters| counters.of_default(hook))
    }

    fn sum(&self, of: impl Fn(&Counters) -> Count) -> Count {
        self.counters.iter().chain([&self.inherited]).map(of).fold(Count::default(), |sum, more| {
            Count { packets: sum.packets + more.packets, bytes: sum.bytes + more.bytes }
        })
    }
}

/// A packet that a rule logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// Header fields of the packet that rules can match.
    pub fields: towpath_filter::Fields,
    /// Index of the rule that logged the packet.
    pub rule: u32,
    /// Action of the rule that logged the packet.
    pub action: towpath_filter::RuleAction,
    /// Length of the packet in bytes, beginning with the IP header.
    pub len: usize,
}
