//! End of a run: when any process is killed or requested to end, no process of the run remains.
#![allow(clippy::print_stderr)] // For readers of why a test is left out.

use crate::device;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// A run, whose processes are found by a variable in their environment.
struct Run {
    mark: String,
    towpath: Child,
    lines: BufReader<std::process::ChildStdout>,
}

const MARK: &str = "TOWPATH_TEST_RUN";

impl Run {
    /// Starts `towpath run`, and waits for PROGRAM to print the line "ready".
    fn ready(options: &[&str], program: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{next}", std::process::id());
        // Reset these signals, which nohup(1) or a background shell may have set to be ignored.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT", env!("CARGO_BIN_EXE_towpath"), "run"]);
        command.args(options).arg("--").args(program);
        command.env(MARK, &mark).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Create a process group, as a shell does for each job.
        command.process_group(0);
        let mut towpath = command.spawn().expect("towpath starts");
        let lines = BufReader::new(towpath.stdout.take().expect("piped"));
        let mut run = Self { mark, towpath, lines };
        run.line("ready");
        run
    }

    fn line(&mut self, wanted: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), wanted);
    }

    /// Reads a line that contains a process id.
    fn number(&mut self) -> u32 {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim_end().parse().expect("a number")
    }

    /// Waits until PROGRAM, with this process id, has ended. The guardian reaps it before it
    /// notifies towpath.
    fn wait_for_end_of(&self, program: u32) {
        self.wait_until(|_| !std::path::Path::new(&format!("/proc/{program}")).exists());
    }

    /// Waits until a condition is true that no printed line reports. Has no timeout, because the
    /// test runner ends a test that hangs.
    fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn id(&self) -> u32 {
        self.towpath.id()
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.id() as i32), signal).expect("it runs");
    }

    /// Returns all live processes of the run, including towpath and the guardian.
    fn alive(&self) -> BTreeSet<u32> {
        let mark = format!("{MARK}={}\0", self.mark);
        let has_mark = |environment: &[u8]| {
            environment.windows(mark.len()).any(|part| part == mark.as_bytes())
        };
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // The environ file of a zombie is empty.
        pids.filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| has_mark(&all))
        })
        .collect()
    }

    fn guardian(&self) -> u32 {
        let is_guardian = |pid: &&u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|n| n == "guardian\n")
        };
        *self.alive().iter().find(is_guardian).expect("a guardian")
    }

    /// Duplicates the write end of the parent-death pipe. While it is open, the kernel kills no
    /// process of the run.
    fn lifeline(&self) -> OwnedFd {
        let guardian = self.guardian();
        let own = std::fs::read_dir(format!("/proc/{guardian}/fd")).expect("its descriptors");
        let number = own.flatten().find_map(|entry| {
            let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let is_pipe = std::fs::read_link(entry.path()).ok()?.to_str()?.starts_with("pipe:");
            (number > 2 && is_pipe).then_some(number)
        });
        let process = rustix::process::Pid::from_raw(guardian as i32).expect("positive");
        let process = pidfd_open(process, PidfdFlags::empty()).expect("it runs");
        let number = number.expect("its pipe");
        pidfd_getfd(process, number, PidfdGetfdFlags::empty()).expect("it is this process's child")
    }

    /// Waits until no process of the run is alive. Returns towpath's exit status, and its standard
    /// error.
    fn gone(mut self) -> (ExitStatus, String) {
        self.wait_until(|run| run.alive().is_empty());
        let status = self.towpath.wait().expect("wait");
        let mut said = String::new();
        self.towpath.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        (status, said)
    }
}

