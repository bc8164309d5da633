//! What the stack is connected to: the rootless gateway, or a TAP device.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use towpath_engine::EngineConfig;
use towpath_gateway::{
    Bound, Egress, Forward, ForwardError, ForwardProtocol, Gateway, GatewayConfig, Nameserver,
    Notice,
};
use towpath_pcap::CaptureFile;
use towpath_pool::{LinkType, Port};
use towpath_stack::Owners;
use towpath_tap::{OpenError, Parts, Steering, Tap};
use towpath_uplink::{Counted, Counting, Link, Outfit, PortCounters, Resolver, Shape};
use towpath_wire::Prefix;

use crate::args::{Congestion, Dns, Protocol, Publish, RunArgs, Shards};
use crate::error::{ExitCode, Failure};
use crate::host_routes::{self, HostRoute};
use crate::messages::Messages;
use crate::tap_network::Choosing;

/// What of the command line makes the stack; can go to another thread.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ports of the host that are forwarded to the program.
    pub publish: Vec<Publish>,
    /// Some: a TAP device, with the name that was asked for.
    pub tap: Option<Option<String>>,
    /// Empty: not asked for.
    pub addresses: Vec<Prefix>,
    /// Longest IP packet of the link, in bytes.
    pub mtu: u32,
    /// The gateway's address leads to this host's loopback.
    pub host_loopback: bool,
    /// None: not asked for.
    pub dns: Option<Dns>,
    /// Of connections whose program chooses none.
    pub congestion: Congestion,
    /// How long the stack looks for more to do before it sleeps.
    pub busy_poll_us: u32,
    /// Where packets are recorded.
    pub capture: Option<CaptureFile>,
    /// To standard error.
    pub messages: Messages,
    /// Programs whose sockets would be the host's are not executed.
    pub strict: bool,
    /// Parts of the stack: a power of two.
    pub shards: usize,
    /// They have threads by need, and where several would be in each other's way there is one.
    pub auto: bool,
    /// What the ports count is added here at their end.
    pub port_counters: Arc<Mutex<PortCounters>>,
}

/// A stack to be, and what there is to say about its uplink.
pub struct Uplink {
    /// Of the engine.
    pub config: EngineConfig,
    /// Of each shard: one for each interface in the configuration, in its order.
    pub ports: Vec<Vec<Box<dyn Port + Send>>>,
    /// A line for the user: addresses and published ports. Empty where there is nothing to know.
    pub facts: String,
    /// What the gateway tells the user, from the engine's thread. None: there is no gateway.
    pub notices: Option<Receiver<Notice>>,
}

/// What an engine in PROGRAM's process is made of.
pub struct Packed {
    pub outfit: Outfit,
    /// Those that go with it, but for the lifeline's.
    pub descriptors: Vec<OwnedFd>,
    /// As [`Uplink::facts`].
    pub facts: String,
}

/// A gateway to be, and the stack behind it.
struct Rootless {
    config: GatewayConfig,
    shape: Shape,
    /// The program's address.
    program: IpAddr,
}

/// A device, and the stack behind it.
struct Tapped {
    /// One for each shard.
    queues: Vec<Tap>,
    shape: Shape,
    facts: String,
}

/// Published ports that are named one by one when the run starts; of more, the first and the last. Those that the host
/// chose are named each, because nothing else tells them.
const FACTS_MAX: usize = 8;
/// Longest packet through the gateway. Memory has no limit of its own, and large segments save work;
/// but a fresh receive window (64 KiB) should hold several, or the sender waits for window updates.
const MTU_ROOTLESS: u32 = 16_384;
/// Longest packet of an Ethernet.
const MTU_TAP: u32 = 1500;
/// The largest MTU that Linux lets a TAP device have: 65535 less the 14 bytes of an Ethernet header (MAX_MTU and
/// hard_header_len in drivers/net/tun.c).
const MTU_TAP_MAX: u32 = 65_535 - 14;
/// As the guests of slirp4netns and of QEMU's user network have them, so that habits and scripts fit.
const ADDRESSES_ROOTLESS: [&str; 2] = ["10.0.2.15/24", "fd00:2::15/64"];

