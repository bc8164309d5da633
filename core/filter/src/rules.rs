//! A rule list made ready to judge packets.

use core::fmt;

use crate::fields::{Fields, Hook, Hooks};
use crate::linear::{self, Resolved};
use crate::rule::{Action, Rule, RuleList};

/// Limit on the rules of a list: ten times the 100,000 for which judgements are measured.
pub const RULES_MAX: usize = 1_000_000;

/// A rule list that judges packets. Unchangeable: a changed list is compiled and replaces it whole.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Resolved>,
    defaults: [Action; Hook::ALL.len()],
    hooks: Hooks,
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
        let defaults = Hook::ALL.map(|hook| list.default_of(hook));
        let judges = |hook: Hook| {
            let has_rule = rules.iter().any(|rule| rule.rule.hooks.contains(hook));
            has_rule || list.default_of(hook) != Action::Accept
        };
        let hooks = Hook::ALL.into_iter().filter(|hook| judges(*hook));
        let hooks = hooks.fold(Hooks::NONE, Hooks::with);
        Ok(Self { rules, defaults, hooks })
    }

    /// Hooks at which anything but accepting everything may happen; others need not ask.
    #[inline]
    #[must_use]
    pub const fn hooks(&self) -> Hooks {
        self.hooks
    }

    /// The fate of a packet: that of the matching rule with the lowest number, else the default.
    #[inline]
    #[must_use]
    pub fn judge(&self, fields: &Fields) -> Judgement {
        match linear::first_match(&self.rules, fields) {
            Some(index) => {
                let rule = &self.rules[index].rule;
                Judgement { action: rule.action, rule: Some(index as u32), log: rule.log.is_some() }
            }
            None => {
                Judgement { action: self.defaults[fields.hook as usize], rule: None, log: false }
            }
        }
    }

    /// The rule at this place in the order of numbers, as [`Judgement::rule`] names it.
    #[must_use]
    pub fn rule(&self, index: u32) -> Option<&Rule> {
        self.rules.get(index as usize).map(|resolved| &resolved.rule)
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
