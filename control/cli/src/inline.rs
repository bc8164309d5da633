//! Towpath's side of a stack that runs in PROGRAM's own process (`--inline`). Sends the launch
//! spec, and receives reports.

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

/// Time limit for the answer to a request to PROGRAM's process. The process answers at once, unless
/// it is stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of layers of counters that are accepted from PROGRAM's process, which is not
/// trusted.
const LAYERS_MAX: usize = 16;
const COUNTERS_MAX: usize = 1024;

/// A stack that is prepared for PROGRAM's process.
pub struct Begun {
    /// Text about the uplink for the user.
    pub facts: String,
    /// Descriptor that PROGRAM receives instead of a control socket.
    pub control: OwnedFd,
    /// Client for requests to PROGRAM's process.
    pub desk: LaunchServer,
    /// Receiver of messages, which must run on its own thread.
    pub listener: Listener,
    /// Descriptor that is readable while PROGRAM is in exit(3), where its process delivers unsent
    /// bytes.
    pub leaves: OwnedFd,
    /// Kernel interface whose MTU the stack must adopt when it changes; `None` without one.
    pub followed: Option<Followed>,
}

/// Client that sends requests to the engine in PROGRAM's process.
#[derive(Clone)]
pub struct LaunchServer {
    home: LaunchSocket,
    /// Process id of PROGRAM; 0 until PROGRAM was started.
    program: Arc<AtomicU32>,
    /// Channels of answers from the process. Locked during a request, so that only one is pending.
    answers: Arc<Mutex<Answers>>,
}

struct Answers {
    sockets: Receiver<Vec<Value>>,
    unsent: Receiver<u64>,
}

/// Receives messages from PROGRAM's process on its own thread.
pub struct Listener {
    home: LaunchSocket,
    messages: Messages,
    gate: ExecGate,
    /// Name of the device for messages, such as "the TAP device tw0"; empty without a device.
    device: String,
    sockets: Sender<Vec<Value>>,
    unsent: Sender<u64>,
    leaves: OwnedFd,
    /// Launch spec that is sent to PROGRAM, and again to each program that PROGRAM's process
    /// executes.
    outfit: LaunchSpec,
    descriptors: Vec<OwnedFd>,
}

/// Opens the link of the stack, to be passed to the process that becomes PROGRAM.
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
    /// Stops the stack. Undelivered bytes are discarded.
    pub fn stop(&self) {
        self.home.mention(&LaunchMessage::Stop);
    }

    /// Sets the MTU of the stack's interface in bytes.
    pub fn set_mtu(&self, mtu: u32) {
        self.home.mention(&LaunchMessage::SetMtu(mtu));
    }

    /// Records PROGRAM's process id, for messages.
    pub fn set_program(&self, pid: u32) {
        self.program.store(pid, Relaxed);
    }

    /// Answers a control request. Fails if PROGRAM's process does not support it.
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

    /// Requests the list of all sockets from PROGRAM's process.
    ///
    /// # Errors
    /// Returns the reason for the failure, as the predicate of a message about the run.
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

    /// Returns the reason why PROGRAM's process sent no answer, as the predicate of a message.
    fn silence(&self) -> String {
        let pid = self.program.load(Relaxed);
        let why = if is_stopped(pid) { "is stopped" } else { "does not answer" };
        format!("has its stack in PROGRAM's process (--inline), process {pid}, which {why}")
    }

    /// Returns the number of undelivered bytes; `None` if the process does not answer.
    pub fn unsent(&self) -> Option<u64> {
        self.ask(LaunchMessage::Unsent, |answers| &answers.unsent).ok()
    }

    /// Sends a request to PROGRAM's process, and waits for the answer. Fails with `Disconnected` if
    /// the stack has ended.
    fn ask<T>(
        &self,
        what: LaunchMessage,
        which: fn(&Answers) -> &Receiver<T>,
    ) -> Result<T, RecvTimeoutError> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = which(&answers);
        // Discard late answers to earlier requests, which have timed out.
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

/// Converts a serialized `towpath_engine::SocketEntry` to the type of the control protocol.
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
    /// Receives messages until PROGRAM's process has ended or sends an invalid message.
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
                    // Use any interface, because the message that is shown to the user does not
                    // contain it.
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
                        // Ignore errors: the thread that sent the request may no longer wait.
                        let _ = self.sockets.send(std::mem::take(&mut entries));
                    }
                }
                Said::Leaves => {
                    // Ignore errors: the eventfd's counter cannot overflow.
                    let _ = rustix::io::write(&self.leaves, &1u64.to_ne_bytes());
                }
                Said::Unsent(bytes) => {
                    // Ignore errors: the thread that sent the request may no longer wait.
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

/// Validates reported counters: limits their number, and removes those whose names are unsafe to
/// print on a terminal.
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
