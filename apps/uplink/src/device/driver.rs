//! Drivers of devices: their names, help texts, properties, and the functions that open them.

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

/// Description of a kind of device, with functions to open it.
pub struct DeviceDriver {
    /// Name of the driver, as `xdp` in `xdp:eth1` and `--xdp eth1`.
    pub name: &'static str,
    /// Placeholder for the parameters in `--help`, such as `INTERFACE`.
    pub parameters: &'static str,
    /// Kind of the parameters. Shell completion and validation depend on it.
    pub kind: ParameterKind,
    /// Checks parameters that have a syntax of their own, and returns an error message.
    pub(crate) check: Option<CheckParameters>,
    /// Example of the parameters for messages and help, such as `eth1`.
    pub example: &'static str,
    /// Short text of `--help`.
    pub help: &'static str,
    /// Further paragraph of `--help`.
    pub long_help: &'static str,
    /// Sentence in the help of `towpath router` about a port with this device.
    pub port_help: &'static str,
    /// Properties on which options and other ports depend.
    pub traits: DeviceTraits,
    /// Opens the device.
    pub open: fn(&str, &DeviceRequest<'_>) -> Result<OpenDevice>,
    /// Opens the device for an engine in the process of PROGRAM, the program that `towpath run`
    /// executes. `Err` contains the reason why the device cannot be passed to that process.
    pub(crate) pack: std::result::Result<Pack, &'static str>,
}

/// Kind of the parameters of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// Name of an existing Ethernet interface of this host, which the kernel uses as well.
    Interface,
    /// Name of an interface to be created. If it is empty, the kernel chooses the name.
    NewInterface,
    /// Path of a file.
    File,
    /// Path of a file, followed by options as `,NAME=VALUE`.
    FileAndOptions,
    /// Any text, which may contain commas and hyphens.
    Text,
}

/// Properties of a kind of device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTraits {
    /// Noun for messages, such as "a TAP device". `None` if messages show the parameters instead.
    pub noun: Option<&'static str>,
    /// Maximum MTU of this kind of device in bytes. The maximum of a specific interface may be
    /// lower.
    pub mtu_max: u32,
    /// Whether the device can have a queue for each shard.
    pub has_queues: bool,
    /// Whether a process can open the device only once. A second attempt with fewer queues would
    /// then fail.
    pub opens_once: bool,
    /// Error message if the user gave no address, with `{}` in place of the parameters. `None` if
    /// the device chooses an address.
    pub needs_address: Option<&'static str>,
    /// Whether this host is at the other end of the link. If so, the name `host-gateway` has an
    /// address.
    pub reaches_host: bool,
    /// Whether the device receives frames to all Ethernet addresses and of all VLANs, as a bridge
    /// needs.
    pub has_all_frames: bool,
}

/// Kind of stack that uses a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceUse {
    /// A host whose only link is the device.
    Host,
    /// A router, which forwards frames sent to its Ethernet address.
    Router,
    /// A bridge, which needs frames to all Ethernet addresses.
    Bridge,
}

/// Parameters with which a stack opens a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRequest<'a> {
    /// Kind of stack that uses the device.
    pub usage: DeviceUse,
    /// Addresses of the stack. If empty, the device chooses an address, if it can.
    pub addresses: &'a [Prefix],
    /// Ports that the stack uses on the kernel's own addresses. If empty, the stack has its own
    /// Ethernet address instead.
    pub ports: &'a [PortRange],
    /// Whether a DHCP client obtains the addresses of the stack.
    pub has_dhcp: bool,
    /// MTU in bytes; `None` uses the device's own MTU.
    pub mtu: Option<u32>,
    /// Number of queues to open, one for each shard.
    pub queues: usize,
    /// Whether the device may open only one queue if several would be slower.
    pub auto: bool,
    /// Secret of the stack. Hashed with the addresses of a flow, it determines the queue of the
    /// flow.
    pub seed: &'a [u8; 32],
    /// Tally (a shared list) to which the device's ports write their counters.
    pub counters: &'a Arc<Tally>,
    /// Callback that shows remarks to the user.
    pub tell: &'a Tell,
}

/// An open device.
pub struct OpenDevice {
    /// Ports of the device, one for each queue.
    pub ports: Vec<Box<dyn Port + Send>>,
    /// Addresses and link properties of the stack behind the device.
    pub site: DeviceSite,
    /// Observer that the stack notifies of the ports on which it receives. `None` if the device
    /// needs no notification.
    pub(crate) receivers: Option<Arc<dyn ReceiverWatch>>,
    /// Reports when a replay has ended; `None` for devices that are no replay.
    pub(crate) replay: Option<ReplayEnd>,
}

