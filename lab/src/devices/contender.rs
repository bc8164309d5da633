//! Stacks that are compared.

/// Stack at the server's end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Kernel,
    Packet,
    Xdp,
    /// A TAP device, whose other end is the kernel of the same namespace.
    Tap,
    /// Shared memory, at whose other end the clients run on a stack of their own.
    Memif,
    /// The same with frames of up to 64 KiB.
    LargeMemif,
}

impl Contender {
    pub const ALL: [Self; 6] =
        [Self::Kernel, Self::Packet, Self::Xdp, Self::Tap, Self::Memif, Self::LargeMemif];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Tap => "tap",
            Self::Memif => "memif",
            Self::LargeMemif => "memif-64k",
        }
    }

    /// Returns whether clients run on a stack of their own, because the device has no kernel at its
    /// other end.
    pub fn is_memif(self) -> bool {
        matches!(self, Self::Memif | Self::LargeMemif)
    }

    /// Returns whether `lab/bounce` measures the device.
    pub fn bounces(self) -> bool {
        matches!(self, Self::Packet | Self::Xdp | Self::Memif)
    }
}
