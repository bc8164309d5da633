//! Types of the control protocol for the access list of a run, and for changes to it. Rules are
//! strings in the grammar of docs/acl.md.

use serde::{Deserialize, Serialize};

use crate::sockets::Word;

/// Access list: rules that filter packets, with counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// Named sets of prefixes or ports, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<AclSet>,
    /// All rules, in ascending order of their numbers.
    pub rules: Vec<AclRule>,
    /// Default actions for packets that match no rule, one for each hook.
    pub defaults: Vec<AclDefault>,
}

/// Named set of prefixes or ports, to which rules refer as `@NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclSet {
    /// Name of the set.
    pub name: String,
    /// Prefixes or ports with commas between them, or "none".
    pub members: String,
}

/// Rule of an access list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclRule {
    /// Text of the rule, starting with `id`: "id 10 in wan proto tcp action drop".
    pub rule: String,
    /// Number of packets that the rule has matched since it was added.
    pub packets: u64,
    /// Number of bytes in the packets that the rule has matched.
    pub bytes: u64,
}

/// Default action of a hook, for packets that match no rule, with counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclDefault {
    /// Name of the hook: `prerouting`, `input`, `forward`, `output` or `postrouting`.
    pub hook: Word,
    /// Name of the action: `accept`, `drop` or `reject`.
    pub action: Word,
    /// Number of packets at this hook that matched no rule, since the default action was set.
    pub packets: u64,
    /// Number of bytes in the packets at this hook that matched no rule.
    pub bytes: u64,
}

/// Change to the access list of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum AclChange {
    /// Adds a rule. Fails if a rule with this number exists.
    AddRule {
        /// Text of the rule, starting with `id`.
        rule: String,
    },
    /// Adds a rule, or replaces the rule that has the same number.
    ReplaceRule {
        /// Text of the rule, starting with `id`.
        rule: String,
    },
    /// Deletes a rule.
    DeleteRule {
        /// Number of the rule.
        id: u32,
    },
    /// Sets the default action for packets that match no rule.
    SetDefault {
        /// Names of the hooks to change.
        hooks: Vec<Word>,
        /// Name of the new default action.
        action: Word,
    },
    /// Creates a set, or replaces its members.
    SetMembers {
        /// Name of the set.
        name: String,
        /// Prefixes or ports with commas between them, or "none".
        members: String,
    },
    /// Adds members to a set.
    AddMembers {
        /// Name of the set.
        name: String,
        /// Prefixes or ports with commas between them.
        members: String,
    },
    /// Deletes members of a set. Fails if the set does not have one of them.
    DeleteMembers {
        /// Name of the set.
        name: String,
        /// Prefixes or ports with commas between them.
        members: String,
    },
    /// Deletes a set. Fails if a rule refers to it.
    DeleteSet {
        /// Name of the set.
        name: String,
    },
    /// Replaces the whole access list.
    Load {
        /// Text of the new list, with one rule or default action per line.
        text: String,
    },
}
