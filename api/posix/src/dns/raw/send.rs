//! Sends a message to one nameserver after another, as res_send(3) does, over sockets of the stack.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_client::Deadline;
use towpath_dns::{DATAGRAM_MAX, MESSAGES_MAX};

use super::question::{self, HEADER};
use super::{StubSettings, code, flag};
use crate::dns::exchange::{ServerSocket, random};
use crate::{Errno, Posix, Result};

/// Maximum length in bytes of a message that is sent over UDP (PACKETSZ of arpa/nameser.h). Longer
/// messages are sent over TCP.
const QUESTION_MAX: usize = 512;
/// Number of TCP connections that are attempted to each server, because a server may reset the
/// first one.
const CONNECTIONS: usize = 2;

/// Result of sending a DNS message to the nameservers.
#[derive(Debug)]
pub struct SendOutcome {
    /// The answer. If there is none, the last message in which a server reported a failure.
    pub message: Vec<u8>,
    /// Length in bytes of the answer, which the C function returns. Over TCP it may exceed the size
    /// of the program's buffer.
    pub result: Result<usize>,
}

/// Classification of a datagram received from a nameserver.
enum ReplyVerdict {
    Answer,
    CutOff,
    Failure,
}

/// Sends `message` to the nameservers. `room` is the size in bytes of the program's answer buffer.
pub fn send(
    posix: &'static Posix,
    settings: &StubSettings,
    message: &[u8],
    room: usize,
) -> SendOutcome {
    let count = settings.servers.len();
    let mut sending = Sending { posix, settings, message, room, last: Vec::new() };
    if room < HEADER {
        return sending.ended(Err(Errno(libc::EINVAL)));
    }
    if count == 0 {
        return sending.ended(Err(Errno(libc::ESRCH)));
    }
    let first = if settings.has(flag::ROTATE) { usize::from(random()) % count } else { 0 };
    let mut by_tcp = settings.has(flag::USE_VC) || message.len() > QUESTION_MAX;
    let (mut was_heard, mut errno) = (false, Errno(libc::ETIMEDOUT));
    for _ in 0..settings.attempts {
        for turn in 0..count {
            let at = (first + turn) % count;
            let (server, timeout) = (settings.servers[at], settings.patience(at));
            if !by_tcp {
                match sending.by_udp(server, timeout) {
                    Ok(ReplyVerdict::Answer) => return sending.ended_by_udp(),
                    Ok(ReplyVerdict::CutOff) => by_tcp = true,
                    Ok(ReplyVerdict::Failure) => was_heard = true,
                    Err(errno) => was_heard |= errno == Errno(libc::ETIMEDOUT),
                }
            }
            if by_tcp {
                match sending.by_tcp(server, timeout) {
                    Ok(()) => return sending.ended_by_tcp(),
                    Err(failed) => errno = failed,
                }
            }
        }
        // Do not ask all servers again over TCP, because TCP itself retransmits.
        if by_tcp {
            break;
        }
    }
    if !by_tcp && !was_heard {
        errno = Errno(libc::ECONNREFUSED);
    }
    sending.ended(Err(errno))
}

struct Sending<'a> {
    posix: &'static Posix,
    settings: &'a StubSettings,
    message: &'a [u8],
    room: usize,
    last: Vec<u8>,
}

impl Sending<'_> {
    fn by_udp(&mut self, server: SocketAddr, timeout: Duration) -> Result<ReplyVerdict> {
        let deadline = Deadline::after(timeout);
        let line = ServerSocket::connect(self.posix, server, libc::SOCK_DGRAM, deadline)?;
        line.send(self.message, deadline)?;
        let mut bytes = vec![0; DATAGRAM_MAX];
        for _ in 0..MESSAGES_MAX {
            let len = line.recv(&mut bytes, deadline)?;
            let unread = question::is_unread(self.message, &bytes[..len]);
            if unread || question::is_answered(self.message, &bytes[..len]) {
                bytes.truncate(len);
                self.last = bytes;
                return Ok(if unread { ReplyVerdict::Failure } else { self.verdict() });
            }
        }
        Err(Errno(libc::ETIMEDOUT))
    }

    fn verdict(&self) -> ReplyVerdict {
        let header = &self.last[..HEADER];
        let (code, is_empty) = (header[3] & 15, |at: usize| header[at..at + 2] == [0, 0]);
        let may_be_known_elsewhere =
            matches!(code, code::SERVER_FAILURE | code::NOT_IMPLEMENTED | code::REFUSED);
        // A NOERROR answer without records, and without the AA and RA bits, only refers to other
        // servers.
        let is_referral = code == code::NO_ERROR
            && header[2] & 4 == 0
            && header[3] & 0x80 == 0
            && is_empty(6)
            && is_empty(10);
        let knows_no_edns = code == code::FORMAT_ERROR && self.settings.has(flag::USE_EDNS0);
        if knows_no_edns || (may_be_known_elsewhere || is_referral) && !self.settings.takes_failures
        {
            return ReplyVerdict::Failure;
        }
        let cut_off = header[2] & 2 != 0 && !self.settings.has(flag::IGNORE_TRUNCATION);
        if cut_off { ReplyVerdict::CutOff } else { ReplyVerdict::Answer }
    }

    fn by_tcp(&mut self, server: SocketAddr, timeout: Duration) -> Result<()> {
        let mut result = Err(Errno(libc::ECONNRESET));
        for _ in 0..CONNECTIONS {
            result = self.by_one_connection(server, timeout);
            if result != Err(Errno(libc::ECONNRESET)) {
                break;
            }
        }
        result
    }

    fn by_one_connection(&mut self, server: SocketAddr, timeout: Duration) -> Result<()> {
        let len = u16::try_from(self.message.len()).map_err(|_| Errno(libc::EMSGSIZE))?;
        let deadline = Deadline::after(timeout);
        let line = ServerSocket::connect(self.posix, server, libc::SOCK_STREAM, deadline)?;
        // Send the length and the message in one segment, because some servers read only the first
        // segment.
        line.send(&[&len.to_be_bytes(), self.message].concat(), deadline)?;
        for _ in 0..MESSAGES_MAX {
            let mut len = [0; 2];
            line.recv_all(&mut len, deadline)?;
            let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
            line.recv_all(&mut bytes, deadline)?;
            if bytes.len() < HEADER {
                return Err(Errno(libc::EMSGSIZE));
            }
            // Compare only the identifier, as glibc does. The answer cannot belong to a different
            // question, because the connection is used for only one.
            if bytes.get(..2) == self.message.get(..2) {
                self.last = bytes;
                return Ok(());
            }
        }
        Err(Errno(libc::ETIMEDOUT))
    }

    /// Returns the datagram received last as the answer, truncated to the program's buffer.
    fn ended_by_udp(self) -> SendOutcome {
        let len = self.last.len().min(self.room);
        self.ended(Ok(len))
    }

    /// Returns the answer received over TCP. If it exceeds the program's buffer, sets the TC bit
    /// and returns the full length.
    fn ended_by_tcp(mut self) -> SendOutcome {
        let len = self.last.len();
        if len > self.room {
            self.last[2] |= 2;
        }
        self.ended(Ok(len))
    }

    fn ended(mut self, result: Result<usize>) -> SendOutcome {
        // Clear the AD bit (authentic data) unless the user trusts the server (RFC 6840 §5.8,
        // `trust-ad` of resolv.conf(5)).
        if !self.settings.has(flag::TRUST_AD) && self.last.len() >= HEADER {
            self.last[3] &= !0x20;
        }
        SendOutcome { message: self.last, result }
    }
}
