//! Access lists of a router: compiles user-defined rules to classify packets.
//!
//! A [`RuleList`] holds rules by number, named sets of prefixes and ports, and a default for each
//! hook. [`Rules::compile`] compiles it, with interfaces resolved to numbers. [`Rules::decide`]
//! returns the action for a packet described by [`Fields`]. [`Counters`] count for one shard, and
//! have its token buckets. A modified list is compiled and replaces the old one as a whole, so that
//! no packet is judged by a mixture of two lists. If only the members of sets have changed,
//! [`Rules::with_sets`] keeps the compiled rules.
//!
//! ```
//! use towpath_filter::{Action, Counters, Fields, FlowState, Hook, RuleList, Rules};
//!
//! let list = RuleList::parse("acl add id 10 proto tcp dport 22 in wan action reject")?;
//! let rules = Rules::compile(&list, |name| (name == "wan").then_some(2))?;
//! let counters = Counters::new(&rules);
//!
//! let mut packet = Fields {
//!     hook: Hook::Forward,
//!     src: "198.51.100.7".parse()?,
//!     dst: "10.0.0.1".parse()?,
//!     protocol: 6,
//!     ports: Some((40_000, 22)),
//!     tcp_flags: 2,
//!     icmp: None,
//!     iface_in: Some(2),
//!     iface_out: Some(1),
//!     state: FlowState::Untracked,
//!     mark: 0,
//! };
//! let action = rules.decide(
//!     &mut packet,
//!     |rule, rate| counters.take_token(rule, rate, 0),
//!     |fields, judgement| counters.on_judged(fields.hook, judgement, 60),
//! );
//! assert_eq!(action, Action::Reject);
//! assert_eq!(counters.of_rule(0).packets, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cost
//!
//! Minimum of nine runs of `towpath-lab-filter -- 8 judge` (`lab/filter`) on a shared CPU (AMD
//! EPYC, 1 MiB of L2 cache). Each cell has the time, and the average numbers of visited nodes and
//! compared rules. The two numbers do not depend on the machine.
//!
//! | list (after ClassBench) | 10 rules | 1000 rules | 100,000 rules |
//! |---|---|---|---|
//! | router, IPv4 | 17 ns, 1.9 + 2.4 | 27 ns, 3.3 + 2.1 | 37 ns, 3.2 + 1.8 |
//! | router, IPv6 | 22 ns, 1.9 + 2.8 | 39 ns, 4.0 + 2.6 | 69 ns, 3.8 + 2.3 |
//! | firewall | 21 ns, 2.5 + 3.3 | 41 ns, 5.0 + 2.6 | 97 ns, 5.0 + 2.7 |
//! | chains of a host | 16 ns, 2.3 + 1.8 | 30 ns, 3.4 + 2.4 | 73 ns, 4.5 + 2.1 |
//! | overlaps everywhere | 13 ns, 2.0 + 1.5 | 69 ns, 9.0 + 8.9 | 1150 ns, 63 + 48 |
//!
//! - Instructions per judgement (callgrind) for the router's IPv4 list: 190, 252 and 244.
//! - Tuple space search, measured for comparison (`… 8 tuples`), takes 87, 490 and 3465 ns for that
//!   list.
//! - Compiling (`… 1x compile`) takes 0.01 ms, 0.4 to 0.7 ms, and 83 to 134 ms; for 100,000
//!   overlapping rules, 255 ms.
//! - 100,000 compiled rules use 10 to 16 MB. The upper bound is 356 bytes per IPv4 rule and 548 per
//!   IPv6 rule, for each distinct set of rules of a hook. Members of lists and sets are extra.
//! - The tree does not contain the members of lists and sets. Rules that differ only in the members
//!   of sets are compared one by one, each with a binary search.
//! - The last row is the worst case: time grows with the number of rules, but memory stays bounded.
//!
//! Reading order:
//!
//! - `fields`, `sets` and `rule`; the grammar in `words`, `values` and `parse`;
//! - `linear`, the reference semantics of a list; `lanes`, `tree` and `extras`, its compiled form;
//! - `rules` and `counters`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod counters;
mod error;
mod extras;
mod fields;
mod lanes;
mod linear;
mod parse;
mod rule;
mod rules;
mod sets;
mod tree;
mod values;
mod words;

pub use counters::{Count, Counters, Totals};
pub use error::{RuleError, RulesError};
pub use fields::{Fields, FlowState, FlowStates, Hook, Hooks};
pub use parse::{check_set_name, rule_of_line};
pub use rule::{Action, Icmp, Log, RateLimit, RateUnit, Rule, RuleAction, RuleList, TcpFlags};
pub use rules::{CompileError, Judgement, MEMBERS_MAX, RULES_MAX, Rules, SETS_MAX};
pub use sets::{AddressMatch, PortMatch, PortRanges, Ports, PrefixList, SetMembers};
pub use tree::Effort;
