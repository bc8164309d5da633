//! Programs in C on the library: the examples, bad input, threads.

#[expect(dead_code, reason = "the preload library is for its own tests")]
#[path = "../../preload/tests/library/mod.rs"]
mod library;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Seconds after which a program that hangs is ended.
const LIMIT: &str = "100";
const WARNINGS: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g"];
/// Programs of `tests/c`.
const TESTS: [&str; 4] = ["bad_input", "exit", "reopen", "threads"];

/// Compiler and checker of a test program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Plain,
    Clang,
    /// With AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer.
    Sanitizers,
    Valgrind,
}

/// A folder for the binaries of a test, removed on drop.
struct Folder(PathBuf);

/// A running program, ended on drop.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn header() -> PathBuf {
    root().join("api/capi/include/towpath.h")
}

/// The folder of the library.
fn libraries(tool: Tool) -> PathBuf {
    let profile = library::profile();
    if tool != Tool::Valgrind {
        return library::built("towpath-c", profile).parent().expect("a folder").into();
    }
    let target = profile.parent().expect("the target folder").join("valgrind");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "towpath-c", "--features", "valgrind"]);
    assert!(cargo.arg("--target-dir").arg(&target).status().expect("run cargo").success());
    target.join("debug")
}

/// Runs a command, which must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("capi-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Compiles a program, and returns the command that runs it.
    fn program(&self, source: &Path, tool: Tool) -> Command {
        let name = source.file_stem().expect("a name");
        let (binary, libraries) = (self.0.join(name), libraries(tool));
        let mut compiler = compiler(if tool == Tool::Clang { "clang" } else { "gcc" });
        if tool == Tool::Sanitizers {
            compiler.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        }
        compiler.arg(source).arg("-o").arg(&binary).arg("-L").arg(&libraries);
        run(compiler.args(["-ltowpath_c", "-pthread"]));
        let mut command = Command::new("timeout");
        command.arg(LIMIT).env("LD_LIBRARY_PATH", &libraries);
        if tool == Tool::Valgrind {
            // A search for leaks would read all address space of the stacks.
            command.args(["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=no"]);
        }
        command.arg(binary);
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn compiler(name: &str) -> Command {
    let mut command = Command::new(name);
    command.args(WARNINGS).arg("-I").arg(header().parent().expect("a folder"));
    command
}

fn test_source(name: &str) -> PathBuf {
    root().join("api/capi/tests/c").join(format!("{name}.c"))
}

fn example_source(name: &str) -> PathBuf {
    root().join("examples/c").join(format!("{name}.c"))
}

impl Program {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { input: child.stdin.take(), child, output }
    }

    /// Reads the address that a server prints.
    fn address(&mut self) -> SocketAddr {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().parse().unwrap_or_else(|_| panic!("{line:?} is no address"))
    }

    /// Closes the standard input, and waits for a successful end.
    fn end(mut self) {
        self.input = None;
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // `timeout` ends the program if the test has failed. A program that has ended is not
        // signalled, because it was waited for.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
            let _ = self.child.wait();
        }
    }
}

