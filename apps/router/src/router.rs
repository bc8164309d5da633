//! The engine of a router.

use towpath_engine::{Engine, EngineConfig, EngineError};
use towpath_pool::Port;
use towpath_stack::net::{
    Change, Forwarding, How, InterfaceConfig, NetConfig, Refused, SourceCheck,
};
use towpath_stack::{Budget, StackConfig};
use towpath_wire::MacAddr;

use crate::plan::{Plan, RouterPlanError};

/// Packets of one port in a turn. Packets of 64 KiB from two ports at once are then less than the
/// queue of a third one takes.
const RX_PACKETS: usize = 32;

/// Settings beside the plan.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Check of sources by the routes to them.
    pub source_check: SourceCheck,
    /// Maximum number of neighbours in the tables.
    pub neighbors_max: usize,
    /// Settings of the engine: threads and busy polling.
    pub engine: EngineConfig,
}

/// A port with its part of the link.
pub struct OpenPort {
    /// The device, by a queue for each shard.
    pub queues: Vec<Box<dyn Port + Send>>,
    /// Ethernet address of the router on it.
    pub mac: [u8; 6],
    /// Longest IP packet, in bytes.
    pub mtu: u32,
}

/// Why there is no router.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouterError {
    /// The plan's parts do not fit each other.
    #[error(transparent)]
    Plan(#[from] RouterPlanError),
    /// The engine cannot be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Creates an engine without programs that forwards by `plan` on `ports`, which are in the order of
/// the plan and have equally many queues. `seed` is random and secret.
///
/// Interface `n + 1` of the engine is the `n`-th port.
///
/// # Errors
/// The plan's parts do not fit each other, or the system refuses memory or a descriptor.
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
    let interfaces = planned.filter_map(|(planned, open)| {
        let queue = open.queues.first()?;
        Some(InterfaceConfig {
            name: planned.name.clone(),
            link: queue.link_type(),
            mac: MacAddr(open.mac),
            mtu: open.mtu,
            offloads: queue.offloads(),
            addresses: planned.addresses.clone(),
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        })
    });
    let config = EngineConfig {
        stack: StackConfig { net, ..StackConfig::default() },
        budget: Budget { rx_packets: RX_PACKETS, ..Budget::default() },
        interfaces: interfaces.collect(),
        channels_max: 0,
        ..settings.engine
    };
    let mut engine = Engine::with_shards(config, by_shard(ports), seed)?;
    let specs = plan.route_specs()?;
    // Appended, so that next hops of one network share the flows.
    let changes: Vec<_> = specs.iter().map(|spec| Change::SetRoute(*spec, How::Append)).collect();
    let made = engine.apply(&changes);
    made.map_err(|Refused { at, why }| RouterPlanError::Route { prefix: specs[at].prefix, why })?;
    engine.set_rules(plan.compiled()?);
    Ok(engine)
}

/// Queues of all ports, by shard.
fn by_shard(ports: Vec<OpenPort>) -> Vec<Vec<Box<dyn Port + Send>>> {
    let mut shards = Vec::new();
    for port in ports {
        shards.resize_with(shards.len().max(port.queues.len()), Vec::new);
        shards.iter_mut().zip(port.queues).for_each(|(shard, queue)| shard.push(queue));
    }
    shards
}
