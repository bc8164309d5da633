//! Drivers of devices: their names, help texts, abilities, and the functions that open them.

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
    /// Name of the driver, as `xdp` in `xdp:eth1` and `--xdp eth1`.
    pub name: &'static str,
    /// Placeholder of the parameters in `--help`, such as `INTERFACE`.
    pub parameters: &'static str,
    /// Kind of the parameters, which completion and checks depend on.
    pub kind: ParameterKind,
    /// Parameters for examples, such as `eth1`.
    pub example: &'static str,
    /// Short text of `--help`.
    pub help: &'static str,
    /// Further paragraph of `--help`.
    pub long_help: &'static str,
    /// Sentence for the help of `towpath router`, about a port with this device.
    pub port_help: &'static str,
    /// Abilities that options and other ports depend on.
    pub traits: DeviceTraits,
    /// Opens the device.
    pub open: fn(&str, &DeviceRequest<'_>) -> Result<OpenDevice>,
    /// Opens the device for an engine in PROGRAM's process. Otherwise the reason why the device
    /// cannot be moved to that process.
    pub(crate) pack: std::result::Result<Pack, &'static str>,
}

/// Kind of the parameters of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// Name of an existing Ethernet interface of this host, which the kernel uses as well.
    Interface,
    /// Name of an interface to be created. The parameters may be empty; the kernel then chooses the
    /// name.
    NewInterface,
    /// Path of a file.
    File,
    /// Any text, which may contain commas and hyphens.
    Text,
}

/// Abilities of a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTraits {
    /// Noun for messages, such as "a TAP device". None: messages use the parameters instead.
    pub noun: Option<&'static str>,
    /// Maximum MTU in bytes of this kind of device. A specific interface may have a lower maximum.
    pub mtu_max: u32,
    /// Whether the device has a queue for each shard.
    pub has_queues: bool,
    /// Whether a process can open the device only once, so a second try with fewer queues would
    /// fail.
    pub opens_once: bool,
    /// Error message for a missing address, with `{}` for the parameters. None: the device chooses
    /// an address.
    pub needs_address: Option<&'static str>,
    /// Whether this host is at the other end of the link. `host-gateway` then has an address.
    pub reaches_host: bool,
    /// Whether frames to all Ethernet addresses and of all VLANs are received, as bridges need.
    pub has_all_frames: bool,
}

/// Owner of the stack behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceUse {
    /// A host, whose only link is the device.
    Host,
    /// A router, which forwards frames sent to its Ethernet address.
    Router,
    /// A bridge, which needs frames to all Ethernet addresses.
    Bridge,
}

/// Parameters with which a stack opens a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRequest<'a> {
    /// Owner of the stack.
    pub usage: DeviceUse,
    /// Addresses of the stack. Empty: the device chooses an address, if it can.
    pub addresses: &'a [Prefix],
    /// Ports that the stack uses of the kernel's addresses. Empty: the stack has its own Ethernet
    /// address.
    pub ports: &'a [PortRange],
    /// Maximum length of IP packets in bytes; None: the device's own.
    pub mtu: Option<u32>,
    /// Number of queues, one for each shard.
    pub queues: usize,
    /// Whether the device may open one queue, if several would be slower.
    pub auto: bool,
    /// Secret of the stack, from which the queue of each flow is computed.
    pub seed: &'a [u8; 32],
    /// Tally to which the ports add their counters.
    pub counters: &'a Arc<Tally>,
    /// Callback for remarks to the user.
    pub tell: &'a Tell,
}

/// An open device.
pub struct OpenDevice {
    /// Ports of the device, one for each queue.
    pub ports: Vec<Box<dyn Port + Send>>,
    /// Addresses and link of the stack behind the device.
    pub site: DeviceSite,
    /// Observer that is notified of the ports on which the stack receives; `None` if the device
    /// needs no notification.
    pub(crate) receivers: Option<Arc<dyn ReceiverWatch>>,
    /// Reports the end of a replay; `None` for other devices.
    pub(crate) replay: Option<ReplayEnd>,
}

/// Link, addresses and routers of a stack behind a device.
#[derive(Debug, Clone)]
pub struct DeviceSite {
    /// Name for messages, such as "the TAP device tw0".
    pub name: String,
    /// Link-layer header of the packets.
    pub link: LinkType,
    /// Ethernet address of the stack; unused on an IP link.
    pub mac: [u8; 6],
    /// Addresses of the stack, each with its prefix length.
    pub addresses: Vec<Prefix>,
    /// Maximum length of IP packets in bytes.
    pub mtu: u32,
    /// Routers that the kernel uses on this link.
    pub routers: Vec<IpAddr>,
    /// Line that describes the link to the user.
    pub facts: String,
    /// Interface of the kernel whose MTU changes the stack adopts; `None` without one.
    pub followed: Option<Followed>,
}