impl Plan {
    /// Checks what options say about each other.
    ///
    /// # Errors
    /// They contradict each other, with the sentence for the user.
    pub fn new(args: &RunArgs, capture: Option<CaptureFile>, messages: Messages) -> Result<Self> {
        let tap = args.tap.clone().map(|name| Some(name).filter(|name| !name.is_empty()));
        let mtu = args.mtu.unwrap_or(if tap.is_some() { MTU_TAP } else { MTU_ROOTLESS });
        if tap.is_some() && mtu > MTU_TAP_MAX {
            let message = format!("--mtu {mtu}: a TAP device takes at most {MTU_TAP_MAX}");
            return Err(Failure::error(ExitCode::Failed, message));
        }
        let mut publish: Vec<_> = args.publish.iter().flat_map(|ports| ports.0.clone()).collect();
        // Ports that are named are taken first: the host could choose one of them as a free one.
        publish.sort_by_key(Publish::at_free_port);
        if let Some((one, other)) = given_twice(&publish) {
            let message = format!(
                "-p {one} and -p {other} are the same port of this host; choose another HOSTPORT for one"
            );
            return Err(Failure::error(ExitCode::Failed, message));
        }
        // Who may use no more than the time of one processor, a container for instance, has none to look on with.
        let are_several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        Ok(Self {
            publish,
            tap,
            addresses: args.address.clone(),
            mtu,
            host_loopback: !args.no_host_loopback,
            dns: args.dns,
            congestion: args.congestion,
            busy_poll_us: if are_several { args.busy_poll } else { 0 },
            capture,
            messages,
            strict: args.strict,
            shards: args.shards()?,
            auto: args.shards == Shards::Auto,
            port_counters: Arc::default(),
        })
    }

    /// Makes the uplink: binds the host's ports, or opens the device. Packets go to the shard that owns their flow among
    /// those of a stack whose secret is `seed`.
    pub fn build(&self, seed: &[u8; 32]) -> Result<Uplink> {
        let mut uplink = match &self.tap {
            None => self.over_gateway(self.rootless()?, Owners::new(seed, self.shards)),
            Some(name) => self.over_tap(name.clone(), seed),
        }?;
        uplink.config.threads_by_need = self.auto;
        Ok(uplink)
    }

    /// The same for an engine in PROGRAM's process. `library` is loaded into what PROGRAM starts.
    pub fn pack(&self, library: OsString) -> Result<Packed> {
        let strict = self.strict;
        if let Some(name) = &self.tap {
            let Tapped { mut queues, shape, facts } = self.set_up(self.queues(name.clone())?)?;
            let tap = queues.pop().context("the device has a queue")?;
            let Parts { fd, name, udp_segmentation } = tap.into_parts();
            let link = Link::Tap { name, udp_segmentation };
            let outfit = Outfit { shape, link, strict, library };
            return Ok(Packed { outfit, descriptors: vec![fd.into()], facts });
        }
        let Rootless { config, shape, program } = self.rootless()?;
        let forwards: Vec<_> = self.publish.iter().map(forward).collect();
        let bound = Bound::all(&forwards).map_err(|error| port_taken(&error, &self.publish))?;
        let places: Vec<_> = bound.iter().map(|bound| bound.host).collect();
        let facts = facts(&self.publish, &places, program);
        let forwards = bound.iter().map(|bound| (bound.which, bound.host)).collect();
        let link = Link::Gateway { config: Box::new(config), forwards };
        let descriptors = bound.into_iter().map(|bound| bound.socket.into()).collect();
        Ok(Packed { outfit: Outfit { shape, link, strict, library }, descriptors, facts })
    }

