//! Fuzzes access lists: arbitrary texts, and lists of arbitrary rules, compared with a linear
//! search.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_filter::{
    Action, AddressMatch, Counters, Fields, FlowState, FlowStates, Hook, Hooks, Icmp, Log,
    PortMatch, PortRanges, Ports, PrefixList, RateLimit, RateUnit, Rule, RuleAction, RuleList,
    Rules, TcpFlags,
};
use towpath_wire::Prefix;

use crate::input::Input;

/// Maximum rules of a case. More would need longer inputs without creating new kinds of trees.
const RULES_MAX: u32 = 300;
/// Maximum packets of a case.
const PACKETS_MAX: usize = 200;

/// Runs one case. Panics if a judgement is wrong, or a list changes when it is formatted and
/// parsed.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let list = match input.u8() % 4 {
        0 => return judge_text(&String::from_utf8_lossy(input.rest())),
        1 => {
            let text = text_of_words(&mut input);
            judge_text(&text);
            let Ok(list) = RuleList::parse(&text) else { return };
            list
        }
        _ => list(&mut input),
    };
    let Ok(rules) = Rules::compile(&list, iface) else { return };
    let sorted: Vec<Rule> = list.iter().cloned().collect();
    let counters = [Counters::new(&rules), Counters::new(&rules)];
    let mut now_ns = 0;
    for _ in 0..PACKETS_MAX {
        let fields = packet(&mut input, &sorted);
        assert_eq!(rules.judge(&fields), rules.judge_linear(&fields), "{fields:?}\n{list}");
        now_ns += u64::from(input.u16()) << 12;
        let (mut by_tree, mut by_list) = (fields, fields);
        let [tokens, others] = counters.each_ref();
        let token = |rule, rate| tokens.take_token(rule, rate, now_ns);
        let action = rules.decide(&mut by_tree, token, |_, _| {});
        let token = |rule, rate| others.take_token(rule, rate, now_ns);
        let wanted = rules.decide_linear(&mut by_list, token, |_, _| {});
        assert_eq!((action, by_tree), (wanted, by_list), "{fields:?}\n{list}");
        if input.is_empty() {
            break;
        }
    }
}

/// Checks that a text is either refused with a position, or parses to the same list after
/// formatting.
fn judge_text(text: &str) {
    match RuleList::parse(text) {
        Ok(list) => {
            assert_eq!(RuleList::parse(&list.to_string()).as_ref(), Ok(&list), "{text:?}");
            let _ = Rules::compile(&list, iface);
        }
        Err(error) => {
            assert!(error.line >= 1 && error.line <= text.lines().count().max(1), "{text:?}");
            assert!(error.column >= 1 && !error.to_string().is_empty(), "{text:?}");
        }
    }
}

/// Words of the grammar, and values that are almost valid.
const WORDS: &[&str] = &[
    "\nacl add id",
    "\nadd id",
    "\nacl default",
    "hook",
    "proto",
    "src",
    "dst",
    "sport",
    "dport",
    "flags",
    "icmp",
    "in",
    "out",
    "action",
    "log",
    "rate",
    "burst",
    "mark",
    "\nacl set nets",
    "\nset ports",
    "none",
    "@nets",
    "@ports",
    "80,443,8000-8100",
    "10.0.0.0/8,::/0",
    "accept",
    "drop",
    "reject",
    "tcp",
    "udp",
    "icmp6",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "::/0",
    "2001:db8::/32",
    "80-90",
    "80",
    "1",
    "2",
    "3",
    "syn,!ack",
    "echo-request",
    "8/0",
    "eth0",
    "wan",
    "10/s",
    "#",
    "forward",
    "input,output",
    "é",
];

fn text_of_words(input: &mut Input<'_>) -> String {
    let mut text = String::new();
    for _ in 0..1 + usize::from(input.u8()) * 2 {
        // Write a whole rule most of the time, so that the text describes a list.
        if input.u8() < 200 {
            let id = u32::from(input.u16());
            let rule = rule(input, id);
            text.push_str(&format!("\nacl add {rule}"));
        } else {
            text.push_str(input.pick(WORDS));
        }
        text.push(' ');
        if input.is_empty() {
            break;
        }
    }
    text
}

