//! The DNS forwarder of `towpath router`, between Debian's dig and dnsmasq. Skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use rustix::process::Signal;
use towpath_tests::{Namespace, PATIENCE, Process, Scratch, eventually, towpath};

/// A host, a router and a provider, one behind the other. The provider's kernel has 192.0.2.1, and
/// its dnsmasq the zone `example`.
struct Lab {
    host: Namespace,
    router: Namespace,
    provider: Namespace,
    folder: Scratch,
}

fn ip(words: &str) {
    let words: Vec<_> = words.split_whitespace().collect();
    Process::spawn(&words).wait(PATIENCE).ok();
}

impl Lab {
    /// Creates the namespaces; None without root.
    fn new() -> Option<Self> {
        let [host, router, provider] = [(); 3].map(|()| Namespace::new());
        let names = (host.name(), router.name(), provider.name());
        let (Some(left), Some(middle), Some(right)) = names else {
            eprintln!("left out: needs root");
            return None;
        };
        ip(&format!("ip link add e0 netns {left} type veth peer name lan0 netns {middle}"));
        ip(&format!("ip link add e0 netns {right} type veth peer name wan0 netns {middle}"));
        ip(&format!("ip -n {left} addr add 10.1.0.2/24 dev e0"));
        ip(&format!("ip -n {left} addr add fd00:1::2/64 dev e0 nodad"));
        ip(&format!("ip -n {left} link set e0 up"));
        ip(&format!("ip -n {right} addr add 192.0.2.1/24 dev e0"));
        ip(&format!("ip -n {right} link set e0 up"));
        for dev in ["lan0", "wan0"] {
            ip(&format!("ip netns exec {middle} sysctl -qw net.ipv6.conf.{dev}.disable_ipv6=1"));
            ip(&format!("ip -n {middle} link set {dev} up"));
        }
        Some(Self { host, router, provider, folder: Scratch::new() })
    }

    /// Starts dnsmasq at the provider, with authority for `example`.
    fn dnsmasq(&self, options: &[&str]) -> Process {
        let text = "x".repeat(200);
        let big = format!("--txt-record=big.example{}", format!(",{text}").repeat(9));
        let fixed = [
            "dnsmasq",
            "--keep-in-foreground",
            "--log-facility=-",
            "--log-queries=extra",
            "--conf-file=/dev/null",
            "--user=root",
            "--pid-file=",
            "--no-resolv",
            "--no-hosts",
            "--bind-interfaces",
            "--interface=e0",
            "--auth-server=ns.example,e0",
            "--auth-zone=example",
            "--auth-ttl=300",
            "--host-record=www.example,192.0.2.80,2001:db8::80",
            "--cname=alias.example,www.example",
            big.as_str(),
        ];
        let dnsmasq = self.provider.spawn(&[&fixed[..], options].concat());
        eventually("dnsmasq", || {
            let line = ["dig", "+tries=1", "+timeout=1", "@192.0.2.1", "www.example"];
            self.provider.run(&line).stdout.contains("192.0.2.80")
        });
        dnsmasq
    }

    /// Returns the name of the router, which is unique on the machine.
    fn name(&self) -> String {
        self.router.name().expect("root").replace('-', "_")
    }

    fn start(&self, wan: &str, dns: &str, options: &[&str]) -> Process {
        let (towpath, name) = (towpath(), self.name());
        let fixed = [
            towpath.as_str(),
            "router",
            "--name",
            name.as_str(),
            "--port",
            "lan=packet:lan0,10.1.0.1/24,fd00:1::1/64",
            "--port",
            wan,
            "--dns",
            dns,
        ];
        let router = self.router.spawn(&[&fixed[..], options].concat());
        eventually("the router", || router.stderr().contains("Ctrl-C ends"));
        router
    }

    /// Returns the output of dig on the host.
    fn dig(&self, words: &str) -> String {
        let mut line = vec!["dig", "+tries=1", "+timeout=5"];
        line.extend(words.split_whitespace());
        self.host.run(&line).stdout
    }

