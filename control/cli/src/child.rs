//! Controls PROGRAM and its descendants through the guardian, a helper process that is their
//! parent: starts them, sends signals, and ends them.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};
use towpath_engine::caller;

use crate::error::{ExitCode, Failure};
use crate::guardian::{
    self, Device, GuardianCommand, GuardianReport, Job, KILL_PATIENCE, Link, link::Received,
};
use towpath_model::wait::wait;

/// A running PROGRAM with its descendants.
pub struct ProgramChild {
    guardian: Pid,
    /// Process id of PROGRAM.
    program: u32,
    link: Link,
    /// Children of this process that do not belong to the run. If a program executes towpath in its
    /// place, its children become children of this process.
    others: Vec<Pid>,
    /// Write end of the parent-death pipe, which the kernel closes when this process ends. The
    /// guardian has another write end.
    lifeline: OwnedFd,
}

/// How PROGRAM ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// PROGRAM exited with this status.
    Exited(u8),
    /// PROGRAM was killed by this signal.
    Killed(i32),
}

/// Change in the state of PROGRAM or its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEvent {
    /// PROGRAM has ended.
    Ended(Ended),
    /// PROGRAM is stopped, as requested by [`ProgramChild::await_stop`].
    Stopped,
    /// No descendant of PROGRAM is alive.
    Alone,
}

impl ProgramChild {
    /// Starts PROGRAM with its sockets on the stack behind `control`. `lifeline` is the write end
    /// of the parent-death pipe.
    pub fn start(job: &Job, control: BorrowedFd<'_>, lifeline: OwnedFd) -> Result<Self> {
        let mut child = Self::begin(job, Some(control), lifeline)?;
        child.await_program(job)?;
        Ok(child)
    }

    /// Starts the guardian in a new network namespace. [`Self::go`] then starts PROGRAM there.
    ///
    /// # Errors
    /// Returns an error message for the user if the namespace cannot be created.
    pub fn in_namespace(job: &Job, lifeline: OwnedFd) -> Result<(Self, Device)> {
        let child = Self::begin(job, None, lifeline)?;
        match guardian::receive_device(child.link.fd())? {
            Some(device) => Ok((child, device)),
            None => Err(child.guardian_has_gone()),
        }
    }

    /// Starts PROGRAM in the namespace.
    ///
    /// # Errors
    /// Returns an error if PROGRAM cannot be executed.
    pub fn go(&mut self, job: &Job) -> Result<()> {
        self.link.command(GuardianCommand::Go);
        self.await_program(job)
    }

    /// Returns the process id of the guardian. The guardian stays in PROGRAM's namespaces until
    /// [`Self::finish`].
    pub fn guardian(&self) -> Pid {
        self.guardian
    }

    fn begin(job: &Job, control: Option<BorrowedFd<'_>>, lifeline: OwnedFd) -> Result<Self> {
        caller::expect_children();
        // Become a child subreaper: if the guardian is killed, orphaned processes become children
        // of this process, which can then end them.
        let own = Some(rustix::process::getpid());
        rustix::process::set_child_subreaper(own).context("PR_SET_CHILD_SUBREAPER")?;
        let child = start_guardian(lifeline).context("the guardian of the run")?;
        let lifeline = child.lifeline.as_fd();
        job.send(child.link.fd(), control, lifeline).context("the guardian of the run")?;
        Ok(child)
    }

    fn await_program(&mut self, job: &Job) -> Result<()> {
        match self.first_report()? {
            GuardianReport::Started(pid) => {
                self.program = pid;
                Ok(())
            }
            GuardianReport::Refused(errno) => {
                let name = job.words.first().map(|name| name.to_string_lossy());
                let name = name.unwrap_or_default();
                let error = std::io::Error::from_raw_os_error(errno);
                let code = match Errno::from_raw_os_error(errno) {
                    Errno::NOENT => ExitCode::NotFound,
                    _ => ExitCode::NotExecutable,
                };
                Err(Failure::error(code, format!("{name}: {error}")))
            }
            _ => bail!("internal error: PROGRAM ended before it began"),
        }
    }

