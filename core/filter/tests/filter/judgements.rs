//! Tests that the compiled form judges like the linear search for all rules.

use towpath_filter::{
    Action, CompileError, Counters, Fields, Hook, MEMBERS_MAX, Ports, PrefixList, RateLimit,
    RateUnit, Rule, RuleList, Rules, SETS_MAX, SetMembers, TcpFlags,
};

use towpath_wire::Prefix;

use crate::chance::{Chance, SETS, iface};

/// Interval between two packets.
const INTERVAL_NS: u64 = 300_000;

/// Compares the judgements of `packets` packets and returns how many matched a rule.
fn compare(chance: &mut Chance, list: &RuleList, packets: usize) -> usize {
    let rules = Rules::compile(list, iface).expect("the interfaces are there");
    compare_rules(chance, list, &rules, packets)
}

fn compare_rules(chance: &mut Chance, list: &RuleList, rules: &Rules, packets: usize) -> usize {
    let sorted: Vec<Rule> = list.iter().cloned().collect();
    // Two sets of token buckets, because both searches take tokens.
    let counters = [Counters::new(rules), Counters::new(rules)];
    let mut matched = 0;
    for now_ns in (0..).step_by(INTERVAL_NS as usize).take(packets) {
        let fields = chance.packet(&sorted);
        let judged = rules.judge(&fields);
        assert_eq!(judged, rules.judge_linear(&fields), "{fields:?}\n{list}");
        matched += usize::from(judged.rule.is_some());
        let decisions = [false, true].map(|is_linear| {
            let (mut fields, mut rules_matched) = (fields, Vec::new());
            let token =
                |rule, rate| counters[usize::from(is_linear)].take_token(rule, rate, now_ns);
            let on_match = |_: &Fields, judgement: &_| rules_matched.push(*judgement);
            let action = match is_linear {
                true => rules.decide_linear(&mut fields, token, on_match),
                false => rules.decide(&mut fields, token, on_match),
            };
            (action, fields.mark, rules_matched)
        });
        assert_eq!(decisions[0], decisions[1], "{fields:?} at {now_ns}\n{list}");
    }
    matched
}

/// A change of the members of sets takes effect without compiling the rules again.
#[test]
fn sets_change_without_other_rules() {
    let mut matched = 0;
    for seed in 0..100 {
        let mut chance = Chance(seed);
        let mut list = chance.list(60);
        let before = Rules::compile(&list, iface).expect("the interfaces are there");
        for name in SETS {
            let members = chance.members(name);
            list.set_members(name, members);
        }
        let rules = before.with_sets(&list).expect("the rules are the same");
        assert_eq!(rules.to_list(), list);
        matched += compare_rules(&mut chance, &list, &rules, 100);
        let mut other = list.clone();
        other.insert(Rule::new(7, Action::Drop));
        assert!(rules.with_sets(&other).is_none());
        let mut other = list.clone();
        other.remove_set("nets");
        assert!(rules.with_sets(&other).is_none());
    }
    assert!(matched > 1000, "{matched}");
}

#[test]
fn a_member_of_a_set_is_matched_from_its_addition_on() {
    let text = "acl set bad none\nacl add id 1 src @bad action drop";
    let mut list = RuleList::parse(text).expect("a list");
    let rules = Rules::compile(&list, iface).expect("no interface is named");
    let mut fields = Chance(1).packet(&[]);
    (fields.hook, fields.src, fields.dst) =
        (Hook::Input, "2001:db8::1".parse().unwrap(), "::1".parse().unwrap());
    assert_eq!(rules.judge(&fields).rule, None);
    let members = "10.0.0.0/8,2001:db8::/32".parse().expect("members");
    list.set_members("bad", members);
    let rules = rules.with_sets(&list).expect("the rules are the same");
    assert_eq!(rules.judge(&fields).rule, Some(0));
    fields.src = "2001:db9::".parse().unwrap();
    assert_eq!(rules.judge(&fields).rule, None);
}

/// Each packet takes a token only if no earlier rule has decided about it.
#[test]
fn a_rule_with_a_rate_matches_while_tokens_are_there() {
    let text = "acl add id 1 proto udp action accept\n\
                acl add id 2 rate 100/s burst 3 action accept\n\
                acl add id 3 action drop";
    let list = RuleList::parse(text).expect("a list");
    let rules = Rules::compile(&list, iface).expect("no interface is named");
    let counters = Counters::new(&rules);
    let packet = Chance(1).packet(&[]);
    let decide = |protocol, now_ns| {
        let mut fields = Fields { hook: Hook::Input, protocol, ..packet };
        let token = |rule, rate: RateLimit| counters.take_token(rule, rate, now_ns);
        rules.decide(&mut fields, token, |_, _| {})
    };
    let at = |now_ns, protocol| (0..6).map(|_| decide(protocol, now_ns)).collect::<Vec<_>>();
    let (pass, drop) = (Action::Accept, Action::Drop);
    assert_eq!(at(0, 17), [pass; 6]);
    assert_eq!(at(0, 6), [pass, pass, pass, drop, drop, drop]);
    assert_eq!(at(9_999_999, 6), [drop; 6]);
    assert_eq!(at(10_000_000, 6), [pass, drop, drop, drop, drop, drop]);
    assert_eq!(at(1_000_000_000, 6), [pass, pass, pass, drop, drop, drop]);
}

