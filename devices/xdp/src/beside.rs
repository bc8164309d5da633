//! The packet socket that complements an XDP socket.
//!
//! - For a stack with its own Ethernet address, it enables promiscuous mode while it is open, and
//!   receives copies of multicast and broadcast frames.
//! - For a stack with the kernel's addresses, it receives copies of frames that both need, because
//!   an XDP program delivers each frame only once.
//! - The packet socket answers queries about the interface and reports its removal, which an XDP
//!   socket cannot.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use towpath_pool::{Batch, Pool};
use towpath_shm::Fd;

use crate::left_out;

/// Maximum number of frames received per call; multicast frames and ICMP errors are rare.
const BATCH: usize = 16;

/// Packet socket, and an epoll descriptor for both sockets.
#[derive(Debug)]
pub(crate) struct Beside {
    socket: Fd,
    ready: Fd,
    /// Whether senders on this machine may have left checksums incomplete.
    from_here: bool,
    /// Whether the XDP socket is polled for writability, too.
    awaits_room: bool,
}

/// Result of receiving from the packet socket.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Number of packets added to `out`.
    pub count: usize,
    /// Number of frames that exceed the buffer size.
    pub too_long: u64,
    /// Whether the kernel reported an error, for example because the interface went down.
    pub failed: bool,
}

impl Beside {
    /// Creates the packet socket, polled together with an XDP socket.
    pub fn new(socket: Fd, xdp: BorrowedFd<'_>, from_here: bool) -> io::Result<Self> {
        let ready: Fd = epoll::create(epoll::CreateFlags::CLOEXEC)?.into();
        for (n, fd) in [socket.as_fd(), xdp].into_iter().enumerate() {
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&*ready, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { socket, ready, from_here, awaits_room: false })
    }

    /// Returns the epoll descriptor, which is readable if a socket is readable or writability was
    /// awaited.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Returns the packet socket, for queries about the interface.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Starts or stops polling the XDP socket for writability.
    pub fn await_room(&mut self, xdp: BorrowedFd<'_>, awaits: bool) {
        if std::mem::replace(&mut self.awaits_room, awaits) == awaits {
            return;
        }
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, awaits);
        // Ignore errors: the port also retries by a timer.
        let _ = epoll::modify(&*self.ready, xdp, epoll::EventData::new_u64(1), flags);
    }

    /// Receives pending copies, at most `max`.
    pub fn receive(&self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> Received {
        let mut received = Received::default();
        for _ in 0..max.min(BATCH) {
            let mut packet = pool.take(Pool::SMALL);
            let room = packet.spare_mut().len();
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match rustix::net::recv(&*self.socket, packet.spare_mut(), flags) {
                Ok((_, len)) if len <= room => packet.received(len),
                Ok(_) => {
                    received.too_long += 1;
                    pool.give(packet);
                    continue;
                }
                Err(errno) => {
                    received.failed = !matches!(errno, Errno::AGAIN | Errno::INTR);
                    pool.give(packet);
                    break;
                }
            }
            if self.from_here {
                packet.meta.checksum = left_out::checksum(packet.linear());
            }
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
            received.count += 1;
        }
        received
    }
}