impl Drop for Run {
    /// Kills processes left by a failed test.
    fn drop(&mut self) {
        for pid in self.alive() {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        let _ = self.towpath.wait();
    }
}

fn names(pids: &BTreeSet<u32>) -> Vec<String> {
    let line = |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    pids.iter().map(|pid| String::from_utf8_lossy(&line(pid)).replace('\0', " ")).collect()
}

/// PROGRAM that starts a daemon (forked twice, in a new session), a session leader, and an orphan
/// that ignores SIGTERM. Once these run and their intermediate parents have ended, prints its
/// process id and continues.
const FAMILY: &str = "
import os, signal, sys, time
read, write = os.pipe()
def forever():
    os.write(write, b'.')
    while True: time.sleep(60)
def child(body):
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    return pid
def orphan(body):
    parent = os.getpid()
    def alone():
        while os.getppid() == parent: time.sleep(.01)
        body()
    child(alone)
def daemon():
    os.setsid()
    orphan(forever)
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()
os.waitpid(child(daemon), 0)
child(lambda: (os.setsid(), forever()))
os.waitpid(child(lambda: child(lambda: orphan(deaf))), 0)
for _ in range(3): os.read(read, 1)
print('ready', os.getpid(), sep='\\n', flush=True)
";

fn family(then: &str) -> String {
    format!("{FAMILY}{then}")
}

#[test]
fn nothing_outlives_a_towpath_that_is_killed() {
    let run = Run::ready(&[], &["python3", "-c", &family("forever()")]);
    assert_eq!(run.alive().len(), 6, "towpath, the guardian and four: {:?}", names(&run.alive()));
    run.send(Signal::SIGKILL);
    assert_eq!(run.gone().0.signal(), Some(Signal::SIGKILL as i32));
}

/// Like `kill -9 %1` in a shell.
#[test]
fn nothing_outlives_a_process_group_that_is_killed() {
    let run = Run::ready(&[], &["python3", "-c", &family("forever()")]);
    let group = Pid::from_raw(run.id() as i32);
    nix::sys::signal::killpg(group, Signal::SIGKILL).expect("it runs");
    assert_eq!(run.gone().0.signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn nothing_outlives_a_guardian_that_is_killed() {
    let run = Run::ready(&[], &["python3", "-c", &family("forever()")]);
    kill(Pid::from_raw(run.guardian() as i32), Signal::SIGKILL).expect("it runs");
    let (status, said) = run.gone();
    assert_eq!(status.code(), Some(125), "{said}");
    assert!(said.contains("which guards the run, was killed"), "{said}");
}

/// The kernel kills the programs when both towpath and its guardian are dead.
#[test]
fn nothing_outlives_a_towpath_and_its_guardian_that_are_killed_at_once() {
    let run = Run::ready(&[], &["python3", "-c", &family("forever()")]);
    assert_eq!(run.alive().len(), 6, "{:?}", names(&run.alive()));
    let guardian = Pid::from_raw(run.guardian() as i32);
    // Kill both at once, so that neither can react to the other's death.
    run.send(Signal::SIGKILL);
    kill(guardian, Signal::SIGKILL).expect("it runs");
    assert_eq!(run.gone().0.signal(), Some(Signal::SIGKILL as i32));
}

/// A thread that cannot die keeps the process's descriptors open. Here a tracer stops the thread;
/// in practice, a program may hold a kernel lock that it needs.
#[test]
fn nothing_outlives_a_towpath_that_cannot_die_altogether() {
    let run = Run::ready(&[], &["python3", "-c", &family("forever()")]);
    let threads = std::fs::read_dir(format!("/proc/{}/task", run.id())).expect("it runs").flatten();
    let mut threads =
        threads.map(|thread| thread.file_name().to_str().expect("a number").parse().expect("one"));
    let thread = threads.find(|id: &i32| *id as u32 != run.id()).expect("it has several");
    let thread = Pid::from_raw(thread);
    ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACEEXIT).expect("a child may be traced");
    run.send(Signal::SIGKILL);
    let stopped = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops at its end");
    assert!(matches!(stopped, WaitStatus::PtraceEvent(..)), "{stopped:?}");
    run.wait_until(|run| run.alive().is_empty());
    ptrace::detach(thread, None).expect("it waits");
    assert_eq!(run.gone().0.signal(), Some(Signal::SIGKILL as i32));
}

/// PROGRAM ends by SIGTERM. The run then sends SIGTERM to the remaining processes, and SIGKILL
/// after the grace period.
#[test]
fn a_run_that_is_asked_to_end_ends_with_the_program() {
    let run = Run::ready(&["--stop-timeout", "1"], &["python3", "-c", &family("forever()")]);
    let started = std::time::Instant::now();
    run.send(Signal::SIGTERM);
    assert_eq!(run.gone().0.signal(), Some(Signal::SIGTERM as i32), "as PROGRAM");
    assert!(started.elapsed() >= Duration::from_secs(1), "the deaf one has its time");
}

/// PROGRAM decides how it ends. Its children, which are not aware of PROGRAM's signal, get SIGTERM
/// from the run.
#[test]
fn what_the_program_leaves_behind_gets_sigterm_and_can_end_well() {
    let script = "
trap 'echo program; exit 3' TERM
sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.05; done' &
while :; do sleep 0.05; done";
    let mut run = Run::ready(&[], &["sh", "-c", script]);
    run.send(Signal::SIGTERM);
    run.line("program");
    run.line("child");
    assert_eq!(run.gone().0.code(), Some(3));
}

#[test]
fn a_program_that_ends_by_itself_leaves_its_children_running() {
    let mut run = Run::ready(&["--stop-timeout", "0"], &["python3", "-c", &family("sys.exit(4)")]);
    let program = run.number();
    run.wait_for_end_of(program);
    // Give a run that wrongly ends with PROGRAM time to end. A shorter pause only makes the test
    // weaker.
    std::thread::sleep(Duration::from_millis(200));
    assert!(run.towpath.try_wait().expect("wait").is_none(), "the run goes on");
    assert_eq!(run.alive().len(), 5, "{:?}", names(&run.alive()));
    // Request the end now. The children get no grace period.
    run.send(Signal::SIGINT);
    assert_eq!(run.gone().0.code(), Some(4), "PROGRAM's status");
}

/// An interpreter survives Ctrl-C, and a server SIGHUP. The signal must not affect children that
/// are started afterwards.
#[test]
fn a_signal_that_the_program_survived_does_not_end_its_children_later() {
    let script = "
trap 'echo interrupted' INT; trap 'echo reloaded' HUP; trap 'on=1' USR1
echo ready; echo $$
until [ $on ]; do sleep 0.05; done
sh -c 'trap \"echo asked; exit\" TERM; echo left; while :; do sleep 0.05; done' &
exit 4";
    let options = ["--stop-timeout", "600", "--survived-after", "1"];
    let mut run = Run::ready(&options, &["bash", "-c", script]);
    let program = run.number();
    run.send(Signal::SIGINT);
    run.line("interrupted");
    run.send(Signal::SIGHUP);
    run.line("reloaded");
    // Wait for `--survived-after`. The time starts when towpath receives the signal, which is
    // before PROGRAM does.
    std::thread::sleep(Duration::from_secs(1));
    run.send(Signal::SIGUSR1);
    run.line("left");
    run.wait_for_end_of(program);
    // If the run had been requested to end, the child would end soon. A shorter pause only makes
    // the test weaker.
    std::thread::sleep(Duration::from_millis(300));
    assert!(run.towpath.try_wait().expect("wait").is_none(), "the run goes on");
    assert!(run.alive().len() >= 3, "{:?}", names(&run.alive()));
    // SIGINT is the first request, so the child gets SIGTERM, and is not killed immediately.
    run.send(Signal::SIGINT);
    run.line("asked");
    assert_eq!(run.gone().0.code(), Some(4), "PROGRAM's status");
}

#[test]
fn whoever_asks_twice_does_not_wait() {
    let options = ["--stop-timeout", "600"];
    let mut run = Run::ready(&options, &["python3", "-c", &family("sys.exit(4)")]);
    let program = run.number();
    run.wait_for_end_of(program);
    run.send(Signal::SIGTERM);
    // After the first signal, only towpath, the guardian and the process that ignores SIGTERM
    // remain.
    run.wait_until(|run| run.alive().len() == 3);
    run.send(Signal::SIGTERM);
    assert_eq!(run.gone().0.code(), Some(4));
}

/// A stopped process handles SIGTERM only after SIGCONT.
#[test]
fn a_stopped_child_is_continued_to_end() {
    let script = "
trap 'exit 3' TERM
sh -c 'trap \"echo child; exit\" TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done' &
while :; do sleep 0.05; done";
    let mut run = Run::ready(&["--stop-timeout", "600"], &["sh", "-c", script]);
    run.send(Signal::SIGTERM);
    run.line("child");
    assert_eq!(run.gone().0.code(), Some(3));
}

/// A program under towpath has the same ignored and blocked signals as if the caller had started
/// it. The caller may ignore SIGCHLD, so that the kernel reaps its children.
#[test]
fn ignored_signals_and_blocked_ones_are_the_callers() {
    let caller = "
import os, signal, sys
for ignored in signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1: signal.signal(ignored, \
signal.SIG_IGN)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2, signal.SIGRTMIN + 3])
os.execv(sys.argv[1], sys.argv[1:])";
    let show = ["sh", "-c", "grep -E '^Sig(Ign|Blk)' /proc/self/status; exit 7"];
    let run = |first: &[&str]| {
        let mut command = Command::new("python3");
        command.args(["-c", caller]).args(first).args(show);
        let output = command.output().expect("python3");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Use the path /usr/bin/env, because execv(3) does not search PATH.
    let directly = run(&["/usr/bin/env"]);
    assert_eq!(directly.0, Some(7), "{}", directly.2);
    assert_eq!(run(&[env!("CARGO_BIN_EXE_towpath"), "run", "--"]), directly);
}

/// Runs in its own network namespace. Skipped if no namespace can be created.
#[test]
fn a_killed_towpath_leaves_no_device_and_no_route() {
    if !device::is_possible() {
        return;
    }
    let script = r#"
        "$0" run -q --tap=tpdead -- sh -c 'sleep 600 & echo ready; wait' > >(exec cat >&2) & run=$!
        until ip route | grep -q tpdead; do sleep 0.05; done
        kill -9 $run
        while ip link show tpdead 2>/dev/null || ip route | grep tpdead || ip -6 route | grep tpdead; do
            sleep 0.05
        done >/dev/null
        echo gone"#;
    let mut command = Command::new("unshare");
    command.args(["-n", "bash", "-c", script, env!("CARGO_BIN_EXE_towpath")]);
    let output = command.output().expect("unshare");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "gone\n", "{output:?}");
}