#[test]
fn buckets_are_kept_in_a_new_list() {
    let compiled = |text: &str| {
        let list = RuleList::parse(text).expect("a list");
        Rules::compile(&list, iface).expect("no interface is named")
    };
    let before = compiled("acl add id 5 rate 1/s burst 2 action accept");
    let after = compiled("acl add id 4 action drop\nacl add id 5 rate 1/s burst 2 action accept");
    let rate = RateLimit { tokens: 1, per: RateUnit::Second, burst: 2 };
    let (old, new) = (Counters::new(&before), Counters::new(&after));
    assert!(old.take_token(0, rate, 0));
    new.copy_bucket(1, &old, 0);
    assert_eq!([0, 0].map(|now_ns| new.take_token(1, rate, now_ns)), [true, false]);
    assert!(!Counters::new(&compiled("")).take_token(0, rate, 0), "no rule has a rate");
}

#[test]
fn a_mark_is_set_and_later_rules_decide() {
    let text = "acl add id 1 proto tcp action mark 7\n\
                acl add id 2 mark 7 dport 80,443 action accept\n\
                acl add id 3 mark 7 action mark 8\nacl add id 4 mark 8 action reject\n\
                acl add id 5 mark 0 action drop";
    let list = RuleList::parse(text).expect("a list");
    let rules = Rules::compile(&list, iface).expect("no interface is named");
    let decide = |protocol, port| {
        let packet = Chance(1).packet(&[]);
        let ports = Some((1000, port));
        let mut fields = Fields { hook: Hook::Input, protocol, ports, mark: 0, ..packet };
        let mut ids = Vec::new();
        let action = rules.decide(
            &mut fields,
            |_, _| true,
            |_, judgement| ids.push(rules.rule(judgement.rule.unwrap()).unwrap().id),
        );
        (action, fields.mark, ids)
    };
    assert_eq!(decide(6, 443), (Action::Accept, 7, vec![1, 2]));
    assert_eq!(decide(6, 81), (Action::Reject, 8, vec![1, 3, 4]));
    assert_eq!(decide(17, 443), (Action::Drop, 0, vec![5]));
}

#[test]
fn judge_is_the_linear_search() {
    for seed in 0..600 {
        let mut chance = Chance(seed);
        let len = chance.below(200) as u32;
        let list = chance.list(len);
        compare(&mut chance, &list, 100);
    }
}

#[test]
fn long_lists_are_judged_as_by_a_linear_search() {
    let mut matched = 0;
    for seed in 0..4 {
        let mut chance = Chance(seed);
        let list = chance.list(3000);
        matched += compare(&mut chance, &list, 2000);
    }
    // Packets without a match would prove little.
    assert!(matched > 4000, "{matched}");
}

/// Tests the same with a hundred times more lists, in the nightly run.
mod nightly {
    use super::*;

    #[test]
    fn lists_by_many_seeds_are_judged_as_by_a_linear_search() {
        for seed in 1000..20_000 {
            let mut chance = Chance(seed);
            let len = chance.below(400) as u32;
            let list = chance.list(len);
            compare(&mut chance, &list, 200);
        }
    }
}

/// Rule for one address and port, as in many generated lists.
fn host_rule(id: u32) -> Rule {
    let address = core::net::Ipv4Addr::from_bits(0x0a00_0000 | id.wrapping_mul(2_654_435_761) >> 8);
    let port = (id % 512) as u16;
    Rule {
        dst: Some(Prefix::host(core::net::IpAddr::V4(address)).into()),
        protocol: Some(6),
        dport: Some(Ports { first: port, last: port }.into()),
        ..Rule::new(id, Action::Drop)
    }
}

#[test]
fn work_hardly_grows_with_the_list() {
    let effort_of = |len: u32| {
        let mut list = RuleList::new();
        (0..len).for_each(|id| drop(list.insert(host_rule(id))));
        let rules = Rules::compile(&list, iface).expect("no interface is named");
        let sorted: Vec<Rule> = list.iter().cloned().collect();
        let mut chance = Chance(1);
        let efforts = (0..2000).map(|_| rules.effort(&chance.packet(&sorted)));
        efforts.map(|effort| effort.nodes + effort.rules).max().expect("there are packets")
    };
    let (short, long) = (effort_of(1000), effort_of(100_000));
    assert!(long <= 2 * short && long <= 32, "{short} steps became {long}");
}

