//! Filter rules as users define them: interfaces are given by name, and rules are ordered by
//! number.

use std::collections::BTreeMap;

use crate::error::RuleError;
use crate::fields::{FlowStates, Hook, Hooks};
use crate::sets::{AddressMatch, NamedSets, PortMatch, SetMembers};

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

/// Effect of a rule on the packets that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleAction {
    /// The rule decides about the packet.
    Final(Action),
    /// The packet gets this mark, and the rules after this one decide.
    Mark(u32),
}

impl From<Action> for RuleAction {
    fn from(action: Action) -> Self {
        Self::Final(action)
    }
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

/// Unit of time of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RateUnit {
    /// Second, written `s`.
    Second,
    /// Minute, written `m`.
    Minute,
    /// Hour, written `h`.
    Hour,
    /// Day of 24 hours, written `d`.
    Day,
}

impl RateUnit {
    pub(crate) const ALL: [(&str, Self); 4] =
        [("s", Self::Second), ("m", Self::Minute), ("h", Self::Hour), ("d", Self::Day)];

    const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => 86_400,
        }
    }
}

/// Maximum rate at which packets match a rule: a token bucket for each shard (thread of the
/// router). A packet takes one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// Number of tokens that the bucket receives in each unit of time.
    pub tokens: u32,
    /// Unit of time.
    pub per: RateUnit,
    /// Capacity of the bucket in tokens.
    pub burst: u32,
}

impl RateLimit {
    /// Maximum number of tokens in a unit of time. Above it, the interval between tokens would be
    /// rounded by more than 1 %.
    pub const TOKENS_MAX: u32 = 10_000_000;
    /// Default capacity of a bucket, as of `limit rate` in nft(8).
    pub const BURST: u32 = 5;

    /// Returns the time between two tokens.
    pub(crate) fn interval_ns(self) -> u64 {
        self.per.seconds() * 1_000_000_000 / u64::from(self.tokens.clamp(1, Self::TOKENS_MAX))
    }
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
    /// Condition on the source address.
    pub src: Option<AddressMatch>,
    /// Condition on the destination address. A packet of an IP version that only one of the two
    /// conditions has never matches.
    pub dst: Option<AddressMatch>,
    /// IP protocol number that a packet must have; `None` matches any.
    pub protocol: Option<u8>,
    /// Condition on the source port.
    pub sport: Option<PortMatch>,
    /// Condition on the destination port.
    pub dport: Option<PortMatch>,
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
    /// Mark that a packet must have; 0 matches packets without a mark.
    pub mark: Option<u32>,
    /// Maximum rate of matches. A packet that exceeds the rate does not match.
    pub rate: Option<RateLimit>,
    /// Effect on packets that match the rule.
    pub action: RuleAction,
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
            mark: None,
            rate: None,
            action: RuleAction::Final(action),
            log: None,
        }
    }

    /// Returns the names of the sets to which the conditions refer: two sets of prefixes, and two
    /// sets of ports.
    pub(crate) fn sets(&self) -> ([Option<&str>; 2], [Option<&str>; 2]) {
        let prefixes = [&self.src, &self.dst].map(|it| it.as_ref().and_then(AddressMatch::set));
        let ports = [&self.sport, &self.dport].map(|it| it.as_ref().and_then(PortMatch::set));
        (prefixes, ports)
    }

    /// Returns whether the rule has a list, set, mark or rate, which the lanes of the search tree
    /// do not express.
    pub(crate) fn is_special(&self) -> bool {
        let is_many = |it: &Option<AddressMatch>| !matches!(it, None | Some(AddressMatch::One(_)));
        let has_many = |it: &Option<PortMatch>| !matches!(it, None | Some(PortMatch::One(_)));
        is_many(&self.src)
            || is_many(&self.dst)
            || has_many(&self.sport)
            || has_many(&self.dport)
            || self.mark.is_some()
            || self.rate.is_some()
            || matches!(self.action, RuleAction::Mark(_))
    }
}

/// Access list: filter rules by number, named sets, and for each hook a default action for packets
/// that match no rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleList {
    rules: BTreeMap<u32, Rule>,
    sets: NamedSets,
    defaults: [Action; Hook::ALL.len()],
}

impl RuleList {
    /// Creates a list without rules that accepts all packets.
    #[must_use]
    pub const fn new() -> Self {
        let defaults = [Action::Accept; Hook::ALL.len()];
        Self { rules: BTreeMap::new(), sets: NamedSets::new(), defaults }
    }

    /// Adds a rule. If a rule with this number exists, replaces and returns it.
    pub fn insert(&mut self, rule: Rule) -> Option<Rule> {
        self.rules.insert(rule.id, rule)
    }

    /// Removes and returns the rule with this number.
    pub fn remove(&mut self, id: u32) -> Option<Rule> {
        self.rules.remove(&id)
    }

    /// Sets the members of the set `name`, and returns its previous members.
    pub fn set_members(&mut self, name: &str, members: SetMembers) -> Option<SetMembers> {
        self.sets.insert(name.to_owned(), members)
    }

    /// Returns the members of the set `name`.
    #[must_use]
    pub fn members(&self, name: &str) -> Option<&SetMembers> {
        self.sets.get(name)
    }

    /// Returns the members of the set `name`, which can be changed.
    pub fn members_mut(&mut self, name: &str) -> Option<&mut SetMembers> {
        self.sets.get_mut(name)
    }

    /// Removes the set `name`, and returns its members.
    pub fn remove_set(&mut self, name: &str) -> Option<SetMembers> {
        self.sets.remove(name)
    }

    /// Iterates over the named sets in order of name.
    pub fn sets(&self) -> impl Iterator<Item = (&str, &SetMembers)> {
        self.sets.iter().map(|(name, members)| (name.as_str(), members))
    }

    /// Checks that the sets to which a rule refers exist, and have members of the right kind.
    ///
    /// # Errors
    /// Returns an error that names the set.
    pub fn check_sets(&self, rule: &Rule) -> Result<(), RuleError> {
        let (prefixes, ports) = rule.sets();
        let named =
            |names: [Option<_>; 2], of_ports| names.map(|name| name.map(|it| (it, of_ports)));
        let all = named(prefixes, false).into_iter().chain(named(ports, true));
        for (name, of_ports) in all.flatten() {
            let Some(members) = self.members(name) else {
                let expected = match self.sets.is_empty() {
                    true => format!("expected a line \"acl set {name} …\""),
                    false => {
                        let known: Vec<_> = self.sets.keys().map(String::as_str).collect();
                        format!("expected one of {}", known.join(", "))
                    }
                };
                return Err(RuleError::new(format!("there is no set \"{name}\""), expected));
            };
            let (has, expected) = match of_ports {
                true => (!members.prefixes().is_empty(), "a set of ports"),
                false => (!members.ranges().is_empty(), "a set of prefixes"),
            };
            if has {
                let kind = if of_ports { "prefixes" } else { "ports" };
                let what = format!("the set \"{name}\" has {kind}");
                return Err(RuleError::new(what, format!("expected {expected}")));
            }
        }
        Ok(())
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
