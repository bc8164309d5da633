//! Answers requests of `towpath ss` for the flows of a running proxy.
//!
//! Only the runner's thread can access the gateway. Therefore the thread of the control socket
//! notifies the runner through an eventfd, and waits for its answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use towpath_gateway::{FlowEntry, FlowProtocol, Gateway};
use towpath_model::{
    Call, FlowFigures, Instance, Proto, Reply, RequestFault, RunKind, ShownSocket, Word,
};

use crate::messages::Messages;

/// Runner's end of queries for flows: the eventfd that requests signal, and the channel for
/// answers.
pub struct FlowQueries {
    bell: Arc<OwnedFd>,
    answers: Sender<Vec<FlowEntry>>,
    _instance: Option<Instance>,
}

/// Time limit for the runner's answer, shorter than that of `towpath ss`.
const PATIENCE: Duration = Duration::from_millis(1500);

impl FlowQueries {
    /// Opens the control socket, and starts to answer `towpath ss`, with `program` as the name of
    /// this run. If no directory can be used for the socket, tells the user. The proxy works
    /// without it.
    ///
    /// # Errors
    /// Fails if the eventfd cannot be created.
    pub fn open(program: Vec<String>, messages: &Messages) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags)?);
        let (answers, heard) = channel();
        let ring = Arc::clone(&bell);
        let instance = Instance::open(None).and_then(|listening| {
            let answer = move |call: Call, reply: &mut Reply| answer(&ring, &heard, &call, reply);
            Ok(listening.serve(RunKind::Proxy, program, answer)?)
        });
        let say = |error| messages.say(&format!("`towpath ss` cannot see this proxy: {error:#}"));
        let instance = instance.map_err(say).ok();
        Ok(Self { bell, answers, _instance: instance })
    }

    /// Returns the eventfd that wakes the runner when flows are requested.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Sends the flows as the answer to a request. Must be called when the eventfd is readable.
    pub fn answer(&self, gateway: &Gateway) {
        // Reset the eventfd. A single answer is enough for several requests.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        // Ignore errors: the receiver exists as long as the process.
        let _ = self.answers.send(gateway.flows());
    }
}

fn answer(bell: &OwnedFd, heard: &Receiver<Vec<FlowEntry>>, call: &Call, reply: &mut Reply) {
    match call {
        Call::Info => return,
        Call::Sockets => {}
        _ => {
            let why = "is a proxy, of which only the flows can be shown (`towpath ss`)";
            reply.error = Some(RequestFault::new("unsupported", why));
            return;
        }
    }
    // Discard answers to earlier requests that have timed out.
    while heard.try_recv().is_ok() {}
    // Ignore errors: the runner resets the counter long before it could overflow.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    match heard.recv_timeout(PATIENCE) {
        Ok(flows) => reply.sockets = Some(flows.iter().map(shown).collect()),
        Err(_) => reply.error = Some(RequestFault::new("silent", "is stopped, or busy")),
    }
}

/// Converts a flow to a socket as the client sees it.
fn shown(flow: &FlowEntry) -> ShownSocket {
    let proto = match flow.protocol {
        FlowProtocol::Tcp => Proto::Tcp,
        FlowProtocol::Udp => Proto::Udp,
        FlowProtocol::Echo => Proto::Icmp,
    };
    ShownSocket {
        proto,
        state: Word::known(flow.state),
        recv_q: flow.waiting_for_client.into(),
        send_q: flow.waiting_for_server.into(),
        local: Some(flow.client),
        remote: Some(flow.server),
        cwnd: 0,
        rtt_us: 0,
        congestion: None,
        tcp: None,
        flow: Some(FlowFigures {
            bytes_to_server: flow.bytes_to_server,
            bytes_to_client: flow.bytes_to_client,
            via: flow.via,
        }),
        holders: Vec::new(),
        recv_buffer: 0,
        send_buffer: 0,
        v6_only: false,
        device: None,
        slot: None,
    }
}
