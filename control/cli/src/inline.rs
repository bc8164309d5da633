//! Towpath's side of a stack in PROGRAM's own process (`--inline`): sends the launch spec, and
//! receives reports.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, from_value};
use towpath_engine::UninterceptedProgram;
use towpath_model::{Call, Reply, RequestFault, ShownSocket, printable};
use towpath_shm::image::Outside;
use towpath_shm::layout::SLOTS_MAX;
use towpath_stack::net::{Conflict, IfaceId};
use towpath_uplink::{
    Followed, LaunchMessage, LaunchSocket, LaunchSpec, Layer, Packed, Plan, Said,
};
use towpath_wire::MacAddr;

use crate::messages::Messages;
use crate::run::Outcome;
use crate::served::is_somewhere;
use crate::unintercepted::ExecGate;
use crate::uplink::{conflict, device_gone, in_options};

/// Timeout for a request to PROGRAM's process. The process answers at once, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of layers that PROGRAM's process may report, because the process is not trusted.
const LAYERS_MAX: usize = 16;
const COUNTERS_MAX: usize = 1024;

/// A stack that PROGRAM's process will run.
pub struct Begun {
    /// Description of the uplink for the user.
    pub facts: String,
    /// Descriptor that PROGRAM receives in place of a control socket.
    pub control: OwnedFd,
    /// Client for requests to PROGRAM's process.
    pub desk: LaunchServer,
    /// Receiver, to run on a thread of its own.
    pub listener: Listener,
    /// Readable while PROGRAM is in exit(3), where its process delivers unsent bytes.
    pub leaves: OwnedFd,
    /// Interface whose MTU the stack should follow.
    pub followed: Option<Followed>,
}

/// Client for requests to PROGRAM's process.
#[derive(Clone)]
pub struct LaunchServer {
    home: LaunchSocket,
    /// Process id of PROGRAM; 0 until it is known.
    program: Arc<AtomicU32>,
    /// Answers from the process. The lock ensures that one request is pending at a time.
    answers: Arc<Mutex<Answers>>,
}

struct Answers {
    sockets: Receiver<Vec<Value>>,
    unsent: Receiver<u64>,
}

/// Receiver of messages from PROGRAM's process.
pub struct Listener {
    home: LaunchSocket,
    messages: Messages,
    gate: ExecGate,
    /// Description of the device, as "the TAP device tw0"; may be empty.
    device: String,
    sockets: Sender<Vec<Value>>,
    unsent: Sender<u64>,
    leaves: OwnedFd,
    /// Launch spec for each program that starts in the process: PROGRAM, and programs that it
    /// executes.
    outfit: LaunchSpec,
    descriptors: Vec<OwnedFd>,
}

/// Prepares the link of the stack for the process that becomes PROGRAM.
pub fn begin(
    plan: &Plan,
    messages: &Messages,
    lifeline: BorrowedFd<'_>,
    library: &Path,
) -> Result<Begun> {
    let Packed { spec: outfit, descriptors, device, facts, followed } =
        plan.pack(library.as_os_str().to_owned()).map_err(in_options)?;
    let (home, control) = LaunchSocket::pair().context("socketpair")?;
    let lifeline = lifeline.try_clone_to_owned()?;
    let descriptors = std::iter::once(lifeline).chain(descriptors).collect();
    let (sockets, of_sockets) = channel();
    let (unsent, of_unsent) = channel();
    let answers = Answers { sockets: of_sockets, unsent: of_unsent };
    let (program, answers) = (Arc::default(), Arc::new(Mutex::new(answers)));
    let desk = LaunchServer { home: home.clone(), program, answers };
    let leaves = eventfd(0, EventfdFlags::CLOEXEC)?;
    let tells = leaves.try_clone()?;
    let messages = messages.clone();
    let gate = ExecGate::new(messages.clone(), plan.strict);
    let listener = Listener {
        home,
        messages,
        gate,
        device,
        sockets,
        unsent,
        leaves: tells,
        outfit,
        descriptors,
    };
    Ok(Begun { facts, control, desk, listener, leaves, followed })
}

impl LaunchServer {
    /// Stops the stack. Bytes that are not delivered are discarded.
    pub fn stop(&self) {
        self.home.mention(&LaunchMessage::Stop);
    }

    /// Sets the MTU of the stack's interface in bytes.
    pub fn set_mtu(&self, mtu: u32) {
        self.home.mention(&LaunchMessage::SetMtu(mtu));
    }

    /// Sets PROGRAM's process id.
    pub fn set_program(&self, pid: u32) {
        self.program.store(pid, Relaxed);
    }

    /// Answers a request, if PROGRAM's process can.
    pub fn answer(&self, call: &Call, reply: &mut Reply) {
        let done = match call {
            Call::Info => Ok(()),
            Call::Sockets => match self.sockets() {
                Ok(mut sockets) => {
                    sockets.retain(is_somewhere);
                    reply.sockets = Some(sockets);
                    Ok(())
                }
                Err(why) => Err(RequestFault::new("silent", why)),
            },
            _ => {
                let why = "has its stack in PROGRAM's process (--inline), where only its sockets \
                           can be shown";
                Err(RequestFault::new("unsupported", why))
            }
        };
        reply.error = done.err();
    }