/// Names of a set of prefixes and a set of ports.
const SETS: [&str; 2] = ["nets", "ports"];

fn list(input: &mut Input<'_>) -> RuleList {
    let mut list = RuleList::new();
    let (nets, places) = (usize::from(input.u8() % 8), usize::from(input.u8() % 8));
    let nets: Vec<_> = (0..nets).map(|n| prefix(input, n % 3 == 0)).collect();
    list.set_members(SETS[0], PrefixList::with_overlaps(nets).into());
    let places: Vec<_> = (0..places).map(|_| ports(input)).collect();
    list.set_members(SETS[1], PortRanges::with_overlaps(places).into());
    let len = u32::from(input.u16()) % RULES_MAX;
    for id in 0..len {
        list.insert(rule(input, id));
        if input.is_empty() {
            break;
        }
    }
    list.set_default(Hooks::INCOMING, input.pick(&ACTIONS));
    list
}

const ACTIONS: [Action; 3] = [Action::Accept, Action::Drop, Action::Reject];
const IFACES: [&str; 4] = ["lo", "eth0", "wan", "gone"];

fn iface(name: &str) -> Option<u16> {
    IFACES[..3].iter().position(|known| *known == name).map(|place| place as u16)
}

/// Creates any rule, including rules that no text can describe.
fn rule(input: &mut Input<'_>, id: u32) -> Rule {
    let given = input.u16();
    let is_v6 = given & 1 != 0;
    let mut rule = Rule::new(id, input.pick(&ACTIONS));
    rule.src = (given & 2 != 0).then(|| prefixes(input, is_v6));
    let is_mixed = input.one_in(64);
    rule.dst = (given & 4 != 0).then(|| prefixes(input, is_v6 != is_mixed));
    rule.protocol = (given & 8 != 0).then(|| protocol(input));
    rule.sport = (given & 48 == 48).then(|| port_match(input));
    rule.dport = (given & 64 != 0).then(|| port_match(input));
    if given & 384 == 384 {
        rule.flags = Some(TcpFlags { mask: input.u8(), set: input.u8() & input.u8() });
    }
    if given & 1536 == 1536 {
        let code = if input.bool() { Some(input.u8() & 3) } else { None };
        rule.icmp = Some(Icmp { kind: input.u8() & 9, code });
    }
    if given & 6144 == 6144 {
        rule.iface_in = Some(input.pick(&IFACES[..3]).to_owned());
    }
    if given & 24_576 == 24_576 {
        rule.iface_out = Some(input.pick(&IFACES[..3]).to_owned());
    }
    if given & 40 == 40 {
        let states = [input.pick(&FlowState::ALL), input.pick(&FlowState::ALL)];
        rule.states = Some(states.into_iter().fold(FlowStates::NONE, FlowStates::with));
    }
    if given & 32_768 != 0 {
        rule.hooks =
            [Hook::Forward, input.pick(&Hook::ALL)].into_iter().fold(Hooks::NONE, Hooks::with);
        rule.log = Some(Log { rate: input.bool().then_some(1) });
    }
    if input.one_in(8) {
        rule.mark = Some(u32::from(input.u8() & 3));
    }
    if input.one_in(8) {
        let (tokens, burst) = (1 + u32::from(input.u16()), 1 + u32::from(input.u8() & 7));
        let per = input.pick(&[RateUnit::Second, RateUnit::Minute, RateUnit::Day]);
        rule.rate = Some(RateLimit { tokens, per, burst });
    }
    if input.one_in(8) {
        rule.action = RuleAction::Mark(u32::from(input.u8() & 3));
    }
    rule
}

fn protocol(input: &mut Input<'_>) -> u8 {
    let any = input.u8();
    input.pick(&[1, 6, 6, 17, 58, any])
}

fn ports(input: &mut Input<'_>) -> Ports {
    let (first, len) = (input.u16(), input.u16() >> (input.u8() & 15));
    // A range that wraps has its last port before the first: no packet matches.
    Ports { first, last: first.wrapping_add(len) }
}

/// Returns a condition on a port: one range, several, or a set. Only a text without the set is
/// refused.
fn port_match(input: &mut Input<'_>) -> PortMatch {
    match input.u8() % 8 {
        0 => PortMatch::Set(SETS[1].to_owned()),
        1 | 2 => {
            let len = 1 + input.u8() % 4;
            PortRanges::new((0..len).map(|_| ports(input)).collect::<Vec<_>>()).into()
        }
        _ => ports(input).into(),
    }
}

