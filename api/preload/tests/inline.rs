//! A process that contains the engine, and a program that it starts. The program must find this
//! engine as any program of a run does.

#[path = "../../posix/tests/host/mod.rs"]
mod host;
mod library;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use towpath_client::Buffer;
use towpath_posix::control::SendControl;
use towpath_posix::{Posix, socket, transfer};

/// Environment variable with the role of this process in the test.
const ROLE: &str = "TOWPATH_TEST_ROLE";
const LIBRARY: &str = "TOWPATH_TEST_LIBRARY";
const PORT: u16 = 80;
const ROUNDS: usize = 200;

static POSIX: Posix = Posix::new();

#[test]
fn a_program_is_served_by_the_process_that_started_it_and_learns_of_its_end() {
    match std::env::var(ROLE).as_deref() {
        Ok("host") => return host(),
        Ok("program") => return program(),
        _ => {}
    }
    let mut host = again("host").env(LIBRARY, library::preload()).spawn().expect("the host starts");
    let mut lines = BufReader::new(host.stdout.take().expect("piped")).lines();
    wait_for("served", &mut lines);
    host.kill().expect("it is there");
    host.wait().expect("it ended");
    wait_for("down", &mut lines);
}

/// Waits for a line in the output of another process, skipping lines of its test harness.
fn wait_for(what: &str, lines: &mut Lines<BufReader<ChildStdout>>) {
    let found = lines.map_while(Result::ok).any(|line| line == what);
    assert!(found, "{what}");
}

/// Returns a command that starts this test executable in another role.
fn again(role: &str) -> Command {
    let name = "a_program_is_served_by_the_process_that_started_it_and_learns_of_its_end";
    let mut command = Command::new(std::env::current_exe().expect("this executable"));
    command.args(["--exact", name, "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Runs the engine, answers the program on its own thread, and then waits until the program ends.
fn host() {
    let (_, remote, _stands_by) = host::standing_by(&POSIX, "stands-by");
    let mut name: libc::sockaddr_in = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: PORT.to_be(),
        sin_addr: libc::in_addr { s_addr: 0 },
        sin_zero: [0; 8],
    };
    let listener = socket::socket(&POSIX, libc::AF_INET, libc::SOCK_STREAM, 0).expect("a socket");
    // SAFETY: `name` is a valid address of 16 bytes.
    let bound = unsafe { socket::bind(&POSIX, listener, (&raw mut name).cast(), 16) };
    assert_eq!(bound, Ok(()));
    assert_eq!(socket::listen(&POSIX, listener, 1), Ok(()));
    let mut program = start_program(&remote.attach().expect("a channel"));
    let null = std::ptr::null_mut();
    // SAFETY: null means that no address is returned.
    let fd = unsafe { socket::accept4(&POSIX, listener, null, null.cast(), 0) };
    let fd = fd.expect("a connection");
    loop {
        let mut bytes = [0u8; 64];
        let room = [Buffer { at: bytes.as_mut_ptr(), len: bytes.len() }];
        // SAFETY: `room` is a valid buffer.
        let len = unsafe { transfer::recv(&POSIX, fd, &room, 0) }.expect("bytes").len;
        if len == 0 {
            break;
        }
        let part = [Buffer { len, ..room[0] }];
        // SAFETY: `part` has valid bytes.
        let sent = unsafe { transfer::send(&POSIX, fd, &part, 0, None, &SendControl::default()) };
        assert_eq!(sent, Ok(len));
    }
    program.wait().expect("it ends");
}

fn start_program(control: &OwnedFd) -> Child {
    let number = control.as_raw_fd();
    let mut command = again("program");
    command
        .stdout(Stdio::inherit())
        .env("TOWPATH_CONTROL", number.to_string())
        .env("LD_PRELOAD", std::env::var_os(LIBRARY).expect("a path"));
    // SAFETY: fcntl is async-signal-safe, so it may be called between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    command.spawn().expect("the program starts")
}

/// Sends requests and checks the replies until the host has gone.
fn program() {
    let mut stream = TcpStream::connect(("127.0.0.1", PORT)).expect("the host listens");
    for n in 0..ROUNDS {
        let mut bytes = [0; 8];
        stream.write_all(&n.to_ne_bytes()).expect("it is sent");
        stream.read_exact(&mut bytes).expect("it is answered");
        assert_eq!(bytes, n.to_ne_bytes());
    }
    say("served");
    let error = stream.read(&mut [0]).expect_err("nothing comes");
    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
    say("down");
    // Exit before the test harness prints its result, because the parent reads this output.
    std::process::exit(0);
}

fn say(what: &str) {
    std::io::stdout().write_all(format!("\n{what}\n").as_bytes()).expect("it is read");
}
