//! The interface below a socket, as the kernel describes it.

use std::io;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use crate::open::OpenError;
use crate::sys;

/// An Ethernet interface of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name, as it was when the interface was opened.
    pub name: String,
    /// Index of the kernel, which stays when the name changes.
    pub index: u32,
    /// Longest IP packet in bytes.
    pub mtu: u32,
}

impl Interface {
    /// Finds an interface, and checks that a stack can use it.
    pub(crate) fn find(socket: BorrowedFd<'_>, name: &str) -> Result<Self, OpenError> {
        let unknown = || OpenError::NoInterface { name: name.into() };
        if name.is_empty() || name.len() > sys::NAME_MAX {
            return Err(unknown());
        }
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENODEV) => unknown(),
            _ => OpenError::Io { name: name.into(), step: "ask about the interface", source },
        };
        let index = sys::index(socket, name).map_err(failed)?;
        if sys::hardware_type(socket, name).map_err(failed)? != libc::ARPHRD_ETHER {
            return Err(OpenError::NotEthernet { name: name.into() });
        }
        if !sys::is_up(socket, name).map_err(failed)? {
            return Err(OpenError::Down { name: name.into() });
        }
        let mtu = sys::mtu(socket, name).map_err(failed)?;
        Ok(Self { name: name.into(), index, mtu })
    }
}
