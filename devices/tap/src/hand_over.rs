//! A device that one process opens, which may do that, and another one drives.

use towpath_shm::Fd;

use crate::kind::Kind;
use crate::open::Tap;

/// What it takes to drive a device that is set up.
#[derive(Debug)]
pub struct Parts {
    /// Of the device.
    pub fd: Fd,
    /// Its interface name.
    pub name: String,
    /// Whether the kernel takes UDP datagrams that are to be cut (since Linux 6.2).
    pub udp_segmentation: bool,
}

impl Tap {
    /// Takes a TAP device apart, which stays as long as the descriptor is open somewhere.
    pub fn into_parts(self) -> Parts {
        let (name, udp_segmentation) = (self.name().to_owned(), self.udp_segmentation);
        Parts { fd: self.fd, name, udp_segmentation }
    }

    /// The device, in another process as well.
    pub fn from_parts(parts: Parts) -> Self {
        Self::over(parts.fd, Kind::Tap, parts.name, parts.udp_segmentation)
    }
}
