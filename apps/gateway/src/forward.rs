//! Forwarded ports: what came in on the host is taken, and becomes flows to the program.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use towpath_shm::Fd;

use crate::config::ForwardProtocol;
use crate::context::{Context, FifoHost};
use crate::events::Readiness;
use crate::flow;
use crate::limits::{ACCEPT_PAUSE_NS, ACCEPTS_PER_TURN, DATAGRAMS_PER_TURN};
use crate::listeners::{Listener, Listeners};
use crate::siblings::Accepted;
use crate::sys;
use crate::tcp::TcpFlows;
use crate::udp::UdpFlows;

/// All forwarded ports.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    pub(crate) listeners: Listeners,
    /// Listeners with connections or datagrams, each once. TCP ones are in `paused` instead while accepting pauses.
    due: VecDeque<u32>,
    paused: Vec<u32>,
    /// Other gateways have handed connections over.
    handed: bool,
    /// Accepting pauses until then: descriptors or flows ran out.
    paused_until_ns: Option<u64>,
}

impl Forwards {
    pub(crate) fn on_ready(&mut self, index: u32, ready: Readiness) {
        if let Some(listener) = self.listeners.get_mut(index) {
            if !std::mem::replace(&mut listener.ready, true) {
                self.due.push_back(index);
            }
            listener.failed |= ready.failed;
        }
    }

    /// Another gateway rang.
    pub(crate) fn on_handed(&mut self) {
        self.handed = true;
    }

    /// When [`Forwards::serve`] has something to do: 0 for now.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        match self.paused_until_ns {
            Some(until) if self.due.is_empty() => Some(until),
            None if self.due.is_empty() && !self.handed => None,
            _ => Some(0),
        }
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
            let Some(listener) = self.listeners.get_mut(index) else { continue };
            match listener.protocol {
                ForwardProtocol::Tcp if self.paused_until_ns.is_some() => {
                    self.paused.push(index);
                    continue;
                }
                ForwardProtocol::Tcp => {
                    if !listener.accept(cx, tcp) {
                        self.paused_until_ns = Some(pause(cx));
                    }
                }
                ForwardProtocol::Udp => listener.receive(cx, udp, index),
            }
            if listener.ready {
                self.due.push_back(index);
            }
        }
        if self.handed && self.paused_until_ns.is_none() {
            self.take_handed(cx, tcp);
        }
    }

    /// Takes what other gateways accepted for this one, within limits.
    fn take_handed(&mut self, cx: &mut Context<'_, impl FifoHost>, tcp: &mut TcpFlows) {
        for _ in 0..ACCEPTS_PER_TURN {
            if tcp.is_full_of_clients() {
                cx.shared.counters.tcp_flows_full += 1;
                self.paused_until_ns = Some(pause(cx));
                return;
            }
            let Some(Accepted { host, presented, .. }) = cx.shared.place.take() else {
                self.handed = false;
                return;
            };
            tcp.on_accept(cx, host, presented);
        }
    }
}

/// Until when accepting pauses.
fn pause(cx: &mut Context<'_, impl FifoHost>) -> u64 {
    cx.shared.counters.accept_paused += 1;
    cx.shared.now_ns + ACCEPT_PAUSE_NS
}

impl Listener {
    /// Accepts what is there, within limits. False: descriptors or flows ran out, here or where a connection belongs.
    fn accept(&mut self, cx: &mut Context<'_, impl FifoHost>, tcp: &mut TcpFlows) -> bool {
        for _ in 0..ACCEPTS_PER_TURN {
            let accepted = match self.held.take() {
                Some(held) => held,
                None if cx.shared.place.is_alone() && tcp.is_full_of_clients() => {
                    cx.shared.counters.tcp_flows_full += 1;
                    return false;
                }
                None => match self.accept_one(cx) {
                    Ok(Some(accepted)) => accepted,
                    // This connection failed while it waited to be accepted (accept(2)), or the call was interrupted.
                    Ok(None) => continue,
                    Err(Errno::AGAIN) => {
                        self.ready = false;
                        return true;
                    }
                    Err(_) => return false,
                },
            };
            self.held = if !cx.shared.place.is_mine(&accepted) {
                cx.shared.place.hand_over(accepted)
            } else if tcp.is_full_of_clients() {
                Some(accepted)
            } else {
                tcp.on_accept(cx, accepted.host, accepted.presented);
                None
            };
            if self.held.is_some() {
                cx.shared.counters.tcp_flows_full += 1;
                return false;
            }
        }
        true
    }

    /// The next connection. `None` instead of one that has failed.
    fn accept_one(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
    ) -> Result<Option<Accepted>, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accepted = acceptfrom_with(&self.socket, flags);
        match accepted.map(|(host, client)| (Fd::from(host), client)) {
            Ok((host, client)) => {
                let client = client.and_then(|addr| SocketAddr::try_from(addr).ok());
                let Some(client) = client else { return Ok(None) };
                flow::prepare(&host);
                cx.shared.counters.tcp_accepted += 1;
                let presented = cx.shared.config.presented(client, self.port);
                Ok(Some(cx.shared.place.accepted(host, presented)))
            }
            Err(
                error @ (Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM),
            ) => Err(error),
            Err(_) => Ok(None),
        }
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
