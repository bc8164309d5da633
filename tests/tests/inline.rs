//! `towpath run --inline`: the stack in the program's own process.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use towpath_tests::{
    Mode, Namespace, Output, PATIENCE, Process, Scratch, eventually, program, run, towpath,
    wait_for_listener,
};

const SERVED_WITHIN: Duration = Duration::from_secs(60);

fn start(ns: &Namespace, mode: Mode, ports: &[u16], options: &[&str], command: &[&str]) -> Process {
    let (towpath, own) = (towpath(), mode.options(ports));
    let mut line = vec![towpath.as_str(), "run", "--inline"];
    // The environment of the tests may also request `--inline`, which may be given only once, or
    // several shards, which are not supported inline.
    let goes_with_it = |word: &&str| *word != "--inline" && !word.starts_with("--shards");
    let own = own.iter().map(String::as_str).filter(goes_with_it);
    line.extend(own.chain(options.iter().copied()));
    line.push("--");
    line.extend(command);
    ns.spawn(&line)
}

fn read(ns: &Namespace, url: &str) -> Output {
    ns.run(&["curl", "-sS", "--max-time", "20", "-o", "-", url]).ok()
}

#[test]
fn a_server_with_the_stack_in_its_process() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        folder.write("page", "from the server\n".repeat(10_000));
        let server = ["python3", "-m", "http.server", "8100", "-d", folder.file(".").leak()];
        let server = start(&ns, mode, &[8100], &["--stats"], &server);
        wait_for_listener(&server, 8100);
        for _ in 0..10 {
            let out = read(&ns, &format!("http://{}:8100/page", mode.host()));
            assert_eq!(out.stdout.len(), 160_000, "{mode:?}");
        }
        server.signal(rustix::process::Signal::INT);
        let out = server.wait(SERVED_WITHIN);
        // The process reports the counters of the stack and its port.
        let port = if mode == Mode::Tap { "tap." } else { "gateway." };
        for counter in ["engine.turns", port] {
            assert!(out.stderr.contains(counter), "{mode:?}: {}", out.stderr);
        }
    }
}

#[test]
fn a_client_with_the_stack_in_its_process() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        let sent = folder.big("file", 5_000_000);
        let command = ["python3", "-m", "http.server", "8101", "-d", folder.file(".").leak()];
        let server = ns.spawn(&command);
        let url = format!("http://{}:8101/file", mode.peer());
        let got = folder.file("got");
        let fetch = || start(&ns, mode, &[], &[], &["curl", "-sS", "-m", "20", "-o", &got, &url]);
        eventually("the file comes", || fetch().wait(SERVED_WITHIN).success());
        assert!(std::fs::read(&got).expect("a file") == std::fs::read(&sent).expect("a file"));
        server.stop();
    }
}

mod nightly {
    use super::*;

    /// PROGRAM's only thread handles each request, which must not wake any other thread or process.
    #[test]
    fn a_request_costs_no_change_of_threads() {
        const REQUESTS: u64 = 3000;
        let ns = Namespace::new();
        let server = ["redis-server", "--port", "8102", "--save", "", "--protected-mode", "no"];
        let run = start(&ns, Mode::Rootless, &[8102], &[], &server);
        wait_for_listener(&run, 8102);
        let benchmark = |requests: u64| {
            let count = requests.to_string();
            let line =
                ["redis-benchmark", "-p", "8102", "-n", &count, "-c", "1", "-q", "-t", "get"];
            ns.run(&line).ok();
        };
        benchmark(100);
        let process = holder(&run, 8102);
        let before = switches(process);
        benchmark(REQUESTS);
        let after = switches(process);
        let own = after.0 - before.0;
        let others = after.1 - before.1;
        // The serving thread sleeps once per request.
        assert!(own <= REQUESTS * 3 / 2 + 500, "{own} switches for {REQUESTS} requests");
        // Other threads only have timer ticks, and more on a busy machine.
        assert!(others < REQUESTS / 2, "{others} switches of other threads");
    }
}

