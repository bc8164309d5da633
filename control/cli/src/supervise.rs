//! Supervises PROGRAM: forwards signals to it, and waits until the run has ended.
//!
//! ```text
//!             TERM, INT, HUP, QUIT: asked     PROGRAM has ended
//!   running ─────────────────────────► running ──────────────► ending: SIGTERM to all processes,
//!      │                                                       SIGKILL after the grace; pending
//!      │ PROGRAM has ended                  asked              bytes have until the grace ends
//!      └──────────────────► lingering ───────────────────────► ending: the same, but pending
//!                              │                               bytes are discarded once all
//!                              │                               processes have ended
//!                              └──► no process left, all bytes delivered: the end
//! ```
//!
//! With `--inline`, PROGRAM's own process delivers pending bytes in exit(3) before it ends. PROGRAM
//! counts as ended when it calls exit(3). Its descendants use the stack in this process, so they
//! receive SIGTERM only after the process has ended.
//!
//! A second signal while the run is ending means that the user does not want to wait. The processes
//! are then killed, and pending bytes are discarded.
//!
//! "Asked" means that a signal has requested the end. Only SIGTERM does so unambiguously. An
//! interpreter may handle SIGINT by aborting a command, a server SIGHUP by reloading its
//! configuration, and Java SIGQUIT by dumping threads. The end of PROGRAM is attributed to a signal
//! only if the signal arrived shortly before ([`Run::survived_after`]).

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags};

use crate::child::{ChildEvent, Ended, ProgramChild};
use crate::guardian::KILL_PATIENCE;
use crate::signals::{Arrived, Signals, act};
use towpath_model::wait::wait;

/// Time after PROGRAM has ended at which the user is told why the run continues: background
/// processes or undelivered bytes.
const MENTION_AFTER: Duration = Duration::from_secs(2);

/// Maximum time after SIGTSTP in which a stop of PROGRAM counts as an effect of this signal. A
/// PROGRAM that ignores SIGTSTP may be stopped much later for another reason.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// Callbacks for events while a run is supervised.
pub trait Observer {
    /// Called some time after PROGRAM has ended, if the run continues. `delivers` is true if only
    /// undelivered bytes remain.
    fn lingering(&self, delivers: bool);
    /// Called when the stack must be stopped.
    fn stop(&self);
    /// Called when some processes of the run cannot be killed.
    fn left_behind(&self);
    /// Called when all descendants of PROGRAM have ended.
    fn alone(&self) {}
}

/// A run that is supervised, with the descriptors on which to wait.
pub struct Run<'a, O> {
    /// Handle of PROGRAM and its descendants.
    pub child: &'a ProgramChild,
    /// Descriptor that hangs up when the stack has ended.
    pub stack: BorrowedFd<'a>,
    /// Descriptor that is readable while PROGRAM is in exit(3), where its process delivers pending
    /// bytes. `None` if the stack is in the process of towpath.
    pub leaves: Option<BorrowedFd<'a>>,
    /// Source of signals that towpath has received.
    pub signals: &'a Signals,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Maximum time between a signal and the end of PROGRAM for which the signal counts as a
    /// request to end the run. Equal to `grace` by default.
    pub survived_after: Duration,
    /// Object whose methods are called when events occur.
    pub observer: &'a O,
}

/// Progress in ending a run.
#[derive(Debug, Default)]
struct EndProgress {
    ended: Option<Ended>,
    /// Whether PROGRAM has called exit(3), and its process still exists.
    leaves: bool,
    /// Whether all descendants of PROGRAM have ended.
    alone: bool,
    stack_ended: bool,
    /// Request to end the run by a signal; `None` if there was none.
    asked: Option<Asked>,
    /// Time at which undelivered bytes are discarded; `None` if there is no limit.
    deliver_until: Option<Instant>,
    mention_at: Option<Instant>,
    /// Time at which waiting ends for processes that cannot be killed.
    give_up_at: Option<Instant>,
    stopped: bool,
    /// Time until which towpath also stops itself if the guardian reports that PROGRAM has stopped.
    stop_awaited: Option<Instant>,
}

impl EndProgress {
    /// Returns whether the run only delivers remaining bytes, because no process can write further
    /// ones.
    fn only_delivers(&self) -> bool {
        self.alone || self.leaves && self.ended.is_none()
    }
}

/// A signal by which the user may have requested to end the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// A signal received at this time that PROGRAM may handle without ending.
    Perhaps(Instant),
    /// A signal that always requests the end, or any signal that arrived after PROGRAM had ended.
    Certainly,
}

