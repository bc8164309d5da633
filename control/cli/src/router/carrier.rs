//! Watches the carrier of the ports' kernel interfaces, using the kernel's reports of link changes.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use towpath_interface::LinkWatch;
use towpath_stack::IfaceId;

use crate::port::carriers;

/// Detects carrier changes of a router's ports.
#[derive(Debug)]
pub struct CarrierWatch {
    watch: LinkWatch,
    /// Interfaces of the stack that were last reported to have no carrier.
    lost: BTreeSet<IfaceId>,
}

impl CarrierWatch {
    /// Opens a netlink socket for link changes.
    ///
    /// # Errors
    /// Fails if no netlink socket can be created.
    pub fn open() -> io::Result<Self> {
        Ok(Self { watch: LinkWatch::open()?, lost: BTreeSet::new() })
    }

    /// Returns a descriptor that is readable when the kernel has reported a change of an interface.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Returns the interfaces of the stack whose carrier state has changed since the last call. The
    /// value is false if the carrier is lost, and true if it is back. `ports` are the interfaces,
    /// each with the names of the kernel interfaces below it.
    pub fn changes(&mut self, ports: &[(IfaceId, Vec<String>)]) -> Vec<(IfaceId, bool)> {
        // Discard the reports. A report only shows that some interface has changed; its state is
        // read from the interface flags. Therefore lost reports (ENOBUFS) do no harm.
        let is_lost =
            |error: &io::Error| error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error());
        while self.watch.read(|_| {}).is_err_and(|error| is_lost(&error)) {}
        let below: Vec<_> = ports.iter().map(|(_, below)| below.clone()).collect();
        let before = std::mem::take(&mut self.lost);
        let mut changed = Vec::new();
        for ((iface, _), carrier) in ports.iter().zip(carriers(&below)) {
            let is_lost = carrier == Some(false);
            if is_lost {
                self.lost.insert(*iface);
            }
            if is_lost != before.contains(iface) {
                changed.push((*iface, !is_lost));
            }
        }
        changed
    }
}
