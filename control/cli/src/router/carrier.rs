//! Watches the carriers of the ports: the kernel reports when an interface loses its carrier, or
//! has it again.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use towpath_interface::LinkWatch;
use towpath_stack::IfaceId;

use crate::port::carriers;

/// Watches the carriers of a router's ports.
#[derive(Debug)]
pub struct CarrierWatch {
    watch: LinkWatch,
    /// Interfaces whose loss of carrier was reported.
    lost: BTreeSet<IfaceId>,
}

impl CarrierWatch {
    /// Creates a watch.
    ///
    /// # Errors
    /// Fails if no netlink socket can be created.
    pub fn open() -> io::Result<Self> {
        Ok(Self { watch: LinkWatch::open()?, lost: BTreeSet::new() })
    }

    /// Returns a descriptor that is readable when an interface has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Returns the interfaces that have lost their carrier (false) or have it again (true) since
    /// the last call. `ports` are the interfaces, each with the kernel's interfaces below.
    pub fn changes(&mut self, ports: &[(IfaceId, Vec<String>)]) -> Vec<(IfaceId, bool)> {
        // A report only shows that something changed; the state is read from the interfaces' flags.
        // So lost reports (ENOBUFS) do no harm, and reading continues after them.
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
