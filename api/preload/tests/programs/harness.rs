//! Starts an engine, and programs that use it.

use std::ffi::{CStr, CString};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use towpath_engine::{Engine, EngineConfig, Remote};

use crate::arguments::Arguments;
use crate::library;

/// Name and function of a case, which runs in a child and fails by a panic. The gate skips names
/// that begin with `nightly::`, because these cases judge times or run for long.
pub type Case = (&'static str, fn());

/// Time after which a case counts as hung, unless a longer duration was requested. The gate's
/// runner kills a test sooner.
const LIMIT: Duration = Duration::from_secs(120);
const CASE: &str = "TOWPATH_TEST_CASE";
/// Variable with the number of shards of each engine. With several shards, only the cases on
/// Towpath run, because the kernel does not depend on it.
const SHARDS: &str = "TOWPATH_TEST_SHARDS";
/// Line that a case prints when the engine is to stop.
pub const STOP_ENGINE: &str = "stop the engine now";

/// Name of a case that does not run on the kernel, and how the kernel differs.
pub type Own = (&'static str, &'static str);

/// Stack on which a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Towpath,
    Kernel,
}

/// A case, and the half (Towpath or kernel) in which it runs.
struct Test {
    name: String,
    case: &'static str,
    half: Half,
}

/// In the child, runs the case. In the parent, lists or runs the selected tests: each case on
/// Towpath, and also on the kernel unless `own` contains it.
pub fn main(cases: &[Case], own: &[Own]) -> ExitCode {
    if let Ok(name) = std::env::var(CASE) {
        let (_, case) = cases.iter().find(|(case, _)| *case == name).expect("a case of that name");
        case();
        return ExitCode::SUCCESS;
    }
    for (name, _) in own {
        assert!(cases.iter().any(|(case, _)| case == name), "there is no case {name}");
    }
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let mut tests = tests(cases, own);
    tests.retain(|test| arguments.wants(&test.name));
    if arguments.list {
        tests.iter().for_each(|test| println!("{}: test", test.name));
        return ExitCode::SUCCESS;
    }
    let failed = run_all(&tests, arguments.threads);
    println!("{} tests, {failed} failed", tests.len());
    ExitCode::from(u8::from(failed > 0))
}

fn tests(cases: &[Case], own: &[Own]) -> Vec<Test> {
    let halves: &[Half] =
        if shards() == 1 { &[Half::Towpath, Half::Kernel] } else { &[Half::Towpath] };
    let is_own = |case: &str| own.iter().any(|(name, _)| *name == case);
    let all = cases.iter().flat_map(|&(case, _)| halves.iter().map(move |&half| (case, half)));
    all.filter(|&(case, half)| half == Half::Towpath || !is_own(case))
        .map(|(case, half)| {
            let place = if half == Half::Towpath { "towpath" } else { "kernel" };
            Test { name: format!("{place}::{case}"), case, half }
        })
        .collect()
}

/// Runs the tests, and returns how many failed.
fn run_all(tests: &[Test], threads: usize) -> usize {
    // Build the library before the threads start, so that no thread waits for a build.
    if tests.iter().any(|test| test.half == Half::Towpath) {
        preload();
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tests.len()) {
            scope.spawn(|| {
                while let Some(test) = tests.get(next.fetch_add(1, Relaxed)) {
                    let verdict = match test.half {
                        Half::Towpath => run(test.case),
                        Half::Kernel => run_on_the_kernel(test.case),
                    };
                    println!("test {} ... {}", test.name, verdict.as_deref().unwrap_or("ok"));
                    failed.fetch_add(usize::from(verdict.is_some()), Relaxed);
                }
            });
        }
    });
    failed.into_inner()
}

fn preload() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(library::preload)
}

/// Runs a case in its own process. Returns the failure, or `None` on success.
fn run(name: &str) -> Option<String> {
    let (remote, control) = start_engine();
    let mut child = start_program(name, &control);
    drop(control);
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let stopper = remote.clone();
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if line == STOP_ENGINE {
                stopper.stop();
            } else {
                println!("  {line}");
            }
        }
    });
    let verdict = wait(&mut child);
    reader.join().expect("the reader");
    remote.stop();
    verdict
}

/// Runs a case without library and engine, to check that it holds for Linux. Its own network
/// namespace ensures that other programs take no ports meanwhile.
fn run_on_the_kernel(name: &str) -> Option<String> {
    let network = Network::new();
    if let Err(why) = network.is_allowed() {
        println!("  left out: no network namespace can be made here: {why}");
        return None;
    }
    let mut command = program(name);
    // SAFETY: `enter` makes only system calls, with pointers to its own data.
    unsafe { command.pre_exec(move || network.enter()) };
    wait(&mut command.spawn().expect("start the program"))
}

/// A network namespace with loopback only. As on Towpath, the program may send pings, but has no
/// raw sockets.
#[derive(Clone)]
struct Network {
    /// Lines for /proc/self/uid_map and gid_map, which keep the program's user and group.
    users: CString,
    groups: CString,
    /// Value of ping_group_range. Its groups must be mapped in the user namespace.
    pingers: CString,
}

