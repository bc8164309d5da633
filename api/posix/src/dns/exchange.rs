//! Sends questions to the nameservers, over sockets of the stack.
//!
//! Each attempt uses a new socket with a random port, and each question an identifier that cannot
//! be guessed (RFC 5452). The socket is connected, so the stack drops datagrams from other
//! addresses. Answers that do not match a question are ignored.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_client::syscall::syscall;
use towpath_client::{Buffer, Deadline};

use super::conf::Conf;
use super::message::{self, DnsAnswer, Question, rcode};
use crate::control::SendControl;
use crate::{Errno, Posix, Result, descriptor, option, poll, socket, transfer};

/// Maximum length of an answer over UDP. Some servers send more than the question allows.
pub(super) const DATAGRAM_MAX: usize = 65_535;
/// Maximum number of datagrams read in one attempt, including those that match no question.
pub(super) const STRANGERS_MAX: usize = 64;

/// Result of asking one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerOutcome {
    /// All questions are answered.
    Done,
    /// The next server must be asked.
    Next,
    /// The server does not support EDNS(0).
    NoEdns,
}

/// Sends all `questions` to the servers until they are answered. An element of the result is `None`
/// if no server had an answer.
pub fn ask(posix: &'static Posix, conf: &Conf, questions: &[Question]) -> Vec<Option<DnsAnswer>> {
    let mut asking = Asking { posix, conf, questions, answers: vec![None; questions.len()] };
    let first = if conf.rotate { random() as usize % conf.servers.len().max(1) } else { 0 };
    let mut edns = conf.edns;
    for _ in 0..conf.attempts {
        for turn in 0..conf.servers.len() {
            let place = (first + turn) % conf.servers.len();
            let (server, timeout) = (conf.servers[place], patience(conf, place));
            let mut result = asking.ask_one(server, timeout, edns);
            if result == Ok(ServerOutcome::NoEdns) {
                edns = false;
                result = asking.ask_one(server, timeout, edns);
            }
            if result == Ok(ServerOutcome::Done) {
                return asking.answers;
            }
        }
    }
    asking.answers
}

/// Returns the time to wait for the server at `place`, as glibc does: doubled for each server, and
/// from the second on divided by the number of servers.
fn patience(conf: &Conf, place: usize) -> Duration {
    let doubled = conf.timeout * (1 << place);
    let shared = if place == 0 { doubled } else { doubled / conf.servers.len().max(1) as u32 };
    shared.max(Duration::from_secs(1))
}

struct Asking<'a> {
    posix: &'static Posix,
    conf: &'a Conf,
    questions: &'a [Question],
    answers: Vec<Option<DnsAnswer>>,
}

