//! A rule list made ready to judge packets.

use core::fmt;
use core::net::IpAddr;

use crate::fields::{Fields, Hook, Hooks};
use crate::lanes::{self, LANES_V4, LANES_V6, RuleBox};
use crate::linear::{self, Resolved};
use crate::rule::{Action, Rule, RuleList};
use crate::tree::{CutTree, Effort, Item, LeafEnd};

/// Limit on the rules of a list: ten times the 100,000 for which judgements are measured.
pub const RULES_MAX: usize = 1_000_000;

/// A rule list that judges packets. Unchangeable: a changed list is compiled and replaces it whole.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Resolved>,
    by_hook: [HookTrees; Hook::ALL.len()],
    hooks: Hooks,
    trees_v4: Vec<CutTree<LANES_V4>>,
    trees_v6: Vec<CutTree<LANES_V6>>,
}

/// The rules of a hook: places of its trees in [`Rules`]. Hooks with the same rules share theirs.
#[derive(Debug, Clone, Copy)]
struct HookTrees {
    v4: usize,
    v6: usize,
    default: Action,
}

/// The fate of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// Fate of the packet.
    pub action: Action,
    /// Place in [`Rules::rule`] of the rule that decided; `None` when the default did.
    pub rule: Option<u32>,
    /// Whether the rule wants the packet logged, its rate permitting.
    pub log: bool,
}

/// Why a rule list cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileError {
    /// A rule names an interface that does not exist.
    UnknownInterface {
        /// Number of the rule.
        id: u32,
        /// The name.
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
    /// Compiles `list`. `iface` gives the number of the interface that has a name.
    ///
    /// # Errors
    /// A rule names an interface that does not exist, or there are too many rules.
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

    /// Hooks at which anything but accepting everything may happen; others need not ask.
    #[inline]
    #[must_use]
    pub const fn hooks(&self) -> Hooks {
        self.hooks
    }

    /// The fate of a packet: that of the matching rule with the lowest number, else the default.
    #[must_use]
    pub fn judge(&self, fields: &Fields) -> Judgement {
        let trees = &self.by_hook[fields.hook as usize];
        let flags = fields.tcp_flags;
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

    /// The same by comparing every rule in turn: the meaning of a list, for tests and fuzzing.
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

    /// Work of [`judge`](Self::judge) for a packet, in steps instead of time.
    #[must_use]
    pub fn effort(&self, fields: &Fields) -> Effort {
        let trees = &self.by_hook[fields.hook as usize];
        let flags = fields.tcp_flags;
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

    /// Bytes of the compiled form, beside the rules themselves.
    #[must_use]
    pub fn compiled_bytes(&self) -> usize {
        let v4: usize = self.trees_v4.iter().map(CutTree::bytes).sum();
        let v6: usize = self.trees_v6.iter().map(CutTree::bytes).sum();
        v4 + v6
    }

    /// The rule at this place in the order of numbers, as [`Judgement::rule`] names it.
    #[must_use]
    pub fn rule(&self, index: u32) -> Option<&Rule> {
        self.rules.get(index as usize).map(|resolved| &resolved.rule)
    }

    /// All rules in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|resolved| &resolved.rule)
    }

    /// The fate of packets at `hook` that no rule matches.
    #[must_use]
    pub const fn default_of(&self, hook: Hook) -> Action {
        self.by_hook[hook as usize].default
    }

    /// The list that was compiled.
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

/// Trees that are made, each with the numbers of its rules.
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
    /// The place of the tree of these rules, which is made unless it is there.
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

/// The rules of a hook as boxes of an IP version.
fn items_of<const LANES: usize>(
    rules: &[Resolved],
    hook: Hook,
    box_of: impl Fn(&Resolved) -> Option<RuleBox<LANES>>,
) -> Vec<Item<LANES>> {
    let of_hook = (0..).zip(rules).filter(|(_, rule)| rule.rule.hooks.contains(hook));
    let items = of_hook.filter_map(|(order, resolved)| {
        let rule = box_of(resolved)?;
        let (action, log) = (resolved.rule.action, resolved.rule.log.is_some());
        let (flags_mask, flags_set) = (rule.flags_mask, rule.flags_set);
        Some(Item { rule, end: LeafEnd { order, flags_mask, flags_set, action, log } })
    });
    items.collect()
}
