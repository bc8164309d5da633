//! Two namespaces for tests of `towpath proxy`, which carries the traffic of one to servers in the
//! other.

use crate::{Namespace, Output, PATIENCE, Process, Scratch, eventually, towpath, wait_for_port};

/// Two namespaces: `here` with clients and towpath, `there` with servers. `here` reaches the
/// servers only by its default route.
pub struct Lab {
    pub here: Namespace,
    pub there: Namespace,
}

/// Options for the networks that are routed into the device, and the egress interface.
pub const ROUTED: [&str; 6] =
    ["--route", "10.9.0.0/16", "--route", "fd00:9::/32", "--interface", "va"];

impl Lab {
    /// Creates the namespaces; None without root.
    pub fn new() -> Option<Self> {
        let (here, there) = (Namespace::new(), Namespace::new());
        let (Some(a), Some(b)) = (here.name(), there.name()) else {
            eprintln!("left out: needs root");
            return None;
        };
        let commands = format!(
            "ip link add va netns {a} type veth peer name vb netns {b}
             ip -n {a} addr add 192.0.2.1/24 dev va
             ip -n {a} addr add fd00:2::1/64 dev va nodad
             ip -n {b} addr add 192.0.2.2/24 dev vb
             ip -n {b} addr add fd00:2::2/64 dev vb nodad
             ip -n {b} addr add 10.9.0.1/32 dev lo
             ip -n {b} addr add 10.9.0.2/32 dev lo
             ip -n {b} addr add fd00:9::1/128 dev lo nodad
             ip -n {a} link set va up
             ip -n {b} link set vb up
             ip -n {a} route add default via 192.0.2.2
             ip -n {a} route add default via fd00:2::2
             ip -n {b} route add unreachable 10.9.66.0/24"
        );
        for line in commands.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            Process::spawn(&words).wait(PATIENCE).ok();
        }
        // Enable forwarding, because only a router reports that a network is unreachable.
        there.shell("echo 1 > /proc/sys/net/ipv4/ip_forward").ok();
        Some(Self { here, there })
    }

    /// Starts `towpath proxy`, and waits until its device is up.
    pub fn proxy(&self, options: &[&str]) -> Process {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "proxy", "--tun", "tw0"];
        line.extend(options);
        let mut process = self.here.spawn(&line);
        eventually("the device is up, or an error", || {
            process.stderr().contains("Ctrl-C ends") || !process.is_running()
        });
        assert!(process.is_running(), "{}", process.stderr());
        process
    }

    /// Runs a `towpath proxy` that must fail. Returns its exit code and message.
    pub fn refused(&self, options: &[&str]) -> (i32, String) {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "proxy", "--tun", "tw0"];
        line.extend(options);
        let output = self.here.run(&line);
        (output.code(), output.stderr)
    }

    /// Serves a page in `there`.
    pub fn serve(&self, folder: &Scratch) -> Process {
        folder.write("index.html", "a page\n");
        let root = folder.path().to_str().expect("plain");
        let server =
            self.there.spawn(&["python3", "-m", "http.server", "-b", "::", "-d", root, "7801"]);
        wait_for_port(&self.there, "10.9.0.1", 7801);
        server
    }

    pub fn python(&self, script: &str) -> String {
        self.here.run(&["python3", "-c", script]).ok().stdout
    }

    pub fn curl(&self, url: &str) -> Output {
        self.here.run(&["curl", "-gsS", "-m", "30", url])
    }

    /// Returns whether the device and all routes through it are gone.
    pub fn is_clean(&self) -> bool {
        let shown = self.here.shell("ip link show; ip route show; ip -6 route show; ip rule show");
        !shown.ok().stdout.contains("tw0")
    }
}

/// Returns a counter from the output of `--stats=json`.
pub fn counter(stats: &str, layer: &str, name: &str) -> u64 {
    let line = stats.lines().find(|line| line.starts_with('{')).expect("JSON");
    let all: serde_json::Value = serde_json::from_str(line).expect("JSON");
    all[layer][name].as_u64().unwrap_or_else(|| panic!("{layer}.{name} in {line}"))
}
