//! What the stack is connected to: the rootless gateway, or a TAP device.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use towpath_engine::{EngineConfig, RouteConfig};
use towpath_gateway::{Forward, ForwardError, ForwardProtocol, Gateway, GatewayConfig};
use towpath_pcap::CaptureFile;
use towpath_pool::{LinkType, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_tap::Tap;
use towpath_wire::{MacAddr, Prefix};

use crate::args::{Congestion, Protocol, Publish, RunArgs};
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::stats::{Counted, PortCounters};
use crate::tap_network::Choosing;

/// What of the command line makes the stack; can go to another thread.
#[derive(Debug, Clone)]
pub struct Plan {
    pub publish: Vec<Publish>,
    /// Some: a TAP device, with the name that was asked for.
    pub tap: Option<Option<String>>,
    /// Empty: not asked for.
    pub addresses: Vec<Prefix>,
    pub mtu: u32,
    pub host_loopback: bool,
    pub congestion: Congestion,
    pub capture: Option<CaptureFile>,
    pub messages: Messages,
    pub port_counters: Arc<Mutex<PortCounters>>,
}

/// A stack to be, and what there is to say about its uplink.
pub struct Uplink {
    pub config: EngineConfig,
    pub ports: Vec<Box<dyn Port>>,
    pub facts: String,
}

/// Longest packet through the gateway. Memory has no limit of its own, and large segments save work;
/// but a fresh receive window (64 KiB) should hold several, or the sender waits for window updates.
const MTU_ROOTLESS: u32 = 16_384;
/// Longest packet of an Ethernet.
const MTU_TAP: u32 = 1500;
/// Where other rootless networks have theirs.
const ADDRESSES_ROOTLESS: [&str; 2] = ["10.0.2.15/24", "fd00:2::15/64"];
/// The name that programs see; what they expect on a machine with one network.
const INTERFACE_NAME: &str = "eth0";

impl Plan {
    pub fn new(args: &RunArgs, capture: Option<CaptureFile>, messages: Messages) -> Result<Self> {
        let tap = args.tap.clone().map(|name| Some(name).filter(|name| !name.is_empty()));
        let mtu = args.mtu.unwrap_or(if tap.is_some() { MTU_TAP } else { MTU_ROOTLESS });
        Ok(Self {
            publish: args.publish.clone(),
            tap,
            addresses: args.address.clone(),
            mtu,
            host_loopback: !args.no_host_loopback,
            congestion: args.congestion,
            capture,
            messages,
            port_counters: Arc::default(),
        })
    }

    /// Makes the uplink: binds the host's ports, or opens the device.
    pub fn build(&self) -> Result<Uplink> {
        match &self.tap {
            None => self.rootless(),
            Some(name) => self.tap(name.clone()),
        }
    }

    fn rootless(&self) -> Result<Uplink> {
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
        let config = GatewayConfig {
            program_v4: own(true).and_then(|prefix| v4(prefix.addr())),
            program_v6: own(false).and_then(|prefix| v6(prefix.addr())),
            gateway_v4: gateway(true, defaults.gateway_v4.map(IpAddr::V4)).and_then(v4),
            gateway_v6: gateway(false, defaults.gateway_v6.map(IpAddr::V6)).and_then(v6),
            host_loopback: self.host_loopback,
            dns_v4: defaults.dns_v4,
            dns_v6: defaults.dns_v6,
            nameserver: defaults.nameserver,
            mtu: self.mtu,
            seed: random()?,
        };
        let program = config.program_v4.map(IpAddr::V4).or(config.program_v6.map(IpAddr::V6));
        let program = program.context("an address is given or there is a default")?;
        let mut gateway = Gateway::new(config, now_ns()).context("the gateway")?;
        let messages = self.messages.clone();
        gateway.on_notice(move |notice| messages.post(&notice.to_string()));
        let forwards: Vec<_> = self.publish.iter().map(forward).collect();
        let bound = gateway.listen(&forwards).map_err(|error| port_taken(&error, &self.publish))?;
        let lines: Vec<_> =
            self.publish.iter().zip(bound).map(|(p, at)| published(p, at, program)).collect();
        let mut facts = lines.join(", ");
        if !facts.is_empty() {
            facts += " (rootless)";
        }
        self.finish(gateway, MacAddr([0; 6]), &addresses, |_| None, facts)
    }

    fn tap(&self, name: Option<String>) -> Result<Uplink> {
        let tap = Tap::open(&towpath_tap::Options { name }).map_err(|error| match error {
            towpath_tap::OpenError::BadName { .. } => {
                Failure::error(ExitCode::Usage, format!("--tap: {error}"))
            }
            error => error.into(),
        })?;
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
        self.finish(tap, MacAddr([0x02, a, b, c, d, e]), &addresses, other_host, facts)
    }

    /// One interface with default routes by way of `router`; None: the link delivers everything.
    fn finish<P: Port + Counted + 'static>(
        &self,
        port: P,
        mac: MacAddr,
        addresses: &[Prefix],
        router: impl Fn(&Prefix) -> Option<IpAddr>,
        facts: String,
    ) -> Result<Uplink> {
        let on_ip_link = port.link_type() == LinkType::Ip;
        let mut config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
        config.stack.tcp.congestion = match self.congestion {
            Congestion::Cubic => towpath_tcp::CongestionKind::Cubic,
            Congestion::Newreno => towpath_tcp::CongestionKind::NewReno,
        };
        for (prefix, is_v4) in [(Prefix::ALL_V4, true), (Prefix::ALL_V6, false)] {
            let own = addresses.iter().find(|own| own.addr().is_ipv4() == is_v4);
            let next_hop = own.and_then(&router);
            if own.is_some() && (on_ip_link || next_hop.is_some()) {
                config.routes.push(RouteConfig { prefix, next_hop, interface: 0, metric: 0 });
            }
        }
        config.interfaces.push(InterfaceConfig {
            name: INTERFACE_NAME.into(),
            link: port.link_type(),
            mac,
            mtu: self.mtu,
            offloads: port.offloads(),
            addresses: addresses.to_vec(),
            slaac: false,
            any_address: false,
        });
        let port = crate::stats::Counting::new(port, &self.port_counters);
        let port: Box<dyn Port> = match &self.capture {
            Some(file) => Box::new(file.capture(INTERFACE_NAME, port).context("--pcap")?),
            None => Box::new(port),
        };
        Ok(Uplink { config, ports: vec![port], facts })
    }

    /// What the ports counted; complete once they are gone.
    pub fn port_counters(&self) -> PortCounters {
        self.port_counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// CLOCK_MONOTONIC, which is the engine's clock.
fn now_ns() -> u64 {
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
    let next = |ip: IpAddr, n: u8| match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(n.into()).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_add(n.into()).map(|bits| IpAddr::V6(bits.into())),
    };
    let bits = if own.addr().is_ipv4() { 32 } else { 128 };
    // In a network of two both are hosts (RFC 3021, RFC 6164); otherwise the first is the network's.
    let first = u8::from(own.len() != bits - 1);
    let is_broadcast = |ip: IpAddr| ip.is_ipv4() && own.len() < 31 && ip == own.last();
    (first..first + 2)
        .filter_map(|n| next(own.network(), n))
        .find(|ip| *ip != own.addr() && own.contains(*ip) && !is_broadcast(*ip))
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
        ErrorKind::AddrInUse => ": another process has this port; choose another HOSTPORT",
        ErrorKind::PermissionDenied => ": ports below 1024 are for root; choose a higher HOSTPORT",
        ErrorKind::AddrNotAvailable => ": HOSTADDR is no address of this host",
        _ => "",
    };
    Failure::error(ExitCode::Usage, format!("{which}{error}: {}{advice}", error.source))
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
    fn facts() {
        let text = |word: &str| {
            let publish: Publish = word.parse().unwrap();
            published(&publish, publish.host, "10.0.2.15".parse().unwrap())
        };
        assert_eq!(text("8080:80"), "http://127.0.0.1:8080 -> 10.0.2.15:80");
        assert_eq!(text("[::1]:53:53/udp"), "[::1]:53/udp -> 10.0.2.15:53");
        assert_eq!(text("2222:22"), "127.0.0.1:2222 -> 10.0.2.15:22");
    }
}
