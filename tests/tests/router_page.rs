//! Runs the examples of `docs/router.md` as written on the page, so that changes to commands or
//! options are detected. Skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use towpath_tests::{PATIENCE, Process, Scratch, towpath};

const PAGE: &str = include_str!("../../docs/router.md");

/// Runs an example in temporary namespaces; named ones are removed as well.
///
/// `$1` is the directory of `towpath`. The script starts in a directory that contains the rules.
const FRAME: &str = "
set -e
mkdir -p /run/netns
mount -t tmpfs none /run/netns
PATH=$1:$PATH
cd $2
waits_for() {
    for n in $(seq 100); do \"$@\" >/dev/null 2>&1 && return 0; sleep 0.1; done
    echo \"in vain: $*\" >&2; return 1
}
gets_none() {
    if \"$@\" >/dev/null 2>&1; then echo \"let through: $*\" >&2; exit 1; fi
}
ping_from() { host=$1; shift; ip netns exec $host ping -c1 -W1 $*; }
REFUSED='
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
s.connect((\"192.0.2.1\", 9))
s.send(b\"x\")
try: s.recv(1)
except ConnectionRefusedError: raise SystemExit(0)
raise SystemExit(\"no error of ICMP\")'
";

/// Notes the job of the page's commands, if there is one, so that it ends with the script.
const JOB: &str = "
job=$!
trap '[ -z \"$job\" ] || kill $job' EXIT
";

/// Ends the router, which must succeed.
const END: &str = "
kill -TERM $router
wait $router
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

/// Runs the commands of a section, the last of which is the router, followed by `checks`. The
/// section has the content of `file`, whose extension is the kind of its block.
fn run(title: &str, file: &str, checks: &str) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: needs root");
        return;
    }
    let folder = Scratch::new();
    let (_, kind) = file.split_once('.').expect("an extension");
    let [content] = &blocks(title, kind)[..] else { panic!("{title}: one block of {kind}") };
    folder.write(file, content);
    let commands = blocks(title, "sh");
    let (router, others) = commands.split_last().expect("commands");
    let script =
        format!("{FRAME}\n{}\n{JOB}\n{router} & router=$!\n{checks}\n{END}", others.join("\n"));
    let towpath = towpath();
    let (bin, _) = towpath.rsplit_once('/').expect("a whole path");
    let place = folder.path().to_str().expect("plain").to_owned();
    let line = ["unshare", "--mount", "--net", "sh", "-c", &script, "sh", bin, &place];
    let output = Process::spawn(&line).wait(PATIENCE).ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
}

#[test]
fn the_office_works_as_the_page_says() {
    run(
        "A small office",
        "office.acl",
        "waits_for ping_from office 192.0.2.1
         waits_for ping_from office 10.2.0.80
         gets_none ping_from outside 10.1.0.2
         gets_none ping_from outside 10.2.0.80
         ip netns exec office python3 -c \"$REFUSED\"
         ip netns exec server python3 -m http.server 80 >/dev/null 2>&1 & web=$!
         waits_for ip netns exec outside curl -sf -m 2 http://10.2.0.80/
         kill $web",
    );
}

#[test]
fn the_office_in_a_file_is_the_one_of_the_options() {
    let folder = Scratch::new();
    let block = |title: &str, kind: &str| blocks(title, kind).swap_remove(0);
    folder.write("office.acl", block("A small office", "acl"));
    let file = folder.write("office.toml", block("In a file", "toml"));
    let towpath = towpath();
    let check = |words: &str| {
        let mut line = vec![&*towpath, "router", "--check"];
        line.extend(words.split_whitespace());
        Process::spawn(&line).wait(PATIENCE)
    };
    let of_options = blocks("A small office", "sh");
    let of_options = of_options.iter().find(|block| block.contains("--check")).expect("a check");
    let acl = folder.path().join("office.acl");
    let words = of_options.replace('\\', "").replace("towpath router --check", "");
    let words = words.replace("office.acl", acl.to_str().expect("plain"));
    let found = check(&format!("--config {file}")).ok().stdout;
    assert_eq!(found, check(&words).ok().stdout);
    assert!(found.starts_with("in order: lan 10.1.0.1/24, dmz"), "{found}");
    let wrong = folder.write("wrong.toml", block("In a file", "toml").replace("acl =", "akl ="));
    let refused = check(&format!("--config {wrong}"));
    assert_eq!(refused.code(), 2, "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("wrong.toml: line 2, column 1: unknown key `akl`; did you mean `acl`?")
    );
}

/// The page about configuration files shows the answer to `--check`.
#[test]
fn the_file_of_the_config_page_is_valid() {
    const CONFIG: &str = include_str!("../../docs/config.md");
    let (_, rest) = CONFIG.split_once("```toml\n").expect("a file");
    let (text, rest) = rest.split_once("```").expect("its end");
    let answer = rest.lines().find(|line| line.starts_with("    in order: ")).expect("an answer");
    let folder = Scratch::new();
    let line = [&towpath(), "router", "--check", "--config", &folder.write("home.toml", text)];
    let found = Process::spawn(&line).wait(PATIENCE).ok().stdout;
    assert!(found.starts_with(answer.trim()), "{found}");
    let wrong = folder.write("wrong.toml", text.replace("nat =", "natt ="));
    let refused = Process::spawn(&[&towpath(), "router", "--check", "--config", &wrong]);
    let refused = refused.wait(PATIENCE);
    let message = "line 2, column 1: unknown key `natt`; did you mean `nat`?";
    assert!(refused.code() == 2 && refused.stderr.contains(message), "{}", refused.stderr);
    assert!(CONFIG.contains(message));
}

#[test]
fn the_home_router_works_as_the_page_says() {
    run(
        "A home router",
        "home.toml",
        "printf '#!/bin/sh\n[ $1 = bound ] || exit 0
           ip addr add $ip/$mask dev $interface; ip route add default via $router
           echo $dns > nameserver\n' > udhcpc
         chmod +x udhcpc
         lease() {
             ip netns exec laptop busybox udhcpc -i e0 -n -q -f -s ./udhcpc
             grep -q 10.1.0.1 nameserver
         }
         waits_for lease
         waits_for ping_from laptop 192.0.2.1
         ip netns exec laptop dig @10.1.0.1 www.example | grep -q 192.0.2.1
         gets_none ping_from internet 192.0.2.100
         ip netns exec laptop python3 -m http.server 80 >/dev/null 2>&1 & web=$!
         waits_for ip netns exec internet curl -sf -m 2 http://192.0.2.100:8080/
         waits_for ip netns exec laptop curl -sf -m 2 http://192.0.2.100:8080/
         kill $web",
    );
}

#[test]
fn the_nat64_box_works_as_the_page_says() {
    run(
        "IPv6 hosts and IPv4 servers",
        "box.toml",
        "waits_for ping_from phone 64:ff9b::192.0.2.1
         found=$(ip netns exec phone dig @2001:db8:1::1 +short AAAA www.example)
         [ \"$found\" = 64:ff9b::c000:201 ] || { echo \"found $found\" >&2; exit 1; }
         ip netns exec server python3 -m http.server 80 >/dev/null 2>&1 & web=$!
         waits_for ip netns exec phone curl -sf -m 2 -g 'http://[64:ff9b::192.0.2.1]/'
         gets_none ping_from phone -c1 64:ff9b::198.18.0.2
         kill $web",
    );
}

#[test]
fn the_ipv6_office_works_as_the_page_says() {
    run(
        "The same with IPv6",
        "office6.acl",
        "waits_for ping_from office6 2001:db8:ffff::1
         gets_none ping_from outside6 -I 2001:db8:ffff::1 2001:db8:1::2",
    );
}
