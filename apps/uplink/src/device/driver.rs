//! Drivers of devices: names, texts, abilities, and the functions that open them.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;
use towpath_bpf::PortRange;
use towpath_pool::{LinkType, Port};
use towpath_shm::Fd;
use towpath_stack::{Owners, ReceiverWatch};
use towpath_wire::Prefix;

use crate::address::{other_host, station_mac};
use crate::counting::{Counting, Tally};
use crate::mtu::Followed;
use crate::plan_error::Result;
use crate::random::random_mac;
use crate::remark::{Remark, Tell};
use crate::replay::ReplayEnd;

/// A kind of device.
pub struct DeviceDriver {
    /// Name, as in `xdp:eth1` and `--xdp eth1`.
    pub name: &'static str,
    /// Placeholder of the parameters in `--help`, as `INTERFACE`.
    pub parameters: &'static str,
    /// Kind of the parameters.
    pub kind: ParameterKind,
    /// Parameters of an example, as `eth1`.
    pub example: &'static str,
    /// Short text of `--help`.
    pub help: &'static str,
    /// Further paragraph of `--help`.
    pub long_help: &'static str,
    /// Sentence about a port of `towpath router`.
    pub port_help: &'static str,
    /// Abilities that options and other ports depend on.
    pub traits: DeviceTraits,
    /// Opens the device.
    pub open: fn(&str, &DeviceRequest<'_>) -> Result<OpenDevice>,
    /// Opens the device for an engine in PROGRAM's process, or the reason why it cannot move there.
    pub(crate) pack: std::result::Result<Pack, &'static str>,
}

/// Kind of the parameters of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// Name of an Ethernet interface of this host, which the kernel uses as well.
    Interface,
    /// Name of an interface that is created; may be left out.
    NewInterface,
    /// Path of a file.
    File,
    /// Any text, also with commas and hyphens.
    Text,
}

/// Abilities of a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTraits {
    /// Noun of messages, as "a TAP device". None: the parameters are the name.
    pub noun: Option<&'static str>,
    /// Maximum MTU in bytes; an interface may have a lower maximum.
    pub mtu_max: u32,
    /// Whether the device has a queue for each shard.
    pub has_queues: bool,
    /// Whether a process can open the device once only: another try with fewer queues would fail.
    pub opens_once: bool,
    /// Sentence that asks for an address, with `{}` for the parameters. None: the device chooses
    /// one.
    pub needs_address: Option<&'static str>,
    /// Whether this host is at the other end, with an address that names can lead to.
    pub reaches_host: bool,
    /// Whether frames to all Ethernet addresses and of all VLANs arrive, as bridges need.
    pub has_all_frames: bool,
}

/// Owner of the stack behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceUse {
    /// A host, whose only link the device is.
    Host,
    /// A router, which forwards frames to its Ethernet address.
    Router,
    /// A bridge, which needs frames to all Ethernet addresses.
    Bridge,
}

/// Wishes of the owner of a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRequest<'a> {
    /// Owner of the stack.
    pub usage: DeviceUse,
    /// Addresses of the stack; empty: the device chooses, if it can.
    pub addresses: &'a [Prefix],
    /// Ports of the kernel's addresses. Empty: the stack has an Ethernet address of its own.
    pub ports: &'a [PortRange],
    /// Maximum length of IP packets in bytes; None: the device's own.
    pub mtu: Option<u32>,
    /// Queues, one for each shard.
    pub queues: usize,
    /// Whether one queue will do where several would cost time.
    pub auto: bool,
    /// Secret of the stack, which decides to which queue a flow belongs.
    pub seed: &'a [u8; 32],
    /// Place for the counters of the ports.
    pub counters: &'a Arc<Tally>,
    /// Listener for remarks.
    pub tell: &'a Tell,
}

/// An open device.
pub struct OpenDevice {
    /// Ports, one for each queue.
    pub ports: Vec<Box<dyn Port + Send>>,
    /// Place of the stack behind the device.
    pub site: DeviceSite,
    /// Watch on the receivers of the stack, if the device needs one.
    pub(crate) receivers: Option<Arc<dyn ReceiverWatch>>,
    /// End of a replay.
    pub(crate) replay: Option<ReplayEnd>,
}

/// Place of a stack behind a device.
#[derive(Debug, Clone)]
pub struct DeviceSite {
    /// Name for messages, as "the TAP device tw0".
    pub name: String,
    /// Header of the packets.
    pub link: LinkType,
    /// Ethernet address of the stack; of no meaning on an IP link.
    pub mac: [u8; 6],
    /// Addresses of the stack, each with the length of its network.
    pub addresses: Vec<Prefix>,
    /// Maximum length of IP packets in bytes.
    pub mtu: u32,
    /// Routers that the kernel uses there.
    pub routers: Vec<IpAddr>,
    /// Line for the user.
    pub facts: String,
    /// Interface of the kernel whose MTU the stack follows.
    pub followed: Option<Followed>,
}

