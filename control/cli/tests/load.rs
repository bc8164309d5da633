//! `towpath load` as a user sees it: real runs against a multithreaded server, and invalid input.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Options of a short run, which is sufficient for all figures.
const SHORT: [&str; 4] = ["--duration", "300ms", "--users", "3"];

fn load(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.arg("load").args(words).stdin(Stdio::null());
    command
}

/// Runs a short test of a server with further options.
fn short(server: SocketAddr, words: &[&str]) -> Output {
    let host = server.to_string();
    let mut command = load(&["--host", &host]);
    command.args(SHORT).args(words).output().expect("towpath starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

#[track_caller]
fn ended_with(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}{}", stdout(output), stderr(output));
}

/// Function that serves a connection on its own thread.
type Serve = fn(TcpStream);

/// Starts a server that calls `serve` on a thread per connection.
fn server(serve: Serve) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || serve(connection));
        }
    });
    address
}

fn echo(mut connection: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(len) = connection.read(&mut bytes) {
        if len == 0 || connection.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

/// Answers each read with its bytes in capital letters, which differ from the message.
fn shout(mut connection: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(len) = connection.read(&mut bytes) {
        bytes[..len].make_ascii_uppercase();
        if len == 0 || connection.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

/// Reads a request and closes.
fn close(mut connection: TcpStream) {
    let _ = connection.read(&mut [0; 64]);
}

/// Echoes a request and closes.
fn echo_once(mut connection: TcpStream) {
    let mut bytes = [0; 64];
    if let Ok(len) = connection.read(&mut bytes) {
        let _ = connection.write_all(&bytes[..len]);
    }
}

/// Answers as HTTP/1.0 does, and closes after the answer.
fn http_once(mut connection: TcpStream) {
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match connection.read(&mut bytes) {
            Ok(len @ 1..) => request.extend_from_slice(&bytes[..len]),
            _ => return,
        }
    }
    let _ = connection.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let address = socket.local_addr().expect("bound");
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..len], from);
        }
    });
    address
}

/// Returns an address without a listener. The returned socket is bound but does not listen, so that
/// it reserves the port.
fn unused_port() -> (SocketAddr, rustix::fd::OwnedFd) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    bind(&fd, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind");
    let name = getsockname(&fd).expect("bound");
    (SocketAddr::try_from(name).expect("an IPv4 address"), fd)
}

/// A directory that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("towpath-load-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the value of a line `name: value`.
fn word<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} is missing:\n{text}")).trim()
}

fn number(text: &str, name: &str) -> u64 {
    word(text, name).parse().unwrap_or_else(|_| panic!("{name} is not a number:\n{text}"))
}

#[test]
fn text_begins_with_the_words_of_the_old_tester() {
    let output = short(server(echo), &["--message", "hi", "--interval", "5ms", "--no-live"]);
    ended_with(&output, 0);
    let text = stdout(&output);
    assert!(text.starts_with("=== Load Test Complete ===\nSent:     "), "{text}");
    let (sent, received) = (number(&text, "Sent"), number(&text, "Received"));
    assert!(received > 0 && sent == received + number(&text, "Failures"), "{text}");
    for name in ["Avg RTT", "p90", "p95", "p99"] {
        let time = word(&text, name);
        assert!(time.ends_with('s') && time.starts_with(|c: char| c.is_ascii_digit()), "{time}");
    }
    assert!(!stderr(&output).contains("closed loop of 3 users"), "--no-live");
}

#[test]
fn json_of_an_open_loop_adds_up() {
    let words = ["--rate", "400", "--arrivals", "uniform", "-o", "json"];
    let output = short(server(echo), &words);
    ended_with(&output, 0);
    let document = json(&output);
    assert_eq!((&document["schema"], &document["kind"]), (&1.into(), &"run".into()));
    assert_eq!((&document["argv"][0], &document["on"]), (&"towpath".into(), &"kernel".into()));
    let run = &document["run"];
    let count = |name: &str| run[name].as_u64().unwrap_or_else(|| panic!("{name}: {run}"));
    let failed = run["failures"].as_array().expect("a list").iter();
    let failed: u64 = failed.map(|it| it["count"].as_u64().expect("a count")).sum();
    assert!(count("received") > 0, "{run}");
    assert_eq!(count("sent"), count("received") + failed);
    for times in ["response", "service"] {
        let buckets = run[times]["buckets"].as_array().expect("buckets").iter();
        let counted: u64 = buckets.map(|it| it[1].as_u64().expect("a count")).sum();
        assert_eq!(counted, count("received"), "{times}");
    }
    let open = &run["plan"]["arrivals"]["open"];
    assert_eq!((&open["per_second"], &open["spacing"]), (&400.0.into(), &"uniform".into()));
    let progress = stderr(&output);
    assert!(progress.contains("open loop of 400/s with equal gaps, 3 users"), "{progress}");
}

