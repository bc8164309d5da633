//! Compiled form of an access list.

use core::fmt;
use core::net::IpAddr;

use crate::fields::{Fields, Hook, Hooks};
use crate::lanes::{self, LANES_V4, LANES_V6, RuleBox};
use crate::linear::{self, Resolved};
use crate::rule::{Action, Rule, RuleList};
use crate::tree::{CutTree, Effort, Item, LeafEnd, LeafFields};

/// Maximum number of rules in a list: ten times the 100,000 rules of the largest benchmark.
pub const RULES_MAX: usize = 1_000_000;

/// Compiled access list, which cannot be changed. To change a rule, compile the new list and
/// replace the old one.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Resolved>,
    by_hook: [HookTrees; Hook::ALL.len()],
    hooks: Hooks,
    trees_v4: Vec<CutTree<LANES_V4>>,
    trees_v6: Vec<CutTree<LANES_V6>>,
}

/// Indices of a hook's search trees in [`Rules`], one per IP version. Hooks with equal rules share
/// search trees.
#[derive(Debug, Clone, Copy)]
struct HookTrees {
    v4: usize,
    v6: usize,
    default: Action,
}

/// Decision of the access list about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// Action for the packet.
    pub action: Action,
    /// Index of the rule that decided, see [`Rules::rule`]. `None` if no rule matched and the
    /// default decided.
    pub rule: Option<u32>,
    /// Whether the rule asks for a log entry. The caller must still check the rule's maximum rate.
    pub log: bool,
}

/// Error returned when an access list cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileError {
    /// A rule names an interface that does not exist.
    UnknownInterface {
        /// Number of the rule with the error.
        id: u32,
        /// Name of the interface that was not found.
        name: String,
    },
    /// The list has this many rules, more than [`RULES_MAX`].
    TooManyRules(usize),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownInterface { id, name } => {
                write!(f, "rule {id}: there is no interface \"{name}\"")
            }
            Self::TooManyRules(count) => {
                write!(f, "the list has {count} rules: at most {RULES_MAX} are possible")
            }
        }
    }
}

impl core::error::Error for CompileError {}

impl Rules {
    /// Compiles `list`. `iface` returns the number of the interface with a given name.
    ///
    /// # Errors
    /// Returns an error if a rule names an unknown interface, or if there are too many rules.
    pub fn compile(
        list: &RuleList,
        mut iface: impl FnMut(&str) -> Option<u16>,
    ) -> Result<Self, CompileError> {
        if list.len() > RULES_MAX {
            return Err(CompileError::TooManyRules(list.len()));
        }
        let mut resolve = |id: u32, name: &Option<String>| {
            let Some(name) = name else { return Ok(None) };
            match iface(name) {
                Some(number) => Ok(Some(number)),
                None => Err(CompileError::UnknownInterface { id, name: name.clone() }),
            }
        };
        let mut rules = Vec::with_capacity(list.len());
        for rule in list.iter() {
            let iface_in = resolve(rule.id, &rule.iface_in)?;
            let iface_out = resolve(rule.id, &rule.iface_out)?;
            rules.push(Resolved { rule: rule.clone(), iface_in, iface_out });
        }
        let (mut trees_v4, mut trees_v6) = (Trees::default(), Trees::default());
        let by_hook = Hook::ALL.map(|hook| HookTrees {
            v4: trees_v4.place_of(items_of(&rules, hook, lanes::box_v4)),
            v6: trees_v6.place_of(items_of(&rules, hook, lanes::box_v6)),
            default: list.default_of(hook),
        });
        let judges = |hook: &Hook| {
            let has_rule = rules.iter().any(|rule| rule.rule.hooks.contains(*hook));
            has_rule || list.default_of(*hook) != Action::Accept
        };
        let hooks = Hook::ALL.into_iter().filter(judges).fold(Hooks::NONE, Hooks::with);
        let (trees_v4, trees_v6) = (trees_v4.trees, trees_v6.trees);
        Ok(Self { rules, by_hook, hooks, trees_v4, trees_v6 })
    }

    /// Returns the hooks that can drop a packet: those with rules or a default other than accept.
    /// Packets at other hooks need not be judged.
    #[inline]
    #[must_use]
    pub const fn hooks(&self) -> Hooks {
        self.hooks
    }