/// A device that is opened for another process.
pub(crate) struct PackedDevice {
    pub(crate) site: DeviceSite,
    /// State for the [`Unpack`] of the device.
    pub(crate) state: Value,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// The port of a packed device, in the process that has received it.
pub(crate) struct UnpackedDevice {
    pub(crate) port: Box<dyn Port + Send>,
    pub(crate) receivers: Option<Arc<dyn ReceiverWatch>>,
    pub(crate) replay: Option<ReplayEnd>,
}

/// A packed device as its process received it.
pub(crate) struct ReceivedDevice<'a> {
    pub(crate) state: Value,
    pub(crate) descriptors: Vec<Fd>,
    pub(crate) counters: &'a Arc<Tally>,
    /// Called when the device is removed.
    pub(crate) on_gone: Box<dyn FnOnce() + Send>,
}

/// Opens a device for another process.
pub(crate) type Pack = fn(&str, &DeviceRequest<'_>) -> Result<PackedDevice>;
/// Makes the port of a packed device.
pub(crate) type Unpack = fn(ReceivedDevice<'_>) -> std::io::Result<UnpackedDevice>;

/// MTU of an Ethernet in bytes.
pub(crate) const MTU_ETHERNET: u32 = 1500;

impl DeviceDriver {
    /// Returns the reason why the device cannot move to PROGRAM's process; None: it can.
    pub fn obstacle_to_inline(&self) -> Option<&'static str> {
        self.pack.err()
    }
}

impl<'a> DeviceRequest<'a> {
    /// Creates a request for one queue and the device's own MTU.
    pub fn new(
        usage: DeviceUse,
        addresses: &'a [Prefix],
        counters: &'a Arc<Tally>,
        tell: &'a Tell,
    ) -> Self {
        let (ports, mtu, queues, auto, seed) = (&[], None, 1, false, &[0; 32]);
        Self { usage, addresses, ports, mtu, queues, auto, seed, counters, tell }
    }

    /// Returns the address in each network that this host takes at the other end of a device that
    /// leads to itself. A router's other end is set up by the user.
    pub(crate) fn host_addresses(&self, own: &[Prefix]) -> Vec<(IpAddr, u8)> {
        match self.usage {
            DeviceUse::Host => {
                own.iter().filter_map(|own| Some((other_host(own)?, own.len()))).collect()
            }
            DeviceUse::Router | DeviceUse::Bridge => Vec::new(),
        }
    }

    /// Returns an Ethernet address for the stack on a device that gives it none. A router has the
    /// same one at each start, because its neighbours remember it.
    pub(crate) fn mac(&self, device: &str) -> Result<[u8; 6]> {
        match self.usage {
            DeviceUse::Host => random_mac(),
            DeviceUse::Router | DeviceUse::Bridge => {
                Ok(station_mac(device.as_bytes(), self.addresses))
            }
        }
    }

    /// Returns the owners of flows among the queues.
    pub(crate) fn owners(&self, queues: usize) -> Owners {
        Owners::new(self.seed, queues)
    }

    /// Returns a function that reports the removal of the device.
    pub(crate) fn on_gone(&self, site: &DeviceSite) -> impl FnOnce() + Send + use<> {
        let (tell, name) = (self.tell.clone(), site.name.clone());
        move || tell.remark(Remark::DeviceGone(name))
    }

    /// Returns the device with its ports, which report their counters from now on.
    pub(crate) fn opened<P>(&self, ports: Vec<P>, site: DeviceSite) -> OpenDevice
    where
        P: Port + Send + 'static,
    {
        let ports = ports.into_iter().map(|port| counted(port, self.counters)).collect();
        OpenDevice { ports, site, receivers: None, replay: None }
    }
}

/// Returns a port that reports its counters.
pub(crate) fn counted(
    port: impl Port + Send + 'static,
    counters: &Arc<Tally>,
) -> Box<dyn Port + Send> {
    Box::new(Counting::new(port, counters))
}

impl ReceivedDevice<'_> {
    /// Takes the first descriptor out.
    pub(crate) fn first_descriptor(mut self) -> std::io::Result<(Fd, Self)> {
        if self.descriptors.is_empty() {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        Ok((self.descriptors.remove(0), self))
    }
}

impl UnpackedDevice {
    pub(crate) fn new(port: impl Port + Send + 'static, counters: &Arc<Tally>) -> Self {
        Self { port: counted(port, counters), receivers: None, replay: None }
    }
}
