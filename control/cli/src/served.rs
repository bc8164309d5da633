//! Answers control requests for a run or a router. `convert` converts types of the stack to those
//! of the control protocol. `stack` defines the running stack, which `acl` and `conntrack` use.
//! `reports` serves subscribers, helped by `net_watch` (changes) and `ranking` (sockets).

mod convert;
mod net_watch;
mod ranking;
mod reports;
mod stack;

use towpath_engine::{Applied, Gone, InterfaceState, NetState, Remote};
use towpath_model::{
    Call, Change, DestinationKind, FoundRoute, How, Layer, Port, Reply, RequestFault, Route,
    RouteKind, RouteLookup, ShownSocket, Word,
};
use towpath_router::DnsControl;
use towpath_stack::net::{self, IfaceId};

pub use reports::StackResponder;
pub use stack::{PortList, ServedPort, ServedStack, gone};

use crate::{acl, conntrack, port, setting};
use convert::{shown, socket};

/// Returns the counters of the connection tracker and the DNS forwarder, if there are any.
pub fn service_layers(
    remote: &Remote,
    dns: Option<&DnsControl>,
) -> Result<Vec<towpath_uplink::Layer>, Gone> {
    let layer = |name: &str, counters| towpath_uplink::Layer { name: name.to_owned(), counters };
    let tracked = conntrack::counters(remote)?.map(|counters| layer("conntrack", counters));
    let dns = dns.map(|dns| {
        let counters = dns.counters().into_iter().map(|(name, value)| (name.to_owned(), value));
        layer("dns", counters.collect())
    });
    Ok(tracked.into_iter().chain(dns).collect())
}

fn flush_dns(stack: &ServedStack) -> Result<usize, RequestFault> {
    let without =
        || RequestFault::new("unsupported", "forwards no DNS: only routers with --dns do");
    stack.dns.as_ref().map(DnsControl::flush).ok_or_else(without)
}

/// Answers a control request. Fails if the stack does not support it.
pub fn answer(stack: &ServedStack, call: Call, reply: &mut Reply) {
    let done = match call {
        Call::Info => Ok(()),
        Call::Sockets => stack.remote.sockets().map_err(gone).map(|entries| {
            reply.sockets = Some(entries.iter().filter_map(socket).filter(is_somewhere).collect());
        }),
        Call::Net => stack.remote.net().map_err(gone).map(|state| {
            let mut net = shown(&state);
            port::put_carriers(&stack.links(), &mut net.interfaces);
            reply.net = Some(net);
        }),
        Call::Route { lookup } => route(stack, &lookup).map(|found| reply.route = Some(found)),
        Call::Counters => counters(stack).map(|layers| reply.counters = Some(layers)),
        Call::Ports => ports(stack).map(|ports| reply.ports = Some(ports)),
        Call::Apply { changes } => apply(stack, &changes).map(|applied| {
            reply.applied = Some(applied.changes);
        }),
        Call::Acl => acl::shown(stack).map_err(gone).map(|list| reply.acl = Some(list)),
        Call::ApplyAcl { changes } => acl::change(stack, &changes).map(|count| {
            reply.applied = Some(count);
        }),
        Call::Nat => conntrack::shown_nat(stack).map_err(gone).map(|nat| reply.nat = Some(nat)),
        Call::ApplyNat { changes } => conntrack::change_nat(stack, &changes).map(|count| {
            reply.applied = Some(count);
        }),
        Call::Flows { filter } => conntrack::flows(stack, &filter).map_err(gone).map(|flows| {
            reply.flows = Some(flows);
        }),
        Call::FlowEvents { from } => conntrack::events(stack, from).map_err(gone).map(|told| {
            (reply.flows, reply.next_event) = (Some(told.0), Some(told.1));
        }),
        Call::DeleteFlows { filter } => {
            conntrack::delete(stack, filter).map_err(gone).map(|count| {
                reply.applied = Some(count);
            })
        }
        Call::FlushDns => flush_dns(stack).map(|count| reply.applied = Some(count)),
        Call::Settings => setting::shown(stack).map_err(gone).map(|list| {
            reply.settings = Some(list);
        }),
        Call::ApplySettings { changes } => setting::change(stack, &changes).map(|count| {
            reply.applied = Some(count);
        }),
        Call::Config | Call::ApplyConfig { .. } | Call::ConfirmConfig | Call::RollbackConfig => {
            let why = "a run has no configuration file: only routers have one";
            Err(RequestFault::new("unsupported", why))
        }
        call => {
            Err(RequestFault::new("unsupported", format!("{call:?} is not known to this version")))
        }
    };
    reply.error = done.err();
}

