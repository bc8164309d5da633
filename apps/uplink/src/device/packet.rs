//! Packet sockets on interfaces that the kernel uses as well.

use std::os::fd::AsFd;

use towpath_bpf::Steering;
use towpath_interface::{Interface, Rights};
use towpath_packet::{OpenError, PacketSocket, Parts};

use super::driver::{
    DeviceDriver, DeviceRequest, DeviceTraits, DeviceUse, OpenDevice, PackedDevice, ParameterKind,
    ReceivedDevice, Unpack, UnpackedDevice,
};
use super::interface::StackSite;
use crate::mtu::{Followed, MTUS};
use crate::plan_error::{PlanError, Result};

pub(crate) const DRIVER: DeviceDriver = DeviceDriver {
    name: "packet",
    parameters: "INTERFACE",
    kind: ParameterKind::Interface,
    check: None,
    example: "eth1",
    help: "Use an Ethernet interface of this host, beside the kernel, as a host of its network",
    long_help: "\
The stack has the --address that is given, in the interface's network, and an Ethernet address of \
its own. The kernel keeps the interface with its addresses and its traffic. Other hosts reach the \
stack; this host does not, by this interface. Needs CAP_NET_RAW.",
    port_help: "\
packet is an Ethernet interface of this host, which the kernel keeps with its addresses: the \
router has an Ethernet address of its own there.",
    traits: DeviceTraits {
        noun: None,
        mtu_max: *MTUS.end(),
        has_queues: true,
        opens_once: false,
        needs_address: Some(super::interface::NEEDS_ADDRESS),
        reaches_host: false,
        has_all_frames: true,
    },
    open,
    pack: Ok(pack),
};

pub(crate) const UNPACK: Option<Unpack> = Some(unpack);

fn open(name: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    let host = StackSite::new(name, request)?;
    let claims = host.claims(name, request)?;
    let mut sockets = sockets(name, &host, request)?;
    let socket = sockets.first_mut().expect("there is a socket for each shard");
    let held = claims.hold(socket.as_fd())?;
    socket.keep(held);
    let interface = socket.interface();
    let followed = Followed::new(interface, request.mtu);
    let site = host.on_interface(interface, interface.mtu, followed, "", request)?;
    socket.on_gone(request.on_gone(&site));
    Ok(request.opened(sockets, site))
}

fn pack(name: &str, request: &DeviceRequest<'_>) -> Result<PackedDevice> {
    let host = StackSite::new(name, request)?;
    let claims = host.claims(name, request)?;
    let mut socket = socket(name, &host, request)?;
    let held = claims.hold(socket.as_fd())?;
    socket.keep(held);
    let Parts { descriptors, interface } = socket.into_parts();
    let followed = Followed::new(&interface, request.mtu);
    let site = host.on_interface(&interface, interface.mtu, followed, "", request)?;
    let state = serde_json::to_value(&interface).map_err(PlanError::of_device(&DRIVER))?;
    let descriptors = descriptors.into_iter().map(Into::into).collect();
    Ok(PackedDevice { site, state, descriptors })
}

fn unpack(device: ReceivedDevice<'_>) -> std::io::Result<UnpackedDevice> {
    let ReceivedDevice { state, descriptors, counters, on_gone } = device;
    if descriptors.is_empty() {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let interface: Interface = serde_json::from_value(state)?;
    let mut socket = PacketSocket::from_parts(Parts { descriptors, interface });
    socket.on_gone(on_gone);
    Ok(UnpackedDevice::new(socket, counters))
}

/// Opens one packet socket for each shard. If the kernel cannot distribute flows among several
/// sockets, opens one, or fails if the user requested several shards.
fn sockets(name: &str, host: &StackSite, request: &DeviceRequest<'_>) -> Result<Vec<PacketSocket>> {
    if request.queues > 1 {
        let owners = request.owners(request.queues);
        let steering = Steering { key: owners.key(), queues: owners.count() as u32 };
        match PacketSocket::open_group(name, |found| host.claim(found), Some(&steering)) {
            Err(OpenError::NotSteered { .. }) if request.auto => {}
            opened => return opened.map_err(|error| failed(error, host, request)),
        }
    }
    Ok(vec![socket(name, host, request)?])
}

/// Opens one packet socket that receives all flows.
fn socket(name: &str, host: &StackSite, request: &DeviceRequest<'_>) -> Result<PacketSocket> {
    let opened = match request.usage {
        DeviceUse::Bridge => PacketSocket::open_bridged(name),
        DeviceUse::Host | DeviceUse::Router => PacketSocket::open(name, |found| host.claim(found)),
    };
    opened.map_err(|error| failed(error, host, request))
}

/// Converts an error of opening a packet socket. If a permission is missing, the error names all
/// capabilities that the stack's sockets need.
fn failed(error: OpenError, host: &StackSite, request: &DeviceRequest<'_>) -> PlanError {
    let rights = match (host.is_station, request.queues > 1 && !request.auto) {
        (false, _) => Rights(&["NET_RAW", "NET_ADMIN", "BPF"]),
        (true, true) => Rights(&["NET_RAW", "BPF"]),
        (true, false) => Rights(&["NET_RAW"]),
    };
    PlanError::of_device(&DRIVER)(error.naming(rights))
}
