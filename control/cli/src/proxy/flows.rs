//! The flows of a running proxy, as `towpath ss` asks for them.
//!
//! The gateway is the runner's, on its thread. So the thread that answers rings there and waits.

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

/// The runner's side: a bell, and the way of the answers.
pub struct FlowQueries {
    bell: Arc<OwnedFd>,
    answers: Sender<Vec<FlowEntry>>,
    _instance: Option<Instance>,
}

/// Time for an answer of the runner, less than `towpath ss` has patience.
const PATIENCE: Duration = Duration::from_millis(1500);

impl FlowQueries {
    /// Answers `towpath ss` from now on, with `program` as the name of this run. Where no folder
    /// can have the socket for that, the user is told, and the traffic is carried all the same.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn open(program: Vec<String>, messages: &Messages) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags)?);
        let (answers, heard) = channel();
        let ring = Arc::clone(&bell);
        let instance = Instance::open(None).and_then(|listening| {
            let answer = move |call, reply: &mut Reply| answer(&ring, &heard, &call, reply);
            Ok(listening.serve(RunKind::Proxy, program, answer)?)
        });
        let say = |error| messages.say(&format!("`towpath ss` cannot see this proxy: {error:#}"));
        let instance = instance.map_err(say).ok();
        Ok(Self { bell, answers, _instance: instance })
    }

    /// The descriptor that wakes the runner.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The bell rang.
    pub fn answer(&self, gateway: &Gateway) {
        // The number says how often the bell rang, and nothing depends on that.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        // The receiver lives as long as the process.
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
    // Answers to questions that were given up.
    while heard.try_recv().is_ok() {}
    // The counter has room for one more, as the runner reads it.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    match heard.recv_timeout(PATIENCE) {
        Ok(flows) => reply.sockets = Some(flows.iter().map(shown).collect()),
        Err(_) => reply.error = Some(RequestFault::new("silent", "is stopped, or busy")),
    }
}

/// A flow in the place of the client's socket.
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