fn echo(server: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(server).expect("connected");
    let mut sending = stream.try_clone().expect("a descriptor");
    thread::scope(|scope| {
        scope.spawn(move || {
            sending.write_all(bytes).expect("sent");
            sending.shutdown(Shutdown::Write).expect("shut");
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("received");
        assert!(answer == bytes, "{} bytes came back", answer.len());
    });
}

fn tcp_server_echoes(name: &str, tool: Tool) {
    let folder = Folder::new(&format!("{name}-{tool:?}"));
    let mut command = folder.program(&example_source(name), tool);
    let mut program = Program::start({
        // The kernel chooses the port.
        command.arg("");
        command
    });
    let server = program.address();
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    echo(server, b"hello");
    thread::scope(|scope| {
        for part in bytes.chunks(100_000) {
            scope.spawn(move || echo(server, part));
        }
    });
    // A client that is idle while the server ends.
    let _idle = TcpStream::connect(server).expect("connected");
    program.end();
}

fn datagrams_come_back(tool: Tool) {
    let folder = Folder::new(&format!("udp-{tool:?}"));
    let mut command = folder.program(&example_source("udp_echo"), tool);
    command.arg("");
    let mut program = Program::start(command);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    // Unlike a connection, the socket does not see the end of the program.
    let limit = Duration::from_secs(LIMIT.parse().expect("seconds"));
    socket.set_read_timeout(Some(limit)).expect("a limit");
    socket.connect(program.address()).expect("connected");
    for text in ["one", "", "three", "end"] {
        socket.send(text.as_bytes()).expect("sent");
        let mut bytes = [0; 16];
        let len = socket.recv(&mut bytes).expect("an answer");
        assert_eq!(&bytes[..len], text.as_bytes());
    }
    program.end();
}

fn client_prints_the_answer(tool: Tool) {
    let folder = Folder::new(&format!("client-{tool:?}"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("bound").port().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("received");
        stream.write_all(text.to_uppercase().as_bytes()).expect("sent");
    });
    let mut command = folder.program(&example_source("client"), tool);
    assert_eq!(run(command.args(["10.0.2.2", &port, "down the towpath"])), "DOWN THE TOWPATH");
    server.join().expect("no panic");
}

fn exit_sends_what_was_written(tool: Tool) {
    let folder = Folder::new(&format!("exit-{tool:?}"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("bound").port().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("received");
        bytes.len()
    });
    run(folder.program(&test_source("exit"), tool).arg(&port));
    assert_eq!(server.join().expect("no panic"), 1 << 20);
}

fn test_program_succeeds(name: &str, tool: Tool) {
    let folder = Folder::new(&format!("{name}-{tool:?}"));
    run(&mut folder.program(&test_source(name), tool));
}

#[test]
fn header_declares_what_the_library_exports() {
    let library = libraries(Tool::Plain).join("libtowpath_c.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter(|(kind, _)| kind.ends_with(['T', 'W', 'D', 'B']))
        .map(|(_, name)| name)
        .collect();
    // gcc lists the declarations, without comments and preprocessor directives.
    let text = run(compiler("gcc").args(["-E", "-P"]).arg(header()));
    let is_name = |word: &&str| word.starts_with("towpath_");
    let names = |text: &'static str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let declared: BTreeSet<&str> = String::leak(text)
        .split(';')
        .filter_map(|declaration| declaration.split_once('(').map(|(before, _)| before))
        .filter_map(|before| names(before).rfind(is_name))
        .collect();
    assert_eq!(exported, declared);
    assert!(declared.len() >= 29, "{declared:?}");
}

#[test]
fn header_has_the_layout_of_the_library() {
    run(compiler("gcc").arg("-fsyntax-only").arg(test_source("header")));
}

#[test]
fn bad_input_is_an_errno() {
    test_program_succeeds("bad_input", Tool::Plain);
}

#[test]
fn closed_stacks_give_descriptors_and_address_space_back() {
    test_program_succeeds("reopen", Tool::Plain);
}

#[test]
fn exit_sends_data_without_errors_in_other_threads() {
    exit_sends_what_was_written(Tool::Plain);
}

#[test]
fn threads_share_sockets_sets_and_stacks() {
    test_program_succeeds("threads", Tool::Plain);
}

#[test]
fn echo_server_serves_several_clients() {
    tcp_server_echoes("echo_server", Tool::Plain);
}

#[test]
fn epoll_server_serves_several_clients() {
    tcp_server_echoes("epoll_server", Tool::Plain);
}

#[test]
fn udp_server_answers_each_datagram() {
    datagrams_come_back(Tool::Plain);
}

#[test]
fn client_sends_and_receives() {
    client_prints_the_answer(Tool::Plain);
}

/// A client with the static library, which is linked with the flags of `towpath.pc`.
#[test]
fn static_library_links_with_the_flags_of_pkg_config() {
    let folder = Folder::new("static");
    let libraries = libraries(Tool::Plain);
    let file = fs::read_to_string(root().join("api/capi/towpath.pc")).expect("towpath.pc");
    let private = file.lines().find_map(|line| line.strip_prefix("Libs.private: "));
    let binary = folder.0.join("bad_input");
    let mut gcc = compiler("gcc");
    gcc.arg(test_source("bad_input")).arg("-o").arg(&binary);
    gcc.arg(libraries.join("libtowpath_c.a")).args(private.expect("flags").split(' '));
    run(&mut gcc);
    run(Command::new("timeout").arg(LIMIT).arg(&binary));
}

/// Builds with other compilers, and runs under tools that find memory errors.
mod nightly {
    use super::*;

    fn all(tool: Tool) {
        let alone = TESTS.iter().filter(|name| **name != "exit");
        alone.for_each(|name| test_program_succeeds(name, tool));
        exit_sends_what_was_written(tool);
        ["echo_server", "epoll_server"].iter().for_each(|name| tcp_server_echoes(name, tool));
        datagrams_come_back(tool);
        client_prints_the_answer(tool);
    }

    #[test]
    fn sanitizers_report_nothing() {
        all(Tool::Sanitizers);
    }

    #[test]
    fn valgrind_reports_nothing() {
        all(Tool::Valgrind);
    }

    #[test]
    fn programs_of_clang_run() {
        all(Tool::Clang);
    }

    #[test]
    fn clang_accepts_the_header() {
        run(compiler("clang").arg("-fsyntax-only").arg(test_source("header")));
        // A header of C is often included by C++.
        let mut clang = Command::new("clang");
        clang.args(["-x", "c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
        run(clang.arg(header()));
    }
}