/// Returns a condition on an address: one prefix, several, or a set.
fn prefixes(input: &mut Input<'_>, is_v6: bool) -> AddressMatch {
    match input.u8() % 8 {
        0 => AddressMatch::Set(SETS[0].to_owned()),
        1 | 2 => {
            let len = 1 + input.u8() % 4;
            let all = (0..len).map(|n| {
                let is_other = n > 0 && input.bool();
                prefix(input, is_v6 != is_other)
            });
            PrefixList::new(all.collect::<Vec<_>>()).into()
        }
        _ => prefix(input, is_v6).into(),
    }
}

fn prefix(input: &mut Input<'_>, is_v6: bool) -> Prefix {
    let addr = address(input, is_v6);
    let len = if is_v6 { input.u8() % 129 } else { input.u8() % 33 };
    Prefix::new(addr, len).expect("the length fits").trunc()
}

/// Returns an address with few bits set, so that prefixes overlap.
fn address(input: &mut Input<'_>, is_v6: bool) -> IpAddr {
    let (bits, place) = (input.u8(), input.u8());
    match is_v6 {
        false => IpAddr::V4(Ipv4Addr::from_bits(u32::from(bits).rotate_right(place.into()))),
        true => IpAddr::V6(Ipv6Addr::from_bits(u128::from(bits).rotate_right(place.into()))),
    }
}

/// Creates a packet at the bounds of a rule's ranges, for the conditions that the input chooses.
fn packet(input: &mut Input<'_>, rules: &[Rule]) -> Fields {
    let any = Rule::new(0, Action::Drop);
    let place = usize::from(input.u16());
    let rule = if rules.is_empty() { &any } else { &rules[place % rules.len()] };
    let near = input.u16();
    let mut one = |condition: &Option<AddressMatch>| {
        let all = condition.as_ref().map(AddressMatch::prefixes).unwrap_or_default();
        (!all.is_empty()).then(|| input.pick(all))
    };
    let (src, dst) = (one(&rule.src), one(&rule.dst));
    let version = src.or(dst).map(|prefix| prefix.addr().is_ipv6());
    let is_v6 = version.unwrap_or(near & 1 != 0);
    let mut addr = |prefix: Option<Prefix>, bit: u16| {
        let prefix = prefix.filter(|it| it.addr().is_ipv6() == is_v6 && near & bit == 0);
        let Some(prefix) = prefix else { return address(input, is_v6) };
        if near & bit << 1 == 0 { prefix.network() } else { prefix.last() }
    };
    let (src, dst) = (addr(src, 2), addr(dst, 8));
    let mut port = |condition: &Option<PortMatch>| {
        let (all, other) = (condition.as_ref().map(PortMatch::ranges), input.u16());
        let all = all.filter(|all| !all.is_empty());
        let ports = all.map(|all| all[usize::from(other) % all.len()]);
        ports.map_or(other, |ports| if near & 32 == 0 { ports.first } else { ports.last })
    };
    let ports = (port(&rule.sport), port(&rule.dport));
    let protocol = rule.protocol.unwrap_or_else(|| protocol(input));
    let flags = rule.flags.map_or(0, |flags| flags.set) | input.u8() & input.u8();
    let icmp = rule.icmp.map(|icmp| (icmp.kind, icmp.code.unwrap_or(near as u8 & 3)));
    Fields {
        hook: if near & 64 == 0 { Hook::Forward } else { input.pick(&Hook::ALL) },
        src,
        dst,
        protocol,
        ports: (near & 128 == 0).then_some(ports),
        tcp_flags: flags,
        icmp: (near & 256 == 0).then_some(icmp.unwrap_or((8, 0))),
        iface_in: rule.iface_in.as_deref().and_then(iface).filter(|_| near & 512 == 0),
        iface_out: rule.iface_out.as_deref().and_then(iface).filter(|_| near & 1024 == 0),
        state: if near & 2048 == 0 { FlowState::Established } else { input.pick(&FlowState::ALL) },
        mark: u32::from(input.u8() & 3),
    }
}