impl Asking<'_> {
    /// Asks one server the questions that are not answered yet.
    fn ask_one(
        &mut self,
        server: SocketAddr,
        timeout: Duration,
        edns: bool,
    ) -> Result<ServerOutcome> {
        let ids: Vec<u16> = distinct(self.questions.len());
        let open: Vec<usize> =
            (0..self.answers.len()).filter(|&at| self.answers[at].is_none()).collect();
        if self.conf.use_vc {
            return self.ask_by_tcp(server, timeout, edns, &ids, &open);
        }
        if self.conf.single_request {
            for at in &open {
                let turn = self.ask_by_udp(server, timeout, edns, &ids, &[*at])?;
                if turn != ServerOutcome::Done {
                    return Ok(turn);
                }
            }
            return Ok(ServerOutcome::Done);
        }
        self.ask_by_udp(server, timeout, edns, &ids, &open)
    }

    fn ask_by_udp(
        &mut self,
        server: SocketAddr,
        timeout: Duration,
        edns: bool,
        ids: &[u16],
        open: &[usize],
    ) -> Result<ServerOutcome> {
        let deadline = Deadline::after(timeout);
        let line = ServerSocket::connect(self.posix, server, libc::SOCK_DGRAM, deadline)?;
        for &at in open {
            line.send(&self.questions[at].message(ids[at], edns), deadline)?;
        }
        let (mut left, mut cut_off, mut helped) = (open.to_vec(), Vec::new(), true);
        let mut bytes = vec![0; DATAGRAM_MAX];
        for _ in 0..STRANGERS_MAX {
            if left.is_empty() {
                break;
            }
            let len = line.recv(&mut bytes, deadline)?;
            let found = left.iter().enumerate().find_map(|(place, &at)| {
                Some((place, at, message::read(&bytes[..len], ids[at], &self.questions[at])?))
            });
            let Some((place, at, answer)) = found else { continue };
            left.swap_remove(place);
            if answer.truncated {
                cut_off.push(at);
            } else if edns && answer.code == rcode::FORMAT_ERROR {
                return Ok(ServerOutcome::NoEdns);
            } else {
                helped &= self.keep(at, answer);
            }
        }
        if !cut_off.is_empty() {
            let turn = self.ask_by_tcp(server, timeout, edns, ids, &cut_off)?;
            if turn != ServerOutcome::Done {
                return Ok(turn);
            }
        }
        Ok(if left.is_empty() && helped { ServerOutcome::Done } else { ServerOutcome::Next })
    }

    fn ask_by_tcp(
        &mut self,
        server: SocketAddr,
        timeout: Duration,
        edns: bool,
        ids: &[u16],
        open: &[usize],
    ) -> Result<ServerOutcome> {
        let deadline = Deadline::after(timeout);
        let line = ServerSocket::connect(self.posix, server, libc::SOCK_STREAM, deadline)?;
        let mut helped = true;
        for &at in open {
            // Send length and message in one segment, because some servers read only the first.
            let message = self.questions[at].message(ids[at], edns);
            let mut bytes = (message.len() as u16).to_be_bytes().to_vec();
            bytes.extend(message);
            line.send(&bytes, deadline)?;
            let mut len = [0; 2];
            line.recv_all(&mut len, deadline)?;
            let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
            line.recv_all(&mut bytes, deadline)?;
            match message::read(&bytes, ids[at], &self.questions[at]) {
                Some(answer) if edns && answer.code == rcode::FORMAT_ERROR => {
                    return Ok(ServerOutcome::NoEdns);
                }
                Some(answer) if !answer.truncated => helped &= self.keep(at, answer),
                _ => return Ok(ServerOutcome::Next),
            }
        }
        Ok(if helped { ServerOutcome::Done } else { ServerOutcome::Next })
    }

    /// Stores an answer. Returns false if another server may have a better one: after SERVFAIL,
    /// NOTIMP, REFUSED and lame answers.
    fn keep(&mut self, at: usize, answer: DnsAnswer) -> bool {
        let helps = matches!(answer.code, rcode::NO_ERROR | rcode::NAME_ERROR) && !answer.lame;
        if helps {
            self.answers[at] = Some(answer);
        }
        helps
    }
}

/// A socket that is connected to a nameserver. The socket is nonblocking; all calls wait in poll
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
        // SAFETY: an address and its length.
        match unsafe { socket::connect(posix, line.fd, addr.as_ptr().cast(), len) } {
            // How it ended is told by the first send.
            Err(Errno(libc::EINPROGRESS)) => line.wait(libc::POLLOUT, deadline)?,
            result => result?,
        }
        Ok(line)
    }

    /// Makes every ICMP error an error of the next call, as glibc does. Otherwise a network or host
    /// that is unreachable would cost the time of an answer.
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

    /// Returns the stack's address from which the server is reached.
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

    /// Waits for an event, a signal handler, or the deadline (ETIMEDOUT).
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
        // An error does not matter, because the socket is no longer used.
        let _ = descriptor::close(self.posix, self.fd);
    }
}

/// Encodes an address as a sockaddr_in or sockaddr_in6.
fn sockaddr(server: SocketAddr) -> Vec<u8> {
    let port = server.port().to_be_bytes();
    let start = |family: i32| [(family as u16).to_ne_bytes(), port].concat();
    match server.ip() {
        IpAddr::V4(ip) => [&start(libc::AF_INET)[..], &ip.octets(), &[0; 8]].concat(),
        // Flow label and scope are 0.
        IpAddr::V6(ip) => [&start(libc::AF_INET6)[..], &[0; 4], &ip.octets(), &[0; 4]].concat(),
    }
}

/// Returns `count` different random identifiers for questions on one socket.
fn distinct(count: usize) -> Vec<u16> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let id = random();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// Returns a random number from the kernel, which an attacker cannot guess.
pub(crate) fn random() -> u16 {
    let mut bytes = [0; 2];
    let args = [bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0, 0];
    // SAFETY: the address and length are those of `bytes`.
    while unsafe { syscall(libc::SYS_getrandom as usize, args) } == Err(libc::EINTR) {}
    u16::from_ne_bytes(bytes)
}
