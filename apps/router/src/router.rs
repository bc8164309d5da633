//! The stack of a router and its ports.

use std::sync::Arc;

use towpath_direct::{Node, NodeConfig};
use towpath_filter::Rules;
use towpath_pool::Port;
use towpath_stack::net::{
    Change, Conflict, Forwarding, How, IfaceId, InterfaceConfig, Logged, NetConfig, Refused,
    RuleSet, SourceCheck,
};
use towpath_stack::{Budget, Instant, Stack, StackConfig, Turn};
use towpath_wire::MacAddr;

use crate::plan::{Plan, RouterPlanError};

/// Packets of one port in a turn. Packets of 64 KiB from two ports at once are then less than the
/// queue of a third one takes.
const RX_PACKETS: usize = 32;

/// Settings beside the plan.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Check of sources by the routes to them.
    pub source_check: SourceCheck,
    /// Neighbours in its tables.
    pub neighbors_max: usize,
    /// Keep copies of dropped packets for [`Router::take_dropped`].
    pub trace_drops: bool,
}

/// A port with its part of the link.
pub struct OpenPort {
    /// The device.
    pub port: Box<dyn Port + Send>,
    /// Ethernet address of the router on it.
    pub mac: [u8; 6],
    /// Longest IP packet, in bytes.
    pub mtu: u32,
}

/// A router: see the [crate page](crate).
pub struct Router {
    node: Node<dyn Port + Send>,
}

impl Router {
    /// A router by `plan` on `ports`, which are in the plan's order. `seed` is secret.
    ///
    /// # Errors
    /// The plan's parts do not fit each other.
    pub fn new(
        plan: &Plan,
        settings: &Settings,
        ports: Vec<OpenPort>,
        seed: [u8; 32],
        now_ns: u64,
    ) -> Result<Self, RouterPlanError> {
        plan.check()?;
        let net = NetConfig {
            trace_drops: settings.trace_drops,
            forwarding: Some(Forwarding { source_check: settings.source_check }),
            neighbors_max: settings.neighbors_max,
        };
        let stack = StackConfig { net, ..StackConfig::default() };
        let budget = Budget { rx_packets: RX_PACKETS, ..Budget::default() };
        let config = NodeConfig { stack, budget, ..NodeConfig::default() };
        let mut node = Node::new(config, seed, Instant(now_ns));
        for (planned, open) in plan.ports.iter().zip(ports) {
            let config = InterfaceConfig {
                name: planned.name.clone(),
                link: open.port.link_type(),
                mac: MacAddr(open.mac),
                mtu: open.mtu,
                offloads: open.port.offloads(),
                addresses: planned.addresses.clone(),
                slaac: false,
                any_address: false,
                kernel_cuts: false,
                in_process: false,
            };
            node.add_interface(config, open.port);
        }
        let specs = plan.route_specs()?;
        // Appended, so that next hops of one network share the flows.
        let changes: Vec<_> =
            specs.iter().map(|spec| Change::SetRoute(*spec, How::Append)).collect();
        let made = node.stack.net.apply(Instant(now_ns), &changes);
        made.map_err(|Refused { at, why }| RouterPlanError::Route {
            prefix: specs[at].prefix,
            why,
        })?;
        node.stack.net.set_rules(plan.compiled()?);
        Ok(Self { node })
    }

    /// Receives, forwards and sends once.
    pub fn turn(&mut self, now_ns: u64) -> Turn {
        self.node.turn(Instant(now_ns))
    }

    /// When a turn is due though nothing arrives; in the past when there is work now.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.node.next_timeout().map(|due| due.0)
    }

    /// The ports, in the order of the plan.
    pub fn ports(&self) -> &[Box<dyn Port + Send>] {
        &self.node.ports
    }

    /// The ports, to be told of readiness.
    pub(crate) fn ports_mut(&mut self) -> &mut [Box<dyn Port + Send>] {
        &mut self.node.ports
    }

    /// Name of the `n`-th port.
    pub fn name(&self, n: usize) -> &str {
        self.node.stack.net.interfaces().get(n + 1).map_or("", |interface| interface.name())
    }

    /// Sets the `n`-th port's interface down, as Linux does with one that is unregistered. Routes
    /// through it are gone, so that worse ones by other ports are used.
    pub(crate) fn take_down(&mut self, now_ns: u64, n: usize) {
        let iface = IfaceId(n as u16 + 1);
        let made = self.apply(now_ns, &[Change::SetUp { iface, up: false }]);
        debug_assert!(made.is_ok(), "port {n} has an interface");
    }

    /// Says whether the `n`-th port has a link. Without one the routers behind it are avoided where
    /// a route has others.
    pub fn set_carrier(&mut self, now_ns: u64, n: usize, carrier: bool) {
        let iface = IfaceId(n as u16 + 1);
        self.node.stack.net.set_carrier(Instant(now_ns), iface, carrier);
    }

    /// Makes all of several changes, for packets at one moment.
    ///
    /// # Errors
    /// None of them was made: the first one that cannot be, and why.
    pub fn apply(&mut self, now_ns: u64, changes: &[Change]) -> Result<(), Refused> {
        self.node.stack.net.apply(Instant(now_ns), changes)
    }

    /// The stack, for what it counted and knows.
    pub fn stack(&self) -> &Stack<towpath_direct::Direct> {
        &self.node.stack
    }

    /// The rules in force, with what they counted.
    pub fn rules(&self) -> Option<&Arc<RuleSet>> {
        self.node.stack.net.rules()
    }

    /// Judges packets by other rules from now on, or by none.
    pub fn set_rules(&mut self, rules: Option<Rules>) {
        self.node.stack.net.set_rules(rules);
    }

    /// The oldest packet not yet taken that a rule wants to be told of.
    pub fn take_logged(&mut self) -> Option<Logged> {
        self.node.stack.net.take_logged()
    }

    /// The oldest address not yet taken that another host on its link has as well.
    pub fn take_conflict(&mut self) -> Option<Conflict> {
        self.node.stack.net.take_conflict()
    }

    /// The oldest dropped packet not yet taken.
    pub fn take_dropped(&mut self) -> Option<towpath_stack::net::DroppedCopy> {
        self.node.stack.net.take_dropped()
    }
}