    /// Waits for the guardian's first report, or the end of the guardian.
    fn first_report(&self) -> Result<GuardianReport> {
        loop {
            wait(&mut [PollFd::new(&self.link.fd(), PollFlags::IN)], None)?;
            match self.link.report()? {
                Received::Message(news) => return Ok(news),
                Received::Nothing => {}
                Received::End => return Err(self.guardian_has_gone()),
            }
        }
    }

    /// Returns the process id of PROGRAM.
    pub fn program(&self) -> u32 {
        self.program
    }

    /// Returns the descriptor that becomes readable when an event is available.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    /// Sends a signal to PROGRAM. Has no effect if PROGRAM has ended.
    pub fn send(&self, signal: Signal) {
        self.link.command(GuardianCommand::Signal(signal as i32));
    }

    /// Requests a single [`ChildEvent::Stopped`], which is reported when PROGRAM is stopped.
    pub fn await_stop(&self) {
        self.link.command(GuardianCommand::AwaitStop);
    }

    /// Ends the remaining processes of the run with SIGTERM, and with SIGKILL after the time
    /// `grace`.
    pub fn end(&self, grace: Duration) {
        let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        self.link.command(GuardianCommand::End { grace_ms });
    }

    /// Returns the next event. `None` if no event is available.
    ///
    /// # Errors
    /// Returns an error if the guardian was killed. In that case, this function has ended all
    /// processes of the run.
    pub fn next(&self) -> Result<Option<ChildEvent>> {
        let news = match self.link.report()? {
            Received::Nothing => return Ok(None),
            Received::End => return Err(self.guardian_has_gone()),
            Received::Message(news) => news,
        };
        Ok(Some(match news {
            GuardianReport::Exited(code) => ChildEvent::Ended(Ended::Exited(code)),
            GuardianReport::Killed(signal) => ChildEvent::Ended(Ended::Killed(signal)),
            GuardianReport::Stopped => ChildEvent::Stopped,
            GuardianReport::Alone => ChildEvent::Alone,
            GuardianReport::Started(_) | GuardianReport::Refused(_) => {
                bail!("internal error: PROGRAM began twice")
            }
        }))
    }

    /// Waits until the guardian has exited. Must be called only when no process of the run is left.
    pub fn finish(self) {
        let Self { guardian, link, .. } = self;
        drop(link);
        while let Err(Errno::INTR) = waitpid(Some(guardian), WaitOptions::empty()) {}
    }

    /// Ends the processes of the run after the guardian has ended unexpectedly. Returns the error
    /// message.
    fn guardian_has_gone(&self) -> anyhow::Error {
        let left = if guardian::end_children(&self.others, KILL_PATIENCE) {
            "has been ended"
        } else {
            "may live on"
        };
        let guardian = self.guardian.as_raw_pid();
        anyhow::anyhow!(
            "process {guardian}, which guards the run, was killed: what PROGRAM started {left}"
        )
    }
}

fn start_guardian(lifeline: OwnedFd) -> Result<ProgramChild> {
    let others = guardian::children();
    let flags = SocketFlags::CLOEXEC;
    let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let mut actions = PosixSpawnFileActions::init()?;
    actions.add_dup2(its.as_fd().as_raw_fd(), rustix::stdio::raw_stdin())?;
    // Block signals in the guardian from its start. Otherwise one could end it before it blocks all
    // signals itself.
    let attributes = PosixSpawnAttr::init()?;
    let name = CString::new(guardian::name(std::process::id()))?;
    let environment: Vec<CString> =
        std::env::vars_os().map(|(name, value)| assignment(name, &value)).collect::<Result<_>>()?;
    // Use /proc/self/exe, because the file at the path of towpath may have been replaced meanwhile.
    let file = c"/proc/self/exe";
    let pid = posix_spawn(file, &actions, &attributes, &[name], &environment)?;
    let guardian = Pid::from_raw(pid.as_raw()).context("a process id is positive")?;
    Ok(ProgramChild { guardian, program: 0, link: Link::new(own), others, lifeline })
}

fn assignment(mut name: OsString, value: &OsStr) -> Result<CString> {
    name.push("=");
    name.push(value);
    Ok(CString::new(name.into_vec())?)
}
