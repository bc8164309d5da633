//! The plan of a stack's uplink, as the user specified it, and the functions that open the link.
//!
//! A plan opens its device, or the rootless gateway if there is no device. Then `assemble` creates
//! the stack's configuration and ports.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use towpath_bpf::PortRange;
use towpath_engine::{BUSY_POLL, EngineConfig};
use towpath_gateway::Notice;
use towpath_pcap::CaptureFile;
use towpath_pool::{Port, PortCounters};
use towpath_stack::Owners;
use towpath_tcp::TcpDefaults;
use towpath_wire::Prefix;

use crate::counting::Tally;
use crate::device::DeviceSpec;
use crate::device::driver::{DeviceRequest, DeviceUse, PackedDevice};
use crate::dhcp::{DhcpSettings, LeaseClient};
use crate::launch::LaunchSpec;
use crate::mtu::{Followed, MTUS};
use crate::names::Names;
use crate::netem::NetemSpec;
use crate::plan_error::{PlanError, Result};
use crate::publish::{Protocol, Publish};
use crate::remark::Tell;
use crate::replay::ReplayEnd;
use crate::shape::{LOCAL_PORTS, PackedLink, Shape};

/// Choice of the nameserver for the programs of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns {
    /// The nameserver at this address.
    At(IpAddr),
    /// Programs use the nameservers of the host's /etc/resolv.conf unchanged.
    None,
}

/// The user's specification of a stack's uplink. The type implements `Send`.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Host ports that are forwarded to the program. [`Plan::check`] sorts them.
    pub publish: Vec<Publish>,
    /// Host sockets that another process has bound and passed, published as further ports.
    pub passed: Vec<(Publish, Arc<OwnedFd>)>,
    /// Device of the link; `None` for the rootless gateway.
    pub device: Option<DeviceSpec>,
    /// Addresses of the stack. If empty, the device or the gateway chooses them.
    pub addresses: Vec<Prefix>,
    /// Settings of the DHCP client that obtains the stack's address; `None` to use no DHCP.
    pub dhcp: Option<DhcpSettings>,
    /// Ports that the stack takes over on the kernel's own addresses of the interface. If empty,
    /// the stack has its own IP and Ethernet addresses.
    pub ports: Vec<PortRange>,
    /// MTU in bytes; `None` for the link's own MTU.
    pub mtu: Option<u32>,
    /// Whether connections to the gateway's address lead to this host's loopback.
    pub host_loopback: bool,
    /// Nameserver for the programs; `None` for the default of the link.
    pub dns: Option<Dns>,
    /// Host names that programs can resolve in addition to those of the host.
    pub names: Names,
    /// Default settings of TCP connections.
    pub tcp: TcpDefaults,
    /// Time in µs for which an idle stack polls before it sleeps.
    pub busy_poll_us: u32,
    /// First and last ephemeral port, as in net.ipv4.ip_local_port_range.
    pub local_ports: (u16, u16),
    /// File to which packets are recorded; `None` to record nothing.
    pub capture: Option<CaptureFile>,
    /// Callback that shows remarks to the user.
    pub tell: Tell,
    /// Whether executing a program fails if the program would use the host's sockets instead of the
    /// stack.
    pub strict: bool,
    /// Number of shards (threads of the stack), a power of two.
    pub shards: usize,
    /// Whether shards are added on demand. The stack then has only one shard if several would be
    /// slower on this link.
    pub auto: bool,
    /// Emulated links with delay and loss in front of the ports; `None` for no emulation.
    pub netem: Option<NetemSpec>,
    /// Number of descriptors that the gateway may use for flows; `None` for the limit of the
    /// process.
    pub descriptors: Option<u32>,
    /// Tally to which the ports report their counters.
    pub port_counters: Arc<Tally>,
}

