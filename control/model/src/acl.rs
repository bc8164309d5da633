//! The access list of a run, and changes of it, as they are written in JSON. Rules are texts in the
//! grammar of docs/acl.md.

use serde::{Deserialize, Serialize};

use crate::sockets::Word;

/// Rules by which packets are judged, with counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// All rules, the lowest number first.
    pub rules: Vec<AclRule>,
    /// Fate of packets that no rule matches, for each hook.
    pub defaults: Vec<AclDefault>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclRule {
    /// The rule, from `id` on: "id 10 in wan proto tcp action drop".
    pub rule: String,
    /// Packets that it decided about since it is in force.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// A default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclDefault {
    /// The hook: `prerouting`, `input`, `forward`, `output` or `postrouting`.
    pub hook: Word,
    /// The fate: `accept`, `drop` or `reject`.
    pub action: Word,
    /// Packets that no rule matched there, since this default is in force.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// A change of the access list of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum AclChange {
    /// Adds a rule. A rule with its number is a fault.
    AddRule {
        /// The rule, from `id` on.
        rule: String,
    },
    /// Adds a rule, in the place of one with its number.
    ReplaceRule {
        /// The rule, from `id` on.
        rule: String,
    },
    /// Deletes a rule.
    DeleteRule {
        /// Its number.
        id: u32,
    },
    /// Sets the fate of packets that no rule matches.
    SetDefault {
        /// Hooks at which they are.
        hooks: Vec<Word>,
        /// Their fate.
        action: Word,
    },
    /// Puts a whole list in the place of what is there.
    Load {
        /// The list, a rule or a default a line.
        text: String,
    },
}
