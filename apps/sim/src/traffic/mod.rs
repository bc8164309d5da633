//! Programs on the simulated hosts. Each flow has a program at its source, and another at its
//! destination.

mod connection;
mod datagrams;
mod exchange;
mod phases;
mod program;
mod requests;
mod streams;

use towpath_direct::{Node, NodeEvent};
use towpath_qdisc::Dice;

use crate::packet::SimPort;
use crate::scenario::{FlowEnd, FlowPlan, Plan, Traffic};

use datagrams::{CbrSink, CbrSource, Pinger};
use exchange::Exchange;
pub use program::Tally;
use program::{Program, ProgramContext};
use requests::{Requester, Responder};
use streams::{StreamSender, StreamSink};

/// All programs of one host.
pub struct Programs {
    programs: Vec<RunningProgram>,
    owners: Vec<u32>,
    /// Lower bound of the due times of all programs.
    due: u64,
}

struct RunningProgram {
    program: Box<dyn Program>,
    dice: Dice,
    flow: usize,
    /// Whether the program is at the source of the flow.
    is_source: bool,
}

/// Returns the port on which the destination of a flow listens.
pub fn port_of(flow: usize) -> u16 {
    FIRST_PORT + flow as u16
}

/// Port of the first flow. Wireshark assigns no protocol to this port and the next 1600 ports. At
/// 5000, for example, it would show payload as malformed packets of another protocol.
const FIRST_PORT: u16 = 14_100;

/// Returns the index of the flow that uses this port.
pub fn flow_of(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

impl Programs {
    /// Creates all programs of host `host`. Each flow has its own random stream, which is derived
    /// from `seed`.
    pub fn new(plan: &Plan, host: usize, seed: u64) -> Self {
        let mut programs = Vec::new();
        for (number, flow) in plan.flows.iter().enumerate() {
            let dice = |end: u64| Dice::new(seed, FLOW_STREAMS + number as u64 * 2 + end);
            if flow.from == host {
                let program = source(plan, number, flow);
                programs.push(RunningProgram {
                    program,
                    dice: dice(0),
                    flow: number,
                    is_source: true,
                });
            }
            if flow.to == host
                && let Some(program) = sink(plan, number, flow)
            {
                programs.push(RunningProgram {
                    program,
                    dice: dice(1),
                    flow: number,
                    is_source: false,
                });
            }
        }
        Self { programs, owners: Vec::new(), due: 0 }
    }

    /// Passes an event of a socket to the program that owns the socket.
    pub fn on_event(&mut self, node: &mut Node<SimPort>, now: u64, event: NodeEvent) {
        let (NodeEvent::Connected(handle)
        | NodeEvent::Incoming(handle)
        | NodeEvent::Readable(handle)
        | NodeEvent::Writable(handle)
        | NodeEvent::PeerClosed(handle)
        | NodeEvent::Failed(handle, _)
        | NodeEvent::Closed(handle)) = event
        else {
            return;
        };
        let own = self.owners.get(handle.index()).copied().unwrap_or(u32::MAX);
        let Some(running) = self.programs.get_mut(own as usize) else { return };
        let RunningProgram { program, dice, .. } = running;
        program.on_event(
            &mut ProgramContext { node, dice, now, owners: &mut self.owners, own },
            event,
        );
        self.due = self.due.min(program.due());
    }

    /// Calls all programs that are due. Returns false if no program is due.
    pub fn on_timeout(&mut self, node: &mut Node<SimPort>, now: u64) -> bool {
        if self.due > now {
            return false;
        }
        let mut any = false;
        for (own, running) in (0..).zip(&mut self.programs) {
            let RunningProgram { program, dice, .. } = running;
            if program.due() <= now {
                any = true;
                program.on_timeout(&mut ProgramContext {
                    node,
                    dice,
                    now,
                    owners: &mut self.owners,
                    own,
                });
            }
        }
        let due = self.programs.iter().map(|running| running.program.due());
        self.due = due.min().unwrap_or(u64::MAX);
        any
    }

    /// Returns the time at which the next program is due, or `u64::MAX` if none is.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Returns the memory that the measurements of all programs use, in bytes.
    pub fn memory_bytes(&mut self) -> u64 {
        self.programs.iter_mut().map(|running| running.program.tally().memory_bytes()).sum()
    }

    /// Returns the tally of each program with the current TCP state. Each element also contains the
    /// index of the flow, and whether the program is its source.
    pub fn tallies(
        &mut self,
        node: &Node<SimPort>,
    ) -> impl Iterator<Item = (usize, bool, &mut Tally)> {
        self.programs.iter_mut().map(|running| {
            let connection = running.program.connection();
            let tcp = connection.and_then(|handle| node.info(handle)?.tcp);
            let tally = running.program.tally();
            tally.tcp = tcp.or(tally.tcp);
            (running.flow, running.is_source, tally)
        })
    }
}

/// Number of the first random stream for flows. Links use the streams below this number.
pub const FLOW_STREAMS: u64 = 1 << 32;

fn source(plan: &Plan, number: usize, flow: &FlowPlan) -> Box<dyn Program> {
    let port = flow.port.unwrap_or(port_of(number));
    let remote = (plan.hosts[flow.to].address, port).into();
    let local = plan.hosts[flow.from].address;
    match flow.traffic {
        Traffic::OnOff { phases, rate: Some(rate), datagram: Some(size) } => {
            let source = CbrSource::new(flow, local, remote, [rate, size]);
            Box::new(source.with_phases(phases))
        }
        Traffic::Bulk { .. } | Traffic::OnOff { .. } => Box::new(StreamSender::new(flow, remote)),
        Traffic::Request { request, response, think_ns } => {
            Box::new(Requester::new(flow, remote, [request, response, think_ns]))
        }
        Traffic::Exchange { .. } => Box::new(Exchange::new(flow, FlowEnd::From, remote)),
        Traffic::Cbr { rate, size } => Box::new(CbrSource::new(flow, local, remote, [rate, size])),
        Traffic::Ping { interval_ns } => {
            Box::new(Pinger::new(flow, local, remote.ip(), interval_ns))
        }
    }
}

fn sink(plan: &Plan, number: usize, flow: &FlowPlan) -> Option<Box<dyn Program>> {
    let port = flow.port.unwrap_or(port_of(number));
    let local = (plan.hosts[flow.to].address, port).into();
    Some(match flow.traffic {
        Traffic::Bulk { bytes } => Box::new(StreamSink::new(flow, local, bytes)),
        Traffic::OnOff { datagram: Some(_), .. } => Box::new(CbrSink::new(local)),
        Traffic::OnOff { .. } => Box::new(StreamSink::new(flow, local, None)),
        Traffic::Request { request, response, .. } => {
            Box::new(Responder::new(flow, local, request, response))
        }
        Traffic::Exchange { .. } => Box::new(Exchange::new(flow, FlowEnd::To, local)),
        Traffic::Cbr { .. } => Box::new(CbrSink::new(local)),
        // Create no program, because the stack of the destination answers echo requests itself.
        Traffic::Ping { .. } => return None,
    })
}