/// Link, addresses and routers of a stack behind a device.
#[derive(Debug, Clone)]
pub struct DeviceSite {
    /// Name for messages, such as "the TAP device tw0".
    pub name: String,
    /// Whether packets have an Ethernet header.
    pub link: LinkType,
    /// Ethernet address of the stack; unused if the link has no Ethernet header.
    pub mac: [u8; 6],
    /// Addresses of the stack, each with its prefix length.
    pub addresses: Vec<Prefix>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses of routers that the kernel uses on this link.
    pub routers: Vec<IpAddr>,
    /// Line of text that describes the link to the user.
    pub facts: String,
    /// Kernel interface whose MTU the stack follows when it changes; `None` without one.
    pub followed: Option<Followed>,
}

/// A device that this process has opened to pass it to another process.
pub(crate) struct PackedDevice {
    pub(crate) site: DeviceSite,
    /// State that the other process needs to use the device ([`Unpack`]).
    pub(crate) state: Value,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Port of a device that another process has opened and passed to this one.
pub(crate) struct UnpackedDevice {
    pub(crate) port: Box<dyn Port + Send>,
    pub(crate) receivers: Option<Arc<dyn ReceiverWatch>>,
    pub(crate) replay: Option<ReplayEnd>,
}

/// State and descriptors of a device that another process has opened and passed to this one.
pub(crate) struct ReceivedDevice<'a> {
    pub(crate) state: Value,
    pub(crate) descriptors: Vec<Fd>,
    pub(crate) counters: &'a Arc<Tally>,
    /// Callback that is called when the device was removed.
    pub(crate) on_gone: Box<dyn FnOnce() + Send>,
}

/// Function that checks the parameters of a device, and returns an error message.
pub(crate) type CheckParameters = fn(&str) -> std::result::Result<(), String>;
/// Function that opens a device to be passed to another process.
pub(crate) type Pack = fn(&str, &DeviceRequest<'_>) -> Result<PackedDevice>;
/// Function that creates the port of a device that another process has opened.
pub(crate) type Unpack = fn(ReceivedDevice<'_>) -> std::io::Result<UnpackedDevice>;

/// Default MTU of an Ethernet link in bytes.
pub(crate) const MTU_ETHERNET: u32 = 1500;

impl DeviceDriver {
    /// Returns the reason why the device cannot be passed to PROGRAM's process; `None` if it can.
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
        let (ports, has_dhcp, mtu, queues, auto) = (&[], false, None, 1, false);
        let seed = &[0; 32];
        Self { usage, addresses, ports, has_dhcp, mtu, queues, auto, seed, counters, tell }
    }

    /// Returns this host's addresses at the other end of the link, one in each network of the
    /// stack. Empty for a router, because the user configures the other end.
    pub(crate) fn host_addresses(&self, own: &[Prefix]) -> Vec<(IpAddr, u8)> {
        match self.usage {
            DeviceUse::Host => {
                own.iter().filter_map(|own| Some((other_host(own)?, own.len()))).collect()
            }
            DeviceUse::Router | DeviceUse::Bridge => Vec::new(),
        }
    }

    /// Returns an Ethernet address for a stack to which the device assigns none. A router gets the
    /// same address at each start, because its neighbors cache it.
    pub(crate) fn mac(&self, device: &str) -> Result<[u8; 6]> {
        match self.usage {
            DeviceUse::Host => random_mac(),
            DeviceUse::Router | DeviceUse::Bridge => {
                Ok(station_mac(device.as_bytes(), self.addresses))
            }
        }
    }

    /// Returns the table by which flows are assigned to `queues` queues.
    pub(crate) fn owners(&self, queues: usize) -> Owners {
        Owners::new(self.seed, queues)
    }

    /// Returns a callback that tells the user that the device was removed.
    pub(crate) fn on_gone(&self, site: &DeviceSite) -> impl FnOnce() + Send + use<> {
        let (tell, name) = (self.tell.clone(), site.name.clone());
        move || tell.remark(Remark::DeviceGone(name))
    }

    /// Returns the open device with these ports, wrapped so that they report their counters to the
    /// tally.
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
    /// Splits off the first descriptor, and returns it with the rest.
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
