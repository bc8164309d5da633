//! Links of the ports: the kernel tells when an interface loses its carrier, or has it again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use towpath_interface::LinkWatch;

use super::args::PortArg;
use super::layers;
use crate::port::carriers;

/// The carriers of a router's ports.
#[derive(Debug)]
pub struct CarrierWatch {
    watch: LinkWatch,
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
    pub fn open(ports: &[PortArg]) -> io::Result<Self> {
        let watch = LinkWatch::open()?;
        let own = ports.iter().filter(|port| !port.addresses.is_empty());
        let below: Vec<_> = own.map(|port| layers::kernel_interfaces(ports, port)).collect();
        let lost = vec![false; below.len()];
        Ok(Self { watch, below, lost })
    }

    /// Readable when an interface has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Ports that lost their carrier, or have it again, since the last call.
    pub fn changes(&mut self) -> Vec<(usize, bool)> {
        // The reports say that something changed, and the flags of the interfaces say what. So a
        // lost report (ENOBUFS) costs nothing, and reading goes on behind it.
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
