//! `--stream`: runs joined by Unix sockets, without root.

use towpath_tests::proxy_lab::counter;
use towpath_tests::{
    Output, PATIENCE, Process, Scratch, eventually, is_inline, towpath, wait_for_listener,
};

/// Length in bytes of the file that clients fetch: several times the buffer of a direction.
const FILE: u64 = 5_000_000;

/// Starts an HTTP server of the files in a folder.
fn serve(folder: &Scratch, socket: &str, address: &str) -> Process {
    let path = folder.path().to_str().expect("a path in UTF-8");
    let server = ["python3", "-m", "http.server", "80", "-d", path];
    let run = Process::spawn(&line(socket, address, &server));
    wait_for_listener(&run, 80);
    run
}

/// Fetches a file and returns its hash.
fn fetch(socket: &str, address: &str, url: &str) -> Output {
    let client = format!("curl -sS --fail --connect-timeout 20 {url} | sha256sum");
    let towpath = line(socket, address, &["sh", "-c", &client]);
    Process::spawn(&towpath).wait(PATIENCE).ok()
}

fn line<'a>(socket: &'a str, address: &'a str, program: &[&'a str]) -> Vec<&'a str> {
    static TOWPATH: std::sync::LazyLock<String> = std::sync::LazyLock::new(towpath);
    let options = ["run", "--stats=json", "--stream", socket, "--address", address, "--"];
    [&[TOWPATH.as_str()], &options[..], program].concat()
}

fn hash(file: &str) -> String {
    let sum = Process::spawn(&["sha256sum", file]).wait(PATIENCE).ok().stdout;
    sum.split_whitespace().next().expect("a hash").to_owned()
}

#[test]
fn two_runs_with_the_same_path_are_joined() {
    if is_inline() {
        return;
    }
    let folder = Scratch::new();
    let wanted = hash(&folder.big("big", FILE));
    let socket = folder.file("link.sock");
    let server = serve(&folder, &socket, "10.9.0.1/24");
    // The second client finds the listening run again after the first client has left.
    for _ in 0..2 {
        let got = fetch(&socket, "10.9.0.2/24", "http://10.9.0.1/big");
        assert!(got.stdout.starts_with(&wanted), "{}", got.stdout);
        assert!(counter(&got.stderr, "stream", "rx_bytes") > FILE);
    }
    let stats = server.stop().stderr;
    assert_eq!(counter(&stats, "stream", "peers"), 2, "{stats}");
    assert!(!std::path::Path::new(&socket).exists(), "the socket is removed at the end");
}

#[test]
fn a_router_joins_the_networks_of_two_runs() {
    if is_inline() {
        return;
    }
    let folder = Scratch::new();
    let wanted = hash(&folder.big("big", FILE));
    let (left, right) = (folder.file("left.sock"), folder.file("right.sock"));
    let (a, b) = (format!("a=stream:{left},10.1.0.1/24"), format!("b=stream:{right},10.2.0.1/24"));
    let towpath = towpath();
    let router = Process::spawn(&[&towpath, "router", "--stats=json", "--port", &a, "--port", &b]);
    eventually("the sockets are there", || {
        [&left, &right].iter().all(|socket| std::path::Path::new(socket).exists())
    });
    let server = serve(&folder, &left, "10.1.0.2/24");
    let got = fetch(&right, "10.2.0.2/24", "http://10.1.0.2/big");
    assert!(got.stdout.starts_with(&wanted), "{}", got.stdout);
    server.stop();
    let stats = router.stop().stderr;
    assert!(counter(&stats, "net", "forwarded") > 1000, "{stats}");
}

#[test]
fn a_path_that_is_a_file_is_refused() {
    let folder = Scratch::new();
    let file = folder.write("file", "text");
    let output = Process::spawn(&line(&file, "10.9.0.1/24", &["true"])).wait(PATIENCE);
    assert!(!output.success());
    assert!(output.stderr.contains("exists and is not a socket"), "{}", output.stderr);
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "text");
}
