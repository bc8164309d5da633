//! Tests of error messages, generated topologies, and variants.

use super::*;

const PAIR: &str = r#"
title = "t"
duration = "1s"
[topology]
kind = "pair"
rate = "10mbit"
delay = "10ms"
[[flow]]
kind = "bulk"
from = "a"
to = "b"
"#;

#[test]
fn a_pair_is_two_hosts_and_a_link() {
    let plans = read(PAIR).unwrap();
    let plan = &plans[0];
    assert_eq!((plans.len(), plan.hosts.len(), plan.links.len()), (1, 2, 1));
    assert_eq!(plan.links[0].ways[1].config.rate, Some(10_000_000));
    assert_eq!(plan.flows[0].name, "bulk1");
    assert_eq!(plan.flows[0].stop_ns, 1_000_000_000);
}

#[test]
fn a_dumbbell_pairs_the_hosts_of_both_sides() {
    let text = PAIR
        .replace("kind = \"pair\"", "kind = \"dumbbell\"\nn = 3\nback = { rate = \"1mbit\" }")
        .replace("from = \"a\"", "from = \"left*\"\ncount = 2\nstagger = \"1ms\"")
        .replace("to = \"b\"", "to = \"right*\"");
    let plan = read(&text).unwrap().remove(0);
    assert_eq!((plan.hosts.len(), plan.switches.len(), plan.links.len()), (6, 2, 7));
    let [there, back] = &plan.links[0].ways;
    assert_eq!((there.config.rate, back.config.rate), (Some(10_000_000), Some(1_000_000)));
    assert_eq!(back.config.delay_ns, there.config.delay_ns);
    let ways: Vec<(&str, &str)> = plan
        .flows
        .iter()
        .map(|flow| (&*plan.hosts[flow.from].name, &*plan.hosts[flow.to].name))
        .collect();
    let round = [("left1", "right1"), ("left2", "right2"), ("left3", "right3")];
    assert_eq!(ways, [round, round].concat());
    assert_eq!((&*plan.flows[5].name, plan.flows[5].start_ns), ("bulk1.6", 5_000_000));
}

#[test]
fn a_parking_lot_has_a_flow_over_each_hop_and_one_over_all() {
    let text = PAIR
        .replace("kind = \"pair\"", "kind = \"parking_lot\"\nn = 3\nedge_delay = \"1ms\"")
        .replace("from = \"a\"", "from = [\"left\", \"in*\"]")
        .replace("to = \"b\"", "to = [\"right\", \"out*\"]");
    let plan = read(&text).unwrap().remove(0);
    assert_eq!((plan.hosts.len(), plan.switches.len(), plan.links.len()), (8, 4, 11));
    let hops: Vec<_> = plan.links.iter().filter(|link| link.name.starts_with("hop")).collect();
    let ends: Vec<_> = hops.iter().map(|hop| hop.ends.map(|end| plan.name_of(end))).collect();
    let row = [["switch1", "switch2"], ["switch2", "switch3"], ["switch3", "switch4"]];
    assert_eq!(ends, row);
    assert!(hops.iter().all(|hop| hop.ways[1].config.rate == Some(10_000_000)));
    let edge = plan.links.iter().find(|link| link.name == "out2").expect("an edge");
    assert_eq!(edge.ends.map(|end| plan.name_of(end)), ["out2", "switch3"]);
    assert_eq!((edge.ways[0].config.rate, edge.ways[0].config.delay_ns), (None, 1_000_000));
    let ways = plan.flows.iter().map(|flow| [flow.from, flow.to]);
    let ways: Vec<_> = ways.map(|ends| ends.map(|end| &*plan.hosts[end].name)).collect();
    assert_eq!(ways, [["left", "right"], ["in1", "out1"], ["in2", "out2"], ["in3", "out3"]]);
    for n in ["0", "1001"] {
        let error = read(&text.replace("n = 3", &format!("n = {n}"))).expect_err(n);
        let wanted = format!("`n = {n}`: expected 1 to 1000");
        assert!(error.to_string().contains(&wanted), "{error}");
    }
}

