//! Sends questions to the nameservers, over sockets of the stack.
//!
//! [`Inquiry`] determines which server is asked next. Each attempt uses a new socket.

use std::net::{IpAddr, SocketAddr};

use towpath_client::syscall::syscall;
use towpath_client::{Buffer, Deadline};
use towpath_dns::{Attempt, Conf, DATAGRAM_MAX, DnsAnswer, Inquiry, Protocol, Question};

use crate::control::SendControl;
use crate::{Errno, Posix, Result, descriptor, option, poll, socket, transfer};

/// Sends all `questions` to the nameservers, and repeats them until they are answered or the
/// attempts are used up. The result has one element per question; `None` if no server answered it.
pub fn ask(posix: &'static Posix, conf: &Conf, questions: &[Question]) -> Vec<Option<DnsAnswer>> {
    let mut inquiry = Inquiry::new(conf, questions, random);
    while let Some(attempt) = inquiry.next_attempt() {
        // Ignore errors and timeouts: the next attempt asks a different server.
        let _ = match attempt.protocol {
            Protocol::Udp => ask_by_udp(posix, &attempt, &mut inquiry),
            Protocol::Tcp => ask_by_tcp(posix, &attempt, &mut inquiry),
        };
    }
    inquiry.into_answers()
}

fn ask_by_udp(posix: &'static Posix, attempt: &Attempt, inquiry: &mut Inquiry<'_>) -> Result<()> {
    let deadline = Deadline::after(attempt.timeout);
    let line = ServerSocket::connect(posix, attempt.server, libc::SOCK_DGRAM, deadline)?;
    for message in &attempt.messages {
        line.send(message, deadline)?;
    }
    let mut bytes = vec![0; DATAGRAM_MAX];
    loop {
        let len = line.recv(&mut bytes, deadline)?;
        if inquiry.on_message(&bytes[..len]) {
            return Ok(());
        }
    }
}

fn ask_by_tcp(posix: &'static Posix, attempt: &Attempt, inquiry: &mut Inquiry<'_>) -> Result<()> {
    let deadline = Deadline::after(attempt.timeout);
    let line = ServerSocket::connect(posix, attempt.server, libc::SOCK_STREAM, deadline)?;
    for message in &attempt.messages {
        // Send the length and the message in one segment, because some servers read only the first
        // segment.
        let bytes = [&(message.len() as u16).to_be_bytes()[..], message].concat();
        line.send(&bytes, deadline)?;
        let mut len = [0; 2];
        line.recv_all(&mut len, deadline)?;
        let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
        line.recv_all(&mut bytes, deadline)?;
        if inquiry.on_message(&bytes) {
            break;
        }
    }
    Ok(())
}

/// A socket that is connected to a nameserver. The socket is nonblocking; all calls wait in poll(2)
/// until a deadline.
pub(super) struct ServerSocket {
    posix: &'static Posix,
    fd: i32,
}

impl ServerSocket {
    pub(super) fn connect(
        posix: &'static Posix,
        server: SocketAddr,
        kind: i32,
        deadline: Deadline,
    ) -> Result<Self> {
        let family = if server.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let line = Self { posix, fd: socket::socket(posix, family, kind, 0)? };
        if kind & libc::SOCK_DGRAM != 0 {
            line.report_unreachable(family)?;
        }
        let addr = sockaddr(server);
        let len = addr.len() as libc::socklen_t;
        // SAFETY: `addr` contains `len` readable bytes.
        match unsafe { socket::connect(posix, line.fd, addr.as_ptr().cast(), len) } {
            // If the connection attempt failed, the first send returns its error.
            Err(Errno(libc::EINPROGRESS)) => line.wait(libc::POLLOUT, deadline)?,
            result => result?,
        }
        Ok(line)
    }

