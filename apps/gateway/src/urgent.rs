//! Reads TCP streams of host sockets and detects the urgent byte.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use towpath_pool::Fragments;

use crate::events::Readiness;
use crate::sys;

/// Reads a TCP stream from the host so that an urgent byte is always returned alone.
///
/// The kernel ends a read before an urgent byte, but a read that begins with the urgent byte may
/// return further bytes. So we must know whether the next byte is urgent. Urgent data can arrive
/// after the last epoll event, so events alone do not show this. But the first read after an event
/// without EPOLLPRI begins with the ordinary bytes that the event has reported.
#[derive(Debug, Default)]
pub(crate) struct UrgentReads {
    /// Whether the next byte is known not to be urgent.
    is_ordinary: bool,
}

impl UrgentReads {
    /// Handles epoll events of the socket. Must be called before the next read.
    pub(crate) fn on_ready(&mut self, ready: &Readiness) {
        self.is_ordinary = !ready.urgent && (ready.readable || self.is_ordinary);
    }

    /// Receives bytes into `spare`. Returns their number, and whether they are urgent. An urgent
    /// byte is returned alone.
    pub(crate) fn recv(
        &mut self,
        host: BorrowedFd<'_>,
        spare: &Fragments,
    ) -> Result<(usize, bool), Errno> {
        let is_urgent = !std::mem::take(&mut self.is_ordinary) && sys::is_at_mark(host);
        let len = match is_urgent {
            true => sys::recv_stream(host, &spare.slice(0, 1))?,
            false => sys::recv_stream(host, spare)?,
        };
        Ok((len, is_urgent && len > 0))
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
        let spare = ToProgram::new(&FifoPool::default()).spare();
        reads.recv(host.as_fd(), &spare).unwrap()
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
}
