//! The packet socket beside an XDP socket.
//!
//! - With an Ethernet address of the stack's own, promiscuous mode lasts as long as the socket.
//! - With addresses of the kernel, it has copies of frames that both need. An XDP program gives a
//!   frame to one of the two.
//! - An XDP socket answers no questions about interfaces: this one does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use rustix::net::RecvFlags;
use towpath_pool::{Batch, Pool};
use towpath_shm::Fd;

/// Frames that are taken in one call: answers of ARP and NDP, and errors of ICMP, are few.
const BATCH: usize = 16;

/// The packet socket, and with copies a descriptor that is ready when either socket is.
#[derive(Debug)]
pub(crate) struct Beside {
    socket: Fd,
    ready: Option<Fd>,
}

impl Beside {
    /// A socket without copies.
    pub fn new(socket: Fd) -> Self {
        Self { socket, ready: None }
    }

    /// A socket with copies, and watches it together with an XDP socket.
    pub fn with_copies(socket: Fd, xdp: BorrowedFd<'_>) -> io::Result<Self> {
        let ready: Fd = epoll::create(epoll::CreateFlags::CLOEXEC)?.into();
        for (n, fd) in [socket.as_fd(), xdp].into_iter().enumerate() {
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&*ready, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { socket, ready: Some(ready) })
    }

    /// With copies, a descriptor that is readable when either socket is.
    pub fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.ready.as_ref().map(AsFd::as_fd)
    }

    /// Whether the machine has the interface.
    pub fn has_interface(&self, index: u32) -> bool {
        towpath_interface::exists(self.socket.as_fd(), index)
    }

    /// Takes copies that wait, as far as `max` allows. Returns how many were put out.
    pub fn receive(&self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut count = 0;
        while count < max.min(BATCH) && self.ready.is_some() {
            let mut packet = pool.take(Pool::SMALL);
            // A longer frame is cut: an error of ICMP says what the stack needs in its first bytes.
            match rustix::net::recv(&*self.socket, packet.spare_mut(), RecvFlags::DONTWAIT) {
                Ok((_, len)) => packet.received(len.min(Pool::SMALL)),
                Err(_) => {
                    pool.give(packet);
                    break;
                }
            }
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
            count += 1;
        }
        count
    }
}
