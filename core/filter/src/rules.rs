//! Compiled form of an access list.

use core::fmt;
use core::net::IpAddr;
use std::sync::Arc;

use crate::error::RuleError;
use crate::extras::{MemberTables, RuleExtras, tables_of};
use crate::fields::{Fields, Hook, Hooks};
use crate::lanes::{self, LANES_V4, LANES_V6, RuleBox};
use crate::linear::Resolved;
use crate::rule::{Action, RateLimit, Rule, RuleAction, RuleList};
use crate::sets::{MemberRanges, NamedSets};
use crate::tree::{CutTree, Effort, Item, LeafEnd, LeafFields, SpecialRules};

/// Maximum number of rules in a list: ten times the 100,000 rules of the largest benchmark.
pub const RULES_MAX: usize = 1_000_000;
/// Maximum number of prefixes and port ranges in all named sets of a list, as [`RULES_MAX`].
pub const MEMBERS_MAX: usize = 1_000_000;
/// Maximum number of named sets in a list, as many as Linux has of ipset(8).
pub const SETS_MAX: usize = 65_535;

/// Compiled access list, which cannot be changed. To change a rule, compile the new list and
/// replace the old one. A list whose sets alone differ shares the compiled rules
/// ([`with_sets`](Self::with_sets)).
#[derive(Debug)]
pub struct Rules {
    compiled: Arc<CompiledRules>,
    sets: NamedSets,
    /// Members of `sets`, in the same order.
    tables: Vec<MemberRanges>,
}

/// Rules and their search trees, without the members of named sets.
#[derive(Debug)]
struct CompiledRules {
    rules: Vec<Resolved>,
    /// Lists of prefixes and ports in the rules.
    lists: Vec<MemberRanges>,
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
    pub action: RuleAction,
    /// Index of the rule that decided, see [`Rules::rule`]. `None` if no rule matched and the
    /// default decided.
    pub rule: Option<u32>,
    /// Whether the rule asks for a log entry. The caller must still check the rule's maximum rate.
    pub log: bool,
    /// Rate of the rule. [`Rules::decide`] applies it.
    pub rate: Option<RateLimit>,
}

impl Judgement {
    fn of_default(action: Action) -> Self {
        Self { action: RuleAction::Final(action), rule: None, log: false, rate: None }
    }
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
    /// A rule refers to a set that does not exist, or that has members of the wrong kind.
    InvalidSet {
        /// Number of the rule with the error.
        id: u32,
        /// Description of the error.
        error: RuleError,
    },
    /// The list has this many rules, more than [`RULES_MAX`].
    TooManyRules(usize),
    /// The sets have this many members, more than [`MEMBERS_MAX`].
    TooManyMembers(usize),
    /// The list has this many sets, more than [`SETS_MAX`].
    TooManySets(usize),
}

