//! Python's http.server and curl: the main job, and a gigabyte each way.

use std::time::Duration;

use towpath_tests::{
    Mode, Namespace, Process, Scratch, program, run, start, wait_for_listener, wait_for_port,
};

const GIB: u64 = 1 << 30;

/// BLAKE2b, which takes a third of the time of SHA-256.
fn digest(path: &str) -> String {
    let line = Process::spawn(&["b2sum", path]).wait(Duration::from_secs(60)).ok().stdout;
    line.split_whitespace().next().expect("a digest").to_owned()
}

/// The command of the README, and a page in return.
#[test]
fn http_server_serves_a_page() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        folder.write("index.html", "<h1>served by towpath</h1>");
        let port = if mode == Mode::Tap { 80 } else { 8080 };
        let server = start(
            &ns,
            mode,
            &[port],
            &[
                "python3",
                "-m",
                "http.server",
                "-d",
                folder.path().to_str().expect("plain"),
                &port.to_string(),
            ],
        );
        wait_for_listener(&server, port);
        for _ in 0..20 {
            let page = ns
                .run(&["curl", "-sS", "-m", "10", &format!("http://{}:{port}/", mode.host())])
                .ok();
            assert_eq!(page.stdout, "<h1>served by towpath</h1>", "{mode:?}");
        }
        // The request is in the program's own log, which comes through untouched.
        assert!(server.stderr().contains("GET / HTTP/1.1\" 200"), "{}", server.stderr());
    }
}

/// A program on Towpath serves 1 GiB, and takes 1 GiB.
#[test]
fn a_gigabyte_from_and_to_a_server() {
    let folder = Scratch::new();
    let big = folder.big("big", GIB);
    let digest = digest(&big);
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let server = start(
            &ns,
            mode,
            &[8081],
            &["python3", &program("receive.py"), "8081", folder.path().to_str().expect("plain")],
        );
        wait_for_listener(&server, 8081);
        let url = format!("http://{}:8081/big", mode.host());
        ns.shell(&format!("curl -sS -m 100 {url} | cmp - {big}")).ok();
        let up = ns.run(&["curl", "-sS", "-m", "100", "-T", &big, &url]).ok();
        assert_eq!(up.stdout.trim(), digest, "{mode:?} up");
    }
}

/// curl on Towpath fetches 1 GiB from a server of the host, and sends it back.
#[test]
fn a_gigabyte_from_and_to_a_client() {
    let folder = Scratch::new();
    let big = folder.big("big", GIB);
    let digest = digest(&big);
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let _server = ns.spawn(&[
            "python3",
            &program("receive.py"),
            "8082",
            folder.path().to_str().expect("plain"),
        ]);
        wait_for_port(&ns, "127.0.0.1", 8082);
        let url = format!("http://{}:8082/big", mode.peer());
        let copy = folder.file("copy");
        run(&ns, mode, &[], &["curl", "-sS", "-m", "100", "-o", &copy, &url]).ok();
        ns.run(&["cmp", &copy, &big]).ok();
        let up = run(&ns, mode, &[], &["curl", "-sS", "-m", "100", "-T", &big, &url]).ok();
        assert_eq!(up.stdout.trim(), digest, "{mode:?} up");
    }
}

/// Nobody listens: the program hears it as it would from the kernel.
#[test]
fn a_refused_connection_is_refused() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let url = format!("http://{}:9/", mode.peer());
        let out = run(&ns, mode, &[], &["curl", "-sS", "-m", "10", &url]);
        assert_eq!(out.code(), 7, "{mode:?}: {}", out.stderr);
    }
}
