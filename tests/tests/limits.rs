//! Runs that reach the descriptor limit.

use std::time::Duration;

use towpath_tests::{Namespace, Output, Process, program, towpath, wait_for_listener};

const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Descriptor limit of `towpath run` and of PROGRAM.
const DESCRIPTORS: u32 = 512;

/// Runs a server under the limit. Returns how many of the simultaneous clients were served and
/// refused, and the output.
fn serve(hosting: &[&str], port: &str, clients: u32) -> (u32, u32, Output) {
    let (ns, towpath) = (Namespace::new(), towpath());
    let limit = format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}");
    let (published, server) = (format!("{port}:{port}"), program("crowd/server.py"));
    let run = ["prlimit", &limit, &towpath, "run", "--stats", "-p", &published];
    let server = ns.spawn(&[&run, hosting, &["--", "python3", &server, port]].concat());
    wait_for_listener(&server, port.parse().expect("a port"));
    let line = ["python3", &program("crowd/clients.py"), port, &clients.to_string()];
    let out = ns.run(&line).ok().stdout;
    let mut counts = out.split_whitespace().map(|count| count.parse().expect("a number"));
    let (answered, refused) = (counts.next().expect("a number"), counts.next().expect("a number"));
    (answered, refused, wait(server))
}

fn wait(run: Process) -> Output {
    run.wait(ENDS_WITHIN).ok()
}

/// Returns a counter of `--stats`, whose output omits counters that are 0.
fn counter(out: &Output, name: &str) -> u32 {
    assert!(out.stderr.contains("gateway.tcp_accepted"), "no counters: {}", out.stderr);
    let value = out.stderr.lines().find_map(|line| line.strip_prefix(name));
    value.map_or(0, |value| value.trim().parse().expect("a number"))
}

/// Checks how many simultaneous clients are served under the limit; `served` is in percent of the
/// limit. With `--inline` each needs two descriptors of one process.
fn clients_under_the_limit(hosting: &[&str], port: &str, served: u32) {
    let within = DESCRIPTORS * served / 100;
    let (answered, refused, out) = serve(hosting, port, within);
    assert_eq!((answered, refused), (within, 0), "{}", out.stderr);
    assert_eq!(counter(&out, "gateway.tcp_flows_full"), 0);
    assert!(!out.stderr.contains("are refused"), "{}", out.stderr);

    let (answered, refused, out) = serve(hosting, port, DESCRIPTORS + 100);
    assert!(answered >= within, "{answered} of {within} are served");
    assert!(refused > 100 && answered + refused == DESCRIPTORS + 100, "{answered}, {refused}");
    assert_eq!(counter(&out, "gateway.tcp_flows_full"), refused);
    let said = format!("clients of 127.0.0.1:{port} are refused: ");
    assert_eq!(out.stderr.matches(&said).count(), 1, "{}", out.stderr);
    assert!(out.stderr.contains("the limit of 512 descriptors"), "{}", out.stderr);
}

#[test]
fn clients_are_served_within_the_limit_of_descriptors_and_refused_beyond_it() {
    clients_under_the_limit(&[], "8120", 70);
}

#[test]
fn shards_have_one_limit_of_descriptors() {
    clients_under_the_limit(&["--shards", "2"], "8121", 70);
}

#[test]
fn a_process_with_its_own_stack_serves_clients_with_half_of_its_descriptors() {
    clients_under_the_limit(&["--inline"], "8122", 30);
}
