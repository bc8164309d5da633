//! Runs a router's engine on its own thread, while the main thread waits for signals and events of
//! devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{Builder, JoinHandle};

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use towpath_engine::{Change, Engine, Remote, Report};
use towpath_model::wait::wait;
use towpath_pcap::{CaptureFile, Direction};
use towpath_stack::IfaceId;

use super::carrier::CarrierWatch;
use super::kernel::Twins;
use super::ports::RouterPorts;
use super::report;
use crate::messages::Messages;
use crate::signals::{self, Signals};

/// A router whose engine is running.
pub struct RunningRouter {
    remote: Remote,
    thread: JoinHandle<Report>,
    ports: RouterPorts,
    carriers: CarrierWatch,
    /// Twins of ports, which follow the ports' carriers.
    twins: Twins,
    /// Pipe from the engine. Contains one byte, the index of an interface, for each removed device.
    /// Hangs up when the engine has ended.
    gone: OwnedFd,
    messages: Messages,
}

/// Reason why [`RunningRouter::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A signal ended the router.
    Stopped,
    /// The devices of all ports were removed.
    NoPorts,
}

impl RunningRouter {
    /// Runs `engine`, which has the interfaces of `ports`.
    ///
    /// # Errors
    /// Fails if no thread, pipe or netlink socket can be created.
    pub fn start(
        mut engine: Engine,
        ports: &RouterPorts,
        twins: Twins,
        capture: Option<&CaptureFile>,
        messages: &Messages,
    ) -> Result<Self> {
        let carriers = CarrierWatch::open().context("a netlink socket")?;
        let (gone, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).context("a pipe")?;
        observe(&mut engine, ports, messages);
        if let Some(capture) = capture {
            record_drops(&mut engine, ports, capture);
        }
        engine.on_device_gone(move |iface| {
            // Ignore errors: a pipe has room for more bytes than the maximum number of interfaces,
            // 256. The index of an interface fits into a byte.
            let _ = rustix::io::write(&to, &[iface.0 as u8]);
        });
        let remote = engine.remote();
        let thread = Builder::new().name("towpath-router".into()).spawn(|| engine.run());
        let thread = thread.context("a thread for the router")?;
        let (ports, messages) = (ports.clone(), messages.clone());
        let mut running = Self { remote, thread, ports, carriers, twins, gone, messages };
        running.follow_carriers();
        Ok(running)
    }

    /// Handles carrier changes and removed devices, until a signal ends the router or no port is
    /// left. Calls `put_stats` when SIGUSR1 arrives.
    ///
    /// # Errors
    /// Fails if poll(2) fails, or if the engine has ended.
    pub fn wait(&mut self, signals: &Signals, put_stats: impl Fn()) -> Result<Ended> {
        loop {
            let [signal, carrier, gone] =
                readable([signals.fd().as_fd(), self.carriers.fd(), self.gone.as_fd()])?;
            if gone && !self.take_down()? {
                return Ok(Ended::NoPorts);
            }
            if carrier {
                self.follow_carriers();
            }
            if signal && is_end(signals, &put_stats) {
                return Ok(Ended::Stopped);
            }
        }
    }

    /// Stops the engine, and returns its final report.
    ///
    /// # Errors
    /// Fails if the engine's thread has panicked.
    pub fn stop(self) -> Result<Report> {
        self.remote.stop();
        self.thread.join().map_err(|_| anyhow!("internal error: the router's thread panicked"))
    }

    /// Sets the interfaces of removed devices down, as Linux does when a device is unregistered.
    /// Routes through these interfaces become invalid, so routes with a higher metric through other
    /// ports are used. Returns false if no port is left.
    fn take_down(&mut self) -> Result<bool> {
        let mut places = [0; 64];
        let count = rustix::io::read(&self.gone, &mut places).context("the router's pipe")?;
        if count == 0 {
            return Err(anyhow!("internal error: the router's thread has ended"));
        }
        for place in &places[..count] {
            let iface = IfaceId(u16::from(*place));
            // Skip an interface that is already down, because each shard reports the removal of its
            // own queue.
            let Some(name) = self.ports.set_gone(iface) else { continue };
            // Ignore errors: this fails only if the engine has panicked, which `stop` reports.
            let _ = self.remote.apply(vec![Change::SetUp { iface, up: false }]);
            self.twins.set_carrier(iface, false);
            self.messages.put_error(&report::port_gone(&name));
        }
        Ok(!self.ports.are_gone())
    }

    /// Updates the carrier state of interfaces after their kernel interface has lost or regained
    /// its carrier.
    fn follow_carriers(&mut self) {
        for (iface, carrier) in self.carriers.changes(&self.ports.interfaces()) {
            // Ignore errors: this fails only if the engine has panicked, which `stop` reports.
            let _ = self.remote.set_carrier(iface, carrier);
            self.twins.set_carrier(iface, carrier);
        }
    }
}

/// Prints a message for each packet that a rule logs, and for each address of this router that
/// another host also uses.
fn observe(engine: &mut Engine, ports: &RouterPorts, messages: &Messages) {
    let (of_logs, of_conflicts) = (messages.clone(), messages.clone());
    let ports = ports.clone();
    let name = move |number| ports.name_of(IfaceId(number)).unwrap_or_default();
    engine.on_logged(move |logged| of_logs.put_error(&report::logged(logged, &name)));
    engine.on_conflict(move |found| of_conflicts.put_error(&crate::uplink::conflict(found)));
}

/// Records packets that the stack drops in the capture file, each with the reason.
fn record_drops(engine: &mut Engine, ports: &RouterPorts, capture: &CaptureFile) {
    let (capture, ports) = (capture.clone(), ports.clone());
    engine.trace_drops(move |dropped| {
        let direction = if dropped.outbound { Direction::Outbound } else { Direction::Inbound };
        let arrived = dropped.arrival_ns > 0;
        let time_ns = if arrived { dropped.arrival_ns } else { dropped.now_ns };
        let iface = ports.recorded_as(IfaceId(dropped.interface));
        capture.dropped(time_ns, iface, direction, dropped.reason, dropped.bytes);
    });
}

/// Waits until at least one descriptor is readable or hung up. Returns for each descriptor whether
/// it is.
fn readable<const N: usize>(fds: [BorrowedFd<'_>; N]) -> Result<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    wait(&mut polled, None).context("poll")?;
    Ok(polled.map(|fd| !fd.revents().is_empty()))
}

/// Handles received signals. Returns whether one of them ends the router.
fn is_end(signals: &Signals, put_stats: &impl Fn()) -> bool {
    while let Ok(Some(arrived)) = signals.next() {
        match arrived.signal {
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP
                if !signals.is_ignored(arrived.signal) =>
            {
                return true;
            }
            Signal::SIGTSTP => {
                // Ignore errors: this fails only for an invalid signal number.
                let _ = signals::act(Signal::SIGTSTP);
            }
            Signal::SIGUSR1 => put_stats(),
            _ => {}
        }
    }
    false
}
