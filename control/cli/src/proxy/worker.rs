//! The worker of `towpath proxy run` has two threads. The first runs the gateway on the device of
//! PROGRAM's namespace, and the second watches published ports ([`port_watch`]).
//!
//! When all processes of the namespace have ended, the namespace's kernel and the gateway may still
//! have bytes to send. The worker checks every [`LOOK_EVERY`], and ends when all bytes are
//! delivered.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Pid;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use towpath_gateway::{Ended, ForwardProtocol, Gateway, Joint, Outer, PolledPorts, Runner};
use towpath_pcap::CaptureFile;
use towpath_pool::Port;
use towpath_tap::{Parts, Tap};
use towpath_uplink::{BoundPorts, Counting, Layer, Namespaced, Plan, now_ns, random};
use towpath_wire::MacAddr;

use super::flows::FlowQueries;
use super::port_layers::{captured, layers_of, with_ports};
use super::port_watch;
use crate::guardian::SockDiag;
use crate::messages::Messages;

/// Interval between two checks for undelivered bytes, after all processes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Number of consecutive checks without undelivered bytes after which the thread ends. A single
/// check is not enough, because a packet may be in transit between the kernel and the gateway.
const LOOKS_IN_VAIN: u32 = 2;

/// Parameters of the worker.
pub struct Work {
    /// The user's options for the uplink.
    pub plan: Plan,
    /// Addresses at both ends of the device.
    pub namespaced: Namespaced,
    /// Host sockets of ports that are forwarded to PROGRAM.
    pub published: BoundPorts,
    /// Name and descriptors of the device.
    pub parts: Parts,
    /// Client that queries the kernel for sockets in the namespace.
    pub sockets: Option<SockDiag>,
    /// Capture file for the packets of the device.
    pub capture: Option<CaptureFile>,
    /// Queue of messages for the user.
    pub messages: Messages,
    /// Id of a process in the namespace, whose /proc/PID/net is read.
    pub inside: Pid,
    /// Words that `towpath ss` shows as the program of this run.
    pub words: Vec<String>,
}

/// Handle of the worker's threads.
pub struct ProxyWorker {
    /// Descriptor that hangs up when the gateway's thread has ended.
    ended: OwnedFd,
    /// Eventfd that stops the gateway's thread.
    stop: OwnedFd,
    /// Timerfd that lets the gateway's thread check for undelivered bytes.
    look: OwnedFd,
    unsent: Arc<AtomicU64>,
    thread: JoinHandle<Vec<Layer>>,
    /// Thread that watches published ports, and ends when the gateway's thread ends.
    ports: Option<JoinHandle<()>>,
}

