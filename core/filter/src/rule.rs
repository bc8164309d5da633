//! Filter rules as users define them: interfaces are given by name, and rules are ordered by
//! number.

use std::collections::BTreeMap;

use towpath_wire::Prefix;

use crate::fields::{FlowStates, Hook, Hooks};

/// Action to be taken for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Let the packet pass.
    Accept,
    /// Drop the packet without notifying its sender.
    Drop,
    /// Drop the packet, and send a TCP reset or an ICMP error to its sender.
    Reject,
}

/// Inclusive port range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Lowest port of the range.
    pub first: u16,
    /// Highest port, at least `first`.
    pub last: u16,
}

/// Condition of a rule on the flags of the TCP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TcpFlags {
    /// Flags that the rule examines.
    pub mask: u8,
    /// Flags of `mask` that must be set. The remaining flags of `mask` must be clear.
    pub set: u8,
}

/// Condition of a rule on the type and code of an ICMP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// ICMP message type.
    pub kind: u8,
    /// ICMP message code; `None` matches any code.
    pub code: Option<u8>,
}

/// Logging settings of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Log {
    /// Maximum number of log entries per second, separately for each shard (thread of the router).
    /// `None` logs every packet.
    pub rate: Option<u32>,
}

/// Filter rule: the action for packets that match all its conditions.
///
/// A condition that is `None` matches every packet. A condition on ports, TCP flags or ICMP types
/// never matches a packet that has none. Fragments other than the first have none of these fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Rule number. If several rules match, the one with the lowest number decides.
    pub id: u32,
    /// Hooks at which the rule applies.
    pub hooks: Hooks,
    /// Prefix that contains the source address of matching packets; of the same family as `dst`.
    pub src: Option<Prefix>,
    /// Prefix that contains the destination address.
    pub dst: Option<Prefix>,
    /// IP protocol number that a packet must have; `None` matches any.
    pub protocol: Option<u8>,
    /// Range of source ports.
    pub sport: Option<Ports>,
    /// Range of destination ports.
    pub dport: Option<Ports>,
    /// Condition on TCP flags; only TCP packets match it.
    pub flags: Option<TcpFlags>,
    /// Condition on ICMP type and code. Matches ICMP and ICMPv6 unless `protocol` is set.
    pub icmp: Option<Icmp>,
    /// Flow states that match. Without a connection tracker, all packets are `untracked`.
    pub states: Option<FlowStates>,
    /// Name of the interface on which the packet was received.
    pub iface_in: Option<String>,
    /// Name of the interface on which the packet is sent.
    pub iface_out: Option<String>,
    /// Action for packets that match the rule.
    pub action: Action,
    /// Logging settings for matching packets; `None` logs nothing.
    pub log: Option<Log>,
}

impl Rule {
    /// Creates a rule without conditions that applies at the default hooks.
    #[must_use]
    pub const fn new(id: u32, action: Action) -> Self {
        Self {
            id,
            hooks: Hooks::INCOMING,
            src: None,
            dst: None,
            protocol: None,
            sport: None,
            dport: None,
            flags: None,
            icmp: None,
            states: None,
            iface_in: None,
            iface_out: None,
            action,
            log: None,
        }
    }
}

/// Access list: filter rules by number, and for each hook a default action for packets that match
/// no rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleList {
    rules: BTreeMap<u32, Rule>,
    defaults: [Action; Hook::ALL.len()],
}

impl RuleList {
    /// Creates a list without rules that accepts all packets.
    #[must_use]
    pub const fn new() -> Self {
        Self { rules: BTreeMap::new(), defaults: [Action::Accept; Hook::ALL.len()] }
    }

    /// Adds a rule. If a rule with this number exists, replaces and returns it.
    pub fn insert(&mut self, rule: Rule) -> Option<Rule> {
        self.rules.insert(rule.id, rule)
    }

    /// Removes and returns the rule with this number.
    pub fn remove(&mut self, id: u32) -> Option<Rule> {
        self.rules.remove(&id)
    }

    /// Sets the default action for packets at `hooks` that match no rule.
    pub fn set_default(&mut self, hooks: Hooks, action: Action) {
        for hook in hooks.iter() {
            self.defaults[hook as usize] = action;
        }
    }

    /// Returns the action for packets at `hook` that match no rule.
    #[must_use]
    pub const fn default_of(&self, hook: Hook) -> Action {
        self.defaults[hook as usize]
    }

    /// Returns the rule with number `id`.
    #[must_use]
    pub fn rule(&self, id: u32) -> Option<&Rule> {
        self.rules.get(&id)
    }

    /// Iterates over the rules in ascending order of number.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.values()
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns whether the list has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

impl Default for RuleList {
    fn default() -> Self {
        Self::new()
    }
}