    /// Sets IP_RECVERR or IPV6_RECVERR, as glibc does. An ICMP error then makes the next call fail.
    /// Otherwise an unreachable server would be noticed only after the timeout.
    fn report_unreachable(&self, family: i32) -> Result<()> {
        let (level, name) = match family {
            libc::AF_INET => (libc::IPPROTO_IP, libc::IP_RECVERR),
            _ => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        let (on, len) = (1i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the address and length are those of `on`.
        unsafe { option::setsockopt(self.posix, self.fd, level, name, (&raw const on).cast(), len) }
    }

    pub(super) fn send(&self, bytes: &[u8], deadline: Deadline) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let buffer = [Buffer { at: rest.as_ptr().cast_mut(), len: rest.len() }];
            let flags = libc::MSG_NOSIGNAL;
            // SAFETY: the buffer describes a valid slice, which is only read.
            let sent = unsafe {
                transfer::send(self.posix, self.fd, &buffer, flags, None, &SendControl::default())
            };
            match sent {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(Errno(libc::EAGAIN | libc::EINTR | libc::ERESTART)) => {
                    self.wait(libc::POLLOUT, deadline)?;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    pub(super) fn recv(&self, bytes: &mut [u8], deadline: Deadline) -> Result<usize> {
        loop {
            let buffer = [Buffer { at: bytes.as_mut_ptr(), len: bytes.len() }];
            // SAFETY: the buffer describes a valid mutable slice.
            match unsafe { transfer::recv(self.posix, self.fd, &buffer, 0) } {
                Ok(arrival) => return Ok(arrival.len),
                Err(Errno(libc::EAGAIN | libc::EINTR | libc::ERESTART)) => {
                    self.wait(libc::POLLIN, deadline)?;
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    pub(super) fn recv_all(&self, mut bytes: &mut [u8], deadline: Deadline) -> Result<()> {
        while !bytes.is_empty() {
            match self.recv(bytes, deadline)? {
                0 => return Err(Errno(libc::ECONNRESET)),
                n => bytes = &mut bytes[n..],
            }
        }
        Ok(())
    }

    /// Returns the local address of this socket, from which the stack reaches the server.
    pub(super) fn local(&self) -> Option<IpAddr> {
        let mut bytes = [0; size_of::<libc::sockaddr_in6>()];
        let mut len = bytes.len() as libc::socklen_t;
        // SAFETY: the address and length are those of `bytes`.
        unsafe {
            socket::getsockname(self.posix, self.fd, bytes.as_mut_ptr().cast(), &raw mut len)
                .ok()?;
        }
        match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => bytes[4..].first_chunk::<4>().map(|ip| IpAddr::from(*ip)),
            _ => bytes[8..].first_chunk::<16>().map(|ip| IpAddr::from(*ip)),
        }
    }

    /// Waits for one of `events` or until a signal handler has run. Fails with ETIMEDOUT at the
    /// deadline.
    fn wait(&self, events: i16, deadline: Deadline) -> Result<()> {
        let mut fds = [libc::pollfd { fd: self.fd, events, revents: 0 }];
        // SAFETY: the signal mask is null.
        match unsafe { poll::poll(self.posix, &mut fds, Some(deadline), std::ptr::null()) } {
            Ok(0) => Err(Errno(libc::ETIMEDOUT)),
            Ok(_) | Err(Errno(libc::EINTR | libc::ERESTART)) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for ServerSocket {
    fn drop(&mut self) {
        // Ignore an error of close, because this socket is no longer used.
        let _ = descriptor::close(self.posix, self.fd);
    }
}

/// Encodes an address as a sockaddr_in or sockaddr_in6.
fn sockaddr(server: SocketAddr) -> Vec<u8> {
    let port = server.port().to_be_bytes();
    let start = |family: i32| [(family as u16).to_ne_bytes(), port].concat();
    match server.ip() {
        IpAddr::V4(ip) => [&start(libc::AF_INET)[..], &ip.octets(), &[0; 8]].concat(),
        // sin6_flowinfo and sin6_scope_id are 0.
        IpAddr::V6(ip) => [&start(libc::AF_INET6)[..], &[0; 4], &ip.octets(), &[0; 4]].concat(),
    }
}

/// Returns a random number from the kernel, which an attacker cannot guess.
pub(crate) fn random() -> u16 {
    let mut bytes = [0; 2];
    let args = [bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0, 0];
    // SAFETY: the address and length are those of `bytes`.
    while unsafe { syscall(libc::SYS_getrandom as usize, args) } == Err(libc::EINTR) {}
    u16::from_ne_bytes(bytes)
}
