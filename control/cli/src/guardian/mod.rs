//! The guardian: a small process between towpath and PROGRAM that ends whatever PROGRAM started.
//!
//! The guardian is PROGRAM's parent and a child subreaper (prctl(2)). A process whose parent has
//! ended becomes the guardian's child instead of init's, in any session or process group. So each
//! process of the run is always the guardian's child, or a descendant of one. The guardian has no
//! child left exactly when nothing of the run lives. Only a child's own parent can make its number
//! free for another process, so to kill a child by its number cannot hit a stranger.
//!
//! Towpath and the guardian watch each other over one socket pair. When towpath dies, by SIGKILL
//! too, the kernel closes its end, and the guardian ends the run. A thread of towpath may wait for
//! a lock of the kernel that a program holds. The kernel cannot end such a thread yet, which keeps
//! that end open. So a signal also tells the guardian when the first thread ends (PR_SET_PDEATHSIG
//! of prctl(2)). When the guardian dies, its children become those of towpath, which is a subreaper
//! for this case alone, and towpath ends the run. When both die at once, the kernel closes the last
//! write ends of the *parent-death pipe*, a pipe. Every process with the preload library has a read
//! end, by which the kernel kills it (client/src/parent_death.rs).
//!
//! The guardian leaves the process group of towpath and PROGRAM, and it blocks all signals: neither
//! a Ctrl-C nor a `kill -9 -- -GROUP` is for it. Its session stays theirs, or a shell that PROGRAM
//! is would be in an orphaned process group, where the kernel allows no job control. See
//! docs/decisions/0006-how-a-run-ends.md.

mod covers;
mod device;
mod hosts;
mod job;
pub mod link;
pub mod namespace;
mod resolv_conf;
mod sock_diag;
mod tree;

use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use towpath_model::wait::wait;

pub use device::{Device, receive as receive_device};
pub use job::{Job, Way};
pub use link::{GuardianCommand, GuardianReport, Link};
pub use sock_diag::SockDiag;
pub use tree::{children, end_children};

/// Time between SIGTERM and SIGKILL of a run whose towpath has died. Within a second of that death
/// everything has ended, on a busy machine too.
const ORPHANED_GRACE: Duration = Duration::from_millis(500);
/// Time that a process may take to vanish after SIGKILL before it is left behind. A process that
/// waits for a dead disk cannot be killed, nor may a user kill one that runs as another user
/// (sudo).
pub const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Tells that the thread of towpath has ended that started the guardian, its first one.
const OWNER_ENDS: Signal = Signal::SIGUSR1;

/// Name of the guardian's process, with the id of its run. The name lacks the word "towpath",
/// because `pkill -9 -f towpath` would kill both at once, and leave the run.
pub fn name(of: u32) -> String {
    format!("{NAME}{of}")
}

const NAME: &str = "guardian of run ";

/// Whether this process was started to be a guardian.
pub fn is_this() -> bool {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    name.as_encoded_bytes().starts_with(NAME.as_bytes()) && words.next().is_none()
}

/// The guardian's `main`.
pub fn main() -> ExitCode {
    match guard() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::messages::error(&format!("the guardian of the run: {error:#}"));
            crate::error::ExitCode::Failed.into()
        }
    }
}

fn guard() -> Result<()> {
    SigSet::all().thread_block()?;
    let own = Some(rustix::process::getpid());
    rustix::process::set_child_subreaper(own).context("PR_SET_CHILD_SUBREAPER")?;
    // The name is for ps(1) alone.
    let _ = rustix::thread::set_name(c"guardian");
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let heard = [Signal::SIGCHLD, OWNER_ENDS].into_iter().collect::<SigSet>();
    let signals = SignalFd::with_flags(&heard, flags)?;
    nix::sys::prctl::set_pdeathsig(OWNER_ENDS).context("PR_SET_PDEATHSIG")?;
    let owner = rustix::stdio::stdin();
    // The parent-death pipe is open until this process has ended.
    let Some((job, _lifeline)) = Job::receive(owner)? else { return Ok(()) };
    let mut covers = covers::Covers::default();
    if let Some(namespace) = job.namespace() {
        // Towpath gets the device of the new namespace, or the error that prevented it.
        let entered = namespace.enter();
        device::send(owner, entered.as_ref().map(|(device, _)| device))?;
        // The device is towpath's from here on.
        covers = entered.map(|(_, covers)| covers).unwrap_or_default();
        // Some changes of credentials take it back (PR_SET_PDEATHSIG of prctl(2)).
        nix::sys::prctl::set_pdeathsig(OWNER_ENDS).context("PR_SET_PDEATHSIG")?;
        if !link::may_go(owner)? {
            return Ok(());
        }
    }
    let program = match job.start() {
        Ok(program) => program,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            // Towpath may have died meanwhile, and gets no report then.
            let _ = link::send(owner, GuardianReport::Refused(errno));
            return Ok(());
        }
    };
    // Not before: PROGRAM is started by a process of one thread.
    if let Err(error) = covers.keep() {
        crate::messages::error(&format!("changed files of /etc will be the host's: {error:#}"));
    }
    // `setpgid` fails for a session leader only, which a process that was just started is not.
    let _ = rustix::process::setpgid(None, None);
    Guardian::new(owner, signals, program).run()
}

/// How far the end of the run is.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The end was not asked for.
    NotYet,
    /// SIGTERM was sent; the time of SIGKILL.
    Asked(Instant),
    /// SIGKILL is sent again and again, until then.
    Forced(Instant),
}

