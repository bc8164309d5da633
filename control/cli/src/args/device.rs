//! Options that name the device of a stack.

use std::path::PathBuf;

use clap::Args;
use towpath_uplink::LinkKind;

/// At most one of these is given: a stack has one link.
#[derive(Debug, Default, Args)]
#[group(id = "device", multiple = false)]
pub struct DeviceArgs {
    /// Use a TAP device instead of the rootless gateway
    ///
    /// Makes the device NAME, unless given towpath0 or the next free name. Or takes over a device
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
    #[arg(long, value_name = "INTERFACE")]
    packet: Option<String>,

    /// As --packet, by an XDP socket: the kernel does not see the frames of the stack
    ///
    /// A program in the interface's driver, or behind it, gives frames to the stack's addresses to
    /// the stack, and all others to the kernel. There are no offloads, so that large transfers cost
    /// more. Not with --inline. Needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
    #[arg(long, value_name = "INTERFACE")]
    xdp: Option<String>,

    /// Use the port that DPDK finds when it is started with these arguments
    ///
    /// 'EAL ARGS' are those of every DPDK program, in one word of the shell: the device, as
    /// --vdev=net_af_packet0,iface=eth1 or --allow=0000:01:00.0, and the memory, as --no-huge. The
    /// stack has the --address that is given. With net_tap this host has the first other address of
    /// the network. Not with --inline. Needs a build with DPDK: cargo build --release --features
    /// dpdk.
    #[arg(long, value_name = "EAL ARGS", requires = "address")]
    #[arg(allow_hyphen_values = true)]
    dpdk: Option<String>,

    /// Use a link on which the packets of a capture come, pcap or pcapng
    ///
    /// The packets come as far apart as they were recorded, once the program has a socket that
    /// takes packets from the network. The stack takes those to its --address; no packet that it
    /// sends goes anywhere.
    #[arg(long, value_name = "FILE", requires = "address")]
    replay: Option<PathBuf>,
}

impl DeviceArgs {
    /// Link of the stack: the device of the option that was given, or else the gateway.
    pub fn link(&self) -> LinkKind {
        let Self { tap, packet, xdp, dpdk, replay } = self;
        let tap =
            tap.iter().map(|name| LinkKind::Tap(Some(name.clone()).filter(|n| !n.is_empty())));
        let packet = packet.iter().cloned().map(LinkKind::Packet);
        let xdp = xdp.iter().cloned().map(LinkKind::Xdp);
        let dpdk = dpdk.iter().cloned().map(LinkKind::Dpdk);
        let replay = replay.iter().cloned().map(LinkKind::Replay);
        tap.chain(packet).chain(xdp).chain(dpdk).chain(replay).next().unwrap_or(LinkKind::Gateway)
    }

    /// Whether an option that stands without its value was given.
    pub fn is_tap(&self) -> bool {
        self.tap.is_some()
    }
}
