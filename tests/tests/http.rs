//! Python's http.server and curl, with up to a gigabyte in each direction.

use towpath_tests::{
    Mode, Namespace, PATIENCE, Process, Scratch, program, run, start, wait_for_listener,
    wait_for_port,
};

const GIB: u64 = 1 << 30;
/// Enough for windows to open fully, and for FIFOs and sequence numbers to wrap around.
const MUCH: u64 = 64 << 20;

/// Returns the BLAKE2b digest, which takes a third of the time of SHA-256.
fn digest(path: &str) -> String {
    let line = Process::spawn(&["b2sum", path]).wait(PATIENCE).ok().stdout;
    line.split_whitespace().next().expect("a digest").to_owned()
}

/// The command of the README serves a page.
#[test]
fn http_server_serves_a_page() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        folder.write("index.html", "<h1>served by towpath</h1>");
        let port = if mode == Mode::Tap { 80 } else { ns.port(8080) };
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
                .run(&["curl", "-sS", "-m", "50", &format!("http://{}:{port}/", mode.host())])
                .ok();
            assert_eq!(page.stdout, "<h1>served by towpath</h1>", "{mode:?}");
        }
        // The program's own log appears unchanged, and contains the request.
        assert!(server.stderr().contains("GET / HTTP/1.1\" 200"), "{}", server.stderr());
    }
}

#[test]
fn much_from_and_to_a_server() {
    from_and_to_a_server(MUCH);
}

/// A program on Towpath serves a file, and receives one.
fn from_and_to_a_server(len: u64) {
    let folder = Scratch::new();
    let big = folder.big("big", len);
    let digest = digest(&big);
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let port = ns.port(8081);
        let path = folder.path().to_str().expect("plain");
        let command = ["python3", &program("receive.py"), &port.to_string(), path];
        let server = start(&ns, mode, &[port], &command);
        wait_for_listener(&server, port);
        let url = format!("http://{}:{port}/big", mode.host());
        ns.shell(&format!("curl -sS {url} | cmp - {big}")).ok();
        let up = ns.run(&["curl", "-sS", "-T", &big, &url]).ok();
        assert_eq!(up.stdout.trim(), digest, "{mode:?} up");
    }
}

#[test]
fn much_from_and_to_a_client() {
    from_and_to_a_client(MUCH);
}

/// curl on Towpath downloads a file from a server of the host, and uploads it.
fn from_and_to_a_client(len: u64) {
    let folder = Scratch::new();
    let big = folder.big("big", len);
    let digest = digest(&big);
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let port = ns.port(8082);
        let path = folder.path().to_str().expect("plain");
        let _server = ns.spawn(&["python3", &program("receive.py"), &port.to_string(), path]);
        wait_for_port(&ns, "127.0.0.1", port);
        let url = format!("http://{}:{port}/big", mode.peer());
        let copy = folder.file("copy");
        run(&ns, mode, &[], &["curl", "-sS", "-o", &copy, &url]).ok();
        ns.run(&["cmp", &copy, &big]).ok();
        let up = run(&ns, mode, &[], &["curl", "-sS", "-T", &big, &url]).ok();
        assert_eq!(up.stdout.trim(), digest, "{mode:?} up");
    }
}

mod nightly {
    use super::*;

    #[test]
    fn a_gigabyte_from_and_to_a_server() {
        from_and_to_a_server(GIB);
    }

    #[test]
    fn a_gigabyte_from_and_to_a_client() {
        from_and_to_a_client(GIB);
    }
}

/// Without a listener, the program gets the same error as on the kernel.
#[test]
fn a_refused_connection_is_refused() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let url = format!("http://{}:9/", mode.peer());
        let out = run(&ns, mode, &[], &["curl", "-sS", "-m", "50", &url]);
        assert_eq!(out.code(), 7, "{mode:?}: {}", out.stderr);
    }
}