#[test]
fn a_large_scenario_has_fewer_samples_unless_it_says_how_many() {
    let of = |n: usize, more: &str| {
        let text = PAIR
            .replace("kind = \"pair\"", &format!("kind = \"dumbbell\"\nn = {n}"))
            .replace("from = \"a\"", "from = \"left*\"")
            .replace("to = \"b\"", "to = \"right*\"")
            .replace("[topology]", &format!("{more}\n[topology]"));
        read(&text).unwrap().remove(0).sample_ns
    };
    assert_eq!([of(1, ""), of(100, "")], [2_500_000; 2]);
    // Each of 1000 flows has 4 values per sample, each of 4002 directions 5, together 24,010. The
    // limit of a million values allows 41 samples.
    assert_eq!(of(1000, ""), 1_000_000_000 / 41);
    // At least ten samples.
    assert_eq!(of(5000, ""), 100_000_000);
    assert_eq!(of(1000, "sample = \"1ms\""), 1_000_000);
}

#[test]
fn variants_replace_values_by_their_path() {
    let text = format!(
        r#"{PAIR}
[[variant]]
name = "short"
set = {{ "topology.qdisc" = "pfifo limit 9" }}
[[variant]]
name = "reno"
set = {{ "flow.up.congestion" = "reno", duration = "3s" }}
"#
    );
    let text = text.replace("[[flow]]", "[[flow]]\nname = \"up\"");
    let plans = read(&text).unwrap();
    assert_eq!(
        plans[0].links[0].ways[0].queue,
        crate::queue::QueueSpec::parse("pfifo limit 9").ok()
    );
    assert_eq!(plans[1].flows[0].congestion, towpath_tcp::CongestionKind::NewReno);
    assert_eq!((plans[0].duration_ns, plans[1].duration_ns), (1_000_000_000, 3_000_000_000));
}

#[test]
fn a_sweep_tries_each_value_with_each_other() {
    let sweep = "[sweep]\n\"topology.delay\" = [\"5ms\", \"50ms\"]\nduration = [\"2s\"]\n";
    let of = |text: &str| {
        let plans = read(text).unwrap();
        let delay = |plan: &Plan| plan.links[0].ways[0].config.delay_ns / 1_000_000;
        let plans = plans.iter().map(|plan| (plan.variant.clone(), delay(plan), plan.duration_ns));
        plans.collect::<Vec<_>>()
    };
    let two = 2_000_000_000;
    let wanted = [("duration 2s, delay 5ms", 5, two), ("duration 2s, delay 50ms", 50, two)];
    assert_eq!(of(&format!("{PAIR}{sweep}")), wanted.map(|(n, d, t)| (n.to_owned(), d, t)));

    let variants = "[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\n";
    let names: Vec<String> =
        of(&format!("{PAIR}{variants}{sweep}")).into_iter().map(|plan| plan.0).collect();
    assert_eq!(names[1..3], ["a, duration 2s, delay 50ms", "b, duration 2s, delay 5ms"]);

    let mistake = |sweep: &str| {
        let error = read(&format!("{PAIR}[sweep]\n{sweep}\n")).expect_err(sweep);
        assert!(error.line > Some(11), "{error}");
        error.message
    };
    assert!(mistake("duration = \"2s\"").contains("expected a list of values for `duration`"));
    assert!(mistake("duration = []").contains("expected a list of values"));
    assert!(mistake("\"topology.dely\" = [\"2s\"]").contains("unknown key `dely`"));
    let many = (1..=201).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    assert!(mistake(&format!("seed = [{many}]")).contains("more than 200 combinations"));
}