/// Returns whether a socket is bound or connected. As on Linux, unbound sockets are not listed. The
/// stack may have created them before a program opens them.
pub fn is_somewhere(socket: &ShownSocket) -> bool {
    socket.local.is_some() || socket.remote.is_some()
}

/// Looks up a route, as the stack does for a packet that it sends.
fn route(stack: &ServedStack, lookup: &RouteLookup) -> Result<FoundRoute, RequestFault> {
    let state = stack.remote.net().map_err(gone)?;
    let iface = lookup.dev.as_ref().map(|dev| {
        find(&state, dev)
            .ok_or_else(|| RequestFault::new("no-device", format!("Cannot find device \"{dev}\"")))
    });
    let has = |from| {
        state.interfaces.iter().any(|it| it.addresses.iter().any(|own| own.prefix.addr() == from))
    };
    // As on Linux, a lookup fails if the source address is not an address of this host, unless an
    // incoming interface is given.
    if lookup.from.is_some_and(|from| !has(from)) {
        return Err(RequestFault::new("no-route", no_route(net::RouteError::NoRoute)));
    }
    let (from, to, iface) = (lookup.from, lookup.to, iface.transpose()?);
    let found = stack.remote.on_first_shard(move |shard| {
        let now = shard.now();
        shard.net().route(now, from, to, iface)
    });
    let found = found.map_err(gone)?;
    let route = found.map_err(|why| RequestFault::new("no-route", no_route(why)))?;
    let dev = state.interface(route.iface).map(|interface| interface.name.clone());
    let is_local = route.iface == IfaceId::LOOPBACK;
    let kind = match to {
        _ if route.broadcast => DestinationKind::Broadcast,
        _ if to.is_multicast() => DestinationKind::Multicast,
        _ if is_local => DestinationKind::Local,
        _ => DestinationKind::Unicast,
    };
    Ok(FoundRoute {
        via: (route.next_hop != to).then_some(route.next_hop),
        dev: dev.and_then(|name| Word::try_from(name).ok()).unwrap_or(Word::known("?")),
        source: route.src,
        mtu: route.mtu,
        mtu_is_lower: state.interface(route.iface).is_some_and(|it| route.mtu < it.mtu),
        kind,
    })
}

/// Returns the message that Linux shows for a failed route lookup.
fn no_route(why: net::RouteError) -> &'static str {
    match why {
        net::RouteError::Unreachable => "No route to host",
        net::RouteError::Prohibited => "Permission denied",
        net::RouteError::NoRoute => "Network is unreachable",
        net::RouteError::NoSource => "Cannot assign requested address",
        net::RouteError::NoInterface => "No such device",
        _ => "Invalid argument",
    }
}

fn ports(stack: &ServedStack) -> Result<Vec<Port>, RequestFault> {
    stack.counters().map_err(gone)?;
    let devices = stack.ports.ports().iter().map(ServedPort::device).collect();
    let interfaces = shown(&stack.remote.net().map_err(gone)?).interfaces;
    Ok(port::shown(devices, &interfaces))
}

/// Returns the counters since the stack was created, grouped by layer.
fn layers(stack: &ServedStack) -> Result<Vec<towpath_uplink::Layer>, Gone> {
    let counters = stack.counters()?;
    let rules = stack.remote.rules()?;
    let mut layers = (stack.layers)(&counters, rules.as_deref(), &stack.ports.ports());
    layers.extend(service_layers(&stack.remote, stack.dns.as_ref())?);
    Ok(layers)
}

fn counters(stack: &ServedStack) -> Result<Vec<Layer>, RequestFault> {
    let layers = layers(stack).map_err(gone)?.into_iter().filter_map(|layer| {
        let word = |name: String| Word::try_from(name).ok();
        let counters = layer.counters.into_iter();
        let counters = counters.filter_map(|(name, value)| Some((word(name)?, value)));
        Some(Layer { name: word(layer.name)?, counters: counters.collect() })
    });
    Ok(layers.collect())
}

