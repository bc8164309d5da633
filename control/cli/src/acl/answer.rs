//! Handles requests that show or change the access list of this process's stack.

use std::collections::BTreeSet;
use std::sync::Arc;

use towpath_engine::Gone;
use towpath_filter::{
    Action, CompileError, Hook, Hooks, Rule, RuleAction, RuleList, Rules, SetMembers,
    check_set_name,
};
use towpath_model::{Acl, AclChange, AclDefault, AclRule, AclSet, RequestFault, Word};

use towpath_stack::net::RuleSet;

use crate::served::{ServedStack, gone};

/// Returns the current access list with the counters of its rules.
pub fn shown(stack: &ServedStack) -> Result<Acl, Gone> {
    let Some(set) = stack.remote.rules()? else { return Ok(Acl::default()) };
    let rules = (0..).zip(set.rules().iter()).map(|(place, rule)| {
        let count = set.count_of_rule(place);
        AclRule { rule: rule.to_string(), packets: count.packets, bytes: count.bytes }
    });
    let defaults = Hook::ALL.into_iter().map(|hook| {
        let (action, count) = (set.rules().default_of(hook), set.count_of_default(hook));
        AclDefault {
            hook: Word::known(hook.name()),
            action: Word::known(action_word(action)),
            packets: count.packets,
            bytes: count.bytes,
        }
    });
    let list = set.rules().to_list();
    let sets = list
        .sets()
        .map(|(name, members)| AclSet { name: name.to_owned(), members: members.to_string() });
    Ok(Acl { sets: sets.collect(), rules: rules.collect(), defaults: defaults.collect() })
}

/// Applies all changes to the access list, or none if one fails. Returns the number of changes.
pub fn change(stack: &ServedStack, changes: &[AclChange]) -> Result<usize, RequestFault> {
    // Keep a reference to the previous list until the end, so that this thread frees it rather than
    // the stack's thread.
    let before = stack.remote.rules().map_err(gone)?;
    let mut list = before.as_ref().map(|set| set.rules().to_list()).unwrap_or_default();
    for (at, change) in changes.iter().enumerate() {
        make(&mut list, change)
            .map_err(|why| RequestFault { at: Some(at), ..RequestFault::new("refused", why) })?;
    }
    if let Some(rule) = list.iter().find(|rule| rule.log.is_some() && !stack.logs) {
        let why = format!("rule {}: a run has nobody to tell of packets; leave log out", rule.id);
        let at = place_of(changes, rule.id);
        return Err(RequestFault { at, ..RequestFault::new("refused", why) });
    }
    let has_sets = list.sets().next().is_some();
    let is_empty =
        !has_sets && list.is_empty() && Hook::ALL.iter().all(|hook| is_open(&list, *hook));
    let rules = match is_empty {
        true => None,
        false => {
            let known = || before.as_ref().map(|set| set.rules().to_list()).unwrap_or_default();
            // Keep the compiled rules if only members of sets have changed.
            let kept = before.as_ref().and_then(|set| set.rules().with_sets(&list));
            Some(kept.map_or_else(|| compile(stack, &list, &known(), changes), Ok)?)
        }
    };
    if list.iter().any(|rule| rule.states.is_some()) {
        crate::conntrack::ensure_tracker(stack, None)?;
    }
    replace(stack, before, rules)?;
    Ok(changes.len())
}

/// Compiles the rules again after an interface was added or deleted. Each name in a rule then
/// refers to the interface that has it now.
pub fn follow_names(stack: &ServedStack) -> Result<(), RequestFault> {
    let Some(before) = stack.remote.rules().map_err(gone)? else { return Ok(()) };
    let list = before.rules().to_list();
    let rules = compile(stack, &list, &list, &[])?;
    replace(stack, Some(before), Some(rules))
}

/// Replaces the rules of the stack. A new rule that equals a previous one inherits its counters.
fn replace(
    stack: &ServedStack,
    before: Option<Arc<RuleSet>>,
    rules: Option<Rules>,
) -> Result<(), RequestFault> {
    stack.remote.set_rules(rules).map_err(gone)?;
    if let (Some(before), Some(now)) = (before, stack.remote.rules().map_err(gone)?) {
        now.inherit(&before);
    }
    Ok(())
}

fn is_open(list: &RuleList, hook: Hook) -> bool {
    list.default_of(hook) == Action::Accept
}

