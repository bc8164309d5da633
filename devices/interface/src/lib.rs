//! Ethernet interfaces of this machine, which the kernel uses as well: questions about them, and
//! promiscuous mode for as long as a socket is open.
//!
//! - [`Interface::find`] finds one, and checks that a stack can use it; [`InterfaceError`] says
//!   what to do when it cannot.
//! - [`Rights`] says how a process gets the capabilities that it lacks.
//! - [`Presence`] notes its removal.
//! - [`LinkWatch`] reports changes of interfaces, with their MTU.
//! - [`receive_all`] lets frames to any Ethernet address in.
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
    /// Name, as it was when the interface was opened.
    pub name: String,
    /// Index of the kernel, which stays when the name changes.
    pub index: u32,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Name of the driver, as "veth"; empty if it does not say.
    pub driver: String,
    /// Queues of received frames.
    pub queues: u32,
}

/// Why a stack cannot use an interface, and what helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The network namespace has no such interface.
    #[error("there is no interface {name:?}: `ip link` lists those of this machine")]
    NoInterface {
        /// The interface that was asked for.
        name: String,
    },
    /// The interface has another link header than Ethernet's.
    #[error("{name} is not an Ethernet interface: choose a network card, a veth or a bridge")]
    NotEthernet {
        /// The interface that was asked for.
        name: String,
    },
    /// The interface is down.
    #[error("{name} is down: set it up with `sudo ip link set {name} up`")]
    Down {
        /// The interface that was asked for.
        name: String,
    },
    /// The system refused a question.
    #[error("cannot ask about the interface {name}: {source}")]
    Io {
        /// The interface that was asked for.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl Interface {
    /// Finds an interface by any socket, and checks that a stack can use it.
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
        // Few drivers answer neither question; theirs is then an interface with one queue.
        let driver = sys::driver(socket, name).unwrap_or_default();
        let queues = sys::queues(socket, name).unwrap_or(1).max(1);
        Ok(Self { name: name.into(), index, mtu, mac, driver, queues })
    }
}
