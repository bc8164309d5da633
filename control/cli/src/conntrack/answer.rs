//! Handles requests about the flows and the address translation of this process's router.

use std::collections::BTreeSet;
use towpath_conntrack::{FlowEventKind, FlowInfo, FlowRemoval, NatRule, NatRules};

use towpath_engine::{Gone, Portion, Query, QueryTarget};
use towpath_model::{FlowFilter, Nat, NatChange, NatRuleText, RequestFault, ShownFlow, Word};
use towpath_router::FlowTracker;

use crate::acl::NO_INTERFACE;
use crate::served::{ServedStack, gone};
use towpath_config::nat_id;

/// Maximum number of flows listed in one turn of the router.
const FLOWS_A_TURN: usize = 256;

/// Query for all flows of the router.
#[derive(Debug, Clone, Default)]
struct FlowsQuery {
    from: u32,
}

impl Query for FlowsQuery {
    type Part = Vec<FlowInfo>;
    type Answer = Vec<FlowInfo>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let now = shard.now();
        let Some(FlowTracker(tracker)) = shard.net().tracker_mut() else {
            return Portion::Last(Vec::new());
        };
        let (flows, next) = tracker.flows(now.0, self.from, FLOWS_A_TURN);
        match next {
            Some(next) => {
                self.from = next;
                Portion::More(flows)
            }
            None => Portion::Last(flows),
        }
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.into_iter().flatten().collect()
    }
}

/// Query that deletes the flows that match a filter.
#[derive(Debug, Clone)]
struct DeleteQuery {
    from: u32,
    filter: FlowFilter,
}

impl Query for DeleteQuery {
    type Part = usize;
    type Answer = usize;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let Some(FlowTracker(tracker)) = shard.net().tracker_mut() else {
            return Portion::Last(0);
        };
        let is_it = |flow: &FlowInfo| shown(flow).is_some_and(|it| self.filter.matches(&it));
        match tracker.delete(self.from, is_it) {
            (count, Some(next)) => {
                self.from = next;
                Portion::More(count)
            }
            (count, None) => Portion::Last(count),
        }
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.into_iter().sum()
    }
}

/// Calls `work` with the flow tracker, and returns its result. `None` if there is no tracker.
fn with_tracker<T: Send + 'static>(
    stack: &ServedStack,
    work: impl FnOnce(&mut FlowTracker) -> T + Send + 'static,
) -> Result<Option<T>, Gone> {
    stack.remote.on_first_shard(|shard| shard.net().tracker_mut().map(work))
}

/// Returns the counters of the flow tracker. `None` if there is no tracker.
pub fn counters(remote: &towpath_engine::Remote) -> Result<Option<Vec<(String, u64)>>, Gone> {
    remote
        .on_first_shard(|shard| shard.net().tracker_mut().map(|it: &mut FlowTracker| it.counters()))
}

/// Creates the flow tracker with `rules`. If there is a tracker already, replaces its rules with
/// `rules`, if given.
///
/// # Errors
/// Returns an error if this stack cannot track flows.
pub fn ensure_tracker(stack: &ServedStack, rules: Option<NatRules>) -> Result<(), RequestFault> {
    let Some(settings) = stack.tracker else {
        let why = "only a router with --shards 1 tracks flows and translates addresses";
        return Err(RequestFault::new("refused", why));
    };
    let set = move |shard: &mut dyn QueryTarget| {
        let net = shard.net();
        match (net.tracker_mut::<FlowTracker>(), rules) {
            (Some(tracker), Some(rules)) => tracker.0.set_rules(rules),
            (Some(_), None) => {}
            (None, rules) => {
                let tracker = FlowTracker::new(&settings, rules.unwrap_or_default());
                net.set_tracker(Some(Box::new(tracker)));
            }
        }
    };
    stack.remote.on_first_shard(set).map_err(gone)
}

/// Returns the rules of address translation without their counts.
pub fn nat_rules(stack: &ServedStack) -> Result<Vec<NatRule>, Gone> {
    let rules = with_tracker(stack, |tracker| tracker.rules())?.unwrap_or_default();
    Ok(rules.into_iter().map(|shown| shown.rule).collect())
}

/// Returns the rules of address translation with their counters.
pub fn shown_nat(stack: &ServedStack) -> Result<Nat, Gone> {
    let rules = with_tracker(stack, |tracker| tracker.rules())?.unwrap_or_default();
    let text = |shown: towpath_router::ShownRule| NatRuleText {
        rule: shown.rule.to_string(),
        flows: shown.flows,
    };
    Ok(Nat { rules: rules.into_iter().map(text).collect() })
}

/// Applies all changes to the rules of address translation, or none if one fails. Returns the
/// number of changes.
pub fn change_nat(stack: &ServedStack, changes: &[NatChange]) -> Result<usize, RequestFault> {
    let shown = with_tracker(stack, |tracker| tracker.rules()).map_err(gone)?.unwrap_or_default();
    let known: Vec<_> = shown.into_iter().map(|shown| shown.rule).collect();
    let mut rules = known.clone();
    for (at, change) in changes.iter().enumerate() {
        apply(&mut rules, change)
            .map_err(|why| RequestFault { at: Some(at), ..RequestFault::new("refused", why) })?;
    }
    ensure_tracker(stack, Some(compile(stack, &rules, &known)?))?;
    Ok(changes.len())
}

