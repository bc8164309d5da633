//! Watches the carriers of the ports: the kernel reports when an interface loses its carrier, or
//! has it again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use towpath_interface::LinkWatch;

use super::args::PortArg;
use super::layers;
use crate::port::carriers;

/// Watches the carriers of a router's ports.
#[derive(Debug)]
pub struct CarrierWatch {
    watch: LinkWatch,
    /// Kernel interfaces of each port.
    below: Vec<Vec<String>>,
    /// Whether each port's loss of its carrier was reported.
    lost: Vec<bool>,
}

impl CarrierWatch {
    /// Creates a watch for the ports that have addresses, which are the router's interfaces.
    ///
    /// # Errors
    /// Fails if no netlink socket can be created.
    pub fn open(ports: &[PortArg]) -> io::Result<Self> {
        let watch = LinkWatch::open()?;
        let own = ports.iter().filter(|port| !port.addresses.is_empty());
        let below: Vec<_> = own.map(|port| layers::kernel_interfaces(ports, port)).collect();
        let lost = vec![false; below.len()];
        Ok(Self { watch, below, lost })
    }

    /// Returns a descriptor that is readable when an interface has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Returns the ports that have lost their carrier (false) or have it again (true) since the
    /// last call.
    pub fn changes(&mut self) -> Vec<(usize, bool)> {
        // A report only shows that something changed; the state is read from the interfaces' flags.
        // So lost reports (ENOBUFS) do no harm, and reading continues after them.
        let is_lost =
            |error: &io::Error| error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error());
        while self.watch.read(|_| {}).is_err_and(|error| is_lost(&error)) {}
        let now = carriers(&self.below);
        let lost = self.lost.iter_mut().zip(now).enumerate();
        let changed = lost.filter_map(|(port, (lost, carrier))| {
            let is_lost = carrier == Some(false);
            (std::mem::replace(lost, is_lost) != is_lost).then_some((port, !is_lost))
        });
        changed.collect()
    }
}
