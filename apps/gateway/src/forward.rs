//! Forwarded ports: accepts connections and datagrams on the host and creates flows to the program.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use rustix::process::{Resource, getrlimit};
use towpath_shm::{Fd, opened};

use crate::budget::Whose;
use crate::client::Client;
use crate::config::ForwardProtocol;
use crate::context::{Context, FifoHost, Shared};
use crate::dialer::{self, reset};
use crate::events::{Readiness, canonical};
use crate::limits::{
    ACCEPT_PAUSE_NS, ACCEPTS_PER_TURN, DATAGRAMS_PER_TURN, HANDED_PAUSE_NS, HELD_MAX,
};
use crate::listeners::{ForwardedListener, Listeners};
use crate::notice::Notice;
use crate::order::{Candidate, Next};
use crate::siblings::{Accepted, Topic};
use crate::sys;
use crate::tcp::TcpFlows;
use crate::udp::UdpFlows;

/// State of all forwarded ports of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    pub(crate) listeners: Listeners,
    /// Indexes of listeners with pending connections or datagrams. Each listener is in at most one
    /// of the lists `due`, `paused` and `waiting`.
    due: VecDeque<u32>,
    /// TCP listeners that do not accept at the moment, because descriptors or flows ran out.
    paused: Vec<u32>,
    /// Listeners whose next connection must wait for earlier connections of its client
    /// ([`crate::order`]).
    waiting: Vec<u32>,
    /// Whether another gateway has handed over connections, or a waiting connection may now
    /// proceed.
    handed: bool,
    /// Time in ns at which the pause in accepting ends.
    paused_until_ns: Option<u64>,
    full: AcceptPause,
}

/// Overload handling of accept. If descriptors or flows run out, accepting pauses. If that does not
/// help, clients are refused until a flow is free again.
#[derive(Debug, Default)]
struct AcceptPause {
    refuses: bool,
    /// Spare descriptor, closed when the process has reached its descriptor limit. A client can
    /// then be accepted and reset.
    spare: Option<Fd>,
}

/// Result of accepting connections from a listener.
enum ListenerLeft {
    Going,
    /// The next connection must wait, because earlier connections of its client are not established
    /// yet.
    Waits,
    /// The next connection belongs to another gateway, whose inbox is full.
    Busy,
    /// Descriptors or flows ran out.
    Full,
}

impl AcceptPause {
    /// Opens the spare descriptor unless it is open.
    fn prepare(&mut self) {
        if self.spare.is_none() {
            let flags = EventfdFlags::CLOEXEC;
            self.spare = opened(|| eventfd(0, flags)).ok().map(Fd::from);
        }
    }

    fn on_place(&mut self) {
        self.refuses = false;
    }
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

    /// Records that another gateway has handed over accepted connections to this one.
    pub(crate) fn on_handed(&mut self) {
        self.handed = true;
    }

    /// Returns the time in ns at which [`Forwards::serve`] must be called; 0 means now.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        if !self.due.is_empty() || self.handed {
            return Some(0);
        }
        let waiting = self.waiting.iter().filter_map(|index| self.listeners.get(*index));
        let turns = waiting.filter_map(|listener| listener.order.until_ns());
        turns.chain(self.paused_until_ns).min()
    }

    /// Accepts pending connections and datagrams on forwarded ports.
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
        for _ in 0..self.due.len() {
            let Some(index) = self.due.pop_front() else { break };
            let Some(listener) = self.listeners.get_mut(index) else { continue };
            match listener.protocol {
                ForwardProtocol::Tcp if self.paused_until_ns.is_some() => {
                    self.paused.push(index);
                    continue;
                }
                ForwardProtocol::Tcp => match listener.accept(cx, tcp, &mut self.full) {
                    ListenerLeft::Going => {}
                    ListenerLeft::Busy => self.paused_until_ns = Some(pause(cx, HANDED_PAUSE_NS)),
                    ListenerLeft::Full => {
                        self.full.refuses = true;
                        self.paused_until_ns = Some(pause(cx, ACCEPT_PAUSE_NS));
                    }
                    ListenerLeft::Waits => {
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
        if self.handed {
            self.take_handed(cx, tcp);
        }
    }

    /// Creates flows for connections that other gateways have accepted and handed to this one.
    /// Limits their number per iteration of the event loop.
    fn take_handed(&mut self, cx: &mut Context<'_, impl FifoHost>, tcp: &mut TcpFlows) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(accepted) = cx.shared.place.take() else {
                self.handed = false;
                return;
            };
            tcp.on_accept(cx, accepted);
        }
    }
}

/// Counts a pause in accepting connections, and returns the time in ns at which the pause ends.
fn pause(cx: &mut Context<'_, impl FifoHost>, for_ns: u64) -> u64 {
    cx.shared.counters.accept_paused += 1;
    cx.shared.now_ns + for_ns
}

/// Result of an attempt to accept a connection.
enum Came {
    Client(Accepted),
    /// No connection was accepted: the client was refused or has disconnected, or the call was
    /// interrupted.
    Nobody,
    /// No connection is pending at the listener.
    None,
    /// A client may be pending, but descriptors or flows ran out.
    Full,
}

