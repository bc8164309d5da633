//! Queries the kernel's Ethernet interfaces, and sets promiscuous mode for as long as a socket is
//! open.
//!
//! - [`Interface::find`] finds an interface and checks that a network stack can use it.
//!   [`InterfaceError`] tells the user what to do.
//! - [`Rights`] describes how a process obtains missing capabilities.
//! - [`Presence`] detects the removal of an interface.
//! - [`LinkWatch`] reports MTU changes of interfaces.
//! - [`receive_all`] enables reception of frames to all Ethernet addresses.
#![warn(missing_docs)]

mod presence;
mod rights;
mod sys;
mod watch;

use std::io;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

pub use presence::Presence;
pub use rights::Rights;
pub use sys::receive_all;
pub use watch::{LinkReport, LinkWatch};

/// An Ethernet interface of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name of the interface when it was opened.
    pub name: String,
    /// Index of the interface, which stays the same if the interface is renamed.
    pub index: u32,
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// Ethernet address of the interface.
    pub mac: [u8; 6],
    /// Name of the interface's driver, such as "veth"; empty if unknown.
    pub driver: String,
    /// Number of receive queues of the interface.
    pub queues: u32,
}

/// Error returned when an interface cannot be used. The message tells the user what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// There is no interface with this name in the network namespace.
    #[error("there is no interface {name:?}: `ip link` lists those of this machine")]
    NoInterface {
        /// Name of the interface.
        name: String,
    },
    /// The interface is not an Ethernet interface.
    #[error("{name} is not an Ethernet interface: choose a network card, a veth or a bridge")]
    NotEthernet {
        /// Name of the interface.
        name: String,
    },
    /// The interface is down.
    #[error("{name} is down: set it up with `sudo ip link set {name} up`")]
    Down {
        /// Name of the interface.
        name: String,
    },
    /// A query about the interface failed.
    #[error("cannot ask about the interface {name}: {source}")]
    Io {
        /// Name of the interface.
        name: String,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

impl Interface {
    /// Finds an interface by its name, and checks that a network stack can use it. The query is an
    /// ioctl on `socket`, which can be any socket.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn find(socket: BorrowedFd<'_>, name: &str) -> Result<Self, InterfaceError> {
        let unknown = || InterfaceError::NoInterface { name: name.into() };
        if name.is_empty() || name.len() > sys::NAME_MAX {
            return Err(unknown());
        }
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENODEV) => unknown(),
            _ => InterfaceError::Io { name: name.into(), source },
        };
        let index = sys::index(socket, name).map_err(failed)?;
        let (kind, mac) = sys::hardware(socket, name).map_err(failed)?;
        if kind != libc::ARPHRD_ETHER {
            return Err(InterfaceError::NotEthernet { name: name.into() });
        }
        if !sys::is_up(socket, name).map_err(failed)? {
            return Err(InterfaceError::Down { name: name.into() });
        }
        let mtu = sys::mtu(socket, name).map_err(failed)?;
        // If the interface does not support ethtool, assume an unknown driver and one queue.
        let driver = sys::driver(socket, name).unwrap_or_default();
        let queues = sys::queues(socket, name).unwrap_or(1).max(1);
        Ok(Self { name: name.into(), index, mtu, mac, driver, queues })
    }
}
