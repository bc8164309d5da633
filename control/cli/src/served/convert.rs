//! Converts types of the stack to those of the control protocol.

use towpath_engine::{InterfaceState, NetState, SocketEntry};
use towpath_model::{
    Address, AddressState, Interface, Kind, Neighbor, NeighborState, Net, Origin, Proto, Route,
    RouteKind, ShownSocket, Traffic, Word,
};
use towpath_pool::LinkType;
use towpath_stack::net::{self, IfaceId};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

/// Converts the network state of the stack to the type of the control protocol.
pub(super) fn shown(state: &NetState) -> Net {
    let name = |iface: IfaceId| {
        let interface = state.interface(iface);
        interface.and_then(|interface| Word::try_from(interface.name.clone()).ok())
    };
    let routes = state.routes.iter().filter_map(|entry| {
        Some(Route {
            to: entry.prefix,
            via: entry.next_hop,
            dev: Some(name(entry.iface)?),
            metric: Some(entry.metric),
            kind: Some(route_kind(entry.kind)),
            mtu: entry.mtu.map(u32::from),
            weight: (entry.weight > 1).then_some(entry.weight),
            origin: origin(entry.origin),
        })
    });
    let neighbors = state.neighbors.iter().filter_map(|known| {
        Some(Neighbor {
            address: known.addr,
            dev: name(known.iface)?,
            mac: known.mac,
            state: neighbor_state(known.state),
            router: known.router,
        })
    });
    Net {
        interfaces: state.interfaces.iter().filter_map(|one| interface(one, state.now)).collect(),
        routes: routes.collect(),
        neighbors: neighbors.collect(),
    }
}

fn interface(state: &InterfaceState, now: Instant) -> Option<Interface> {
    let is_loopback = state.id == IfaceId::LOOPBACK;
    let kind = match state.link {
        _ if is_loopback => Kind::Loopback,
        LinkType::Ethernet => Kind::Ethernet,
        LinkType::Ip => Kind::Ip,
    };
    let traffic = state.traffic;
    Some(Interface {
        index: u32::from(state.id.0) + 1,
        name: Word::try_from(state.name.clone()).ok()?,
        kind,
        mac: (kind == Kind::Ethernet && state.mac != MacAddr::UNSPECIFIED).then_some(state.mac),
        mtu: state.mtu,
        up: !state.down,
        carrier: None,
        addresses: state.addresses.iter().map(|known| address(known, now)).collect(),
        traffic: Traffic {
            rx_packets: traffic.rx_packets,
            rx_bytes: traffic.rx_bytes,
            rx_dropped: traffic.rx_dropped,
            tx_packets: traffic.tx_packets,
            tx_bytes: traffic.tx_bytes,
            tx_dropped: traffic.tx_dropped,
        },
    })
}

fn address(known: &net::Address, now: Instant) -> Address {
    let left = |until: Option<Instant>| until.map(|until| until.since(now).as_secs());
    Address {
        address: known.prefix,
        state: match known.state {
            net::AddressState::Tentative => AddressState::Tentative,
            net::AddressState::Optimistic => AddressState::Optimistic,
            net::AddressState::Preferred => AddressState::Preferred,
            net::AddressState::Deprecated => AddressState::Deprecated,
            net::AddressState::DadFailed => AddressState::DadFailed,
        },
        origin: origin(known.origin),
        valid_s: left(known.valid_until),
        preferred_s: left(known.preferred_until),
    }
}

fn origin(of: net::Origin) -> Origin {
    match of {
        net::Origin::Static => Origin::Static,
        net::Origin::Link => Origin::Link,
        net::Origin::Router => Origin::Router,
        net::Origin::Kernel(protocol) => Origin::of_kernel(protocol),
    }
}

fn route_kind(of: net::RouteKind) -> RouteKind {
    match of {
        net::RouteKind::Unicast => RouteKind::Unicast,
        net::RouteKind::Blackhole => RouteKind::Blackhole,
        net::RouteKind::Unreachable => RouteKind::Unreachable,
        net::RouteKind::Prohibit => RouteKind::Prohibit,
    }
}

fn neighbor_state(of: net::NeighborState) -> NeighborState {
    match of {
        net::NeighborState::Incomplete => NeighborState::Incomplete,
        net::NeighborState::Reachable => NeighborState::Reachable,
        net::NeighborState::Stale => NeighborState::Stale,
        net::NeighborState::Delay => NeighborState::Delay,
        net::NeighborState::Probe => NeighborState::Probe,
        net::NeighborState::Permanent => NeighborState::Permanent,
    }
}

/// Converts a socket. Returns `None` if its protocol is not known.
pub(super) fn socket(entry: &SocketEntry) -> Option<ShownSocket> {
    let proto = match entry.proto {
        "tcp" => Proto::Tcp,
        "udp" => Proto::Udp,
        "icmp" => Proto::Icmp,
        _ => return None,
    };
    let addr = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
    Some(ShownSocket {
        proto,
        state: Word::known(entry.state),
        recv_q: entry.recv_q.into(),
        send_q: entry.send_q.into(),
        local: addr(&entry.local),
        remote: addr(&entry.remote),
        cwnd: entry.cwnd,
        rtt_us: entry.rtt_us,
        congestion: entry.congestion.map(Word::known),
        tcp: entry.tcp.clone(),
        flow: None,
        holders: entry.pids.clone(),
        recv_buffer: entry.recv_buffer,
        send_buffer: entry.send_buffer,
        v6_only: entry.v6_only,
        device: entry.device.clone().and_then(|name| Word::try_from(name).ok()),
        slot: (entry.slot != u32::MAX).then_some(entry.slot),
    })
}
