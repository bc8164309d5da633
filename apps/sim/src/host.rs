//! Hosts of a world: a stack with its programs.

use towpath_direct::{DirectConfig, Node, NodeConfig};
use towpath_link::Dice;
use towpath_pool::{LinkType, Offloads};
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{IfaceId, Instant, StackConfig};
use towpath_wire::Prefix;

use crate::packet::{SimPort, mac_of};
use crate::scenario::{HostPlan, Plan};
use crate::traffic::Programs;

/// Time of the stacks at the start of a run, in ns. Not 0, because some fields use 0 for "never".
pub const EPOCH_NS: u64 = 1_000_000_000;

/// Interface of a host; loopback has number 0.
const ETH0: IfaceId = IfaceId(1);

/// Host with its programs.
pub struct SimHost {
    /// Stack and sockets.
    pub node: Node<SimPort>,
    /// Sources and sinks of the flows.
    pub programs: Programs,
    /// Index of the wire from the host to the network.
    pub wire: usize,
    /// Whether the stack has more to send than the wire had room for.
    pub is_waiting: bool,
}

impl SimHost {
    /// Creates an idle host, which sends to the wire `wire`.
    pub fn new(plan: &Plan, number: usize, wire: usize, seed: u64) -> Self {
        Self {
            node: node(&plan.hosts[number], number, plan.macs, seed),
            programs: Programs::new(plan, number, seed),
            wire,
            is_waiting: false,
        }
    }

    /// Returns the time of the node's next turn; `u64::MAX` for none.
    pub fn node_due(&self) -> u64 {
        self.node.next_timeout().map_or(u64::MAX, |at| at.0.saturating_sub(EPOCH_NS))
    }

    /// Returns whether the event loop of the node has work even if no packet has arrived.
    pub fn has_work(&self, now: u64) -> bool {
        self.node_due() <= now || self.node.stack.net.output_load(ETH0).packets > 0
    }
}

fn node(plan: &HostPlan, number: usize, macs: [u8; 4], seed: u64) -> Node<SimPort> {
    let mut stack = StackConfig::default();
    plan.tcp.apply(&mut stack.tcp);
    stack.tcp.initial_window = plan.initial_window;
    stack.tcp.delayed_ack = plan.delayed_ack;
    let mut direct = DirectConfig::default();
    (direct.buffers.recv, direct.buffers.recv_max) = (plan.recv_buffer, plan.recv_buffer_max);
    if let Some(bytes) = plan.send_buffer {
        (direct.buffers.send, direct.buffers.send_max) = (bytes, bytes);
    }
    let config = NodeConfig { stack, direct, ..NodeConfig::default() };
    let mut dice = Dice::new(seed, HOST_STREAMS + number as u64);
    let mut key = [0; 32];
    key.chunks_mut(8).for_each(|part| part.copy_from_slice(&dice.next_u64().to_be_bytes()));
    let mut node = Node::new(config, key, Instant(EPOCH_NS));
    let address = Prefix::new(plan.address.into(), plan.prefix_len);
    let interface = InterfaceConfig {
        name: "eth0".into(),
        link: LinkType::Ethernet,
        mac: mac_of(macs, number),
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: address.into_iter().collect(),
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    };
    node.add_interface(interface, Box::default());
    if let Some(gateway) = plan.gateway {
        node.stack.net.add_route(Prefix::ALL_V4, Some(gateway.into()), ETH0, 0);
    }
    node
}

/// First random stream of the hosts' keys. Flows use the streams below, and start times those
/// above.
const HOST_STREAMS: u64 = 1 << 33;
