//! Urgent data: runs the same program on the kernel, and on Towpath in each hosting. Then uses the
//! kernel as the peer, over a TAP device and through the gateway.

use towpath_tests::{Mode, Namespace, PATIENCE, Process, program, start, towpath};

/// Number of requests and answers, all with an urgent byte.
const ROUNDS: &str = "5";

#[test]
fn every_hosting_is_as_the_kernel() {
    let script = program("oracle/urgent.py");
    let line = ["python3", "-B", script.as_str()];
    let kernel = Namespace::new().run(&line).ok().stdout;
    let towpath = towpath();
    for options in [&["--shards", "2"][..], &["--inline"]] {
        let run = [&[towpath.as_str(), "run", "-q"], options, &["--"], &line].concat();
        let ours = Process::spawn(&run).wait(PATIENCE).ok().stdout;
        assert_eq!(ours, kernel, "{options:?}");
    }
}

fn wanted(what: &str, word: &str, urgent: char, after: &str) -> String {
    let line = |n| format!("{what} b'{word}{n}' b'{urgent}' b'{after}' SIGURG\n");
    (0..5).map(line).collect()
}

/// Checks what each end received from its peer.
fn compare(server: Process, client: Process, mode: Mode) {
    let client = client.wait(PATIENCE).ok().stdout;
    let server = server.wait(PATIENCE).ok().stdout;
    assert_eq!(server, wanted("served", "ABOR", '!', "\\r\\n.") + "b''\n", "{mode:?}");
    assert_eq!(client, wanted("called", "226 ", '?', "\\r\\n:") + "None\n", "{mode:?}");
}

#[test]
fn a_server_hears_of_the_kernels_urgent_data() {
    let script = program("urgent_peer.py");
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let serve = ["python3", "-B", &script, "serve", "8021", ROUNDS];
        let server = start(&ns, mode, &[8021], &serve);
        let client = ns.spawn(&["python3", "-B", &script, "call", mode.host(), "8021", ROUNDS]);
        compare(server, client, mode);
    }
}

#[test]
fn a_client_hears_of_the_kernels_urgent_data() {
    let script = program("urgent_peer.py");
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let server = ns.spawn(&["python3", "-B", &script, "serve", "8021", ROUNDS]);
        let call = ["python3", "-B", &script, "call", mode.peer(), "8021", ROUNDS];
        compare(server, start(&ns, mode, &[], &call), mode);
    }
}