impl ForwardedListener {
    /// Accepts connections, and hands them to the gateways of the shards that own them. Limits
    /// their number per iteration of the event loop.
    fn accept(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        tcp: &mut TcpFlows,
        full: &mut AcceptPause,
    ) -> ListenerLeft {
        full.prepare();
        if cx.shared.place.is_alone() {
            return self.accept_alone(cx, tcp, full);
        }
        let filled = self.fill(cx, full);
        while let Some(accepted) = self.held.pop_front() {
            match self.give(cx, tcp, accepted) {
                ListenerLeft::Going => {}
                left => return left,
            }
        }
        filled
    }

    /// Accepts connections if there is only one gateway, which then owns all connections.
    fn accept_alone(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        tcp: &mut TcpFlows,
        full: &mut AcceptPause,
    ) -> ListenerLeft {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.accept_one(cx, full) {
                Came::Client(accepted) => tcp.on_accept(cx, accepted),
                Came::Nobody => {}
                Came::None => break,
                Came::Full => return ListenerLeft::Full,
            }
        }
        ListenerLeft::Going
    }

    /// Accepts connections until the listener holds [`HELD_MAX`] connections that are not yet
    /// handed over.
    fn fill(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        full: &mut AcceptPause,
    ) -> ListenerLeft {
        for _ in self.held.len()..HELD_MAX {
            if !self.ready {
                break;
            }
            match self.accept_one(cx, full) {
                Came::Client(accepted) => self.held.push_back(accepted),
                Came::Nobody => {}
                Came::None => break,
                Came::Full => return ListenerLeft::Full,
            }
        }
        ListenerLeft::Going
    }

    /// Hands a held connection to the gateway that owns it. Keeps the connection if it must wait.
    fn give(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        tcp: &mut TcpFlows,
        mut accepted: Accepted,
    ) -> ListenerLeft {
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
                return ListenerLeft::Waits;
            }
        };
        if to == place.number() {
            tcp.on_accept(cx, accepted);
            return ListenerLeft::Going;
        }
        let Some(refused) = place.hand_over(to, accepted) else { return ListenerLeft::Going };
        self.held.push_front(Accepted { flight: None, ..refused });
        ListenerLeft::Busy
    }

    /// Accepts the next connection. If no flow is free, and a pause has not helped, refuses the
    /// client.
    fn accept_one(&mut self, cx: &mut Context<'_, impl FifoHost>, full: &mut AcceptPause) -> Came {
        let share = cx.shared.place.siblings.budget.take(Whose::Client);
        if share.is_none() && !full.refuses {
            return Came::Full;
        }
        match (self.accept_socket(), share) {
            (Ok((host, Some(client))), Some(share)) => {
                full.on_place();
                let Some(share) = share.of(Client::at(client.ip())) else {
                    reset(&host);
                    cx.shared.on_client_full(client.ip());
                    return Came::Nobody;
                };
                cx.shared.counters.tcp_accepted += 1;
                let presented = cx.shared.config.presented(client, self.port);
                Came::Client(Accepted { host, client: client.ip(), presented, share, flight: None })
            }
            (Ok((_, None)), _) => Came::Nobody,
            (Ok((host, _)), None) => {
                let descriptors = cx.shared.place.siblings.budget.descriptors();
                self.refuse(cx.shared, &host, descriptors);
                Came::Nobody
            }
            // EINVAL: the passed socket does not listen at the moment (accept(2)).
            (Err(Errno::AGAIN | Errno::INVAL), _) => {
                self.ready = false;
                Came::None
            }
            (Err(Errno::MFILE), share) if full.refuses && full.spare.take().is_some() => {
                drop(share);
                let accepted = self.accept_socket();
                if let Ok((host, _)) = &accepted {
                    self.refuse(cx.shared, host, getrlimit(Resource::Nofile).maximum);
                }
                let is_refused = accepted.is_ok();
                drop(accepted);
                full.prepare();
                if is_refused { Came::Nobody } else { Came::Full }
            }
            (Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM), _) => Came::Full,
            // The connection failed before it was accepted (accept(2)).
            (Err(_), _) => Came::Nobody,
        }
    }

    /// Accepts a connection, and returns its socket and the client's address.
    fn accept_socket(&self) -> Result<(Fd, Option<SocketAddr>), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (host, client) = opened(|| acceptfrom_with(&self.socket, flags))?;
        let host = Fd::from(host);
        if self.is_passed {
            dialer::prepare(&host);
        }
        let client = client.and_then(|addr| SocketAddr::try_from(addr).ok());
        // A dual-stack listener reports IPv4 clients as mapped addresses (RFC 4291).
        let client = client.map(canonical);
        Ok((host, client))
    }

    /// Resets a client's connection because no flow is free. `descriptors` is the process's
    /// descriptor limit if this is the cause.
    fn refuse(&self, shared: &mut Shared, host: &Fd, descriptors: Option<u64>) {
        reset(host);
        shared.counters.tcp_flows_full += 1;
        let open = shared.place.siblings.budget.len(Whose::Client);
        let notice = Notice::ClientsRefused { host: self.host, open, descriptors };
        shared.tell_once(Topic::ClientsRefused, notice);
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
                // The error is an ICMP error about a datagram that was sent to a client earlier.
                Err(_) => {
                    udp.on_client_errors(cx.shared, index, self.socket.as_fd());
                }
            }
        }
        cx.shared.scratch = scratch;
    }
}