/// Returns the process that listens, according to `towpath ss`.
fn holder(run: &Process, port: u16) -> u32 {
    let id = run.id().to_string();
    let out = Process::spawn(&[&towpath(), "ss", "-tlj", &id]).wait(SERVED_WITHIN).ok();
    let sockets: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
    let end = format!(":{port}");
    let listens = |socket: &&serde_json::Value| {
        socket["local"].as_str().is_some_and(|local| local.ends_with(&end))
    };
    let socket = sockets.as_array().expect("a list").iter().find(listens).expect("a listener");
    u32::try_from(socket["holders"][0].as_u64().expect("a process")).expect("a number")
}

/// Returns the context switches of the first thread of a process, and those of all other threads.
fn switches(process: u32) -> (u64, u64) {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let of = |task: &Path| {
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    };
    tasks.map(|task| task.expect("a thread").path()).fold((0, 0), |(first, others), task| {
        if task.ends_with(process.to_string()) {
            (first + of(&task), others)
        } else {
            (first, others + of(&task))
        }
    })
}

#[test]
fn what_was_written_is_delivered_when_the_program_exits() {
    for &mode in Mode::all() {
        is_delivered_at_the_end(mode, &[], 3);
    }
}

/// Written bytes are delivered even if the process does not call exit(3), as with the kernel's
/// sockets.
#[test]
fn what_was_written_is_delivered_when_the_program_ends_otherwise() {
    for &mode in Mode::all() {
        is_delivered_at_the_end(mode, &["_exit"], 3);
        // SIGTERM, SIGINT and SIGPIPE.
        for signal in ["15", "2", "13"] {
            let number = signal.parse::<i32>().expect("a number");
            is_delivered_at_the_end(mode, &[signal], 128 + number);
        }
    }
}

/// Checks delivery for a program that ends in the given way; `end` is its status in a shell.
fn is_delivered_at_the_end(mode: Mode, way: &[&str], end: i32) {
    let ns = Namespace::new();
    let leaves = program("inline/leaves.py");
    let line = [&["python3", &leaves, "8103"], way].concat();
    let run = start(&ns, mode, &[8103], &[], &line);
    wait_for_listener(&run, 8103);
    let script = format!(
        "import socket,time\ns=socket.create_connection(('{}',8103)); s.sendall(b'x'); \
         time.sleep(1)\n\
         n=0\nwhile d:=s.recv(1<<16): n+=len(d)\nprint(n)",
        mode.host()
    );
    let got = ns.run(&["python3", "-c", &script]).ok().stdout;
    assert_eq!(got, "3000000\n", "{mode:?} {way:?}");
    let status = run.wait(SERVED_WITHIN).status;
    // towpath is killed by the same signal as PROGRAM, or exits with the shell's code for it.
    let by_signal = status.signal().map(|signal| 128 + signal);
    assert_eq!(status.code().or(by_signal), Some(end), "{mode:?} {way:?}");
}

#[test]
fn children_are_served_until_the_program_ends() {
    let ns = Namespace::new();
    let line = ["python3", &program("inline/leaves.py"), "8104", "child"];
    let out = start(&ns, Mode::Rootless, &[], &[], &line).wait(SERVED_WITHIN);
    assert_eq!((out.code(), &*out.stdout), (3, "child: Network is down\n"), "{}", out.stderr);
}

/// The run's end waits for bytes written by PROGRAM, but not by its children.
#[test]
fn what_was_written_is_delivered_while_children_run() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let script = "import socket,time\n\
                      l=socket.create_server(('0.0.0.0',8111)); print('listens', flush=True)\n\
                      c=l.accept(); time.sleep(100)";
        let taker = ns.spawn(&["python3", "-c", script]);
        eventually("it listens", || taker.stdout().contains("listens"));
        let run =
            start(&ns, mode, &[8110], &[], &["python3", &program("inline/parent.py"), mode.peer()]);
        wait_for_listener(&run, 8110);
        let script = format!(
            "import socket,time\ns=socket.create_connection(('{}',8110)); s.sendall(b'x'); \
             time.sleep(5)\n\
             n=0\nwhile d:=s.recv(1<<16): n+=len(d)\nprint(n)",
            mode.host()
        );
        let got = ns.run(&["python3", "-c", &script]).ok().stdout;
        let out = run.wait(SERVED_WITHIN);
        let told = format!("parent: {got}child: Network is down\n");
        assert_eq!((out.code(), out.stdout.as_str()), (3, &*told), "{mode:?}: {}", out.stderr);
        assert!(out.stderr.contains("is still sending its last"), "{}", out.stderr);
    }
}

