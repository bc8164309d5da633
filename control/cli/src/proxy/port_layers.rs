//! Wraps the device of a gateway, to capture and count its packets.

use towpath_gateway::Gateway;
use towpath_pcap::CaptureFile;
use towpath_pool::Port;
use towpath_uplink::{Layer, PortCounters};

/// Wraps a device, so that its packets are captured if there is a capture file.
pub fn captured(
    capture: Option<&CaptureFile>,
    name: &str,
    device: impl Port + Send + 'static,
) -> std::io::Result<Box<dyn Port + Send>> {
    Ok(match capture {
        Some(file) => Box::new(file.capture(name, device)?),
        None => Box::new(device),
    })
}

/// Returns the counters of the gateway and of its stack.
pub fn layers_of(gateway: &Gateway) -> Vec<Layer> {
    let layer = |name: &str, list: &mut dyn Iterator<Item = (&'static str, u64)>| Layer {
        name: name.to_owned(),
        counters: list.map(|(name, value)| (name.to_owned(), value)).collect(),
    };
    let stack = gateway.inner();
    let net = stack.net.counters();
    vec![
        layer("gateway", &mut gateway.counters().iter()),
        layer("sockets", &mut stack.counters().iter()),
        layer("net", &mut net.iter()),
        layer("drops", &mut net.data.drops.iter()),
    ]
}

/// Appends the counters of the ports to `layers`.
pub fn with_ports(mut layers: Vec<Layer>, ports: &PortCounters) -> Vec<Layer> {
    layers.extend(ports.iter().map(|(name, list)| Layer {
        name: (*name).to_owned(),
        counters: list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    }));
    layers
}
