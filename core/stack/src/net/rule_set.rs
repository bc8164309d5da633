//! Rules in force, with what they counted.

use towpath_filter::{Count, Counters, Hook, Rules};

/// Rules by which packets are judged. Unchangeable, so that no packet is judged by parts of two
/// sets.
#[derive(Debug)]
pub struct RuleSet {
    rules: Rules,
    /// Counts of each shard, which alone writes them.
    counters: Vec<Counters>,
}

impl RuleSet {
    /// Rules for a host with as many `shards`.
    pub(super) fn new(rules: Rules, shards: usize) -> Self {
        let counters = (0..shards).map(|_| Counters::new(&rules)).collect();
        Self { rules, counters }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Counters of one shard.
    pub(super) fn counters(&self, shard: usize) -> &Counters {
        &self.counters[shard]
    }

    /// Packets that the rule at this place decided about, in all shards.
    pub fn count_of_rule(&self, index: u32) -> Count {
        self.sum(|counters| counters.of_rule(index))
    }

    /// Packets at `hook` that no rule matched, in all shards.
    pub fn count_of_default(&self, hook: Hook) -> Count {
        self.sum(|counters| counters.of_default(hook))
    }

    fn sum(&self, of: impl Fn(&Counters) -> Count) -> Count {
        self.counters.iter().map(of).fold(Count::default(), |sum, more| Count {
            packets: sum.packets + more.packets,
            bytes: sum.bytes + more.bytes,
        })
    }
}

/// A packet that a rule wants to be told of.
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
