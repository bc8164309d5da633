//! Texts that a router prints: a summary of its plan, counters, and packets that match rules with
//! logging.

use std::net::SocketAddr;

use towpath_engine::Counters;
use towpath_filter::{Fields, Hook, Rule, RuleAction};
use towpath_router::{Plan, PlannedPort};
use towpath_stack::net::{Logged, RuleSet};
use towpath_uplink::Layer;

use crate::acl::{action_word, rule_action_word};
use crate::port::OfTally;
use crate::served::ServedPort;

/// Summarizes the plan of the router in one line.
pub fn summary(plan: &Plan) -> String {
    let ports: Vec<_> = plan.ports.iter().map(PlannedPort::to_string).collect();
    let (routes, rules) = (plan.routes.len(), plan.rules.as_ref().map(|rules| rules.len()));
    let count = |n: usize, what: &str| match n {
        0 => String::new(),
        1 => format!(", 1 {what}"),
        n => format!(", {n} {what}s"),
    };
    let rules = count(rules.unwrap_or(0), "rule");
    let nat = match plan.nat.len() {
        0 => "",
        _ => ", address translation",
    };
    format!("{}{}{rules}{nat}", ports.join(", "), count(routes, "route"))
}

/// Returns the counters of the stack and the rules. Omits the engine's counters, because they are
/// about programs, which a router does not have.
pub fn layers(counters: &Counters, rules: Option<&RuleSet>) -> Vec<Layer> {
    let layer = |name: &str, list: &[(&'static str, u64)]| Layer {
        name: name.to_owned(),
        counters: list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    };
    let Counters { engine: _, sockets, net, drops } = counters;
    vec![rule_layer(rules), layer("net", net), layer("drops", drops), layer("sockets", sockets)]
}

/// Returns the numbers of packets and bytes that each rule and each default action has matched. A
/// rule is named by its number, a default action by its hook.
fn rule_layer(rules: Option<&RuleSet>) -> Layer {
    let mut counters = Vec::new();
    let mut add = |name: String, count: towpath_filter::Count| {
        counters.push((format!("{name}.packets"), count.packets));
        counters.push((format!("{name}.bytes"), count.bytes));
    };
    if let Some(set) = rules {
        for index in 0..set.rules().len() as u32 {
            let Some(rule) = set.rules().rule(index) else { continue };
            add(name_of_counter(rule), set.count_of_rule(index));
        }
        for hook in Hook::ALL {
            add(format!("default.{}", hook.name()), set.count_of_default(hook));
        }
    }
    Layer { name: "rules".to_owned(), counters }
}

/// Returns the name of a rule's counters: its number and action. The name has no blanks, because
/// counters of the control protocol are named by a [`Word`](towpath_model::Word). Counters with
/// another name are left out.
fn name_of_counter(rule: &Rule) -> String {
    let action = match rule.action {
        RuleAction::Final(action) => action_word(action),
        RuleAction::Mark(_) => "mark",
    };
    format!("{}.{action}", rule.id)
}

/// Returns the counters of the stack, the rules and the ports. The counters of a port are listed
/// under its name.
pub fn all_layers(
    counters: &Counters,
    rules: Option<&RuleSet>,
    ports: &[ServedPort],
) -> Vec<Layer> {
    let mut layers = layers(counters, rules);
    for port in ports {
        let counters = OfTally::from(&*port.tally).counters;
        layers.push(Layer { name: format!("port.{}", port.name), counters });
    }
    layers
}

/// Formats the message that the device of a port was removed.
pub fn port_gone(port: &str) -> String {
    format!(
        "the device of the port {port} was removed: the port is down, and others go on; delete \
         and add the link when it is back (towpath ip link)"
    )
}

/// Formats the message about a packet that has matched a rule with logging.
pub fn logged(logged: &Logged, name: &impl Fn(u16) -> String) -> String {
    let Logged { fields, rule, action, len } = logged;
    let port = |way: &str, number: Option<u16>| match number.filter(|n| *n > 0) {
        Some(n) => format!(" {way} {}", name(n)),
        None => String::new(),
    };
    let (into, out) = (port("in", fields.iface_in), port("out", fields.iface_out));
    let (hook, action) = (fields.hook.name(), rule_action_word(*action));
    format!("rule {rule} {action} {hook}{into}{out}: {}, {len} bytes", ends(fields))
}

/// Formats source, destination and protocol of a packet.
fn ends(fields: &Fields) -> String {
    let Fields { src, dst, protocol, ports, icmp, .. } = fields;
    let between = match (protocol, icmp) {
        (6, _) => "tcp".to_owned(),
        (17, _) => "udp".to_owned(),
        (_, Some((kind, code))) => format!("icmp type {kind} code {code}"),
        (protocol, None) => format!("protocol {protocol}"),
    };
    match ports {
        Some((sport, dport)) => {
            let (from, to) = (SocketAddr::new(*src, *sport), SocketAddr::new(*dst, *dport));
            format!("{from} > {to} {between}")
        }
        None => format!("{src} > {dst} {between}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_a_counter_whose_name_is_a_word() {
        let name = |rule: &str| name_of_counter(&rule.parse().expect("the rule is valid"));
        assert_eq!(name("id 10 action accept"), "10.accept");
        assert_eq!(name("id 20 in lan action mark 7"), "20.mark");
        for rule in ["id 10 action reject", "id 4294967295 action mark 4294967295"] {
            let counter = format!("{}.packets", name(rule));
            assert!(towpath_model::Word::try_from(counter).is_ok(), "{rule}");
        }
    }
}