/// A device that is opened here, and passed to another process.
pub(crate) struct PackedDevice {
    pub(crate) site: DeviceSite,
    /// State that the [`Unpack`] function of the device needs.
    pub(crate) state: Value,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Port of a device that this process has received.
pub(crate) struct UnpackedDevice {
    pub(crate) port: Box<dyn Port + Send>,
    pub(crate) receivers: Option<Arc<dyn ReceiverWatch>>,
    pub(crate) replay: Option<ReplayEnd>,
}

/// A packed device, as its process has received it.
pub(crate) struct ReceivedDevice<'a> {
    pub(crate) state: Value,
    pub(crate) descriptors: Vec<Fd>,
    pub(crate) counters: &'a Arc<Tally>,
    /// Called when the device is removed.
    pub(crate) on_gone: Box<dyn FnOnce() + Send>,
}

/// Opens a device that is passed to another process.
pub(crate) type Pack = fn(&str, &DeviceRequest<'_>) -> Result<PackedDevice>;
/// Creates the port of a device that another process has packed.
pub(crate) type Unpack = fn(ReceivedDevice<'_>) -> std::io::Result<UnpackedDevice>;

/// MTU of Ethernet in bytes.
pub(crate) const MTU_ETHERNET: u32 = 1500;

impl DeviceDriver {
    /// Returns the reason why the device cannot be moved to PROGRAM's process; None if it can.
    pub fn obstacle_to_inline(&self) -> Option<&'static str> {
        self.pack.err()
    }
}

impl<'a> DeviceRequest<'a> {
    /// Creates a request for one queue, with the device's own MTU.
    pub fn new(
        usage: DeviceUse,
        addresses: &'a [Prefix],
        counters: &'a Arc<Tally>,
        tell: &'a Tell,
    ) -> Self {
        let (ports, mtu, queues, auto, seed) = (&[], None, 1, false, &[0; 32]);
        Self { usage, addresses, ports, mtu, queues, auto, seed, counters, tell }
    }

    /// Returns the addresses that this host uses at the other end of the link, one in each network.
    /// Empty for a router, whose other end the user sets up.
    pub(crate) fn host_addresses(&self, own: &[Prefix]) -> Vec<(IpAddr, u8)> {
        match self.usage {
            DeviceUse::Host => {
                own.iter().filter_map(|own| Some((other_host(own)?, own.len()))).collect()
            }
            DeviceUse::Router | DeviceUse::Bridge => Vec::new(),
        }
    }

    /// Returns an Ethernet address for a stack whose device assigns none. A router gets the same
    /// address at each start, because its neighbours cache it.
    pub(crate) fn mac(&self, device: &str) -> Result<[u8; 6]> {
        match self.usage {
            DeviceUse::Host => random_mac(),
            DeviceUse::Router | DeviceUse::Bridge => {
                Ok(station_mac(device.as_bytes(), self.addresses))
            }
        }
    }

    /// Returns the table that maps flows to queues.
    pub(crate) fn owners(&self, queues: usize) -> Owners {
        Owners::new(self.seed, queues)
    }

    /// Returns a callback that reports the removal of the device.
    pub(crate) fn on_gone(&self, site: &DeviceSite) -> impl FnOnce() + Send + use<> {
        let (tell, name) = (self.tell.clone(), site.name.clone());
        move || tell.remark(Remark::DeviceGone(name))
    }

    /// Returns the open device. Its ports report their counters from now on.
    pub(crate) fn opened<P>(&self, ports: Vec<P>, site: DeviceSite) -> OpenDevice
    where
        P: Port + Send + 'static,
    {
        let ports = ports.into_iter().map(|port| counted(port, self.counters)).collect();
        OpenDevice { ports, site, receivers: None, replay: None }
    }
}

/// Wraps a port so that it reports its counters.
pub(crate) fn counted(
    port: impl Port + Send + 'static,
    counters: &Arc<Tally>,
) -> Box<dyn Port + Send> {
    Box::new(Counting::new(port, counters))
}

impl ReceivedDevice<'_> {
    /// Removes and returns the first descriptor.
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
