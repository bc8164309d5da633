//! Tests the grammar: valid texts, errors and their positions, and round trips.

use towpath_filter::{Action, Hook, Hooks, Icmp, Log, Ports, Rule, RuleList, TcpFlags};

use crate::chance::Chance;

#[test]
fn every_word_has_its_meaning() {
    let rule: Rule = "id 10 hook forward,output proto tcp src 10.0.0.0/8 sport 1024-65535 \
                      dst 192.0.2.1 dport 80 flags syn,!ack out wan action reject log rate 5/s"
        .parse()
        .expect("the rule is valid");
    let expected = Rule {
        hooks: Hooks::from(Hook::Forward).with(Hook::Output),
        protocol: Some(6),
        src: Some("10.0.0.0/8".parse().expect("a prefix")),
        sport: Some(Ports { first: 1024, last: 65_535 }),
        dst: Some("192.0.2.1/32".parse().expect("a prefix")),
        dport: Some(Ports { first: 80, last: 80 }),
        flags: Some(TcpFlags { mask: 0x12, set: 0x02 }),
        iface_out: Some("wan".to_owned()),
        log: Some(Log { rate: Some(5) }),
        ..Rule::new(10, Action::Reject)
    };
    assert_eq!(rule, expected);
    let icmp = |text: &str| text.parse::<Rule>().expect("the rule is valid").icmp;
    let echo = Some(Icmp { kind: 8, code: None });
    assert_eq!(icmp("id 1 icmp echo-request proto icmp action drop"), echo);
    let too_big = Some(Icmp { kind: 2, code: Some(0) });
    assert_eq!(icmp("id 1 proto icmp6 icmp packet-too-big/0 action drop"), too_big);
    assert_eq!(icmp("id 1 proto 58 icmp 2/0 action drop"), too_big);
}

