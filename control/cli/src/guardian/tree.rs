//! Finds and ends the descendants of this process, without affecting unrelated processes.
//!
//! A process id is reused only after the parent has waited for the process. As the parent of its
//! own children, this process does not wait between lookup and kill. For other descendants, it
//! opens a pidfd (pidfd_open(2)), which never refers to another process. After opening the pidfd,
//! it checks again whether the process is a descendant.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, wait,
};

/// Maximum number of passes over /proc. Each pass may find children that were forked during the
/// previous one. Programs that fork faster get SIGKILL without SIGTERM.
const PASSES_MAX: u32 = 8;
/// Interval between two rounds of SIGKILL. Each round finds children that processes forked before
/// they were killed.
pub(super) const KILL_EVERY: Duration = Duration::from_millis(20);

/// Sends SIGTERM once to every descendant. Also sends SIGCONT, so that stopped processes can react.
pub fn ask_all_to_end() {
    for process in descendants().into_values() {
        // Ignore errors: the process may have ended, or belong to another user.
        let _ = pidfd_send_signal(&process, Signal::TERM);
        let _ = pidfd_send_signal(&process, Signal::CONT);
    }
}

/// Returns the children of this process for which it has not called wait(2) yet.
pub fn children() -> Vec<Pid> {
    let own = rustix::process::getpid();
    processes().into_iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| pid).collect()
}

/// Kills the children of this process except `spared`. The children of killed processes become
/// children of this process, and are killed by the next call.
pub fn kill_children(spared: &[Pid]) {
    for pid in children().into_iter().filter(|pid| !spared.contains(pid)) {
        // Ignore errors: the child may have ended already.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills all descendants of this process except its children `spared`. Returns false if some of
/// them are left after the time `patience`.
pub fn end_children(spared: &[Pid], patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        kill_children(spared);
        loop {
            match wait(WaitOptions::NOHANG) {
                Err(Errno::CHILD) => return true,
                Ok(Some(_)) | Err(Errno::INTR) => {}
                _ => break,
            }
        }
        if children().iter().all(|pid| spared.contains(pid)) {
            return true;
        }
        std::thread::sleep(KILL_EVERY);
    }
    false
}

/// Returns all descendants of this process that have not ended, each with a pidfd.
fn descendants() -> HashMap<Pid, OwnedFd> {
    let own = rustix::process::getpid();
    let mut found: HashMap<Pid, OwnedFd> = HashMap::new();
    for _ in 0..PASSES_MAX {
        let before = found.len();
        for (pid, parent) in processes() {
            let known = parent == own || found.contains_key(&parent);
            if !known || found.contains_key(&pid) {
                continue;
            }
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // The ids of the process and of its parent may have been reused since they were listed.
            // The pidfd shows that the process has not ended. Therefore the parent id, which was
            // read before, is that of this process.
            let still = parent_of(pid) == Some(parent);
            let parent_lives = parent == own || found.get(&parent).is_some_and(lives);
            if still && lives(&process) && parent_lives {
                found.insert(pid, process);
            }
        }
        if found.len() == before {
            break;
        }
    }
    found
}

fn lives(process: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(process, PollFlags::IN)];
    poll(&mut wait, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
}

/// Returns all visible processes with their parents. Returns none if /proc belongs to another PID
/// namespace, because its ids would mean other processes here.
fn processes() -> Vec<(Pid, Pid)> {
    let own = rustix::process::getpid().as_raw_pid().to_string();
    if std::fs::read_link("/proc/self").ok().is_none_or(|link| link.as_os_str() != own.as_str()) {
        return Vec::new();
    }
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Pid::from_raw(number)
    });
    pids.filter_map(|pid| Some((pid, parent_of(pid)?))).collect()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parent_in(&stat)
}

/// Parses the parent's process id from a line of proc_pid_stat(5). The process name in parentheses
/// may contain parentheses. State and parent follow the name.
fn parent_in(stat: &[u8]) -> Option<Pid> {
    Pid::from_raw(field(stat, 1)?.parse().ok()?)
}

/// Returns a field of /proc/PID/stat (proc(5)). Fields are counted from the state, which is 0.
fn field(stat: &[u8], n: usize) -> Option<&str> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(n)
}

/// Returns whether the first thread of this process's parent has ended, even if other threads have
/// not. Checks several times, because the kernel sends the signal slightly before this is visible.
pub(super) fn parent_ends() -> bool {
    let ended = || {
        let Some(parent) = rustix::process::getppid() else { return true };
        let stat = std::fs::read(format!("/proc/{}/stat", parent.as_raw_pid())).unwrap_or_default();
        field(&stat, 0).is_none_or(|state| ["Z", "X"].contains(&state))
    };
    ended() || {
        std::thread::sleep(Duration::from_millis(20));
        ended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found_behind_any_name() {
        let parent = |stat: &[u8]| parent_in(stat).map(|pid| pid.as_raw_pid());
        assert_eq!(parent(b"12 (a b) c) S 34 12 12 0"), Some(34));
        assert_eq!(parent(b"12 (\xff) Z 7 1"), Some(7));
        assert_eq!(field(b"12 (\xff) Z 7 1", 0), Some("Z"));
        assert_eq!(parent(b"1 (init) S 0 1 1"), None);
        assert_eq!(parent(b"12 (torn"), None);
        let own = rustix::process::getpid();
        assert_eq!(parent_of(own), rustix::process::getppid());
    }

    #[test]
    fn a_grandchild_is_below_and_a_stranger_is_not() {
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell.args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let mut sleeper = None;
        while sleeper.is_none() {
            let all = processes();
            let parent = Pid::from_child(&shell);
            sleeper = all.into_iter().find(|(_, its)| *its == parent).map(|(pid, _)| pid);
        }
        let below = descendants();
        assert!(below.contains_key(&Pid::from_child(&shell)));
        let sleeper = &below[&sleeper.unwrap()];
        assert!(!below.contains_key(&rustix::process::getpid()));
        assert!(rustix::process::getppid().is_none_or(|parent| !below.contains_key(&parent)));
        assert!(lives(sleeper));
        pidfd_send_signal(sleeper, Signal::KILL).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
