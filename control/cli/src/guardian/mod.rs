//! The guardian: a small process between towpath and PROGRAM that ends all processes of the run.
//!
//! The guardian is PROGRAM's parent and a child subreaper (prctl(2)). An orphaned process becomes
//! the guardian's child instead of init's, in any session or process group. Each process of the run
//! is therefore a descendant of the guardian, and the run has ended exactly when the guardian has
//! no child. A process number is reused only after the parent has waited for the child. Killing a
//! child by its number therefore cannot affect an unrelated process.
//!
//! Towpath and the guardian monitor each other through a socket pair. When towpath dies, even by
//! SIGKILL, the kernel closes its end, and the guardian ends the run. The close is delayed if a
//! thread of towpath is blocked on a kernel lock that a program holds. Therefore a signal also
//! notifies the guardian when towpath's first thread ends (PR_SET_PDEATHSIG of prctl(2)). When the
//! guardian dies, its children become towpath's, which is a subreaper for this case only, and
//! towpath ends the run. When both die at once, the kernel closes the last write ends of the
//! *parent-death pipe*. Every process with the preload library has a read end, by which the kernel
//! kills it (client/src/parent_death.rs).
//!
//! The guardian leaves the process group of towpath and PROGRAM and blocks all signals, so that
//! neither Ctrl-C nor `kill -9 -- -GROUP` affects it. The guardian stays in their session.
//! Otherwise a shell started as PROGRAM would be in an orphaned process group, where the kernel
//! allows no job control. See docs/decisions/0006-how-a-run-ends.md.

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

/// Time between SIGTERM and SIGKILL if towpath has died. All processes of the run should end within
/// a second of that death, even on a busy machine.
const ORPHANED_GRACE: Duration = Duration::from_millis(500);
/// Time to wait for the end of a process after SIGKILL. A process that is blocked on a failed disk
/// cannot be killed. A process of another user (sudo) may be protected from signals of this
/// process.
pub const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Signal that the kernel sends to the guardian when the thread that started it ends.
const OWNER_ENDS: Signal = Signal::SIGUSR1;

/// Returns the name of the guardian's process, with the id of its run. The name must not contain
/// "towpath". Otherwise `pkill -9 -f towpath` would kill the guardian, too, and PROGRAM would
/// remain.
pub fn name(of: u32) -> String {
    format!("{NAME}{of}")
}

const NAME: &str = "guardian of run ";

/// Returns whether this process was started as a guardian.
pub fn is_this() -> bool {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    name.as_encoded_bytes().starts_with(NAME.as_bytes()) && words.next().is_none()
}

/// Main function of the guardian process.
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
    // Ignore errors: the name is only displayed by ps(1).
    let _ = rustix::thread::set_name(c"guardian");
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let heard = [Signal::SIGCHLD, OWNER_ENDS].into_iter().collect::<SigSet>();
    let signals = SignalFd::with_flags(&heard, flags)?;
    nix::sys::prctl::set_pdeathsig(OWNER_ENDS).context("PR_SET_PDEATHSIG")?;
    let owner = rustix::stdio::stdin();
    // Keep the parent-death pipe (`_lifeline`) open until this process ends.
    let Some((job, _lifeline)) = Job::receive(owner)? else { return Ok(()) };
    let mut covers = covers::Covers::default();
    if let Some(namespace) = job.namespace() {
        // Send towpath the device of the new namespace, or the error that prevented it.
        let entered = namespace.enter();
        device::send(owner, entered.as_ref().map(|(device, _)| device))?;
        // Closes the guardian's own descriptors of the device, which towpath now has.
        covers = entered.map(|(_, covers)| covers).unwrap_or_default();
        // Set the parent-death signal again, because some changes of credentials clear it
        // (PR_SET_PDEATHSIG of prctl(2)).
        nix::sys::prctl::set_pdeathsig(OWNER_ENDS).context("PR_SET_PDEATHSIG")?;
        if !link::may_go(owner)? {
            return Ok(());
        }
    }
    let program = match job.start() {
        Ok(program) => program,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            // Ignore errors: towpath may have died in the meantime.
            let _ = link::send(owner, GuardianReport::Refused(errno));
            return Ok(());
        }
    };
    // Start this thread only now. PROGRAM must be forked by a single-threaded process.
    if let Err(error) = covers.keep() {
        crate::messages::error(&format!("changed files of /etc will be the host's: {error:#}"));
    }
    // Ignore errors: `setpgid` fails only for a session leader, which a new process is not.
    let _ = rustix::process::setpgid(None, None);
    Guardian::new(owner, signals, program).run()
}

/// State of ending the processes of the run.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The processes were not asked to end yet.
    NotYet,
    /// SIGTERM was sent. SIGKILL follows at this time.
    Asked(Instant),
    /// SIGKILL is sent repeatedly until this time, because killed processes may have forked new
    /// ones.
    Forced(Instant),
}

struct Guardian {
    owner: BorrowedFd<'static>,
    owner_lives: bool,
    /// Signalfd that receives SIGCHLD and [`OWNER_ENDS`].
    signals: SignalFd,
    /// Process id of PROGRAM; `None` after it has ended.
    program: Option<Pid>,
    /// Whether PROGRAM is currently stopped by a signal.
    program_stopped: bool,
    /// Whether towpath has requested a report when PROGRAM is stopped.
    stop_awaited: bool,
    /// Whether all children of the guardian have ended.
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

    /// Runs until towpath has ended and no process of the run is left.
    fn run(mut self) -> Result<()> {
        loop {
            self.wait()?;
            // Signals only wake this thread. A SIGCHLD may report several children, so wait(2)
            // determines which have ended. Any process of the user can send OWNER_ENDS, so we check
            // whether towpath has really ended.
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

    /// Waits for all children that have ended (wait(2)), and records whether PROGRAM is stopped.
    fn reap(&mut self) -> Result<()> {
        self.look_at_program();
        loop {
            // Wait only for children that have ended. Otherwise processes that stop and continue
            // each other without end would keep this loop running.
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.program => self.note(status),
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

    /// Checks once whether PROGRAM was stopped or continued, or has ended. The kernel reports only
    /// its latest stop or continuation.
    fn look_at_program(&mut self) {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        // Ignore errors: they mean that the child no longer exists.
        if let Some(program) = self.program
            && let Ok(Some((_, status))) = rustix::process::waitpid(Some(program), options)
        {
            self.note(status);
        }
    }

    fn note(&mut self, status: WaitStatus) {
        self.program_stopped = status.stopped();
        if let Some(report) = ended(status) {
            self.program = None;
            self.tell(report);
        }
    }

    /// Executes the commands that towpath has sent. If towpath has died, ends the run.
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

    /// Begins to end the run, because towpath has died.
    fn abandoned(&mut self) {
        self.owner_lives = false;
        self.end_within(ORPHANED_GRACE);
    }

    fn signal(&self, signal: i32) {
        if let (Some(program), Some(signal)) =
            (self.program, rustix::process::Signal::from_named_raw(signal))
        {
            // Ignore errors: PROGRAM may have changed its user, so that it cannot be signalled.
            let _ = rustix::process::kill_process(program, signal);
        }
    }

    /// Requests all processes to end, and sets the time of SIGKILL, which is never later than
    /// requested before.
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
            // SIGKILL was already sent, so its time limit does not change.
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
        // Ignore errors: if towpath has died, the next receive reports this.
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