#[test]
fn a_text_has_comments_blank_lines_and_defaults() {
    let text = "# Nothing from there.\n\nacl add id 2 in eth0 action drop # Really.\n  add id 1 \
                action accept\nacl default hook input action reject\nacl default hook output \
                action drop";
    let list = RuleList::parse(text).expect("the text is a list");
    assert_eq!(list.iter().map(|rule| rule.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(list.default_of(Hook::Input), Action::Reject);
    assert_eq!(list.default_of(Hook::Output), Action::Drop);
    assert_eq!(list.default_of(Hook::Forward), Action::Accept);
}

/// Text with one error, its position, and a part of the message.
const FAULTS: &[(&str, (usize, usize), &str)] = &[
    ("acl ad id 1 action drop", (1, 5), "unknown word \"ad\"; did you mean \"add\"?"),
    ("\nacl add id 1 soruce 10.0.0.0/8", (2, 14), "unknown word \"soruce\""),
    ("acl add id 1 dprot 80 action drop", (1, 14), "did you mean \"dport\"?"),
    ("acl add id 1 action dorp", (1, 21), "unknown action \"dorp\"; did you mean \"drop\"?"),
    ("acl add id one action drop", (1, 12), "\"one\" is not a valid number of a rule"),
    ("acl add id 4294967296 action drop", (1, 12), "expected 0 to 4294967295"),
    ("acl add id +1 action drop", (1, 12), "not a valid number"),
    ("acl add action drop", (1, 20), "\"id\" is missing"),
    ("acl add id 1", (1, 13), "\"action\" is missing"),
    ("acl add id 1 action", (1, 14), "\"action\" is without its value"),
    ("acl add id 1 id 2 action drop", (1, 17), "\"id\" is there twice"),
    ("acl add id 1 action drop log log", (1, 30), "\"log\" is there twice"),
    (
        "acl add id 1 src 10.0.0.1/8 action drop",
        (1, 18),
        "\"10.0.0.1/8\" is not a network, but a host in one",
    ),
    ("acl add id 1 src 10.0.0.0/33 action drop", (1, 18), "\"10.0.0.0/33\" is not a valid prefix"),
    ("acl add id 1 src eth0 action drop", (1, 18), "expected an address or a prefix"),
    ("acl add id 1 src 10.0.0.0/8 dst ::1 action drop", (1, 48), "different IP versions"),
    ("acl add id 1 dport 65536 action drop", (1, 20), "\"65536\" is not a valid port"),
    ("acl add id 1 dport 90-80 action drop", (1, 20), "expected the lower port first"),
    ("acl add id 1 dport 80- action drop", (1, 20), "\"80-\" is not a valid port"),
    ("acl add id 1 proto icmp dport 80 action drop", (1, 45), "does not go with protocol icmp"),
    ("acl add id 1 proto tpc action drop", (1, 20), "did you mean \"tcp\"?"),
    ("acl add id 1 proto 256 action drop", (1, 20), "or a number up to 255"),
    ("acl add id 1 proto udp flags syn action drop", (1, 45), "\"flags\" does not go with"),
    ("acl add id 1 flags sin action drop", (1, 20), "unknown flag \"sin\"; did you mean \"syn\"?"),
    ("acl add id 1 flags syn,!syn action drop", (1, 20), "flag \"syn\" is there twice"),
    ("acl add id 1 icmp 8 action drop", (1, 32), "\"icmp\" is without its protocol"),
    ("acl add id 1 proto icmp icmp eco-request action drop", (1, 53), "\"echo-request\"?"),
    ("acl add id 1 proto icmp icmp 8/256 action drop", (1, 47), "not a valid ICMP code"),
    ("acl add id 1 proto icmp src ::1 action drop", (1, 44), "expected \"proto icmp6\""),
    ("acl add id 1 proto icmp6 dst 10.0.0.1 action drop", (1, 50), "expected \"proto icmp\""),
    ("acl add id 1 hook forwrad action drop", (1, 19), "did you mean \"forward\"?"),
    ("acl add id 1 hook output in eth0 action drop", (1, 45), "\"in\" never matches"),
    ("acl add id 1 hook input out eth0 action drop", (1, 45), "\"out\" never matches"),
    ("acl add id 1 action drop rate 5/s", (1, 34), "\"rate\" is without \"log\""),
    ("acl add id 1 action drop log rate 5", (1, 35), "\"5\" is not a valid rate"),
    ("acl add id 1 action drop log rate 0/s", (1, 35), "\"0/s\" is not a valid rate"),
    ("acl add id 1 action drop\nacl add id 1 action drop", (2, 5), "also that of line 1"),
    ("acl default", (1, 12), "\"action\" is missing"),
    ("acl default action drop src ::1", (1, 29), "unknown word \"src\""),
    ("acl default action drop\nacl default hook input action drop", (2, 5), "in line 1"),
    ("acl", (1, 1), "unknown word \"acl\""),
    ("äöü id", (1, 1), "unknown word \"äöü\""),
];

#[test]
fn faults_are_named_with_their_place_and_a_remedy() {
    for (text, place, said) in FAULTS {
        let error = RuleList::parse(text).expect_err(text);
        assert_eq!((error.line, error.column), *place, "{text}: {error}");
        let message = error.to_string();
        assert!(message.contains(said), "{text}: {message}");
        assert!(!error.expected.is_empty(), "{text}");
    }
}

#[test]
fn a_long_word_is_shown_in_part() {
    let error = RuleList::parse(&"x\u{7}".repeat(100_000)).expect_err("no rule");
    assert!(error.to_string().len() < 400, "{error}");
}

#[test]
fn rules_are_the_same_after_text_and_after_words() {
    for seed in 0..200 {
        let mut chance = Chance(seed);
        let mut list = chance.list(20);
        // The grammar rejects rules that match nothing, and ICMP types without a protocol.
        let is_refused = |rule: &&Rule| rule.to_string().parse::<Rule>().is_err();
        let refused: Vec<u32> = list.iter().filter(is_refused).map(|rule| rule.id).collect();
        assert!(refused.len() < 10, "{refused:?}");
        for id in refused {
            list.remove(id);
        }
        assert_eq!(RuleList::parse(&list.to_string()).as_ref(), Ok(&list), "{list}");
        for rule in list.iter() {
            let words = rule.words();
            let words = words.iter().rev().map(|(key, value)| (*key, value.as_str()));
            assert_eq!(Rule::from_words(words).as_ref(), Ok(rule));
        }
    }
}

/// Lists in the guide, delimited by three backticks and "acl".
#[test]
fn lists_of_the_guide_are_valid() {
    let guide = include_str!("../../../../docs/acl.md");
    let lists: Vec<&str> = guide.split("```acl\n").skip(1).collect();
    assert!(lists.len() >= 3, "{}", lists.len());
    for list in lists {
        let list = list.split("```").next().expect("split has one part at least");
        let parsed = RuleList::parse(list).unwrap_or_else(|error| panic!("{error}\n{list}"));
        assert!(!parsed.is_empty());
    }
}
