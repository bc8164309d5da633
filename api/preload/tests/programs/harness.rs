//! Starting an engine and programs on it.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use towpath_engine::{Engine, EngineConfig, Remote};

/// A name and what the child does; it fails by panicking.
pub type Case = (&'static str, fn());

/// A case that runs longer hangs, unless it was asked to.
const LIMIT: Duration = Duration::from_secs(30);
const CASE: &str = "TOWPATH_TEST_CASE";
/// A case prints this line when the engine shall stop.
pub const STOP_ENGINE: &str = "stop the engine now";

/// A case that does not run on the kernel, and what is otherwise there.
pub type Own = (&'static str, &'static str);

/// In the child: runs the case. In the parent: runs all (or those whose names contain the argument), and those that
/// are not in `own` on the kernel as well; nor those in `alone` where that means on the host's network.
pub fn main(cases: &[Case], own: &[Own], alone: &[Own]) -> ExitCode {
    if let Ok(name) = std::env::var(CASE) {
        let (_, case) = cases.iter().find(|(case, _)| *case == name).expect("a case of that name");
        case();
        return ExitCode::SUCCESS;
    }
    let alone = if has_own_network() { &[] } else { alone };
    for (name, _) in own.iter().chain(alone) {
        assert!(cases.iter().any(|(case, _)| case == name), "{name} is no case");
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let library = build_library();
    let mut failed = 0;
    for (name, _) in cases
        .iter()
        .filter(|(name, _)| filter.as_ref().is_none_or(|part| name.contains(part.as_str())))
    {
        let verdict = run(name, &library);
        println!("{name} ... {}", verdict.as_deref().unwrap_or("ok"));
        failed += usize::from(verdict.is_some());
        if let Some((_, otherwise)) = own.iter().chain(alone).find(|(case, _)| case == name) {
            println!("{name} (kernel) ... not run: {otherwise}");
            continue;
        }
        let verdict = run_on_the_kernel(name);
        println!("{name} (kernel) ... {}", verdict.as_deref().unwrap_or("ok"));
        failed += usize::from(verdict.is_some());
    }
    println!("{failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

/// Runs a case in a program of its own; None when it went well.
fn run(name: &str, library: &Path) -> Option<String> {
    let (remote, control) = start_engine();
    let mut child = start_program(name, library, &control);
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

/// The same without library and engine: what the case says is true of Linux. In a network namespace of its
/// own, where that is allowed: ports that other programs had until a minute ago are not free on the host.
fn run_on_the_kernel(name: &str) -> Option<String> {
    let mut command = Command::new(std::env::current_exe().expect("this executable"));
    command.env(CASE, name).stdin(Stdio::null());
    // SAFETY: system calls on what is made here.
    unsafe { command.pre_exec(own_network) };
    wait(&mut command.spawn().expect("start the program"))
}

/// Whether [`own_network`] makes one.
fn has_own_network() -> bool {
    let mut command = Command::new("true");
    let unshare = || {
        // SAFETY: concerns the process alone that is about to become the program.
        match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: a system call.
    unsafe { command.pre_exec(unshare) };
    command.status().is_ok()
}

/// A namespace in which nothing but loopback is, and that is up. The program may there what it may on Towpath: send
/// pings, and have no raw sockets.
fn own_network() -> std::io::Result<()> {
    let check = |result: i32| match result {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(result),
    };
    // SAFETY: concerns this process alone, which is about to become the program.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Ok(());
    }
    // SAFETY: plain integers and characters.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as _, b'o' as _]);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
    let groups = b"0 2147483647";
    // SAFETY: the calls read an ifreq, a name and bytes, which live here; the descriptors are closed when the
    // program is executed.
    unsafe {
        let socket = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        check(libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request))?;
        let file = c"/proc/sys/net/ipv4/ping_group_range".as_ptr();
        let file = check(libc::open(file, libc::O_WRONLY | libc::O_CLOEXEC))?;
        check(libc::write(file, groups.as_ptr().cast(), groups.len()) as i32)?;
        check(libc::prctl(libc::PR_CAPBSET_DROP, CAP_NET_RAW, 0, 0, 0))?;
    }
    Ok(())
}

/// From linux/capability.h.
const CAP_NET_RAW: libc::c_ulong = 13;

/// None: it went well.
fn wait(child: &mut Child) -> Option<String> {
    let begin = Instant::now();
    let limit = LIMIT.max(crate::reuse::duration() + 2 * LIMIT / 3);
    loop {
        match child.try_wait().expect("wait for the child") {
            Some(status) if status.success() => break None,
            Some(status) => break Some(format!("FAILED: {status}")),
            None if begin.elapsed() > limit => {
                child.kill().expect("kill the child");
                child.wait().expect("wait for the child");
                break Some("HANGS".into());
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn start_engine() -> (Remote, OwnedFd) {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // All that a program sees is the same with several, however many threads they have.
        let shards =
            std::env::var("TOWPATH_TEST_SHARDS").map_or(1, |it| it.parse().expect("1 to 16"));
        let threads_by_need = std::env::var_os("TOWPATH_TEST_THREADS_BY_NEED").is_some();
        let config = EngineConfig { threads_by_need, ..EngineConfig::default() };
        let ports = (0..shards).map(|_| Vec::new()).collect();
        let mut engine = Engine::with_shards(config, ports, [7; 32]).expect("an engine");
        let control = engine.attach().expect("a channel");
        tell.send((engine.remote(), control)).expect("the test waits");
        engine.run()
    });
    told.recv().expect("the engine starts")
}

fn start_program(name: &str, library: &Path, control: &OwnedFd) -> Child {
    let number = control.as_raw_fd();
    let mut command = Command::new(std::env::current_exe().expect("this executable"));
    command
        .env(CASE, name)
        .env("TOWPATH_CONTROL", number.to_string())
        .env("LD_PRELOAD", library)
        .stdin(Stdio::null())
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

/// Builds the library beside this executable: cargo does not do that for the tests of a cdylib.
fn build_library() -> PathBuf {
    let exe = std::env::current_exe().expect("this executable");
    // TARGET/PROFILE/deps/programs-HASH
    let profile = exe.ancestors().nth(2).expect("a profile's folder");
    let target = profile.parent().expect("the target folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "towpath-preload", "--target-dir"]).arg(target);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("run cargo").success(), "the library builds");
    profile.join("libtowpath_preload.so")
}
