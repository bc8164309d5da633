//! Compiled rule list.

use core::fmt;
use core::net::IpAddr;

use crate::fields::{Fields, Hook, Hooks};
use crate::lanes::{self, LANES_V4, LANES_V6, RuleBox};
use crate::linear::{self, Resolved};
use crate::rule::{Action, Rule, RuleList};
use crate::tree::{CutTree, Effort, Item, LeafEnd, LeafFields};

/// Maximum number of rules in a list: ten times the 100,000 for which performance is measured.
pub const RULES_MAX: usize = 1_000_000;

/// Compiled, immutable rule list. After a change, compile the list again and replace it.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Resolved>,
    by_hook: [HookTrees; Hook::ALL.len()],
    hooks: Hooks,
    trees_v4: Vec<CutTree<LANES_V4>>,
    trees_v6: Vec<CutTree<LANES_V6>>,
}

/// Indices of a hook's trees in [`Rules`]. Hooks with the same rules share trees.
#[derive(Debug, Clone, Copy)]
struct HookTrees {
    v4: usize,
    v6: usize,
    default: Action,
}

/// Result of judging a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// Action for the packet.
    pub action: Action,
    /// Index of the deciding rule, see [`Rules::rule`]; `None` for the default.
    pub rule: Option<u32>,
    /// Whether the rule requests logging, subject to its rate.
    pub log: bool,
}

/// Error of compiling a rule list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileError {
    /// A rule names an unknown interface.
    UnknownInterface {
        /// Number of the rule.
        id: u32,
        /// Name of the interface.
        name: String,
    },
    /// The list has more than [`RULES_MAX`] rules.
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
    /// Compiles `list`. `iface` resolves interface names to numbers.
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

    /// Returns the hooks with rules or a default other than accept; callers may skip the others.
    #[inline]
    #[must_use]
    pub const fn hooks(&self) -> Hooks {
        self.hooks
    }

    /// Judges a packet by the matching rule with the lowest number, or else by the default.
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

    /// Judges a packet by comparing every rule in turn; the reference for tests and fuzzing.
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

    /// Returns the work of [`judge`](Self::judge) for a packet, in steps.
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

    /// Returns the rule at this index in the order of numbers, see [`Judgement::rule`].
    #[must_use]
    pub fn rule(&self, index: u32) -> Option<&Rule> {
        self.rules.get(index as usize).map(|resolved| &resolved.rule)
    }

    /// Iterates over the rules in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|resolved| &resolved.rule)
    }

    /// Returns the default action at `hook`.
    #[must_use]
    pub const fn default_of(&self, hook: Hook) -> Action {
        self.by_hook[hook as usize].default
    }

    /// Returns the original list.
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

    /// Returns whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// Compiled trees, each with the numbers of its rules.
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
    /// Returns the index of the tree for these rules, and builds it if needed.
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

/// Returns the rules of a hook as boxes for one IP version.
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
