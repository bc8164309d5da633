//! Handles Ctrl-C and similar signals. The first one stops the run, and its results are reported;
//! the second one ends towpath.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags};

use crate::screen::Screen;
use crate::signals::{self, Signals};
use towpath_model::wait::wait;

/// Handle of the thread that waits for signals.
pub struct Interrupt {
    stop: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts the thread. Must be called before other threads are started, so that they inherit the
    /// blocked signals.
    pub fn start(screen: &Arc<Screen>) -> Result<Self> {
        let signals = Signals::block()?;
        let stop = Arc::<AtomicBool>::default();
        let (of_thread, screen) = (Arc::clone(&stop), Arc::clone(screen));
        let thread = std::thread::Builder::new().name("towpath-signals".into());
        thread.spawn(move || watch(&signals, &of_thread, &screen)).context("a thread")?;
        Ok(Self { stop })
    }

    /// Returns the flag that is set after a signal has requested the end of the run.
    pub fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// Returns whether a signal has requested the end of the run.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn watch(signals: &Signals, stop: &AtomicBool, screen: &Screen) {
    loop {
        let arrived = match signals.next() {
            Ok(Some(arrived)) => arrived,
            Ok(None) => {
                // Ignore errors, because the next read fails with the same error.
                let _ = wait(&mut [PollFd::new(signals.fd(), PollFlags::IN)], None);
                continue;
            }
            Err(_) => return,
        };
        let signal = arrived.signal;
        if signals.is_ignored(signal) {
            continue;
        }
        match signal {
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                let is_second = stop.swap(true, Ordering::Relaxed);
                if is_second {
                    end(signal, screen);
                }
            }
            // Leave the view while the process is stopped, until it is continued.
            Signal::SIGTSTP => screen.while_left(|| drop(signals::act(signal))),
            Signal::SIGUSR1 | Signal::SIGUSR2 => end(signal, screen),
            _ => {}
        }
    }
}

/// Restores the terminal, and ends this process by the signal.
fn end(signal: Signal, screen: &Screen) -> ! {
    screen.leave_at_once();
    let code = signals::die(signal as i32);
    std::process::exit(code.into())
}
