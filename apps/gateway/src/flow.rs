//! A TCP flow: joins a host socket and a connection of the inner stack, and moves bytes between
//! them. The inner stack is the gateway's TCP/IP stack towards the program.
//!
//! Host sockets are watched by edge-triggered epoll, so `readable` and `writable` record the
//! readiness of the host's socket. If a FIFO is full, bytes stay in the host's socket, whose
//! receive window then closes.

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
    /// Reservation of the descriptor `host` in the descriptor budget.
    pub(crate) _share: Share,
    pub(crate) phase: FlowPhase,
    /// Whether a client of a published port has initiated the connection, so that the program is
    /// the server.
    pub(crate) is_published: bool,
    /// Traffic class (TOS) of the program's packets, also set on the host socket.
    pub(crate) class: u8,
    /// Whether the program's SYN had an unusual TTL, as traceroute sends it. ICMP "time exceeded"
    /// errors are then passed to the program.
    pub(crate) traced: bool,
    /// Whether the host socket may have bytes, a FIN or an error to read.
    pub(crate) readable: bool,
    /// Whether the host socket may have room for more bytes.
    pub(crate) writable: bool,
    /// Whether to read until EAGAIN, because a FIN, an error or urgent data may follow. Otherwise a
    /// read that returns less than requested is the last one.
    pub(crate) drain: bool,
    pub(crate) urgent_reads: UrgentReads,
    pub(crate) host_side: HostSide,
    pub(crate) program_side: ProgramSide,
    /// Time at which the flow's current timeout ends, also stored in the flow table's `deadlines`.
    /// `None` without a timeout.
    pub(crate) expires_ns: Option<u64>,
    /// Whether the program has read bytes since `expires_ns` was set. If so, the timeout starts
    /// again.
    pub(crate) progress: bool,
    /// Last event of the inner stack's connection that was not handled yet.
    pub(crate) news: Option<FlowUpdate>,
    pub(crate) queued: bool,
    /// Guard that delays other connections of the client until this connection is established with
    /// the program.
    pub(crate) flight: Option<FlightGuard>,
    /// Nameservers that a DNS flow may use; it is connected or connecting to one of them. `None`
    /// for other flows.
    pub(crate) nameservers: Option<Box<ServerRotation>>,
    /// Negotiation with the upstream server (a proxy); `None` without one, or after the
    /// negotiation.
    pub(crate) negotiating: Option<Box<Negotiating>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowPhase {
    /// The host socket is connecting. The program still waits for its SYN-ACK.
    HostConnecting(PendingId),
    /// The host socket is connected to an upstream server (a proxy), which connects to the
    /// destination.
    Negotiating(PendingId),
    /// The connection to the program is not established yet. The host's client waits.
    ProgramConnecting(Connecting),
    /// Both the host's and the program's connection are established.
    Open(SocketId),
}

/// A connection to the program, for a client of a published port, that is not established yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connecting {
    /// Connection of the inner stack. `None` while the client waits for earlier connections, and no
    /// SYN was sent to the program yet.
    pub(crate) socket: Option<SocketId>,
    /// Addresses that the connection has for the program.
    pub(crate) shown: Presented,
    /// Addresses to try next if the program refuses the connection.
    pub(crate) second: Option<Presented>,
    /// Address of the program to which the published port forwards.
    pub(crate) to: SocketAddr,
    /// Position in the queue of clients that wait for the program.
    pub(crate) arrival: ClientArrival,
}

/// State of the connection on the host, and of the data from the host to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostSide {
    Open,
    /// The FIN from the host's peer was read, and passed to the program.
    Ended,
    /// The host socket reported an error, or a system call on it failed. Bytes received before the
    /// error may still be unread.
    Failed,
    /// The host socket failed, and all its bytes were read. The program gets the error after it has
    /// read these bytes.
    Gone,
}

/// State of the program's connection, and of the data from the program to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramSide {
    Open,
    /// The program sent a FIN. Not all bytes before the FIN were sent to the host yet.
    Ended,
    /// The program sent a FIN, and its socket no longer exists, so the host's bytes cannot be
    /// delivered.
    Gone,
    /// All of the program's bytes and its FIN were passed to the host.
    Passed,
}

/// Last event that the inner stack has reported about the flow's connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowUpdate {
    Connected,
    Failed,
    /// The connection ended because the program's stack did not answer.
    TimedOut,
}

/// Result of one call of [`Flow::splice`].
pub(crate) enum Outcome {
    Goes,
    /// The host connection failed. Call again at once to read the bytes that were received before.
    Again,
    /// Both directions have ended, so the flow can be removed.
    Finished,
    /// The host connection failed, so reset the program's connection.
    HostFailed,
}

impl FlowPhase {
    /// Returns the inner stack's socket for the flow, or `None` if it does not exist yet.
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

