//! Options that name the device of a stack.

use clap::Args;
use towpath_uplink::LinkKind;

/// At most one of these is given: a stack has one link.
#[derive(Debug, Default, Args)]
#[group(id = "device", multiple = false)]
pub struct DeviceArgs {
    /// Use a TAP device instead of the rootless gateway
    ///
    /// Makes the device NAME (towpath0 or the next free name unless given), or takes over one
    /// that was made for this user: sudo ip tuntap add dev NAME mode tap user $USER. A device
    /// that towpath made vanishes with the run, with its addresses and routes, also when towpath is
    /// killed.
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "")]
    tap: Option<String>,

    /// Use an Ethernet interface of this host, beside the kernel, as a host of its network
    ///
    /// The stack has the --address that is given, in the interface's network, and an Ethernet
    /// address of its own. The kernel keeps the interface with its addresses and its traffic. Other
    /// hosts reach the stack; this host does not, by this interface. Needs CAP_NET_RAW.
    #[arg(long, value_name = "INTERFACE", requires = "address")]
    packet: Option<String>,
}

impl DeviceArgs {
    /// Link of the stack: the device of the option that was given, or else the gateway.
    pub fn link(&self) -> LinkKind {
        let Self { tap, packet } = self;
        let tap =
            tap.iter().map(|name| LinkKind::Tap(Some(name.clone()).filter(|n| !n.is_empty())));
        let packet = packet.iter().cloned().map(LinkKind::Packet);
        tap.chain(packet).next().unwrap_or(LinkKind::Gateway)
    }

    /// Whether an option that stands without its value was given.
    pub fn is_tap(&self) -> bool {
        self.tap.is_some()
    }
}
