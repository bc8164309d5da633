//! The net of a running engine, as it is told: interfaces with their traffic, routes, neighbours.

use towpath_pool::LinkType;
use towpath_stack::net::{Address, IfaceId, NeighborInfo, Net, RouteEntry, Traffic};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

/// The net of an engine at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetState {
    /// When it was told, on the engine's clock; lifetimes of addresses end on the same clock.
    pub now: Instant,
    /// All interfaces by their numbers, the loopback interface first.
    pub interfaces: Vec<InterfaceState>,
    /// All routes, in order of adding.
    pub routes: Vec<RouteEntry>,
    /// All neighbours, by interface and address.
    pub neighbors: Vec<NeighborInfo>,
}

/// An interface of a running engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceState {
    /// Its number.
    pub id: IfaceId,
    /// Its name.
    pub name: String,
    /// First header of its packets.
    pub link: LinkType,
    /// Its Ethernet address; unspecified on an IP link.
    pub mac: MacAddr,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Whether it was set down.
    pub down: bool,
    /// Its addresses, in order of adding.
    pub addresses: Vec<Address>,
    /// Traffic since the engine was made, all shards together.
    pub traffic: Traffic,
}

/// A list of changes is in force in all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Changes of the list.
    pub changes: usize,
}

impl NetState {
    /// The net as a shard knows it, with its own traffic alone.
    pub fn of(net: &Net, now: Instant) -> Self {
        let interfaces = net.interfaces().iter().map(|link| InterfaceState {
            id: link.id(),
            name: link.name().to_owned(),
            link: link.link(),
            mac: link.mac(),
            mtu: link.mtu(),
            down: link.is_down(),
            addresses: net.addresses(link.id()),
            traffic: net.traffic().get(link.id().index()).copied().unwrap_or_default(),
        });
        let interfaces = interfaces.collect();
        let mut neighbors: Vec<_> = net.neighbors().collect();
        neighbors.sort_by_key(|known| (known.iface, known.addr));
        Self { now, interfaces, routes: net.routes().collect(), neighbors }
    }

    /// Adds the traffic of another shard, by number of the interface.
    pub(crate) fn add(&mut self, traffic: &[Traffic]) {
        for (interface, more) in self.interfaces.iter_mut().zip(traffic) {
            interface.traffic += *more;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{JoinHandle, spawn};
    use std::time::Duration;

    use towpath_pool::Port;
    use towpath_stack::net::{Change, Fault, How, Refused, RouteSpec};
    use towpath_wire::Prefix;

    use super::*;
    use crate::{Engine, EngineConfig, Gone, Hand, Remote, Report};

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    fn address(text: &str) -> Change {
        Change::AddAddress { iface: IfaceId::LOOPBACK, prefix: prefix(text) }
    }

    fn route(to: &str, via: &str) -> Change {
        let next_hop = Some(via.parse().expect("an address"));
        let route = RouteSpec { next_hop, ..RouteSpec::to(prefix(to)) };
        Change::SetRoute(route, How::Add)
    }

    fn has(state: &NetState, text: &str) -> bool {
        state.interfaces[0].addresses.iter().any(|address| address.prefix == prefix(text))
    }

    /// A turn later the stack goes by the changes, and by none of a list that is refused.
    #[test]
    fn changes_by_hand_are_whole_or_none() {
        let mut hand = Hand::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let before = hand.net();
        let bad = [address("10.9.0.1/24"), route("10.8.0.0/16", "10.7.0.1")];
        let refused = Refused { at: 1, why: Fault::GatewayUnreachable };
        assert_eq!(hand.apply(&bad), Err(refused));
        hand.turn(Duration::ZERO);
        assert_eq!(hand.net(), before);
        let good = [address("10.9.0.1/24"), route("10.8.0.0/16", "10.9.0.2")];
        assert_eq!(hand.apply(&good), Ok(()));
        hand.turn(Duration::ZERO);
        let after = hand.net();
        assert!(has(&after, "10.9.0.1/24"));
        let new: Vec<_> = after.routes.iter().filter(|it| !before.routes.contains(it)).collect();
        assert_eq!(
            new.iter().map(|it| it.prefix.to_string()).collect::<Vec<_>>(),
            ["10.9.0.0/24", "10.8.0.0/16"]
        );
    }

    fn run(shards: usize) -> (Remote, JoinHandle<Report>) {
        let ports = (0..shards).map(|_| Vec::<Box<dyn Port + Send>>::new()).collect();
        let engine = Engine::with_shards(EngineConfig::default(), ports, [7; 32]).expect("memory");
        (engine.remote(), spawn(|| engine.run()))
    }

    /// Each look, while others change, shows a pair of addresses whole or not at all.
    #[test]
    fn several_threads_change_and_see_lists_as_wholes() {
        for shards in [1, 2, 4] {
            let (remote, thread) = run(shards);
            let one = |n: u8| [format!("10.1.{n}.1/32"), format!("10.2.{n}.1/32")];
            let changers = (0..3).map(|n| {
                let remote = remote.clone();
                spawn(move || {
                    let [first, second] = one(n);
                    for _ in 0..20 {
                        let list = vec![address(&first), address(&second)];
                        assert_eq!(
                            remote.apply(list).expect("it runs"),
                            Ok(Applied { changes: 2 })
                        );
                        let state = remote.net().expect("it runs");
                        assert!(has(&state, &first) && has(&state, &second), "acknowledged");
                        let gone = [&first, &second].map(|text| Change::RemoveAddress {
                            iface: IfaceId::LOOPBACK,
                            addr: prefix(text).addr(),
                            len: None,
                        });
                        assert!(remote.apply(gone.to_vec()).expect("it runs").is_ok());
                    }
                })
            });
            let changers: Vec<_> = changers.collect();
            while changers.iter().any(|changer| !changer.is_finished()) {
                let state = remote.net().expect("it runs");
                for [first, second] in (0..3).map(one) {
                    assert_eq!(has(&state, &first), has(&state, &second), "half of a list");
                }
            }
            for changer in changers {
                changer.join().expect("it saw wholes");
            }
            let twice = vec![address("10.3.0.1/32"), address("10.3.0.1/32")];
            let refused = Refused { at: 1, why: Fault::Exists };
            assert_eq!(remote.apply(twice).expect("it runs"), Err(refused));
            assert!(!has(&remote.net().expect("it runs"), "10.3.0.1/32"));
            remote.stop();
            thread.join().expect("it does not panic");
            assert_eq!(remote.net(), Err(Gone));
            assert_eq!(remote.apply(Vec::new()), Err(Gone));
        }
    }
}
