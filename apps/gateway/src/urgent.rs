//! Reads TCP streams of host sockets and detects the urgent byte.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use towpath_pool::Fragments;

use crate::events::Readiness;
use crate::sys;

/// Reads a TCP stream from the host so that an urgent byte is always returned alone.
///
/// The kernel ends a read before an urgent byte, but a read that begins with the urgent byte may
/// return further bytes. So we must know whether the next read begins with it. Urgent data can
/// arrive after the last epoll events, so events alone do not show this. The next byte is ordinary
/// if it had arrived before an epoll call that did not report EPOLLPRI:
///
/// - at the first read after an event, which has reported bytes;
/// - if the previous read left bytes, and all events since then have been taken.
///
/// Otherwise SIOCATMARK tells, by a system call.
#[derive(Debug, Default)]
pub(crate) struct UrgentReads {
    /// Whether the last event has reported bytes, and the next read is the first one after it.
    is_ordinary: bool,
    /// Whether an urgent byte was reported, and not read yet.
    is_announced: bool,
    /// Number of [`EventRounds`] at the last read, if that read has left bytes in the socket.
    left_at: Option<EventRounds>,
    /// Whether the socket reports left bytes. Enabled by the first read without room for all
    /// bytes, so that only bulk transfers need the system call.
    has_inq: bool,
}

/// Number of times that all pending epoll events were taken.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventRounds(u64);

impl EventRounds {
    /// Counts a call of epoll that has returned all pending events.
    pub(crate) fn advance(&mut self) {
        self.0 += 1;
    }
}

impl UrgentReads {
    /// Handles epoll events of the socket. Must be called before the next read.
    pub(crate) fn on_ready(&mut self, ready: &Readiness) {
        self.is_ordinary = !ready.urgent && (ready.readable || self.is_ordinary);
        self.is_announced = ready.urgent;
    }

    /// Returns whether it is known that the next read does not begin with an urgent byte.
    fn is_next_ordinary(&self, rounds: EventRounds) -> bool {
        let has_left = self.left_at.is_some_and(|at| at < rounds);
        self.is_ordinary || has_left && !self.is_announced
    }

    /// Receives bytes into `spare`. Returns their number, and whether they are urgent. An urgent
    /// byte is returned alone. `rounds` counts all event rounds so far.
    pub(crate) fn recv(
        &mut self,
        host: BorrowedFd<'_>,
        spare: &Fragments,
        rounds: EventRounds,
    ) -> Result<(usize, bool), Errno> {
        let is_known = self.is_next_ordinary(rounds);
        (self.is_ordinary, self.left_at) = (false, None);
        if !is_known && sys::is_at_mark(host) {
            let (len, _) = sys::recv_stream(host, &spare.slice(0, 1))?;
            self.is_announced &= len == 0;
            return Ok((len, len > 0));
        }
        let (len, has_left) = sys::recv_stream(host, spare)?;
        self.left_at = has_left.then_some(rounds);
        if len == spare.len() as usize && !self.has_inq {
            self.has_inq = sys::enable_inq(host);
        }
        Ok((len, false))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::net::{SendFlags, send, sockopt};

    use super::*;
    use crate::fifo::{FifoPool, ToProgram};

    const READABLE: Readiness =
        Readiness { readable: true, writable: false, drain: false, urgent: false, failed: false };

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let host = listener.accept().unwrap().0;
        sockopt::set_socket_oobinline(&host, true).unwrap();
        (host, peer)
    }

    /// Reads once. Returns the number of bytes, and whether they are urgent.
    fn read(reads: &mut UrgentReads, host: &TcpStream) -> (usize, bool) {
        read_at_most(reads, host, u32::MAX, EventRounds::default())
    }

    fn read_at_most(
        reads: &mut UrgentReads,
        host: &TcpStream,
        len: u32,
        rounds: EventRounds,
    ) -> (usize, bool) {
        let spare = ToProgram::new(&FifoPool::default()).spare();
        reads.recv(host.as_fd(), &spare.slice(0, len.min(spare.len())), rounds).unwrap()
    }

