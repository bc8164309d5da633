//! Creates the engine of a router.

use towpath_engine::{Engine, EngineConfig, EngineError};
use towpath_pool::Port;
use towpath_stack::net::{
    Change, Forwarding, How, InterfaceConfig, NetConfig, Refused, SourceCheck,
};
use towpath_stack::{Budget, StackConfig};
use towpath_wire::{MacAddr, Prefix};

use crate::plan::{Plan, RouterPlanError};
use crate::tracker::{FlowTracker, TrackerSettings};

/// Maximum number of packets that are received from one port in one iteration of the event loop.
/// Limited so that packets of 64 KiB from two ports fit into the queue of a third one.
const RX_PACKETS: usize = 32;

/// Settings of a router in addition to its plan.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Reverse path check of source addresses, as Linux's rp_filter.
    pub source_check: SourceCheck,
    /// Maximum number of neighbors in the tables of ARP and NDP.
    pub neighbors_max: usize,
    /// Settings of the connection tracker, if the plan needs one.
    pub tracker: TrackerSettings,
    /// Settings of the engine. The router replaces its stack, budget, interfaces and number of
    /// channels.
    pub engine: EngineConfig,
}

/// An open port of the router, with its Ethernet address and MTU.
pub struct OpenPort {
    /// Queues of the device, one for each shard.
    pub queues: Vec<Box<dyn Port + Send>>,
    /// Ethernet address of the router on the port.
    pub mac: [u8; 6],
    /// Maximum length in bytes of IP packets on the port (MTU).
    pub mtu: u32,
}

impl OpenPort {
    /// Returns the configuration of the engine's interface for this port. Returns `None` if the
    /// port has no queues.
    pub fn interface(&self, name: &str, addresses: Vec<Prefix>) -> Option<InterfaceConfig> {
        let queue = self.queues.first()?;
        Some(InterfaceConfig {
            name: name.to_owned(),
            link: queue.link_type(),
            mac: MacAddr(self.mac),
            mtu: self.mtu,
            offloads: queue.offloads(),
            addresses,
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        })
    }
}

/// Reason why a router cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouterError {
    /// The plan is inconsistent.
    #[error(transparent)]
    Plan(#[from] RouterPlanError),
    /// The engine cannot be created.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The plan needs a connection tracker, which supports only one shard, and there are several.
    #[error("address translation and flow states need one thread: use --shards 1")]
    SeveralShards,
}

/// Creates an engine without programs that forwards packets by `plan` between `ports`. The ports
/// must be in the order of the plan, and have the same number of queues. `seed` must be random and
/// secret.
///
/// Port `n` of the plan is interface `n + 1` of the engine.
///
/// # Errors
/// Fails if the plan is inconsistent, or if memory or descriptors are exhausted.
pub fn router(
    plan: &Plan,
    settings: Settings,
    ports: Vec<OpenPort>,
    seed: [u8; 32],
) -> Result<Engine, RouterError> {
    plan.check()?;
    let net = NetConfig {
        forwarding: Some(Forwarding { source_check: settings.source_check }),
        neighbors_max: settings.neighbors_max,
        ..NetConfig::default()
    };
    let planned = plan.ports.iter().zip(&ports);
    let interfaces = planned
        .filter_map(|(planned, open)| open.interface(&planned.name, planned.addresses.clone()));
    let config = EngineConfig {
        stack: StackConfig { net, ..StackConfig::default() },
        budget: Budget { rx_packets: RX_PACKETS, ..Budget::default() },
        interfaces: interfaces.collect(),
        channels_max: 0,
        ..settings.engine
    };
    let shards = by_shard(ports);
    if plan.needs_tracker() && shards.len() > 1 {
        return Err(RouterError::SeveralShards);
    }
    let mut engine = Engine::with_shards(config, shards, seed)?;
    let specs = plan.route_specs()?;
    // Append each route to routes with the same prefix, so that flows are distributed among all
    // their next hops.
    let changes: Vec<_> = specs.iter().map(|spec| Change::SetRoute(*spec, How::Append)).collect();
    let made = engine.apply(&changes);
    made.map_err(|Refused { at, why }| RouterPlanError::Route { prefix: specs[at].prefix, why })?;
    let of_ports = plan.port_changes();
    let changes: Vec<_> = of_ports.iter().map(|(_, change)| *change).collect();
    engine.apply(&changes).map_err(|Refused { at, why }| {
        let name = of_ports[at].0.to_owned();
        RouterPlanError::Port { name, why }
    })?;
    engine.set_rules(plan.compiled()?);
    if plan.needs_tracker() {
        let tracker = FlowTracker::new(&settings.tracker, plan.nat_rules()?);
        engine.set_tracker(Box::new(tracker));
    }
    Ok(engine)
}

/// Groups the queues of all ports by shard.
fn by_shard(ports: Vec<OpenPort>) -> Vec<Vec<Box<dyn Port + Send>>> {
    let mut shards = Vec::new();
    for port in ports {
        shards.resize_with(shards.len().max(port.queues.len()), Vec::new);
        shards.iter_mut().zip(port.queues).for_each(|(shard, queue)| shard.push(queue));
    }
    shards
}
