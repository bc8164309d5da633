//! Socket options that choose the route by which the gateway's own sockets leave the host.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use towpath_shm::Fd;

use crate::sys;

/// Socket options that prevent routing from sending the gateway's own packets back into the
/// gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// Value of SO_MARK for every socket, for policy rules of the host (`ip rule add fwmark`).
    pub mark: Option<u32>,
    /// Name of the interface to which sockets are bound (SO_BINDTODEVICE), unless their peer is a
    /// loopback address.
    pub interface: Option<String>,
}

impl Egress {
    /// Checks whether the options can be set, using a temporary socket.
    ///
    /// # Errors
    /// Returns EPERM if setting the mark is not permitted, or ENODEV if the interface does not
    /// exist.
    pub fn check(&self) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        let outside = IpAddr::from([192, 0, 2, 1]);
        Ok(self.apply(&Fd::from(socket), outside)?)
    }

    /// Applies the options to a socket before it is connected to `to`.
    pub(crate) fn apply(&self, host: &Fd, to: IpAddr) -> Result<(), Errno> {
        if let Some(mark) = self.mark {
            sys::set_mark(host.as_fd(), mark)?;
        }
        // Bind only sockets to other hosts, because loopback addresses are reachable through the
        // loopback interface only.
        if let Some(interface) = self.interface.as_deref().filter(|_| !to.is_loopback()) {
            sys::bind_to_interface(host.as_fd(), interface)?;
        }
        Ok(())
    }
}
