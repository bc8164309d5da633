//! Forwarded ports: where the host listens for the program.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    SocketFlags, SocketType, acceptfrom_with, bind, getsockname, listen, socket_with, sockopt,
};

use crate::config::{Forward, ForwardError, ForwardProtocol};
use crate::context::{Context, FifoHost};
use crate::events::{Events, Interest, Readiness, Token, family};
use crate::flow;
use crate::limits::{ACCEPT_PAUSE_NS, ACCEPTS_PER_TURN, BACKLOG, DATAGRAMS_PER_TURN};
use crate::mapping::Port;
use crate::sys;
use crate::tcp::TcpFlows;
use crate::udp::UdpFlows;

/// All sockets of forwarded ports; a token's key is the index.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    list: Vec<Listener>,
    /// Listeners with connections or datagrams, each once. TCP ones are in `paused` instead while accepting pauses.
    due: VecDeque<usize>,
    paused: Vec<usize>,
    /// Accepting pauses until then: descriptors or flows ran out.
    paused_until_ns: Option<u64>,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    port: u16,
    protocol: ForwardProtocol,
    /// Where the host listens.
    host: SocketAddr,
    /// Has connections or datagrams, and is among those that are due or paused.
    ready: bool,
    /// Has reports about datagrams that were sent.
    failed: bool,
}

impl Listeners {
    /// Listens on all of `forwards` or on none. Returns where, one address for each.
    pub(crate) fn add(
        &mut self,
        events: &Events,
        forwards: &[Forward],
    ) -> Result<Vec<SocketAddr>, ForwardError> {
        let mut bound = Vec::new();
        let mut sockets = Vec::new();
        for which in forwards {
            let (socket, addr) = open(which.host, which.protocol)
                .map_err(|error| ForwardError { which: *which, source: io::Error::from(error) })?;
            bound.push(addr);
            sockets.push((socket, *which, addr));
        }
        let before = self.list.len();
        for (socket, which, host) in sockets {
            let Forward { port, protocol, .. } = which;
            if let Err(error) =
                events.watch(&socket, Token::Listener(self.list.len() as u32), Interest::Readable)
            {
                self.list.truncate(before);
                return Err(ForwardError { which, source: error.into() });
            }
            let (ready, failed) = (false, false);
            self.list.push(Listener { socket, port, protocol, host, ready, failed });
        }
        Ok(bound)
    }

    /// The socket of a forwarded port.
    pub(crate) fn fd(&self, index: u32) -> Option<BorrowedFd<'_>> {
        self.list.get(index as usize).map(|listener| listener.socket.as_fd())
    }

    /// Where a forwarded port listens on the host.
    pub(crate) fn host(&self, index: u32) -> Option<SocketAddr> {
        self.list.get(index as usize).map(|listener| listener.host)
    }

    /// Which port of the host leads to a UDP port of the program.
    pub(crate) fn host_port(&self, port: Port) -> Option<u16> {
        let leads = |listener: &&Listener| {
            listener.protocol == ForwardProtocol::Udp
                && (listener.port, listener.host.is_ipv6()) == (port.number, port.v6)
        };
        self.list.iter().find(leads).map(|listener| listener.host.port())
    }

    pub(crate) fn on_ready(&mut self, index: u32, ready: Readiness) {
        let index = index as usize;
        if let Some(listener) = self.list.get_mut(index) {
            if !std::mem::replace(&mut listener.ready, true) {
                self.due.push_back(index);
            }
            listener.failed |= ready.failed;
        }
    }

    /// When [`Listeners::serve`] has something to do: 0 for now.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        if self.due.is_empty() { self.paused_until_ns } else { Some(0) }
    }

    /// Takes what came in on forwarded ports.
    pub(crate) fn serve(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        tcp: &mut TcpFlows,
        udp: &mut UdpFlows,
    ) {
        if self.paused_until_ns.is_some_and(|until| until <= cx.shared.now_ns) {
            self.paused_until_ns = None;
            self.due.extend(self.paused.drain(..));
        }
        for _ in 0..self.due.len() {
            let Some(index) = self.due.pop_front() else { break };
            let Some(listener) = self.list.get_mut(index) else { continue };
            match listener.protocol {
                ForwardProtocol::Tcp if self.paused_until_ns.is_some() => {
                    self.paused.push(index);
                    continue;
                }
                ForwardProtocol::Tcp => {
                    if !listener.accept(cx, tcp) {
                        cx.shared.counters.accept_paused += 1;
                        self.paused_until_ns = Some(cx.shared.now_ns + ACCEPT_PAUSE_NS);
                    }
                }
                ForwardProtocol::Udp => listener.receive(cx, udp, index as u32),
            }
            if listener.ready {
                self.due.push_back(index);
            }
        }
    }
}

