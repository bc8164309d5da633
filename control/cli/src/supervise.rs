//! Between PROGRAM and the outside: passes signals on, and waits for PROGRAM and for the stack.

use std::os::fd::BorrowedFd;

use anyhow::Result;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::child::{Child, Ended};
use crate::signals::{Arrived, Signals, act};

/// How long background processes, or bytes not yet delivered, may keep the stack after PROGRAM's end
/// before it is mentioned.
const MENTION_AFTER: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// What is told while waiting.
pub trait Observer {
    /// PROGRAM ended some time ago, and the stack is in use still.
    fn lingering(&self);
    /// The user wants the stack to end now.
    fn stop(&self);
}

/// Waits until PROGRAM has ended and `stack` (a descriptor that hangs up at the end of the stack) too.
pub fn supervise(
    child: &Child,
    stack: BorrowedFd<'_>,
    signals: &Signals,
    observer: &impl Observer,
) -> Result<Ended> {
    let ended = wait_for_program(child, signals)?;
    wait_for_stack(stack, signals, observer)?;
    Ok(ended)
}

fn wait_for_program(child: &Child, signals: &Signals) -> Result<Ended> {
    loop {
        let program = child.fd();
        wait(
            &mut [PollFd::new(signals.fd(), PollFlags::IN), PollFd::new(&program, PollFlags::IN)],
            None,
        )?;
        // Its end first: a Ctrl-C that ended PROGRAM is not to end what it left in the background.
        let ended = child.try_wait()?;
        while let Some(arrived) = signals.next()? {
            pass_on(child, arrived)?;
        }
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
}

fn pass_on(child: &Child, Arrived { signal, from_terminal }: Arrived) -> Result<()> {
    if !from_terminal {
        child.send(signal);
    }
    if signal == Signal::SIGTSTP {
        act(signal)?;
    }
    Ok(())
}

fn wait_for_stack(
    stack: BorrowedFd<'_>,
    signals: &Signals,
    observer: &impl Observer,
) -> Result<()> {
    let mut patience = Some(&MENTION_AFTER);
    let mut stopping = false;
    loop {
        let mut waits =
            [PollFd::new(signals.fd(), PollFlags::IN), PollFd::new(&stack, PollFlags::IN)];
        if wait(&mut waits, patience)? == 0 {
            patience = None;
            observer.lingering();
            continue;
        }
        if !waits[1].revents().is_empty() {
            return Ok(());
        }
        while asked_to_end(signals)? {
            // Whoever asks twice does not want to wait for the stack's own end.
            if std::mem::replace(&mut stopping, true) {
                return Ok(());
            }
            observer.stop();
        }
    }
}

/// Whether a signal has arrived that ends towpath, now that PROGRAM has ended; the first of several.
pub fn asked_to_end(signals: &Signals) -> Result<bool> {
    while let Some(Arrived { signal, .. }) = signals.next()? {
        match signal {
            Signal::SIGTSTP => act(signal)?,
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP
                if !signals.is_ignored(signal) =>
            {
                return Ok(true);
            }
            _ => {}
        }
    }
    Ok(false)
}

fn wait(fds: &mut [PollFd<'_>], patience: Option<&Timespec>) -> Result<usize> {
    match poll(fds, patience) {
        Err(rustix::io::Errno::INTR) => Ok(fds.len()),
        other => Ok(other?),
    }
}
