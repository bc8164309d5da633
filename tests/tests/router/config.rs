//! `towpath config`: the configuration of a running router is shown, compared, changed, and
//! restored, while packets flow.

use std::fmt::Write as _;

use rustix::process::Signal;
use serde_json::Value;
use towpath_tests::{Namespace, Output, PATIENCE, Process, Scratch, eventually, towpath};

use super::{Lab, end, ip};

/// A router with a configuration file, and a third host behind the interface `x1`.
struct Configured {
    lab: Lab,
    third: Namespace,
    folder: Scratch,
    name: String,
    router: Process,
}

/// Ports of both hosts, and rules that change no packet between them but the source address.
const START: &str = "\
rules = ['acl add id 900 in wan proto tcp dport 22 action drop']
nat = ['masquerade out wan']

[[port]]
name = 'lan'
device = 'packet:l1'
addresses = ['10.1.0.1/24', 'fd00:1::1/64']

[[port]]
name = 'wan'
device = 'packet:w1'
addresses = ['10.2.0.1/24', 'fd00:2::1/64']
";

/// Further port, routes, rules and addresses.
const MORE: &str = "\
rules = ['acl add id 10 in dmz out lan proto udp action drop', 'acl default action accept']
nat = ['id 5 dnat in wan proto tcp dport 8080 to 10.3.0.2:80', 'id 10 masquerade out wan']
routes = ['10.9.0.0/16@10.2.0.2*2,10.3.0.2', 'blackhole 10.8.0.0/16 metric 7']

[[port]]
name = 'lan'
device = 'packet:l1'
addresses = ['10.1.0.1/24', 'fd00:1::1/64', '10.1.7.1/24']
mtu = 1400
neighbors = ['10.1.0.77@02:00:00:00:00:77']

[[port]]
name = 'wan'
device = 'packet:w1'
addresses = ['10.2.0.1/24', 'fd00:2::1/64']

[[port]]
name = 'dmz'
device = 'packet:x1'
addresses = ['10.3.0.1/24']
";

impl Configured {
    /// Starts the router; None without root.
    fn new(test: &str) -> Option<Self> {
        Self::with(test, START)
    }

    /// Starts the router with this file; None without root.
    fn with(test: &str, start: &str) -> Option<Self> {
        let (lab, third, folder) = (Lab::new(1500)?, Namespace::new(), Scratch::new());
        let (host, router) = (third.name().expect("root"), lab.router.name().expect("root"));
        ip(&format!("ip link add x0 netns {host} type veth peer name x1 netns {router}"));
        ip(&format!("ip netns exec {router} sysctl -qw net.ipv6.conf.x1.disable_ipv6=1"));
        ip(&format!("ip -n {router} link set x1 up"));
        ip(&format!("ip -n {host} addr add 10.3.0.2/24 dev x0"));
        ip(&format!("ip -n {host} link set x0 up"));
        ip(&format!("ip -n {host} route add default via 10.3.0.1"));
        let name = format!("{test}_{}", std::process::id());
        let file = folder.write("start.toml", format!("name = '{name}'\n{start}"));
        let router = lab.start_with(&["--config", &file], &[]);
        eventually("both hosts answer", || lab.pings("10.2.0.2"));
        Some(Self { lab, third, folder, name, router })
    }

    /// Runs `towpath config LINE`.
    fn config(&self, line: &str) -> Output {
        let towpath = towpath();
        let mut words = vec![towpath.as_str(), "config", "--name", &self.name];
        words.extend(line.split_whitespace());
        self.lab.left.run(&words)
    }

    fn command(&self, command: &str, line: &str) -> String {
        let towpath = towpath();
        let mut words = vec![towpath.as_str(), command, "--name", &self.name];
        words.extend(line.split_whitespace());
        self.lab.left.run(&words).ok().stdout
    }

