//! Links through shared memory, by the memif protocol.

use towpath_memif::{MemifEvent, MemifOptions, MemifPort, MemifRole};
use towpath_pool::LinkType;
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
    name: "memif",
    parameters: "SOCKET[,id=N][,role=ROLE]...",
    kind: ParameterKind::FileAndOptions,
    check: Some(|text| text.parse::<MemifOptions>().map(drop).map_err(|e| e.to_string())),
    example: "/run/user/1000/memif.sock,id=0",
    help: "Use a link through shared memory: memif, as of DPDK's net_memif and of VPP",
    long_help: "\
Connects to the server that listens at SOCKET, or listens there: two runs with the same SOCKET are \
joined by a link. role=server or role=client takes one side only. id is the number of the \
interface at the socket, 0 unless given, and secret=TEXT has to be the same on both sides. The \
client chooses the memory: rings of 2^rsize descriptors (rsize=10), and buffers of bsize bytes \
(bsize=2048). With DPDK: --vdev=net_memif0,role=server,socket=SOCKET,socket-abstract=no. The peer \
may leave and come back. It must belong to the same user, or to root.",
    port_help: "\
memif is a link through shared memory, set up at the Unix socket SOCKET, as DPDK's net_memif.",
    traits: DeviceTraits {
        noun: Some("a memif link"),
        mtu_max: *MTUS.end(),
        has_queues: false,
        opens_once: false,
        needs_address: Some("a memif link needs an address in the network of its peer"),
        reaches_host: false,
        has_all_frames: true,
    },
    open,
    pack: Err("the peer of a memif link connects to towpath's process"),
};

pub(crate) const UNPACK: Option<Unpack> = None;

fn open(parameters: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    let options: MemifOptions = parameters.parse().map_err(PlanError::of_device(&DRIVER))?;
    let path = options.path.display().to_string();
    let tell = request.tell.clone();
    let on_event = move |event: MemifEvent| tell.remark(Remark::Changed(event.to_string()));
    let port = MemifPort::open(options, on_event).map_err(PlanError::of_device(&DRIVER))?;
    let own = list(request.addresses.iter().map(Prefix::addr));
    let role = match port.role() {
        MemifRole::Server => "server",
        MemifRole::Client => "client",
    };
    let site = DeviceSite {
        name: format!("the memif link {path}"),
        link: LinkType::Ethernet,
        mac: request.mac(parameters)?,
        addresses: request.addresses.to_vec(),
        mtu: request.mtu.unwrap_or(MTU_ETHERNET),
        routers: Vec::new(),
        facts: format!("{own} on the memif link {path} ({role})"),
        followed: None,
    };
    Ok(request.opened(vec![port], site))
}
