//! Rules as a user writes them: interfaces by name, in the order of their numbers.

use std::collections::BTreeMap;

use towpath_wire::Prefix;

use crate::fields::{Hook, Hooks};

/// The fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The packet goes on.
    Accept,
    /// The packet is dropped, and its sender is told nothing.
    Drop,
    /// The packet is dropped, and its sender gets a TCP reset or an ICMP error.
    Reject,
}

/// Ports from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Lowest port.
    pub first: u16,
    /// Highest port, not below `first`.
    pub last: u16,
}

/// TCP flags that a rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TcpFlags {
    /// Flags that matter.
    pub mask: u8,
    /// Flags of `mask` that must be set; the other flags of `mask` must be clear.
    pub set: u8,
}

/// ICMP messages that a rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// Type of the message.
    pub kind: u8,
    /// Code of the message, or any.
    pub code: Option<u8>,
}

/// A rule's wish to have packets logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Log {
    /// Limit on entries a second and shard. `None` logs every packet.
    pub rate: Option<u32>,
}

/// A rule: conditions, all of which a packet must meet, and the fate of such a packet.
///
/// Every packet meets a condition that is `None`. A packet without ports meets no condition on
/// ports, and a packet without the header none on flags or an ICMP type. Later fragments have
/// neither ports nor these headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Number of the rule: the lowest that matches decides.
    pub id: u32,
    /// Hooks at which the rule applies.
    pub hooks: Hooks,
    /// Network of the source address, of the same family as `dst`.
    pub src: Option<Prefix>,
    /// Network of the destination address.
    pub dst: Option<Prefix>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Source ports.
    pub sport: Option<Ports>,
    /// Destination ports.
    pub dport: Option<Ports>,
    /// TCP flags; met by TCP alone.
    pub flags: Option<TcpFlags>,
    /// ICMP type and code; met by ICMP over IPv4 and IPv6 alike unless `protocol` is given.
    pub icmp: Option<Icmp>,
    /// Name of the receiving interface.
    pub iface_in: Option<String>,
    /// Name of the sending interface.
    pub iface_out: Option<String>,
    /// Fate of a packet that meets all conditions.
    pub action: Action,
    /// Logging of packets that meet all conditions.
    pub log: Option<Log>,
}

impl Rule {
    /// A rule without conditions, for packets from outside.
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
            iface_in: None,
            iface_out: None,
            action,
            log: None,
        }
    }
}

/// An access list: rules by their numbers, and the fate of packets that none of them matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleList {
    rules: BTreeMap<u32, Rule>,
    defaults: [Action; Hook::ALL.len()],
}

impl RuleList {
    /// A list without rules that accepts everything.
    #[must_use]
    pub const fn new() -> Self {
        Self { rules: BTreeMap::new(), defaults: [Action::Accept; Hook::ALL.len()] }
    }

    /// Adds a rule. Returns the rule that had the same number, which it replaces.
    pub fn insert(&mut self, rule: Rule) -> Option<Rule> {
        self.rules.insert(rule.id, rule)
    }

    /// Removes the rule of this number.
    pub fn remove(&mut self, id: u32) -> Option<Rule> {
        self.rules.remove(&id)
    }

    /// Sets the fate of packets at `hooks` that no rule matches.
    pub fn set_default(&mut self, hooks: Hooks, action: Action) {
        for hook in hooks.iter() {
            self.defaults[hook as usize] = action;
        }
    }

    /// The fate of packets at `hook` that no rule matches.
    #[must_use]
    pub const fn default_of(&self, hook: Hook) -> Action {
        self.defaults[hook as usize]
    }

    /// The rule of this number.
    #[must_use]
    pub fn rule(&self, id: u32) -> Option<&Rule> {
        self.rules.get(&id)
    }

    /// All rules, lowest number first.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.values()
    }

    /// Number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are no rules.
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