fn apply(stack: &ServedStack, changes: &[Change]) -> Result<Applied, RequestFault> {
    let refused =
        |at, why: String| RequestFault { at: Some(at), ..RequestFault::new("refused", why) };
    if let [change @ (Change::AddLink { .. } | Change::DeleteLink { .. })] = changes {
        return change_link(stack, change);
    }
    let is_link =
        |change: &Change| matches!(change, Change::AddLink { .. } | Change::DeleteLink { .. });
    if let Some(at) = changes.iter().position(is_link) {
        let why = "a link is added or deleted by a command of its own, because a device that was \
                   opened or closed cannot be undone";
        return Err(refused(at, why.to_owned()));
    }
    let state = stack.remote.net().map_err(gone)?;
    let translated = changes.iter().enumerate().map(|(at, change)| {
        let unknown = |dev: &Word| RequestFault {
            code: Word::known("no-device"),
            ..refused(at, format!("Cannot find device \"{dev}\""))
        };
        translate(change, |dev| find(&state, dev).ok_or_else(|| unknown(dev)))
    });
    let translated = translated.collect::<Result<Vec<_>, _>>()?;
    let applied = stack.remote.apply(translated).map_err(gone)?;
    applied.map_err(|why| refused(why.at, why.why.to_string()))
}

/// Adds or deletes an interface. Afterwards, rules match the interfaces that now have the names in
/// the rules.
fn change_link(stack: &ServedStack, change: &Change) -> Result<Applied, RequestFault> {
    match change {
        Change::AddLink { name, device } => stack.ports.add(name, device)?,
        Change::DeleteLink { dev } => stack.ports.delete(dev)?,
        _ => {}
    }
    acl::follow_names(stack)?;
    conntrack::follow_names(stack)?;
    Ok(Applied { changes: 1 })
}

fn find(state: &NetState, dev: &Word) -> Option<IfaceId> {
    let is_it = |interface: &&InterfaceState| interface.name == dev.as_str();
    state.interfaces.iter().find(is_it).map(|interface| interface.id)
}

fn translate(
    change: &Change,
    find: impl Fn(&Word) -> Result<IfaceId, RequestFault>,
) -> Result<net::Change, RequestFault> {
    Ok(match change {
        Change::AddAddress { dev, address } => {
            net::Change::AddAddress { iface: find(dev)?, prefix: *address }
        }
        Change::DeleteAddress { dev, address, length } => {
            net::Change::RemoveAddress { iface: find(dev)?, addr: *address, len: *length }
        }
        Change::SetRoute { route, how } => net::Change::SetRoute(spec(route, find)?, kind(*how)),
        Change::DeleteRoute { route } => net::Change::RemoveRoute(spec(route, find)?),
        Change::SetNeighbor { dev, address, mac, how } => net::Change::SetNeighbor {
            iface: find(dev)?,
            addr: *address,
            mac: *mac,
            how: kind(*how),
        },
        Change::DeleteNeighbor { dev, address } => {
            net::Change::RemoveNeighbor { iface: find(dev)?, addr: *address }
        }
        Change::SetLink { dev, up } => net::Change::SetUp { iface: find(dev)?, up: *up },
        Change::SetMtu { dev, mtu } => net::Change::SetMtu { iface: find(dev)?, mtu: *mtu },
        change => {
            let why = format!("{change:?} is not known to this version");
            return Err(RequestFault::new("unsupported", why));
        }
    })
}

fn spec(
    route: &Route,
    find: impl Fn(&Word) -> Result<IfaceId, RequestFault>,
) -> Result<net::RouteSpec, RequestFault> {
    let iface = route.dev.as_ref().map(find).transpose()?;
    let kind = route.kind.map(|kind| match kind {
        RouteKind::Unicast => net::RouteKind::Unicast,
        RouteKind::Blackhole => net::RouteKind::Blackhole,
        RouteKind::Unreachable => net::RouteKind::Unreachable,
        RouteKind::Prohibit => net::RouteKind::Prohibit,
    });
    let (prefix, next_hop, metric, mtu) = (route.to, route.via, route.metric, route.mtu);
    let weight = route.weight;
    Ok(net::RouteSpec { prefix, next_hop, iface, metric, kind, on_link: false, mtu, weight })
}

fn kind(how: How) -> net::How {
    match how {
        How::Add => net::How::Add,
        How::Append => net::How::Append,
        How::Replace => net::How::Replace,
        How::Change => net::How::Change,
    }
}