impl CompileError {
    /// Returns the number of the rule with the error.
    #[must_use]
    pub const fn rule(&self) -> Option<u32> {
        match self {
            Self::UnknownInterface { id, .. } | Self::InvalidSet { id, .. } => Some(*id),
            Self::TooManyRules(_) | Self::TooManyMembers(_) | Self::TooManySets(_) => None,
        }
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownInterface { id, name } => {
                write!(f, "rule {id}: there is no interface \"{name}\"")
            }
            Self::InvalidSet { id, error } => write!(f, "rule {id}: {error}"),
            Self::TooManyMembers(count) => {
                write!(f, "the sets have {count} members: at most {MEMBERS_MAX} are possible")
            }
            Self::TooManySets(count) => {
                write!(f, "the list has {count} sets: at most {SETS_MAX} are possible")
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
    /// Returns an error if a rule names an unknown interface or set, or if there are too many
    /// rules, sets or members.
    pub fn compile(
        list: &RuleList,
        mut iface: impl FnMut(&str) -> Option<u16>,
    ) -> Result<Self, CompileError> {
        if list.len() > RULES_MAX {
            return Err(CompileError::TooManyRules(list.len()));
        }
        let sets = checked_sets(list)?;
        let names: Vec<&str> = sets.keys().map(String::as_str).collect();
        let mut resolve = |id: u32, name: &Option<String>| {
            let Some(name) = name else { return Ok(None) };
            match iface(name) {
                Some(number) => Ok(Some(number)),
                None => Err(CompileError::UnknownInterface { id, name: name.clone() }),
            }
        };
        let mut rules = Vec::with_capacity(list.len());
        let mut lists = Vec::new();
        for rule in list.iter() {
            list.check_sets(rule)
                .map_err(|error| CompileError::InvalidSet { id: rule.id, error })?;
            let iface_in = resolve(rule.id, &rule.iface_in)?;
            let iface_out = resolve(rule.id, &rule.iface_out)?;
            let extras = RuleExtras::new(rule, &names, &mut lists);
            rules.push(Resolved { rule: rule.clone(), iface_in, iface_out, extras });
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
        let compiled = CompiledRules { rules, lists, by_hook, hooks, trees_v4, trees_v6 };
        Ok(Self { compiled: Arc::new(compiled), tables: tables_of(&sets), sets })
    }

    /// Returns the same rules with the sets of `list`, without compiling them again. Returns `None`
    /// if `list` has other rules, defaults or names of sets, or invalid members.
    #[must_use]
    pub fn with_sets(&self, list: &RuleList) -> Option<Self> {
        let sets = checked_sets(list).ok()?;
        let is_same = self.len() == list.len()
            && self.iter().eq(list.iter())
            && Hook::ALL.into_iter().all(|hook| self.default_of(hook) == list.default_of(hook))
            && self.sets.keys().eq(sets.keys())
            && list.iter().all(|rule| list.check_sets(rule).is_ok());
        let compiled = || Arc::clone(&self.compiled);
        is_same.then(|| Self { compiled: compiled(), tables: tables_of(&sets), sets })
    }

    /// Returns the hooks that can drop a packet: those with rules or a default other than accept.
    /// Packets at other hooks need not be judged.
    #[inline]
    #[must_use]
    pub fn hooks(&self) -> Hooks {
        self.compiled.hooks
    }

    /// Decides about a packet, and returns its final action. Rules that set a mark change
    /// `fields.mark`. Calls `on_match` for each rule that has matched, and for the default.
    ///
    /// `take_token` takes a token from the bucket of the rule with this index and rate, and returns
    /// whether there was one ([`Counters::take_token`](crate::Counters::take_token)).
    /// A packet takes a token only if it meets all other conditions of the rule, and no earlier
    /// rule has decided.
    pub fn decide(
        &self,
        fields: &mut Fields,
        take_token: impl FnMut(u32, RateLimit) -> bool,
        on_match: impl FnMut(&Fields, &Judgement),
    ) -> Action {
        self.decide_by(Self::judge_from, fields, take_token, on_match)
    }

    /// Decides about a packet like [`decide`](Self::decide), by comparing it with every rule in
    /// turn. Tests and the fuzzer compare the results.
    pub fn decide_linear(
        &self,
        fields: &mut Fields,
        take_token: impl FnMut(u32, RateLimit) -> bool,
        on_match: impl FnMut(&Fields, &Judgement),
    ) -> Action {
        self.decide_by(Self::judge_linear_from, fields, take_token, on_match)
    }

    #[inline]
    fn decide_by(
        &self,
        judge: impl Fn(&Self, &Fields, u32) -> Judgement,
        fields: &mut Fields,
        mut take_token: impl FnMut(u32, RateLimit) -> bool,
        mut on_match: impl FnMut(&Fields, &Judgement),
    ) -> Action {
        let mut first = 0;
        loop {
            let judgement = judge(self, fields, first);
            if let (Some(index), Some(rate)) = (judgement.rule, judgement.rate)
                && !take_token(index, rate)
            {
                first = index + 1;
                continue;
            }
            on_match(fields, &judgement);
            match judgement.action {
                RuleAction::Final(action) => return action,
                RuleAction::Mark(mark) => fields.mark = mark,
            }
            first = judgement.rule.map_or(u32::MAX, |index| index + 1);
        }
    }

    /// Returns the matching rule with the lowest number, or the hook's default if none matches.
    /// Ignores rates. [`decide`](Self::decide) also applies the rules after one that sets a mark.
    #[must_use]
    pub fn judge(&self, fields: &Fields) -> Judgement {
        self.judge_from(fields, 0)
    }

    /// Judges a packet by the rules from index `first` on. Inlined, because a call takes a
    /// twentieth of the time of a short list.
    #[inline(always)]
    fn judge_from(&self, fields: &Fields, first: u32) -> Judgement {
        let compiled = &*self.compiled;
        let trees = &compiled.by_hook[fields.hook as usize];
        let leaf = LeafFields { tcp_flags: fields.tcp_flags, state: fields.state, first };
        let special = self.special(fields);
        let found = match (fields.src, fields.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let point = lanes::point_v4(src, dst, fields);
                compiled.trees_v4[trees.v4].find(&point, leaf, &special)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let point = lanes::point_v6(src, dst, fields);
                compiled.trees_v6[trees.v6].find(&point, leaf, &special)
            }
            _ => None,
        };
        match found {
            None => Judgement::of_default(trees.default),
            Some(end) if end.is_special => self.judgement(end.order),
            Some(end) => {
                let (action, rule) = (RuleAction::Final(end.action), Some(end.order));
                Judgement { action, rule, log: end.log, rate: None }
            }
        }
    }

    /// Returns the judgement of the rule at `index`.
    fn judgement(&self, index: u32) -> Judgement {
        let Rule { action, log, rate, .. } = &self.compiled.rules[index as usize].rule;
        Judgement { action: *action, rule: Some(index), log: log.is_some(), rate: *rate }
    }

    fn special<'a>(&'a self, fields: &'a Fields) -> SpecialPacket<'a> {
        SpecialPacket { rules: self, fields }
    }

    /// Judges a packet by comparing it with every rule in turn. Tests and the fuzzer compare the
    /// results with those of [`judge`](Self::judge).
    #[must_use]
    pub fn judge_linear(&self, fields: &Fields) -> Judgement {
        self.judge_linear_from(fields, 0)
    }

    fn judge_linear_from(&self, fields: &Fields, first: u32) -> Judgement {
        let all = (0..).zip(&self.compiled.rules).skip(first as usize);
        let mut matching = all.filter(|(_, rule)| rule.matches(fields, &self.sets));
        match matching.next() {
            Some((index, _)) => self.judgement(index),
            None => Judgement::of_default(self.default_of(fields.hook)),
        }
    }

    /// Returns how many tree nodes and rules [`judge`](Self::judge) examines for a packet.
    #[must_use]
    pub fn effort(&self, fields: &Fields) -> Effort {
        let compiled = &*self.compiled;
        let trees = &compiled.by_hook[fields.hook as usize];
        let leaf = LeafFields { tcp_flags: fields.tcp_flags, state: fields.state, first: 0 };
        let special = self.special(fields);
        match (fields.src, fields.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let point = lanes::point_v4(src, dst, fields);
                compiled.trees_v4[trees.v4].effort(&point, leaf, &special)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let point = lanes::point_v6(src, dst, fields);
                compiled.trees_v6[trees.v6].effort(&point, leaf, &special)
            }
            _ => Effort::default(),
        }
    }

    /// Returns the size of the compiled form in bytes, without the rules themselves.
    #[must_use]
    pub fn compiled_bytes(&self) -> usize {
        let v4: usize = self.compiled.trees_v4.iter().map(CutTree::bytes).sum();
        let v6: usize = self.compiled.trees_v6.iter().map(CutTree::bytes).sum();
        v4 + v6
    }

    /// Returns the rule at `index`, counted in ascending order of rule numbers, see
    /// [`Judgement::rule`].
    #[must_use]
    pub fn rule(&self, index: u32) -> Option<&Rule> {
        self.compiled.rules.get(index as usize).map(|resolved| &resolved.rule)
    }

    /// Iterates over the rules in ascending order of number.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.compiled.rules.iter().map(|resolved| &resolved.rule)
    }

