//! Tests that the compiled form judges like the linear search for all rules.

use towpath_filter::{Action, CompileError, Hook, Ports, Rule, RuleList, Rules, TcpFlags};

use crate::chance::{Chance, iface};

/// Compares the judgements of `packets` packets and returns how many matched a rule.
fn compare(chance: &mut Chance, list: &RuleList, packets: usize) -> usize {
    let rules = Rules::compile(list, iface).expect("the interfaces are there");
    let sorted: Vec<Rule> = list.iter().cloned().collect();
    let mut matched = 0;
    for _ in 0..packets {
        let fields = chance.packet(&sorted);
        let judged = rules.judge(&fields);
        assert_eq!(judged, rules.judge_linear(&fields), "{fields:?}\n{list}");
        matched += usize::from(judged.rule.is_some());
    }
    matched
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
        dst: Some(core::net::IpAddr::V4(address).into()),
        protocol: Some(6),
        dport: Some(Ports { first: port, last: port }),
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
        let ports = Some(Ports { first, last: first + 30_000 });
        Rule {
            sport: ports,
            dport: Some(Ports { first: 30_000 - first, last: 60_000 - first }),
            ..Rule::new(id, Action::Drop)
        }
    };
    let by_chance = |id: u32| Chance(u64::from(id)).rule(id);
    let bound = |len: usize| {
        // Both IP versions, for each hook with different rules; a node has 16 bytes, a leaf's rule
        // 72 or 136.
        let version = |rule: usize| len * (3 * rule + 8 * 16) + 64 * 16;
        version(72) + version(136)
    };
    for len in [1, 10, 3000] {
        let mut list = RuleList::new();
        (0..len).for_each(|id| drop(list.insert(wide(id))));
        let bytes = Rules::compile(&list, iface).expect("no interface").compiled_bytes();
        // Hooks without rules share two empty trees.
        assert!(bytes <= bound(len as usize) + 64, "{len} wide rules: {bytes}");
        let mut list = RuleList::new();
        (0..len).for_each(|id| drop(list.insert(by_chance(id))));
        let bytes = Rules::compile(&list, iface).expect("interfaces").compiled_bytes();
        assert!(bytes <= 4 * bound(len as usize) + 64, "{len} rules by chance: {bytes}");
    }
}

#[test]
fn rules_that_are_the_same_take_the_place_of_one() {
    let mut list = RuleList::new();
    (0..5000).for_each(|id| drop(list.insert(Rule { id, ..host_rule(3) })));
    let rules = Rules::compile(&list, iface).expect("no interface is named");
    assert!(rules.compiled_bytes() < 1000, "{}", rules.compiled_bytes());
    let mut fields = Chance(1).packet(&[host_rule(3)]);
    (fields.hook, fields.protocol, fields.ports) = (Hook::Input, 6, Some((1, 3)));
    fields.dst = host_rule(3).dst.expect("an address").addr();
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
            rule.sport = Some(Ports { first: port, last: port });
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