    /// Requests the list of all sockets.
    ///
    /// # Errors
    /// Returns a predicate for a sentence whose subject is the run, such as the reason of the
    /// failure.
    fn sockets(&self) -> Result<Vec<ShownSocket>, String> {
        let entries = self.ask(LaunchMessage::Sockets, |answers| &answers.sockets);
        let entries = entries.map_err(|why| match why {
            RecvTimeoutError::Timeout => self.silence(),
            RecvTimeoutError::Disconnected => {
                "has no stack any more: it ended with the program in whose process it was \
                 (--inline)"
                    .to_owned()
            }
        })?;
        Ok(entries.into_iter().filter_map(socket).collect())
    }

    /// Explains why the process sent no answer.
    fn silence(&self) -> String {
        let pid = self.program.load(Relaxed);
        let why = if is_stopped(pid) { "is stopped" } else { "does not answer" };
        format!("has its stack in PROGRAM's process (--inline), process {pid}, which {why}")
    }

    /// Returns the number of undelivered bytes. Returns `None` if the process does not answer.
    pub fn unsent(&self) -> Option<u64> {
        self.ask(LaunchMessage::Unsent, |answers| &answers.unsent).ok()
    }

    /// Sends a request and waits for its answer. Fails with `Disconnected` if the stack has ended.
    fn ask<T>(
        &self,
        what: LaunchMessage,
        which: fn(&Answers) -> &Receiver<T>,
    ) -> Result<T, RecvTimeoutError> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = which(&answers);
        // Discard late answers to earlier requests.
        receiver.try_iter().for_each(drop);
        self.home.mention(&what);
        receiver.recv_timeout(PATIENCE)
    }
}

/// Returns whether a process was stopped by a signal or a debugger (proc_pid_stat(5)).
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Skip the process's name, which is in parentheses and may contain any characters.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

/// Converts a serialized `towpath_engine::SocketEntry`.
fn socket(mut entry: Value) -> Option<ShownSocket> {
    let fields = entry.as_object_mut()?;
    let holders = fields.remove("pids")?;
    fields.insert("holders".to_owned(), holders);
    if fields.get("slot").and_then(Value::as_u64) == Some(u32::MAX.into()) {
        fields.insert("slot".to_owned(), Value::Null);
    }
    from_value(entry).ok()
}

impl Listener {
    /// Receives messages until PROGRAM's process has ended, or sends an invalid one.
    pub fn hear(mut self) -> Outcome {
        let mut outcome = Outcome { attached: false, layers: Vec::new() };
        let mut entries = Vec::new();
        while let Ok(Some(said)) = self.home.hear() {
            match said {
                Said::Begins => self.equip(),
                Said::Ready => outcome.attached = true,
                Said::Failed(why) => {
                    outcome.attached = true;
                    let why = printable(&why);
                    self.messages.put_error(&format!("no stack in PROGRAM's process: {why}"));
                }
                Said::Notice(notice) => self.messages.post(&notice.to_string()),
                Said::Conflict { addr, mac, is_given_up } => {
                    let mac = mac.map(MacAddr);
                    // The message does not name the interface.
                    let iface = IfaceId::LOOPBACK;
                    let found = Conflict { iface, addr, mac, is_given_up };
                    self.messages.post(&conflict(&found));
                }
                Said::DeviceGone => self.messages.post(&device_gone(&self.device)),
                Said::ReplayEnded(text) => {
                    self.messages.post(&text.replace(char::is_control, " "));
                }
                Said::Outsider { pid, path, why } => {
                    let why = Outside::from_number(why);
                    if let Some(why) = why {
                        self.gate.may_pass(UninterceptedProgram { pid, path: &path, why });
                    }
                }
                Said::Sockets { entries: some, last } => {
                    entries.extend(some);
                    entries.truncate(SLOTS_MAX as usize);
                    if last {
                        // The requesting thread may have stopped waiting, which is harmless.
                        let _ = self.sockets.send(std::mem::take(&mut entries));
                    }
                }
                Said::Leaves => {
                    // Ignore an error: the eventfd's counter cannot overflow.
                    let _ = rustix::io::write(&self.leaves, &1u64.to_ne_bytes());
                }
                Said::Unsent(bytes) => {
                    // The requesting thread may have timed out.
                    let _ = self.unsent.send(bytes);
                }
                Said::Counters(layers) => outcome.layers = believed(layers),
            }
        }
        outcome
    }

    fn equip(&self) {
        let descriptors: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        if let Err(error) = self.home.equip(&self.outfit, &descriptors) {
            let text = format!("PROGRAM's process cannot be told of its stack: {error}");
            self.messages.put_error(&text);
        }
    }
}

/// Filters a report: limits its size, and removes names that are unsafe to print on a terminal.
fn believed(mut layers: Vec<Layer>) -> Vec<Layer> {
    let is_word = |name: &str| name.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    layers.truncate(LAYERS_MAX);
    layers.retain(|layer| is_word(&layer.name));
    for layer in &mut layers {
        layer.counters.truncate(COUNTERS_MAX);
        layer.counters.retain(|(name, _)| is_word(name));
    }
    layers
}
