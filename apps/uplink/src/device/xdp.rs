//! XDP sockets on interfaces that the kernel's own stack uses as well.

use towpath_xdp::{Mode, XdpProperties, XdpSocket};

use super::driver::{
    DeviceDriver, DeviceRequest, DeviceTraits, DeviceUse, OpenDevice, ParameterKind, Unpack,
};
use super::interface::StackSite;
use crate::coalescing::Coalescing;
use crate::mtu::{Followed, MTUS};
use crate::plan_error::{PlanError, Result, system};

pub(crate) const DRIVER: DeviceDriver = DeviceDriver {
    name: "xdp",
    parameters: "INTERFACE",
    kind: ParameterKind::Interface,
    check: None,
    example: "eth1",
    help: "As --packet, by an XDP socket: the kernel does not see the frames of the stack",
    long_help: "\
A program in the interface's driver, or behind it, gives frames to the stack's addresses to the \
stack, and all others to the kernel. There are no offloads, so that large transfers cost more. Not \
with --inline. Needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.",
    port_help: "\
xdp is the same past the kernel's stack: more small packets, and slower large transfers.",
    traits: DeviceTraits {
        noun: None,
        mtu_max: *MTUS.end(),
        has_queues: false,
        opens_once: false,
        needs_address: Some(super::interface::NEEDS_ADDRESS),
        reaches_host: false,
        has_all_frames: false,
    },
    open,
    pack: Err("a process cannot go on with the rings of the one before its exec(2)"),
};

pub(crate) const UNPACK: Option<Unpack> = None;

fn open(name: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    let host = StackSite::new(name, request)?;
    let claims = host.claims(name, request)?;
    let opened = XdpSocket::open(name, |found| host.claim(found));
    let mut parts = opened.map_err(PlanError::of_device(&DRIVER))?;
    let held = claims.hold(parts.packet_socket())?;
    parts.descriptors.extend(held);
    let XdpProperties { interface, mode, mtu_max, frame_mtu, .. } = &parts.facts;
    // Use the maximum frame length of XDP as the limit, even if the interface's MTU is increased
    // later.
    let most = request.mtu.map_or(*frame_mtu, |mtu| mtu.min(*frame_mtu));
    let followed = Followed::new(interface, Some(most));
    let site = host.on_interface(interface, *mtu_max, followed, mode_words(*mode), request)?;
    let mut socket = XdpSocket::from_parts(parts).map_err(system("map an XDP socket"))?;
    socket.on_gone(request.on_gone(&site));
    Ok(match request.usage {
        DeviceUse::Host => request.opened(vec![Coalescing::new(socket)], site),
        // For a router or bridge, do not merge received segments, because they would have to be
        // split again.
        DeviceUse::Router | DeviceUse::Bridge => request.opened(vec![socket], site),
    })
}

/// Returns text for the user about how frames reach an XDP socket, to be appended to the
/// interface's name.
fn mode_words(mode: Mode) -> &'static str {
    match (mode.in_driver, mode.zero_copy) {
        (true, true) => " (XDP in the driver, without copies)",
        (false, true) => " (XDP behind the driver, without copies)",
        (true, false) => " (XDP in the driver, the kernel copies)",
        (false, false) => " (XDP behind the driver, the kernel copies)",
    }
}