impl Asked {
    /// Returns the new state after the signal `arrived`. `before` is the state before this signal.
    fn after(before: Option<Self>, arrived: Arrived, now: Instant) -> Self {
        // A SIGHUP from the terminal means that the terminal was closed. A SIGHUP by kill(1)
        // usually requests a server to reload its configuration.
        let hung_up = arrived.signal == Signal::SIGHUP && arrived.from_terminal;
        let certain = arrived.signal == Signal::SIGTERM || hung_up;
        if certain || before == Some(Self::Certainly) {
            Self::Certainly
        } else {
            Self::Perhaps(now)
        }
    }

    /// Returns whether the signal counts as a request to end the run, if PROGRAM ends at the time
    /// `now`.
    fn counts(self, now: Instant, survived_after: Duration) -> bool {
        match self {
            Self::Perhaps(at) => now.saturating_duration_since(at) < survived_after,
            Self::Certainly => true,
        }
    }
}

impl<O: Observer> Run<'_, O> {
    /// Waits until PROGRAM, its descendants, and the stack have ended. Returns false if processes
    /// remain that cannot be killed.
    pub fn supervise(&self) -> Result<(Ended, bool)> {
        let mut at = EndProgress::default();
        loop {
            let leaves = self.wait(&mut at)?;
            // Handle signals before the end of PROGRAM. If Ctrl-C has caused the end of PROGRAM, it
            // also requests the end of the run.
            while let Some(arrived) = self.signals.next()? {
                self.heed(&mut at, arrived)?;
            }
            if leaves && at.ended.is_none() {
                at.leaves = true;
                self.note_end(&mut at, Instant::now());
            }
            while !at.alone
                && let Some(event) = self.child.next()?
            {
                self.note(&mut at, event)?;
            }
            self.advance(&mut at, Instant::now());
            let Some(ended) = at.ended else { continue };
            if at.alone && at.stack_ended {
                return Ok((ended, true));
            }
            if !at.alone && at.give_up_at.is_some_and(|time| time <= Instant::now()) {
                self.observer.left_behind();
                return Ok((ended, false));
            }
        }
    }

    /// Waits for the next event: a signal, a report or a time limit. Returns whether PROGRAM has
    /// called exit(3).
    fn wait(&self, at: &mut EndProgress) -> Result<bool> {
        let program = self.child.fd();
        let deliver_until = at.deliver_until.filter(|_| at.only_delivers() && !at.stopped);
        let next = [deliver_until, at.mention_at, at.give_up_at.filter(|_| !at.alone)];
        let left = next.into_iter().flatten().min();
        let left = left.map(|next| next.saturating_duration_since(Instant::now()));
        let mut waits = vec![PollFd::new(self.signals.fd(), PollFlags::IN)];
        if !at.alone {
            waits.push(PollFd::new(&program, PollFlags::IN));
        }
        // Ignore the end of the stack while PROGRAM runs. The stack ends as soon as no process is
        // attached to it, for example without the preload library. But the run ends only with
        // PROGRAM.
        let leaves = self.leaves.filter(|_| at.ended.is_none() && !at.leaves);
        let leaves_at = waits.len();
        waits.extend(leaves.as_ref().map(|leaves| PollFd::new(leaves, PollFlags::IN)));
        let with_stack = at.ended.is_some() && !at.stack_ended;
        if with_stack {
            waits.push(PollFd::new(&self.stack, PollFlags::IN));
        }
        wait(&mut waits, left)?;
        let hung_up = waits.last().is_some_and(|last| !last.revents().is_empty());
        at.stack_ended |= with_stack && hung_up;
        Ok(leaves.is_some() && !waits[leaves_at].revents().is_empty())
    }

    fn heed(&self, at: &mut EndProgress, arrived: Arrived) -> Result<()> {
        let Arrived { signal, from_terminal } = arrived;
        if at.ended.is_none() && !at.leaves && !from_terminal {
            self.child.send(signal);
        }
        if signal == Signal::SIGTSTP {
            return self.stop(at);
        }
        if !asks_to_end(self.signals, signal) {
            return Ok(());
        }
        let now = Instant::now();
        if at.ended.is_some() {
            let again = at.asked.replace(Asked::Certainly).is_some();
            self.end(at, now, if again { Duration::ZERO } else { self.grace });
            // PROGRAM has already ended, so this is the second signal. Discard undelivered bytes.
            at.deliver_until = Some(now);
        } else if at.leaves {
            at.asked = Some(Asked::Certainly);
            if at.stopped {
                // PROGRAM's process does not return from exit(3), so kill it.
                self.end(at, now, Duration::ZERO);
            }
            at.deliver_until = Some(now);
        } else {
            at.asked = Some(Asked::after(at.asked, arrived, now));
        }
        Ok(())
    }

    /// Stops towpath after PROGRAM has stopped, so that the shell gets the terminal back only then.
    /// Otherwise PROGRAM could still read a line that the user has typed for the shell. If PROGRAM
    /// ignores SIGTSTP, towpath continues to run, too.
    fn stop(&self, at: &mut EndProgress) -> Result<()> {
        if at.ended.is_some() || at.leaves {
            return act(Signal::SIGTSTP);
        }
        // Request only one report at a time. Otherwise the second report would stop towpath again
        // after the user has continued it by `fg`.
        let now = Instant::now();
        if at.stop_awaited.replace(now + STOPS_WITHIN).is_none_or(|until| until <= now) {
            self.child.await_stop();
        }
        Ok(())
    }

    fn note(&self, at: &mut EndProgress, event: ChildEvent) -> Result<()> {
        match event {
            ChildEvent::Stopped => {
                if at.stop_awaited.take().is_some_and(|until| Instant::now() < until) {
                    act(Signal::SIGTSTP)?;
                }
            }
            ChildEvent::Alone => {
                at.alone = true;
                self.observer.alone();
            }
            ChildEvent::Ended(ended) => {
                let now = Instant::now();
                at.ended = Some(ended);
                self.note_end(at, now);
            }
        }
        Ok(())
    }

    /// Handles that PROGRAM has ended, or has called exit(3).
    fn note_end(&self, at: &mut EndProgress, now: Instant) {
        at.mention_at = Some(now + MENTION_AFTER);
        at.asked = at.asked.filter(|asked| asked.counts(now, self.survived_after));
        if at.asked.is_none() {
            return;
        }
        // Treat the request as certain from now on. Otherwise it would no longer count if
        // delivering pending bytes takes longer than `survived_after`.
        at.asked = Some(Asked::Certainly);
        at.deliver_until = at.deliver_until.or(Some(now + self.grace));
        if at.ended.is_some() {
            self.end(at, now, self.grace);
        }
    }

    fn end(&self, at: &mut EndProgress, now: Instant, grace: Duration) {
        self.child.end(grace);
        at.give_up_at = Some(now + grace + KILL_PATIENCE);
    }

    fn advance(&self, at: &mut EndProgress, now: Instant) {
        if at.mention_at.is_some_and(|time| time <= now) {
            at.mention_at = None;
            self.observer.lingering(at.only_delivers());
        }
        // Stop the stack only after all processes have ended, because they use it until then.
        let due = at.deliver_until.is_some_and(|time| time <= now);
        if at.only_delivers() && due && !std::mem::replace(&mut at.stopped, true) {
            self.observer.stop();
        }
    }
}

