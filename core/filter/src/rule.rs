//! User-defined rules, with interfaces by name, in the order of their numbers.

use std::collections::BTreeMap;

use towpath_wire::Prefix;

use crate::fields::{FlowStates, Hook, Hooks};

/// Action for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Pass the packet on.
    Accept,
    /// Drop the packet silently.
    Drop,
    /// Drop the packet, and send a TCP reset or an ICMP error to its sender.
    Reject,
}

/// Inclusive port range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Lowest port.
    pub first: u16,
    /// Highest port, not below `first`.
    pub last: u16,
}

/// TCP flags matched by a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TcpFlags {
    /// Flags to compare.
    pub mask: u8,
    /// Flags of `mask` that must be set; all others in `mask` must be clear.
    pub set: u8,
}

/// ICMP messages matched by a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// Message type.
    pub kind: u8,
    /// Message code; `None` matches any.
    pub code: Option<u8>,
}

/// Logging settings of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Log {
    /// Maximum number of entries per second and shard; `None` logs every packet.
    pub rate: Option<u32>,
}

/// Rule: conditions, all of which must match, and the action for matching packets.
///
/// A condition that is `None` matches every packet. Packets without ports never match conditions on
/// ports, and packets without the header never match conditions on TCP flags or ICMP types. Later
/// fragments have neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Rule number; the matching rule with the lowest number decides.
    pub id: u32,
    /// Hooks at which the rule applies.
    pub hooks: Hooks,
    /// Source prefix, of the same family as `dst`.
    pub src: Option<Prefix>,
    /// Destination prefix.
    pub dst: Option<Prefix>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source ports.
    pub sport: Option<Ports>,
    /// Destination ports.
    pub dport: Option<Ports>,
    /// TCP flags; matches TCP only.
    pub flags: Option<TcpFlags>,
    /// ICMP type and code; matches ICMP of both IP versions unless `protocol` is set.
    pub icmp: Option<Icmp>,
    /// States of the packet's flow; matches none but `untracked` without a tracker.
    pub states: Option<FlowStates>,
    /// Name of the receiving interface.
    pub iface_in: Option<String>,
    /// Name of the sending interface.
    pub iface_out: Option<String>,
    /// Action for matching packets.
    pub action: Action,
    /// Logging of matching packets.
    pub log: Option<Log>,
}

impl Rule {
    /// Creates a rule without conditions at the default hooks.
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

/// Access list: rules by number, and default actions for packets that match no rule.
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

    /// Adds a rule. Returns the replaced rule of the same number.
    pub fn insert(&mut self, rule: Rule) -> Option<Rule> {
        self.rules.insert(rule.id, rule)
    }

    /// Removes and returns the rule with this number.
    pub fn remove(&mut self, id: u32) -> Option<Rule> {
        self.rules.remove(&id)
    }

    /// Sets the default action at `hooks`.
    pub fn set_default(&mut self, hooks: Hooks, action: Action) {
        for hook in hooks.iter() {
            self.defaults[hook as usize] = action;
        }
    }

    /// Returns the default action at `hook`.
    #[must_use]
    pub const fn default_of(&self, hook: Hook) -> Action {
        self.defaults[hook as usize]
    }

    /// Returns the rule with this number.
    #[must_use]
    pub fn rule(&self, id: u32) -> Option<&Rule> {
        self.rules.get(&id)
    }

    /// Iterates over the rules, lowest number first.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.values()
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns whether there are no rules.
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
