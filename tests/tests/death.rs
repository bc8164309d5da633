//! The program or the engine is killed during a transfer. No process hangs, and none is left
//! behind.

use std::os::fd::OwnedFd;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use towpath_tests::{
    Mode, Namespace, PATIENCE, Scratch, eventually, is_inline, program, run, start,
    wait_for_listener, wait_for_port,
};

fn child_of(ns: &Namespace, pid: u32) -> Option<u32> {
    ns.run(&["pgrep", "-P", &pid.to_string()]).stdout.lines().next()?.parse().ok()
}

/// Length of a transfer that cannot complete before it is interrupted: at curl's `RATE` it would
/// take a quarter of an hour.
const LEN: u64 = 8 << 30;
const RATE: &str = "8M";

/// Waits until a transfer has made progress, measured by the size of a file.
fn wait_for_bytes(path: &str) {
    eventually("bytes arrive", || {
        std::fs::metadata(path).is_ok_and(|found| found.len() > 1_000_000)
    });
}

/// `kill -9` of the program while it sends: its peer sees the end of the connection, and towpath
/// ends by the same signal.
#[test]
fn the_program_is_killed_in_mid_transfer() {
    use std::os::unix::process::ExitStatusExt;
    for &mode in Mode::all() {
        if is_inline() && mode == Mode::Tap {
            // The stack ended with the program, so that it cannot send a reset.
            continue;
        }
        let (ns, folder) = (Namespace::new(), Scratch::new());
        folder.sparse("big", LEN);
        let port = ns.port(7500);
        let path = folder.path().to_str().expect("plain");
        let command = ["python3", &program("receive.py"), &port.to_string(), path];
        let server = start(&ns, mode, &[port], &command);
        wait_for_listener(&server, port);
        let (url, copy) = (format!("http://{}:{port}/big", mode.host()), folder.file("copy"));
        let client = ns.spawn(&["curl", "-sS", "--limit-rate", RATE, "-o", &copy, &url]);
        wait_for_bytes(&copy);
        let guardian = child_of(&ns, server.id()).expect("the guardian");
        let pid = child_of(&ns, guardian).expect("the program");
        ns.run(&["kill", "-9", &pid.to_string()]).ok();
        let out = client.wait(PATIENCE);
        assert!(!out.success(), "curl saw the connection break");
        let out = server.wait(PATIENCE);
        assert_eq!(out.status.signal(), Some(9), "{}", out.stderr);
    }
}

/// Duplicates the write end of the parent-death pipe, so that the kernel does not kill the programs
/// when towpath and the guardian have gone.
fn lifeline(guardian: u32) -> OwnedFd {
    let own = std::fs::read_dir(format!("/proc/{guardian}/fd")).expect("its descriptors");
    let number = own.flatten().find_map(|entry| {
        let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let is_pipe = std::fs::read_link(entry.path()).ok()?.to_str()?.starts_with("pipe:");
        (number > 2 && is_pipe).then_some(number)
    });
    let process = rustix::process::Pid::from_raw(guardian as i32).expect("positive");
    let process = pidfd_open(process, PidfdFlags::empty()).expect("it runs");
    pidfd_getfd(process, number.expect("its pipe"), PidfdGetfdFlags::empty()).expect("a descendant")
}

/// Kills towpath and its guardian by `kill -9`, without letting the guardian react to towpath's
/// death. The guardian is stopped by ptrace. With SIGSTOP, the kernel would send SIGHUP to the
/// orphaned process group.
fn kill_both(towpath: u32, guardian: u32) {
    let [towpath, guardian] = [towpath, guardian].map(|id| Pid::from_raw(id as i32));
    ptrace::seize(guardian, ptrace::Options::empty()).expect("a descendant may be traced");
    ptrace::interrupt(guardian).expect("it is traced");
    let stopped = waitpid(guardian, None).expect("it is traced");
    assert!(matches!(stopped, WaitStatus::PtraceEvent(..)), "{stopped:?}");
    for process in [towpath, guardian] {
        kill(process, Signal::SIGKILL).expect("it lives");
    }
    let end = waitpid(guardian, None).expect("it is traced");
    assert_eq!(end, WaitStatus::Signaled(guardian, Signal::SIGKILL, false));
}