/// Configuration and ports of an engine, after the link was opened.
pub struct Connected {
    /// Configuration of the engine.
    pub config: EngineConfig,
    /// Ports of each shard, in the order of the interfaces in the configuration.
    pub ports: Vec<Vec<Box<dyn Port + Send>>>,
    /// Addresses of the stack, each with its prefix length.
    pub addresses: Vec<Prefix>,
    /// Published ports, each with the host address to which it is bound.
    pub published: Vec<(Publish, SocketAddr)>,
    /// Text for the user with addresses and published ports; empty if there are none.
    pub facts: String,
    /// Receives notices of the gateway for the user, which the engine's thread sends. `None`
    /// without a gateway.
    pub notices: Option<Receiver<Notice>>,
    /// Kernel interface whose MTU changes the stack adopts by [`MtuFollower`](crate::MtuFollower);
    /// `None` without one.
    pub followed: Option<Followed>,
    /// Reports when a replay has ended; `None` for links that are no replay.
    pub replay: Option<ReplayEnd>,
    /// DHCP client of the interface. The caller must apply its leases. `None` without DHCP.
    pub dhcp: Option<LeaseClient>,
}

/// An open link that can be passed to an engine in PROGRAM's process.
pub struct Packed {
    /// Launch spec that is sent to PROGRAM's process.
    pub spec: LaunchSpec,
    /// Descriptors that must be sent with the launch spec, except that of the parent-death pipe.
    pub descriptors: Vec<OwnedFd>,
    /// Name of the device for messages, such as "the TAP device tw0"; empty without a device.
    pub device: String,
    /// Text for the user with addresses and published ports, as [`Connected::facts`].
    pub facts: String,
    /// Kernel interface whose MTU changes the stack adopts, as [`Connected::followed`].
    pub followed: Option<Followed>,
}

/// A link that was opened for an engine in PROGRAM's process, and the configuration of its stack.
pub(crate) struct Parted {
    pub(crate) link: PackedLink,
    pub(crate) shape: Shape,
    /// Descriptors of the link, to be passed to PROGRAM's process.
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) facts: String,
}

/// Reason why [`Plan::pack`] fails for a plan with a DHCP client.
const DHCP_NOT_INLINE: &str = "the client needs the engine in a process of its own";

impl Plan {
    /// Creates a plan with the defaults of the device, or of the rootless gateway if there is no
    /// device.
    pub fn new(device: Option<DeviceSpec>, tell: Tell) -> Self {
        Self {
            publish: Vec::new(),
            passed: Vec::new(),
            mtu: None,
            device,
            addresses: Vec::new(),
            dhcp: None,
            ports: Vec::new(),
            host_loopback: true,
            dns: None,
            names: Names::default(),
            tcp: TcpDefaults::default(),
            busy_poll_us: BUSY_POLL.as_micros() as u32,
            local_ports: LOCAL_PORTS,
            capture: None,
            tell,
            strict: false,
            shards: 1,
            auto: false,
            netem: None,
            descriptors: None,
            port_counters: Arc::default(),
        }
    }

    /// Adds emulated links in front of the ports. The default MTU is then that of Ethernet on every
    /// kind of link. With a larger MTU, losing a packet would lose more data than on a real path.
    pub fn set_netem(&mut self, netem: NetemSpec) {
        self.netem = Some(netem);
    }

    /// Checks whether parts of the plan contradict each other, and sorts the ports to publish.
    /// Ports with a given number come first. Otherwise the kernel could choose one of these when it
    /// binds a free port.
    ///
    /// # Errors
    /// Returns [`PlanError::Mtu`], [`PlanError::GivenTwice`], [`PlanError::PortsWithoutInterface`],
    /// or an error for a part that the device does not support.
    pub fn check(&mut self) -> Result<()> {
        let device = self.device.as_ref();
        if self.dhcp.is_some() && device.is_none() {
            return Err(PlanError::NoDhcp { device: "the gateway" });
        }
        let most = device.map_or(*MTUS.end(), |device| device.driver().traits.mtu_max);
        let mtu = self.mtu();
        if !MTUS.contains(&mtu) || mtu > most {
            let link = device.map_or("the gateway", DeviceSpec::noun).into();
            return Err(PlanError::Mtu { mtu, most, link });
        }
        if !self.ports.is_empty() && device.and_then(DeviceSpec::interface).is_none() {
            return Err(PlanError::PortsWithoutInterface);
        }
        if let Some(device) = device {
            self.check_device(device)?;
        }
        self.publish.sort_by_key(Publish::at_free_port);
        if let Some((one, other)) = given_twice(&self.publish) {
            return Err(PlanError::GivenTwice(one, other));
        }
        // Disable polling if only one processor is available, because it would delay the program.
        let are_several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        if !are_several {
            self.busy_poll_us = 0;
        }
        Ok(())
    }

