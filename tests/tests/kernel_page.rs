//! Runs the examples of `docs/kernel.md` as written on the page. Skipped without root, and without
//! the routing daemons.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use std::path::Path;

use towpath_tests::{PATIENCE, Process, Scratch, towpath};

const PAGE: &str = include_str!("../../docs/kernel.md");
const EDGE: &str = "A data-centre edge";
const FRR: &str = "FRR in place of BIRD";

/// Runs an example in temporary namespaces, and ends its jobs. `$1` is the directory of `towpath`,
/// `$2` that of the configuration.
const FRAME: &str = "
set -e
mkdir -p /run/netns
mount -t tmpfs none /run/netns
mkdir -p /run/towpath
mount -t tmpfs -o mode=700 none /run/towpath
PATH=$1:$PATH:/usr/sbin
cd $2
trap 'kill $(jobs -p) 2>/dev/null || :' EXIT
waits_for() {
    for n in $(seq 600); do \"$@\" >/dev/null 2>&1 && return 0; sleep 0.1; done
    echo \"in vain: $*\" >&2; towpath ip --name edge route >&2 || :; return 1
}
ping_from() { host=$1; shift; ip netns exec $host ping -c1 -W1 $*; }
routes() { towpath ip --name edge route show 198.51.100.1 | tr -s ' \\t\\n' ' '; }
are_routes() { test \"$(routes)\" = \"$1\"; }
are_both() {
    all=\"$(routes)\"
    first='nexthop via 10.2.1.2 dev up1 weight 1 '
    second='nexthop via 10.2.2.2 dev up2 weight 1 '
    test \"$all\" = \"198.51.100.1 proto $1 $first$second\" ||
        test \"$all\" = \"198.51.100.1 proto $1 $second$first\"
}
";

/// Checks of the page, after its commands. `$proto` is the protocol of the routes.
const CHECKS: &str = "
waits_for are_both \"$proto\"
waits_for ping_from servers 198.51.100.1
waits_for ping_from servers 10.2.1.2
for port in 80 81; do ip netns exec servers python3 -m http.server $port >/dev/null 2>&1 & done
waits_for ip netns exec servers curl -sf -m 2 http://10.1.0.2:81/
waits_for ip netns exec spine2 curl -sf -m 2 http://10.1.0.2/
if ip netns exec spine2 curl -sf -m 1 http://10.1.0.2:81/; then echo 'let through' >&2; exit 1; fi
ip -n spine1 link set e0 down
waits_for are_routes \"198.51.100.1 via 10.2.2.2 dev up2 proto $proto \"
waits_for ping_from servers 198.51.100.1
kill -TERM $router
wait $router
test -z \"$(ip -n control link show up1 2>/dev/null)\"
echo done
";

/// Returns all code blocks of a kind in the section with this title.
fn blocks(title: &str, kind: &str) -> Vec<String> {
    let (_, rest) = PAGE.split_once(&format!("## {title}\n")).expect("the section is there");
    let section = rest.split("\n## ").next().expect("text");
    let (open, close) = (format!("```{kind}\n"), "\n```");
    let parts = section.split(&open).skip(1);
    parts.map(|part| part.split(close).next().expect("text").to_owned()).collect()
}

/// Returns whether the test can run: as root, with these programs.
fn can_run(programs: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: needs root");
        return false;
    }
    let missing: Vec<_> = programs.iter().filter(|it| !Path::new(it).exists()).collect();
    if !missing.is_empty() {
        eprintln!("left out: there is no {missing:?}");
    }
    missing.is_empty()
}

/// Runs the example with these commands for the daemons.
fn run(daemons: &str, proto: &str) {
    let folder = Scratch::new();
    let [spine, edge] = &blocks(EDGE, "bird")[..] else { panic!("two configurations of BIRD") };
    folder.write("spine.conf", spine);
    folder.write("edge.conf", edge);
    folder.write("edge.acl", &blocks(EDGE, "acl")[0]);
    folder.write("frr.conf", &blocks(FRR, "frr")[0]);
    let [hosts, _, router] = &blocks(EDGE, "sh")[..] else { panic!("three blocks of commands") };
    let script =
        format!("{FRAME}\n{hosts}\n{daemons}\n{router} & router=$!\nproto='{proto}'\n{CHECKS}");
    let towpath = towpath();
    let (bin, _) = towpath.rsplit_once('/').expect("a whole path");
    let place = folder.path().to_str().expect("plain").to_owned();
    let line = ["unshare", "--mount", "--net", "bash", "-c", &script, "bash", bin, &place];
    let output = Process::spawn(&line).wait(2 * PATIENCE).ok();
    assert!(output.stdout.ends_with("done\n"), "{}\n{}", output.stdout, output.stderr);
}

#[test]
fn the_edge_works_with_bird_as_the_page_says() {
    if can_run(&["/usr/sbin/bird"]) {
        run(&blocks(EDGE, "sh")[1], "bird metric 32");
    }
}

#[test]
fn the_edge_works_with_frr_as_the_page_says() {
    if can_run(&["/usr/sbin/bird", "/usr/lib/frr/bgpd"]) {
        let spines = blocks(EDGE, "sh")[1].lines().take(2).collect::<Vec<_>>().join("\n");
        run(&format!("{spines}\n{}", blocks(FRR, "sh")[0]), "bgp metric 20");
    }
}
