//! The way on which the gateway's own sockets leave the host.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use towpath_shm::Fd;

use crate::sys;

/// Options that keep the gateway's own sockets out of a route that leads to the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// SO_MARK of every socket, for rules of the host (`ip rule add fwmark`).
    pub mark: Option<u32>,
    /// SO_BINDTODEVICE of every socket that does not stay on this host.
    pub interface: Option<String>,
}

impl Egress {
    /// Tries the options on a socket that sends nothing.
    ///
    /// # Errors
    /// EPERM without the right to mark, ENODEV where there is no such interface.
    pub fn check(&self) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        let outside = IpAddr::from([192, 0, 2, 1]);
        Ok(self.apply(&Fd::from(socket), outside)?)
    }

    /// Prepares a socket before it is connected to an address.
    pub(crate) fn apply(&self, host: &Fd, to: IpAddr) -> Result<(), Errno> {
        if let Some(mark) = self.mark {
            sys::set_mark(host.as_fd(), mark)?;
        }
        // The loopback interface alone reaches loopback addresses.
        if let Some(interface) = self.interface.as_deref().filter(|_| !to.is_loopback()) {
            sys::bind_to_interface(host.as_fd(), interface)?;
        }
        Ok(())
    }
}
