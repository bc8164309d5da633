//! DHCP of `towpath router`, with Debian's servers and clients. Skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use rustix::process::Signal;
use towpath_tests::{Namespace, PATIENCE, Process, Scratch, eventually, towpath, wait_for_port};

/// A host, a router and a provider, one behind the other. The provider's kernel has 192.0.2.1.
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
        ip(&format!("ip -n {left} link set e0 up"));
        ip(&format!("ip -n {right} addr add 192.0.2.1/24 dev e0"));
        ip(&format!("ip -n {right} link set e0 up"));
        for dev in ["lan0", "wan0"] {
            ip(&format!("ip netns exec {middle} sysctl -qw net.ipv6.conf.{dev}.disable_ipv6=1"));
            ip(&format!("ip -n {middle} link set {dev} up"));
        }
        Some(Self { host, router, provider, folder: Scratch::new() })
    }

    /// Starts dnsmasq at the provider, with leases of two minutes.
    fn dnsmasq(&self, options: &[&str]) -> Process {
        let leases = format!("--dhcp-leasefile={}", self.path("dnsmasq.leases"));
        let fixed = [
            "dnsmasq",
            "--keep-in-foreground",
            "--log-facility=-",
            "--log-dhcp",
            "--conf-file=/dev/null",
            "--user=root",
            "--pid-file=",
            "--port=0",
            "--no-ping",
            "--bind-interfaces",
            "--interface=e0",
            "--dhcp-range=192.0.2.100,192.0.2.101,255.255.255.0,120",
            "--dhcp-option=3,192.0.2.1",
            "--dhcp-option=6,192.0.2.53",
            leases.as_str(),
        ];
        self.provider.spawn(&[&fixed[..], options].concat())
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("plain").to_owned()
    }

    /// Returns the name of the router, which is unique on the machine.
    fn name(&self) -> String {
        self.router.name().expect("root").replace('-', "_")
    }

    /// Starts the router, whose port `wan` is a client.
    fn start(&self, dhcp: &str, options: &[&str]) -> Process {
        let (towpath, name) = (towpath(), self.name());
        let fixed = [
            towpath.as_str(),
            "router",
            "--name",
            name.as_str(),
            "--port",
            "lan=packet:lan0,10.1.0.1/24",
            "--port",
            "wan=packet:wan0",
            "--dhcp",
            dhcp,
        ];
        self.router.spawn(&[&fixed[..], options].concat())
    }

    /// Returns the output of `towpath ip` for the router.
    fn shown(&self, line: &str) -> String {
        let towpath = towpath();
        let name = self.name();
        let mut words = vec![towpath.as_str(), "ip", "--name", &name];
        words.extend(line.split_whitespace());
        let output = self.router.run(&words);
        output.stdout
    }
}

fn end(router: Process) -> String {
    router.signal(Signal::TERM);
    router.wait(PATIENCE).ok().stderr
}

#[test]
fn client_obtains_and_releases_a_lease_of_dnsmasq() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.dnsmasq(&["--dhcp-option=121,10.77.0.0/16,192.0.2.7,0.0.0.0/0,192.0.2.1"]);
    let router = lab.start("wan,hostname=gate", &["--nat", "masquerade out wan"]);
    eventually("an address", || lab.shown("addr show wan").contains("192.0.2.10"));
    let address = lab.shown("addr show wan");
    assert!(address.contains("/24") && address.contains("valid_lft 1"), "{address}");
    let routes = lab.shown("route");
    assert!(routes.contains("default via 192.0.2.1 dev wan metric 102"), "{routes}");
    assert!(routes.contains("10.77.0.0/16 via 192.0.2.7 dev wan"), "{routes}");
    eventually("the lease's message", || router.stderr().contains("nameservers 192.0.2.53"));
    // The host behind the router reaches the provider through the lease's address.
    let host = lab.host.name().expect("root");
    ip(&format!("ip -n {host} addr add 10.1.0.2/24 dev e0"));
    ip(&format!("ip -n {host} route add default via 10.1.0.1"));
    let ping = ["ping", "-c1", "-W1", "192.0.2.1"];
    eventually("the provider answers", || lab.host.run(&ping).success());
    let log = server.stderr();
    assert!(log.contains("client provides name: gate"), "{log}");
    end(router);
    eventually("a release", || server.stderr().contains("DHCPRELEASE"));
    server.signal(Signal::TERM);
}

#[test]
fn kept_lease_is_verified_after_a_restart() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.dnsmasq(&[]);
    let dhcp = format!("wan,lease={}", lab.path("wan.lease"));
    let router = lab.start(&dhcp, &[]);
    eventually("an address", || lab.shown("addr show wan").contains("192.0.2.10"));
    let before = lab.shown("-br addr show wan");
    end(router);
    let log = server.stderr();
    assert!(!log.contains("DHCPRELEASE"), "{log}");
    let router = lab.start(&dhcp, &[]);
    eventually("the same address", || lab.shown("-br addr show wan") == before);
    let log = server.stderr();
    assert_eq!(log.matches("DHCPDISCOVER(").count(), 1, "{log}");
    assert_eq!(log.matches("DHCPACK(").count(), 2, "{log}");
    end(router);
    server.signal(Signal::TERM);
}