/// The number of rules bounds the memory for all lists.
#[test]
fn memory_is_bounded_for_the_worst_lists() {
    let wide = |id: u32| {
        let first = (id.wrapping_mul(7919) % 30_000) as u16;
        Rule {
            sport: Some(Ports { first, last: first + 30_000 }.into()),
            dport: Some(Ports { first: 30_000 - first, last: 60_000 - first }.into()),
            ..Rule::new(id, Action::Drop)
        }
    };
    let by_chance = |id: u32| Chance(u64::from(id)).rule(id);
    let bound = |len: usize| {
        // Both IP versions, for each hook with different rules; a node has 16 bytes, a leaf's rule
        // 76 or 140.
        let version = |rule: usize| len * (3 * rule + 8 * 16) + 64 * 16;
        version(76) + version(140)
    };
    for len in [1, 10, 3000] {
        let mut list = RuleList::new();
        (0..len).for_each(|id| drop(list.insert(wide(id))));
        let bytes = Rules::compile(&list, iface).expect("no interface").compiled_bytes();
        // Hooks without rules share two empty trees.
        assert!(bytes <= bound(len as usize) + 64, "{len} wide rules: {bytes}");
        let mut list = RuleList::new();
        SETS.iter().for_each(|name| drop(list.set_members(name, SetMembers::Empty)));
        (0..len).for_each(|id| drop(list.insert(by_chance(id))));
        let bytes = Rules::compile(&list, iface).expect("interfaces").compiled_bytes();
        assert!(bytes <= 4 * bound(len as usize) + 64, "{len} rules by chance: {bytes}");
    }
}

#[test]
fn sets_and_their_members_are_limited() {
    let error = |list: &RuleList| Rules::compile(list, iface).err();
    let host = |n: u32| Prefix::host(core::net::Ipv4Addr::from_bits(n).into());
    let mut list = RuleList::new();
    let hosts = (0..=MEMBERS_MAX as u32).map(host);
    list.set_members("bad", PrefixList::with_overlaps(hosts).into());
    assert_eq!(error(&list), Some(CompileError::TooManyMembers(MEMBERS_MAX + 1)));
    let before = Rules::compile(&RuleList::new(), iface).expect("an empty list");
    assert!(before.with_sets(&list).is_none());
    let mut list = RuleList::new();
    for n in 0..=SETS_MAX {
        list.set_members(&format!("set-{n}"), SetMembers::Empty);
    }
    assert_eq!(error(&list), Some(CompileError::TooManySets(SETS_MAX + 1)));
    list.remove_set("set-0");
    assert_eq!(error(&list), None);
}

#[test]
fn rules_that_are_the_same_take_the_place_of_one() {
    let mut list = RuleList::new();
    (0..5000).for_each(|id| drop(list.insert(Rule { id, ..host_rule(3) })));
    let rules = Rules::compile(&list, iface).expect("no interface is named");
    assert!(rules.compiled_bytes() < 1000, "{}", rules.compiled_bytes());
    let mut fields = Chance(1).packet(&[host_rule(3)]);
    (fields.hook, fields.protocol, fields.ports) = (Hook::Input, 6, Some((1, 3)));
    fields.dst = host_rule(3).dst.expect("an address").prefixes()[0].addr();
    assert_eq!(rules.judge(&fields).rule, Some(0));
}

/// A rule with flags never hides later rules, however small the region.
#[test]
fn flags_leave_packets_to_later_rules() {
    let mut list = RuleList::new();
    for port in 0..64u16 {
        for (n, protocol) in (0..).zip([6].into_iter().chain(0..16)) {
            let mut rule = Rule::new(u32::from(port) * 17 + n, Action::Accept);
            rule.protocol = Some(protocol);
            rule.sport = Some(Ports { first: port, last: port }.into());
            rule.flags = (n == 0).then_some(TcpFlags { mask: 2, set: 2 });
            list.insert(rule);
        }
    }
    let rules = Rules::compile(&list, iface).expect("no interface is named");
    let mut fields = Chance(1).packet(&[]);
    (fields.hook, fields.protocol) = (Hook::Input, 6);
    for port in 0..64u16 {
        fields.ports = Some((port, 80));
        let mut judged = |flags: u8| {
            fields.tcp_flags = flags;
            rules.judge(&fields).rule
        };
        let first = u32::from(port) * 17;
        assert_eq!((judged(2), judged(16)), (Some(first), Some(first + 7)));
    }
}

#[test]
fn an_interface_that_is_missing_is_named_with_its_rule() {
    let list = RuleList::parse("acl add id 4 in eth7 action drop").expect("a list");
    let error = Rules::compile(&list, iface).expect_err("there is no eth7");
    assert_eq!(error, CompileError::UnknownInterface { id: 4, name: "eth7".to_owned() });
    assert_eq!(error.to_string(), "rule 4: there is no interface \"eth7\"");
}

#[test]
fn hooks_without_rules_and_with_the_default_need_not_ask() {
    let rules = |text: &str| {
        let list = RuleList::parse(text).expect("a list");
        Rules::compile(&list, iface)
            .expect("no interface is named")
            .hooks()
            .iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(rules(""), []);
    assert_eq!(rules("acl add id 1 action drop"), [Hook::Input, Hook::Forward]);
    assert_eq!(rules("acl default hook output action reject"), [Hook::Output]);
}
