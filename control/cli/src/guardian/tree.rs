//! Finds and ends the descendants of this process, without affecting unrelated processes.
//!
//! A process number is reused only after the process's parent has waited for it. For its own
//! children this process is that parent, and does not wait between lookup and kill. Other
//! descendants are held by a pidfd (pidfd_open(2)), which never refers to another process. After
//! opening a pidfd, the process is verified again.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, wait,
};

/// Maximum number of passes over /proc. Each may find children forked during the previous one.
/// Programs that fork faster receive SIGKILL without SIGTERM.
const PASSES_MAX: u32 = 8;
/// Interval between rounds of SIGKILL. A round finds the children that killed processes forked
/// before they died.
pub(super) const KILL_EVERY: Duration = Duration::from_millis(20);

/// Sends SIGTERM to every descendant once, and SIGCONT so that a stopped one can react.
pub fn ask_all_to_end() {
    for process in descendants().into_values() {
        // Ignore errors, because the process may have ended or belong to another user.
        let _ = pidfd_send_signal(&process, Signal::TERM);
        let _ = pidfd_send_signal(&process, Signal::CONT);
    }
}

/// Returns the children of this process that have not been waited for.
pub fn children() -> Vec<Pid> {
    let own = rustix::process::getpid();
    processes().into_iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| pid).collect()
}

/// Kills the children of this process except `spared`. Their own children become children of this
/// process, and are killed in the next round.
pub fn kill_children(spared: &[Pid]) {
    for pid in children().into_iter().filter(|pid| !spared.contains(pid)) {
        // Ignore an error, because the child may have ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Ends all descendants of this process except its children `spared`. Returns false if some are
/// left after `patience`.
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

/// Returns all descendants of this process that have not ended.
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
            // The number of the process, and that of its parent, may have been reused since the
            // listing. While the process has not ended it keeps its number, so values read before
            // that check belong to it.
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

/// Returns all visible processes with their parents. Empty if /proc belongs to another PID
/// namespace, because its numbers would mean other processes here.
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

/// Parses the parent from proc_pid_stat(5). The name in parentheses may itself contain parentheses;
/// state and parent follow.
fn parent_in(stat: &[u8]) -> Option<Pid> {
    Pid::from_raw(field(stat, 1)?.parse().ok()?)
}

/// Returns a field of /proc/PID/stat (proc(5)), counted from the state, which is 0.
fn field(stat: &[u8], n: usize) -> Option<&str> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(n)
}

/// Returns whether the first thread of this process's parent has ended; other threads may live.
/// Checks repeatedly, because the kernel sends the signal slightly before the change is visible.
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
