//! Standard error that is closed or never read: messages are lost, but nothing else is affected.

use std::process::{Command, Output};

use towpath_tests::EMPTY_FOLDERS;

fn towpath() -> &'static str {
    env!("CARGO_BIN_EXE_towpath")
}

fn bash(script: &str) -> Output {
    Command::new("bash").args(["-c", script, towpath()]).output().expect("bash")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error is a pipe whose read end is closed.
#[test]
fn a_closed_standard_error_changes_no_exit_status() {
    let cases = [
        ("run --stats -- sh -c 'exit 3'", "3"),
        ("run --stats=json -- true", "0"),
        ("run -p 127.0.0.1:0:80 -- true", "125"),
        ("run -- no-such-program", "127"),
        ("juggle", "2"),
        // The message about remaining processes is printed after two seconds.
        ("run -- sh -c 'sleep 3 & exit 4'", "4"),
    ];
    for (words, wanted) in cases {
        let script = format!("exec 2> >(exec true); wait $!; \"$0\" {words}; echo $?");
        let output = bash(&script);
        assert_eq!(stdout(&output), format!("{wanted}\n"), "{words}");
    }
    // Pipe the output to head(1), as operators do, so that the reader closes first.
    let output = bash(
        "{ \"$0\" run --stats -- sh -c 'sleep 0.2; exit 5'; echo $? >&3; } 3>&1 2>&1 | head -c 0",
    );
    assert_eq!(stdout(&output), "", "the pipe is gone");
    let output = bash(
        "exec 3>&1; { \"$0\" run --stats -- sh -c 'echo x; sleep 0.2; exit 5' 2>&1; echo $? >&3; \
         } | head -n 1 >/dev/null",
    );
    assert_eq!(stdout(&output), "5\n");
}

/// Runs a command whose standard error is a full pipe that is never read. Prints the output of the
/// command.
const STALLED: &str = r#"
import os, signal, subprocess, sys, time
r, w = os.pipe()
os.set_blocking(w, False)
try:
    while True: os.write(w, b'.' * 4096)
except BlockingIOError: pass
try:
    while True: os.write(w, b'.')
except BlockingIOError: pass
os.set_blocking(w, True)
run = subprocess.Popen([sys.argv[1], 'run', *sys.argv[3:]], stderr=w, stdout=subprocess.PIPE)
try:
    if sys.argv[2] != 'plain':
        program = int(run.stdout.readline() if sys.argv[2] == 'term' else 0)
        def stuck():
            # Of the main thread: proc_pid_syscall(5), and write(2) on x86-64.
            writes = open(f'/proc/{run.pid}/syscall').read().startswith('1 0x2 ')
            return writes if sys.argv[2] == 'error' else not os.path.exists(f'/proc/{program}')
        while run.poll() is None:
            if stuck(): run.send_signal(signal.SIGTERM)
            time.sleep(.2)
        print(run.poll())
        sys.exit()
    out, _ = run.communicate()
    print(run.returncode, out.decode(), end='')
finally:
    run.kill()
"#;

fn stalled(kind: &str, words: &[&str]) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", STALLED, towpath(), kind]).args(words);
    let output = command.output().expect("python3");
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

/// The warning about pings is created on the engine's thread, which also serves connections.
#[test]
fn a_standard_error_that_nobody_reads_stalls_no_connection() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: needs root, to become a user who may not ping");
        return;
    }
    let program = r#"
import socket
ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
ping.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]), ("192.0.2.1", 0))
server = socket.create_server(("127.0.0.1", 80))
client = socket.create_connection(server.getsockname())
conn, _ = server.accept()
for _ in range(100):
    client.sendall(b"x" * 1000)
    got = 0
    while got < 1000: got += len(conn.recv(1000))
print("echoed")
"#;
    // A new network namespace has its own ping_group_range, which permits no group.
    let script = r#"as 1000 python3 -c "$1" $T plain -- python3 -c "$2""#;
    let script = format!("{EMPTY_FOLDERS}\ncd /tmp; {script}");
    let output = Command::new("unshare")
        .args(["-n", "-m", "bash", "-c", &script])
        .args([towpath(), STALLED, program])
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .output()
        .expect("unshare");
    assert_eq!(stdout(&output), "0 echoed\n", "{output:?}");
}

/// Neither the start nor the end of the run waits for the reader. A signal ends the wait for the
/// last messages.
#[test]
fn a_standard_error_that_nobody_reads_stalls_no_run() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let publish = format!("{}:80", taken.local_addr().expect("bound").port());
    let words = ["-p", &publish, "--", "sh", "-c", "echo ran; exit 6"];
    assert_eq!(stalled("error", &words).trim_end(), "-15", "the error that the port is taken");
    drop(taken);
    assert_eq!(stalled("plain", &words).trim_end(), "6 ran", "the facts at the start");
    let words = ["--stats", "--", "sh", "-c", "echo $$; exit 7"];
    assert_eq!(stalled("term", &words).trim_end(), "7", "the counters at the end");
}

/// ssh and other programs set O_NONBLOCK on their standard error, which may be the same open file
/// as towpath's.
#[test]
fn a_standard_stream_that_does_not_block_gets_all_of_it() {
    // Use pipes of minimum size, which are full before the first read.
    let slowly = r#"
import fcntl, os, subprocess, sys, time
r, w = os.pipe()
fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 4096)
os.set_blocking(w, False)
os.write(w, b'.' * 4096)
run = subprocess.Popen(sys.argv[2:], **{sys.argv[1]: w})
os.close(w)
time.sleep(.5)
out = b''
while part := os.read(r, 100): out += part
print(run.wait(), out.decode().lstrip('.'), end='')
"#;
    let got = |stream: &str, words: &[&str]| {
        let mut command = Command::new("python3");
        command.args(["-c", slowly, stream, towpath()]).args(words);
        stdout(&command.output().expect("python3"))
    };
    let counters = got("stderr", &["run", "--stats=json", "--", "true"]);
    assert!(counters.starts_with("0 ") && counters.trim_end().ends_with('}'), "{counters}");
    let words = ["completions", "bash"];
    let script = Command::new(towpath()).args(words).output().expect("towpath");
    assert_eq!(got("stdout", &words), format!("0 {}", stdout(&script)));
}
