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

use crate::instance::Instance;
use crate::messages::Messages;
use crate::ss::{Answer, FlowFigures, Proto, Silence, Socket};

/// The runner's side: a bell, and the way of the answers.
pub struct FlowDesk {
    bell: Arc<OwnedFd>,
    answers: Sender<Vec<FlowEntry>>,
    _instance: Option<Instance>,
}

/// Time for an answer of the runner, less than `towpath ss` has patience.
const PATIENCE: Duration = Duration::from_millis(1500);

impl FlowDesk {
    /// Answers `towpath ss` from now on, with `program` as the name of this run. Where no folder can
    /// have the socket for that, the user is told, and the traffic is carried all the same.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn open(program: Vec<String>, messages: &Messages) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags)?);
        let (answers, heard) = channel();
        let ring = Arc::clone(&bell);
        let instance = Instance::serve(move || answer(&program, &ring, &heard));
        let say = |error| messages.say(&format!("`towpath ss` cannot see this proxy: {error:#}"));
        let instance = instance.map_err(say).ok();
        Ok(Self { bell, answers, _instance: instance })
    }

    /// The descriptor that wakes the runner.
    pub fn bell(&self) -> BorrowedFd<'_> {
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

fn answer(program: &[String], bell: &OwnedFd, heard: &Receiver<Vec<FlowEntry>>) -> Vec<u8> {
    // Answers to questions that were given up.
    while heard.try_recv().is_ok() {}
    // The counter has room for one more, as the runner reads it.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    let pid = std::process::id();
    let text = match heard.recv_timeout(PATIENCE) {
        Ok(flows) => {
            let sockets = flows.iter().map(shown).collect();
            serde_json::to_vec(&Answer { pid, program: program.to_vec(), sockets })
        }
        Err(_) => serde_json::to_vec(&Silence { pid, why: "is stopped, or busy".to_owned() }),
    };
    // Text, numbers and addresses can all be written as JSON.
    text.unwrap_or_default()
}

/// A flow in the place of the client's socket.
fn shown(flow: &FlowEntry) -> Socket {
    let proto = match flow.protocol {
        FlowProtocol::Tcp => Proto::Tcp,
        FlowProtocol::Udp => Proto::Udp,
        FlowProtocol::Echo => Proto::Icmp,
    };
    Socket {
        proto,
        state: flow.state.into(),
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
