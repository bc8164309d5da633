//! Control protocol of a running router: `towpath ip` and `stats` query and change it.

use serde_json::Value;
use towpath_tests::{Namespace, Output, PATIENCE, Process, Scratch, towpath};

use super::{Lab, end};

/// A router with a unique name, because other runs may exist on the machine.
pub(super) struct Named {
    pub lab: Lab,
    name: String,
    pub router: Process,
}

impl Named {
    /// Starts the router; None without root.
    pub fn new(test: &str, options: &[&str]) -> Option<Self> {
        Some(Self::start(Lab::new(1500)?, test, options))
    }

    pub fn start(lab: Lab, test: &str, options: &[&str]) -> Self {
        let name = format!("{test}_{}", std::process::id());
        let router = lab.start(&[&["--name", &name], options].concat());
        Self { lab, name, router }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `towpath COMMAND` on this router.
    pub fn command(&self, command: &str, line: &str) -> Output {
        let towpath = towpath();
        let mut words = vec![towpath.as_str(), command, "--name", &self.name];
        words.extend(line.split_whitespace());
        self.lab.left.run(&words)
    }

    pub fn ip(&self, line: &str) -> String {
        self.command("ip", line).ok().stdout
    }

    pub fn json(&self, command: &str, line: &str) -> Value {
        let text = self.command(command, line).ok().stdout;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }
}

#[test]
fn a_running_router_is_shown_and_changed() {
    let Some(it) = Named::new("changed", &["--route", "blackhole 10.6.0.0/16"]) else { return };
    let links = it.json("ip", "-j link");
    let names: Vec<_> = links.as_array().expect("links").iter().map(|l| &l["ifname"]).collect();
    assert_eq!(names, ["lo", "lan", "wan"]);
    let addresses = it.ip("-br addr");
    assert!(addresses.contains("10.1.0.1/24") && addresses.contains("fd00:2::1/64"), "{addresses}");
    let routes = it.ip("route");
    assert!(routes.contains("blackhole 10.6.0.0/16"), "{routes}");
    assert!(it.ip("neigh").contains("10.1.0.2 dev lan lladdr "), "the neighbour that pinged");
    let traffic = it.json("stats", "-j");
    assert!(traffic["interface lan"]["rx_packets"].as_u64() > Some(0), "{traffic}");
    let pid = it.router.id().to_string();
    let sockets = it.lab.left.run(&[&towpath(), "ss", &pid]).ok();
    assert_eq!(sockets.stderr, "", "a router is no fault for `towpath ss`");

    // A second address answers, and the network behind `right` is reachable once there is a route.
    it.ip("addr add 10.1.0.7/24 dev lan");
    assert!(it.lab.pings("10.1.0.7"));
    let right = it.lab.right.name().expect("root");
    super::ip(&format!("ip -n {right} addr add 10.5.0.1/32 dev w0"));
    assert!(!it.lab.pings("10.5.0.1"));
    it.ip("route add 10.5.0.0/16 via 10.2.0.2");
    assert!(it.lab.pings("10.5.0.1"));
    let refused = it.command("ip", "route add 10.5.0.0/16 via 10.2.0.2");
    assert_eq!((refused.code(), refused.stderr.as_str()), (2, "towpath: Error: File exists\n"));
    it.ip("route del 10.5.0.0/16");
    assert!(!it.lab.pings("10.5.0.1"));
    it.ip("link set wan down");
    assert!(!it.lab.pings("10.2.0.2"));
    it.ip("link set wan up");
    assert!(it.lab.pings("10.2.0.2"));

    // A list is replaced atomically while packets flow.
    let flow = it.lab.left.spawn(&["ping", "-i", "0.01", "-c", "200", "-W2", "10.2.0.2"]);
    let folder = Scratch::new();
    let good =
        folder.write("good", "addr add 10.7.0.1/24 dev wan\nroute add 10.8.0.0/16 via 10.7.0.9");
    let bad =
        folder.write("bad", "addr del 10.7.0.1/24 dev wan\nroute add 10.9.0.0/16 via 10.4.0.9");
    it.ip(&format!("--batch {good}"));
    let refused = it.command("ip", &format!("--batch {bad}"));
    assert!(refused.stderr.contains("bad:2, and nothing is changed"), "{}", refused.stderr);
    assert!(it.ip("addr").contains("10.7.0.1/24"));
    let told = flow.wait(PATIENCE).ok().stdout;
    assert!(told.contains("200 received"), "{told}");
    let Named { router, .. } = it;
    end(router);
}

#[test]
fn a_route_has_an_mtu_and_several_next_hops() {
    let Some(it) = Named::new("paths", &[]) else { return };
    let right = it.lab.right.name().expect("root");
    for address in ["10.5.0.1/32", "fd00:5::1/128"] {
        super::ip(&format!("ip -n {right} addr add {address} dev w0"));
    }
    it.ip("route add 10.5.0.0/16 via 10.2.0.2 mtu 1300");
    it.ip("-6 route add fd00:5::/64 via fd00:2::2 mtu 1290");
    for (to, mtu) in [("10.5.0.1", 1300), ("fd00:5::1", 1290)] {
        let output = it.lab.left.run(&["tracepath", "-n", to]).ok().stdout;
        assert!(output.contains(&format!("Resume: pmtu {mtu} hops 2 back 2")), "{output}");
    }
    // The second next hop has no host. After its address resolution fails, its flows use the first
    // one.
    it.ip("route replace 10.5.0.0/16 nexthop via 10.2.0.2 dev wan nexthop via 10.2.0.77");
    let shown = it.ip("route show 10.5.0.0/16");
    let hop = |via: &str| format!("\tnexthop via {via} dev wan weight 1 \n");
    let expected = format!("10.5.0.0/16 \n{}{}", hop("10.2.0.2"), hop("10.2.0.77"));
    assert_eq!(shown, expected);
    let json = it.json("ip", "-j route show 10.5.0.0/16");
    assert_eq!(json[0]["nexthops"][1]["gateway"], "10.2.0.77", "{json}");
    let answers = || it.lab.pings("10.5.0.1");
    towpath_tests::eventually("a next hop answers", answers);
    it.ip("route del 10.5.0.0/16 via 10.2.0.77");
    assert_eq!(it.ip("route show 10.5.0.0/16"), "10.5.0.0/16 via 10.2.0.2 dev wan \n");
    end(it.router);
}

#[test]
fn ports_are_shown_with_counters_of_their_devices() {
    let Some(it) = Named::new("ports", &["--port", "dmz=vlan:lan.7,10.7.0.1/24"]) else { return };
    let ports = it.json("port", "-j");
    let facts = |port: &Value| {
        let word = |key: &str| port[key].as_str().unwrap_or("none").to_owned();
        ["name", "driver", "device", "link"].map(word)
    };
    let all: Vec<_> = ports.as_array().expect("ports").iter().map(facts).collect();
    let wanted = [
        ["lan", "packet", "l1", "up"],
        ["wan", "packet", "w1", "up"],
        ["dmz", "vlan", "lan.7", "up"],
    ];
    assert_eq!(all, wanted);
    assert_eq!(ports[0]["mtu"], 1500);
    let link = it.json("ip", "-j link show lan");
    assert_eq!(ports[0]["mac"], link[0]["address"]);
    // Five more packets are counted by the stack and the device while it runs.
    assert!(it.lab.left.run(&["ping", "-c5", "-i0.01", "-W5", "10.2.0.2"]).success());
    let after = it.json("port", "-j show wan");
    let grown = |now: &Value, before: &Value| now.as_u64().zip(before.as_u64()).map(|(n, b)| n - b);
    for key in ["rx_packets", "tx_packets"] {
        assert!(grown(&after[0][key], &ports[1][key]) >= Some(5), "{key}: {after}");
    }
    for key in ["rx_frames", "tx_frames"] {
        let (now, before) = (&after[0]["counters"][key], &ports[1]["counters"][key]);
        assert!(grown(now, before) >= Some(5), "{key}: {after}");
    }
    let text = it.command("port", "wan").ok().stdout;
    assert!(text.starts_with("wan: packet w1, link up, mtu 1500, mac "), "{text}");
    assert!(text.contains("\n    rx_frames: "), "{text}");
    let stats = it.json("stats", "-j");
    assert!(stats["port"]["wan.rx_frames"].as_u64() >= after[0]["counters"]["rx_frames"].as_u64());
    let right = it.lab.right.name().expect("root");
    super::ip(&format!("ip -n {right} link set w0 down"));
    towpath_tests::eventually("the link is down", || {
        it.json("port", "-j show wan")[0]["link"] == "down"
    });
    let wrong = it.command("port", "show wam");
    assert_eq!((wrong.code(), wrong.stderr.contains("there are lan, wan, dmz")), (1, true));
    let Named { router, .. } = it;
    end(router);
}

#[test]
fn a_route_of_ipv6_has_the_metric_that_is_shown() {
    let Some(it) = Named::new("metric", &["--route", "fd00:6::/48@fd00:2::2"]) else { return };
    assert!(it.ip("-6 route").contains("fd00:6::/48 via fd00:2::2 dev wan metric 1024"));
    // A route with another metric is a separate route; one with the same metric exists already.
    let again = it.command("ip", "route add fd00:6::/48 via fd00:2::3 metric 1024");
    assert_eq!((again.code(), again.stderr.as_str()), (2, "towpath: Error: File exists\n"));
    it.ip("route del fd00:6::/48 metric 1024");
    assert!(!it.ip("-6 route").contains("fd00:6::/48"));
    let Named { router, .. } = it;
    end(router);
}

#[test]
fn sets_change_while_packets_flow() {
    let Some(it) = Named::new("sets", &[]) else { return };
    it.command("acl", "set bad none").ok();
    it.command("acl", "add id 5 hook forward src @bad action drop").ok();
    assert!(it.lab.pings("10.2.0.2"));
    it.command("acl", "set bad add 10.1.0.2,2001:db8::/32").ok();
    assert!(!it.lab.pings("10.2.0.2"));
    let list = it.json("acl", "-j show");
    let wanted = serde_json::json!([
        { "name": "bad", "prefixes": ["10.1.0.2/32", "2001:db8::/32"], "ports": [] },
    ]);
    assert_eq!((&list["sets"], &list["rules"][0]["packets"]), (&wanted, &1.into()));
    it.command("acl", "set bad del 10.1.0.2").ok();
    assert!(it.lab.pings("10.2.0.2"));
    let refused = [
        ("set bad add 80", "prefixes or ports, not both"),
        ("set bad del 10.1.0.2", "\"10.1.0.2/32\" is not in the set"),
        ("set good add 10.1.0.2", "there is no set \"good\""),
        ("set bad 80", "rule 5: the set \"bad\" has ports"),
        ("del set bad", "rule 5: there is no set \"bad\""),
        ("add id 8 dport @web action drop", "rule 8: there is no set \"web\""),
    ];
    for (line, wanted) in refused {
        let output = it.command("acl", line);
        assert_eq!(output.code(), 2, "{line}: {}", output.stderr);
        assert!(output.stderr.contains(wanted), "{line}: {}", output.stderr);
    }
    // A counter continues through changes of sets, and a list is read again with its sets.
    let shown = it.command("acl", "show").ok().stdout;
    assert!(shown.starts_with("acl set bad 2001:db8::/32\nacl add id 5 hook"), "{shown}");
    assert!(shown.contains("# 1 packets"), "{shown}");
    let folder = Scratch::new();
    let file = folder.write("shown", &shown);
    it.command("acl", "flush").ok();
    it.command("acl", &format!("load {file}")).ok();
    let again = it.command("acl", "show").ok().stdout;
    assert!(again.starts_with("acl set bad 2001:db8::/32\nacl add id 5 hook"), "{again}");
    // A set of many members needs several changes of the control protocol, and takes effect whole.
    let many: Vec<_> =
        (0..2000).map(|n| format!("10.{}.{}.0/24", 100 + n / 256, n % 256)).collect();
    it.command("acl", &format!("set bad {},10.1.0.0/24", many.join(","))).ok();
    assert!(!it.lab.pings("10.2.0.2"));
    it.command("acl", "del 5").ok();
    it.command("acl", "del set bad").ok();
    assert_eq!(it.command("acl", "show").ok().stdout, "");
    let Named { router, .. } = it;
    end(router);
}

#[test]
fn rules_are_shown_and_changed_while_packets_flow() {
    let Some(it) = Named::new("rules", &[]) else { return };
    assert_eq!(it.command("acl", "show").ok().stdout, "");
    let packets = |id: u64| {
        let list = it.json("acl", "-j show");
        let rule = list["rules"].as_array().expect("rules").iter().find(|rule| rule["id"] == id);
        rule.map(|rule| rule["packets"].as_u64().expect("a number"))
    };
    it.command("acl", "add id 10 in lan proto icmp action accept").ok();
    it.lab.left.run(&["ping", "-c5", "-i0.01", "-W5", "10.2.0.2"]).ok();
    assert_eq!(packets(10), Some(5));
    // Counters of an unchanged rule continue.
    it.command("acl", "add id 5 in lan dst 10.2.0.2 proto icmp action reject").ok();
    assert!(!it.lab.pings("10.2.0.2"));
    assert_eq!((packets(5), packets(10)), (Some(1), Some(5)));
    it.command("acl", "del 5").ok();
    assert!(it.lab.pings("10.2.0.2"));
    assert_eq!((packets(5), packets(10)), (None, Some(6)));
    it.command("acl", "default hook forward action drop").ok();
    assert!(!it.lab.pings("fd00:2::2"), "the rule is for icmp, not icmp6");
    it.command("acl", "replace id 10 in lan action accept log rate 1/s").ok();
    it.command("acl", "add id 20 in wan action accept").ok();
    assert!(it.lab.pings("fd00:2::2"));
    assert!(it.router.stderr().contains("rule 10 accept"), "{}", it.router.stderr());
    let stats = it.json("stats", "-j");
    assert!(stats["rules"]["20.accept.packets"].as_u64() >= Some(1), "{stats}");

    // A refused change has no effect, and reports the reason.
    let before = it.command("acl", "show").ok().stdout;
    let refused = [
        ("add id 20 action drop", 2, "Error: rule 20 is there"),
        ("del 30", 2, "Error: rule 30 is not there"),
        (
            "add id 30 in lam action drop",
            2,
            "rule 30: there is no interface \"lam\"; there are lo, ",
        ),
        ("add id 30 dprot 1 action drop", 1, "did you mean \"dport\"?"),
    ];
    for (line, code, wanted) in refused {
        let output = it.command("acl", line);
        assert_eq!(output.code(), code, "{line}: {}", output.stderr);
        assert!(output.stderr.contains(wanted), "{line}: {}", output.stderr);
    }
    let folder = Scratch::new();
    let bad = folder.write("bad", "acl add id 1 action drop\nacl add id 2 out nil action drop\n");
    assert_eq!(it.command("acl", &format!("load {bad}")).code(), 2);
    let after = it.command("acl", "show").ok().stdout;
    let rules = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split_once('#')?.0.trim().to_owned())).collect()
    };
    assert_eq!((rules(&after), rules(&after).len()), (rules(&before), 3));

    // Each list accepts the flow by a different rule; a mixture of both would drop it.
    let lists = [1, 2].map(|n| {
        let text = format!(
            "acl add id {n} proto icmp action accept\nacl add id 3{n} action drop\n\
             acl default action drop\n"
        );
        folder.write(&format!("list{n}"), text)
    });
    let flow = it.lab.left.spawn(&["ping", "-i", "0.002", "-c", "500", "-W2", "10.2.0.2"]);
    for list in lists.iter().cycle().take(20) {
        it.command("acl", &format!("load {list}")).ok();
    }
    let told = flow.wait(PATIENCE).ok().stdout;
    assert!(told.contains("500 received"), "{told}");
    // `load` accepts the output of `show`, and `flush` removes all rules.
    let shown = folder.write("shown", it.command("acl", "show").ok().stdout);
    it.command("acl", "flush").ok();
    assert_eq!(it.command("acl", "show").ok().stdout, "");
    assert!(it.lab.left.run(&["traceroute", "-n", "-q1", "10.2.0.2"]).success());
    it.command("acl", &format!("load {shown}")).ok();
    assert_eq!(rules(&it.command("acl", "show").ok().stdout).len(), 4);
    let Named { router, .. } = it;
    end(router);
}

#[test]
fn a_name_belongs_to_one_and_strangers_get_no_answer() {
    let Some(it) = Named::new("named", &[]) else { return };
    let towpath = towpath();
    let second = Namespace::new();
    second.shell("ip link add x0 type veth peer name x1").ok();
    let line = [&towpath, "router", "--name", &it.name, "--port", "a=packet:x0,10.9.0.1/24"];
    let output = second.run(&line);
    assert_eq!(output.code(), 125);
    assert!(output.stderr.contains("another run of this user has this name"), "{}", output.stderr);
    let scratch = Scratch::new();
    // Use a copy, because other users may not be able to access the build directory.
    let copy = scratch.file("towpath");
    std::fs::copy(&towpath, &copy).expect("room");
    second.shell(&format!("chmod 755 {copy} {}", scratch.path().display())).ok();
    let stranger = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let asked = second.shell(&format!("{stranger} {copy} ip --name {} addr", it.name));
    assert_eq!(asked.code(), 1, "{}", asked.stdout);
    // The name of a killed router can be used again.
    it.router.signal(super::Signal::KILL);
    it.router.wait(PATIENCE);
    let again = it.lab.start(&["--name", &it.name]);
    end(again);
}
