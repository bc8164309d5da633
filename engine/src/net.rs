//! State of a running engine's network layer: interfaces with their traffic, routes, and neighbors.

use towpath_pool::LinkType;
use towpath_stack::net::{Address, IfaceId, NeighborInfo, Net, RouteEntry, Traffic};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

/// A snapshot of the network layer of a running engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetState {
    /// Time of the snapshot, on the engine's clock. Lifetimes of addresses are relative to the same
    /// clock.
    pub now: Instant,
    /// All interfaces, sorted by number. The first is loopback. Numbers of removed interfaces are
    /// missing.
    pub interfaces: Vec<InterfaceState>,
    /// All routes, in the order in which they were added.
    pub routes: Vec<RouteEntry>,
    /// All neighbors (ARP and NDP entries), sorted by interface and address.
    pub neighbors: Vec<NeighborInfo>,
}

/// State of an interface of a running engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceState {
    /// Number of the interface.
    pub id: IfaceId,
    /// Name of the interface.
    pub name: String,
    /// Type of the link, which determines the first header of packets: Ethernet or IP.
    pub link: LinkType,
    /// Ethernet address of the interface. Unspecified if the link carries IP packets.
    pub mac: MacAddr,
    /// MTU: maximum length of an IP packet in bytes.
    pub mtu: u32,
    /// Whether the interface was administratively set down.
    pub down: bool,
    /// Addresses of the interface, in the order in which they were added.
    pub addresses: Vec<Address>,
    /// Traffic counters of the interface since the engine was created, over all shards.
    pub traffic: Traffic,
}

/// Result of applying a list of changes. All shards use the changes by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Number of changes in the applied list.
    pub changes: usize,
}

impl NetState {
    /// Returns the state of the network layer as seen by a shard (event loop). Traffic counters are
    /// those of this shard only.
    pub fn of(net: &Net, now: Instant) -> Self {
        let mut neighbors: Vec<_> = net.neighbors().collect();
        neighbors.sort_by_key(|known| (known.iface, known.addr));
        let interfaces = Self::interfaces_of(net);
        Self { now, interfaces, routes: net.routes().collect(), neighbors }
    }

    /// Returns the interfaces as seen by a shard (event loop), without routes and neighbors, which
    /// may be many. Traffic counters are those of this shard only.
    pub fn interfaces_of(net: &Net) -> Vec<InterfaceState> {
        let interfaces = net.interfaces().map(|link| InterfaceState {
            id: link.id(),
            name: link.name().to_owned(),
            link: link.link(),
            mac: link.mac(),
            mtu: link.mtu(),
            down: link.is_down(),
            addresses: net.addresses(link.id()),
            traffic: net.traffic().get(link.id().index()).copied().unwrap_or_default(),
        });
        interfaces.collect()
    }

    /// Adds the traffic counters of another shard. `traffic` is indexed by interface.
    pub(crate) fn add(&mut self, traffic: &[Traffic]) {
        for interface in &mut self.interfaces {
            interface.traffic += traffic.get(interface.id.index()).copied().unwrap_or_default();
        }
    }

    /// Returns the interface with this number.
    pub fn interface(&self, id: IfaceId) -> Option<&InterfaceState> {
        self.interfaces.iter().find(|interface| interface.id == id)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{JoinHandle, ThreadId, current, spawn};
    use std::time::Duration;

    use towpath_pool::{Batch, Offloads, Pool, Port};
    use towpath_stack::net::{Change, Fault, How, InterfaceConfig, Refused, RouteSpec};
    use towpath_wire::Prefix;

    use super::*;
    use crate::{AddError, Engine, EngineConfig, Gone, Hand, Remote, Report};

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

    /// Tests that the stack applies all changes of an accepted list within one iteration of the
    /// event loop, and none of a rejected list.
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

    /// While lists of changes are applied, each snapshot contains both addresses of a pair or none.
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

    /// Test port that is always readable. The port counts polls, and records the thread that drops
    /// it.
    struct NotedPort {
        fd: OwnedFd,
        polls: Arc<AtomicU64>,
        dropped_by: Sender<ThreadId>,
    }

    impl Port for NotedPort {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            self.polls.fetch_add(1, Relaxed);
            0
        }
        fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }
        fn offloads(&self) -> Offloads {
            Offloads::default()
        }
        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.fd.as_fd())
        }
    }

    impl Drop for NotedPort {
        fn drop(&mut self) {
            self.dropped_by.send(current().id()).expect("the test waits for it");
        }
    }

    fn interface(name: &str) -> InterfaceConfig {
        InterfaceConfig {
            name: name.to_owned(),
            link: LinkType::Ip,
            mac: MacAddr([0; 6]),
            mtu: 1500,
            offloads: Offloads::default(),
            addresses: vec![prefix("10.7.0.1/24")],
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        }
    }

    /// Tests that each shard (event loop) polls its port of an added interface. The thread that
    /// removes the interface also closes the ports, so that no shard waits for a device to close.
    #[test]
    fn a_running_engine_gains_and_loses_an_interface() {
        for shards in [1, 2] {
            let (remote, thread) = run(shards);
            let polls: Vec<Arc<AtomicU64>> = (0..shards).map(|_| Arc::default()).collect();
            let (to, dropped) = channel();
            let ports = || -> Vec<Box<dyn Port + Send>> {
                let port = |polls: &Arc<AtomicU64>| {
                    let fd = rustix::event::eventfd(1, rustix::event::EventfdFlags::empty());
                    let (fd, polls) = (fd.expect("a descriptor"), Arc::clone(polls));
                    Box::new(NotedPort { fd, polls, dropped_by: to.clone() }) as _
                };
                polls.iter().map(port).collect()
            };
            let iface = remote.add_interface(interface("p1"), ports()).expect("it is new");
            let waits = || polls.iter().any(|polls| polls.load(Relaxed) < 10);
            while waits() {
                std::thread::yield_now();
            }
            let state = remote.net().expect("it runs");
            assert_eq!(state.interface(iface).map(|known| known.name.as_str()), Some("p1"));
            let again = remote.add_interface(interface("p1"), ports());
            assert!(matches!(again, Err(AddError::Refused(Fault::Exists))), "{again:?}");
            let gone = remote.apply(vec![Change::RemoveInterface { iface }]).expect("it runs");
            assert_eq!(gone, Ok(Applied { changes: 1 }));
            // The ports of the rejected interface and of the removed one were dropped.
            let by: Vec<_> = dropped.try_iter().collect();
            assert_eq!(by, vec![current().id(); 2 * shards]);
            let state = remote.net().expect("it runs");
            assert!(state.interface(iface).is_none());
            assert!(state.routes.iter().all(|route| route.iface != iface));
            let refused = Refused { at: 0, why: Fault::NoInterface };
            let twice = remote.apply(vec![Change::RemoveInterface { iface }]);
            assert_eq!(twice.expect("it runs"), Err(refused));
            remote.stop();
            thread.join().expect("it does not panic");
        }
    }
}