fn make(list: &mut RuleList, change: &AclChange) -> Result<(), String> {
    let rule = |text: &str| text.parse::<Rule>().map_err(|error| format!("{text:?}: {error}"));
    match change {
        AclChange::AddRule { rule: text } => {
            let rule = rule(text)?;
            if list.rule(rule.id).is_some() {
                return Err(format!("rule {} is there: replace it, or take another id", rule.id));
            }
            list.insert(rule);
        }
        AclChange::ReplaceRule { rule: text } => drop(list.insert(rule(text)?)),
        AclChange::DeleteRule { id } => {
            list.remove(*id).ok_or_else(|| format!("rule {id} is not there"))?;
        }
        AclChange::SetDefault { hooks, action } => {
            let names: Vec<_> = hooks.iter().map(Word::as_str).collect();
            let (hooks, action) = default_of(&names, action.as_str())?;
            list.set_default(hooks, action);
        }
        AclChange::Load { text } => {
            *list = RuleList::parse(text).map_err(|error| error.to_string())?;
        }
        AclChange::SetMembers { name, members } => {
            check_set_name(name).map_err(|error| error.to_string())?;
            list.set_members(name, members_of(members)?);
        }
        AclChange::AddMembers { name, members } => {
            let known = known_set(list, name)?;
            let added = known.add(&members_of(members)?);
            added.map_err(|error| format!("the set {name}: {error}"))?;
        }
        AclChange::DeleteMembers { name, members } => {
            let known = known_set(list, name)?;
            let removed = known.remove(&members_of(members)?);
            removed.map_err(|error| format!("the set {name}: {error}"))?;
        }
        AclChange::DeleteSet { name } => {
            list.remove_set(name).ok_or_else(|| format!("there is no set {name:?}"))?;
        }
        change => return Err(format!("{change:?} is not known to this version")),
    }
    Ok(())
}

/// Parses the members of a set.
fn members_of(text: &str) -> Result<SetMembers, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn known_set<'a>(list: &'a mut RuleList, name: &str) -> Result<&'a mut SetMembers, String> {
    list.members_mut(name).ok_or_else(|| format!("there is no set {name:?}"))
}

/// Parses the hooks and the action of a default from their names.
pub fn default_of(hooks: &[&str], action: &str) -> Result<(Hooks, Action), String> {
    let mut all = Hooks::NONE;
    for name in hooks {
        let hook = Hook::ALL.into_iter().find(|hook| hook.name() == *name);
        let names = Hook::ALL.map(Hook::name).join(", ");
        all = all.with(hook.ok_or_else(|| format!("{name:?} is no hook: expected {names}"))?);
    }
    let actions = [Action::Accept, Action::Drop, Action::Reject];
    let action = actions.into_iter().find(|known| action_word(*known) == action).ok_or_else(|| {
        format!("{action:?} is not a valid action: expected accept, drop or reject")
    });
    Ok((all, action?))
}

/// Returns the index of the change that added a rule. `None` if the rule was in the list before.
fn place_of(changes: &[AclChange], id: u32) -> Option<usize> {
    let brings = |change: &AclChange| match change {
        AclChange::AddRule { rule } | AclChange::ReplaceRule { rule } => {
            rule.parse::<Rule>().is_ok_and(|rule| rule.id == id)
        }
        // If no later change added the rule, it comes from this list, because a load replaces all
        // rules.
        AclChange::Load { .. } => true,
        _ => false,
    };
    changes.iter().rposition(brings)
}

/// Interface index that no interface has.
pub const NO_INTERFACE: u16 = u16::MAX;

/// Compiles a list of rules. A name in `known` may be the name of a deleted interface. A rule with
/// such a name matches no packet.
fn compile(
    stack: &ServedStack,
    list: &RuleList,
    known: &RuleList,
    changes: &[AclChange],
) -> Result<Rules, RequestFault> {
    let interfaces = stack.remote.net().map_err(gone)?.interfaces;
    let names = |rule: &Rule| [rule.iface_in.clone(), rule.iface_out.clone()];
    let known: BTreeSet<_> = known.iter().flat_map(names).flatten().collect();
    let number = |name: &str| match interfaces.iter().find(|link| link.name == name) {
        Some(link) => Some(link.id.0),
        None => known.contains(name).then_some(NO_INTERFACE),
    };
    Rules::compile(list, number).map_err(|error| {
        let names: Vec<_> = interfaces.iter().map(|link| link.name.as_str()).collect();
        let why = match error {
            CompileError::UnknownInterface { .. } => {
                format!("{error}; there are {}", names.join(", "))
            }
            _ => error.to_string(),
        };
        let at = error.rule().and_then(|id| place_of(changes, id));
        RequestFault { at, ..RequestFault::new("refused", why) }
    })
}

/// Returns the name of an action.
pub fn action_word(action: Action) -> &'static str {
    match action {
        Action::Accept => "accept",
        Action::Drop => "drop",
        Action::Reject => "reject",
    }
}

/// Returns the action of a rule in the words of the grammar.
pub fn rule_action_word(action: RuleAction) -> String {
    match action {
        RuleAction::Final(action) => action_word(action).to_owned(),
        RuleAction::Mark(mark) => format!("mark {mark}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_a_rule_is_one_of_the_last_change_that_brought_it() {
        let rule = |id| format!("id {id} in lan action drop");
        let changes = [
            AclChange::Load { text: format!("acl add {}", rule(7)) },
            AclChange::AddRule { rule: rule(10) },
            AclChange::ReplaceRule { rule: rule(10) },
            AclChange::DeleteRule { id: 9 },
        ];
        assert_eq!(place_of(&changes, 10), Some(2));
        assert_eq!(place_of(&changes, 7), Some(0));
        assert_eq!(place_of(&changes[1..], 7), None);
    }
}