impl Network {
    fn new() -> Self {
        // SAFETY: no arguments.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let line = |text: String| CString::new(text).expect("no zeroes");
        let pingers = if user == 0 { "0 2147483647".into() } else { format!("{group} {group}") };
        Self {
            users: line(format!("{user} {user} 1")),
            groups: line(format!("{group} {group} 1")),
            pingers: line(pingers),
        }
    }

    fn is_allowed(&self) -> std::io::Result<()> {
        let (network, mut command) = (self.clone(), Command::new("true"));
        // SAFETY: `enter` makes only system calls, with pointers to its own data.
        unsafe { command.pre_exec(move || network.enter()) };
        command.status().map(drop)
    }

    /// Enters the namespace. Runs between fork and exec, so it must not allocate.
    fn enter(&self) -> std::io::Result<()> {
        // SAFETY: unshare takes integers, and affects only this process.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            // Without privileges, also create a user namespace, in which the process has all
            // capabilities until execve.
            // SAFETY: unshare takes integers, and affects only this process.
            check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) })?;
            put(c"/proc/self/uid_map", &self.users)?;
            put(c"/proc/self/setgroups", c"deny")?;
            put(c"/proc/self/gid_map", &self.groups)?;
        }
        // SAFETY: zeroes are a valid ifreq, which consists of integers.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name[..2].copy_from_slice(&[b'l' as _, b'o' as _]);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
        // SAFETY: the calls read a local ifreq. The descriptor is closed when the program is
        // executed.
        unsafe {
            let socket =
                check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
            check(libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request))?;
            put(c"/proc/sys/net/ipv4/ping_group_range", &self.pingers)?;
            check(libc::prctl(libc::PR_CAPBSET_DROP, CAP_NET_RAW, 0, 0, 0))?;
        }
        Ok(())
    }
}

/// From linux/capability.h.
const CAP_NET_RAW: libc::c_ulong = 13;

fn check(result: i32) -> std::io::Result<i32> {
    match result {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(result),
    }
}

/// Writes a file of /proc, between fork and exec. The descriptor is closed when the program is
/// executed.
fn put(path: &CStr, text: &CStr) -> std::io::Result<()> {
    let bytes = text.to_bytes();
    // SAFETY: the path is NUL-terminated, and the pointer and length are those of `bytes`.
    unsafe {
        let file = check(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC))?;
        check(libc::write(file, bytes.as_ptr().cast(), bytes.len()) as i32)?;
    }
    Ok(())
}

/// Waits for a case, and kills processes that it has left. Returns the failure, or `None` on
/// success.
fn wait(child: &mut Child) -> Option<String> {
    let limit = LIMIT.max(crate::reuse::LONG.max(crate::reuse::asked()) * 2);
    let group = child.id() as i32;
    // SAFETY: the calls take integers, and the descriptor is new. The child is not reaped yet, so
    // its id is not reused.
    let (process, hangs) = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, group, 0) as i32;
        assert!(process >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
        let mut entry = libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 };
        let hangs = libc::poll(&raw mut entry, 1, limit.as_millis() as i32) == 0;
        libc::kill(-group, libc::SIGKILL);
        (OwnedFd::from_raw_fd(process), hangs)
    };
    let status = child.wait().expect("wait for the child");
    drop(process);
    match status.success() {
        true => None,
        false if hangs => Some(format!("FAILED: it hangs: no end within {limit:?}")),
        false => Some(format!("FAILED: {status}")),
    }
}

pub fn shards() -> usize {
    std::env::var(SHARDS).map_or(1, |it| it.parse().expect("TOWPATH_TEST_SHARDS is 1 to 16"))
}

fn start_engine() -> (Remote, OwnedFd) {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Programs must see no difference between one shard and several, however many threads run
        // them.
        let threads_by_need = std::env::var_os("TOWPATH_TEST_THREADS_BY_NEED").is_some();
        let config = EngineConfig { threads_by_need, ..EngineConfig::default() };
        let ports = (0..shards()).map(|_| Vec::new()).collect();
        let mut engine = Engine::with_shards(config, ports, [7; 32]).expect("an engine");
        let control = engine.attach().expect("a channel");
        tell.send((engine.remote(), control)).expect("the test waits");
        engine.run()
    });
    told.recv().expect("the engine starts")
}

fn start_program(name: &str, control: &OwnedFd) -> Child {
    let number = control.as_raw_fd();
    let mut command = program(name);
    command
        .env("TOWPATH_CONTROL", number.to_string())
        .env("LD_PRELOAD", preload())
        .stdout(Stdio::piped());
    // SAFETY: fcntl may be called between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    command.spawn().expect("start the program")
}

/// Starts this executable with a case. The child leads its own process group, and is killed if this
/// process ends.
fn program(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this executable"));
    command.env(CASE, name).stdin(Stdio::null()).process_group(0);
    // SAFETY: prctl takes integers, and affects only the new process.
    unsafe {
        command.pre_exec(|| {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)).map(drop)
        });
    }
    command
}