impl ProxyWorker {
    /// Starts the threads, and waits until the gateway is connected to the device.
    ///
    /// # Errors
    /// Fails if the gateway cannot be created, or cannot poll its device.
    pub fn start(mut work: Work) -> Result<Self> {
        let sockets = work.sockets.take();
        let ports = polled(&work, sockets.as_ref())?;
        let (ended, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = eventfd(0, flags).context("eventfd")?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let look = timerfd_create(TimerfdClockId::Monotonic, flags).context("timerfd")?;
        let unsent = Arc::<AtomicU64>::default();
        let of_thread = (stop.try_clone()?, look.try_clone()?, Arc::clone(&unsent));
        let (sender, ready) = channel();
        let thread = std::thread::Builder::new().name("towpath-proxy".into()).spawn(move || {
            let _alive = alive;
            turn(work, of_thread, &sender)
        })?;
        ready.recv().map_err(|_| anyhow!("internal error: the gateway's thread ended"))??;
        let start = |sockets| port_watch::start(ports, sockets, ended.try_clone()?);
        let ports = sockets.map(start).transpose()?.flatten();
        Ok(Self { ended, stop, look, unsent, thread, ports })
    }

    /// Returns the descriptor that hangs up when the gateway's thread has ended.
    pub fn ended(&self) -> &OwnedFd {
        &self.ended
    }

    /// Returns the number of undelivered bytes at the time of the last check.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Stops the gateway's thread at once.
    pub fn stop(&self) {
        // Ignore errors: if the counter is at its maximum, the thread is already notified.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// Lets the gateway's thread end as soon as all bytes are delivered.
    pub fn drain(&self) {
        let every = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
        let timer = Itimerspec { it_interval: every, it_value: every };
        if timerfd_settime(&self.look, TimerfdTimerFlags::empty(), &timer).is_err() {
            self.stop();
        }
    }

    /// Ends the threads, and returns their counters.
    ///
    /// # Errors
    /// Fails if a thread has panicked.
    pub fn finish(self) -> Result<Vec<Layer>> {
        self.stop();
        let layers = self.thread.join();
        let layers =
            layers.map_err(|_| anyhow!("internal error: the gateway's thread panicked"))?;
        let watched = self.ports.map_or(Ok(()), JoinHandle::join);
        watched.map_err(|_| anyhow!("internal error: the thread of the ports panicked"))?;
        Ok(layers)
    }
}

/// Returns the published ports that must be watched. If the namespace's kernel does not report
/// sockets of a protocol, opens all ports of this protocol permanently, and tells the user.
fn polled(work: &Work, sockets: Option<&SockDiag>) -> Result<PolledPorts> {
    let answers = |protocol| sockets.is_some_and(|sockets| sockets.answers_for(protocol));
    for (protocol, name) in [(ForwardProtocol::Tcp, "TCP"), (ForwardProtocol::Udp, "UDP")] {
        if work.published.has(protocol) && !answers(protocol) {
            work.messages.say(&format!(
                "published {name} ports are open all the time: this kernel does not say which \
                 sockets there are (CONFIG_INET_{name}_DIAG)"
            ));
        }
    }
    let messages = work.messages.clone();
    let tell = move |notice: towpath_gateway::Notice| messages.post(&notice.to_string());
    Ok(work.plan.polled(&work.namespaced, &work.published, answers, tell)?)
}

/// Main function of the gateway's thread.
fn turn(
    work: Work,
    (stop, look, unsent): (OwnedFd, OwnedFd, Arc<AtomicU64>),
    ready: &Sender<Result<()>>,
) -> Vec<Layer> {
    let (messages, inside, ports) =
        (work.messages.clone(), work.inside, Arc::clone(&work.plan.port_counters));
    let words = work.words.clone();
    let open = || FlowQueries::open(words, &messages).context("eventfd");
    let (mut runner, desk) = match join(work).and_then(|runner| Ok((runner, open()?))) {
        Ok(both) => {
            // Ignore errors of this send and the send below: the receiver waits for the message.
            let _ = ready.send(Ok(()));
            both
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return Vec::new();
        }
    };
    let mut in_vain = 0;
    let ended = runner.run(&[stop.as_fd(), look.as_fd(), desk.notifier()], |wake, gateway| {
        match wake {
            0 => return ControlFlow::Break(()),
            1 => {}
            _ => {
                desk.answer(gateway);
                return ControlFlow::Continue(());
            }
        }
        // Read the timerfd. Otherwise it would stay readable, and poll(2) would return at once.
        let _ = rustix::io::read(&look, &mut [0; 8]);
        let left = gateway.undelivered() + in_kernel(inside);
        unsent.store(left, Ordering::Relaxed);
        in_vain = if left == 0 { in_vain + 1 } else { 0 };
        if in_vain < LOOKS_IN_VAIN { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match ended {
        Ok(Ended::Stopped) => {}
        Ok(Ended::DeviceGone) => {
            messages.post("the device of the namespace was deleted: the program has no network");
        }
        Err(error) => messages.put_error(&format!("the gateway has ended: {error}")),
    }
    let layers = layers_of(runner.gateway());
    // Drop the runner to remove the device. Its counters remain in `ports`.
    drop(runner);
    with_ports(layers, &ports.counted())
}

fn join(work: Work) -> Result<Runner<dyn Port + Send>> {
    let Work { plan, namespaced, published, parts, capture, messages, .. } = work;
    let tap = Tap::from_parts(parts);
    let [a, b, c, d, e, ..] = random()?;
    // The first byte, 02, marks the address as locally administered and unicast.
    let outer = Outer::device(&tap, MacAddr([0x02, a, b, c, d, e]));
    let mut gateway = Gateway::on(outer, &namespaced.config, now_ns()).context("the gateway")?;
    gateway.on_notice(move |notice| messages.post(&notice.to_string()));
    plan.serve(&mut gateway, published)?;
    let counting = Counting::new(tap, &plan.port_counters);
    let device = captured(capture.as_ref(), "tap", counting).context("--pcap")?;
    Runner::new(Joint::new(gateway, device)).context("the device")
}

/// Returns the number of unacknowledged bytes of all TCP connections in the network namespace of
/// process `inside`.
fn in_kernel(inside: Pid) -> u64 {
    let tables = ["tcp", "tcp6"].map(|name| format!("/proc/{}/net/{name}", inside.as_raw_pid()));
    let texts = tables.iter().map(fs::read_to_string);
    texts.filter_map(io::Result::ok).map(|text| unacknowledged(&text)).sum()
}

/// Sums the send queues of a table in the format of /proc/net/tcp (column `tx_queue`,
/// proc_pid_net(5)). A FIN counts as one byte.
fn unacknowledged(table: &str) -> u64 {
    let queue = |line: &str| {
        let (sent, _) = line.split_ascii_whitespace().nth(4)?.split_once(':')?;
        u64::from_str_radix(sent, 16).ok()
    };
    table.lines().skip(1).filter_map(queue).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000 0\n\
            \x20  1: 0F02000A:9C40 0202000A:1F91 04 00000101:00000000 01:00000014 00000000 0\n\
            \x20  2: 0F02000A:9C41 0202000A:1F91 01 00000010:00000000 01:00000014 00000000 0\n";
        assert_eq!(unacknowledged(table), 0x111);
        assert_eq!(unacknowledged(""), 0);
    }
}
