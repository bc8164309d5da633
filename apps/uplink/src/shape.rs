//! Configuration of a stack with one interface, and of its link.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_engine::{BUSY_POLL, EngineConfig, ResolverConfig, RouteConfig};
use towpath_gateway::limits::DESCRIPTORS_USED_MAX;
use towpath_gateway::{Forward, GatewayConfig};
use towpath_pool::{LinkType, Port};
use towpath_stack::net::{InterfaceConfig, metric_unless_given};
use towpath_tcp::TcpDefaults;
use towpath_wire::{MacAddr, Prefix};

use crate::netem::NetemSpec;

/// Interface name that programs see: the usual one on a machine with one network.
const INTERFACE_NAME: &str = "eth0";

/// Default range of ephemeral ports, as Linux's net.ipv4.ip_local_port_range.
pub const LOCAL_PORTS: (u16, u16) = (32768, 60999);

/// Configuration of a stack with one interface.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shape {
    /// Ethernet address of the interface; unused if the link has no Ethernet header.
    pub mac: [u8; 6],
    /// Addresses of the interface, each with its prefix length.
    #[serde(with = "text")]
    pub addresses: Vec<Prefix>,
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// Routes to destinations that are not on the link.
    pub routes: Vec<Route>,
    /// Nameserver for programs; `None` for those in the host's /etc/resolv.conf.
    pub resolver: Option<Resolver>,
    /// Host names that programs can resolve, in the format of [`EngineConfig::names`].
    pub names: String,
    /// Default settings of TCP connections.
    #[serde(with = "tcp_text")]
    pub tcp: TcpDefaults,
    /// Time in µs for which an idle stack polls before it sleeps: see [`EngineConfig::busy_poll`].
    pub busy_poll_us: u32,
    /// First and last ephemeral port, as in net.ipv4.ip_local_port_range.
    pub local_ports: (u16, u16),
    /// Emulated links with delay and loss in front of the port; `None` for no emulation.
    pub netem: Option<NetemSpec>,
    /// Whether a gateway in this process is at the other end of the link.
    pub in_process: bool,
}

/// A route of the stack through its interface.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Route {
    /// Destination prefix.
    #[serde(with = "text::one")]
    pub prefix: Prefix,
    /// Address of the next router; `None` if the destination is on the link.
    pub next_hop: Option<IpAddr>,
}

/// Nameserver for the programs of a stack: see [`ResolverConfig`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Resolver {
    /// Address of the nameserver.
    pub address: IpAddr,
    /// Whether `address` is used only in place of nameservers on the host's loopback.
    pub only_loopback: bool,
}

/// Link of a stack in PROGRAM's process, which `towpath run` has opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum PackedLink {
    /// The rootless gateway. The descriptors of the forwarded ports are sent with this message, in
    /// the order of `forwards`.
    Gateway {
        /// Configuration of the gateway.
        config: Box<GatewayConfig>,
        /// Forwarded ports, each with the host address to which its socket is bound.
        forwards: Vec<(Forward, std::net::SocketAddr)>,
        /// Number of ports at the end of `forwards` whose sockets were bound by the process that
        /// started towpath.
        passed: usize,
    },
    /// A device, whose descriptors are sent with this message.
    Device {
        /// Name of the device's driver.
        name: String,
        /// State of the open device, which its driver needs in the other process.
        state: serde_json::Value,
    },
}

impl PackedLink {
    /// Returns the maximum number of further descriptors that the link's ports may open.
    pub fn descriptors_used_max(&self) -> usize {
        match self {
            Self::Gateway { .. } => DESCRIPTORS_USED_MAX,
            Self::Device { .. } => 0,
        }
    }
}

impl Shape {
    /// Name of the interface that programs see.
    pub const INTERFACE_NAME: &'static str = INTERFACE_NAME;

    /// Creates the configuration of a host on a link without Ethernet header. Its routes lead only
    /// to the host's own networks. `mtu` is in bytes.
    pub fn ip_link(addresses: Vec<Prefix>, mtu: u32) -> Self {
        Self {
            mac: [0; 6],
            addresses,
            mtu,
            routes: Vec::new(),
            resolver: None,
            names: String::new(),
            tcp: TcpDefaults::default(),
            busy_poll_us: BUSY_POLL.as_micros() as u32,
            local_ports: LOCAL_PORTS,
            netem: None,
            in_process: true,
        }
    }

    /// Returns default routes through `router` for the address families of `addresses`. On a link
    /// without Ethernet header, the routes need no next hop, because the link delivers all packets.
    pub fn default_routes(
        addresses: &[Prefix],
        link: LinkType,
        router: impl Fn(&Prefix) -> Option<IpAddr>,
    ) -> Vec<Route> {
        let all = [(Prefix::ALL_V4, true), (Prefix::ALL_V6, false)];
        let route = |(prefix, is_v4)| {
            let own = addresses.iter().find(|own| own.addr().is_ipv4() == is_v4)?;
            let next_hop = router(own);
            let leads = link == LinkType::Ip || next_hop.is_some();
            leads.then_some(Route { prefix, next_hop })
        };
        all.into_iter().filter_map(route).collect()
    }

    /// Returns the configuration of an engine with this stack, whose interface uses `port`. The
    /// engine ends when its last program has ended.
    pub fn config(&self, port: &dyn Port) -> EngineConfig {
        let in_process = port.link_type() == LinkType::Ip && self.in_process;
        let mut config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
        config.resolver = self
            .resolver
            .map(|Resolver { address, only_loopback }| ResolverConfig { address, only_loopback });
        config.names = self.names.as_str().into();
        config.busy_poll = Duration::from_micros(self.busy_poll_us.into());
        config.stack.ephemeral = self.local_ports.0..=self.local_ports.1;
        config.set_tcp(&self.tcp);
        config.routes.extend(self.routes.iter().map(|&Route { prefix, next_hop }| RouteConfig {
            prefix,
            next_hop,
            interface: 0,
            metric: metric_unless_given(prefix),
        }));
        config.interfaces.push(InterfaceConfig {
            name: INTERFACE_NAME.into(),
            link: port.link_type(),
            mac: MacAddr(self.mac),
            mtu: self.mtu,
            offloads: port.offloads(),
            addresses: self.addresses.clone(),
            slaac: false,
            any_address: false,
            // The gateway forwards through sockets of the host, whose kernel fragments packets to
            // the path MTU.
            kernel_cuts: in_process,
            in_process: in_process && self.netem.is_none(),
        });
        config
    }
}

/// Serializes defaults of TCP as text, such as `sack=off,ecn=on`.
mod tcp_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use towpath_tcp::TcpDefaults;

    pub fn serialize<S: Serializer>(tcp: &TcpDefaults, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(tcp)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<TcpDefaults, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Serializes prefixes as text, such as `10.0.2.15/24`.
mod text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use towpath_wire::Prefix;

    pub fn serialize<S: Serializer>(all: &[Prefix], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(Prefix::to_string))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<Prefix>, D::Error> {
        Vec::<String>::deserialize(from)?.iter().map(|text| parse(text)).collect()
    }

    fn parse<E: Error>(text: &str) -> Result<Prefix, E> {
        text.parse().map_err(|_| E::custom(format!("{text} is not a prefix")))
    }

    pub mod one {
        use super::{Deserialize, Deserializer, Prefix, Serializer, parse};

        pub fn serialize<S: Serializer>(prefix: &Prefix, to: S) -> Result<S::Ok, S::Error> {
            to.collect_str(prefix)
        }

        pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Prefix, D::Error> {
            parse(&String::deserialize(from)?)
        }
    }
}
