//! Uplinks through the rootless gateway: chooses the addresses, and binds host sockets for
//! published ports.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;

use towpath_gateway::{
    Bound, Egress, Forward, ForwardError, ForwardProtocol, Gateway, GatewayConfig, Nameserver,
    PublishWatch,
};
use towpath_pool::LinkType;
use towpath_stack::Owners;

use crate::address::{forwarder, other_host};
use crate::device::driver::counted;
use crate::facts::facts;
use crate::host_routes::{self, HostRoute};
use crate::plan::{Connected, Dns, Parted, Plan};
use crate::plan_error::{PlanError, Result, system};
use crate::publish::{Protocol, Publish};
use crate::random::random;
use crate::remark::Remark;
use crate::shape::{PackedLink, Resolver, Shape};
use crate::uplink::now_ns;

/// Default addresses of the stack. slirp4netns and QEMU's user network give guests the same ones,
/// so users and scripts need no changes.
const ADDRESSES_ROOTLESS: [&str; 2] = ["10.0.2.15/24", "fd00:2::15/64"];

/// Configuration of a gateway, and of the stack behind it.
pub(crate) struct Rootless {
    pub(crate) config: GatewayConfig,
    pub(crate) shape: Shape,
    /// Preferred address of the program, for messages about published ports.
    pub(crate) program: IpAddr,
}

impl Plan {
    pub(crate) fn over_gateway(&self, rootless: Rootless, owners: Owners) -> Result<Connected> {
        let Rootless { config, shape, program } = rootless;
        let mut gateways =
            Gateway::shards(&config, owners, now_ns()).map_err(system("open the gateway"))?;
        let (sender, notices) = channel();
        for gateway in &mut gateways {
            let sender = sender.clone();
            // Ignore errors: sending fails only after the run has ended.
            gateway.on_notice(move |notice| {
                let _ = sender.send(notice);
            });
        }
        let bound = self.bound()?;
        let watch = PublishWatch::new(&config, &bound, move |notice| {
            // Ignore errors: sending fails only after the run has ended.
            let _ = sender.send(notice);
        });
        let places: Vec<_> = bound.iter().map(|bound| bound.host).collect();
        Gateway::serve_bound(&mut gateways, bound).map_err(|error| self.port_taken(error))?;
        let ports = self.ports_of_host();
        let facts = facts(&ports, &places, program);
        let published = ports.into_iter().zip(places).collect::<Vec<_>>();
        let counted = |gateway| counted(gateway, &self.port_counters);
        let gateways = gateways.into_iter().map(counted).collect();
        let mut connected = self.finish(gateways, &shape, facts)?;
        if !published.is_empty() {
            connected.config.stack.receivers = Some(watch);
        }
        Ok(Connected { notices: Some(notices), published, ..connected })
    }

    pub(crate) fn parted_gateway(&self) -> Result<Parted> {
        let Rootless { config, shape, program } = self.rootless()?;
        let bound = self.bound()?;
        let places: Vec<_> = bound.iter().map(|bound| bound.host).collect();
        let facts = facts(&self.ports_of_host(), &places, program);
        let forwards = bound.iter().map(|bound| (bound.which, bound.host)).collect();
        let link =
            PackedLink::Gateway { config: Box::new(config), forwards, passed: self.passed.len() };
        let own = |bound: Bound| Arc::into_inner(bound.socket).expect("nobody else has it yet");
        let descriptors = bound.into_iter().map(|bound| own(bound).into()).collect();
        Ok(Parted { link, shape, descriptors, facts })
    }

    pub(crate) fn rootless(&self) -> Result<Rootless> {
        let defaults = GatewayConfig::default();
        let mut addresses = self.addresses.clone();
        if addresses.is_empty() {
            let parsed = ADDRESSES_ROOTLESS.map(|text| text.parse().expect("an address"));
            addresses = Vec::from(parsed);
        }
        let own = |v4: bool| addresses.iter().find(|prefix| prefix.addr().is_ipv4() == v4);
        // In the default network, the gateway's address is 10.0.2.2, as in other rootless networks.
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
            mtu: self.mtu(),
            descriptors: self.descriptors,
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
        let program = program.expect("an address is given or there is a default");
        let routes = Shape::default_routes(&addresses, LinkType::Ip, |_| None);
        let mut shape = self.shape([0; 6], addresses, self.mtu(), routes, resolver);
        shape.names = self.names.text(&shape.addresses, &config.gateways());
        Ok(Rootless { config, shape, program })
    }

    /// Warns if an address of the gateway is also that of a router in this host's network. The
    /// program cannot reach that router then.
    fn warn_of_routers(&self, config: &GatewayConfig) {
        let ours = [
            config.gateway_v4.map(IpAddr::V4),
            config.gateway_v6.map(IpAddr::V6),
            config.dns_v4.map(IpAddr::V4),
            config.dns_v6.map(IpAddr::V6),
        ];
        for ip in hidden_routers(&host_routes::all(), &ours) {
            self.tell.remark(Remark::Warning(format!(
                "{ip} is a router of this host's network: the program reaches towpath's gateway \
                 there, and not the router; choose another address"
            )));
        }
    }

    /// Returns all published ports: those to bind here, followed by those whose sockets the caller
    /// has passed.
    pub(crate) fn ports_of_host(&self) -> Vec<Publish> {
        let passed = self.passed.iter().map(|(publish, _)| publish);
        self.publish.iter().chain(passed).copied().collect()
    }

    /// Returns the host sockets of all ports that [`Self::ports_of_host`] returns, in the same
    /// order.
    pub(crate) fn bound(&self) -> Result<Vec<Bound>> {
        let forwards: Vec<_> = self.publish.iter().map(forward).collect();
        let mut bound = Bound::all(&forwards).map_err(|error| self.port_taken(error))?;
        for (publish, socket) in &self.passed {
            let socket = socket.try_clone().map_err(system("duplicate a socket"))?;
            let passed = Bound::passed(forward(publish), socket.into());
            bound.push(passed.map_err(|error| self.port_taken(error))?);
        }
        Ok(bound)
    }

    pub(crate) fn port_taken(&self, error: ForwardError) -> PlanError {
        let ports = self.ports_of_host();
        let publish = ports.iter().find(|publish| forward(publish) == error.which);
        match publish {
            Some(&publish) => PlanError::PortTaken { publish, error: error.source },
            // Unreachable: the error is about one of the published ports, so the search finds it.
            None => system("listen on the host")(error.source),
        }
    }
}

/// Returns the addresses in `ours` that are also the address of a router in this host's routes.
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

#[cfg(test)]
mod tests {
    use towpath_wire::Prefix;

    use super::*;

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
}