/// Blocked threads do not prevent the program's end, whether or not their calls use the process's
/// descriptors. The threads must not get an error from the leaving stack, because many programs
/// would abort.
#[test]
fn other_threads_do_not_end_what_exit_waits_for() {
    const PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static int listener(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 8)) exit(2);
    return fd;
}
static void *polls(void *fd) {
    int pipes[2];
    if (pipe(pipes)) exit(2);
    struct pollfd all[] = { { *(int *)fd, POLLIN }, { pipes[0], POLLIN } };
    poll(all, 2, -1);
    _exit(8);
}
static void *accepts(void *fd) {
    accept(*(int *)fd, 0, 0);
    _exit(9);
}
static void *reads(void *unused) {
    int pipes[2];
    char line[8];
    if (pipe(pipes)) exit(2);
    fgets(line, sizeof line, fdopen(pipes[0], "r"));
    _exit(10);
}
int main(void) {
    static char data[1 << 16];
    int own = listener(8114), other = listener(8115);
    pthread_t thread;
    pthread_create(&thread, 0, accepts, &other);
    pthread_create(&thread, 0, reads, 0);
    usleep(100000);
    pthread_create(&thread, 0, polls, &other);
    usleep(100000);
    int peer = accept(own, 0, 0);
    long sent = 0;
    for (ssize_t n; (n = send(peer, data, sizeof data, MSG_DONTWAIT)) > 0;) sent += n;
    FILE *stream = fdopen(peer, "w");
    fputs("held back", stream);
    printf("%ld\n", sent + 9);
    return 3;
}
"#;
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let (source, binary) = (folder.write("ends.c", PROGRAM), folder.file("ends"));
    let gcc = std::process::Command::new("gcc").args(["-pthread", "-o", &binary, &source]).status();
    assert!(gcc.expect("gcc").success());
    let run = start(&ns, Mode::Rootless, &[8114], &[], &[&binary]);
    wait_for_listener(&run, 8114);
    let script = "import socket,time\ns=socket.create_connection(('127.0.0.1',8114)); \
                  time.sleep(3)\n\
                  n=0\nwhile d:=s.recv(1<<16): n+=len(d)\nprint(n)";
    let got = ns.run(&["python3", "-c", script]).ok().stdout;
    let out = run.wait(SERVED_WITHIN);
    assert_eq!((out.code(), &out.stdout), (3, &got), "{}", out.stderr);
}

/// A signal to PROGRAM's process during exit(3) has the same effect as one to the run, and
/// PROGRAM's status is kept.
#[test]
fn a_program_that_leaves_is_cut_off_by_a_signal() {
    let ns = Namespace::new();
    let line = ["python3", &program("inline/leaves.py"), "8112", "much"];
    let run = start(&ns, Mode::Rootless, &[8112], &[], &line);
    wait_for_listener(&run, 8112);
    let process = holder(&run, 8112);
    let script = "import socket,time\ns=socket.create_connection(('127.0.0.1',8112)); \
                  s.sendall(b'x')\n\
                  time.sleep(100)";
    let _reader = ns.spawn(&["python3", "-c", script]);
    eventually("it leaves", || run.stderr().contains("Ctrl-C cuts them off"));
    ns.run(&["kill", &process.to_string()]).ok();
    assert_eq!(run.wait(PATIENCE).code(), 3);
}