#[test]
fn files_are_written_beside_the_text() {
    let folder = Folder::new("files");
    let path = |name: &str| folder.0.join(name);
    std::fs::write(path("json"), "x".repeat(1 << 20)).expect("an older file");
    let names = ["json", "csv", "series", "html"];
    let outputs = names.map(|name| format!("{name}={}", path(name).display()));
    let words: Vec<&str> = outputs.iter().flat_map(|output| ["-o", output]).collect();
    let output = short(server(echo), &words);
    ended_with(&output, 0);
    assert!(stdout(&output).starts_with("=== Load Test"));
    let read = |name| std::fs::read_to_string(path(name)).expect("it was written");
    let document: Value = serde_json::from_str(&read("json")).expect("nothing is left of the old");
    let received = &document["run"]["received"];
    let (csv, series) = (read("csv"), read("series"));
    let mut rows = csv.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let (heading, row) = (rows.next().expect("a heading"), rows.next().expect("a row"));
    let at = heading.iter().position(|name| *name == "received").expect("a column");
    assert_eq!(row[at], received.to_string());
    let periods = document["run"]["periods"].as_array().map(Vec::len);
    assert_eq!(Some(series.lines().count() - 1), periods);
    let page = read("html");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("<script") && page.contains("<svg"));
}

#[test]
fn datagrams_are_answered_by_datagrams() {
    let output = short(udp_echo(), &["--udp", "--interval", "5ms", "-o", "json"]);
    ended_with(&output, 0);
    let run = &json(&output)["run"];
    assert_eq!(run["plan"]["protocol"], "udp");
    assert!(run["received"].as_u64().is_some_and(|count| count > 0), "{run}");
}

#[test]
fn servers_that_close_after_each_answer_lose_nothing() {
    let cases: [(Serve, &[&str]); 3] = [
        (echo_once, &["--shape", "connect"]),
        (http_once, &["--shape", "connect", "--http", "/"]),
        (http_once, &["--http", "/"]),
    ];
    for (serve, words) in cases {
        let words = [words, &["--interval", "2ms", "-o", "json"]].concat();
        let output = short(server(serve), &words);
        ended_with(&output, 0);
        let run = &json(&output)["run"];
        assert_eq!(run["failures"], serde_json::json!([]), "{words:?}");
        assert_eq!(run["sent"], run["received"], "{words:?}");
    }
}

#[test]
fn idle_users_send_a_request_per_keepalive_interval() {
    let output = short(server(echo), &["--idle", "--keepalive-interval", "50ms", "-o", "json"]);
    ended_with(&output, 0);
    let run = &json(&output)["run"];
    assert_eq!(run["plan"]["shape"]["idle"]["heartbeat"], 0.05);
    assert!(run["received"].as_u64().is_some_and(|count| count > 0), "{run}");
}