    /// Writes a file with the router's name, and returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        self.folder.write(name, format!("name = '{}'\n{text}", self.name))
    }

    fn shown(&self) -> String {
        self.config("show").ok().stdout
    }

    /// Returns the numbers of the flows of ICMP.
    fn flows(&self) -> Vec<u64> {
        let text = self.command("conntrack", "-j list proto icmp");
        let flows: Value = serde_json::from_str(&text).expect("JSON");
        let flows = flows.as_array().expect("flows").iter();
        flows.map(|flow| flow["id"].as_u64().expect("a number")).collect()
    }

    /// Runs `towpath config LINE`, which is refused, and returns the message.
    fn refused(&self, line: &str) -> String {
        let output = self.config(line);
        assert_eq!(output.code(), 2, "{line}: {}", output.stdout);
        output.stderr
    }
}

/// Changes a router back and forth. Counts packets rather than their delays.
#[test]
fn a_router_changes_to_a_file_without_losing_a_packet() {
    let Some(it) = Configured::new("applies") else { return };
    let (start, more) = (it.shown(), it.file("more.toml", MORE));
    let earlier = it.flows().len();
    let pings = ["10.2.0.2", "fd00:2::2"]
        .map(|to| it.lab.left.spawn(&["ping", "-q", "-i", "0.004", "-c", "1000", "-W", "10", to]));
    eventually("the flow of the pings", || it.flows().len() > earlier);
    let flow = it.flows().into_iter().max().expect("a flow");
    for _ in 0..3 {
        assert!(it.config(&format!("apply {more}")).ok().stdout.contains(" settings changed"));
        assert!(it.third.run(&["ping", "-c1", "-W5", "10.1.0.2"]).success(), "the port is there");
        assert_eq!(it.config(&format!("diff {more}")).ok().stdout, "");
        assert_eq!(it.config(&format!("apply {more}")).ok().stdout, "nothing to change\n");
        it.config("rollback").ok();
        assert_eq!(it.shown(), start);
    }
    assert!(it.flows().contains(&flow), "the flow keeps its translation");
    for ping in pings {
        let told = ping.wait(PATIENCE).ok().stdout;
        assert!(told.contains("1000 received, 0% packet loss"), "{told}");
    }
    let (code, why) = (it.config("rollback").code(), it.refused("rollback"));
    assert!(code == 2 && why.contains("there is no earlier configuration"), "{why}");
    end(it.router);
}

#[test]
fn a_change_is_undone_unless_it_is_confirmed() {
    let Some(it) = Configured::new("confirms") else { return };
    let (start, more) = (it.shown(), it.file("more.toml", MORE));
    // The client is killed at any time of its request. The change is undone if it was made.
    for delay in [0, 1, 3, 10, 30] {
        let line = [&towpath(), "config", "--name", &it.name, "apply", &more, "--confirm", "1"];
        let client = it.lab.left.spawn(&line);
        std::thread::sleep(std::time::Duration::from_millis(delay));
        client.signal(Signal::KILL);
        client.wait(PATIENCE);
        let is_undone = || {
            let text = it.command("port", "-j");
            it.shown() == start && !text.contains("dmz")
        };
        eventually("the start is restored", is_undone);
    }
    // The request of the last client may still be on its way.
    eventually("a change", || it.config(&format!("apply {more} --confirm 5")).success());
    assert!(it.refused(&format!("apply {more}")).contains("waits for its confirmation"));
    eventually("the change is undone", || it.shown() == start);
    let told = "settings were not confirmed in time, and are undone";
    eventually("the undo is told", || it.router.stderr().contains(told));
    it.config(&format!("apply {more} --confirm 3000")).ok();
    it.config("confirm").ok();
    assert!(it.refused("confirm").contains("no change waits"), "it is confirmed once");
    assert_eq!(it.config(&format!("diff {more}")).code(), 0);
    it.config(&format!("apply {} --confirm 3000", it.file("start.toml", START))).ok();
    assert_eq!(it.shown(), start);
    it.config("rollback").ok();
    assert_eq!(it.config(&format!("diff {more}")).code(), 0, "rolled back before its time");
    assert!(it.refused(&format!("apply {more} --confirm 0")).contains("expected 1 to 86400"));
    end(it.router);
}

