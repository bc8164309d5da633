//! A TCP flow: a socket of the host, a connection of the inner stack, and how bytes go between
//! them.
//!
//! Host sockets are watched edge by edge: `readable` and `writable` say what the host's socket is
//! known to do. A full FIFO simply leaves bytes in the host's socket, whose window then closes.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use towpath_shm::Fd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, shutdown, sockopt};
use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_stack::{PendingId, SocketId, SocketOption};
use towpath_tcp::KeepAliveConfig;

use crate::budget::Share;
use crate::config::Presented;
use crate::context::{Context, FifoHost, Shared};
use crate::dialer::{Dialed, SynMarks};
use crate::limits::READ_ROOM_MIN;
use crate::lines::ClientArrival;
use crate::nameservers::ServerRotation;
use crate::negotiating::Negotiating;
use crate::order::FlightGuard;
use crate::sys::{self, IpOption};

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) host: Fd,
    /// Right to the descriptor of `host`.
    pub(crate) _share: Share,
    pub(crate) phase: FlowPhase,
    /// A client of a published port made the connection, and the program is the server.
    pub(crate) is_published: bool,
    /// The program's class of service, as the host's socket has it.
    pub(crate) class: u8,
    /// The SYN came with a TTL of its own (as traceroute sends it): a router's time exceeded is
    /// passed on.
    pub(crate) traced: bool,
    /// The host's socket has bytes, an end or an error for us.
    pub(crate) readable: bool,
    /// The host's socket takes bytes.
    pub(crate) writable: bool,
    /// A short read need not be the last: a FIN, an error or urgent data may stand behind it. Read
    /// until EAGAIN.
    pub(crate) drain: bool,
    /// The host's socket has an urgent byte that was not read.
    pub(crate) urgent: bool,
    pub(crate) host_side: HostSide,
    pub(crate) program_side: ProgramSide,
    /// When it has waited for long enough: its place in the table's `deadlines`.
    pub(crate) expires_ns: Option<u64>,
    /// The program took bytes since `expires_ns` was set.
    pub(crate) progress: bool,
    /// Last news of the program's side.
    pub(crate) news: Option<FlowUpdate>,
    pub(crate) queued: bool,
    /// Other connections wait until this one is with the program.
    pub(crate) flight: Option<FlightGuard>,
    /// Candidate nameservers, for a flow of the DNS forwarder; it is connected, or connects, to one
    /// of them.
    pub(crate) nameservers: Option<Box<ServerRotation>>,
    /// Negotiation with an upstream server, until it is over.
    pub(crate) negotiating: Option<Box<Negotiating>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowPhase {
    /// The host connects, the program waits for its SYN-ACK.
    HostConnecting(PendingId),
    /// The host is connected to an upstream server, which is asked for the connection.
    Negotiating(PendingId),
    /// The program is being connected, the host's client waits.
    ProgramConnecting(Connecting),
    /// Both are connected.
    Open(SocketId),
}

/// A connection of a client that is being made to the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connecting {
    /// The inner stack's connection; None: the client waits for others, and its SYN was never sent.
    pub(crate) socket: Option<SocketId>,
    /// Ends of that connection.
    pub(crate) shown: Presented,
    /// Ends that are tried if the program refuses these.
    pub(crate) second: Option<Presented>,
    /// Address of the program to which the published port leads.
    pub(crate) to: SocketAddr,
    /// Place in the line for the program.
    pub(crate) arrival: ClientArrival,
}

/// State of the host's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostSide {
    Open,
    /// Its FIN was read, and passed on to the program.
    Ended,
    /// The socket reported an error, or a call met one; earlier bytes may still be there to be
    /// read.
    Failed,
    /// The socket failed and was read to the end. The program is told when it has the earlier
    /// bytes.
    Gone,
}

/// State of the program's connection, and of its stream towards the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramSide {
    Open,
    /// Its FIN came; bytes may stand before it.
    Ended,
    /// The same, and the program's socket does not exist any more, so that bytes of the host have
    /// nowhere to go.
    Gone,
    /// Its FIN was passed on to the host, behind all its bytes.
    Passed,
}

/// Last word of the inner stack about its side.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowUpdate {
    Connected,
    Failed,
    /// The connection was given up for want of an answer.
    TimedOut,
}

/// How a step of a flow left it.
pub(crate) enum Outcome {
    Goes,
    /// The host failed, and what it sent before that is to be read at once.
    Again,
    /// Both directions ended.
    Finished,
    /// The host failed; the program must know.
    HostFailed,
}

impl FlowPhase {
    /// The inner stack's connection.
    pub(crate) fn socket(self) -> Option<SocketId> {
        match self {
            Self::HostConnecting(_) | Self::Negotiating(_) => None,
            Self::ProgramConnecting(connecting) => connecting.socket,
            Self::Open(socket) => Some(socket),
        }
    }
}