impl Listener {
    /// Accepts what is there, within limits. False: descriptors or flows ran out.
    fn accept(&mut self, cx: &mut Context<'_, impl FifoHost>, tcp: &mut TcpFlows) -> bool {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for _ in 0..ACCEPTS_PER_TURN {
            if tcp.is_full_of_clients() {
                cx.shared.counters.tcp_flows_full += 1;
                return false;
            }
            match acceptfrom_with(&self.socket, flags) {
                Ok((host, client)) => {
                    let Some(client) = client.and_then(|addr| SocketAddr::try_from(addr).ok())
                    else {
                        continue;
                    };
                    flow::prepare(&host);
                    cx.shared.counters.tcp_accepted += 1;
                    let presented = cx.shared.config.presented(client, self.port);
                    tcp.on_accept(cx, host, presented);
                }
                Err(Errno::AGAIN) => {
                    self.ready = false;
                    return true;
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return false,
                // This connection failed while it waited to be accepted (accept(2)), or the call was interrupted.
                Err(_) => {}
            }
        }
        true
    }

    fn receive(&mut self, cx: &mut Context<'_, impl FifoHost>, udp: &mut UdpFlows, index: u32) {
        if std::mem::take(&mut self.failed) {
            udp.on_client_errors(cx.shared, index, self.socket.as_fd());
        }
        let mut scratch = std::mem::take(&mut cx.shared.scratch);
        for _ in 0..DATAGRAMS_PER_TURN {
            if cx.is_link_busy() {
                break;
            }
            match sys::recv_datagram(self.socket.as_fd(), &mut scratch) {
                Ok(received) => {
                    let bytes = scratch.get(..received.len).unwrap_or_default();
                    udp.on_client(cx, index, self.port, &received, bytes);
                }
                Err(Errno::AGAIN) => {
                    self.ready = false;
                    break;
                }
                // An ICMP error about a datagram that was sent to a client.
                Err(_) => {
                    udp.on_client_errors(cx.shared, index, self.socket.as_fd());
                }
            }
        }
        cx.shared.scratch = scratch;
    }
}

/// The socket of a forwarded port, of one family: a user that names an IPv4 address, 0.0.0.0 too, may rely on
/// firewall rules for IPv4 alone.
fn open(addr: SocketAddr, protocol: ForwardProtocol) -> Result<(OwnedFd, SocketAddr), Errno> {
    let kind = match protocol {
        ForwardProtocol::Tcp => SocketType::STREAM,
        ForwardProtocol::Udp => SocketType::DGRAM,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family(addr), kind, flags, None)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if protocol == ForwardProtocol::Tcp {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &addr)?;
    match protocol {
        ForwardProtocol::Tcp => listen(&socket, BACKLOG)?,
        ForwardProtocol::Udp => {
            // Not before it is bound, which would let others of this user have the port as well: it is
            // for the flows of the program that leave from here.
            sockopt::set_socket_reuseport(&socket, true)?;
            sys::enable_packet_info(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_details(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_gro(socket.as_fd());
        }
    }
    let bound = SocketAddr::try_from(getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, bound))
}
