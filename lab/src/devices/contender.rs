//! Stacks that are compared.

/// Stack at the server's end of the veth pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Kernel,
    Packet,
    Xdp,
}

impl Contender {
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Packet, Self::Xdp];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
        }
    }

    /// Returns the option of `towpath run` for the device.
    pub fn option(self) -> Option<&'static str> {
        match self {
            Self::Kernel => None,
            Self::Packet => Some("--packet"),
            Self::Xdp => Some("--xdp"),
        }
    }
}