#[test]
fn a_difference_has_the_changes_of_other_commands() {
    let Some(it) = Configured::new("differs") else { return };
    assert_eq!(it.config("diff").ok().stdout, "", "the file of the start");
    it.command("ip", "route add 10.7.0.0/16 dev lo");
    assert_eq!(it.config("diff").ok().stdout, "", "lo is no port of the router");
    it.command("ip", "route add 10.9.0.0/16 nexthop via 10.2.0.2 weight 3 nexthop via 10.1.0.9");
    it.command("ip", "addr add 10.1.9.1/24 dev lan");
    it.command("ip", "link set wan mtu 1400");
    it.command("ip", "neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev lan");
    it.command("acl", "add id 20 in lan action accept");
    it.command("nat", "del 10");
    let diff = it.config("diff");
    assert_eq!(diff.code(), 1);
    let wanted = "\
+ nat = id 10 masquerade out wan
- port.lan.addresses = 10.1.9.1/24
- port.lan.neighbors = 10.1.0.9@02:00:00:00:00:09
- port.wan.mtu = 1400
- routes = 10.9.0.0/16@10.1.0.9%lan
- routes = 10.9.0.0/16@10.2.0.2%wan*3
- rules = acl add id 20 in lan action accept
";
    let (_, lines) = diff.stdout.split_once(".toml\n").expect("a headline");
    assert_eq!(lines, wanted);
    let saved = it.folder.file("saved.toml");
    it.config(&format!("save {saved}")).ok();
    assert_eq!(it.config(&format!("diff {saved}")).ok().stdout, "");
    let shown = it.config(&format!("show --file {saved}")).ok().stdout;
    assert_eq!(shown, it.shown(), "a file is shown as it is read");
    let json: Value = serde_json::from_str(&it.config("show -j").ok().stdout).expect("JSON");
    assert_eq!(json["routes"][0], "10.9.0.0/16@10.2.0.2*3,10.1.0.9");
    assert_eq!(json["port"][1]["mtu"], 1400);
    let start = it.file("start.toml", START);
    it.config(&format!("apply {start}")).ok();
    assert_eq!(it.config("diff").ok().stdout, "");
    it.command("ip", "link set wan down");
    let diff = it.config("diff").stdout;
    assert!(diff.ends_with(".toml\n- port.wan.up = false\n"), "{diff}");
    it.config("rollback").ok();
    assert!(it.shown().contains("mtu = 1400"), "{}", it.shown());
    end(it.router);
}

#[test]
fn a_file_that_cannot_be_applied_changes_nothing() {
    let Some(it) = Configured::new("refuses") else { return };
    let start = it.shown();
    let dmz = "[[port]]\nname = 'dmz'\ndevice = 'packet:x1'\naddresses = ['10.3.0.1/24']\n";
    let routes = "routes = ['blackhole 10.6.0.0/16']\n";
    let cases = [
        (format!("shards = 2\n{START}"), "`shards` cannot be changed while the router runs"),
        (format!("flows = 64\n{START}"), "`flows` cannot be changed"),
        (START.replace("packet:w1", "packet:x1"), "`port.wan.device` cannot be changed"),
        (format!("{START}[[dhcp]]\nport = 'wan'\n"), "`dhcp.wan` cannot be changed"),
        (
            format!(
                "{START}[[port]]\nname = 'v'\ndevice = 'vlan:lan.9'\naddresses = ['10.4.0.1/24']"
            ),
            "`port.v.device` cannot be changed while the router runs: VLANs, bridges",
        ),
        // The device is missing, or refuses the MTU when it is open already.
        (format!("{routes}{START}{}", dmz.replace("x1", "nil")), "`port.dmz`: "),
        (format!("{routes}{START}{dmz}mtu = 9000\n"), "`port.dmz.mtu = 9000`: MTU out of range"),
        (format!("{START}{}", dmz.replace("10.3.0.1", "10.2.0.7")), "wan and dmz are both in"),
        (format!("rout = 1\n{START}"), "unknown key `rout`"),
    ];
    for (text, wanted) in cases {
        let why = it.refused(&format!("apply {}", it.file("wrong.toml", &text)));
        assert!(why.contains(wanted), "{why}");
        assert_eq!(it.shown(), start, "{wanted}");
    }
    let many = (0..40).fold(String::from("routes = ["), |mut text, n| {
        let _ = write!(text, "'10.20.{n}.0/24@10.2.0.2', ");
        text
    });
    it.config(&format!("apply {}", it.file("many.toml", &format!("{many}]\n{START}")))).ok();
    assert!(it.command("ip", "route").contains("10.20.39.0/24 via 10.2.0.2 dev wan"));
    let run = it.config("show --file /nowhere");
    assert!(run.code() == 2 && run.stderr.contains("/nowhere: No such file"), "{}", run.stderr);
    end(it.router);
}

