//! A stack that forwards from a source of frames to a sink, with routes and rules. Also an engine
//! around such a stack, as in `towpath router`.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant as Clock;

use towpath_direct::{Node, NodeConfig};
use towpath_engine::{Engine, EngineConfig, Next};
use towpath_filter::Rules;
use towpath_pool::{LinkType, Offloads, Port};
use towpath_stack::net::{Change, Forwarding, How, InterfaceConfig, NetConfig, RouteSpec};
use towpath_stack::{Budget, IfaceId, Instant, StackConfig};
use towpath_wire::{MacAddr, Prefix};

use crate::port::{Sink, Source};
use crate::table::ROUTERS;

/// Maximum number of frames per turn of `towpath router`.
pub const BURST: usize = 32;

/// Number of routes that are added at once at the beginning, to limit the memory of the list.
const ROUTES_AT_ONCE: usize = 50_000;

const OUT: IfaceId = IfaceId(2);

/// A router on in-memory ports.
pub struct Router {
    node: Node<dyn Port>,
    begun: Clock,
}

/// Returns the IPv4 address of a neighbouring router.
fn beside(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a02_0002 + number))
}

/// Returns the IPv6 address of a neighbouring router.
fn beside_v6(number: u32) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, number as u16))
}

/// Returns the change that adds a route through the router with this number.
pub fn route((prefix, router): (Prefix, u32)) -> Change {
    let beside = if prefix.addr().is_ipv4() { beside } else { beside_v6 };
    let (next_hop, iface) = (Some(beside(router % ROUTERS)), Some(OUT));
    Change::SetRoute(RouteSpec { next_hop, iface, ..RouteSpec::to(prefix) }, How::Append)
}

fn interfaces() -> Result<Vec<InterfaceConfig>, Box<dyn Error>> {
    let ports = [("in", "10.1.0.1/24"), ("out", "10.2.0.1/16")];
    let one = |(number, (name, address)): (u8, (&str, &str))| {
        Ok(InterfaceConfig {
            name: name.to_owned(),
            link: LinkType::Ethernet,
            mac: MacAddr([2, 0, 0, 0, 0, number]),
            mtu: 1500,
            offloads: Offloads::default(),
            addresses: vec![address.parse()?],
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        })
    };
    (1..).zip(ports).map(one).collect()
}

fn neighbors() -> Vec<Change> {
    let neighbor = |number: u32| Change::SetNeighbor {
        iface: OUT,
        addr: beside(number),
        mac: MacAddr([2, 0, 0, 1, 0, number as u8]),
        how: How::Replace,
    };
    (0..ROUTERS).map(neighbor).collect()
}

fn refused(why: &dyn std::fmt::Debug) -> String {
    format!("refused: {why:?}")
}

impl Router {
    /// Creates a router that forwards the frames by the routes.
    pub fn new(
        frames: Vec<[u8; 64]>,
        routes: &[(Prefix, u32)],
        rules: Option<Rules>,
        burst: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let net = NetConfig { forwarding: Some(Forwarding::default()), ..NetConfig::default() };
        let stack = StackConfig { net, ..StackConfig::default() };
        let budget = Budget { rx_packets: burst, ..Budget::default() };
        let config = NodeConfig { stack, budget, ..NodeConfig::default() };
        let begun = Clock::now();
        let mut node: Node<dyn Port> = Node::new(config, [7; 32], Instant(1));
        let ports: [Box<dyn Port>; 2] = [Box::new(Source::new(frames)), Box::new(Sink)];
        for (config, port) in interfaces()?.into_iter().zip(ports) {
            node.add_interface(config, port);
        }
        node.stack.net.apply(Instant(1), &neighbors()).map_err(|why| refused(&why))?;
        let mut router = Self { node, begun };
        for part in routes.chunks(ROUTES_AT_ONCE) {
            router.change(part.iter().copied().map(route))?;
        }
        router.node.stack.net.set_rules(rules);
        Ok(router)
    }

    /// Changes routes.
    pub fn change(&mut self, changes: impl Iterator<Item = Change>) -> Result<(), Box<dyn Error>> {
        let changes: Vec<_> = changes.collect();
        let result = self.node.stack.net.apply(Instant(1), &changes);
        result.map_err(|why| format!("routes are refused: {why:?}").into())
    }

    /// Receives, forwards and sends a burst, at the current time.
    pub fn turn(&mut self) -> usize {
        let now = self.begun.elapsed().as_nanos() as u64 + 1;
        self.node.turn(Instant(now)).sent
    }

    /// Returns the numbers of packets forwarded and dropped so far.
    pub fn counts(&self) -> (u64, u64) {
        let data = self.node.stack.net.counters().data;
        (data.forwarded, data.received - data.forwarded)
    }
}

/// An engine without programs that forwards packets.
pub struct EngineRouter(Engine);

impl EngineRouter {
    /// Creates an engine that forwards the frames by the routes, `burst` per turn.
    pub fn new(
        frames: Vec<[u8; 64]>,
        routes: &[(Prefix, u32)],
        burst: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let net = NetConfig { forwarding: Some(Forwarding::default()), ..NetConfig::default() };
        let config = EngineConfig {
            stack: StackConfig { net, ..StackConfig::default() },
            budget: Budget { rx_packets: burst, ..Budget::default() },
            interfaces: interfaces()?,
            channels_max: 0,
            ..EngineConfig::default()
        };
        let ports: Vec<Box<dyn Port + Send>> = vec![Box::new(Source::new(frames)), Box::new(Sink)];
        let mut engine = Engine::new(config, ports, [7; 32])?;
        engine.apply(&neighbors()).map_err(|why| refused(&why))?;
        let routes: Vec<_> = routes.iter().copied().map(route).collect();
        engine.apply(&routes).map_err(|why| refused(&why))?;
        Ok(Self(engine))
    }

    /// Receives, forwards and sends a burst.
    pub fn turn(&mut self) -> Next {
        self.0.turn()
    }

    /// Ends the engine. Returns the numbers of packets forwarded and dropped.
    pub fn finish(self) -> (u64, u64) {
        let counters = self.0.finish().counters.net;
        let value = |name| counters.iter().find(|(known, _)| *known == name).map_or(0, |it| it.1);
        (value("forwarded"), value("received") - value("forwarded"))
    }
}
