//! State of a running engine's net: interfaces with their traffic, routes, and neighbors.

use towpath_pool::LinkType;
use towpath_stack::net::{Address, IfaceId, NeighborInfo, Net, RouteEntry, Traffic};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

/// A snapshot of an engine's net.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetState {
    /// Time of the snapshot, on the engine's clock; lifetimes of addresses use the same clock.
    pub now: Instant,
    /// All interfaces by number, starting with loopback.
    pub interfaces: Vec<InterfaceState>,
    /// All routes, in the order in which they were added.
    pub routes: Vec<RouteEntry>,
    /// All neighbors, by interface and address.
    pub neighbors: Vec<NeighborInfo>,
}

/// An interface of a running engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceState {
    /// Number of the interface.
    pub id: IfaceId,
    /// Name of the interface.
    pub name: String,
    /// Link type, which determines the first header of packets.
    pub link: LinkType,
    /// Ethernet address; unspecified on an IP link.
    pub mac: MacAddr,
    /// MTU: maximum length of an IP packet in bytes.
    pub mtu: u32,
    /// Whether the interface was set down.
    pub down: bool,
    /// Addresses, in the order in which they were added.
    pub addresses: Vec<Address>,
    /// Traffic of all shards since the engine was created.
    pub traffic: Traffic,
}

/// Result of applying a list of changes: all shards use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Number of changes in the list.
    pub changes: usize,
}

impl NetState {
    /// Returns the net as a shard sees it, with only its own traffic.
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

    /// Adds the traffic of another shard, indexed by interface.
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

    /// After one turn the stack uses the changes, but none of a list that was refused.
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

    /// While lists of changes are applied, each snapshot shows a pair of addresses or none.
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