    fn rootless(&self) -> Result<Rootless> {
        let defaults = GatewayConfig::default();
        let mut addresses = self.addresses.clone();
        if addresses.is_empty() {
            let parsed = ADDRESSES_ROOTLESS.iter().map(|text| text.parse());
            addresses = parsed.collect::<Result<_, _>>().context("defaults")?;
        }
        let own = |v4: bool| addresses.iter().find(|prefix| prefix.addr().is_ipv4() == v4);
        // The default network's gateway is 10.0.2.2, where other rootless networks have it too.
        let gateway = |v4: bool, default: Option<IpAddr>| {
            let own = own(v4)?;
            let fits = default.filter(|ip| own.contains(*ip) && *ip != own.addr());
            fits.or_else(|| other_host(own)).or(default)
        };
        let v4 = |ip: IpAddr| if let IpAddr::V4(ip) = ip { Some(ip) } else { None };
        let v6 = |ip: IpAddr| if let IpAddr::V6(ip) = ip { Some(ip) } else { None };
        let mut config = GatewayConfig {
            program_v4: own(true).and_then(|prefix| v4(prefix.addr())),
            program_v6: own(false).and_then(|prefix| v6(prefix.addr())),
            gateway_v4: gateway(true, defaults.gateway_v4.map(IpAddr::V4)).and_then(v4),
            gateway_v6: gateway(false, defaults.gateway_v6.map(IpAddr::V6)).and_then(v6),
            host_loopback: self.host_loopback,
            dns_v4: None,
            dns_v6: None,
            nameserver: match self.dns {
                Some(Dns::At(ip)) => Nameserver::At(vec![SocketAddr::new(ip, 53)]),
                _ => Nameserver::OfHost,
            },
            dns_everywhere: false,
            egress: Egress::default(),
            mtu: self.mtu,
            descriptors: None,
            seed: random()?,
        };
        if self.dns != Some(Dns::None) {
            let beside = |v4: bool, gateway: Option<IpAddr>, default: Option<IpAddr>| {
                forwarder(own(v4)?, gateway?, default)
            };
            let (gateway_v4, gateway_v6) =
                (config.gateway_v4.map(IpAddr::V4), config.gateway_v6.map(IpAddr::V6));
            config.dns_v4 = beside(true, gateway_v4, defaults.dns_v4.map(IpAddr::V4)).and_then(v4);
            config.dns_v6 = beside(false, gateway_v6, defaults.dns_v6.map(IpAddr::V6)).and_then(v6);
        }
        self.warn_of_routers(&config);
        let dns = config.dns_v4.map(IpAddr::V4).or(config.dns_v6.map(IpAddr::V6));
        let only_loopback = self.dns.is_none();
        let resolver = dns.map(|address| Resolver { address, only_loopback });
        let program = config.program_v4.map(IpAddr::V4).or(config.program_v6.map(IpAddr::V6));
        let program = program.context("an address is given or there is a default")?;
        let routes = Shape::default_routes(&addresses, LinkType::Ip, |_| None);
        let (mac, mtu, newreno) = ([0; 6], self.mtu, self.newreno());
        let busy_poll_us = self.busy_poll_us;
        let shape = Shape { mac, addresses, mtu, routes, resolver, newreno, busy_poll_us };
        Ok(Rootless { config, shape, program })
    }

    fn over_gateway(&self, rootless: Rootless, owners: Owners) -> Result<Uplink> {
        let Rootless { config, shape, program } = rootless;
        let mut gateways = Gateway::shards(&config, owners, now_ns()).context("the gateway")?;
        let (sender, notices) = channel();
        for gateway in &mut gateways {
            let sender = sender.clone();
            // Whoever would hear of it has ended: so has the run.
            gateway.on_notice(move |notice| {
                let _ = sender.send(notice);
            });
        }
        let forwards: Vec<_> = self.publish.iter().map(forward).collect();
        let bound = Gateway::listen_all(&mut gateways, &forwards)
            .map_err(|error| port_taken(&error, &self.publish))?;
        let facts = facts(&self.publish, &bound, program);
        let uplink = self.finish(gateways, &shape, facts)?;
        Ok(Uplink { notices: Some(notices), ..uplink })
    }

    /// An address of the gateway that is a router of this host's network as well hides that from the program.
    fn warn_of_routers(&self, config: &GatewayConfig) {
        let ours = [
            config.gateway_v4.map(IpAddr::V4),
            config.gateway_v6.map(IpAddr::V6),
            config.dns_v4.map(IpAddr::V4),
            config.dns_v6.map(IpAddr::V6),
        ];
        for ip in hidden_routers(&host_routes::all(), &ours) {
            self.messages.say(&format!(
                "{ip} is a router of this host's network: the program reaches towpath's gateway there, and \
                 not the router; choose another network by --address"
            ));
        }
    }

    fn newreno(&self) -> bool {
        matches!(self.congestion, Congestion::Newreno)
    }

    /// A device with a queue a shard.
    fn queues(&self, name: Option<String>) -> Result<Vec<Tap>> {
        let options = towpath_tap::Options { name };
        let queues = match Tap::open_queues(&options, self.shards) {
            Err(OpenError::OneQueue { .. }) if self.auto => Tap::open_queues(&options, 1),
            opened => opened,
        };
        queues.map_err(|error| match error {
            OpenError::BadName { .. } => {
                Failure::error(ExitCode::Failed, format!("--tap: {error}"))
            }
            error => error.into(),
        })
    }

