//! The options of `towpath vhost`, and their help.
// clap shows these comments to users.
#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::path::PathBuf;

use clap::{Args, ValueHint};
use towpath_uplink::{Dns, parse_cidr};
use towpath_wire::Prefix;

use crate::activation::PublishArg;
use crate::args::{CaptureArgs, StatsFormat, parse_dns, parse_mtu};

/// Options of `towpath vhost`.
#[derive(Debug, Args)]
pub struct VhostArgs {
    /// Path of the Unix socket at which QEMU connects
    #[arg(value_name = "SOCKET", value_hint = ValueHint::AnyPath)]
    pub socket: PathBuf,

    /// Forward a port of this host to the guest: [[HOSTADDR:]HOSTPORT:]PORT[/tcp|/udp]
    ///
    /// As `towpath run` takes it, with ranges (8000-8010:9000-9010), UDP (5353:53/udp), free ports
    /// of this host (80), and sockets that towpath was started with (fd:3:80). May be given several
    /// times. The ports are open from start to end, because the guest does not tell where it
    /// listens.
    #[arg(short, long, value_name = "PORTS")]
    pub publish: Vec<PublishArg>,

    /// Address of the guest with the length of its network, IPv4 or IPv6
    ///
    /// May be given several times. Unless given: 10.0.2.15/24 and fd00:2::15/64. The guest obtains
    /// the IPv4 address by DHCP; the IPv6 address has to be set in the guest. The gateway has
    /// 10.0.2.2 and fd00:2::2, or the first other address of the network.
    #[arg(long, value_name = "CIDR", value_parser = parse_cidr)]
    pub address: Vec<Prefix>,

    /// Largest IP packet on the link, in bytes: 1280 to 65535
    ///
    /// The guest needs the same: for another value than 1500 give QEMU's device host_mtu=BYTES.
    /// Transfers do not need it, because TCP packets of 64 KiB pass in one piece.
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu, default_value_t = MTU_DEFAULT)]
    pub mtu: u32,

    /// Nameserver for the guest: an address, or `none`
    ///
    /// The guest obtains 10.0.2.3 by DHCP. Its questions go to this nameserver; unless given, to
    /// those of this host's /etc/resolv.conf. With `none` it obtains no nameserver.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_dns)]
    pub dns: Option<Dns>,

    /// Do not let the guest reach services of this host through the gateway address
    #[arg(long)]
    pub no_host_loopback: bool,

    #[command(flatten)]
    pub capture: CaptureArgs,

    /// Print the counters to standard error at the end, and at each SIGUSR1
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "text")]
    pub stats: Option<StatsFormat>,

    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// Default MTU in bytes: that of a guest's Ethernet device.
const MTU_DEFAULT: u32 = 1500;

/// Text of `towpath vhost --help` in front of the options.
pub const ABOUT: &str = "\
Give a virtual machine a network, without root.

Listens at SOCKET as the back end of a vhost-user network device, to which QEMU connects. Frames \
pass through the guest's memory. Towpath's gateway makes each flow an ordinary socket of this user \
on this host, as for `towpath run`: the guest is 10.0.2.15, the gateway 10.0.2.2, DNS at 10.0.2.3. \
The guest obtains its address by DHCP.

The guest may restart, and QEMU may disconnect and connect again. Ctrl-C or SIGTERM ends towpath; \
connections that are open then are reset on both sides.";

/// Text of `towpath vhost --help` behind the options.
pub const AFTER: &str = "\
Examples:
  towpath vhost /tmp/vm.sock -p 2222:22
      A network for a guest, and its SSH server at port 2222 of this host.
      QEMU connects with these options; the guest's memory has to be shared:
  qemu-system-x86_64 -enable-kvm -m 1G -machine q35,memory-backend=mem \\
      -object memory-backend-memfd,id=mem,size=1G,share=on \\
      -chardev socket,id=vm,path=/tmp/vm.sock \\
      -netdev vhost-user,id=net,chardev=vm \\
      -device virtio-net-pci,netdev=net disk.qcow2

Exit status:
  0    Ctrl-C or a signal ended it
  2    an option or argument is wrong
  125  it failed: the socket's path or a port of -p is taken";
