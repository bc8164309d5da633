//! Devices that exchange Ethernet frames over a Unix stream socket with virtual machines or other
//! stacks.

use std::path::Path;

use towpath_pool::LinkType;
use towpath_stream::StreamPort;
use towpath_wire::Prefix;

use super::driver::{
    DeviceDriver, DeviceRequest, DeviceSite, DeviceTraits, MTU_ETHERNET, OpenDevice, ParameterKind,
    Unpack,
};
use crate::address::list;
use crate::mtu::MTUS;
use crate::plan_error::{PlanError, Result};

pub(crate) const DRIVER: DeviceDriver = DeviceDriver {
    name: "stream",
    parameters: "PATH",
    kind: ParameterKind::File,
    check: None,
    example: "/run/user/1000/vm.sock",
    help: "Use a link of Ethernet frames over a Unix socket, as QEMU's -netdev stream",
    long_help: "\
Connects to the process that listens at PATH, or listens there: two runs with the same PATH are \
joined by a link. For a virtual machine: qemu-system-x86_64 -netdev \
stream,id=n,server=off,addr.type=unix,addr.path=PATH -device virtio-net,netdev=n. The peer may \
leave and come back. It must belong to the same user, or to root.",
    port_help: "\
stream is a link of Ethernet frames over the Unix socket PATH, as QEMU's -netdev stream.",
    traits: DeviceTraits {
        noun: Some("a stream"),
        mtu_max: *MTUS.end(),
        has_queues: false,
        opens_once: false,
        needs_address: Some("a stream needs an address in the network of its peer"),
        reaches_host: false,
        has_all_frames: true,
    },
    open,
    pack: Err("the peer of a stream connects to towpath's process"),
};

pub(crate) const UNPACK: Option<Unpack> = None;

fn open(path: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    let port = StreamPort::open(Path::new(path)).map_err(PlanError::of_device(&DRIVER))?;
    let own = list(request.addresses.iter().map(Prefix::addr));
    let site = DeviceSite {
        name: format!("the stream {path}"),
        link: LinkType::Ethernet,
        mac: request.mac(path)?,
        addresses: request.addresses.to_vec(),
        mtu: request.mtu.unwrap_or(MTU_ETHERNET),
        routers: Vec::new(),
        facts: format!("{own} on the stream {path}"),
        followed: None,
    };
    Ok(request.opened(vec![port], site))
}
