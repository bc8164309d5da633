//! Runs processes with a time limit: steps of the gate, and tests.
//!
//! Each process starts in its own process group. The whole group is killed, because often a child
//! of the process hangs.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::interrupt;

/// Time limit of a step: five times the slowest step of a gate without build cache on two cores.
pub const STEP_LIMIT: Duration = Duration::from_secs(1500);
/// Interval at which a wait checks whether the chore was interrupted.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(ExitStatus),
    /// Killed with its process group at this time limit.
    TooLong(Duration),
}

impl End {
    pub fn is_success(self) -> bool {
        matches!(self, Self::Exited(status) if status.success())
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(status) => status.fmt(f),
            Self::TooLong(limit) => write!(f, "killed after its limit of {} s", limit.as_secs()),
        }
    }
}

/// Runs a command to its end, or kills its process group after `limit`. If the chore is
/// interrupted, kills the group, too, and returns an error.
pub fn run(command: &mut Command, limit: Duration) -> Result<End> {
    let mut child = spawn(command)?;
    wait(&mut child, limit)
}

/// Starts a command without standard input, as the leader of its own process group.
fn spawn(command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::null()).process_group(0);
    command.spawn().with_context(|| format!("{command:?}"))
}

fn wait(child: &mut Child, limit: Duration) -> Result<End> {
    let group = Pid::from_child(child);
    let begin = Instant::now();
    let descriptor = pidfd_open(group, PidfdFlags::empty()).context("pidfd_open")?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Exited(status));
        }
        let is_late = begin.elapsed() >= limit;
        let interrupted = interrupt::check();
        if is_late || interrupted.is_err() {
            // ESRCH: the group has ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
            child.wait()?;
            interrupted?;
            return Ok(End::TooLong(limit));
        }
        let mut ended = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut ended, Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => bail!("poll: {error}"),
        }
    }
}

/// Runs a step, and prints its name and duration. An error contains the step's name.
pub fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    work().with_context(|| format!("step {name:?}"))?;
    println!("== {name}: {:.0} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// Runs a command as a step. Its output is not captured.
pub fn command(name: &str, mut command: Command) -> Result<()> {
    step(name, || {
        let end = run(&mut command, STEP_LIMIT)?;
        ensure!(end.is_success(), "{end}: {command:?}");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_process_that_hangs_is_killed_with_its_children() {
        let mut command = shell("sleep 1000 & echo $!; wait");
        command.stdout(Stdio::piped());
        let mut child = spawn(&mut command).unwrap();
        let mut output = child.stdout.take().unwrap();
        let end = wait(&mut child, Duration::from_millis(200)).unwrap();
        assert_eq!(end, End::TooLong(Duration::from_millis(200)));
        // The child keeps the pipe open while it runs, so the read ends only after the child has
        // ended.
        let mut pid = String::new();
        std::io::Read::read_to_string(&mut output, &mut pid).unwrap();
        assert!(pid.trim().parse::<u32>().is_ok(), "{pid}");
    }

    #[test]
    fn the_status_is_told_and_no_input_is_given() {
        let ended = |script| run(&mut shell(script), Duration::from_secs(60)).unwrap();
        assert!(ended("! read line").is_success());
        let End::Exited(status) = ended("exit 3") else { panic!("it ends by itself") };
        assert_eq!(status.code(), Some(3));
    }
}
