//! Rules in force, with their counters.

use towpath_filter::{Count, Counters, Hook, Rules};

/// Rules by which packets are judged. Unchangeable, so that no packet is judged by parts of two
/// sets.
#[derive(Debug)]
pub struct RuleSet {
    rules: Rules,
    /// Counts of each shard, which alone writes them.
    counters: Vec<Counters>,
    /// Counts of sets before, for rules that were in them already.
    inherited: Counters,
}

impl RuleSet {
    /// Rules for a host with as many `shards`.
    pub(super) fn new(rules: Rules, shards: usize) -> Self {
        let counters = (0..shards).map(|_| Counters::new(&rules)).collect();
        let inherited = Counters::new(&rules);
        Self { rules, counters, inherited }
    }

    /// Takes over the counts of the set before, for rules and defaults that are the same in both.
    /// No packet may be judged by that one any more; one thread does it, once.
    pub fn inherit(&self, before: &Self) {
        let mut old = (0..).zip(before.rules.iter()).peekable();
        for (index, rule) in (0..).zip(self.rules.iter()) {
            while old.next_if(|(_, known)| known.id < rule.id).is_some() {}
            if let Some((place, _)) = old.next_if(|(_, known)| *known == rule) {
                self.inherited.add_to_rule(index, before.count_of_rule(place));
            }
        }
        for hook in Hook::ALL {
            if before.rules.default_of(hook) == self.rules.default_of(hook) {
                self.inherited.add_to_default(hook, before.count_of_default(hook));
            }
        }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Counters of one shard.
    pub(super) fn counters(&self, shard: usize) -> &Counters {
        &self.counters[shard]
    }

    /// Packets that the rule at this place decided about, in all shards, since it is in force.
    pub fn count_of_rule(&self, index: u32) -> Count {
        self.sum(|counters| counters.of_rule(index))
    }

    /// Packets at `hook` that no rule matched, in all shards.
    pub fn count_of_default(&self, hook: Hook) -> Count {
        self.sum(|counters| counters.of_default(hook))
    }

    fn sum(&self, of: impl Fn(&Counters) -> Count) -> Count {
        self.counters.iter().chain([&self.inherited]).map(of).fold(Count::default(), |sum, more| {
            Count { packets: sum.packets + more.packets, bytes: sum.bytes + more.bytes }
        })
    }
}

/// A packet that a rule wants logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// The packet, as rules see it.
    pub fields: towpath_filter::Fields,
    /// Number of the rule.
    pub rule: u32,
    /// Fate of the packet.
    pub action: towpath_filter::Action,
    /// Length of the packet from the IP header on, in bytes.
    pub len: usize,
}