#[test]
fn mistakes_name_the_line_and_what_was_meant() {
    let cases = [
        ("delay = \"10ms\"", "dely = \"10ms\"", 7, "unknown key `dely`; did you mean `delay`?"),
        ("kind = \"bulk\"", "kind = \"bulc\"", 9, "unknown value `bulc`; did you mean `bulk`?"),
        ("rate = \"10mbit\"", "rate = \"0mbit\"", 6, "a rate above 0"),
        ("rate = \"10mbit\"", "rate = 10", 6, "a rate above 0 with its unit"),
        ("delay = \"10ms\"", "delay = \"ten\"", 7, "a time with its unit"),
        ("duration = \"1s\"", "duration = \"0s\"", 3, "expected above 0"),
        ("to = \"b\"", "to = \"c\"", 11, "unknown host or switch `c`"),
        ("to = \"b\"", "to = \"a\"", 9, "from `a` to itself"),
        ("to = \"b\"", "to = \"b\"\nresponse = \"1kB\"", 9, "`response` means nothing"),
        ("to = \"b\"", "to = \"b\"\nstart = \"2s\"", 9, "it has to start before"),
        ("kind = \"bulk\"", "kind = \"request\"", 9, "needs `response`"),
        ("delay = \"10ms\"", "qdisc = \"pfifo limt 3\"", 7, "did you mean `limit`?"),
        ("title = \"t\"", "title = \"t\"\nsample = \"1us\"", 3, "at least"),
        ("title = \"t\"", "title = \"t\"\nseed = -1", 3, "a whole number of 0 or more"),
        ("rate = \"10mbit\"", "loss = \"101%\"", 6, "a share"),
        ("delay = \"10ms\"", "lose = { first = 1 }", 7, "`count`"),
        (
            "delay = \"10ms\"",
            "loss = \"1%\"\nlose = { first = 1, count = 2 }",
            8,
            "leave `loss` and `burst` out",
        ),
        ("title = \"t\"", "title = t", 2, ""),
        ("delay = \"10ms\"", "n = 2", 4, "`n = 2`"),
    ];
    for (from, to, line, wanted) in cases {
        let text = PAIR.replacen(from, to, 1);
        assert_ne!(text, PAIR, "{from}");
        let error = read(&text).expect_err(to);
        assert_eq!(error.line, Some(line), "{to}: {error}");
        assert!(error.message.contains(wanted), "{to}: {error}");
    }
}

#[test]
fn control_characters_of_titles_and_names_are_refused() {
    let cases = [
        ("title = \"t\"", "title = \"\\u001b]0;x\"", 2, "U+001B"),
        ("title = \"t\"", "title = \"a\\nb\"", 2, "U+000A"),
        ("title = \"t\"", "title = \"t\"\ndescription = \"a\\n\\u009bb\"", 3, "U+009B"),
        ("from = \"a\"", "from = \"a\"\nname = \"\\u0007\"", 11, "U+0007"),
        ("[[flow]]", "[sweep]\n\"seed\" = [\"\\u001b\"]\n[[flow]]", 8, "U+001B"),
        ("[[flow]]", "[[variant]]\nname = \"\\u001b\"\n[[flow]]", 9, "U+001B"),
        ("to = \"b\"", "to = \"\\u001b\"", 11, "`\u{fffd}`"),
        ("to = \"b\"", "\"\\u001b\" = 1", 11, "`\u{fffd}`"),
    ];
    for (from, to, line, wanted) in cases {
        let error = read(&PAIR.replacen(from, to, 1)).expect_err(to);
        assert!(error.message.contains(wanted), "{to}: {error}");
        assert!(!error.to_string().contains(char::is_control), "{to}: {error:?}");
        assert_eq!(error.line, Some(line), "{to}: {error}");
    }
    let two = "title = \"t\"\ndescription = \"One.\\n\\n\\tTwo.\"";
    read(&PAIR.replacen("title = \"t\"", two, 1)).expect("paragraphs");
}

#[test]
fn impossible_networks_are_refused() {
    let network = |text: &str| {
        let text = format!("title = \"t\"\nduration = \"1s\"\n{text}");
        read(&text).expect_err("an impossible network").to_string()
    };
    let hosts = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[switch]]\nname = \"s\"\n";
    let link = |a: &str, b: &str| format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\n");
    assert!(network("").contains("fewer than two hosts"));
    assert!(network(hosts).contains("`a` has 0 links"));
    let joined = [link("a", "s"), link("b", "s")].concat();
    let error = network(&format!("{hosts}{joined}{}", link("a", "b")));
    assert!(error.contains("`a-b` closes a loop"), "{error}");
    let error = network(&format!("{hosts}{}", link("a", "b")));
    assert!(error.contains("`s` is not joined"), "{error}");
    let twice = hosts.replace("name = \"b\"", "name = \"a\"");
    assert!(network(&twice).contains("line 6: the name `a` is given twice"));
    let addresses = hosts
        .replace("name = \"a\"", "name = \"a\"\naddress = \"10.1.1.1\"")
        .replace("name = \"b\"", "name = \"b\"\naddress = \"10.1.1.1\"");
    let error = network(&addresses);
    assert!(error.contains("10.1.1.1 is that of `a`"), "{error}");
    assert!(
        network(&hosts.replace("name = \"b\"", "name = \"b\"\naddress = \"192.0.2.1\""))
            .contains("no IPv4 address in 10.0.0.0/8")
    );
    assert!(network(&format!("{hosts}{joined}")).contains("no flow"));
}

