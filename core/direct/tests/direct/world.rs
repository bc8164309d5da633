//! Two nodes on a cable with delay, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use towpath_direct::{Node, NodeConfig, NodeEvent, SocketHandle};
use towpath_link::{Cable, CableConfig, Dice, LinkConfig};
use towpath_pool::{LinkType, Offloads};
use towpath_stack::Instant;
use towpath_stack::net::InterfaceConfig;
use towpath_wire::MacAddr;

pub const MS: u64 = 1_000_000;

pub struct Pair {
    pub a: Node,
    pub b: Node,
    /// Bytes of all packets sent by either end.
    pub seen: Rc<RefCell<Vec<u8>>>,
    now: u64,
}

impl Pair {
    pub fn new() -> Self {
        Self::with([NodeConfig::default(), NodeConfig::default()], false)
    }

    /// Creates the nodes; with `any`, `b` accepts packets to every address.
    pub fn with([a, b]: [NodeConfig; 2], any: bool) -> Self {
        let link = LinkConfig { delay_ns: MS, ..LinkConfig::default() };
        let cable = Cable::new(CableConfig { link, ..CableConfig::default() }, Dice::new(1, 0));
        let seen = Rc::<RefCell<Vec<u8>>>::default();
        let sees = Rc::clone(&seen);
        cable.observe(move |_, packet| sees.borrow_mut().extend_from_slice(packet.linear()));
        let node = |config, end: usize, any_address| -> Node {
            let mut node: Node = Node::new(config, [end as u8 + 1; 32], Instant(1000 * MS));
            let config = InterfaceConfig {
                name: "eth0".into(),
                link: LinkType::Ip,
                mac: MacAddr([0; 6]),
                mtu: 1500,
                offloads: Offloads::default(),
                addresses: vec![
                    format!("10.0.0.{}/24", end + 1).parse().expect("a prefix"),
                    format!("fd00::{}/64", end + 1).parse().expect("a prefix"),
                ],
                slaac: false,
                any_address,
                kernel_cuts: false,
                in_process: false,
            };
            let iface = node.add_interface(config, Box::new(cable.end(end)));
            node.stack.net.add_route("0.0.0.0/0".parse().expect("a prefix"), None, iface, 0);
            node
        };
        Self { a: node(a, 0, false), b: node(b, 1, any), seen, now: 1000 * MS }
    }

    /// Advances the time by `ms` milliseconds.
    pub fn run(&mut self, ms: u64) {
        let end = self.now + ms * MS;
        loop {
            while self.a.turn(Instant(self.now)).more | self.b.turn(Instant(self.now)).more {}
            let next = self.a.next_timeout().into_iter().chain(self.b.next_timeout()).min();
            let next = next.map_or(end, |at| at.0.max(self.now));
            if next >= end && self.now == end {
                return;
            }
            self.now = next.min(end);
        }
    }

    /// Connects `a` to `listener` of `b`; returns both handles, with no event pending.
    pub fn connected(&mut self, listener: SocketHandle, port: u16) -> (SocketHandle, SocketHandle) {
        let client = self.a.connect(([10, 0, 0, 2], port).into()).expect("connect");
        self.run(10);
        assert_eq!(events(&mut self.a), [NodeEvent::Connected(client)]);
        assert_eq!(events(&mut self.b), [NodeEvent::Incoming(listener)]);
        (client, self.b.accept(listener).expect("it is in the queue"))
    }
}

pub fn events(node: &mut Node) -> Vec<NodeEvent> {
    std::iter::from_fn(|| node.poll_event()).collect()
}
