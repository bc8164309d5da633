//! Tests the grammar: valid texts, errors and their positions, and round trips.

use towpath_filter::{
    Action, AddressMatch, Hook, Hooks, Icmp, Log, PortRanges, Ports, PrefixList, RateLimit,
    RateUnit, Rule, RuleAction, RuleList, SetMembers, TcpFlags,
};

use towpath_wire::Prefix;

use crate::chance::Chance;

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

#[test]
fn every_word_has_its_meaning() {
    let rule: Rule = "id 10 hook forward,output proto tcp src 10.0.0.0/8 sport 1024-65535 \
                      dst 192.0.2.1 dport 80 flags syn,!ack out wan action reject log rate 5/s"
        .parse()
        .expect("the rule is valid");
    let expected = Rule {
        hooks: Hooks::from(Hook::Forward).with(Hook::Output),
        protocol: Some(6),
        src: Some(prefix("10.0.0.0/8").into()),
        sport: Some(Ports { first: 1024, last: 65_535 }.into()),
        dst: Some(prefix("192.0.2.1/32").into()),
        dport: Some(Ports { first: 80, last: 80 }.into()),
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
fn lists_rates_and_marks_have_their_meaning() {
    let rule: Rule = "id 1 src 10.2.0.0/16,::1,10.0.0.0/8 dport 8000-8100,80,443,81 mark 0x10 \
                      rate 10/s burst 20 action mark 7 log rate 1/s"
        .parse()
        .expect("the rule is valid");
    let prefixes = PrefixList::new([prefix("10.0.0.0/8"), prefix("::1/128")]);
    let ports = [(80, 81), (443, 443), (8000, 8100)].map(|(first, last)| Ports { first, last });
    let expected = Rule {
        src: Some(AddressMatch::List(prefixes)),
        dport: Some(PortRanges::new(ports).into()),
        mark: Some(16),
        rate: Some(RateLimit { tokens: 10, per: RateUnit::Second, burst: 20 }),
        action: RuleAction::Mark(7),
        log: Some(Log { rate: Some(1) }),
        ..Rule::new(1, Action::Drop)
    };
    assert_eq!(rule, expected);
    let text = "id 1 src 10.0.0.0/8,::1/128 dport 80-81,443,8000-8100 mark 16 rate 10/s burst 20 \
                action mark 7 log rate 1/s";
    assert_eq!(rule.to_string(), text);
    let plain: Rule = "id 1 rate 9/m action drop log".parse().expect("the rule is valid");
    assert_eq!(
        (plain.rate, plain.log),
        (Some(RateLimit { tokens: 9, per: RateUnit::Minute, burst: 5 }), Some(Log { rate: None }))
    );
    let long = (0..65).map(|port| (2 * port).to_string()).collect::<Vec<_>>().join(",");
    let error = format!("id 1 dport {long} action drop").parse::<Rule>().expect_err("too long");
    assert!(error.to_string().contains("65 values in a list"), "{error}");
}

#[test]
fn sets_have_members_of_one_kind() {
    let text = "acl set web 443,80\nacl set office 10.1.0.0/16, 2001:db8::/32\n\
                acl set office 10.0.0.0/8\nacl set empty none\n\
                acl add id 1 src @office dst @empty dport @web action drop";
    let list = RuleList::parse(text).expect("the text is a list");
    let office = ["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32"].map(prefix);
    let office = SetMembers::Prefixes(PrefixList::with_overlaps(office));
    let web =
        SetMembers::Ports(PortRanges::new([80, 443].map(|port| Ports { first: port, last: port })));
    let known = [("empty", &SetMembers::Empty), ("office", &office), ("web", &web)];
    assert_eq!(list.sets().collect::<Vec<_>>(), known);
    let written = "acl set empty none\nacl set office 10.0.0.0/8,10.1.0.0/16,2001:db8::/32\n\
                   acl set web 80,443\n\
                   acl add id 1 src @office dst @empty dport @web action drop\n";
    assert_eq!(list.to_string(), written);
    assert_eq!(RuleList::parse(written).as_ref(), Ok(&list));
}

/// A text may have a line, or a word, for each member.
#[test]
fn long_sets_may_have_many_lines_or_words() {
    const LEN: u32 = 50_000;
    let addr = |n: u32| core::net::Ipv4Addr::from_bits(0x0a00_0000 | n);
    let lines: String = (0..LEN).map(|n| format!("acl set bad {}\n", addr(n))).collect();
    let words: Vec<_> = (0..LEN).map(|n| addr(n).to_string()).collect();
    let line = format!("acl set bad {}", words.join(", "));
    let list = RuleList::parse(&lines).expect("the text is a list");
    assert_eq!(list.members("bad").map(SetMembers::len), Some(LEN as usize));
    assert_eq!(RuleList::parse(&line), Ok(list));
}

#[test]
fn members_are_added_and_removed() {
    let members = |text: &str| text.parse::<SetMembers>().expect(text);
    let mut set = members("none");
    set.add(&members("10.0.0.0/8,192.0.2.0/24")).expect("an empty set takes prefixes");
    assert!(set.add(&members("80")).is_err());
    set.remove(&members("10.0.0.0/8")).expect("a member");
    assert_eq!(set.to_string(), "192.0.2.0/24");
    let error = set.remove(&members("192.0.2.1")).expect_err("no member");
    assert_eq!(
        error.to_string(),
        "\"192.0.2.1/32\" is not in the set; expected one of its members"
    );
    set.remove(&members("192.0.2.0/24")).expect("a member");
    assert_eq!(set, SetMembers::Empty);
    set.add(&members("80-90,100")).expect("an empty set takes ports");
    set.remove(&members("100")).expect("a member");
    assert_eq!(set.to_string(), "80-90");
}

/// The removal of members undoes their addition, whether or not they overlap with other members.
#[test]
fn members_are_kept_as_they_were_added() {
    let members = |text: &str| text.parse::<SetMembers>().expect(text);
    for (before, added) in [
        ("10.1.2.3/32,192.0.2.0/24", "10.0.0.0/8"),
        ("10.0.0.0/8", "10.0.0.0/9,10.1.2.3/32,2001:db8::/32"),
        ("80", "81"),
        ("80-90", "85-95,1000"),
        ("443,8000-8100", "1-65535"),
    ] {
        let mut set = members(before);
        set.add(&members(added)).expect("members of the same kind");
        assert_eq!(set.len(), members(before).len() + members(added).len());
        set.add(&members(added)).expect("known members are left out");
        set.remove(&members(added)).expect("all are members");
        assert_eq!(set.to_string(), before);
        assert!(set.remove(&members(added)).is_err());
        assert_eq!(set.to_string(), before, "a removal that fails changes nothing");
    }
    let mut ports = members("80");
    let error = ports.remove(&members("::1")).expect_err("a member of another kind");
    assert!(error.to_string().starts_with("\"::1/128\" is not in the set"), "{error}");
    assert!(ports.add(&members("::1")).is_err());
    assert_eq!(ports.to_string(), "80");
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
    ("acl add id 1 action drop burst 5", (1, 33), "\"burst\" is without \"rate\""),
    ("acl add id 1 action drop log-rate 5/s", (1, 38), "\"log-rate\" is without \"log\""),
    ("acl add id 1 rate 0/s action drop", (1, 19), "\"0/s\" is not a valid rate"),
    ("acl add id 1 rate 10000001/s action drop", (1, 19), "expected 1/s to 10000000/s"),
    ("acl add id 1 rate 5/s burst 0 action drop", (1, 29), "\"0\" is not a valid burst"),
    ("acl add id 1 mark seven action drop", (1, 19), "\"seven\" is not a valid mark"),
    ("acl add id 1 action mark", (1, 21), "\"mark\" is without its number"),
    ("acl add id 1 action mark x", (1, 26), "\"x\" is not a valid mark"),
    ("acl add id 1 dport 80,,90 action drop", (1, 20), "\"\" is not a valid port"),
    ("acl add id 1 src @off.ce action drop", (1, 18), "not a valid name of a set"),
    ("\nacl add id 1 src @office action drop", (2, 5), "there is no set \"office\""),
    ("acl set a 80\nacl add id 1 src @a action drop", (2, 5), "the set \"a\" has ports"),
    ("acl set a ::/0\nacl add id 1 dport @a action drop", (2, 5), "expected a set of ports"),
    ("acl set a 80 10.0.0.0/8", (1, 14), "a set has prefixes or ports, not both"),
    ("acl set a 80\nacl set a ::1", (2, 5), "a set has prefixes or ports, not both"),
    ("acl set a 80,10.0.0.0/8", (1, 11), "\"10.0.0.0/8\" is not a valid port"),
    ("acl set a web", (1, 11), "\"web\" is not a member of a set"),
    ("acl set", (1, 8), "the name of the set is missing"),
    ("acl set a", (1, 10), "the members of the set are missing"),
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