    /// Checks whether the device supports the remaining parts of the plan.
    fn check_device(&self, device: &DeviceSpec) -> Result<()> {
        let traits = &device.driver().traits;
        if let Some(publish) = self.ports_of_host().first() {
            return Err(PlanError::PublishWithDevice(*publish));
        }
        if self.dhcp.is_some() && !traits.has_all_frames {
            return Err(PlanError::NoDhcp { device: device.driver().name });
        }
        if let Some(sentence) = traits.needs_address
            && self.dhcp.is_none()
            && self.addresses.is_empty()
            && self.ports.is_empty()
        {
            return Err(PlanError::NoAddress(sentence.replace("{}", device.parameters())));
        }
        if !traits.has_queues && self.shards > 1 && !self.auto {
            return Err(PlanError::OneShard { device: device.parameters().into() });
        }
        if !traits.reaches_host && self.names.lead_to_host() {
            return Err(PlanError::HostUnknown { link: device.noun().into() });
        }
        Ok(())
    }

    /// Opens the uplink: binds the host's ports, or opens the device. `seed` is the stack's secret,
    /// from which the assignment of flows to shards is computed.
    ///
    /// # Errors
    /// Returns a [`PlanError`]. All descriptors are closed then.
    pub fn build(&self, seed: &[u8; 32]) -> Result<Connected> {
        let mut uplink = match &self.device {
            None => self.over_gateway(self.rootless()?, Owners::new(seed, self.shards)),
            Some(device) => self.over_device(device, seed),
        }?;
        uplink.config.threads_by_need = self.auto;
        Ok(uplink)
    }

    /// Opens the link for an engine in PROGRAM's process. `library` is preloaded into programs that
    /// PROGRAM executes.
    ///
    /// # Errors
    /// As for [`Self::build`]. Also fails if the device cannot be passed to another process.
    pub fn pack(&self, library: OsString) -> Result<Packed> {
        let Some(device) = &self.device else {
            let Parted { link, shape, descriptors, facts } = self.parted_gateway()?;
            let spec = LaunchSpec { shape, link, strict: self.strict, library };
            let (device, followed) = (String::new(), None);
            return Ok(Packed { spec, descriptors, device, facts, followed });
        };
        let name = device.driver().name;
        if self.dhcp.is_some() {
            return Err(PlanError::NotInline { device: "dhcp", why: DHCP_NOT_INLINE });
        }
        let pack =
            device.driver().pack.map_err(|why| PlanError::NotInline { device: name, why })?;
        // Use an empty secret, because a device with a single queue does not assign flows to
        // queues.
        let PackedDevice { site, state, descriptors } =
            pack(device.parameters(), &self.request(&[0; 32]))?;
        let link = PackedLink::Device { name: name.into(), state };
        let spec = LaunchSpec { shape: self.behind(&site), link, strict: self.strict, library };
        let (device, facts, followed) = (site.name, site.facts, site.followed);
        Ok(Packed { spec, descriptors, device, facts, followed })
    }

    /// Returns the parameters for opening the device, for a stack whose secret is `seed`.
    pub(crate) fn request<'a>(&'a self, seed: &'a [u8; 32]) -> DeviceRequest<'a> {
        // With DHCP, use the settings of a router. Its other end is not configured here, because
        // the DHCP server is on the link.
        let usage = if self.dhcp.is_some() { DeviceUse::Router } else { DeviceUse::Host };
        DeviceRequest {
            ports: &self.ports,
            has_dhcp: self.dhcp.is_some(),
            mtu: self.mtu,
            queues: self.shards,
            auto: self.auto,
            seed,
            ..DeviceRequest::new(usage, &self.addresses, &self.port_counters, &self.tell)
        }
    }

    /// Returns the counters of the ports, which are final after the ports were dropped.
    pub fn port_counters(&self) -> PortCounters {
        self.port_counters.counted()
    }
}

/// Returns two published ports that would bind the same port of this host, if there are such.
fn given_twice(publish: &[Publish]) -> Option<(Publish, Publish)> {
    let mut by_port = std::collections::HashMap::<_, Vec<&Publish>>::new();
    for one in publish {
        let same = by_port.entry((one.host.port(), one.protocol == Protocol::Tcp)).or_default();
        if let Some(other) = same.iter().find(|other| other.collides(one)) {
            return Some((**other, *one));
        }
        same.push(one);
    }
    None
}