    /// Returns the output of `towpath dns` for the router.
    fn dns(&self, command: &str) -> String {
        let (towpath, name) = (towpath(), self.name());
        self.router.run(&[&towpath, "dns", "--name", &name, "-j", command]).ok().stdout
    }

    fn counter(&self, name: &str) -> u64 {
        let counters: serde_json::Value = serde_json::from_str(&self.dns("show")).expect("JSON");
        counters[name].as_u64().unwrap_or_else(|| panic!("{name} in {counters}"))
    }
}

fn end(router: Process) {
    router.signal(Signal::TERM);
    router.wait(PATIENCE).ok();
}

const WAN: &str = "wan=packet:wan0,192.0.2.2/24";

#[test]
fn answers_come_from_the_cache() {
    let Some(lab) = Lab::new() else { return };
    let dnsmasq = lab.dnsmasq(&[]);
    let router = lab.start(WAN, "lan,upstream=192.0.2.1", &[]);
    // Counts the queries that dnsmasq has received from the router.
    let asked = |question: &str| {
        let log = dnsmasq.stderr();
        log.lines().filter(|line| line.contains("192.0.2.2/") && line.contains(question)).count()
    };
    for server in
        ["@10.1.0.1", "@fd00:1::1", "+tcp @10.1.0.1", "+tcp @fd00:1::1", "+noedns @10.1.0.1"]
    {
        let found = lab.dig(&format!("{server} alias.example"));
        assert!(found.contains("192.0.2.80") && found.contains("status: NOERROR"), "{found}");
        assert!(found.contains("flags: qr rd ra;"), "{found}");
        let found = lab.dig(&format!("{server} absent.example"));
        assert!(found.contains("status: NXDOMAIN") && found.contains("SOA"), "{found}");
        let found = lab.dig(&format!("{server} www.example MX"));
        assert!(found.contains("status: NOERROR") && found.contains("ANSWER: 0"), "{found}");
    }
    assert_eq!(asked("auth[A] alias.example"), 1, "{}", dnsmasq.stderr());
    assert_eq!((asked("auth[A] absent.example"), asked("auth[MX] www.example")), (1, 1));
    assert_eq!((lab.counter("hits"), lab.counter("misses")), (12, 3));
    // dig repeats the query over TCP if the reply is truncated, and so does the router.
    for _ in 0..2 {
        let found = lab.dig("@10.1.0.1 big.example TXT");
        assert!(found.contains(&"x".repeat(200)) && found.contains("(TCP)"), "{found}");
    }
    assert_eq!((asked("auth[TXT] big.example"), lab.counter("sent_tcp")), (2, 1));
    assert_eq!((lab.counter("cache_entries"), lab.dns("flush").trim()), (4, "4 answers removed"));
    lab.dig("@10.1.0.1 alias.example");
    assert_eq!(asked("auth[A] alias.example"), 2);
    // Private addresses and special names are not known to the provider.
    for name in ["-x 10.9.9.9", "printer.local", "x.invalid"] {
        let found = lab.dig(&format!("@10.1.0.1 {name}"));
        assert!(found.contains("status: NXDOMAIN"), "{found}");
    }
    assert_eq!(lab.counter("sent"), 6);
    end(router);
    dnsmasq.signal(Signal::TERM);
}

#[test]
fn hosts_behind_other_ports_get_no_answer() {
    let Some(lab) = Lab::new() else { return };
    let dnsmasq = lab.dnsmasq(&[]);
    let router = lab.start(WAN, "lan,upstream=192.0.2.1", &[]);
    assert!(lab.dig("@10.1.0.1 www.example").contains("192.0.2.80"));
    ip(&format!(
        "ip -n {} route add 10.1.0.0/24 via 192.0.2.2",
        lab.provider.name().expect("root")
    ));
    for server in ["192.0.2.2", "10.1.0.1"] {
        for transport in ["+notcp", "+tcp"] {
            let server = format!("@{server}");
            let line = ["dig", "+tries=1", "+timeout=1", transport, &server, "www.example"];
            let output = lab.provider.run(&line);
            assert!(!output.success() && output.stdout.contains("refused"), "{}", output.stdout);
        }
    }
    end(router);
    dnsmasq.signal(Signal::TERM);
}