    /// Returns the inner stack's id of the program's SYN if the SYN is not answered yet.
    pub(crate) fn pending(&self) -> Option<PendingId> {
        match self.phase {
            FlowPhase::HostConnecting(pending) | FlowPhase::Negotiating(pending) => Some(pending),
            FlowPhase::ProgramConnecting(_) | FlowPhase::Open(_) => None,
        }
    }

    /// Replaces the host socket by another one that is connecting.
    pub(crate) fn replace_host(&mut self, host: Fd) {
        self.host = host;
        (self.readable, self.writable, self.drain) = (false, false, false);
        self.urgent_reads = UrgentReads::default();
        self.host_side = HostSide::Open;
    }

    /// Moves bytes and FINs in both directions, as far as the FIFOs and the host socket have room.
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
        // If the program's socket no longer exists, leave the host's bytes unread, because closing
        // a host socket with unread bytes sends a reset.
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
        // Report the failure of the host socket. After the FIN of its peer, the socket is not read
        // any more, so no read would return the error.
        if came.is_err() || ended && failed {
            self.host_side = HostSide::Gone;
            return self.wait_for_program(cx, socket);
        }
        if went.is_err() {
            // Bytes received before the failure can still be read. After them, read(2) returns 0.
            self.host_side = HostSide::Failed;
            (self.readable, self.drain, self.writable) = (true, true, false);
            return Outcome::Again;
        }
        Outcome::Goes
    }

    /// Records that the host socket has an error, which epoll has reported (EPOLLERR).
    pub(crate) fn on_host_failed(&mut self) {
        self.host_side = match self.host_side {
            HostSide::Open | HostSide::Failed => HostSide::Failed,
            HostSide::Ended | HostSide::Gone => HostSide::Gone,
        };
    }

    /// Returns whether the host connection failed, but the program may still read bytes received
    /// before the failure.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.host_side, HostSide::Failed | HostSide::Gone)
    }

    /// Returns whether a flow whose host connection has failed must wait until the program has read
    /// the received bytes.
    fn wait_for_program(&self, cx: &mut Context<'_, impl FifoHost>, socket: SocketId) -> Outcome {
        let waiting = cx.stack.send_buffer(socket).map_or(0, |send| send.len());
        if waiting > 0 { Outcome::Goes } else { Outcome::HostFailed }
    }

    /// Moves bytes from the host to the program, until the host socket is empty or the FIFO is
    /// full. If the FIFO is full, this is repeated after the program has read bytes.
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
            match self.urgent_reads.recv(self.host.as_fd(), &spare, cx.shared.event_rounds) {
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
                    // A read that returned less than requested has emptied the socket, unless a
                    // FIN, an error or urgent data follows.
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
                // Ignore errors: this fails only if the connection has just ended, and then urgent
                // data does not matter.
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
            // The host socket may have another address family than the program's connection,
            // because it may be connected to an upstream server or a nameserver.
            let v6 = sockopt::socket_domain(&self.host) == Ok(AddressFamily::INET6);
            // Ignore errors: packets then keep their old traffic class, and the program does not
            // expect a result.
            let _ = sys::set_ip(self.host.as_fd(), v6, IpOption::Tos, class.into());
        }
    }

    /// Sends the program's last bytes to the host, after the program has reset its connection and
    /// before the host socket is reset. As on Linux, bytes for which the host socket has no room
    /// are lost.
    pub(crate) fn move_last_out(&mut self, cx: &mut Context<'_, impl FifoHost>, socket: SocketId) {
        // Try to write even if epoll has not reported the host socket as writable, because the
        // socket may have space now.
        self.writable = true;
        // Ignore errors, because the host connection is reset in any case.
        let _ = self.move_out(cx, socket);
    }

    /// Moves bytes from the program to the host, until the FIFO is empty or the host socket is
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
            // Drop this reference to the bytes first. Otherwise `consume` could not return their
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
                // Enable keepalive, because the program's socket may vanish without sending a
                // packet: a closed socket stays in FIN-WAIT-2 for only a minute.
                let _ = cx.stack.set_option(socket, SocketOption::KeepAlive(Some(ENDED_PROBES)));
            }
            // Clear SO_LINGER before sending the FIN. If this process is killed in between, the
            // kernel then closes the socket with a FIN, and the peer sees a complete stream.
            let _ = sockopt::set_socket_linger(&self.host, None);
            // Ignore errors: `shutdown` fails only if the host connection has failed, which epoll
            // reports as well.
            let _ = shutdown(&self.host, Shutdown::Write);
        }
        Ok(())
    }
}

/// Keepalive parameters to check whether a program's half-closed socket still waits for the host's
/// FIN. The first probe follows after tcp_fin_timeout (60 s), for which Linux keeps a closed
/// socket. Three probes are enough, because the link between gateway and program loses no packets.
const ENDED_PROBES: KeepAliveConfig =
    KeepAliveConfig { idle: Duration::from_secs(60), interval: Duration::from_secs(10), probes: 3 };

/// Connects to the next nameserver in the rotation, and skips those for which connect(2) fails at
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
