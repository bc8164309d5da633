//! One TCP flow: a socket of the host, a connection of the inner stack, and how bytes go between them.
//!
//! Host sockets are watched edge by edge: `readable` and `writable` say what the host's socket is
//! known to do. A full FIFO simply leaves bytes in the host's socket, whose window then closes.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, SocketType, connect, shutdown, socket_with, sockopt};
use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_stack::{PendingId, SocketId};

use crate::config::Way;
use crate::events::family;
use crate::gateway::Context;
use crate::limits::{FLOW_BYTES_PER_TURN, PLAIN_TTL, READ_ROOM_MIN};
use crate::sys::{self, IpOption};

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) host: OwnedFd,
    pub(crate) phase: Phase,
    /// The program's class of service, as the host's socket has it.
    pub(crate) class: u8,
    /// The SYN came with a TTL of its own: who reports how far it got is passed on.
    pub(crate) traced: bool,
    /// The host's socket has bytes, an end or an error for us.
    pub(crate) readable: bool,
    /// The host's socket takes bytes.
    pub(crate) writable: bool,
    /// More comes after a short read: the end, an error, or what stands behind urgent data.
    pub(crate) ending: bool,
    /// The host's socket reported an error, or a call met one.
    pub(crate) failed: bool,
    /// When it has waited for long enough: its place in [`TcpFlows::failing`].
    pub(crate) expires_ns: Option<u64>,
    /// The host's connection is over; the program is told when it has the bytes that came before.
    pub(crate) host_gone: bool,
    /// The program took bytes since that was looked at.
    pub(crate) progress: bool,
    /// The host's end was read, and passed on to the program.
    pub(crate) host_ended: bool,
    /// The program's end came; unread bytes may stand before it.
    pub(crate) program_ended: bool,
    /// The program's end was passed on to the host.
    pub(crate) host_told: bool,
    /// The program's socket is gone, and its whole stream is on its way to the host.
    pub(crate) program_gone: bool,
    /// What became of the program's side.
    pub(crate) news: Option<News>,
    pub(crate) queued: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// The host connects, the program waits for its SYN-ACK.
    HostConnecting(PendingId),
    /// The program is being connected, the host's client waits.
    ProgramConnecting { socket: SocketId, second: Option<Way> },
    /// Both are.
    Open(SocketId),
}

/// What the inner stack said last about its side.
#[derive(Debug, Clone, Copy)]
pub(crate) enum News {
    Connected,
    Failed,
}

/// How a step of a flow left it.
pub(crate) enum Outcome {
    Goes,
    /// Both directions ended.
    Finished,
    /// The host failed; the program must know.
    HostFailed,
}

impl Phase {
    /// The inner stack's connection.
    pub(crate) fn socket(self) -> Option<SocketId> {
        match self {
            Self::HostConnecting(_) => None,
            Self::ProgramConnecting { socket, .. } | Self::Open(socket) => Some(socket),
        }
    }
}

impl Flow {
    pub(crate) fn new(host: OwnedFd, phase: Phase) -> Self {
        Self {
            host,
            phase,
            class: 0,
            traced: false,
            readable: false,
            writable: false,
            ending: false,
            failed: false,
            expires_ns: None,
            host_gone: false,
            progress: false,
            host_ended: false,
            program_ended: false,
            host_told: false,
            program_gone: false,
            news: None,
            queued: false,
        }
    }

    /// Moves bytes and ends both ways. True: there was more, but others have their turn.
    pub(crate) fn splice(&mut self, cx: &mut Context<'_>, socket: SocketId) -> (bool, Outcome) {
        let (mut more_in, mut more_out) = (false, false);
        if !self.host_gone {
            // Bytes that nobody takes are left in the host's socket, whose close is then a reset.
            let came = if self.program_gone { Ok(false) } else { self.move_in(cx, socket) };
            let went = self.move_out(cx, socket);
            self.host_gone = came.is_err();
            // What the host sent before it failed is still there to be read, and then an end.
            let unheard = went.is_err() && !self.host_ended;
            if unheard {
                (self.readable, self.ending, self.writable) = (true, true, false);
            }
            self.failed |= came.is_err() || went.is_err();
            (more_in, more_out) = (came.unwrap_or(false) || unheard, went.unwrap_or(false));
        }
        // Behind its end nothing is read that would tell of an error.
        self.host_gone |= self.host_ended && self.failed;
        if (self.host_ended || self.program_gone) && self.host_told {
            return (false, Outcome::Finished);
        }
        if self.program_gone && self.failed {
            return (false, Outcome::HostFailed);
        }
        if self.host_gone {
            return (false, self.wait_for_program(cx, socket));
        }
        (more_in || more_out, Outcome::Goes)
    }