/// The port's number may be reused for a later port, whose hosts must not be served.
#[test]
fn deleted_ports_are_not_served() {
    let Some(lab) = Lab::new() else { return };
    let dnsmasq = lab.dnsmasq(&[]);
    let router = lab.start(WAN, "lan,upstream=192.0.2.1", &[]);
    assert!(lab.dig("@10.1.0.1 www.example").contains("192.0.2.80"));
    assert_eq!(lab.counter("listening"), 1);
    let (towpath, name) = (towpath(), lab.name());
    lab.router.run(&[&towpath, "ip", "--name", &name, "link", "del", "lan"]).ok();
    eventually("closed sockets", || lab.counter("listening") == 0);
    end(router);
    dnsmasq.signal(Signal::TERM);
}

#[test]
fn the_next_server_answers_for_a_silent_one() {
    let Some(lab) = Lab::new() else { return };
    let dnsmasq = lab.dnsmasq(&[]);
    // The first server refuses, because it serves another port; the second one does not exist.
    let dns = "lan,upstream=192.0.2.1:54+192.0.2.9+192.0.2.1";
    let router = lab.start(WAN, dns, &[]);
    for name in ["www", "alias", "big"] {
        let found = lab.dig(&format!("@10.1.0.1 {name}.example A"));
        assert!(found.contains("status: NOERROR"), "{found}");
    }
    assert!(lab.counter("timeouts") >= 6);
    assert_eq!(lab.counter("servers_failed"), 2);
    end(router);
    dnsmasq.signal(Signal::TERM);
}

/// Applies a lease of udhcpc(8) to its interface, and prints the nameserver.
const UDHCPC: &str = "#!/bin/sh
[ \"$1\" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
echo address $ip dns $dns domain $domain
";

/// The router obtains its upstream server by DHCP, and hosts learn the router as nameserver.
#[test]
fn leases_bring_servers_and_names() {
    let Some(lab) = Lab::new() else { return };
    let lease =
        ["--dhcp-range=192.0.2.100,192.0.2.101,255.255.255.0,120", "--dhcp-option=6,192.0.2.1"];
    let dnsmasq = lab.dnsmasq(&[&lease[..], &["--no-ping", "--dhcp-leasefile=/dev/null"]].concat());
    let server = "lan,pool=10.1.0.100-10.1.0.101";
    let options = ["--dhcp", "wan", "--dhcp-server", server];
    let router = lab.start("wan=packet:wan0", "lan,host=nas@10.1.0.5", &options);
    eventually("a lease", || router.stderr().contains("nameservers 192.0.2.1"));
    ip(&format!("ip -n {} addr flush dev e0", lab.host.name().expect("root")));
    let script = lab.folder.write("udhcpc", UDHCPC);
    ip(&format!("chmod +x {script}"));
    let line =
        ["busybox", "udhcpc", "-i", "e0", "-n", "-q", "-f", "-x", "hostname:laptop", "-s", &script];
    let output = lab.host.run(&line).ok();
    assert!(output.stdout.contains("dns 10.1.0.1 domain home.arpa"), "{}", output.stdout);
    assert!(lab.dig("@10.1.0.1 www.example").contains("192.0.2.80"));
    eventually("the name of the lease", || {
        lab.dig("@10.1.0.1 laptop.home.arpa").contains("10.1.0.10")
    });
    let address = output.stdout.split_whitespace().nth(1).expect("an address");
    let found = lab.dig(&format!("@10.1.0.1 -x {address}"));
    assert!(found.contains("laptop.home.arpa."), "{found}");
    let found = lab.dig("@10.1.0.1 nas.home.arpa");
    assert!(found.contains("10.1.0.5"), "{found}");
    assert!(lab.dig("@10.1.0.1 absent.home.arpa").contains("NXDOMAIN"));
    assert_eq!(lab.counter("sent"), 1);
    end(router);
    dnsmasq.signal(Signal::TERM);
}
