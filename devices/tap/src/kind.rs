//! The two kinds of devices of the kernel's TUN/TAP driver.

use std::fmt;

use towpath_pool::LinkType;

/// Kind of a device of the TUN/TAP driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// TAP: an Ethernet link with neighbours.
    #[default]
    Tap,
    /// TUN: IP packets without a link header, exchanged only with the kernel.
    Tun,
}

impl Kind {
    /// Returns the type of the first header of the device's packets.
    pub fn link_type(self) -> LinkType {
        match self {
            Self::Tap => LinkType::Ethernet,
            Self::Tun => LinkType::Ip,
        }
    }

    /// Returns the mode of the device in the spelling of ip-tuntap(8). `multi_queue` is true for a
    /// device with several queues.
    pub(crate) fn mode(self, multi_queue: bool) -> &'static str {
        match (self, multi_queue) {
            (Self::Tap, false) => "tap",
            (Self::Tap, true) => "tap multi_queue",
            (Self::Tun, false) => "tun",
            (Self::Tun, true) => "tun multi_queue",
        }
    }

    pub(crate) fn flag(self) -> libc::c_int {
        match self {
            Self::Tap => libc::IFF_TAP,
            Self::Tun => libc::IFF_TUN,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tap => "TAP",
            Self::Tun => "TUN",
        })
    }
}
