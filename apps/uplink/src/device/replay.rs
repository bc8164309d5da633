//! Replay devices, which deliver the packets of a capture file to the stack.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use towpath_pool::LinkType;
use towpath_replay::Replay;
use towpath_wire::Prefix;

use super::driver::{
    DeviceDriver, DeviceRequest, DeviceSite, DeviceTraits, DeviceUse, MTU_ETHERNET, OpenDevice,
    PackedDevice, ParameterKind, ReceivedDevice, Unpack, UnpackedDevice,
};
use crate::address::list;
use crate::mtu::MTUS;
use crate::plan_error::{PlanError, Result};
use crate::replay::{ReplayEnd, StartWatch};

pub(crate) const DRIVER: DeviceDriver = DeviceDriver {
    name: "replay",
    parameters: "FILE",
    kind: ParameterKind::File,
    check: None,
    example: "questions.pcap",
    help: "Use a link on which the packets of a capture come, pcap or pcapng",
    long_help: "\
The packets come as far apart as they were recorded, once the program has a socket that takes \
packets from the network. The stack takes those to its --address; no packet that it sends goes \
anywhere.",
    port_help: "\
replay receives the packets of a capture from the start of the router, and drops what the \
router sends.",
    traits: DeviceTraits {
        noun: Some("a replay"),
        mtu_max: *MTUS.end(),
        has_queues: false,
        opens_once: false,
        needs_address: Some("a replay needs an address that packets of the capture are for"),
        reaches_host: false,
        has_all_frames: false,
    },
    open,
    pack: Ok(pack),
};

pub(crate) const UNPACK: Option<Unpack> = Some(unpack);

/// Error of reading a capture, with the name of the file.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {source}")]
struct CaptureError {
    file: String,
    source: towpath_replay::ReplayError,
}

fn open(file: &str, request: &DeviceRequest<'_>) -> Result<OpenDevice> {
    let mut replay = Replay::open(Path::new(file)).map_err(failed(file))?;
    let end = ReplayEnd::of(&mut replay, Path::new(file));
    // For a host, start the replay when the stack has a socket. A router has none, so its replay
    // starts at once.
    let receivers = (request.usage == DeviceUse::Host).then(|| start_watch(&mut replay));
    let opened = request.opened(vec![replay], site(file, request));
    Ok(OpenDevice { receivers, replay: Some(end), ..opened })
}

fn pack(file: &str, request: &DeviceRequest<'_>) -> Result<PackedDevice> {
    // Read the file now, so that an invalid capture is reported at once. The other process gets a
    // new descriptor of the file.
    Replay::open(Path::new(file)).map_err(failed(file))?;
    let opened = std::fs::File::open(file).map_err(|error| failed(file)(error.into()))?;
    let descriptors = vec![opened.into()];
    Ok(PackedDevice { site: site(file, request), state: json!(file), descriptors })
}

fn unpack(device: ReceivedDevice<'_>) -> std::io::Result<UnpackedDevice> {
    let (fd, ReceivedDevice { state, counters, .. }) = device.first_descriptor()?;
    let file: String = serde_json::from_value(state)?;
    let mut replay = Replay::from_fd(fd).map_err(std::io::Error::other)?;
    let end = ReplayEnd::of(&mut replay, Path::new(&file));
    let receivers = Some(start_watch(&mut replay));
    let unpacked = UnpackedDevice::new(replay, counters);
    Ok(UnpackedDevice { receivers, replay: Some(end), ..unpacked })
}

/// Lets a replay wait until the stack has a socket. Returns the observer that then starts the
/// replay.
fn start_watch(replay: &mut Replay) -> Arc<dyn towpath_stack::ReceiverWatch> {
    Arc::new(StartWatch(replay.wait_for_start()))
}

/// Returns addresses and link properties of the stack behind a replay.
fn site(file: &str, request: &DeviceRequest<'_>) -> DeviceSite {
    let own = list(request.addresses.iter().map(Prefix::addr));
    DeviceSite {
        name: file.to_owned(),
        link: LinkType::Ip,
        mac: [0; 6],
        addresses: request.addresses.to_vec(),
        mtu: request.mtu.unwrap_or(MTU_ETHERNET),
        routers: Vec::new(),
        facts: format!("{own} in the packets of {file}"),
        followed: None,
    }
}

fn failed(file: &str) -> impl Fn(towpath_replay::ReplayError) -> PlanError {
    let file = file.to_owned();
    move |source| PlanError::of_device(&DRIVER)(CaptureError { file: file.clone(), source })
}
