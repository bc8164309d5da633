//! From words to a link: the plan of a stack's uplink, and how its link is opened.
//!
//! Each kind of link has a file: `rootless`, `tap`, `interface` (packet sockets and XDP), `dpdk`
//! and `replay`. `Plan` chooses among them here. Each uses `assemble`, which makes the stack and
//! the ports, and no method of this file.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
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
use crate::launch::LaunchSpec;
use crate::mtu::Followed;
use crate::names::Names;
use crate::netem::NetemSpec;
use crate::plan_error::PlanError;
use crate::publish::{Protocol, Publish};
use crate::replay::ReplayEnd;
use crate::shape::{LOCAL_PORTS, Link, Shape};

pub(crate) type Result<T> = std::result::Result<T, PlanError>;

/// A nameserver for the programs of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns {
    /// The nameserver at this address.
    At(IpAddr),
    /// Programs are left with the nameservers that they find.
    None,
}

/// A remark for the user about a link. No call waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remark {
    /// The link works, but not as the user may expect, with the sentence that says why.
    Warning(String),
    /// The device was removed: "the TAP device tw0", or "the interface veth1".
    DeviceGone(String),
}

/// Kind of the link of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkKind {
    /// The rootless gateway.
    Gateway,
    /// A TAP device, of this name if it has one.
    Tap(Option<String>),
    /// An Ethernet interface of this machine, by its name, which the kernel uses as well.
    Packet(String),
    /// The same by XDP.
    Xdp(String),
    /// The port that DPDK finds when it is started with these arguments of EAL.
    Dpdk(String),
    /// Packets of a capture in this file, which come once a program takes any.
    Replay(PathBuf),
}

impl LinkKind {
    /// Name of the interface that the kernel uses as well.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Packet(name) | Self::Xdp(name) => Some(name),
            Self::Gateway | Self::Tap(_) | Self::Dpdk(_) | Self::Replay(_) => None,
        }
    }
}

/// A function that takes remarks, on any thread.
#[derive(Clone)]
pub struct Tell(Arc<dyn Fn(Remark) + Send + Sync>);

/// Words that make the uplink of a stack; a plan can go to another thread.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ports of the host that are forwarded to the program. [`Plan::check`] sorts them.
    pub publish: Vec<Publish>,
    /// Bound sockets that the caller handed over, as further ports.
    pub passed: Vec<(Publish, Arc<OwnedFd>)>,
    /// Kind of the link.
    pub link: LinkKind,
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
    pub outfit: LaunchSpec,
    /// Descriptors that go with the launch spec, but for the parent-death pipe's.
    pub descriptors: Vec<OwnedFd>,
    /// As [`Connected::facts`].
    pub facts: String,
    /// As [`Connected::followed`].
    pub followed: Option<Followed>,
}

/// A link that is open, for an engine in PROGRAM's process, and the stack behind it.
pub(crate) struct Parted {
    pub(crate) link: Link,
    pub(crate) shape: Shape,
    /// Descriptors of the link.
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) facts: String,
}

/// The largest MTU that Linux lets a TAP device have: 65535 less the 14 bytes of an Ethernet
/// header (MAX_MTU and hard_header_len in drivers/net/tun.c).
const MTU_TAP_MAX: u32 = 65_535 - 14;
/// The least MTU of IPv6 (RFC 8200, section 5), and the longest packet of IPv4 (RFC 791).
pub const MTUS: RangeInclusive<u32> = 1280..=65535;

impl Tell {
    /// A `Tell` that calls `listener` with remarks.
    pub fn new(listener: impl Fn(Remark) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn remark(&self, remark: Remark) {
        (self.0)(remark);
    }
}

impl std::fmt::Debug for Tell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tell").finish_non_exhaustive()
    }
}