/// Another host of the provider's link uses the addresses of the server without a lease.
#[test]
fn address_in_use_is_declined() {
    let Some(lab) = Lab::new() else { return };
    let (provider, host) = (lab.provider.name().expect("root"), lab.host.name().expect("root"));
    // The kernel puts both interfaces of the provider's namespace on one link.
    ip(&format!("ip -n {provider} link add s0 link e0 netns {host} type macvlan mode bridge"));
    for n in [100, 101] {
        ip(&format!("ip -n {host} addr add 192.0.2.{n}/24 dev s0"));
    }
    ip(&format!("ip -n {host} link set s0 up"));
    let server = lab.dnsmasq(&[]);
    let router = lab.start("wan", &[]);
    eventually("a decline", || server.stderr().contains("DHCPDECLINE"));
    eventually("a message", || router.stderr().contains("which another host uses"));
    assert!(!lab.shown("addr show wan").contains("192.0.2.10"));
    end(router);
    server.signal(Signal::TERM);
}

/// `towpath run`: PROGRAM starts with the address, the route and the nameserver of the lease.
#[test]
fn run_starts_with_the_lease() {
    const PROGRAM: &str = "
import socket
s = socket.create_connection(('192.0.2.1', 8000), 5)
print(s.getsockname()[0], open('/etc/resolv.conf').read().split())
";
    let Some(lab) = Lab::new() else { return };
    let server = lab.dnsmasq(&[]);
    let web = ["python3", "-m", "http.server", "--bind", "192.0.2.1"];
    let _web = lab.provider.spawn(&web);
    wait_for_port(&lab.provider, "192.0.2.1", 8000);
    let towpath = towpath();
    let line = [&*towpath, "run", "--packet", "wan0", "--dhcp", "--", "python3", "-c", PROGRAM];
    let output = lab.router.run(&line).ok();
    assert!(output.stdout.starts_with("192.0.2.10"), "{}", output.stdout);
    assert!(output.stdout.contains("'nameserver', '192.0.2.53'"), "{}", output.stdout);
    assert!(output.stderr.contains("by DHCP from 192.0.2.1"), "{}", output.stderr);
    eventually("a release", || server.stderr().contains("DHCPRELEASE"));
    let refused = lab.router.run(&[&*towpath, "run", "--dhcp", "--", "true"]);
    assert!(refused.stderr.contains("DHCP needs a device"), "{}", refused.stderr);
    server.signal(Signal::TERM);
}

/// Two clients with one Ethernet address would have the same lease.
#[test]
fn an_interface_has_one_client() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.dnsmasq(&[]);
    let towpath = towpath();
    let run = |program| [&*towpath, "run", "--packet", "wan0", "--dhcp", "--", "sleep", program];
    let first = lab.router.spawn(&run("infinity"));
    eventually("a lease", || first.stderr().contains("by DHCP from"));
    let in_use = "another run of towpath uses DHCP on wan0 already (process";
    let second = lab.router.run(&run("0"));
    assert_eq!(second.code(), 125, "{}", second.stderr);
    assert!(second.stderr.contains(&format!("--dhcp: {in_use}")), "{}", second.stderr);
    let line = [&*towpath, "router", "--port", "wan=packet:wan0", "--dhcp", "wan"];
    let router = lab.router.run(&line);
    assert_eq!(router.code(), 125, "{}", router.stderr);
    assert!(router.stderr.contains(&format!("port wan: {in_use}")), "{}", router.stderr);
    drop(first);
    server.signal(Signal::TERM);
}

/// Applies a lease of udhcpc(8) to its interface, and prints the nameserver.
const UDHCPC: &str = "#!/bin/sh
[ \"$1\" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
ip route add default via $router
echo dns $dns domain $domain
";

/// Clients of three kinds obtain addresses of the router's server, and reach the provider.
#[test]
fn server_grants_leases_to_clients_of_debian() {
    let Some(lab) = Lab::new() else { return };
    let dnsmasq = lab.dnsmasq(&[]);
    let host = lab.host.name().expect("root");
    ip(&format!("ip -n {host} link set e0 down"));
    ip(&format!("ip -n {host} link set e0 address 02:00:00:00:00:07"));
    ip(&format!("ip -n {host} link set e0 up"));
    let leases = lab.path("lan.leases");
    let server = format!(
        "lan,pool=10.1.0.100-10.1.0.101,reserve=02:00:00:00:00:07@10.1.0.7,domain=home.arpa,\
         leases={leases}"
    );
    let options = ["--dhcp-server", &server, "--nat", "masquerade out wan"];
    let router = lab.start("wan", &options);
    eventually("an address", || lab.shown("addr show wan").contains("192.0.2.10"));
    let script = lab.folder.write("udhcpc", UDHCPC);
    ip(&format!("chmod +x {script}"));
    let line = ["busybox", "udhcpc", "-i", "e0", "-n", "-q", "-f", "-s", &script];
    let output = lab.host.run(&line).ok();
    // The nameserver is that of the router's own lease.
    assert!(output.stdout.contains("dns 192.0.2.53 domain home.arpa"), "{}", output.stdout);
    assert!(output.stderr.contains("lease of 10.1.0.7 obtained"), "{}", output.stderr);
    let ping = ["ping", "-c1", "-W1", "192.0.2.1"];
    eventually("the provider answers", || lab.host.run(&ping).success());
    // A client of another kind, behind the same interface.
    let (pid, file) = (lab.path("pid"), lab.path("dhclient.leases"));
    let dhclient = ["dhclient", "-1", "-v", "-sf", "/bin/true", "-pf", &pid, "-lf", &file, "e0"];
    let output = lab.host.run(&dhclient).ok();
    assert!(output.stderr.contains("DHCPACK of 10.1.0.7 from 10.1.0.1"), "{}", output.stderr);
    lab.host.run(&["dhclient", "-x", "-sf", "/bin/true", "-pf", &pid, "-lf", &file, "e0"]);
    eventually("the lease in its file", || {
        std::fs::read_to_string(&leases)
            .is_ok_and(|text| text.contains("10.1.0.7 02:00:00:00:00:07"))
    });
    end(router);
    dnsmasq.signal(Signal::TERM);
}
