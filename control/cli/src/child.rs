//! PROGRAM as a process: started with the control socket, signalled, waited for.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::{Context, Result};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, PidfdFlags, Resource, WaitOptions};
use towpath_shm::control::ENV_CONTROL;

use crate::error::{ExitCode, Failure};
use crate::preload;

/// A running PROGRAM.
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(u8),
    Killed(i32),
}

impl Child {
    /// Starts `words` (PROGRAM and its arguments) from the file `path` on the stack behind `control`.
    pub fn start(
        path: &Path,
        words: &[OsString],
        library: &Path,
        control: BorrowedFd<'_>,
        mask: &SigSet,
    ) -> Result<Self> {
        let number = control_number();
        let mut actions = PosixSpawnFileActions::init()?;
        actions.add_dup2(control.as_raw_fd(), number)?;
        let mut attributes = PosixSpawnAttr::init()?;
        attributes.set_flags(
            PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
        )?;
        attributes.set_sigmask(mask)?;
        // The Rust runtime ignores it; programs expect to die of it.
        attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
        let arguments = words.iter().map(|word| c_string(word)).collect::<Result<Vec<_>>>()?;
        let environment = environment(library, number)?;
        let file = c_string(path.as_os_str())?;
        let spawned = posix_spawn(file.as_c_str(), &actions, &attributes, &arguments, &environment);
        let pid = spawned.map_err(|error| {
            Failure::error(
                ExitCode::NotExecutable,
                format!("{}: {}", words[0].to_string_lossy(), error.desc()),
            )
        })?;
        let pid = Pid::from_raw(pid.as_raw()).context("a process id is positive")?;
        // Not waited for yet, so the number still stands for this process.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
        Ok(Self { pid, pidfd })
    }

    /// Becomes readable when it has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends it a signal; one that ended meanwhile needs none.
    pub fn send(&self, signal: Signal) {
        if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// How it ended, if it has.
    pub fn try_wait(&self) -> Result<Option<Ended>> {
        let waited =
            rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG).context("waitpid")?;
        Ok(waited.and_then(|(_, status)| {
            match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Some(Ended::Exited(code as u8)),
                (_, Some(signal)) => Some(Ended::Killed(signal)),
                _ => None,
            }
        }))
    }
}

/// Where PROGRAM finds the control socket: high, where no program expects a number to be free, and
/// below its limit.
fn control_number() -> i32 {
    const PREFERRED: u64 = 1000;
    /// Room above it for the descriptors that the preload library opens itself.
    const ABOVE: u64 = 16;
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    PREFERRED.min(limit.saturating_sub(ABOVE).max(3)) as i32
}

fn environment(library: &Path, control: i32) -> Result<Vec<CString>> {
    let replaced: [(&str, OsString); 3] = [
        ("LD_PRELOAD", preload::environment(library, std::env::var_os("LD_PRELOAD"))),
        (ENV_CONTROL, control.to_string().into()),
        // libuv's io_uring would take file and socket calls past the C library.
        ("UV_USE_IO_URING", "0".into()),
    ];
    let kept = std::env::vars_os().filter(|(name, _)| replaced.iter().all(|(new, _)| name != new));
    let kept = kept.map(|(name, value)| assignment(name, &value));
    kept.chain(replaced.iter().map(|(name, value)| assignment((*name).into(), value))).collect()
}

fn assignment(mut name: OsString, value: &OsStr) -> Result<CString> {
    name.push("=");
    name.push(value);
    Ok(CString::new(name.into_vec())?)
}

fn c_string(text: &OsStr) -> Result<CString> {
    CString::new(text.as_bytes()).context("a NUL byte in an argument")
}
