//! Tests counters of shards, their totals, and log rates.

use towpath_filter::{Count, Counters, Hook, RuleList, Rules, Totals};

use crate::chance::Chance;

fn compiled(text: &str) -> (RuleList, Rules) {
    let list = RuleList::parse(text).expect("the text is a list");
    let rules = Rules::compile(&list, |_| None).expect("no interface is named");
    (list, rules)
}

#[test]
fn packets_are_counted_by_rule_and_by_default() {
    let (list, rules) = compiled("acl add id 7 proto udp action drop\nacl default action reject");
    let counters = Counters::new(&rules);
    let mut chance = Chance(1);
    let sorted: Vec<_> = list.iter().cloned().collect();
    let mut expected = (Count::default(), Count::default());
    for bytes in 60..160 {
        let mut fields = chance.packet(&sorted);
        fields.hook = Hook::Forward;
        let judgement = rules.judge(&fields);
        counters.on_judged(Hook::Forward, &judgement, bytes);
        let count = if fields.protocol == 17 { &mut expected.0 } else { &mut expected.1 };
        count.packets += 1;
        count.bytes += bytes as u64;
    }
    assert!(expected.0.packets > 0 && expected.1.packets > 0);
    assert_eq!((counters.of_rule(0), counters.of_default(Hook::Forward)), expected);
    assert_eq!(counters.of_default(Hook::Input), Count::default());
    assert_eq!(counters.of_rule(1), Count::default(), "there is no such rule");
}

#[test]
fn totals_add_shards_and_outlive_a_list() {
    let (_, before) = compiled("acl add id 10 action accept\nacl add id 20 action drop");
    let (list, after) = compiled("acl add id 5 proto tcp action accept\nacl add id 10 action drop");
    let packet = Chance(2).packet(&[]);
    let judged = |rules: &Rules| {
        let counters = Counters::new(rules);
        let fields = towpath_filter::Fields { hook: Hook::Input, protocol: 17, ..packet };
        counters.on_judged(Hook::Input, &rules.judge(&fields), 100);
        counters
    };
    let mut totals = Totals::default();
    totals.add(&before, &judged(&before));
    totals.add(&before, &judged(&before));
    totals.add(&after, &judged(&after));
    assert_eq!(totals.of_rule(10), Count { packets: 3, bytes: 300 });
    assert_eq!(totals.of_rule(5), Count::default());
    let mut shorter = list.clone();
    shorter.remove(10);
    totals.retain(&shorter);
    assert_eq!(totals.of_rule(10), Count::default());
}

#[test]
fn a_rate_limits_log_entries_and_nothing_else() {
    let (_, rules) = compiled(
        "acl add id 1 proto tcp action drop log rate 10/s\nacl add id 2 proto udp action drop log\n\
         acl add id 3 action drop",
    );
    let counters = Counters::new(&rules);
    let packet = Chance(3).packet(&[]);
    let entries = |protocol: u8| {
        let fields = towpath_filter::Fields { hook: Hook::Input, protocol, ..packet };
        let judgement = rules.judge(&fields);
        // A packet per millisecond, for a second.
        let times = (0..1000u64).map(|n| n * 1_000_000);
        let due = times.filter(|now| counters.is_log_due(&rules, &judgement, *now)).count();
        (judgement.log, due)
    };
    assert_eq!(entries(6), (true, 10));
    assert_eq!(entries(17), (true, 1000));
    assert_eq!(entries(47), (false, 0));
}
