//! The packet socket that is used together with an XDP socket.
//!
//! - If the stack has its own Ethernet address, the packet socket enables promiscuous mode while it
//!   is open. The socket receives copies of multicast and broadcast frames.
//! - If the stack shares the kernel's addresses, the packet socket receives copies of frames that
//!   both need. An XDP program can deliver a frame only once.
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

/// Maximum number of frames received per call. Multicast frames and ICMP errors are rare.
const BATCH: usize = 16;

/// Packet socket next to an XDP socket, and an epoll descriptor for both.
#[derive(Debug)]
pub(crate) struct Beside {
    socket: Fd,
    ready: Fd,
    /// Whether frames come from a sender on this machine. Their checksums may be incomplete then.
    from_here: bool,
    /// Whether epoll also waits until the XDP socket is writable.
    awaits_room: bool,
}

/// Result of receiving frames from the packet socket.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Number of packets added to `out`.
    pub count: usize,
    /// Number of frames dropped because they exceed the buffer size.
    pub too_long: u64,
    /// Whether the kernel reported an error, for example because the interface went down.
    pub failed: bool,
}

impl Beside {
    /// Creates the state of the packet socket `socket`, with an epoll descriptor for it and the XDP
    /// socket.
    pub fn new(socket: Fd, xdp: BorrowedFd<'_>, from_here: bool) -> io::Result<Self> {
        let ready: Fd = epoll::create(epoll::CreateFlags::CLOEXEC)?.into();
        for (n, fd) in [socket.as_fd(), xdp].into_iter().enumerate() {
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&*ready, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { socket, ready, from_here, awaits_room: false })
    }

    /// Returns the epoll descriptor. The descriptor is readable if one of the sockets is, or if
    /// room was awaited and the XDP socket is writable.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Returns the packet socket, for queries about the interface.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Starts or stops waiting with epoll until the XDP socket is writable.
    pub fn await_room(&mut self, xdp: BorrowedFd<'_>, awaits: bool) {
        if std::mem::replace(&mut self.awaits_room, awaits) == awaits {
            return;
        }
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, awaits);
        // Ignore errors, because the port sends queued frames again after a timeout, too.
        let _ = epoll::modify(&*self.ready, xdp, epoll::EventData::new_u64(1), flags);
    }

    /// Receives up to `max` frames from the packet socket, without waiting.
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
