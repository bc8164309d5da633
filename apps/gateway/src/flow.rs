//! A TCP flow: joins a socket of the host and a connection of the inner stack, and moves bytes
//! between them.
//!
//! Host sockets are polled edge-triggered, so `readable` and `writable` record the readiness of the
//! host's socket. If a FIFO is full, bytes stay in the host's socket, whose receive window then
//! closes.

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
use crate::urgent::UrgentReads;

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) host: Fd,
    /// Keeps the descriptor of `host` counted in the budget.
    pub(crate) _share: Share,
    pub(crate) phase: FlowPhase,
    /// Whether a client of a published port made the connection. The program is then the server.
    pub(crate) is_published: bool,
    /// Traffic class (TOS) of the program's packets, which the host's socket also sends with.
    pub(crate) class: u8,
    /// Whether the program's SYN had an unusual TTL, as traceroute sends. Then ICMP time exceeded
    /// errors of routers are passed on.
    pub(crate) traced: bool,
    /// Whether the host's socket may have bytes, a FIN or an error to read.
    pub(crate) readable: bool,
    /// Whether the host's socket may have room for more bytes.
    pub(crate) writable: bool,
    /// Whether to read until EAGAIN. A short read is then not the last one, because a FIN, an error
    /// or urgent data may follow.
    pub(crate) drain: bool,
    pub(crate) urgent_reads: UrgentReads,
    pub(crate) host_side: HostSide,
    pub(crate) program_side: ProgramSide,
    /// Time at which the flow's current wait ends, as in the table's `deadlines`; `None` without a
    /// wait.
    pub(crate) expires_ns: Option<u64>,
    /// Whether the program has read bytes since `expires_ns` was set.
    pub(crate) progress: bool,
    /// Last event of the program's connection that was not handled yet.
    pub(crate) news: Option<FlowUpdate>,
    pub(crate) queued: bool,
    /// Guard that makes other connections to the program wait until this one is established.
    pub(crate) flight: Option<FlightGuard>,
    /// Candidate nameservers of a DNS flow, which is connected or connecting to one of them; `None`
    /// for other flows.
    pub(crate) nameservers: Option<Box<ServerRotation>>,
    /// Negotiation with an upstream server (a proxy); `None` when it is complete.
    pub(crate) negotiating: Option<Box<Negotiating>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowPhase {
    /// The host's socket is connecting. The program waits for its SYN-ACK.
    HostConnecting(PendingId),
    /// The host's socket is connected to an upstream server, which is asked to connect to the
    /// destination.
    Negotiating(PendingId),
    /// The connection to the program is being made, while the host's client waits.
    ProgramConnecting(Connecting),
    /// Both the host's and the program's connection are established.
    Open(SocketId),
}

/// A connection to the program that is being made for a client of a published port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connecting {
    /// Connection of the inner stack; `None` if the client waits for others, and no SYN was sent to
    /// the program yet.
    pub(crate) socket: Option<SocketId>,
    /// Addresses that the program sees on that connection.
    pub(crate) shown: Presented,
    /// Addresses to try next if the program refuses the connection.
    pub(crate) second: Option<Presented>,
    /// Address of the program to which the published port forwards.
    pub(crate) to: SocketAddr,
    /// Position in the queue of clients that wait for the program.
    pub(crate) arrival: ClientArrival,
}

/// State of the host's connection, and of its stream to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostSide {
    Open,
    /// The host's FIN was read, and passed on to the program.
    Ended,
    /// The socket reported an error, or a system call failed. Bytes that the host sent earlier may
    /// still be unread.
    Failed,
    /// The socket failed, and its bytes were all read. The program gets the error after it has read
    /// these bytes.
    Gone,
}

/// State of the program's connection, and of its stream towards the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramSide {
    Open,
    /// The program sent a FIN. Bytes before the FIN may not be passed on yet.
    Ended,
    /// The program sent a FIN, and its socket no longer exists, so the host's bytes cannot be
    /// delivered.
    Gone,
    /// The program's FIN was passed on to the host, after all of the program's bytes.
    Passed,
}

/// Last event that the inner stack reported about its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowUpdate {
    Connected,
    Failed,
    /// The connection ended because the program's stack did not answer.
    TimedOut,
}

/// Result of one step of a flow.
pub(crate) enum Outcome {
    Goes,
    /// The host's connection failed. Call again at once to read the bytes that the host sent
    /// before.
    Again,
    /// Both directions have ended, so the flow can be removed.
    Finished,
    /// The host's connection failed, and the program must get a reset.
    HostFailed,
}

impl FlowPhase {
    /// Returns the inner stack's socket, if it exists already.
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
            urgent_reads: UrgentReads::default(),
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

    /// Returns the nameserver to which a DNS flow is connected or connecting.
    pub(crate) fn nameserver(&self) -> Option<SocketAddr> {
        self.nameservers.as_ref()?.current()
    }

    /// Returns the inner stack's connection whose SYN is not answered yet.
    pub(crate) fn pending(&self) -> Option<PendingId> {
        match self.phase {
            FlowPhase::HostConnecting(pending) | FlowPhase::Negotiating(pending) => Some(pending),
            FlowPhase::ProgramConnecting(_) | FlowPhase::Open(_) => None,
        }
    }