/// Checks a terminal: Ctrl-Z stops the job, fg continues it, Ctrl-C ends it, and the shell gets its
/// terminal back.
#[test]
fn job_control_works() {
    let script = r#"
import fcntl, os, pty, signal, struct, sys, termios, time
towpath = sys.argv[1]
# A shell that runs the tests in the background lets them ignore these two.
for at_a_key in signal.SIGINT, signal.SIGQUIT: signal.signal(at_a_key, signal.SIG_DFL)
pid, terminal = pty.fork()
if pid == 0:
    os.environ['PS1'] = 'outer> '
    os.execlp('bash', 'bash', '--norc', '--noprofile', '-i')
seen = b''
def expect(text):
    global seen
    while text not in seen: seen += os.read(terminal, 4096)
    seen = seen.split(text, 1)[1]
def in_front(name):
    'Until the job of this name has the terminal, and is not stopped.'
    while True:
        try: number = struct.unpack('i', fcntl.ioctl(terminal, termios.TIOCGPGRP, b'....'))[0]
        except OSError: continue
        try: stat = open(f'/proc/{number}/stat').read()
        except OSError: continue
        if f'({name}) ' in stat and f'({name}) T' not in stat: return
        time.sleep(.01)
def type(text): os.write(terminal, text)
expect(b'outer> ')
type(f'{towpath} run -- cat\n'.encode())
in_front('towpath')
type(b'hello\n'); expect(b'hello\r\nhello')
type(b'\x1a'); expect(b'Stopped'); expect(b'outer> ')
type(b'fg\n'); expect(b'cat'); in_front('towpath')
type(b'again\n'); expect(b'again\r\nagain')
type(b'\x03'); expect(b'outer> ')
type(b'echo status $?\n'); expect(b'status 130'); expect(b'outer> ')
type(f"PS1='inner> ' {towpath} run -- bash --norc --noprofile -i\n".encode())
expect(b'inner> ')
assert b'no job control' not in seen
type(b'tty; sleep 60\n'); expect(b'/dev/'); in_front('sleep')
type(b'\x1a'); expect(b'Stopped'); expect(b'inner> ')
type(b'fg\n'); expect(b'sleep 60'); in_front('sleep')
type(b'\x03'); expect(b'inner> ')
type(b'exit 5\n'); expect(b'outer> ')
type(b'echo status $?\n'); expect(b'status 5'); expect(b'outer> ')
# The shell has the terminal again when PROGRAM is stopped, not before.
slow = 'import os, signal, time; stop = [signal.SIGTSTP]; \
signal.pthread_sigmask(signal.SIG_BLOCK, stop); print("rea" + "dy", flush=True); \
signal.sigwait(stop); time.sleep(.3); print("tidied", flush=True); \
os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)'
type(f"{towpath} run -- python3 -c '{slow}'\n".encode()); expect(b'ready\r\n')
type(b'\x1a'); expect(b'tidied\r\n'); expect(b'Stopped'); expect(b'outer> ')
type(b'fg\n'); in_front('towpath')
type(b'\x1c'); expect(b'outer> ')
type(b'exit\n')
print('done')
"#;
    let mut command = Command::new("python3");
    command.args(["-c", script, env!("CARGO_BIN_EXE_towpath")]);
    let output = command.output().expect("python3");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{output:?}");
}

/// A program that survives the engine, here because the test holds the parent-death pipe open, gets
/// errors at a limited rate.
#[test]
fn errors_of_a_dead_engine_come_at_a_pace() {
    let program = "
import select, socket, sys, time
server = socket.create_server(('127.0.0.1', 80))
server.setblocking(False)
poll = select.poll()
poll.register(server, select.POLLIN)
print('ready', flush=True)
errors, first = 0, None
while True:
    poll.poll()
    try: server.accept()
    except BlockingIOError: pass
    except OSError as error:
        errors += 1
        if first is None: first = time.monotonic()
        if time.monotonic() - first > 1: break
print(errors < 30, errors, flush=True)
while True: time.sleep(60)
";
    let mut run = Run::ready(&[], &["python3", "-c", program]);
    let guardian = Pid::from_raw(run.guardian() as i32);
    let _lifeline = run.lifeline();
    // Stop towpath first, so that neither towpath nor the guardian can react to the other's death.
    run.send(Signal::SIGSTOP);
    kill(guardian, Signal::SIGKILL).expect("it runs");
    run.send(Signal::SIGKILL);
    let mut line = String::new();
    run.lines.read_line(&mut line).expect("a line");
    assert!(line.starts_with("True"), "errors in a second: {line}");
}
