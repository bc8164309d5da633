//! Forwarded ports: what came in on the host is taken, and becomes flows to the program.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use towpath_shm::{Fd, opened};

use crate::config::ForwardProtocol;
use crate::context::{Context, FifoHost, Shared};
use crate::events::Readiness;
use crate::limits::{ACCEPT_PAUSE_NS, ACCEPTS_PER_TURN, DATAGRAMS_PER_TURN, HELD_MAX};
use crate::listeners::{Listener, Listeners};
use crate::order::{Candidate, Next};
use crate::siblings::Accepted;
use crate::sys;
use crate::tcp::TcpFlows;
use crate::udp::UdpFlows;

/// All forwarded ports.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    pub(crate) listeners: Listeners,
    /// Listeners with connections or datagrams. Each of them is here, or among those below, once.
    due: VecDeque<u32>,
    /// TCP ones while accepting pauses.
    paused: Vec<u32>,
    /// Those whose next connection waits for its turn ([`crate::order`]).
    waiting: Vec<u32>,
    /// Other gateways have handed connections over, or what a connection waited for is over.
    handed: bool,
    /// Accepting pauses until then: descriptors or flows ran out.
    paused_until_ns: Option<u64>,
}

/// How a listener is left.
enum Left {
    Going,
    /// The next connection has to wait for its turn.
    Waits,
    /// Descriptors or flows ran out, here or where a connection belongs.
    Full,
}

impl Forwards {
    pub(crate) fn on_ready(&mut self, index: u32, ready: Readiness) {
        if let Some(listener) = self.listeners.get_mut(index) {
            listener.ready = true;
            listener.failed |= ready.failed;
            if !std::mem::replace(&mut listener.listed, true) {
                self.due.push_back(index);
            }
        }
    }

    /// Another gateway rang.
    pub(crate) fn on_handed(&mut self) {
        self.handed = true;
    }

    /// When [`Forwards::serve`] has something to do: 0 for now.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        if !self.due.is_empty() || self.handed && self.paused_until_ns.is_none() {
            return Some(0);
        }
        let waiting = self.waiting.iter().filter_map(|index| self.listeners.get(*index));
        let turns = waiting.filter_map(|listener| listener.order.until_ns());
        turns.chain(self.paused_until_ns).min()
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
        self.due.extend(self.waiting.drain(..));
        let held_max = tcp.held_max() / self.listeners.len().max(1);
        for _ in 0..self.due.len() {
            let Some(index) = self.due.pop_front() else { break };
            let Some(listener) = self.listeners.get_mut(index) else { continue };
            match listener.protocol {
                ForwardProtocol::Tcp if self.paused_until_ns.is_some() => {
                    self.paused.push(index);
                    continue;
                }
                ForwardProtocol::Tcp => match listener.accept(cx, tcp, held_max) {
                    Left::Going => {}
                    Left::Full => self.paused_until_ns = Some(pause(cx)),
                    Left::Waits => {
                        self.waiting.push(index);
                        continue;
                    }
                },
                ForwardProtocol::Udp => listener.receive(cx, udp, index),
            }
            listener.listed = listener.ready || !listener.held.is_empty();
            if listener.listed {
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
            let Some(accepted) = cx.shared.place.take() else {
                self.handed = false;
                return;
            };
            tcp.on_accept(cx, accepted);
        }
    }
}

/// Until when accepting pauses.
fn pause(cx: &mut Context<'_, impl FifoHost>) -> u64 {
    cx.shared.counters.accept_paused += 1;
    cx.shared.now_ns + ACCEPT_PAUSE_NS
}

impl Listener {
    /// Accepts what is there, within limits, and gives it to the gateways whose it is.
    fn accept(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        tcp: &mut TcpFlows,
        held_max: usize,
    ) -> Left {
        if cx.shared.place.is_alone() {
            return self.accept_alone(cx, tcp);
        }
        let filled = self.fill(cx, held_max.clamp(1, HELD_MAX));
        while let Some(accepted) = self.held.pop_front() {
            match self.give(cx, tcp, accepted) {
                Left::Going => {}
                left => return left,
            }
        }
        filled
    }

    /// The same where there are no others: what finds no flow stays in the host's queue.
    fn accept_alone(&mut self, cx: &mut Context<'_, impl FifoHost>, tcp: &mut TcpFlows) -> Left {
        for _ in 0..ACCEPTS_PER_TURN {
            if tcp.is_full_of_clients() {
                cx.shared.counters.tcp_flows_full += 1;
                return Left::Full;
            }
            match self.accept_one(cx) {
                Ok(Some(accepted)) => tcp.on_accept(cx, accepted),
                Ok(None) => {}
                Err(Errno::AGAIN) => {
                    self.ready = false;
                    break;
                }
                Err(_) => return Left::Full,
            }
        }
        Left::Going
    }

    /// Accepts what is there, until so many are held.
    fn fill(&mut self, cx: &mut Context<'_, impl FifoHost>, held_max: usize) -> Left {
        for _ in self.held.len()..held_max {
            if !self.ready {
                break;
            }
            match self.accept_one(cx) {
                Ok(accepted) => self.held.extend(accepted),
                Err(Errno::AGAIN) => self.ready = false,
                Err(_) => return Left::Full,
            }
        }
        Left::Going
    }

    /// Gives a connection that was held to the gateway whose it is, if it may go, and holds it on otherwise.
    fn give(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        tcp: &mut TcpFlows,
        mut accepted: Accepted,
    ) -> Left {
        let Shared { place, counters, now_ns, .. } = &mut *cx.shared;
        let owner = place.owner(&accepted);
        let next = Candidate { client: accepted.client, owner, waiting: self.held.len() + 1 };
        let to = match self.order.next(next, place, *now_ns) {
            Next::Goes(to, flight) => {
                accepted.flight = flight;
                to
            }
            Next::Waits { since_now } => {
                counters.accept_waited += u64::from(since_now);
                self.held.push_front(accepted);
                return Left::Waits;
            }
        };
        let refused = if to != place.number() {
            place.hand_over(to, accepted)
        } else if tcp.is_full_of_clients() {
            Some(accepted)
        } else {
            tcp.on_accept(cx, accepted);
            None
        };
        let Some(refused) = refused else { return Left::Going };
        cx.shared.counters.tcp_flows_full += 1;
        self.held.push_front(Accepted { flight: None, ..refused });
        Left::Full
    }

    /// The next connection. `None` instead of one that has failed while it waited to be accepted (accept(2)), or when the
    /// call was interrupted.
    fn accept_one(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
    ) -> Result<Option<Accepted>, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accepted = opened(|| acceptfrom_with(&self.socket, flags));
        match accepted.map(|(host, client)| (Fd::from(host), client)) {
            Ok((host, client)) => {
                let client = client.and_then(|addr| SocketAddr::try_from(addr).ok());
                let Some(client) = client else { return Ok(None) };
                cx.shared.counters.tcp_accepted += 1;
                let presented = cx.shared.config.presented(client, self.port);
                Ok(Some(Accepted { host, client: client.ip(), presented, flight: None }))
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