    #[test]
    fn an_urgent_byte_that_arrives_after_the_events_is_read_alone() {
        let (host, peer) = connected();
        let mut reads = UrgentReads::default();
        for _ in 0..2 {
            send(&peer, b"226", SendFlags::empty()).unwrap();
            reads.on_ready(&READABLE);
            assert_eq!(read(&mut reads, &host), (3, false));
            // Read without waiting for a further event, as a caller does that reads until EAGAIN.
            send(&peer, b"?", SendFlags::OOB).unwrap();
            send(&peer, b"\r\n", SendFlags::empty()).unwrap();
            assert_eq!(read(&mut reads, &host), (1, true));
            assert_eq!(read(&mut reads, &host), (2, false));
        }
    }

    #[test]
    fn bytes_before_an_urgent_byte_are_read_first() {
        let (host, peer) = connected();
        let mut reads = UrgentReads::default();
        send(&peer, b"226?", SendFlags::OOB).unwrap();
        reads.on_ready(&READABLE);
        reads.on_ready(&Readiness { urgent: true, ..READABLE });
        assert_eq!(read(&mut reads, &host), (3, false));
        assert_eq!(read(&mut reads, &host), (1, true));
    }

    /// Receives six bytes and reads them, then receives three and reads two of these.
    fn read_part(peer: &TcpStream, host: &TcpStream) -> UrgentReads {
        let mut reads = UrgentReads::default();
        for _ in 0..2 {
            send(peer, b"226", SendFlags::empty()).unwrap();
            reads.on_ready(&READABLE);
            assert_eq!(read_at_most(&mut reads, host, 2, EventRounds(1)), (2, false));
            assert_eq!(read(&mut reads, host), (1, false));
        }
        assert!(reads.has_inq, "the first read was full");
        send(peer, b"226", SendFlags::empty()).unwrap();
        reads.on_ready(&READABLE);
        assert_eq!(read_at_most(&mut reads, host, 2, EventRounds(1)), (2, false));
        reads
    }

    #[test]
    fn left_bytes_are_ordinary_after_a_round_of_events() {
        let (host, peer) = connected();
        let mut reads = read_part(&peer, &host);
        assert!(!reads.is_next_ordinary(EventRounds(1)), "an urgent byte would be in an event");
        assert!(reads.is_next_ordinary(EventRounds(2)));
        // The urgent byte arrives after the left byte, so the read ends before it.
        send(&peer, b"?", SendFlags::OOB).unwrap();
        assert_eq!(read_at_most(&mut reads, &host, 9, EventRounds(2)), (1, false));
        assert_eq!(read_at_most(&mut reads, &host, 9, EventRounds(2)), (1, true));
        assert!(!reads.is_next_ordinary(EventRounds(3)), "no byte is left");
    }

    #[test]
    fn a_left_urgent_byte_is_read_alone() {
        for is_reported in [false, true] {
            let (host, peer) = connected();
            let mut reads = UrgentReads { has_inq: true, ..UrgentReads::default() };
            assert!(sys::enable_inq(host.as_fd()));
            send(&peer, b"22?", SendFlags::OOB).unwrap();
            send(&peer, b"\r\n", SendFlags::empty()).unwrap();
            reads.on_ready(&READABLE);
            assert_eq!(read_at_most(&mut reads, &host, 2, EventRounds(1)), (2, false));
            let mut rounds = EventRounds(1);
            if is_reported {
                rounds.advance();
                reads.on_ready(&Readiness { urgent: true, ..READABLE });
            }
            assert_eq!(read_at_most(&mut reads, &host, 9, rounds), (1, true));
            assert_eq!(read_at_most(&mut reads, &host, 9, rounds), (2, false));
        }
    }
}