/// Returns whether a signal requests the end of the run. A signal that was ignored when towpath was
/// started, such as SIGHUP under nohup(1), does not.
fn asks_to_end(signals: &Signals, signal: Signal) -> bool {
    let ends =
        matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP);
    ends && !signals.is_ignored(signal)
}

/// Returns whether a signal that requests the end has arrived. Called after the run has ended.
pub fn asked_to_end(signals: &Signals) -> Result<bool> {
    while let Some(Arrived { signal, .. }) = signals.next()? {
        if signal == Signal::SIGTSTP {
            act(signal)?;
        }
        if asks_to_end(signals, signal) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_the_program_survives_is_no_wish_for_ever() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let by = |signal, from_terminal| Arrived { signal, from_terminal };
        let counts = |arrived: &[Arrived], seconds| {
            let ask = |before, arrived: &Arrived| Some(Asked::after(before, *arrived, start));
            let asked = arrived.iter().fold(None, ask);
            asked.is_some_and(|asked| asked.counts(at(seconds), Duration::from_secs(10)))
        };
        let interrupt = by(Signal::SIGINT, true);
        assert!(counts(&[interrupt], 9) && !counts(&[interrupt], 10));
        assert!(!counts(&[by(Signal::SIGHUP, false)], 3600), "a server that reloads");
        assert!(counts(&[by(Signal::SIGHUP, true)], 3600), "nobody is at the terminal any more");
        assert!(counts(&[by(Signal::SIGTERM, false)], 3600));
        assert!(counts(&[by(Signal::SIGTERM, false), interrupt], 3600));
    }
}
