//! Kills towpath at every step from its start to its end. Checks that no process of the run
//! remains, and that the next run starts and removes leftover files.
//!
//! A step is a system call with an effect outside of the process (see [`STEPS`]). The test traces
//! all threads of towpath by ptrace(2). The first run is killed before the first such call, the
//! next run before the second, and so on until a run ends first. As root, the runs are in separate
//! network and mount namespaces; otherwise they have a private directory. `--tap`, which needs
//! root, has many more steps and runs nightly.
#![allow(clippy::print_stderr)] // For readers of why a test is left out.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use towpath_tests::EMPTY_FOLDERS;

use crate::{device, fresh};

/// System calls with effects outside of the process: on files, locks, sockets, devices, messages,
/// processes and signals. Calls that open and close are omitted. A kill before the next listed call
/// has the same result, because the kernel closes all descriptors of a killed process.
const STEPS: [libc::c_long; 23] = [
    libc::SYS_bind,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_exit_group,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_flock,
    libc::SYS_ioctl,
    libc::SYS_kill,
    libc::SYS_listen,
    libc::SYS_memfd_create,
    libc::SYS_mkdirat,
    libc::SYS_pipe2,
    libc::SYS_prctl,
    libc::SYS_renameat,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_socketpair,
    libc::SYS_tgkill,
    libc::SYS_unlinkat,
    libc::SYS_wait4,
    libc::SYS_write,
];

/// Environment variable of towpath, by which the test finds processes that outlive towpath.
const MARK: &str = "TOWPATH_TEST_CRASH";

/// PROGRAM: starts a process in a new session, and requests the end of the run.
const PROGRAM: &str = "setsid sleep 600 & kill -TERM $RUN 2>/dev/null; wait";

/// Number of tests among which the steps are divided, so that each test is short.
const PARTS: usize = 4;

#[test]
fn a_killed_run_leaves_nothing_at_steps_0_4_8() {
    kill_at_each(0, PARTS, &[]);
}

#[test]
fn a_killed_run_leaves_nothing_at_steps_1_5_9() {
    kill_at_each(1, PARTS, &[]);
}

#[test]
fn a_killed_run_leaves_nothing_at_steps_2_6_10() {
    kill_at_each(2, PARTS, &[]);
}

#[test]
fn a_killed_run_leaves_nothing_at_steps_3_7_11() {
    kill_at_each(3, PARTS, &[]);
}

/// Kills runs at steps `first`, `first + apart`, and so on, until a run ends before its step.
fn kill_at_each(first: usize, apart: usize, options: &[&str]) {
    let place = Place::new();
    let mut step = first;
    while place.kill_before(step, options) == Outcome::Killed {
        step += apart;
    }
    // Minimum number of steps: install and lock the library, create the socket of `ss`, start the
    // guardian, and release all of these.
    assert!(step > 30, "only {step} steps with {options:?}: towpath was not followed");
}

/// Isolated environment of towpath, so that other runs are not affected.
struct Place {
    /// Process that keeps the namespaces alive; `None` without root.
    keeper: Option<Child>,
    /// Runtime directory of towpath, used without root.
    runtime: fresh::Folder,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The process was killed before the step.
    Killed,
    /// The process ended before the step.
    Ended,
}