/// A published port refuses clients after the stack has ended.
#[test]
fn published_ports_are_closed_when_the_stack_has_gone() {
    let folder = Scratch::new();
    let sleeper = outsider(&folder, "#include <unistd.h>\nint main(void) { sleep(60); }\n");
    for (port, ways) in [("8113", &["child"][..]), ("8114", &["program", &sleeper])] {
        let (ns, number) = (Namespace::new(), port.parse().expect("a port"));
        let outlived = program("inline/outlived.py");
        let line = [&["python3", &outlived, port], ways].concat();
        let mut run = start(&ns, Mode::Rootless, &[number], &[], &line);
        wait_for_listener(&run, number);
        let connect = format!("import socket; socket.create_connection(('127.0.0.1',{port}))");
        ns.run(&["python3", "-c", &connect]).ok();
        eventually("a connection is refused", || {
            ns.run(&["python3", "-c", &connect]).stderr.contains("ConnectionRefusedError")
        });
        assert!(run.is_running(), "{ways:?}");
        let why = sockets_of(&run).stderr;
        assert!(why.contains("has no stack any more"), "{ways:?}: {why}");
        if ways[0] == "child" {
            eventually("the child learns of it", || run.stdout() == "child: Network is down\n");
            eventually("the user learns of it", || {
                run.stderr().contains("has ended with the stack that was in its process")
            });
        } else {
            assert!(run.stderr().contains("is statically linked"), "{}", run.stderr());
        }
        run.stop();
    }
}

/// Compiles a statically linked program, which cannot load the library.
fn outsider(folder: &Scratch, text: &str) -> String {
    let (source, binary) = (folder.file("outsider.c"), folder.file("outsider"));
    folder.write("outsider.c", text);
    let gcc = std::process::Command::new("gcc").args(["-static", "-o", &binary, &source]).status();
    assert!(gcc.expect("gcc").success());
    binary
}

/// The engine's descriptors are above the program's limit, so the kernel's limit is higher than the
/// one the program sees.
#[test]
fn a_limit_of_descriptors_is_told_and_passed_on() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let outsider = outsider(
        &folder,
        "#include <stdio.h>\n#include <sys/resource.h>\n#include <unistd.h>\n\
         int main(void) { struct rlimit l; sleep(1); getrlimit(RLIMIT_NOFILE, &l);\n\
         printf(\"(%d, %d)\\n\", (int)l.rlim_cur, (int)l.rlim_max); }\n",
    );
    let line = ["python3", &program("inline/limits.py"), "8116", &outsider];
    let run = start(&ns, Mode::Rootless, &[8116], &[], &line);
    eventually("it is full", || run.stdout().contains("full"));
    for _ in 0..5 {
        let script = "import socket\ns=socket.create_connection(('127.0.0.1',8116)); \
                      s.sendall(b'x'); print(s.recv(9))";
        assert_eq!(ns.run(&["python3", "-c", script]).ok().stdout, "b'x'\n");
    }
    let told = "own: (64, 80)\nchild: [['64', '80']]\n(64, 80)\n(64, 80)\n(64, 80)\n\
                full: Too many open files\nexecuted: (64, 80)\n";
    assert_eq!(run.wait(SERVED_WITHIN).ok().stdout, told);
}

/// Returns the output of `towpath ss` about a run.
fn sockets_of(run: &Process) -> Output {
    Process::spawn(&[&towpath(), "ss", &run.id().to_string()]).wait(SERVED_WITHIN)
}