    /// Replaces the host's socket by another one that is connecting.
    pub(crate) fn replace_host(&mut self, host: Fd) {
        self.host = host;
        (self.readable, self.writable, self.drain) = (false, false, false);
        self.urgent_reads = UrgentReads::default();
        self.host_side = HostSide::Open;
    }

    /// Moves bytes and FINs in both directions, as far as there is room.
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
        // If the program's socket is gone, leave the bytes unread. Closing a host socket with
        // unread bytes sends a reset.
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
        // After the host's FIN its socket is not read any more, so no read would return this error.
        if came.is_err() || ended && failed {
            self.host_side = HostSide::Gone;
            return self.wait_for_program(cx, socket);
        }
        if went.is_err() {
            // Bytes that the host sent before the failure can still be read, followed by an end of
            // file.
            self.host_side = HostSide::Failed;
            (self.readable, self.drain, self.writable) = (true, true, false);
            return Outcome::Again;
        }
        Outcome::Goes
    }

    /// Records that the host's socket has an error. Called when epoll reports EPOLLERR.
    pub(crate) fn on_host_failed(&mut self) {
        self.host_side = match self.host_side {
            HostSide::Open | HostSide::Failed => HostSide::Failed,
            HostSide::Ended | HostSide::Gone => HostSide::Gone,
        };
    }

    /// Returns whether the host's connection failed and the program still has time to read the
    /// bytes received before.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.host_side, HostSide::Failed | HostSide::Gone)
    }

    /// Decides whether a flow whose host connection is over must wait until the program has read
    /// the host's bytes.
    fn wait_for_program(&self, cx: &mut Context<'_, impl FifoHost>, socket: SocketId) -> Outcome {
        let waiting = cx.stack.send_buffer(socket).map_or(0, |send| send.len());
        if waiting > 0 { Outcome::Goes } else { Outcome::HostFailed }
    }

    /// Moves bytes from the host to the program, until the host's socket is empty or the FIFO is
    /// full. A full FIFO is retried when the program has read from it.
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
            let spare = send.spare();
            if spare.is_empty() {
                error = Some(Errno::NOMEM);
                break;
            }
            match self.urgent_reads.recv(self.host.as_fd(), &spare) {
                Ok((0, _)) => {
                    ended = true;
                    self.host_side = HostSide::Ended;
                    self.readable = false;
                }
                Ok((n, is_urgent)) => {
                    send.commit(n as u32);
                    moved += n;
                    if is_urgent {
                        urgent_end = Some(send.len());
                    }
                    // A short read emptied the socket, unless a FIN, an error or urgent data
                    // follows.
                    self.readable = is_urgent || n as u32 == spare.len() || self.drain;
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
                // Fails only if the connection has ended meanwhile, which then needs no urgent
                // data.
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
            // The host's socket may have another address family than the program's: it leads to an
            // upstream server or a nameserver.
            let v6 = sockopt::socket_domain(&self.host) == Ok(AddressFamily::INET6);
            // If this fails, packets keep their old class. The program did not ask for a result, so
            // the error is ignored.
            let _ = sys::set_ip(self.host.as_fd(), v6, IpOption::Tos, class.into());
        }
    }

    /// Writes the program's last bytes to the host, after the program has reset its connection. The
    /// host's socket is reset next. As on Linux, the reset drops bytes for which the host's socket
    /// has no room.
    pub(crate) fn move_last_out(&mut self, cx: &mut Context<'_, impl FifoHost>, socket: SocketId) {
        // The host's socket may have room that epoll has not reported yet.
        self.writable = true;
        // An error is ignored, because the host's connection ends in any case.
        let _ = self.move_out(cx, socket);
    }

    /// Moves bytes from the program to the host, until the FIFO is empty or the host's socket is
    /// full.
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
            // Drop the reference to the bytes first, because `consume` cannot return referenced
            // memory to the pool.
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
                // The program's socket may vanish without a packet, since FIN-WAIT-2 of a closed
                // socket lasts only a minute. Keepalive probes detect this.
                let _ = cx.stack.set_option(socket, SocketOption::KeepAlive(Some(ENDED_PROBES)));
            }
            // Clear SO_LINGER before the FIN. If this process is killed between the two calls, the
            // kernel then closes with a FIN, and the stream is complete.
            let _ = sockopt::set_socket_linger(&self.host, None);
            // `shutdown` fails only if the host's connection has failed, which epoll reports as
            // well.
            let _ = shutdown(&self.host, Shutdown::Write);
        }
        Ok(())
    }
}

/// Keepalive probes that check whether a program's socket still waits for the host's FIN. The first
/// follows after tcp_fin_timeout, for which Linux keeps a closed socket. Three probes are enough,
/// because the inner link loses no packets.
const ENDED_PROBES: KeepAliveConfig =
    KeepAliveConfig { idle: Duration::from_secs(60), interval: Duration::from_secs(10), probes: 3 };

/// Connects to the next nameserver in the rotation, and skips those for which the connect fails at
/// once.
pub(crate) fn dial_next(
    shared: &mut Shared,
    tour: &mut ServerRotation,
    marks: SynMarks,
) -> Result<Fd, Errno> {
    // Without any nameserver, report ECONNREFUSED, as the kernel does for an address on which no
    // process listens.
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