impl Place {
    fn new() -> Self {
        let runtime = fresh::Folder::new();
        let keeper = rustix::process::geteuid().is_root().then(|| {
            let script = format!("{EMPTY_FOLDERS}\necho ready; read never");
            let mut command = Command::new("unshare");
            command.args(["-nm", "bash", "-c", &script, env!("CARGO_BIN_EXE_towpath")]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut keeper = command.spawn().expect("unshare");
            let mut line = String::new();
            let stdout = keeper.stdout.as_mut().expect("piped");
            BufReader::new(stdout).read_line(&mut line).expect("a line");
            assert_eq!(line, "ready\n");
            keeper
        });
        Self { keeper, runtime }
    }

    /// Returns the command of a shell in the keeper's namespaces, with towpath as `$0` of its
    /// script.
    fn command(&self, script: &str) -> Command {
        let mut towpath = env!("CARGO_BIN_EXE_towpath");
        let mut command = match &self.keeper {
            Some(keeper) => {
                // Use the copy that `EMPTY_FOLDERS` created, because the mounts may hide the
                // original.
                towpath = "/mnt/towpath";
                let mut command = Command::new("nsenter");
                command.args(["-t", &keeper.id().to_string(), "-n", "-m", "--", "sh"]);
                command
            }
            None => Command::new("sh"),
        };
        command.args(["-c", script, towpath]);
        command.env("XDG_RUNTIME_DIR", self.runtime.path()).env_remove("TOWPATH_PRELOAD");
        command
    }

    /// Returns the directory of the library and of the sockets of `towpath ss`.
    fn folder(&self) -> PathBuf {
        match &self.keeper {
            Some(keeper) => format!("/proc/{}/root/run/towpath", keeper.id()).into(),
            None => self.runtime.path().join("towpath"),
        }
    }

    /// Runs towpath, kills it before step number `step`, and checks what remains.
    #[expect(clippy::zombie_processes, reason = "whoever traces it waits for it, by its number")]
    fn kill_before(&self, step: usize, options: &[&str]) -> Outcome {
        let _ = std::fs::remove_dir_all(self.folder());
        let mark = format!("{}-{}-{step}", std::process::id(), options.len());
        let mut command = self.command("read go; export RUN=$$; exec \"$0\" run -q \"$@\"");
        command.args(options).args(["--", "sh", "-c", PROGRAM]).env(MARK, &mark);
        let mut shell = command.stdin(Stdio::piped()).spawn().expect("a shell");
        let pid = Pid::from_raw(shell.id() as i32);
        let follow = Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(pid, follow).expect("a child may be traced");
        ptrace::interrupt(pid).expect("it is traced");
        shell.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
        let (outcome, at) = follow_until(pid, step);
        let context = format!("step {step} with {options:?}, before {at}");
        self.assert_nothing_is_left(&mark, &context);
        let next =
            self.command("exec \"$0\" run -q \"$@\"").args(options).args(["--", "true"]).output();
        let next = next.expect("towpath");
        assert!(
            next.status.success() && next.stderr.is_empty(),
            "the next run: {context}: {next:?}"
        );
        let names = names(&self.folder());
        let is_library = |name: &String| name.starts_with("libtowpath-");
        assert!(names.len() == 2 && names.iter().all(is_library), "{context}: {names:?}");
        outcome
    }

    fn assert_nothing_is_left(&self, mark: &str, context: &str) {
        // Print the context if processes remain for long, before the test runner ends the test.
        let mut tell = Some(context);
        for look in 0.. {
            let (processes, device) = (with_mark(mark), self.has_device());
            if processes.is_empty() && !device {
                return;
            }
            if let Some(context) = tell.take_if(|_| look > 1000) {
                eprintln!("still there: {context}: {processes:?}, a device: {device}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_device(&self) -> bool {
        let Some(keeper) = &self.keeper else { return false };
        let devices = std::fs::read_to_string(format!("/proc/{}/net/dev", keeper.id()));
        devices.expect("it lives").contains("tpcrash")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

/// Runs a traced process until it is killed at the step, or has ended. Also returns the name of the
/// system call before which it was killed.
fn follow_until(pid: Pid, step: usize) -> (Outcome, String) {
    let mut is_towpath = false;
    // Traced threads, and whether each is inside a system call.
    let mut inside: HashMap<Pid, bool> = HashMap::new();
    let mut steps = 0;
    let mut killed = None;
    loop {
        // Wait for all threads of the process, but for no children of concurrent tests.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let (thread, signal) = match waitpid(None, Some(flags)).expect("it is traced") {
            WaitStatus::Exited(who, _) | WaitStatus::Signaled(who, ..) if who == pid => {
                return match killed {
                    Some(call) => (Outcome::Killed, call),
                    None => (Outcome::Ended, "its end".into()),
                };
            }
            WaitStatus::PtraceEvent(thread, _, event) => {
                if event == Event::PTRACE_EVENT_EXEC as i32 {
                    let file = std::fs::read_link(format!("/proc/{pid}/exe")).expect("it runs");
                    is_towpath = file.file_name().is_some_and(|name| name == "towpath");
                    inside.insert(pid, true);
                }
                (thread, None)
            }
            WaitStatus::PtraceSyscall(thread) => {
                let was_inside = inside.insert(thread, false).unwrap_or(false);
                inside.insert(thread, !was_inside);
                if is_towpath && !was_inside && killed.is_none() {
                    let call = call_of(thread);
                    if call.is_some_and(|call| STEPS.contains(&call)) {
                        if steps == step {
                            kill(pid, Signal::SIGKILL).expect("it runs");
                            killed = Some(format!("system call {call:?}"));
                        }
                        steps += 1;
                    }
                }
                (thread, None)
            }
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            _ => continue,
        };
        match ptrace::syscall(thread, signal) {
            // ESRCH: the thread was killed, or another thread has ended the process.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the system call that a stopped thread is about to make (proc_pid_syscall(5)).
fn call_of(thread: Pid) -> Option<libc::c_long> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the command lines of all live processes of a run.
fn with_mark(mark: &str) -> Vec<String> {
    let mark = format!("{MARK}={mark}\0");
    let has_mark = |all: &[u8]| all.windows(mark.len()).any(|part| part == mark.as_bytes());
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let alive = all.filter(|entry| {
        std::fs::read(entry.path().join("environ")).is_ok_and(|environment| has_mark(&environment))
    });
    let line = |path: PathBuf| std::fs::read(path.join("cmdline")).unwrap_or_default();
    alive.map(|entry| String::from_utf8_lossy(&line(entry.path())).replace('\0', " ")).collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Tests that take several minutes.
mod nightly {
    use super::*;

    #[test]
    fn a_killed_run_with_a_device_leaves_nothing() {
        if !device::is_possible() {
            return;
        }
        kill_at_each(0, 1, &["--tap=tpcrash"]);
    }
}
