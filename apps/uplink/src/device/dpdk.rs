//! DPDK ports, which require the feature `dpdk`.

use super::driver::{DeviceDriver, DeviceRequest, DeviceTraits, OpenDevice, ParameterKind, Unpack};
use crate::mtu::MTUS;
use crate::plan_error::{PlanError, Result};

pub(crate) const DRIVER: DeviceDriver = DeviceDriver {
    name: "dpdk",
    parameters: "EAL ARGS",
    kind: ParameterKind::Text,
    check: None,
    example: "--no-huge --no-pci --vdev=net_tap0,iface=tw0",
    help: "Use the port that DPDK finds when it is started with these arguments",
    long_help: "\
'EAL ARGS' are those of every DPDK program, in one word of the shell: the device, as \
--vdev=net_af_packet0,iface=eth1 or --allow=0000:01:00.0, and the memory, as --no-huge. The stack \
has the --address that is given. With net_tap this host has the first other address of the \
network. Not with --inline. Needs a build with DPDK: cargo build --release --features dpdk.",
    port_help: "\
dpdk is the port that DPDK finds when it is started with EAL ARGS, in a build with DPDK. One \
port of a router can be.",
    traits: DeviceTraits {
        noun: Some("a port of DPDK"),
        mtu_max: *MTUS.end(),
        has_queues: true,
        opens_once: true,
        needs_address: Some(
            "the stack needs an address in the network of the port that no other host has",
        ),
        reaches_host: false,
        // Set to false, because some DPDK drivers remove VLAN tags from frames.
        has_all_frames: false,
    },
    open,
    pack: Err("DPDK works in the process that started it, towpath's"),
};

pub(crate) const UNPACK: Option<Unpack> = None;

#[cfg(not(feature = "dpdk"))]
fn open(_arguments: &str, _request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    /// Error if this build of towpath does not contain DPDK.
    #[derive(Debug, thiserror::Error)]
    #[error(
        "this build of towpath has no DPDK: in a clone of its sources, build it with \
         `sudo apt-get install libdpdk-dev && cargo build --release --features dpdk`"
    )]
    struct NoDpdk;

    Err(PlanError::of_device(&DRIVER)(NoDpdk))
}

/// Initializes DPDK's EAL (environment abstraction layer) with these arguments, and opens its port.
#[cfg(feature = "dpdk")]
fn open(arguments: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    use towpath_dpdk::{Opened, Options};
    use towpath_pool::LinkType;
    use towpath_wire::Prefix;

    use super::driver::DeviceSite;
    use crate::address::list;

    crate::tap_network::refuse_own_address(request.addresses)?;
    // If shards are added on demand, use one queue. Otherwise queues of shards that have not
    // started yet would not be served.
    let queues = if request.auto { 1 } else { request.queues };
    let options = Options { eal: arguments.to_owned(), queues, mtu: request.mtu };
    let Opened { mut queues, info } =
        towpath_dpdk::open(&options).map_err(PlanError::of_device(&DRIVER))?;
    let own = list(request.addresses.iter().map(Prefix::addr));
    let mut facts = format!("{own} on {} of DPDK", info.name);
    if let Some(interface) = &info.interface {
        facts = format!("{facts} ({interface})");
    }
    if let Some(interface) = &info.tap {
        let hosts = request.host_addresses(request.addresses);
        towpath_tap::set_up_host(interface, info.mtu, &hosts)?;
        let host = list(hosts.iter().map(|(ip, _)| *ip));
        facts = format!("{own} on {interface} of DPDK (this host is {host})");
    }
    let below = info.interface.or(info.tap);
    let site = DeviceSite {
        name: format!("the interface {}", below.as_deref().unwrap_or(&info.name)),
        link: LinkType::Ethernet,
        mac: info.mac.map_or_else(|| request.mac(&info.name), Ok)?,
        addresses: request.addresses.to_vec(),
        mtu: info.mtu,
        routers: Vec::new(),
        facts,
        followed: None,
    };
    if let (Some(queue), Some(_)) = (queues.first_mut(), below) {
        queue.on_gone(request.on_gone(&site));
    }
    Ok(request.opened(queues, site))
}