    /// Judges a packet by the matching rule with the lowest number, or by the hook's default if
    /// none matches.
    #[must_use]
    pub fn judge(&self, fields: &Fields) -> Judgement {
        let trees = &self.by_hook[fields.hook as usize];
        let flags = LeafFields { tcp_flags: fields.tcp_flags, state: fields.state };
        let found = match (fields.src, fields.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                self.trees_v4[trees.v4].find(&lanes::point_v4(src, dst, fields), flags)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                self.trees_v6[trees.v6].find(&lanes::point_v6(src, dst, fields), flags)
            }
            _ => None,
        };
        match found {
            Some(end) => Judgement { action: end.action, rule: Some(end.order), log: end.log },
            None => Judgement { action: trees.default, rule: None, log: false },
        }
    }

    /// Judges a packet by comparing it with every rule in turn. Tests and the fuzzer compare the
    /// results with those of [`judge`](Self::judge).
    #[must_use]
    pub fn judge_linear(&self, fields: &Fields) -> Judgement {
        match linear::first_match(&self.rules, fields) {
            Some(index) => {
                let rule = &self.rules[index].rule;
                let log = rule.log.is_some();
                Judgement { action: rule.action, rule: Some(index as u32), log }
            }
            None => {
                let action = self.by_hook[fields.hook as usize].default;
                Judgement { action, rule: None, log: false }
            }
        }
    }

    /// Returns how many tree nodes and rules [`judge`](Self::judge) examines for a packet.
    #[must_use]
    pub fn effort(&self, fields: &Fields) -> Effort {
        let trees = &self.by_hook[fields.hook as usize];
        let flags = LeafFields { tcp_flags: fields.tcp_flags, state: fields.state };
        match (fields.src, fields.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                self.trees_v4[trees.v4].effort(&lanes::point_v4(src, dst, fields), flags)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                self.trees_v6[trees.v6].effort(&lanes::point_v6(src, dst, fields), flags)
            }
            _ => Effort::default(),
        }
    }

    /// Returns the size of the compiled form in bytes, without the rules themselves.
    #[must_use]
    pub fn compiled_bytes(&self) -> usize {
        let v4: usize = self.trees_v4.iter().map(CutTree::bytes).sum();
        let v6: usize = self.trees_v6.iter().map(CutTree::bytes).sum();
        v4 + v6
    }

    /// Returns the rule at `index`, counted in ascending order of rule numbers, see
    /// [`Judgement::rule`].
    #[must_use]
    pub fn rule(&self, index: u32) -> Option<&Rule> {
        self.rules.get(index as usize).map(|resolved| &resolved.rule)
    }

    /// Iterates over the rules in ascending order of number.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|resolved| &resolved.rule)
    }

    /// Returns the action for packets at `hook` that match no rule.
    #[must_use]
    pub const fn default_of(&self, hook: Hook) -> Action {
        self.by_hook[hook as usize].default
    }

    /// Returns the access list from which this was compiled.
    #[must_use]
    pub fn to_list(&self) -> RuleList {
        let mut list = RuleList::new();
        for rule in self.iter() {
            list.insert(rule.clone());
        }
        for hook in Hook::ALL {
            list.set_default(Hooks::NONE.with(hook), self.default_of(hook));
        }
        list
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

/// Search trees for one IP version, each with the numbers of the rules that it contains.
struct Trees<const LANES: usize> {
    orders: Vec<Vec<u32>>,
    trees: Vec<CutTree<LANES>>,
}

impl<const LANES: usize> Default for Trees<LANES> {
    fn default() -> Self {
        Self { orders: Vec::new(), trees: Vec::new() }
    }
}

impl<const LANES: usize> Trees<LANES> {
    /// Returns the index of the search tree for these rules. Builds the tree, unless another hook
    /// has the same rules and therefore the same tree.
    fn place_of(&mut self, items: Vec<Item<LANES>>) -> usize {
        let orders: Vec<u32> = items.iter().map(|item| item.end.order).collect();
        let place = self.orders.iter().position(|known| *known == orders);
        place.unwrap_or_else(|| {
            self.orders.push(orders);
            self.trees.push(CutTree::build(&items));
            self.trees.len() - 1
        })
    }
}

/// Returns the rules that apply at a hook as ranges of lane values, for one IP version.
fn items_of<const LANES: usize>(
    rules: &[Resolved],
    hook: Hook,
    box_of: impl Fn(&Resolved) -> Option<RuleBox<LANES>>,
) -> Vec<Item<LANES>> {
    let of_hook = (0..).zip(rules).filter(|(_, rule)| rule.rule.hooks.contains(hook));
    let items = of_hook.filter_map(|(order, resolved)| {
        let rule = box_of(resolved)?;
        let (action, log) = (resolved.rule.action, resolved.rule.log.is_some());
        let RuleBox { flags_mask, flags_set, states, .. } = rule;
        Some(Item { rule, end: LeafEnd { order, flags_mask, flags_set, states, action, log } })
    });
    items.collect()
}