    /// Chooses the addresses, and sets up this host's end of a device.
    fn set_up(&self, queues: Vec<Tap>) -> Result<Tapped> {
        let tap = queues.first().context("the device has a queue")?;
        let choosing = Choosing::begin()?;
        let addresses = choosing.addresses(tap.name(), &self.addresses)?;
        let hosts: Vec<_> =
            addresses.iter().filter_map(|own| Some((other_host(own)?, own.len()))).collect();
        towpath_tap::set_up_host(tap.name(), self.mtu, &hosts)?;
        drop(choosing);
        let list =
            |ips: Vec<IpAddr>| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" and ");
        let own = list(addresses.iter().map(Prefix::addr).collect());
        let host = list(hosts.iter().map(|(ip, _)| *ip).collect());
        let facts = format!("{own} on {} (this host is {host})", tap.name());
        let [a, b, c, d, e, ..] = random()?;
        // 02: locally administered, unicast.
        let mac = [0x02, a, b, c, d, e];
        // There is no forwarder: the nameserver is reached as other hosts are.
        let resolver = match self.dns {
            Some(Dns::At(address)) => Some(Resolver { address, only_loopback: false }),
            _ => None,
        };
        let routes = Shape::default_routes(&addresses, LinkType::Ethernet, other_host);
        let (mtu, newreno, busy_poll_us) = (self.mtu, self.newreno(), self.busy_poll_us);
        let shape = Shape { mac, addresses, mtu, routes, resolver, newreno, busy_poll_us };
        Ok(Tapped { queues, shape, facts })
    }

    fn over_tap(&self, name: Option<String>, seed: &[u8; 32]) -> Result<Uplink> {
        let mut queues = self.queues(name)?;
        // As soon as the device is up, this host sends.
        self.steer(&mut queues, seed);
        let Tapped { mut queues, shape, facts } = self.set_up(queues)?;
        let tap = queues.first_mut().context("the device has a queue")?;
        let (messages, gone) = (self.messages.clone(), tap.name().to_owned());
        tap.on_gone(move || messages.post(&device_gone(&gone)));
        self.finish(queues, &shape, facts)
    }

    /// Has the kernel put packets into the queue of the shard that owns their flow. Where it does not, shards hand on what
    /// is another's; if nobody asked for several there is one queue then, and one shard.
    fn steer(&self, queues: &mut Vec<Tap>, seed: &[u8; 32]) {
        let [tap, _, ..] = &queues[..] else { return };
        let owners = Owners::new(seed, queues.len());
        let steering = Steering { key: owners.key(), queues: owners.count() as u32 };
        let Err(error) = tap.steer(Some(&steering)) else { return };
        // A run before this one may have left its own in a device that stays. Without the call there is none.
        let _ = tap.steer(None);
        if self.auto {
            return queues.truncate(1);
        }
        self.messages.say(&format!(
            "packets come in at any shard of {}, which hands them on and costs time: steering them needs CAP_BPF and \
             Linux 4.16 ({error})",
            tap.name()
        ));
    }

    /// A stack whose shards have these ports.
    fn finish<P: Port + Counted + 'static>(
        &self,
        ports: Vec<P>,
        shape: &Shape,
        facts: String,
    ) -> Result<Uplink> {
        let config = shape.config(ports.first().context("each shard has a port")?);
        let count = |port| Counting::new(port, &self.port_counters);
        let ports: Vec<_> = ports.into_iter().map(count).collect();
        let ports = match &self.capture {
            Some(file) => {
                boxed(file.capture_queues(Shape::INTERFACE_NAME, ports).context("--pcap")?)
            }
            None => boxed(ports),
        };
        Ok(Uplink { config, ports, facts, notices: None })
    }

    /// What the ports counted; complete once they are gone.
    pub fn port_counters(&self) -> PortCounters {
        self.port_counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The only port of each shard.
fn boxed(ports: Vec<impl Port + Send + 'static>) -> Vec<Vec<Box<dyn Port + Send>>> {
    ports.into_iter().map(|port| vec![Box::new(port) as Box<dyn Port + Send>]).collect()
}

/// CLOCK_MONOTONIC, which is the engine's clock.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// 32 bytes nobody can guess.
pub fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // Up to 256 bytes come whole once the system has started.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("getrandom")?;
    Ok(bytes)
}

