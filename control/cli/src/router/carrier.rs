//! Links of the ports: the kernel tells when an interface loses its carrier, or has it again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::args::PortWords;
use super::layers;
use crate::port::carriers;

/// RTMGRP_LINK of rtnetlink(7): changes of interfaces.
const LINK_GROUP: u32 = 1;

/// The carriers of a router's ports.
#[derive(Debug)]
pub struct CarrierWatch {
    socket: OwnedFd,
    /// Interfaces of the kernel below each port.
    below: Vec<Vec<String>>,
    /// Ports whose loss of the carrier was told.
    lost: Vec<bool>,
}

impl CarrierWatch {
    /// A watch for the ports that have addresses, which are those of the router.
    ///
    /// # Errors
    /// The kernel gives no netlink socket.
    pub fn open(ports: &[PortWords]) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // The protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, LINK_GROUP))?;
        let own = ports.iter().filter(|port| !port.addresses.is_empty());
        let below: Vec<_> = own.map(|port| layers::kernel_interfaces(ports, port)).collect();
        let lost = vec![false; below.len()];
        Ok(Self { socket, below, lost })
    }

    /// Readable when an interface has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Ports that lost their carrier, or have it again, since the last call.
    pub fn changes(&mut self) -> Vec<(usize, bool)> {
        let mut message = [0; 4096];
        // The messages say that something changed, and the flags of the interfaces say what: so
        // that a lost message (ENOBUFS) costs nothing.
        let mut take = || recv(&self.socket, &mut message[..], RecvFlags::TRUNC);
        while let Ok(_) | Err(Errno::NOBUFS | Errno::INTR) = take() {}
        let now = carriers(&self.below);
        let lost = self.lost.iter_mut().zip(now).enumerate();
        let changed = lost.filter_map(|(port, (lost, carrier))| {
            let is_lost = carrier == Some(false);
            (std::mem::replace(lost, is_lost) != is_lost).then_some((port, !is_lost))
        });
        changed.collect()
    }
}
