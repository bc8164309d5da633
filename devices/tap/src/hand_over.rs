//! Transfers a TAP or TUN device from the privileged process that opens it to the process that uses
//! it.

use std::os::fd::AsFd;

use towpath_shm::Fd;

use crate::kind::Kind;
use crate::open::{OpenError, Tap};
use crate::sys;

/// A configured TAP or TUN device in parts, which can be passed to another process.
#[derive(Debug)]
pub struct Parts {
    /// File descriptor of the device.
    pub fd: Fd,
    /// Name of the network interface.
    pub name: String,
    /// Whether the kernel can segment UDP datagrams of this device (since Linux 6.2).
    pub udp_segmentation: bool,
}

impl Tap {
    /// Converts a TAP device to parts. The device exists as long as any process has the descriptor
    /// open.
    pub fn into_parts(self) -> Parts {
        let (name, udp_segmentation) = (self.name().to_owned(), self.udp_segmentation);
        Parts { fd: self.fd, name, udp_segmentation }
    }

    /// Creates the port from the descriptor of a device that another program has created. The
    /// settings of the kernel's interface are not changed. If the device was created without
    /// IFF_VNET_HDR, frames have no offloads and are limited to the MTU.
    ///
    /// # Errors
    /// Returns [`OpenError::Descriptor`] if the descriptor is not a device of this kind, or if the
    /// kernel reports that the device was created without IFF_NO_PI. Returns [`OpenError::Io`] if
    /// the kernel rejects the offloads.
    ///
    /// For a TUN device that was created without IFF_NO_PI, Linux 6.18 reports the flag
    /// nevertheless. Packets of such a device start with an additional header, so they are dropped.
    pub fn from_descriptor(fd: Fd, kind: Kind) -> Result<Self, OpenError> {
        let refused = |why| OpenError::Descriptor { kind, why };
        let (name, flags) = sys::attached(fd.as_fd())
            .map_err(|_| refused("no device is attached to it (TUNSETIFF attaches one)"))?;
        if flags & kind.flag() == 0 {
            return Err(refused("its device is of the other kind"));
        }
        if flags & libc::IFF_NO_PI == 0 {
            return Err(refused("its device was created without IFF_NO_PI"));
        }
        rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| OpenError::Io {
            kind,
            name: name.clone(),
            step: "make it non-blocking",
            source: errno.into(),
        })?;
        if flags & libc::IFF_VNET_HDR == 0 {
            let mut tap = Self::over(fd, kind, name, false);
            tap.has_header = false;
            return Ok(tap);
        }
        Self::set_up(fd, kind, name)
    }

    /// Creates the port from the parts of a TAP device, which may come from another process.
    pub fn from_parts(parts: Parts) -> Self {
        Self::over(parts.fd, Kind::Tap, parts.name, parts.udp_segmentation)
    }
}
