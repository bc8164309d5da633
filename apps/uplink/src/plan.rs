//! From words to a link: the plan of a stack's uplink, and how its link is opened.
//!
//! A plan opens its device, or without one the gateway (`rootless`). Then `assemble` makes the
//! stack and the ports.

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
use towpath_tcp::CongestionKind;
use towpath_wire::Prefix;

use crate::counting::Tally;
use crate::device::DeviceSpec;
use crate::device::driver::{DeviceRequest, DeviceUse, PackedDevice};
use crate::launch::LaunchSpec;
use crate::mtu::{Followed, MTUS};
use crate::names::Names;
use crate::netem::NetemSpec;
use crate::plan_error::{PlanError, Result};
use crate::publish::{Protocol, Publish};
use crate::remark::Tell;
use crate::replay::ReplayEnd;
use crate::shape::{LOCAL_PORTS, PackedLink, Shape};

/// A nameserver for the programs of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns {
    /// The nameserver at this address.
    At(IpAddr),
    /// Programs are left with the nameservers that they find.
    None,
}

/// Words that make the uplink of a stack; a plan can go to another thread.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ports of the host that are forwarded to the program. [`Plan::check`] sorts them.
    pub publish: Vec<Publish>,
    /// Bound sockets that the caller handed over, as further ports.
    pub passed: Vec<(Publish, Arc<OwnedFd>)>,
    /// Device of the link; None: the rootless gateway.
    pub device: Option<DeviceSpec>,
    /// Addresses of the stack; empty: not asked for.
    pub addresses: Vec<Prefix>,
    /// Ports of the addresses that the kernel has on the interface; empty: the stack has addresses
    /// and an Ethernet address of its own.
    pub ports: Vec<PortRange>,
    /// Longest IP packet of the link, in bytes; None: the link's own.
    pub mtu: Option<u32>,
    /// Whether the gateway's address leads to this host's loopback.
    pub host_loopback: bool,
    /// Nameserver of the programs; None: not asked for.
    pub dns: Option<Dns>,
    /// Names beside those of the host.
    pub names: Names,
    /// Congestion control of connections whose program chooses none.
    pub congestion: CongestionKind,
    /// Microseconds for which the stack looks for more to do before it sleeps.
    pub busy_poll_us: u32,
    /// First and last port that is chosen for sockets that name none.
    pub local_ports: (u16, u16),
    /// File into which packets are recorded.
    pub capture: Option<CaptureFile>,
    /// Listener for remarks.
    pub tell: Tell,
    /// Programs whose sockets would be the host's are not executed.
    pub strict: bool,
    /// Parts of the stack: a power of two.
    pub shards: usize,
    /// Threads by need for the shards. Where several shards would be in each other's way there is
    /// one.
    pub auto: bool,
    /// Links with delay and loss in front of the ports.
    pub netem: Option<NetemSpec>,
    /// Descriptors that the gateway may count on for flows; None: all that the process may have.
    pub descriptors: Option<u32>,
    /// Counters of the ports.
    pub port_counters: Arc<Tally>,
}

/// An engine to be whose link is open.
pub struct Connected {
    /// Configuration of the engine.
    pub config: EngineConfig,
    /// Ports of each shard: one for each interface in the configuration, in its order.
    pub ports: Vec<Vec<Box<dyn Port + Send>>>,
    /// Addresses of the stack, each with the length of its network.
    pub addresses: Vec<Prefix>,
    /// Published ports, each with the address of the host where it is bound.
    pub published: Vec<(Publish, SocketAddr)>,
    /// A line for the user: addresses and published ports. Empty where there is nothing to know.
    pub facts: String,
    /// Notices of the gateway for the user, from the engine's thread. None: there is no gateway.
    pub notices: Option<Receiver<Notice>>,
    /// Interface whose MTU the stack is to follow, by [`MtuFollower`](crate::MtuFollower).
    pub followed: Option<Followed>,
    /// End of the replay, if the link is one.
    pub replay: Option<ReplayEnd>,
}

/// An engine to be in PROGRAM's process.
pub struct Packed {
    /// Words for that process.
    pub spec: LaunchSpec,
    /// Descriptors that go with the launch spec, but for the parent-death pipe's.
    pub descriptors: Vec<OwnedFd>,
    /// Name of the device for messages, as "the TAP device tw0"; empty: there is none.
    pub device: String,
    /// As [`Connected::facts`].
    pub facts: String,
    /// As [`Connected::followed`].
    pub followed: Option<Followed>,
}