    /// Returns the action for packets at `hook` that match no rule.
    #[must_use]
    pub fn default_of(&self, hook: Hook) -> Action {
        self.compiled.by_hook[hook as usize].default
    }

    /// Returns whether a rule has a rate, so that [`Counters`](crate::Counters) need token buckets.
    #[must_use]
    pub fn has_rates(&self) -> bool {
        self.iter().any(|rule| rule.rate.is_some())
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
        for (name, members) in &self.sets {
            list.set_members(name, members.clone());
        }
        list
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.compiled.rules.len()
    }

    /// Returns whether the list has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.compiled.rules.is_empty()
    }
}

/// A packet that is compared with special rules.
struct SpecialPacket<'a> {
    rules: &'a Rules,
    fields: &'a Fields,
}

impl SpecialRules for SpecialPacket<'_> {
    fn accept(&self, order: u32) -> bool {
        let Rules { compiled, tables, .. } = self.rules;
        let tables = MemberTables { lists: &compiled.lists, sets: tables };
        let extras = compiled.rules.get(order as usize).and_then(|rule| rule.extras.as_ref());
        extras.is_none_or(|extras| extras.accept(self.fields, tables))
    }
}

/// Returns the sets of a list, unless there are too many sets or members.
fn checked_sets(list: &RuleList) -> Result<NamedSets, CompileError> {
    let count = list.sets().count();
    if count > SETS_MAX {
        return Err(CompileError::TooManySets(count));
    }
    let count: usize = list.sets().map(|(_, members)| members.len()).sum();
    if count > MEMBERS_MAX {
        return Err(CompileError::TooManyMembers(count));
    }
    Ok(list.sets().map(|(name, members)| (name.to_owned(), members.clone())).collect())
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
        let (action, is_special) = match resolved.rule.action {
            RuleAction::Final(action) => (action, resolved.extras.is_some()),
            RuleAction::Mark(_) => (Action::Accept, true),
        };
        let log = resolved.rule.log.is_some();
        let RuleBox { flags_mask, flags_set, states, .. } = rule;
        let end = LeafEnd { order, flags_mask, flags_set, states, action, log, is_special };
        Some(Item { rule, end })
    });
    items.collect()
}
