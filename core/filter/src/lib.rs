//! Access lists of a router: rules of a user, compiled to judge packets.
//!
//! A [`RuleList`] has rules by their numbers and a default for each hook. [`Rules::compile`] makes
//! it ready, with interfaces as numbers; [`Rules::judge`] says what becomes of a packet, which
//! [`Fields`] describe. [`Counters`] count for one shard. A changed list is compiled anew and
//! replaces the old one whole, so that no packet is judged by parts of two lists.
//!
//! Reading order: `fields`, `rule`, `linear` (the meaning of a list), `rules`, `counters`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod counters;
mod fields;
mod linear;
mod rule;
mod rules;

pub use counters::{Count, Counters};
pub use fields::{Fields, Hook, Hooks};
pub use rule::{Action, Icmp, Log, Ports, Rule, RuleList, TcpFlags};
pub use rules::{CompileError, Judgement, RULES_MAX, Rules};
