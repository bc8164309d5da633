//! Between PROGRAM and the outside: passes signals on, and waits until the run has ended.
//!
//! ```text
//!             TERM, INT, HUP, QUIT: asked     PROGRAM has ended
//!   running ─────────────────────────► running ──────────────► ending: SIGTERM for what is left,
//!      │                                                       SIGKILL after the grace; then what
//!      │ PROGRAM has ended                  asked              was written has the rest of it
//!      └──────────────────► lingering ───────────────────────► ending: the same, and what was
//!                              │                               written is cut off when nothing
//!                              │                               is left
//!                              └──► nothing left, all delivered: the end
//! ```
//!
//! With `--inline`, PROGRAM's own process delivers the written bytes in exit(3), and ends then.
//! PROGRAM counts as ended from its exit(3) on. Its children, whose stack is in the same process,
//! are asked to end only when the process has ended.
//!
//! A second signal while the run is ending says that its sender does not want to wait: SIGKILL, and
//! bytes are cut off.
//!
//! To PROGRAM only SIGTERM means nothing but "end". An interpreter takes SIGINT for the end of one
//! command, a server SIGHUP for "read the configuration again", Java SIGQUIT for a question. Each
//! goes on. PROGRAM's end is put down to a signal that came shortly before
//! ([`Run::survived_after`]); otherwise PROGRAM ended by itself.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags};

use crate::child::{ChildEvent, Ended, ProgramChild};
use crate::guardian::KILL_PATIENCE;
use crate::signals::{Arrived, Signals, act};
use towpath_model::wait::wait;

/// How long background processes, or bytes not yet delivered, may keep the run after PROGRAM's end
/// before it is mentioned.
const MENTION_AFTER: Duration = Duration::from_secs(2);

/// Receiver of news while the run is waited for.
pub trait Observer {
    /// PROGRAM ended some time ago, and the run goes on; `delivers`: for bytes that are not
    /// delivered yet.
    fn lingering(&self, delivers: bool);
    /// The stack shall end now.
    fn stop(&self);
    /// Processes of the run cannot be ended.
    fn left_behind(&self);
    /// Nothing that PROGRAM started lives any more.
    fn alone(&self) {}
}

/// A run, and the descriptors by which to wait for it.
pub struct Run<'a, O> {
    /// PROGRAM, and what it started.
    pub child: &'a ProgramChild,
    /// Hangs up at the end of the stack.
    pub stack: BorrowedFd<'a>,
    /// Readable when PROGRAM is in exit(3), where its process sends what is not delivered. None:
    /// the stack is here.
    pub leaves: Option<BorrowedFd<'a>>,
    /// Signals that towpath receives.
    pub signals: &'a Signals,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// PROGRAM's end follows a signal that asked for it sooner than this. By default as long as
    /// `grace`.
    pub survived_after: Duration,
    /// Receiver of news about the run.
    pub observer: &'a O,
}

/// Progress of the run's end.
#[derive(Debug, Default)]
struct EndProgress {
    ended: Option<Ended>,
    /// PROGRAM is in exit(3).
    leaves: bool,
    /// Nothing that PROGRAM started lives.
    alone: bool,
    stack_ended: bool,
    /// A signal has asked for the run's end.
    asked: Option<Asked>,
    /// Time at which undelivered bytes are cut off.
    deliver_until: Option<Instant>,
    mention_at: Option<Instant>,
    /// Time at which processes that still live are given up.
    give_up_at: Option<Instant>,
    stopped: bool,
}

impl EndProgress {
    /// Whether the run only delivers bytes: no process writes any more.
    fn only_delivers(&self) -> bool {
        self.alone || self.leaves && self.ended.is_none()
    }
}

/// A wish that the run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// By a signal that PROGRAM may take for something else, at this time.
    Perhaps(Instant),
    /// By a signal that means nothing else, or when PROGRAM had ended already.
    Certainly,
}

impl Asked {
    /// By the arrival of `arrived`, which is not the first wish after `before`.
    fn after(before: Option<Self>, arrived: Arrived, now: Instant) -> Self {
        // A terminal that hangs up is gone; kill(1) with the same signal is how servers are told to
        // reload.
        let hung_up = arrived.signal == Signal::SIGHUP && arrived.from_terminal;
        let certain = arrived.signal == Signal::SIGTERM || hung_up;
        if certain || before == Some(Self::Certainly) {
            Self::Certainly
        } else {
            Self::Perhaps(now)
        }
    }

    /// Whether the wish is about an end of PROGRAM that comes now.
    fn counts(self, now: Instant, survived_after: Duration) -> bool {
        match self {
            Self::Perhaps(at) => now.saturating_duration_since(at) < survived_after,
            Self::Certainly => true,
        }
    }
}

impl<O: Observer> Run<'_, O> {
    /// Waits until PROGRAM has ended, and all that it started, and the stack. False: something is
    /// left that cannot be ended.
    pub fn supervise(&self) -> Result<(Ended, bool)> {
        let mut at = EndProgress::default();
        loop {
            let leaves = self.wait(&mut at)?;
            // Signals first: PROGRAM's end may be what a Ctrl-C has caused, which asked the run to
            // end, too.
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

    /// True: PROGRAM has begun to leave.
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
        // The stack may end before PROGRAM does, when no process of the run has its channel open
        // any more (as without the library). Its end must not wake up towpath then.
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
            // PROGRAM has ended, so bytes are all that the run may wait for: a signal now cuts them
            // off.
            at.deliver_until = Some(now);
        } else if at.leaves {
            at.asked = Some(Asked::Certainly);
            if at.stopped {
                // Its process does not end as it should.
                self.end(at, now, Duration::ZERO);
            }
            at.deliver_until = Some(now);
        } else {
            at.asked = Some(Asked::after(at.asked, arrived, now));
        }
        Ok(())
    }

    /// Stops towpath when PROGRAM is stopped, so that the shell takes the terminal back only then.
    /// Otherwise PROGRAM could still read a line that the user typed for the shell. A PROGRAM that
    /// ignores SIGTSTP keeps towpath running, because its job is not stopped either.
    fn stop(&self, at: &EndProgress) -> Result<()> {
        if at.ended.is_some() || at.leaves {
            return act(Signal::SIGTSTP);
        }
        self.child.await_stop();
        Ok(())
    }

    fn note(&self, at: &mut EndProgress, event: ChildEvent) -> Result<()> {
        match event {
            ChildEvent::Stopped => act(Signal::SIGTSTP)?,
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

    /// PROGRAM has ended, or is in exit(3).
    fn note_end(&self, at: &mut EndProgress, now: Instant) {
        at.mention_at = Some(now + MENTION_AFTER);
        at.asked = at.asked.filter(|asked| asked.counts(now, self.survived_after));
        if at.asked.is_none() {
            return;
        }
        // Delivery may take longer than `survived_after`, so the wish is certain from now on.
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
        // Processes need the stack until they have ended; after that none writes any more.
        let due = at.deliver_until.is_some_and(|time| time <= now);
        if at.only_delivers() && due && !std::mem::replace(&mut at.stopped, true) {
            self.observer.stop();
        }
    }
}

/// Whether a signal asks for the end of the run: not where it was ignored when towpath started, as
/// nohup(1) has it with SIGHUP.
fn asks_to_end(signals: &Signals, signal: Signal) -> bool {
    let ends =
        matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP);
    ends && !signals.is_ignored(signal)
}

/// Whether a signal has arrived that ends towpath, now that the run has ended; the first of
/// several.
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