/// A link that is open, for an engine in PROGRAM's process, and the stack behind it.
pub(crate) struct Parted {
    pub(crate) link: PackedLink,
    pub(crate) shape: Shape,
    /// Descriptors of the link.
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) facts: String,
}

impl Plan {
    /// Creates a plan with the defaults of its device, or of the gateway.
    pub fn new(device: Option<DeviceSpec>, tell: Tell) -> Self {
        Self {
            publish: Vec::new(),
            passed: Vec::new(),
            mtu: None,
            device,
            addresses: Vec::new(),
            ports: Vec::new(),
            host_loopback: true,
            dns: None,
            names: Names::default(),
            congestion: CongestionKind::default(),
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

    /// Puts links in front of the ports. The MTU is then an Ethernet's, whatever the link: loss
    /// strikes packets, and paths that lose some have that MTU.
    pub fn set_netem(&mut self, netem: NetemSpec) {
        self.netem = Some(netem);
    }

    /// Checks whether parts of the plan contradict each other, and sorts the ports to publish.
    /// Named ports are taken first; otherwise the host could choose one of them as a free one.
    ///
    /// # Errors
    /// [`PlanError::Mtu`], [`PlanError::GivenTwice`], [`PlanError::PortsWithoutInterface`], or one
    /// that the device does not go with.
    pub fn check(&mut self) -> Result<()> {
        let device = self.device.as_ref();
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
        // A container with the time of one processor has none to look on with.
        let are_several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        if !are_several {
            self.busy_poll_us = 0;
        }
        Ok(())
    }

    /// Checks whether other parts of the plan go with the device.
    fn check_device(&self, device: &DeviceSpec) -> Result<()> {
        let traits = &device.driver().traits;
        if let Some(publish) = self.ports_of_host().first() {
            return Err(PlanError::PublishWithDevice(*publish));
        }
        if let Some(sentence) = traits.needs_address
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

    /// Makes the uplink: binds the host's ports, or opens the device. Packets go to the shard
    /// that owns their flow among those of a stack whose secret is `seed`.
    ///
    /// # Errors
    /// See [`PlanError`]. Nothing stays open.
    pub fn build(&self, seed: &[u8; 32]) -> Result<Connected> {
        let mut uplink = match &self.device {
            None => self.over_gateway(self.rootless()?, Owners::new(seed, self.shards)),
            Some(device) => self.over_device(device, seed),
        }?;
        uplink.config.threads_by_need = self.auto;
        Ok(uplink)
    }

    /// Opens the link for an engine in PROGRAM's process. `library` is loaded into programs that
    /// PROGRAM starts.
    ///
    /// # Errors
    /// As for [`Self::build`], or the device cannot move to another process.
    pub fn pack(&self, library: OsString) -> Result<Packed> {
        let Some(device) = &self.device else {
            let Parted { link, shape, descriptors, facts } = self.parted_gateway()?;
            let spec = LaunchSpec { shape, link, strict: self.strict, library };
            let (device, followed) = (String::new(), None);
            return Ok(Packed { spec, descriptors, device, facts, followed });
        };
        let name = device.driver().name;
        let pack =
            device.driver().pack.map_err(|why| PlanError::NotInline { device: name, why })?;
        // The only queue needs no owner.
        let PackedDevice { site, state, descriptors } =
            pack(device.parameters(), &self.request(&[0; 32]))?;
        let link = PackedLink::Device { name: name.into(), state };
        let spec = LaunchSpec { shape: self.behind(&site), link, strict: self.strict, library };
        let (device, facts, followed) = (site.name, site.facts, site.followed);
        Ok(Packed { spec, descriptors, device, facts, followed })
    }

    /// Returns the request for the device of a stack whose secret is `seed`.
    pub(crate) fn request<'a>(&'a self, seed: &'a [u8; 32]) -> DeviceRequest<'a> {
        DeviceRequest {
            ports: &self.ports,
            mtu: self.mtu,
            queues: self.shards,
            auto: self.auto,
            seed,
            ..DeviceRequest::new(DeviceUse::Host, &self.addresses, &self.port_counters, &self.tell)
        }
    }

    /// Counters of the ports; complete once these are gone.
    pub fn port_counters(&self) -> PortCounters {
        self.port_counters.counted()
    }
}

/// Two of `-p` that are one port of this host.
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
