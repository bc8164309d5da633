//! Network devices of virtual machines, by the vhost-user protocol.

use std::path::Path;

use towpath_pool::LinkType;
use towpath_vhost::VhostPort;
use towpath_wire::Prefix;

use super::driver::{
    DeviceDriver, DeviceRequest, DeviceSite, DeviceTraits, MTU_ETHERNET, OpenDevice, ParameterKind,
    Unpack,
};
use crate::address::list;
use crate::mtu::MTUS;
use crate::plan_error::{PlanError, Result};
use crate::remark::Remark;

pub(crate) const DRIVER: DeviceDriver = DeviceDriver {
    name: "vhost",
    parameters: "SOCKET",
    kind: ParameterKind::File,
    check: None,
    example: "/run/user/1000/vhost.sock",
    help: "Be the network device of a virtual machine, as the vhost-user back end of QEMU",
    long_help: "\
Listens at SOCKET, to which QEMU connects: -chardev socket,id=vm,path=SOCKET -netdev \
vhost-user,id=n,chardev=vm -device virtio-net-pci,netdev=n. The guest's memory has to be shared: \
-object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem. The guest is the \
other host on the link. To give it a network of this host, use towpath vhost.",
    port_help: "\
vhost is the network device of a virtual machine, whose QEMU connects to SOCKET (vhost-user).",
    traits: DeviceTraits {
        noun: Some("a virtual machine"),
        mtu_max: *MTUS.end(),
        has_queues: false,
        opens_once: false,
        needs_address: Some("a virtual machine needs an address in the network of its guest"),
        reaches_host: false,
        has_all_frames: true,
    },
    open,
    pack: Err("QEMU connects to towpath's process"),
};

pub(crate) const UNPACK: Option<Unpack> = None;

fn open(path: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    let tell = request.tell.clone();
    let on_event = move |event: towpath_vhost::VhostEvent| {
        tell.remark(Remark::Changed(event.to_string()));
    };
    let port = VhostPort::open(Path::new(path), on_event).map_err(PlanError::of_device(&DRIVER))?;
    let own = list(request.addresses.iter().map(Prefix::addr));
    let site = DeviceSite {
        name: format!("the virtual machine at {path}"),
        link: LinkType::Ethernet,
        mac: request.mac(path)?,
        addresses: request.addresses.to_vec(),
        mtu: request.mtu.unwrap_or(MTU_ETHERNET),
        routers: Vec::new(),
        facts: format!("{own}, with a virtual machine at {path}"),
        followed: None,
    };
    Ok(request.opened(vec![port], site))
}
