//! The packet socket beside an XDP socket.
//!
//! - With an Ethernet address of the stack's own, promiscuous mode lasts as long as the socket. The
//!   socket has copies of frames to groups.
//! - With addresses of the kernel, it has copies of frames that both need. An XDP program gives a
//!   frame to one of the two.
//! - An XDP socket neither answers questions about its interface nor tells that it is removed: this
//!   one does both.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use towpath_pool::{Batch, Pool};
use towpath_shm::Fd;

use crate::left_out;

/// Frames that are taken in one call: those to groups, and errors of ICMP, are few.
const BATCH: usize = 16;

/// The packet socket, and a descriptor that is ready when either socket is.
#[derive(Debug)]
pub(crate) struct Beside {
    socket: Fd,
    ready: Fd,
    /// Senders on this machine leave checksums out.
    from_here: bool,
    /// The XDP socket is watched for room, too.
    awaits_room: bool,
}

/// Result of a call that takes frames.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Packets that were put out.
    pub count: usize,
    /// Frames that no buffer holds.
    pub too_long: u64,
    /// The kernel told that the interface goes down.
    pub failed: bool,
}

impl Beside {
    /// A packet socket, to be watched together with an XDP socket.
    pub fn new(socket: Fd, xdp: BorrowedFd<'_>, from_here: bool) -> io::Result<Self> {
        let ready: Fd = epoll::create(epoll::CreateFlags::CLOEXEC)?.into();
        for (n, fd) in [socket.as_fd(), xdp].into_iter().enumerate() {
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&*ready, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { socket, ready, from_here, awaits_room: false })
    }

    /// A descriptor that is readable when either socket is, or has the room that is awaited.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// The packet socket, for questions.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Watches the XDP socket for room, or no longer.
    pub fn await_room(&mut self, xdp: BorrowedFd<'_>, awaits: bool) {
        if std::mem::replace(&mut self.awaits_room, awaits) == awaits {
            return;
        }
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, awaits);
        // Without it a timer of the port tries again.
        let _ = epoll::modify(&*self.ready, xdp, epoll::EventData::new_u64(1), flags);
    }

    /// Takes copies that wait, as far as `max` allows.
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
