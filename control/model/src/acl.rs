//! Access list of a run, and changes to it, as serialized to JSON. Rules are strings in the grammar
//! of docs/acl.md.

use serde::{Deserialize, Serialize};

use crate::sockets::Word;

/// Rules that filter packets, with counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// All rules, in ascending order of their numbers.
    pub rules: Vec<AclRule>,
    /// Default actions for packets that match no rule, one per hook.
    pub defaults: Vec<AclDefault>,
}

/// Rule of an access list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclRule {
    /// Text of the rule, starting with `id`: "id 10 in wan proto tcp action drop".
    pub rule: String,
    /// Packets that the rule has matched since it was added.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// Default action of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclDefault {
    /// The hook: `prerouting`, `input`, `forward`, `output` or `postrouting`.
    pub hook: Word,
    /// The action: `accept`, `drop` or `reject`.
    pub action: Word,
    /// Packets that matched no rule at this hook since the default was set.
    pub packets: u64,
    /// Bytes of these packets.
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
    /// Adds a rule, or replaces the rule with its number.
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
        /// Hooks to change.
        hooks: Vec<Word>,
        /// Default action.
        action: Word,
    },
    /// Replaces the whole list.
    Load {
        /// The new list, one rule or default per line.
        text: String,
    },
}