impl Flow {
    pub(crate) fn new(host: Fd, share: Share, phase: FlowPhase) -> Self {
        Self {
            host,
            _share: share,
            phase,
            is_published: matches!(phase, FlowPhase::ProgramConnecting(_)),
            class: 0,
            traced: false,
            readable: false,
            writable: false,
            drain: false,
            urgent: false,
            host_side: HostSide::Open,
            program_side: ProgramSide::Open,
            expires_ns: None,
            progress: false,
            news: None,
            queued: false,
            flight: None,
            nameservers: None,
            negotiating: None,
        }
    }

    /// The nameserver that it is connected to.
    pub(crate) fn nameserver(&self) -> Option<SocketAddr> {
        self.nameservers.as_ref()?.current()
    }

    /// The connection of a SYN that is not answered yet.
    pub(crate) fn pending(&self) -> Option<PendingId> {
        match self.phase {
            FlowPhase::HostConnecting(pending) | FlowPhase::Negotiating(pending) => Some(pending),
            FlowPhase::ProgramConnecting(_) | FlowPhase::Open(_) => None,
        }
    }

    /// Goes on with another socket that is connecting, of which nothing is known yet.
    pub(crate) fn replace_host(&mut self, host: Fd) {
        self.host = host;
        (self.readable, self.writable, self.drain) = (false, false, false);
        self.urgent = false;
        self.host_side = HostSide::Open;
    }

    /// Moves bytes and ends both ways, as many as there is room for now.
    pub(crate) fn splice(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        socket: SocketId,
    ) -> Outcome {
        if self.host_side == HostSide::Gone {
            return self.wait_for_program(cx, socket);
        }
        let gone = self.program_side == ProgramSide::Gone;
        let mut failed = self.host_side == HostSide::Failed;
        // Bytes that nobody takes are left in the host's socket, whose close is then a reset.
        let came = if gone { Ok(()) } else { self.move_in(cx, socket) };
        let went = self.move_out(cx, socket);
        failed |= went.is_err();
        let ended = self.host_side == HostSide::Ended;
        if (ended || gone) && self.program_side == ProgramSide::Passed {
            return Outcome::Finished;
        }
        if gone && failed {
            return Outcome::HostFailed;
        }
        // After the host's FIN nothing is read from its socket, so that no read would return this
        // error.
        if came.is_err() || ended && failed {
            self.host_side = HostSide::Gone;
            return self.wait_for_program(cx, socket);
        }
        if went.is_err() {
            // Bytes that the host sent before it failed are still there to be read, and then an
            // end.
            self.host_side = HostSide::Failed;
            (self.readable, self.drain, self.writable) = (true, true, false);
            return Outcome::Again;
        }
        Outcome::Goes
    }

    /// The host's socket has an error.
    pub(crate) fn on_host_failed(&mut self) {
        self.host_side = match self.host_side {
            HostSide::Open | HostSide::Failed => HostSide::Failed,
            HostSide::Ended | HostSide::Gone => HostSide::Gone,
        };
    }