#[test]
fn a_change_is_undone_though_a_rule_named_a_deleted_port() {
    let Some(it) = Configured::new("stale") else { return };
    it.command("ip", "link add dmz type packet:x1,10.3.0.1/24");
    it.command("acl", "add id 30 in dmz action drop");
    it.command("ip", "link del dmz");
    assert!(it.shown().contains("id 30 in dmz"), "the rule stays");
    let start = it.file("start.toml", START);
    it.config(&format!("apply {start} --confirm 3000")).ok();
    it.command("acl", "add id 40 in lan action accept");
    it.config("rollback").ok();
    assert_eq!(it.config("diff").ok().stdout, "", "as before, without the rule of the port");
    end(it.router);
}

#[test]
fn a_dhcp_server_changes_while_it_serves() {
    let server = "[[dhcp-server]]\nport = 'lan'\npool = '10.1.0.100-10.1.0.109'\n";
    let Some(it) = Configured::with("serves", &format!("{START}{server}")) else { return };
    let links = it.lab.left.run(&["ip", "-j", "link", "show", "l0"]).ok().stdout;
    let links: Value = serde_json::from_str(&links).expect("JSON");
    let mac = links[0]["address"].as_str().expect("an Ethernet address");
    let reserve = format!("reserve = ['{mac}@10.1.0.50']\ndomain = 'home.arpa'\n");
    let file = it.file("reserve.toml", &format!("{START}{server}{reserve}"));
    let changed = it.config(&format!("apply {file}")).ok().stdout;
    assert_eq!(changed, "2 settings changed\n", "one is removed, and another one is added");
    let obtain = ["busybox", "udhcpc", "-i", "l0", "-n", "-q", "-f", "-s", "/bin/true"];
    let told = it.lab.left.run(&obtain).ok();
    let told = told.stdout + &told.stderr;
    assert!(told.contains("lease of 10.1.0.50 obtained"), "{told}");
    assert_eq!(it.config(&format!("diff {file}")).ok().stdout, "");
    let start = it.file("none.toml", START);
    assert!(it.refused(&format!("apply {start}")).contains("`dhcp-server.lan` cannot be changed"));
    let kept = it.file("kept.toml", &format!("{START}{server}leases = 'x'\n"));
    let why = it.refused(&format!("apply {kept}"));
    assert!(why.contains("`dhcp-server.lan.leases` cannot be changed"), "{why}");
    // A port that is added again has no server.
    it.command("ip", "link del lan");
    it.command("ip", "link add lan type packet:l1,10.1.0.1/24");
    assert!(!it.shown().contains("[[dhcp-server]]"), "the server has ended with its port");
    assert!(it.refused(&format!("apply {file}")).contains("`dhcp-server.lan` cannot be changed"));
    end(it.router);
}