    /// The host's connection is over, and the program is to have what came before it was.
    fn wait_for_program(&self, cx: &mut Context<'_>, socket: SocketId) -> Outcome {
        let waiting = cx.stack.send_buffer(socket).map_or(0, |send| send.len());
        if waiting > 0 { Outcome::Goes } else { Outcome::HostFailed }
    }

    /// From the host to the program. True: there is more.
    fn move_in(&mut self, cx: &mut Context<'_>, socket: SocketId) -> Result<bool, Errno> {
        let Some(send) = cx.stack.send_buffer(socket) else { return Ok(false) };
        let mut moved = 0;
        let mut ended = false;
        let mut error = None;
        while self.readable && !ended && moved < FLOW_BYTES_PER_TURN {
            if send.room() < READ_ROOM_MIN {
                break;
            }
            let spare = send.spare();
            if spare.is_empty() {
                error = Some(Errno::NOMEM);
                break;
            }
            match sys::recv_stream(self.host.as_fd(), &spare) {
                Ok(0) => {
                    ended = true;
                    self.host_ended = true;
                    self.readable = false;
                }
                Ok(n) => {
                    send.commit(n as u32);
                    moved += n;
                    // Less than there was room for: drained, unless the end stands behind.
                    self.readable = n as u32 == spare.len() || self.ending;
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
            cx.stack.send_ready(socket);
            cx.touched = true;
            cx.shared.counters.tcp_bytes_to_program += moved as u64;
        }
        if ended {
            cx.stack.shutdown_send(socket);
            cx.touched = true;
        }
        match error {
            Some(error) => Err(error),
            None => Ok(self.readable && moved >= FLOW_BYTES_PER_TURN),
        }
    }

    pub(crate) fn set_class(&mut self, v6: bool, class: u8) {
        if self.class != class {
            self.class = class;
            // One that cannot be set is one that the program does without.
            let _ = sys::set_ip(self.host.as_fd(), v6, IpOption::Tos, class.into());
        }
    }

    /// From the program to the host. True: there is more.
    fn move_out(&mut self, cx: &mut Context<'_>, socket: SocketId) -> Result<bool, Errno> {
        let Some(recv) = cx.stack.recv_buffer(socket) else { return Ok(false) };
        let mut moved = 0;
        let mut result = Ok(());
        while self.writable && recv.unread() > 0 && moved < FLOW_BYTES_PER_TURN {
            let unread = recv.peek();
            let len = unread.len();
            let sent = sys::send_stream(self.host.as_fd(), &unread);
            // Memory that is still pointed to when it is given back goes round no more.
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
        if self.program_ended && left == 0 && !self.host_told {
            self.host_told = true;
            // First, so that a process which is killed in between closes in order what is whole.
            let _ = sockopt::set_socket_linger(&self.host, None);
            // It fails only when the host's connection is gone, which its socket reports as well.
            let _ = shutdown(&self.host, Shutdown::Write);
        }
        Ok(self.writable && left > 0)
    }
}

/// A socket of the host that is connecting to `addr`, with the TTL and class of the program's SYN.
pub(crate) fn open_towards(addr: SocketAddr, ttl: u8, class: u8) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let host = socket_with(family(addr), SocketType::STREAM, flags, None)?;
    prepare(&host);
    for (option, value, plain) in [(IpOption::Ttl, ttl, PLAIN_TTL), (IpOption::Tos, class, 0)] {
        if value != plain {
            sys::set_ip(host.as_fd(), addr.is_ipv6(), option, value.into())?;
        }
    }
    if ttl != PLAIN_TTL {
        sys::set_ip(host.as_fd(), addr.is_ipv6(), IpOption::ReceiveErrors, 1)?;
    }
    match connect(&host, &addr) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(host),
        Err(error) => Err(error),
    }
}

/// Options of every host connection: what the program sends is sent as it sends it, a peer that
/// vanished is noticed some day, since the program's own keepalive ends at the gateway, and urgent
/// bytes stay in their place, where programs find them. A close is a reset until the program's stream
/// is whole.
pub(crate) fn prepare(host: &OwnedFd) {
    reset(host);
    let _ = sockopt::set_tcp_nodelay(host, true);
    let _ = sockopt::set_socket_keepalive(host, true);
    let _ = sockopt::set_socket_oobinline(host, true);
}

/// Makes the close of a host socket a reset, whatever it still has to send.
pub(crate) fn reset(host: &OwnedFd) {
    let _ = sockopt::set_socket_linger(host, Some(Duration::ZERO));
}
