//! Access lists of a router: rules of a user, compiled to judge packets.
//!
//! A [`RuleList`] has rules by their numbers and a default for each hook. [`Rules::compile`] makes
//! it ready, with interfaces as numbers; [`Rules::judge`] says what becomes of a packet, which
//! [`Fields`] describe. [`Counters`] count for one shard. A changed list is compiled anew and
//! replaces the old one whole, so that no packet is judged by parts of two lists.
//!
//! ```
//! use towpath_filter::{Action, Counters, Fields, Hook, RuleList, Rules};
//!
//! let list = RuleList::parse("acl add id 10 proto tcp dport 22 in wan action reject")?;
//! let rules = Rules::compile(&list, |name| (name == "wan").then_some(2))?;
//! let counters = Counters::new(&rules);
//!
//! let packet = Fields {
//!     hook: Hook::Forward,
//!     src: "198.51.100.7".parse()?,
//!     dst: "10.0.0.1".parse()?,
//!     protocol: 6,
//!     ports: Some((40_000, 22)),
//!     tcp_flags: 2,
//!     icmp: None,
//!     iface_in: Some(2),
//!     iface_out: Some(1),
//! };
//! let judgement = rules.judge(&packet);
//! counters.on_judged(packet.hook, &judgement, 60);
//! assert_eq!(judgement.action, Action::Reject);
//! assert_eq!(counters.of_rule(0).packets, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order:
//!
//! - `fields` and `rule`; `words`, `values` and `parse` are the grammar;
//! - `linear` is the meaning of a list, `lanes` and `tree` its compiled form;
//! - `rules` and `counters`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod counters;
mod error;
mod fields;
mod lanes;
mod linear;
mod parse;
mod rule;
mod rules;
mod tree;
mod values;
mod words;

pub use counters::{Count, Counters, Totals};
pub use error::{ParseError, RuleError};
pub use fields::{Fields, Hook, Hooks};
pub use rule::{Action, Icmp, Log, Ports, Rule, RuleList, TcpFlags};
pub use rules::{CompileError, Judgement, RULES_MAX, Rules};
pub use tree::Effort;