/// `kill -9` of the engine: the program gets errors instead of hanging. The guardian is killed as
/// well, and the parent-death pipe held open, because either would end the program.
#[test]
fn the_engine_is_killed_in_mid_transfer() {
    if is_inline() {
        // The killed process does not contain the engine.
        return;
    }
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        folder.sparse("big", LEN);
        let port = ns.port(7501);
        let path = folder.path().to_str().expect("plain");
        let _host = ns.spawn(&["python3", &program("receive.py"), &port.to_string(), path]);
        wait_for_port(&ns, "127.0.0.1", port);
        let url = format!("http://{}:{port}/big", mode.peer());
        let (code, copy) = (folder.file("code"), folder.file("copy"));
        let line = format!("curl -sS --limit-rate {RATE} -o {copy} {url}; echo $? > {code}");
        let client = start(&ns, mode, &[], &["bash", "-c", &line]);
        wait_for_bytes(&copy);
        let guardian = child_of(&ns, client.id()).expect("the guardian");
        let _lifeline = lifeline(guardian);
        kill_both(client.id(), guardian);
        let path = std::path::Path::new(&code);
        eventually("curl gives up", || {
            path.exists() && std::fs::read(path).is_ok_and(|c| !c.is_empty())
        });
        let code = std::fs::read_to_string(path).expect("exit code of curl");
        assert_ne!(code.trim(), "0");
    }
}

/// Threads that wait without a timeout, in two processes. Only the kernel notifies them.
#[test]
fn who_waits_for_ever_learns_that_the_engine_was_killed() {
    if is_inline() {
        // The killed process does not contain the engine.
        return;
    }
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let to = folder.path().to_str().expect("plain");
    let run = start(&ns, Mode::Rootless, &[], &["python3", &program("blocked.py"), to]);
    let path = |name: &str| folder.path().join(name);
    eventually("both wait", || path("parent.ready").exists() && path("child.ready").exists());
    let guardian = child_of(&ns, run.id()).expect("the guardian");
    let _lifeline = lifeline(guardian);
    kill_both(run.id(), guardian);
    eventually("all calls end", || path("parent").exists() && path("child").exists());
    for name in ["parent", "child"] {
        let ends = std::fs::read_to_string(path(name)).expect("errnos");
        // ENETDOWN is 100.
        assert_eq!(ends, ["100"; 8].join(" "), "{name}");
    }
}

#[test]
fn status_and_signals_pass_through() {
    use std::os::unix::process::ExitStatusExt;
    let ns = Namespace::new();
    let out = run(&ns, Mode::Rootless, &[], &["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((out.code(), out.stdout.as_str()), (7, "out\n"));
    assert!(out.stderr.contains("err\n"));
    let out = run(&ns, Mode::Rootless, &[], &["sh", "-c", "kill -USR1 $$"]);
    assert_eq!(out.status.signal(), Some(10));
    let script = "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let sleeper = start(&ns, Mode::Rootless, &[], &["sh", "-c", script]);
    eventually("the trap is set", || sleeper.stdout() == "ready\n");
    let out = sleeper.stop();
    assert_eq!((out.code(), out.stdout.as_str()), (3, "ready\nterm\n"));
}

/// The main process ends, and its child continues to serve: the stack stays until the last process
/// ends.
#[test]
fn the_stack_outlives_the_first_process() {
    if is_inline() {
        // The killed process contains the engine.
        return;
    }
    let (ns, folder) = (Namespace::new(), Scratch::new());
    folder.write("index.html", "still here\n");
    let port = ns.port(7502);
    let line = format!(
        "cd {}; python3 -m http.server {port} & echo $! > child; exit 0",
        folder.path().display()
    );
    let mut parent = start(&ns, Mode::Rootless, &[port], &["bash", "-c", &line]);
    wait_for_listener(&parent, port);
    let page = ns.run(&["curl", "-sS", "-m", "50", &format!("http://127.0.0.1:{port}/")]).ok();
    assert_eq!(page.stdout, "still here\n");
    assert!(parent.is_running());
    let child = std::fs::read_to_string(folder.path().join("child")).expect("pid of the child");
    ns.run(&["kill", child.trim()]).ok();
    assert_eq!(parent.wait(PATIENCE).code(), 0);
}