/// The first host of the network that is not `own` itself; None when there is no other.
pub fn other_host(own: &Prefix) -> Option<IpAddr> {
    hosts(own).take(2).find(|ip| *ip != own.addr())
}

/// The hosts of a network from the first one on.
fn hosts(own: &Prefix) -> impl Iterator<Item = IpAddr> + '_ {
    let next = |ip: IpAddr, n: u8| match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(n.into()).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_add(n.into()).map(|bits| IpAddr::V6(bits.into())),
    };
    let bits = if own.addr().is_ipv4() { 32 } else { 128 };
    // In a network of two both are hosts (RFC 3021, RFC 6164); otherwise the first is the network's.
    let first = u8::from(own.len() != bits - 1);
    let is_host = move |ip: &IpAddr| {
        let broadcast = ip.is_ipv4() && own.len() < 31 && *ip == own.last();
        own.contains(*ip) && !broadcast
    };
    (first..=u8::MAX).map_while(move |n| next(own.network(), n)).take_while(is_host)
}

/// Where the forwarder of DNS is in a network: the default address if it fits, else the first that nobody has.
fn forwarder(own: &Prefix, gateway: IpAddr, default: Option<IpAddr>) -> Option<IpAddr> {
    let free = |ip: &IpAddr| own.contains(*ip) && *ip != own.addr() && *ip != gateway;
    default.filter(free).or_else(|| hosts(own).take(3).find(free))
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

/// Which of `ours` are routers of this host.
fn hidden_routers(routes: &[HostRoute], ours: &[Option<IpAddr>]) -> Vec<IpAddr> {
    let routers: Vec<_> = routes.iter().filter_map(|route| route.gateway).collect();
    ours.iter().flatten().copied().filter(|ip| routers.contains(ip)).collect()
}

fn forward(publish: &Publish) -> Forward {
    let protocol = match publish.protocol {
        Protocol::Tcp => ForwardProtocol::Tcp,
        Protocol::Udp => ForwardProtocol::Udp,
    };
    Forward { host: publish.host, port: publish.port, protocol }
}

fn port_taken(error: &ForwardError, publish: &[Publish]) -> anyhow::Error {
    use std::io::ErrorKind;
    let which = publish.iter().find(|publish| forward(publish) == error.which);
    let which = which.map_or_else(String::new, |publish| format!("-p {publish}: "));
    let advice = match error.source.kind() {
        ErrorKind::AddrInUse if error.which.host.port() == 0 => {
            ": none is free (sysctl net.ipv4.ip_local_port_range); choose a HOSTPORT"
        }
        ErrorKind::AddrInUse => ": another process has this port; choose another HOSTPORT",
        ErrorKind::PermissionDenied => ": ports below 1024 are for root; choose a higher HOSTPORT",
        ErrorKind::AddrNotAvailable => ": HOSTADDR is no address of this host",
        _ => "",
    };
    Failure::error(ExitCode::Failed, format!("{which}{error}: {}{advice}", error.source))
}

/// What is said of a TAP device that was deleted.
pub fn device_gone(name: &str) -> String {
    format!("the TAP device {name} was deleted: the program has no network any more")
}

/// What is published, each at the address of the host in `bound`.
fn facts(publish: &[Publish], bound: &[SocketAddr], program: IpAddr) -> String {
    let lines = |free: bool| {
        let all = publish.iter().zip(bound);
        let some = all.filter(move |(publish, _)| publish.at_free_port() == free);
        some.map(|(publish, at)| published(publish, *at, program)).collect::<Vec<_>>()
    };
    let named = lines(false);
    let mut facts = match &named[..] {
        // A range is told by its ends.
        [first, .., last] if named.len() > FACTS_MAX => {
            vec![format!("{first} to {last}, {} ports", named.len())]
        }
        _ => named,
    };
    facts.extend(lines(true));
    if facts.is_empty() { String::new() } else { facts.join(", ") + " (rootless)" }
}

/// `http://127.0.0.1:8080 -> 10.0.2.15:80`, with a scheme where the program's port has one.
fn published(publish: &Publish, at: SocketAddr, program: IpAddr) -> String {
    let scheme = match (publish.protocol, publish.port) {
        (Protocol::Tcp, 80) => "http://",
        (Protocol::Tcp, 443) => "https://",
        _ => "",
    };
    let to = SocketAddr::new(program, publish.port);
    format!("{scheme}{at}{} -> {to}", publish.protocol.suffix())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_host_of_a_network() {
        let cases = [
            ("10.77.0.2/24", Some("10.77.0.1")),
            ("10.77.0.1/24", Some("10.77.0.2")),
            ("10.77.0.200/25", Some("10.77.0.129")),
            ("10.0.0.0/31", Some("10.0.0.1")),
            ("10.0.0.1/31", Some("10.0.0.0")),
            ("10.0.0.1/30", Some("10.0.0.2")),
            ("10.0.0.1/32", None),
            ("fd00:77::2/64", Some("fd00:77::1")),
            ("fd00:77::1/64", Some("fd00:77::2")),
            ("fd00::1/127", Some("fd00::")),
            ("fd00::1/128", None),
        ];
        for (own, wanted) in cases {
            let wanted = wanted.map(|ip| ip.parse::<IpAddr>().unwrap());
            assert_eq!(other_host(&own.parse().unwrap()), wanted, "{own}");
        }
    }

    #[test]
    fn the_forwarder_is_beside_the_gateway() {
        let at = |own: &str, gateway: &str| {
            let default = Some(IpAddr::from([10, 0, 2, 3]));
            let ip = forwarder(&own.parse().unwrap(), gateway.parse().unwrap(), default)?;
            Some(ip.to_string())
        };
        assert_eq!(at("10.0.2.15/24", "10.0.2.2").as_deref(), Some("10.0.2.3"));
        assert_eq!(at("10.0.2.3/24", "10.0.2.2").as_deref(), Some("10.0.2.1"));
        assert_eq!(at("192.168.7.1/24", "192.168.7.2").as_deref(), Some("192.168.7.3"));
        assert_eq!(at("192.168.7.1/30", "192.168.7.2"), None);
    }

    #[test]
    fn routers_behind_our_addresses_are_named() {
        let route = |gateway: &str| HostRoute {
            interface: "eth0".into(),
            prefix: Prefix::ALL_V4,
            gateway: Some(gateway.parse().unwrap()),
        };
        let ours = [Some(IpAddr::from([10, 0, 2, 2])), None, Some(IpAddr::from([10, 0, 2, 3]))];
        let hidden = hidden_routers(&[route("10.0.2.2"), route("192.0.2.1")], &ours);
        assert_eq!(hidden, [IpAddr::from([10, 0, 2, 2])]);
    }

    #[test]
    fn every_port_that_the_host_chose_is_told() {
        let parsed = ["8000-8008:80-88", "90-98"].map(|word| word.parse::<crate::args::Ports>());
        let publish = parsed.map(|ports| ports.unwrap().0).concat();
        let chosen = (0..9).map(|n| 40_000 + n * n);
        let bound =
            (8000..=8008).chain(chosen).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let bound = bound.collect::<Vec<_>>();
        let said = super::facts(&publish, &bound, "10.0.2.15".parse().unwrap());
        let ends =
            "http://127.0.0.1:8000 -> 10.0.2.15:80 to 127.0.0.1:8008 -> 10.0.2.15:88, 9 ports, 127";
        assert!(said.starts_with(ends), "{said}");
        for (at, port) in bound.iter().zip(80u16..).skip(9).map(|(at, n)| (at, n + 1)) {
            assert!(said.contains(&format!("{at} -> 10.0.2.15:{port}")), "{said}");
        }
        assert!(said.ends_with(" -> 10.0.2.15:98 (rootless)"), "{said}");
    }

    #[test]
    fn facts() {
        let text = |word: &str| {
            let publish = word.parse::<crate::args::Ports>().unwrap().0[0];
            published(&publish, publish.host, "10.0.2.15".parse().unwrap())
        };
        assert_eq!(text("8080:80"), "http://127.0.0.1:8080 -> 10.0.2.15:80");
        assert_eq!(text("[::1]:53:53/udp"), "[::1]:53/udp -> 10.0.2.15:53");
        assert_eq!(text("2222:22"), "127.0.0.1:2222 -> 10.0.2.15:22");
    }
}
