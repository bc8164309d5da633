//! TAP devices: opens their queues, assigns flows to queues, and sets up this host's end.

use serde_json::json;
use towpath_pool::LinkType;
use towpath_tap::{OpenError, Options, Parts, Steering, Tap};
use towpath_wire::Prefix;

use super::driver::{
    DeviceDriver, DeviceRequest, DeviceSite, DeviceTraits, DeviceUse, MTU_ETHERNET, OpenDevice,
    PackedDevice, ParameterKind, ReceivedDevice, Unpack, UnpackedDevice,
};
use crate::address::list;
use crate::plan_error::{PlanError, Result};
use crate::remark::Remark;
use crate::tap_network::Choosing;

pub(crate) const DRIVER: DeviceDriver = DeviceDriver {
    name: "tap",
    parameters: "NAME",
    kind: ParameterKind::NewInterface,
    check: None,
    example: "tw0",
    help: "Use a TAP device instead of the rootless gateway",
    long_help: "\
Makes the device NAME, unless given towpath0 or the next free name. Or takes over a device that \
was made for this user: sudo ip tuntap add dev NAME mode tap user $USER. A device that towpath \
made vanishes with the run, with its addresses and routes, also when towpath is killed.",
    port_help: "\
tap makes the TAP device NAME, whose other end is this host, or takes over one that was made \
for this user.",
    traits: DeviceTraits {
        noun: Some("a TAP device"),
        mtu_max: MTU_TAP_MAX,
        has_queues: true,
        opens_once: false,
        needs_address: None,
        reaches_host: true,
        has_all_frames: true,
    },
    open,
    pack: Ok(pack),
};

pub(crate) const UNPACK: Option<Unpack> = Some(unpack);

/// Maximum MTU of a TAP device in Linux, in bytes: 65535 minus the Ethernet header of 14 bytes
/// (MAX_MTU and hard_header_len in drivers/net/tun.c).
const MTU_TAP_MAX: u32 = 65_535 - 14;

fn open(name: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    let mut queues = queues(name, request)?;
    // Assign flows to queues before the device is up, because this host may send packets as soon as
    // it is up.
    steer(&mut queues, request);
    let tap = queues.first_mut().expect("a device is opened with a queue");
    let site = set_up(tap, request)?;
    tap.on_gone(request.on_gone(&site));
    Ok(request.opened(queues, site))
}

fn pack(name: &str, request: &DeviceRequest<'_>) -> Result<PackedDevice> {
    let tap = queues(name, request)?.pop().expect("a device is opened with a queue");
    let site = set_up(&tap, request)?;
    let Parts { fd, name, udp_segmentation } = tap.into_parts();
    let state = json!([name, udp_segmentation]);
    Ok(PackedDevice { site, state, descriptors: vec![fd.into()] })
}

fn unpack(device: ReceivedDevice<'_>) -> std::io::Result<UnpackedDevice> {
    let (fd, ReceivedDevice { state, counters, on_gone, .. }) = device.first_descriptor()?;
    let (name, udp_segmentation) = serde_json::from_value(state)?;
    let mut tap = Tap::from_parts(Parts { fd, name, udp_segmentation });
    tap.on_gone(on_gone);
    Ok(UnpackedDevice::new(tap, counters))
}

/// Opens a TAP device with one queue for each shard.
fn queues(name: &str, request: &DeviceRequest<'_>) -> Result<Vec<Tap>> {
    let options = Options { name: Some(name.to_owned()).filter(|name| !name.is_empty()) };
    let queues = match Tap::open_queues(&options, request.queues) {
        Err(OpenError::OneQueue { .. }) if request.auto => Tap::open_queues(&options, 1),
        opened => opened,
    };
    queues.map_err(PlanError::of_device(&DRIVER))
}

/// Chooses the addresses, and configures this host's end of the TAP device.
fn set_up(tap: &Tap, request: &DeviceRequest<'_>) -> Result<DeviceSite> {
    let mtu = request.mtu.unwrap_or(MTU_ETHERNET);
    let (addresses, choosing) = match request.usage {
        DeviceUse::Host => {
            let choosing = Choosing::begin()?;
            (choosing.addresses(tap.name(), request.addresses)?, Some(choosing))
        }
        DeviceUse::Router | DeviceUse::Bridge => (request.addresses.to_vec(), None),
    };
    let hosts = request.host_addresses(&addresses);
    towpath_tap::set_up_host(tap.name(), mtu, &hosts)?;
    // Release the lock, because other runs now see this run's network and choose a different one.
    drop(choosing);
    let own = list(addresses.iter().map(Prefix::addr));
    let host = list(hosts.iter().map(|(ip, _)| *ip));
    Ok(DeviceSite {
        name: format!("the TAP device {}", tap.name()),
        link: LinkType::Ethernet,
        mac: request.mac(tap.name())?,
        facts: format!("{own} on {} (this host is {host})", tap.name()),
        addresses,
        mtu,
        routers: Vec::new(),
        followed: None,
    })
}

/// Lets the kernel put each packet into the queue of the shard that owns its flow. If the kernel
/// does not support this, shards must pass packets to each other. In that case, uses only one queue
/// and one shard, unless several shards were requested.
fn steer(queues: &mut Vec<Tap>, request: &DeviceRequest<'_>) {
    let [tap, _, ..] = &queues[..] else { return };
    let owners = request.owners(queues.len());
    let steering = Steering { key: owners.key(), queues: owners.count() as u32 };
    let Err(error) = tap.steer(Some(&steering)) else { return };
    // Remove a BPF program that an earlier run may have left in a persistent device. Ignore errors:
    // if the kernel does not support such programs, there is none to remove.
    let _ = tap.steer(None);
    if request.auto {
        return queues.truncate(1);
    }
    request.tell.remark(Remark::Warning(format!(
        "packets come in at any shard of {}, which hands them on and costs time: steering them \
         needs CAP_BPF and Linux 4.16 ({error})",
        tap.name()
    )));
}