#[test]
fn a_variant_that_means_nothing_is_named() {
    let variant = |set: &str| {
        let text = format!("{PAIR}\n[[variant]]\nname = \"v\"\nset = {{ {set} }}\n");
        read(&text).expect_err(set).to_string()
    };
    assert!(variant("\"topology.dely\" = \"1ms\"").contains("variant `v`: unknown key `dely`"));
    assert!(variant("\"topolgy.delay\" = \"1ms\"").contains("did you mean `topology`"));
    assert!(variant("\"flow.x.count\" = 2").contains("`flow.x.count`: unknown element `x`"));
    assert!(variant("\"topology.rate\" = \"0bit\"").contains("a rate above 0"));
}

#[test]
fn a_device_has_a_ring_and_interrupts_and_limits() {
    let text = PAIR.replace(
        "delay = \"10ms\"",
        "device = { ring = 512, frames = 16, delay = \"50us\", overhead = 24, bql = true }\n\
         back = { device = { } }",
    );
    let plan = read(&text).unwrap().remove(0);
    let [there, back] = plan.links[0].ways.clone().map(|way| way.device.expect("a device"));
    let ring = there.ring;
    assert_eq!((ring.descriptors, ring.frames, ring.delay_ns), (512, 16, 50_000));
    assert_eq!((ring.rate, ring.overhead), (10_000_000, 24));
    assert!(there.limits.is_some() && back.limits.is_none());
    assert_eq!((back.ring.descriptors, back.ring.frames, back.ring.delay_ns), (256, 1, 0));
}

#[test]
fn devices_and_phases_that_cannot_be_are_named() {
    let cases = [
        ("device = { ring = 0 }", "`ring = 0`: expected 1 to 65536"),
        ("device = { frames = 300 }", "`frames = 300`: expected 1 to 256"),
        ("device = { frames = 8 }", "an interrupt for several packets needs both"),
        ("device = { delay = \"1ms\" }", "`frames = 1` and `delay = 1.00 ms`"),
        ("device = { overhead = 5000 }", "`overhead = 5000`"),
        ("device = { bq = true }", "unknown key `bq`; did you mean `bql`?"),
    ];
    for (device, wanted) in cases {
        let error = read(&PAIR.replace("delay = \"10ms\"", device)).expect_err(device);
        assert!(error.to_string().contains(wanted), "{device}: {error}");
        assert!(error.to_string().starts_with("line "), "{device}: {error}");
    }
    let bare = PAIR.replace("rate = \"10mbit\"", "device = { }");
    assert!(read(&bare).expect_err("no rate").to_string().contains("`device` on a link without"));
    let flows = [
        ("kind = \"onoff\"\non = \"1s\"\noff = \"0s\"\ntransport = \"udp\"", "needs `rate`"),
        ("kind = \"onoff\"\non = \"1s\"\noff = \"0s\"\nsize = 100", "`size` means nothing"),
        ("kind = \"onoff\"\non = \"1s\"", "needs `off`"),
        ("kind = \"bulk\"\nlengths = \"constant\"", "`lengths` means nothing"),
        ("kind = \"onoff\"\ntransport = \"sctp\"", "unknown value `sctp`"),
    ];
    for (flow, wanted) in flows {
        let error = read(&PAIR.replace("kind = \"bulk\"", flow)).expect_err(flow);
        assert!(error.to_string().contains(wanted), "{flow}: {error}");
    }
}
