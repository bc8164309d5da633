//! Sends SIGURG to processes, after checking with the kernel that they are part of the run (the
//! engine and its programs).
//!
//! Processes write their ids, and owners of sockets, into shared memory. Both may be forged, and
//! the engine may have more privileges than the writer. Therefore this module checks in /proc that
//! the process is this one or a descendant, as all processes of a run are. No process in between
//! may have a different user than its parent, unless the parent is root.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};
use towpath_shm::Fd;

/// Maximum number of generations between the engine's process and a descendant that gets SIGURG.
const DEPTH_MAX: usize = 256;

/// The process that was signaled last. The next signal is usually for the same process.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    last: Option<(Pid, Fd)>,
}

impl Owners {
    /// Sends SIGURG to a process of the run. Returns false if the process is not part of the run or
    /// has ended.
    pub fn signal(&mut self, pid: Pid) -> bool {
        if pid == getpid() {
            return kill_process(pid, Signal::URG).is_ok();
        }
        if let Some((_, process)) = self.last.take_if(|(last, _)| *last == pid)
            && pidfd_send_signal(&process, Signal::URG).is_ok()
        {
            self.last = Some((pid, process));
            return true;
        }
        // Open a pidfd before the check. So a process that reuses the process ID after the check
        // gets no signal.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()).map(Fd::from) else { return false };
        let is_sent = is_below(pid, getpid(), ProcessStatus::of)
            && pidfd_send_signal(&process, Signal::URG).is_ok();
        if is_sent {
            self.last = Some((pid, process));
        }
        is_sent
    }
}

/// Returns whether process `pid` is a descendant of `top`. Returns false if a process in between
/// has more privileges than its parent.
fn is_below(pid: Pid, top: Pid, of: impl Fn(Pid) -> Option<ProcessStatus>) -> bool {
    // Check that /proc shows `top` under its own ID. In another PID namespace, /proc would show
    // different IDs.
    let Some(mut child) = of(pid).filter(|_| of(top).is_some_and(|it| it.pid == top)) else {
        return false;
    };
    for _ in 0..DEPTH_MAX {
        let Some(parent) = child.parent.and_then(&of) else { return false };
        if parent.uid != child.uid && parent.uid != 0 {
            return false;
        }
        if parent.pid == top {
            return true;
        }
        child = parent;
    }
    false
}

/// Properties of a process, from /proc/PID/status (proc_pid_status(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessStatus {
    pid: Pid,
    /// Process ID of the parent. `None` for the first process of the system.
    parent: Option<Pid>,
    /// Real user ID of the process.
    uid: u32,
}

impl ProcessStatus {
    fn of(pid: Pid) -> Option<Self> {
        let is_own = pid == getpid();
        let path = if is_own { "/proc/self/status" } else { &*format!("/proc/{pid}/status") };
        let file = Fd::from(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?);
        // Read the beginning of the file only, because the required lines are among the first ten.
        let mut bytes = [0; 1024];
        let n = read(&file, &mut bytes).ok()?;
        Self::parse(&bytes[..n])
    }

    /// Parses the text of /proc/PID/status. The kernel escapes line breaks in process names, so a
    /// name cannot imitate a line.
    fn parse(text: &[u8]) -> Option<Self> {
        let word = |name: &[u8]| {
            let line =
                text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
            std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()
        };
        Some(Self {
            pid: Pid::from_raw(word(b"Pid:")?.parse().ok()?)?,
            parent: Pid::from_raw(word(b"PPid:")?.parse().ok()?),
            uid: word(b"Uid:")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn pid(n: i32) -> Pid {
        Pid::from_raw(n).expect("not 0")
    }

    #[test]
    fn descendants_without_more_rights_are_below() {
        // Test processes: a shell, the engine's process, a guardian, a web server's master and
        // worker, and sudo.
        let tree = [(9, 1, 7), (10, 9, 0), (11, 10, 0), (12, 11, 0), (13, 12, 33), (14, 13, 0)];
        let of = |wanted: Pid| {
            let found = tree.iter().find(|(number, ..)| pid(*number) == wanted);
            found.map(|(n, parent, uid)| ProcessStatus {
                pid: pid(*n),
                parent: Some(pid(*parent)),
                uid: *uid,
            })
        };
        let below: Vec<_> = (1..16).filter(|n| is_below(pid(*n), pid(10), of)).collect();
        assert_eq!(below, [11, 12, 13]);
        let elsewhere = |wanted| of(wanted).map(|it| ProcessStatus { pid: pid(3), ..it });
        assert!(!is_below(pid(11), pid(10), elsewhere), "/proc of another namespace");
        let circle = |wanted| Some(ProcessStatus { pid: wanted, parent: Some(pid(2)), uid: 0 });
        assert!(!is_below(pid(2), pid(3), circle));
    }

    #[test]
    fn status_is_read_by_name() {
        let text =
            b"Name:\tx\\nPid:\t5\nUmask:\t0022\nTgid:\t8\nPid:\t8\nPPid:\t3\nUid:\t33\t0\t0\t0\n";
        let wanted = ProcessStatus { pid: pid(8), parent: Some(pid(3)), uid: 33 };
        assert_eq!(ProcessStatus::parse(text), Some(wanted));
        assert_eq!(ProcessStatus::parse(b"Name:\tx\nPid:\t8\n"), None);
        let own = ProcessStatus::of(getpid()).expect("/proc");
        assert_eq!((own.pid, own.parent), (getpid(), rustix::process::getppid()));
    }

    /// Tests that unrelated processes and ancestors get no signal, although a program can send any
    /// process ID.
    #[test]
    fn only_descendants_are_signalled() {
        let mut owners = Owners::default();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let number = pid(child.id() as i32);
        assert!(owners.signal(number) && owners.signal(number));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(!owners.signal(number), "it has ended");
        assert!(owners.last.is_none());
        let parent = rustix::process::getppid().expect("a parent");
        assert!(!owners.signal(parent) && !owners.signal(pid(1)));
    }
}