#[test]
fn bad_input_is_refused_with_what_was_expected() {
    let cases: [(&[&str], &str); 21] = [
        (&["--host", "localhost"], "cannot resolve \"localhost\""),
        (&["--host", "127.0.0.1:0"], "port 0"),
        (&["--host", "a..b:7"], "cannot resolve \"a..b:7\""),
        (&["--users", "0"], "users is 0"),
        (&["--users", "x"], "invalid value 'x' for '--users"),
        (&["--rate", "0"], "a rate of 0 per second is not possible; expected 0.0002 to"),
        (&["--rate", "5", "--shape", "up"], "the shape request or connect"),
        (&["--arrivals", "uniform"], "--arrivals needs --rate or --search"),
        (&["https://127.0.0.1/"], "HTTPS is not supported"),
        (&["http://127.0.0.1:x/"], "http://127.0.0.1:8080/path"),
        (&["127.0.0.1:80"], "is not a URL"),
        (&["http://127.0.0.1/", "--http", "/"], "--http"),
        (&["--body", "x"], "--body needs HTTP"),
        (&["--rate", "fast"], "\"fast\" is not a rate"),
        (&["--rate", "5", "--interval", "1s"], "exclude each other"),
        (&["--duration", "10"], "\"10\" is not a time"),
        (&["--assert", "p99"], "'p99<5ms'"),
        (&["--search", "p99"], "p99=5ms"),
        (&["--compare", "127.0.0.1:7"], "--compare"),
        (&["--on", "moon"], "kernel, rootless, tap"),
        (&["--on", "tap"], "10.77.0.1:8080"),
    ];
    for (words, wanted) in cases {
        let output = load(words).output().expect("towpath starts");
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {message}");
        assert!(message.contains(wanted), "{words:?}: {message}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_found_before_the_run() {
    let host = server(echo).to_string();
    let words = ["--host", &host, "--duration", "1h", "-o", "json=/proc/no/such/file"];
    let output = load(&words).output().expect("towpath starts");
    ended_with(&output, 125);
    assert!(stderr(&output).contains("-o: cannot write /proc/no/such/file"), "{output:?}");
}

#[test]
fn a_refused_port_ends_the_command_with_status_4() {
    let (address, _bound) = unused_port();
    let output = short(address, &["--no-live"]);
    ended_with(&output, 4);
    let (text, message) = (stdout(&output), stderr(&output));
    assert!(text.contains("connection refused: no program listens"), "{text}");
    assert!(message.contains(&format!("no user had a connection to {address}")), "{message}");
}

#[test]
fn wrong_and_missing_answers_are_counted_by_kind() {
    for (serve, kind) in [(shout as Serve, "wrong_answer"), (close, "closed")] {
        let output = short(server(serve), &["-o", "json", "--no-live"]);
        ended_with(&output, 4);
        let failures = &json(&output)["run"]["failures"];
        let kinds: Vec<_> =
            failures.as_array().expect("a list").iter().map(|it| &it["kind"]).collect();
        assert!(kinds.contains(&&Value::from(kind)), "{kind}: {failures}");
        assert!(stderr(&output).contains("no request was answered"), "{kind}");
    }
    let output = short(server(shout), &["--answer", "any", "-o", "json"]);
    ended_with(&output, 0);
}

#[test]
fn bounds_decide_the_exit_status() {
    let address = server(echo);
    let kept = short(address, &["--assert", "p99<1h", "--assert", "rate>0"]);
    ended_with(&kept, 0);
    assert!(stdout(&kept).contains("Bound p99<1h: kept"));
    let missed = short(address, &["--assert", "p99<1h", "--assert", "p50<1ns", "--no-live"]);
    ended_with(&missed, 3);
    assert!(stderr(&missed).contains("towpath: --assert p50<1ns: the figure is "));
}

#[test]
fn servers_are_compared_in_turn() {
    let (a, b) = (server(echo).to_string(), server(echo).to_string());
    let words = ["--compare", &a, &b, "--duration", "50ms", "--users", "2", "-o", "json"];
    let output = load(&words).output().expect("towpath starts");
    ended_with(&output, 0);
    let comparison = &json(&output)["comparison"];
    for (side, name) in [(0, &a), (1, &b)] {
        let side = &comparison["sides"][side];
        assert_eq!(side["name"], **name);
        assert_eq!(side["runs"].as_array().map(Vec::len), Some(5));
    }
    let verdicts = comparison["verdicts"].as_array().expect("a list");
    let figures: Vec<_> = verdicts.iter().map(|it| &it["figure"]).collect();
    assert_eq!(figures, ["rate", "p50", "p99"]);
    for it in verdicts {
        let p = it["p"].as_f64().expect("a probability");
        assert!((0. ..=1.).contains(&p) && it["differs"] == (p <= 0.01), "{it}");
    }
    let order: Vec<_> = stderr(&output)
        .lines()
        .filter_map(|line| line.strip_prefix("towpath: ")?.split_once(", round ")?.0.chars().next())
        .collect();
    assert_eq!(order.len(), 20, "each run has a beginning and a result");
    assert!(order.chunks(4).all(|round| round == ['A', 'A', 'B', 'B']), "{order:?}");
}

#[test]
fn a_comparison_with_a_dead_server_has_no_verdict_on_times_and_ends_with_status_4() {
    let (dead, _bound) = unused_port();
    let (a, b) = (server(echo).to_string(), dead.to_string());
    let folder = Folder::new("dead");
    let page = folder.0.join("c.html");
    let name = page.to_str().expect("UTF-8");
    let words = ["--compare", &a, &b, "--duration", "50ms", "--users", "2", "-o", name];
    let output = load(&words).output().expect("towpath starts");
    ended_with(&output, 4);
    let text = stdout(&output);
    assert!(!text.contains("B is better"), "{text}");
    assert_eq!(text.matches("no verdict on times: B had a round without an answer").count(), 2);
    assert!(stderr(&output).contains(&format!("B ({b}) had no answer in round 1")));
    let page = std::fs::read_to_string(&page).expect("it was written");
    assert!(page.contains("connection refused") && !page.contains("B is better"));
}

#[test]
fn requests_that_never_left_are_told_and_later_than_every_bound() {
    fn slow(mut connection: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = connection.read(&mut bytes) {
            thread::sleep(std::time::Duration::from_millis(50));
            if connection.write_all(&bytes[..len]).is_err() {
                return;
            }
        }
    }
    let words = ["--rate", "2000", "--assert", "failures<1", "--assert", "p99<1h"];
    let output = short(server(slow), &words);
    ended_with(&output, 3);
    let text = stdout(&output);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(" due requests never left: the "), "{text}");
    assert!(text.contains("Bound failures<1: kept"), "{text}");
    assert!(text.contains("Bound p99<1h: MISSED, the figure is beyond every time"), "{text}");
    assert!(stderr(&output).contains("due requests never left"));
}

#[test]
fn urls_headers_and_bodies_are_sent_as_often_as_was_asked() {
    let host = server(http_once).to_string();
    let url = format!("http://{host}/path");
    let folder = Folder::new("body");
    let file = folder.0.join("body");
    std::fs::write(&file, "\r\n\r\n").expect("a file");
    let body = format!("@{}", file.display());
    let words = [&*url, "-H", "X-Test: 1", "--body", &body, "-n", "7", "-o", "json"];
    let output = load(&words).output().expect("towpath starts");
    ended_with(&output, 0);
    let run = &json(&output)["run"];
    assert_eq!(
        (&run["sent"], &run["received"], &run["ended"]),
        (&7.into(), &7.into(), &"requests".into())
    );
    let request = &run["plan"]["protocol"]["http1"];
    assert_eq!((&request["method"], &request["path"]), (&"POST".into(), &"/path".into()));
    assert_eq!((&request["host"], &request["body"]["bytes"]), (&host.into(), &4.into()));
    assert_eq!(request["headers"][0]["name"], "X-Test");
}

#[test]
fn a_server_that_closes_after_its_answers_is_named() {
    let output = short(server(http_once), &["--http", "/", "--interval", "2ms"]);
    ended_with(&output, 0);
    let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("--shape connect counts them"), "{text}");
}

