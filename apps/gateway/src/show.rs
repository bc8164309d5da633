//! Describes flows for lists shown to the user.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::getsockname;
use towpath_stack::{Host, Stack};
use towpath_tcp::Instant;

use crate::echo::EchoFlows;
use crate::flow::{Flow, FlowPhase, HostSide, ProgramSide};
use crate::segment::ends_of_segment;
use crate::tcp::TcpFlows;
use crate::udp::UdpFlows;

/// Description of a flow between a client and a server at one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEntry {
    /// Protocol of the flow.
    pub protocol: FlowProtocol,
    /// State of the client's socket, named as in ss(8).
    pub state: &'static str,
    /// Address of the client, which has initiated the flow. For a ping, the port is the ICMP
    /// identifier.
    pub client: SocketAddr,
    /// Destination address to which the client has sent. The port is 0 for a ping.
    pub server: SocketAddr,
    /// Local address of the flow's host socket; `None` if the flow has no host socket yet.
    pub via: Option<SocketAddr>,
    /// Payload bytes accepted from the client. For clients of published ports: bytes that the
    /// program has acknowledged.
    pub bytes_to_server: u64,
    /// Payload bytes delivered to the client: acknowledged for TCP, otherwise sent. For clients of
    /// published ports: bytes accepted from the program.
    pub bytes_to_client: u64,
    /// Bytes from the client that are queued for the server.
    pub waiting_for_server: u32,
    /// Bytes from the server that are queued for the client.
    pub waiting_for_client: u32,
}

/// Protocol of a [`FlowEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowProtocol {
    /// TCP connection.
    Tcp,
    /// UDP datagrams between two ports.
    Udp,
    /// ICMP echo requests and replies.
    Echo,
}

/// Returns descriptions of all flows.
pub(crate) fn flows<H: Host>(
    now: Instant,
    stack: &Stack<H>,
    (tcp, udp, echo): (&TcpFlows, &UdpFlows, &EchoFlows),
) -> Vec<FlowEntry> {
    let tcp = tcp.iter().filter_map(|flow| connection(now, stack, flow));
    tcp.chain(udp.shown()).chain(echo.shown()).collect()
}

/// Returns the description of a UDP or echo flow.
pub(crate) fn datagrams(
    protocol: FlowProtocol,
    (client, server): (SocketAddr, SocketAddr),
    host: Option<&impl AsFd>,
    bytes: [u64; 2],
) -> FlowEntry {
    FlowEntry {
        protocol,
        state: "ESTAB",
        client,
        server,
        via: host.and_then(address_of),
        bytes_to_server: bytes[0],
        bytes_to_client: bytes[1],
        waiting_for_server: 0,
        waiting_for_client: 0,
    }
}

fn connection<H: Host>(now: Instant, stack: &Stack<H>, flow: &Flow) -> Option<FlowEntry> {
    let begun = |client, server, state| FlowEntry {
        state,
        ..datagrams(FlowProtocol::Tcp, (client, server), Some(&flow.host), [0; 2])
    };
    let socket = match flow.phase {
        FlowPhase::HostConnecting(pending) | FlowPhase::Negotiating(pending) => {
            let (client, server, _) = ends_of_segment(stack.pending_headers(pending))?;
            return Some(begun(client, server, "SYN-SENT"));
        }
        FlowPhase::ProgramConnecting(connecting) => {
            let shown = connecting.shown;
            return Some(begun(shown.client, shown.program, "SYN-SENT"));
        }
        FlowPhase::Open(socket) => socket,
    };
    let info = stack.info(now, socket)?;
    let (taken, acked) = info.tcp.map_or((0, 0), |tcp| (tcp.bytes_received, tcp.bytes_acked));
    let program = ShownEnd {
        addr: info.remote?,
        ended: flow.program_side != ProgramSide::Open,
        sent: taken,
        unread: info.recv_queue,
    };
    let host = ShownEnd {
        addr: info.local?,
        ended: matches!(flow.host_side, HostSide::Ended | HostSide::Gone),
        sent: acked,
        unread: info.send_queue,
    };
    let (client, server) = if flow.is_published { (host, program) } else { (program, host) };
    let state = match (client.ended, server.ended) {
        (false, false) => "ESTAB",
        (false, true) => "CLOSE-WAIT",
        (true, false) => "FIN-WAIT-2",
        (true, true) => "CLOSING",
    };
    Some(FlowEntry {
        bytes_to_server: client.sent,
        bytes_to_client: server.sent,
        waiting_for_server: client.unread,
        waiting_for_client: server.unread,
        ..begun(client.addr, server.addr, state)
    })
}

/// End of a TCP flow, with its address and byte counts.
struct ShownEnd {
    addr: SocketAddr,
    ended: bool,
    /// Number of bytes that the gateway has accepted from this end, or that the opposite end has
    /// acknowledged.
    sent: u64,
    /// Number of bytes from this end that are queued in the gateway.
    unread: u32,
}

fn address_of(host: &impl AsFd) -> Option<SocketAddr> {
    getsockname(host).ok().and_then(|addr| SocketAddr::try_from(addr).ok())
}