/// Compiles the rules again after an interface was added or deleted. Each name in a rule then
/// refers to the interface that has it now.
pub fn follow_names(stack: &ServedStack) -> Result<(), RequestFault> {
    let shown = with_tracker(stack, |tracker| tracker.rules()).map_err(gone)?.unwrap_or_default();
    if shown.is_empty() {
        return Ok(());
    }
    let rules: Vec<_> = shown.into_iter().map(|shown| shown.rule).collect();
    ensure_tracker(stack, Some(compile(stack, &rules, &rules)?))
}

/// Compiles rules of address translation. A name in `known` may be the name of a deleted interface.
/// A rule with such a name matches no packet.
fn compile(
    stack: &ServedStack,
    rules: &[NatRule],
    known: &[NatRule],
) -> Result<NatRules, RequestFault> {
    let interfaces = stack.remote.net().map_err(gone)?.interfaces;
    let names =
        |rule: &NatRule| [rule.conditions.iface_in.clone(), rule.conditions.iface_out.clone()];
    let known: BTreeSet<_> = known.iter().flat_map(names).flatten().collect();
    let number = |name: &str| match interfaces.iter().find(|link| link.name == name) {
        Some(link) => Some(link.id.0),
        None => known.contains(name).then_some(NO_INTERFACE),
    };
    NatRules::compile(rules, number).map_err(|error| {
        let names: Vec<_> = interfaces.iter().map(|link| link.name.as_str()).collect();
        RequestFault::new("refused", format!("{error}; there are {}", names.join(", ")))
    })
}

fn apply(rules: &mut Vec<NatRule>, change: &NatChange) -> Result<(), String> {
    let parse = |text: &str| text.parse::<NatRule>().map_err(|why| format!("{text:?}: {why}"));
    match change {
        NatChange::AddRule { rule } => {
            let mut rule = parse(rule)?;
            let id = nat_id(rules, &rule);
            if rules.iter().any(|known| known.conditions.id == id) {
                return Err(format!("rule {id} is there: replace it, or take another id"));
            }
            rule.conditions.id = id;
            rules.push(rule);
        }
        NatChange::ReplaceRule { rule } => {
            let rule = parse(rule)?;
            let id = rule.conditions.id;
            if id == 0 {
                return Err("the rule to replace is without its \"id\"".to_owned());
            }
            rules.retain(|known| known.conditions.id != id);
            rules.push(rule);
        }
        NatChange::DeleteRule { id } => {
            let before = rules.len();
            rules.retain(|known| known.conditions.id != *id);
            if rules.len() == before {
                return Err(format!("rule {id} is not there"));
            }
        }
        NatChange::Flush => rules.clear(),
        change => return Err(format!("{change:?} is not known to this version")),
    }
    Ok(())
}

/// Returns the flows that match a filter.
pub fn flows(stack: &ServedStack, filter: &FlowFilter) -> Result<Vec<ShownFlow>, Gone> {
    let flows = stack.remote.query(FlowsQuery::default())?;
    Ok(flows.iter().filter_map(shown).filter(|flow| filter.matches(flow)).collect())
}

/// Returns the events from number `from` on, and the number of the next event.
pub fn events(stack: &ServedStack, from: u64) -> Result<(Vec<ShownFlow>, u64), Gone> {
    let taken = with_tracker(stack, move |FlowTracker(tracker)| {
        let from = if from == 0 { tracker.next_event() } else { from };
        (tracker.events(from).copied().collect::<Vec<_>>(), tracker.next_event())
    })?;
    let (events, next) = taken.unwrap_or((Vec::new(), 1));
    let shown = events.iter().filter_map(|event| {
        let word = match event.kind {
            FlowEventKind::New => "new",
            FlowEventKind::Destroyed(FlowRemoval::Expired) => "expired",
            FlowEventKind::Destroyed(FlowRemoval::Evicted | FlowRemoval::SourceEvicted) => {
                "evicted"
            }
            FlowEventKind::Destroyed(FlowRemoval::Deleted) => "deleted",
        };
        Some(ShownFlow { event: Some(Word::known(word)), ..shown(&event.flow)? })
    });
    Ok((shown.collect(), next))
}

/// Deletes the flows that match a filter, and returns their number.
pub fn delete(stack: &ServedStack, filter: FlowFilter) -> Result<usize, Gone> {
    stack.remote.query(DeleteQuery { from: 0, filter })
}

/// Converts a flow to the type of the control protocol.
fn shown(flow: &FlowInfo) -> Option<ShownFlow> {
    let FlowInfo { id, original, reply, class, sent, received, expires_in } = flow;
    let proto = match original.protocol {
        1 => Word::known("icmp"),
        6 => Word::known("tcp"),
        17 => Word::known("udp"),
        58 => Word::known("icmp6"),
        number => Word::try_from(number.to_string()).ok()?,
    };
    Some(ShownFlow {
        id: *id,
        event: None,
        proto,
        state: Word::known(class.name()),
        src: original.src,
        sport: original.src_port,
        dst: original.dst,
        dport: original.dst_port,
        reply_src: reply.src,
        reply_sport: reply.src_port,
        reply_dst: reply.dst,
        reply_dport: reply.dst_port,
        packets: sent.packets,
        bytes: sent.bytes,
        reply_packets: received.packets,
        reply_bytes: received.bytes,
        expires_s: expires_in.as_secs(),
    })
}