#[test]
fn a_search_that_no_rate_can_satisfy_ends() {
    let host = server(echo).to_string();
    let words = ["--host", &host, "--rate", "16", "--duration", "100ms", "-o", "json"];
    let output = load(&words).args(["--search", "p50=1ns"]).output().expect("towpath starts");
    ended_with(&output, 0);
    let search = &json(&output)["search"];
    let steps = search["steps"].as_array().expect("a list");
    let rates: Vec<_> = steps.iter().map(|step| step["rate"].as_f64().expect("a rate")).collect();
    assert_eq!(rates, [16., 8., 4., 2., 1.]);
    assert_eq!(search["rate"], Value::Null);
}

/// Starts an echo server that reports each read through a channel.
fn telling() -> (SocketAddr, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("bound");
    let (told, first) = channel();
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let told = told.clone();
            thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(len @ 1..) = connection.read(&mut bytes) {
                    let _ = connection.write_all(&bytes[..len]);
                    let _ = told.send(());
                }
            });
        }
    });
    (address, first)
}

fn hour_long(address: SocketAddr) -> Child {
    let host = address.to_string();
    let mut command = load(&["--host", &host, "--duration", "1h", "--users", "2", "--no-live"]);
    command.args(["--interval", "10ms"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("towpath starts")
}

#[test]
fn signals_end_a_run_with_the_figures_so_far() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (address, first) = telling();
        let child = hour_long(address);
        // Wait for several requests of each user, so that some of them are answered.
        (0..8).for_each(|_| first.recv().expect("a request"));
        kill(Pid::from_raw(child.id() as i32), signal).expect("it runs");
        let output = child.wait_with_output().expect("it ends");
        ended_with(&output, 0);
        let text = stdout(&output);
        assert!(number(&text, "Received") > 0, "{text}");
        assert!(text.contains(" of 1h: stopped"), "{text}");
    }
}

