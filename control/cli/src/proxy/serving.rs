//! Runs a gateway on a device until a signal arrives, with messages, captures and counters.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use towpath_gateway::{Ended, Gateway, Runner};
use towpath_pcap::CaptureFile;
use towpath_pool::Port;
use towpath_uplink::{Layer, Tally};

use super::flows::FlowQueries;
use super::port_layers::{layers_of, with_ports};
use crate::args::{CaptureArgs, StatsFormat};
use crate::messages::Messages;
use crate::signals::{self, Signals};
use crate::supervise::asked_to_end;
use crate::{recording, stats};

/// Calls `work` with the capture, the thread for messages, and the blocked signals. Afterwards
/// waits until the capture and the messages are written.
///
/// # Errors
/// Returns the errors of `work`, and those of the capture.
pub fn recorded(
    capture: &CaptureArgs,
    quiet: bool,
    work: impl FnOnce(Option<&CaptureFile>, &Messages, &Signals) -> Result<()>,
) -> Result<()> {
    let recording = capture.pcap.as_deref().map(recording::open).transpose()?;
    let signals = Signals::block()?;
    let messages = Messages::start(quiet).context("a thread for messages")?;
    let start = |out| recording::start(capture.limits(), out, messages.clone());
    let file = recording.map(start).transpose()?;
    let result = work(file.as_ref(), &messages, &signals);
    let is_recorded = file.is_none_or(|file| {
        let go_on = || !asked_to_end(&signals).unwrap_or(true);
        recording::finish(&file, &messages, go_on)
    });
    messages.finish(|| !asked_to_end(&signals).unwrap_or(true));
    if result.is_err() {
        // Unblock signals, so that Ctrl-C ends towpath while the caller prints the error, which may
        // block.
        signals.unblock();
    }
    result.and_then(|()| recording::check(is_recorded))
}

/// A gateway on a device that runs until a signal arrives.
pub struct Serving<'a> {
    /// Words that `towpath ss` shows as the program.
    pub words: Vec<String>,
    /// Format of the counters to print.
    pub stats: Option<StatsFormat>,
    /// Thread that prints messages.
    pub messages: &'a Messages,
    /// Blocked signals.
    pub signals: &'a Signals,
    /// Counters of the device.
    pub port_counters: &'a Tally,
}

impl Serving<'_> {
    /// Runs until a signal arrives or the device is deleted. Resets the connections to clients, and
    /// prints the counters.
    ///
    /// # Errors
    /// Fails if no descriptor is free, or the host cannot wait because of insufficient memory.
    pub fn run(&self, mut runner: Runner<dyn Port + Send>) -> Result<Ended> {
        let desk = FlowQueries::open(self.words.clone(), self.messages).context("eventfd")?;
        let wakes = [self.signals.fd().as_fd(), desk.notifier()];
        let ended = runner.run(&wakes, |woken, gateway| match woken {
            0 => self.hear(gateway),
            _ => {
                desk.answer(gateway);
                ControlFlow::Continue(())
            }
        });
        runner.reset_clients();
        let layers = layers_of(runner.gateway());
        // Drop the runner to close the device. Its counters remain in `port_counters`.
        drop(runner);
        self.put_stats(layers, self.port_counters)?;
        ended.context("epoll")
    }

    /// Handles a received signal. Most signals stop the gateway.
    fn hear(&self, gateway: &Gateway) -> ControlFlow<()> {
        while let Ok(Some(arrived)) = self.signals.next() {
            match arrived.signal {
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP
                    if !self.signals.is_ignored(arrived.signal) =>
                {
                    return ControlFlow::Break(());
                }
                Signal::SIGTSTP => {
                    // Ignore errors: this fails only for an invalid signal number.
                    let _ = signals::act(Signal::SIGTSTP);
                }
                Signal::SIGUSR1 => {
                    // Ignore errors: counters can always be serialized.
                    let _ = self.put_stats(layers_of(gateway), &Arc::default());
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }

    fn put_stats(&self, layers: Vec<Layer>, ports: &Tally) -> Result<()> {
        let Some(format) = self.stats else { return Ok(()) };
        self.messages.put(stats::render(format, &with_ports(layers, &ports.counted()))?);
        Ok(())
    }
}