    /// Whether the host's connection failed, and the program's time to take what came before runs.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.host_side, HostSide::Failed | HostSide::Gone)
    }

    /// The host's connection is over, and the program is to have what came before it was.
    fn wait_for_program(&self, cx: &mut Context<'_, impl FifoHost>, socket: SocketId) -> Outcome {
        let waiting = cx.stack.send_buffer(socket).map_or(0, |send| send.len());
        if waiting > 0 { Outcome::Goes } else { Outcome::HostFailed }
    }

    /// Moves bytes from the host to the program, until there are no more or there is no room.
    /// Remaining bytes are looked at again when the program takes some.
    fn move_in(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        socket: SocketId,
    ) -> Result<(), Errno> {
        let Some(send) = cx.stack.send_buffer(socket) else { return Ok(()) };
        let mut moved = 0;
        let mut ended = false;
        let mut error = None;
        let mut urgent_end = None;
        while self.readable && !ended && send.room() >= READ_ROOM_MIN {
            let mut spare = send.spare();
            if spare.is_empty() {
                error = Some(Errno::NOMEM);
                break;
            }
            // The urgent byte is read alone: what is read from the mark on does not end there.
            let is_urgent = self.urgent && sys::is_at_mark(self.host.as_fd());
            if is_urgent {
                spare = spare.slice(0, 1);
            }
            match sys::recv_stream(self.host.as_fd(), &spare) {
                Ok(0) => {
                    ended = true;
                    self.host_side = HostSide::Ended;
                    self.readable = false;
                }
                Ok(n) => {
                    send.commit(n as u32);
                    moved += n;
                    if is_urgent {
                        self.urgent = false;
                        urgent_end = Some(send.len());
                    }
                    // A short read emptied the socket, unless a FIN, an error or urgent data stands
                    // behind it.
                    self.readable = n as u32 == spare.len() || self.drain;
                }
                Err(Errno::AGAIN) => self.readable = false,
                Err(Errno::INTR) => {}
                Err(other) => {
                    error = Some(other);
                    break;
                }
            }
        }
        send.trim();
        if moved > 0 {
            if let Some(end) = urgent_end {
                // A connection that has ended meanwhile has no urgent data.
                let _ = cx.stack.set_option(socket, SocketOption::UrgentEnd(end));
            }
            cx.stack.send_ready(socket);
            cx.touched = true;
            cx.shared.counters.tcp_bytes_to_program += moved as u64;
        }
        if ended {
            cx.stack.shutdown_send(socket);
            cx.touched = true;
        }
        error.map_or(Ok(()), Err)
    }

    pub(crate) fn set_class(&mut self, class: u8) {
        if self.class != class {
            self.class = class;
            // The peer may be of the other family: an upstream server, or a nameserver.
            let v6 = sockopt::socket_domain(&self.host) == Ok(AddressFamily::INET6);
            // When it fails, packets leave with the class they had; there is nobody to tell.
            let _ = sys::set_ip(self.host.as_fd(), v6, IpOption::Tos, class.into());
        }
    }

    /// The program reset its connection: bytes that came before are written to the host, whose
    /// socket is about to be reset. As on Linux, bytes that the host's socket has no room for are
    /// lost with the reset.
    pub(crate) fn move_last_out(&mut self, cx: &mut Context<'_, impl FifoHost>, socket: SocketId) {
        // There may be room of which epoll has not told yet.
        self.writable = true;
        // The host's connection may have failed as well, and ends in either case.
        let _ = self.move_out(cx, socket);
    }

    /// From the program to the host, until there is no more or the host takes no more.
    fn move_out(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        socket: SocketId,
    ) -> Result<(), Errno> {
        let Some(recv) = cx.stack.recv_buffer(socket) else { return Ok(()) };
        let mut moved = 0;
        let mut result = Ok(());
        while self.writable && recv.unread() > 0 {
            let (unread, is_urgent) = recv.peek();
            let len = unread.len();
            let sent = sys::send_stream(self.host.as_fd(), &unread, is_urgent);
            // `consume` gives memory back, and the pool keeps none that something still points to.
            drop(unread);
            match sent {
                Ok(n) => {
                    recv.consume(n as u32);
                    moved += n;
                    self.writable = n as u32 == len;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let left = recv.unread();
        if moved > 0 {
            cx.stack.recv_taken(cx.now, socket);
            cx.touched = true;
            cx.shared.counters.tcp_bytes_to_host += moved as u64;
        }
        result?;
        if left == 0 && matches!(self.program_side, ProgramSide::Ended | ProgramSide::Gone) {
            let gone = self.program_side == ProgramSide::Gone;
            self.program_side = ProgramSide::Passed;
            if !gone {
                // The socket of a program that waits for the host's end may end without a word:
                // FIN-WAIT-2 of a closed socket lasts a minute. Keepalive probes ask it.
                let _ = cx.stack.set_option(socket, SocketOption::KeepAlive(Some(ENDED_PROBES)));
            }
            // Before the FIN: if this process is killed between the two calls, the kernel still
            // closes in order, and the stream is whole.
            let _ = sockopt::set_socket_linger(&self.host, None);
            // `shutdown` fails only when the host's connection has failed, which epoll reports as
            // well.
            let _ = shutdown(&self.host, Shutdown::Write);
        }
        Ok(())
    }
}

/// Probes that ask a program's socket whether it still waits for the host's end. The first comes
/// after as long as Linux keeps a closed socket (tcp_fin_timeout). A few more suffice, because the
/// link loses nothing.
const ENDED_PROBES: KeepAliveConfig =
    KeepAliveConfig { idle: Duration::from_secs(60), interval: Duration::from_secs(10), probes: 3 };

/// Connects to the next of the nameservers to which the host can connect at all.
pub(crate) fn dial_next(
    shared: &mut Shared,
    tour: &mut ServerRotation,
    marks: SynMarks,
) -> Result<Fd, Errno> {
    // As the kernel answers for an address that nobody listens on, when none is named.
    let mut refused = Errno::CONNREFUSED;
    while let Some(to) = tour.advance() {
        match shared.dialer.dial_direct(to, marks) {
            Ok(Dialed { host, .. }) => {
                shared.loops.note(&host, to);
                return Ok(host);
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}
