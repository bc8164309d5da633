//! Event loops of other languages: Python's asyncio, Node.js, tokio. C programs with sanitizers.

use std::process::Command;

use towpath_tests::{
    Mode, Namespace, Scratch, program, run, start, wait_for_listener, wait_for_port,
};

#[test]
fn asyncio_server_and_client() {
    let script = program("asyncio_echo.py");
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let server = start(&ns, mode, &[7001], &["python3", &script, "server", "7001"]);
        wait_for_listener(&server, 7001);
        let out = ns.run(&["python3", &script, "client", mode.host(), "7001", "200"]).ok();
        assert_eq!(out.stdout, "all echoed\n", "{mode:?}");

        // The server's TAP device is removed with it; the client uses another one.
        drop(server);
        let _host = ns.spawn(&["python3", &script, "server", "7002"]);
        wait_for_port(&ns, "127.0.0.1", 7002);
        let out =
            run(&ns, mode, &[], &["python3", &script, "client", mode.peer(), "7002", "200"]).ok();
        assert_eq!(out.stdout, "all echoed\n", "{mode:?}");
    }
}

#[test]
fn node_server_and_client() {
    let script = program("http.js");
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let server = start(&ns, mode, &[7003], &["node", &script, "server", "7003"]);
        wait_for_listener(&server, 7003);
        let url = format!("http://{}:7003/", mode.host());
        let out = ns.run(&["node", &script, "client", &url, "300"]).ok();
        assert_eq!(out.stdout, "all fetched\n", "{mode:?}");

        // The server's TAP device is removed with it; the client uses another one.
        drop(server);
        let _host = ns.spawn(&["node", &script, "server", "7004"]);
        wait_for_port(&ns, "127.0.0.1", 7004);
        let url = format!("http://{}:7004/", mode.peer());
        let out = run(&ns, mode, &[], &["node", &script, "client", &url, "300"]).ok();
        assert_eq!(out.stdout, "all fetched\n", "{mode:?}");
    }
}

/// Passes connections to other processes over Unix sockets, and as standard input.
#[test]
fn python_hands_connections_on() {
    let out = run(&Namespace::new(), Mode::Rootless, &[], &["python3", &program("handles.py")]);
    let by_pipe = |method| format!("{method} BY PIPE True\n");
    let expected = ["fork", "spawn", "forkserver"].map(by_pipe).concat();
    assert_eq!(out.ok().stdout, expected + "heard a line True\n0\n");
}

#[test]
fn node_cluster() {
    let ns = Namespace::new();
    for listener in ["handed_out", "shared"] {
        let script = program("cluster.js");
        let out = run(&ns, Mode::Rootless, &[], &["node", &script, "7006", listener]).ok();
        assert_eq!(out.stdout, "answered true\n", "{listener}");
    }
}

/// Both endpoints use the stack's own loopback, in two processes of one run.
#[test]
fn loopback_inside_the_stack() {
    let script = program("asyncio_echo.py");
    let ns = Namespace::new();
    let line = format!(
        "python3 {script} server 7005 & server=$!; \
         for n in $(seq 200); do python3 {script} client 127.0.0.1 7005 1 >/dev/null 2>&1 && \
         break; sleep .1; done; python3 {script} client 127.0.0.1 7005 50; status=$?; \
         kill $server; exit $status"
    );
    let out = run(&ns, Mode::Rootless, &[], &["bash", "-c", &line]).ok();
    assert_eq!(out.stdout, "all echoed\n");
    // A client outside must not reach the stack's loopback.
    let server = start(&ns, Mode::Rootless, &[], &["python3", &script, "server", "7005"]);
    wait_for_listener(&server, 7005);
    let outside = ns.run(&["python3", &script, "client", "127.0.0.1", "7005", "1"]);
    assert!(!outside.success());
    drop(server);
}

#[test]
fn tokio_server() {
    let binary = env!("CARGO_BIN_EXE_tokio_echo");
    let script = program("asyncio_echo.py");
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let server = start(&ns, mode, &[7006], &[binary, "7006"]);
        wait_for_listener(&server, 7006);
        let out = ns.run(&["python3", &script, "client", mode.host(), "7006", "200"]).ok();
        assert_eq!(out.stdout, "all echoed\n", "{mode:?}");
    }
}

/// The sanitizers' runtimes start, and do not report the library.
#[test]
fn programs_with_sanitizers_use_the_stack() {
    let (folder, source) = (Scratch::new(), program("checked.c"));
    let cases: [&[&str]; 4] = [
        &["-fsanitize=address"],
        &["-fsanitize=address", "-static-libasan"],
        &["-fsanitize=leak"],
        &["-fsanitize=undefined"],
    ];
    for options in cases {
        let binary = folder.file("checked");
        let gcc = Command::new("gcc").args(options).args(["-o", &binary, &source]).output();
        let gcc = gcc.expect("gcc");
        assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
        let out = run(&Namespace::new(), Mode::Rootless, &[], &[&binary]).ok();
        assert_eq!((&*out.stdout, &*out.stderr), ("echoed\n", ""), "{options:?}");
    }
}
