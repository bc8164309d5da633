//! Programs that end with undelivered bytes. Either all bytes arrive, or the peer sees a reset, but
//! never a clean end of an incomplete stream.

use rustix::process::Signal;
use towpath_tests::{
    Mode, Namespace, Output, PATIENCE, Process, eventually, is_inline, start, wait_for_listener,
};

/// Seconds of a pause that exceeds any plausible timeout of a run.
const PAUSE: &str = "8";
/// Prints the number of bytes before the end, the kind of the end, and the digest.
const READ: &str = "
import hashlib, sys, time
def read(s, pause):
    s.recv(1)
    print('begun', flush=True)
    time.sleep(pause)
    digest, n, end = hashlib.sha256(b'x'), 1, 'end'
    try:
        while part := s.recv(65536):
            digest.update(part); n += len(part)
    except ConnectionResetError:
        end = 'reset'
    print(n, end, digest.hexdigest())
";

/// Fills all buffers with data for `READ`, prints its size and digest, and ends.
const SEND: &str = "
import hashlib, os, socket, sys
def send(s, how):
    s.sendall(b'x')
    digest, n = hashlib.sha256(b'x'), 1
    s.settimeout(1)
    try:
        while True:
            part = os.urandom(20000)
            taken = s.send(part)
            digest.update(part[:taken]); n += taken
    except TimeoutError:
        pass
    print(n, 'end', digest.hexdigest(), flush=True)
    if how == 'killed': os.kill(os.getpid(), 9)
    s.close()
";

fn reader(ns: &Namespace, port: u16, pause: &str) -> Process {
    let script = format!(
        "import socket{READ}
l = socket.create_server(('0.0.0.0', {port}))
print('listens', flush=True)
read(l.accept()[0], {pause})"
    );
    let reader = ns.spawn(&["python3", "-c", &script]);
    eventually("the reader listens", || reader.stdout().contains("listens"));
    reader
}

fn sender(ns: &Namespace, mode: Mode, port: u16, how: &str) -> Process {
    let peer = mode.peer();
    let script = format!(
        "{SEND}
send(socket.create_connection(('{peer}', {port})), '{how}')"
    );
    start(ns, mode, &[], &["python3", "-c", &script])
}

/// Parses a side's report of the stream: number of bytes, kind of end, and digest.
fn told(by: &str) -> (usize, String, String) {
    let mut words = by.lines().last().expect("a line").split(' ');
    let mut word = || words.next().expect("three words").to_owned();
    (word().parse().expect("a number"), word(), word())
}

fn arrived_whole(reader: Process, sender: &Output) {
    let reader = reader.wait(PATIENCE).ok();
    assert_eq!(told(&reader.stdout), told(&sender.stdout), "{}", sender.stderr);
}

fn was_cut_off(reader: Process, sender: &Output) {
    let reader = reader.wait(PATIENCE).ok();
    let (n, end, _) = told(&reader.stdout);
    assert!(n < told(&sender.stdout).0 && end == "reset", "{n} bytes, then {end}");
}

#[test]
fn what_a_program_wrote_arrives_however_slowly_it_is_read() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let reader = reader(&ns, 7600, PAUSE);
        let mut run = sender(&ns, mode, 7600, "closed");
        eventually("the run says that it is sending", || {
            run.stderr().contains("is still sending") && run.stderr().contains("Ctrl-C cuts")
        });
        assert!(run.is_running());
        let run = run.wait(PATIENCE).ok();
        arrived_whole(reader, &run);
    }
}

/// As on Linux, the sockets of a killed process are closed, and written bytes are delivered.
#[test]
fn what_a_killed_program_wrote_arrives() {
    use std::os::unix::process::ExitStatusExt;
    if is_inline() {
        // SIGKILL ends the stack together with its process.
        return;
    }
    let ns = Namespace::new();
    let reader = reader(&ns, 7601, PAUSE);
    let run = sender(&ns, Mode::Rootless, 7601, "killed").wait(PATIENCE);
    assert_eq!(run.status.signal(), Some(9));
    arrived_whole(reader, &run);
}

#[test]
fn a_run_that_is_cut_off_resets_its_connections() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let reader = reader(&ns, 7602, PAUSE);
        let run = sender(&ns, mode, 7602, "closed");
        eventually("bytes arrive", || reader.stdout().contains("begun"));
        eventually("the program has ended", || run.stderr().contains("is still sending"));
        run.signal(Signal::TERM);
        let sent = run.wait(PATIENCE);
        was_cut_off(reader, &sent);
    }
}

/// After SIGKILL the kernel closes the host's sockets, which must then send a reset.
#[test]
fn a_run_that_is_killed_resets_its_connections() {
    let ns = Namespace::new();
    let reader = reader(&ns, 7603, PAUSE);
    let run = sender(&ns, Mode::Rootless, 7603, "closed");
    eventually("the program has ended", || run.stderr().contains("is still sending"));
    run.signal(Signal::KILL);
    let sent = run.wait(PATIENCE);
    was_cut_off(reader, &sent);
}

/// Opposite direction: a server answers one client, and ends.
#[test]
fn the_answer_of_a_server_that_ended_arrives() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let script = format!(
            "{SEND}
send(socket.create_server(('0.0.0.0', 7604)).accept()[0], 'closed')"
        );
        let run = start(&ns, mode, &[7604], &["python3", "-c", &script]);
        wait_for_listener(&run, 7604);
        let host = mode.host();
        let script = format!(
            "import socket{READ}
s = socket.create_connection(('{host}', 7604))
s.shutdown(socket.SHUT_WR)
read(s, {PAUSE})"
        );
        let reader = ns.spawn(&["python3", "-c", &script]);
        let run = run.wait(PATIENCE).ok();
        arrived_whole(reader, &run);
    }
}

/// A server refuses a request and ends before reading all of it. The client must receive the answer
/// before the reset.
#[test]
fn an_answer_arrives_before_the_reset_of_a_server_that_ended() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let script = "
import socket
s = socket.create_server(('0.0.0.0', 7605)).accept()[0]
s.recv(3)
s.sendall(b'413 too large')";
        let run = start(&ns, mode, &[7605], &["python3", "-c", script]);
        wait_for_listener(&run, 7605);
        let host = mode.host();
        let script = format!(
            "
import socket
s = socket.create_connection(('{host}', 7605))
s.sendall(b'request')
answer, end = b'', 'end'
try:
    while part := s.recv(65536):
        answer += part
except ConnectionResetError:
    end = 'reset'
print(answer, end)"
        );
        let client = ns.spawn(&["python3", "-c", &script]).wait(PATIENCE).ok();
        run.wait(PATIENCE).ok();
        assert_eq!(client.stdout.trim(), "b'413 too large' reset");
    }
}