impl Plan {
    /// A plan for a link with the defaults of its kind.
    pub fn new(link: LinkKind, tell: Tell) -> Self {
        Self {
            publish: Vec::new(),
            passed: Vec::new(),
            mtu: None,
            link,
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
    /// [`PlanError::Mtu`], [`PlanError::PublishWithDevice`], [`PlanError::GivenTwice`],
    /// [`PlanError::NoAddress`], [`PlanError::OneShard`], [`PlanError::PortsWithoutInterface`].
    pub fn check(&mut self) -> Result<()> {
        let (most, link) = match &self.link {
            LinkKind::Gateway => (*MTUS.end(), "the gateway"),
            LinkKind::Tap(_) => (MTU_TAP_MAX, "a TAP device"),
            LinkKind::Packet(name) | LinkKind::Xdp(name) => (*MTUS.end(), name.as_str()),
            LinkKind::Dpdk(_) => (*MTUS.end(), "a port of DPDK"),
            LinkKind::Replay(_) => (*MTUS.end(), "a replay"),
        };
        let mtu = self.mtu();
        if !MTUS.contains(&mtu) || mtu > most {
            return Err(PlanError::Mtu { mtu, most, link: link.into() });
        }
        if self.link != LinkKind::Gateway
            && let Some(publish) = self.ports_of_host().first()
        {
            return Err(PlanError::PublishWithDevice(*publish));
        }
        match self.link.interface() {
            Some(name) if self.addresses.is_empty() && self.ports.is_empty() => {
                return Err(PlanError::NoAddress { interface: name.into() });
            }
            None if !self.ports.is_empty() => return Err(PlanError::PortsWithoutInterface),
            _ => {}
        }
        if let LinkKind::Xdp(name) = &self.link
            && self.shards > 1
            && !self.auto
        {
            return Err(PlanError::OneShard { interface: name.clone() });
        }
        if matches!(self.link, LinkKind::Dpdk(_)) && self.addresses.is_empty() {
            return Err(PlanError::NoAddress { interface: "the port".into() });
        }
        if let LinkKind::Replay(file) = &self.link {
            let name = file.display().to_string();
            if self.addresses.is_empty() {
                return Err(PlanError::NoReplayAddress);
            }
            if self.shards > 1 && !self.auto {
                return Err(PlanError::OneShard { interface: name });
            }
        }
        if !matches!(self.link, LinkKind::Gateway | LinkKind::Tap(_)) && self.names.lead_to_host() {
            return Err(PlanError::HostUnknown { link: link.into() });
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

    /// Makes the uplink: binds the host's ports, or opens the device. Packets go to the shard
    /// that owns their flow among those of a stack whose secret is `seed`.
    ///
    /// # Errors
    /// See [`PlanError`]. Nothing stays open.
    pub fn build(&self, seed: &[u8; 32]) -> Result<Connected> {
        let mut uplink = match &self.link {
            LinkKind::Gateway => {
                self.over_gateway(self.rootless()?, Owners::new(seed, self.shards))
            }
            LinkKind::Tap(name) => self.over_tap(name.clone(), seed),
            LinkKind::Packet(name) => self.by_packets(name, seed),
            LinkKind::Xdp(name) => self.by_xdp(name),
            LinkKind::Dpdk(arguments) => self.over_dpdk(arguments),
            LinkKind::Replay(file) => self.over_replay(file),
        }?;
        uplink.config.threads_by_need = self.auto;
        Ok(uplink)
    }

    /// Opens the link for an engine in PROGRAM's process. `library` is loaded into programs that
    /// PROGRAM starts.
    ///
    /// # Errors
    /// As for [`Self::build`].
    pub fn pack(&self, library: OsString) -> Result<Packed> {
        let Parted { link, shape, descriptors, facts } = match &self.link {
            LinkKind::Gateway => self.parted_gateway(),
            LinkKind::Tap(name) => self.parted_tap(name.clone()),
            LinkKind::Packet(name) => self.parted_packets(name),
            LinkKind::Xdp(name) => self.parted_xdp(name),
            LinkKind::Dpdk(_) => Err(PlanError::DpdkInside),
            LinkKind::Replay(file) => self.parted_replay(file),
        }?;
        let followed = match &link {
            Link::Packet(interface) => Some(Followed::new(interface, self.mtu)),
            Link::Xdp(facts) => Some(self.followed_xdp(facts)),
            Link::Gateway { .. } | Link::Tap { .. } | Link::Replay(_) => None,
        };
        let outfit = LaunchSpec { shape, link, strict: self.strict, library };
        Ok(Packed { outfit, descriptors, facts, followed })
    }

    /// Counters of the ports; complete once these are gone.
    pub fn port_counters(&self) -> PortCounters {
        self.port_counters.counted()
    }
}

/// 32 unpredictable bytes, for the secrets of a stack.
///
/// # Errors
/// See getrandom(2).
pub fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // Up to 256 bytes come whole once the system has started.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| system("get random bytes")(errno.into()))?;
    Ok(bytes)
}

/// An Ethernet address that no other host is likely to have: 02 is locally administered, unicast.
pub(crate) fn random_mac() -> Result<[u8; 6]> {
    let [a, b, c, d, e, ..] = random()?;
    Ok([0x02, a, b, c, d, e])
}

/// Addresses in a sentence.
pub(crate) fn list(ips: impl Iterator<Item = IpAddr>) -> String {
    ips.map(|ip| ip.to_string()).collect::<Vec<_>>().join(" and ")
}

/// The kernel's error of a step.
pub(crate) fn system(step: &'static str) -> impl Fn(std::io::Error) -> PlanError {
    move |source| PlanError::System { step, source }
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