struct Guardian {
    owner: BorrowedFd<'static>,
    owner_lives: bool,
    /// SIGCHLD and [`OWNER_ENDS`].
    signals: SignalFd,
    /// None: it has ended.
    program: Option<Pid>,
    /// PROGRAM is stopped by a signal.
    program_stopped: bool,
    /// Towpath wants a report when PROGRAM is stopped.
    stop_awaited: bool,
    /// There is no child left.
    alone: bool,
    end: End,
}

impl Guardian {
    fn new(owner: BorrowedFd<'static>, signals: SignalFd, program: Pid) -> Self {
        let guardian = Self {
            owner,
            owner_lives: true,
            signals,
            program: Some(program),
            program_stopped: false,
            stop_awaited: false,
            alone: false,
            end: End::NotYet,
        };
        guardian.tell(GuardianReport::Started(program.as_raw_pid().unsigned_abs()));
        guardian
    }

    /// Until towpath has gone and nothing of the run is left.
    fn run(mut self) -> Result<()> {
        loop {
            self.wait()?;
            // The signals only wake. A SIGCHLD may stand for several children: wait(2) says which
            // have ended. Any process of the user can send the other signal, so the end of towpath
            // is looked up.
            let mut ends = false;
            while let Ok(Some(signal)) = self.signals.read_signal() {
                ends |= signal.ssi_signo == OWNER_ENDS as u32;
            }
            if ends && self.owner_lives && tree::parent_ends() {
                self.abandoned();
            }
            self.reap()?;
            self.obey()?;
            self.advance();
            let forced_in_vain = matches!(
                self.end,
                End::Forced(until) if !self.owner_lives && until <= Instant::now()
            );
            if !self.owner_lives && self.alone || forced_in_vain {
                return Ok(());
            }
        }
    }

    fn wait(&self) -> Result<()> {
        let left = match self.end {
            End::NotYet => None,
            End::Asked(until) => Some(until.saturating_duration_since(Instant::now())),
            End::Forced(_) => Some(tree::KILL_EVERY),
        };
        let left = left.filter(|_| !self.alone);
        let mut waits = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.owner_lives {
            waits.push(PollFd::new(&self.owner, PollFlags::IN));
        }
        wait(&mut waits, left).context("poll")
    }

    /// Reaps each process that has ended, and notes whether PROGRAM is stopped.
    fn reap(&mut self) -> Result<()> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        loop {
            match rustix::process::wait(options) {
                Ok(Some((pid, status))) if Some(pid) == self.program => {
                    self.program_stopped = status.stopped();
                    if let Some(report) = ended(status) {
                        self.program = None;
                        self.tell(report);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CHILD) => {
                    if !std::mem::replace(&mut self.alone, true) {
                        self.tell(GuardianReport::Alone);
                    }
                    return Ok(());
                }
                Err(error) => return Err(error).context("wait"),
            }
        }
    }

    /// Does what towpath has ordered, and ends the run if towpath has died.
    fn obey(&mut self) -> Result<()> {
        while self.owner_lives {
            match link::receive(self.owner)? {
                link::Received::Nothing => return Ok(()),
                link::Received::Message(GuardianCommand::Signal(signal)) => self.signal(signal),
                link::Received::Message(GuardianCommand::End { grace_ms }) => {
                    self.end_within(Duration::from_millis(grace_ms.into()));
                }
                link::Received::Message(GuardianCommand::AwaitStop) => self.stop_awaited = true,
                link::Received::Message(GuardianCommand::Go) => {}
                link::Received::End => self.abandoned(),
            }
        }
        Ok(())
    }

    /// Towpath has died: the guardian ends the run.
    fn abandoned(&mut self) {
        self.owner_lives = false;
        self.end_within(ORPHANED_GRACE);
    }

    fn signal(&self, signal: i32) {
        if let (Some(program), Some(signal)) =
            (self.program, rustix::process::Signal::from_named_raw(signal))
        {
            // PROGRAM may have made itself another user's.
            let _ = rustix::process::kill_process(program, signal);
        }
    }

    /// Asks everything to end, now or sooner than before.
    fn end_within(&mut self, grace: Duration) {
        let until = Instant::now() + grace;
        self.end = match self.end {
            End::NotYet if self.alone => return,
            End::NotYet if !grace.is_zero() => {
                tree::ask_all_to_end();
                End::Asked(until)
            }
            End::NotYet => End::Asked(until),
            End::Asked(before) => End::Asked(before.min(until)),
            // SIGKILL is sent already, and nothing is stronger.
            forced => forced,
        };
    }

    fn advance(&mut self) {
        if self.stop_awaited && self.program_stopped {
            self.stop_awaited = false;
            self.tell(GuardianReport::Stopped);
        }
        let now = Instant::now();
        if let End::Asked(until) = self.end
            && until <= now
        {
            self.end = End::Forced(now + KILL_PATIENCE);
        }
        if matches!(self.end, End::Forced(_)) && !self.alone {
            tree::kill_children(&[]);
        }
    }

    fn tell(&self, news: GuardianReport) {
        // Towpath may have died: its end of the socket says so next.
        let _ = link::send(self.owner, news);
    }
}

fn ended(status: WaitStatus) -> Option<GuardianReport> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(GuardianReport::Exited(code as u8)),
        (_, Some(signal)) => Some(GuardianReport::Killed(signal)),
        _ => None,
    }
}
