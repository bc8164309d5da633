//! A device that one process opens, which may do that, and another one drives.

use std::os::fd::AsFd;

use towpath_shm::Fd;

use crate::kind::Kind;
use crate::open::{OpenError, Tap};
use crate::sys;

/// Parts that drive a device that is set up.
#[derive(Debug)]
pub struct Parts {
    /// Descriptor of the device.
    pub fd: Fd,
    /// Name of the interface.
    pub name: String,
    /// Whether the kernel segments UDP datagrams (since Linux 6.2).
    pub udp_segmentation: bool,
}

impl Tap {
    /// Takes a TAP device apart, which stays as long as the descriptor is open somewhere.
    pub fn into_parts(self) -> Parts {
        let (name, udp_segmentation) = (self.name().to_owned(), self.udp_segmentation);
        Parts { fd: self.fd, name, udp_segmentation }
    }

    /// Takes over a device of this kind that another program has made, by its descriptor. The
    /// kernel's end of the link stays as that program has set it up.
    ///
    /// # Errors
    /// [`OpenError::Descriptor`]: the descriptor is no such device, or the device was made without
    /// IFF_NO_PI and IFF_VNET_HDR. [`OpenError::Io`]: the kernel refuses offloads.
    pub fn from_descriptor(fd: Fd, kind: Kind) -> Result<Self, OpenError> {
        let refused = |why| OpenError::Descriptor { kind, why };
        let (name, flags) = sys::attached(fd.as_fd())
            .map_err(|_| refused("no device is attached to it (TUNSETIFF attaches one)"))?;
        if flags & kind.flag() == 0 {
            return Err(refused("its device is of the other kind"));
        }
        if flags & libc::IFF_NO_PI == 0 || flags & libc::IFF_VNET_HDR == 0 {
            return Err(refused("its device was made without IFF_NO_PI and IFF_VNET_HDR"));
        }
        rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| OpenError::Io {
            kind,
            name: name.clone(),
            step: "make it non-blocking",
            source: errno.into(),
        })?;
        Self::set_up(fd, kind, name)
    }

    /// The device, in another process as well.
    pub fn from_parts(parts: Parts) -> Self {
        Self::over(parts.fd, Kind::Tap, parts.name, parts.udp_segmentation)
    }
}