/// Runs a command on a new terminal, and presses Ctrl-C once the view is shown. Prints how the
/// command ended, whether the terminal's modes are restored, and the output.
const TERMINAL: &str = r#"
import fcntl, json, os, struct, sys, termios
master, slave = os.openpty()
# The program changes the modes as soon as it starts.
before = termios.tcgetattr(slave)
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('4H', 30, 100, 0, 0))
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 2):
        os.dup2(slave, fd)
    out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.environ['TERM'] = 'xterm-256color'
    os.execv(sys.argv[2], sys.argv[2:])
shown, during, ended = b'', None, None
while ended is None:
    shown += os.read(master, 65536)
    if during is None and b'Ctrl-C' in shown:
        during = termios.tcgetattr(slave)
        os.write(master, b'\x03')
    if b'\x1b[?1049l' in shown:
        _, ended = os.waitpid(pid, 0)
after = termios.tcgetattr(slave)
echo = lambda modes: bool(modes[3] & termios.ECHO)
print(json.dumps({
    'code': os.waitstatus_to_exitcode(ended),
    'echo': [echo(before), echo(during), echo(after)],
    'same': before == after,
    'shown': shown.decode(errors='replace'),
}))
"#;

#[test]
fn the_terminal_is_given_back_after_ctrl_c() {
    let (address, _first) = telling();
    let folder = Folder::new("terminal");
    let (figures, host) = (folder.0.join("figures"), address.to_string());
    let mut command = Command::new("python3");
    command.args(["-c", TERMINAL]).arg(&figures).arg(env!("CARGO_BIN_EXE_towpath"));
    command.args(["load", "--host", &host, "--duration", "1h", "--interval", "1ms"]);
    let output = command.args(["-o", "json"]).output().expect("python3");
    assert!(output.status.success(), "{output:?}");
    let told = json(&output);
    assert_eq!((&told["code"], &told["same"]), (&0.into(), &true.into()));
    assert_eq!(told["echo"], serde_json::json!([true, false, true]));
    let shown = told["shown"].as_str().expect("text");
    assert!(shown.contains("\u{1b}[?1049h") && shown.contains("\u{1b}[?25h"), "{shown}");
    let figures = std::fs::read(&figures).expect("standard output");
    let figures: Value = serde_json::from_slice(&figures).expect("JSON and nothing else");
    assert_eq!(figures["run"]["ended"], "stopped");
}

#[test]
fn the_generator_runs_on_towpath() {
    let output = short(server(echo), &["--on", "rootless", "--interval", "5ms", "-o", "json"]);
    ended_with(&output, 0);
    let document = json(&output);
    assert_eq!(document["on"], "rootless");
    let run = &document["run"];
    assert!(run["received"].as_u64().is_some_and(|count| count > 0), "{run}");
    let address = run["address"].as_str().expect("an address");
    assert!(address.starts_with("10.0.2.2:"), "{address}");
    let argv = document["argv"].as_array().expect("a list");
    assert!(!argv.contains(&Value::from("--inside")), "{argv:?}");
}

#[test]
fn help_has_examples_and_exit_statuses() {
    let output = load(&["--help"]).output().expect("towpath starts");
    ended_with(&output, 0);
    let text = stdout(&output);
    for words in ["--header", "--requests", "--keyspace", "http://127.0.0.1:8080/index.html"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for words in ["Exit status:", "Examples:", "--keepalive-interval", "--search p99=5ms"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