#[test]
fn a_program_that_is_stopped_or_killed_is_said_to_be() {
    let ns = Namespace::new();
    let run =
        start(&ns, Mode::Rootless, &[], &["--stats"], &["python3", "-m", "http.server", "8115"]);
    wait_for_listener(&run, 8115);
    let process = holder(&run, 8115).to_string();
    // A stop signal reaches each thread separately.
    let stop = format!(
        "kill -STOP {process}
        while grep -L '^State:.T' /proc/{process}/task/*/status | grep -q .; do sleep 0.01; done"
    );
    ns.run(&["sh", "-c", &stop]).ok();
    let why = sockets_of(&run).stderr;
    assert!(why.contains(&format!("process {process}, which is stopped")), "{why}");
    ns.run(&["kill", "-CONT", &process]).ok();
    wait_for_listener(&run, 8115);
    ns.run(&["kill", "-KILL", &process]).ok();
    let out = run.wait(SERVED_WITHIN);
    assert!(out.stderr.contains("no counters: signal 9 ended python3"), "{}", out.stderr);
}

#[test]
fn the_engines_descriptors_are_not_the_programs() {
    let ns = Namespace::new();
    let line = ["python3", &program("inline/descriptors.py"), "8105"];
    let run = start(&ns, Mode::Rootless, &[8105], &[], &line);
    wait_for_listener(&run, 8105);
    for _ in 0..20 {
        let script = "import socket\ns=socket.create_connection(('127.0.0.1',8105)); \
                      s.sendall(b'x'); print(s.recv(9))";
        assert_eq!(ns.run(&["python3", "-c", script]).ok().stdout, "b'x'\n");
    }
    let out = run.wait(SERVED_WITHIN).ok();
    assert_eq!(out.stdout, "first: 3\nlisted: []\nlimit: True\nserving\n");
}

#[test]
fn handlers_use_sockets_in_calls_that_wait() {
    let ns = Namespace::new();
    let line = ["python3", &program("inline/signals.py"), "8106"];
    let run = start(&ns, Mode::Rootless, &[8106], &[], &line);
    wait_for_listener(&run, 8106);
    let script = "import socket\ns=socket.create_connection(('127.0.0.1',8106))\n\
                  for n in range(200):\n s.sendall(b'%5d' % n); assert s.recv(5) == b'%5d' % n";
    ns.run(&["timeout", "30", "python3", "-c", script]).ok();
    assert_eq!(run.wait(SERVED_WITHIN).ok().stdout, "serving\nhandled: True\n");
}

/// A wrapper executes the program in its own place. The program gets an engine of its own.
#[test]
fn what_a_wrapper_executes_has_the_stack() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    folder.write("page", "page");
    let folder = folder.file(".");
    let line = format!("exec env A=1 nohup python3 -m http.server 8107 -d {folder}");
    let run = start(&ns, Mode::Rootless, &[8107], &[], &["sh", "-c", &line]);
    wait_for_listener(&run, 8107);
    assert_eq!(read(&ns, "http://127.0.0.1:8107/page").stdout, "page");
    run.stop();
}

#[test]
fn a_capture_is_refused() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let file = folder.file("capture");
    let out = start(&ns, Mode::Rootless, &[], &["--pcap", &file], &["true"]).wait(SERVED_WITHIN);
    assert_eq!(out.code(), 125);
    assert!(out.stderr.contains("--pcap with --inline"), "{}", out.stderr);
}

/// The program must not start, because all of its sockets would fail.
#[test]
fn a_program_whose_stack_has_no_memory_does_not_begin() {
    let ns = Namespace::new();
    let script = "ulimit -v 1000000; exec \"$0\" run --inline -- sh -c 'echo began'";
    let out = ns.spawn(&["sh", "-c", script, &towpath()]).wait(SERVED_WITHIN);
    assert_eq!((out.code(), &*out.stdout), (125, ""), "{}", out.stderr);
    assert!(out.stderr.contains("no stack in PROGRAM's process"), "{}", out.stderr);
    assert!(!out.stderr.contains('\\'), "{}", out.stderr);
}

#[test]
fn a_program_without_sockets_ends_with_its_status() {
    let ns = Namespace::new();
    let out = start(&ns, Mode::Rootless, &[], &[], &["sh", "-c", "echo out; exit 7"]);
    let out = out.wait(SERVED_WITHIN);
    assert_eq!((out.code(), &*out.stdout, &*out.stderr), (7, "out\n", ""));
    let script = "import os,signal; os.kill(os.getpid(), signal.SIGKILL)";
    let out = start(&ns, Mode::Rootless, &[], &[], &["python3", "-c", script]);
    assert!(!out.wait(SERVED_WITHIN).success());
    // Another run can start after the killed one.
    run(&ns, Mode::Rootless, &[], &["true"]).ok();
}
