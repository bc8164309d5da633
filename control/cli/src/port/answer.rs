//! Requests about the ports of this process's stack.

use nix::net::if_::InterfaceFlags;
use towpath_model::{Interface, Port, Word};
use towpath_uplink::{PortCounters, Tally};

/// Port of a stack, as described by the run or router that opened it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Name of the port.
    pub name: String,
    /// Kind of the port's device, such as `tap`.
    pub driver: String,
    /// Device of the host, or the ports below this one.
    pub device: Option<String>,
    /// Kernel interfaces below the port; it has a link if any of them does. Empty if there are
    /// none.
    pub links: Vec<String>,
    /// Counters of the device.
    pub counters: Vec<(String, u64)>,
}

/// Device of a port and its counters, read from a tally.
pub struct OfTally {
    /// Kind of the device.
    pub driver: String,
    /// Name of the host's device.
    pub device: Option<String>,
    /// Counters; those of other layers are prefixed by the layer's name.
    pub counters: Vec<(String, u64)>,
}

impl From<&Tally> for OfTally {
    fn from(tally: &Tally) -> Self {
        let layers = tally.counted();
        let driver = layers.first().map_or("none", |(kind, _)| kind).to_owned();
        Self { driver, device: tally.device(), counters: named(&layers) }
    }
}

fn named(layers: &PortCounters) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for (place, (kind, list)) in layers.iter().enumerate() {
        let name = |name: &str| match place {
            0 => name.to_owned(),
            _ => format!("{kind}_{name}"),
        };
        all.extend(list.iter().map(|(counter, value)| (name(counter), *value)));
    }
    all
}

/// Converts ports for the protocol, and adds their interfaces.
pub fn shown(devices: Vec<Device>, interfaces: &[Interface]) -> Vec<Port> {
    let running = running();
    let word = |name: String| Word::try_from(name).ok();
    let shown = devices.into_iter().filter_map(|device| {
        let link = has_link(&running, &device.links);
        let is_its = |interface: &&Interface| interface.name.as_str() == device.name;
        let counters = device.counters.into_iter();
        Some(Port {
            interface: interfaces.iter().find(is_its).cloned(),
            name: word(device.name)?,
            driver: word(device.driver)?,
            device: device.device.and_then(word),
            link,
            counters: counters.filter_map(|(name, value)| Some((word(name)?, value))).collect(),
        })
    });
    shown.collect()
}

/// Sets the carrier state of each interface if its port's link state is known.
pub fn put_carriers(links: &[(String, Vec<String>)], interfaces: &mut [Interface]) {
    let running = running();
    for interface in interfaces {
        let below = links.iter().find(|(name, _)| *name == interface.name.as_str());
        interface.carrier = below.and_then(|(_, below)| has_link(&running, below));
    }
}

/// Returns the link state of each port, if known, from the kernel interfaces below.
pub fn carriers(below: &[Vec<String>]) -> Vec<Option<bool>> {
    let running = running();
    below.iter().map(|below| has_link(&running, below)).collect()
}

/// Returns whether any kernel interface below a port has a link. Returns `None` if there are no
/// such interfaces.
fn has_link(running: &[String], below: &[String]) -> Option<bool> {
    (!below.is_empty()).then(|| below.iter().any(|name| running.contains(name)))
}

/// Returns the kernel's interfaces that have a link.
fn running() -> Vec<String> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let running = all.filter(|known| known.flags.contains(InterfaceFlags::IFF_RUNNING));
    running.map(|known| known.interface_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_other_layers_have_these_in_front() {
        let layers = vec![("packet", vec![("rx_frames", 1)]), ("vlan", vec![("rx_foreign", 2)])];
        let wanted = [("rx_frames".to_owned(), 1), ("vlan_rx_foreign".to_owned(), 2)];
        assert_eq!(named(&layers), wanted);
    }

    #[test]
    fn a_link_is_that_of_one_interface_below() {
        let device = |links: &[&str]| Device {
            name: "x".to_owned(),
            driver: "bridge".to_owned(),
            device: None,
            links: links.iter().map(|link| (*link).to_owned()).collect(),
            counters: Vec::new(),
        };
        let link = |links: &[&str]| shown(vec![device(links)], &[])[0].link;
        assert_eq!(link(&[]), None);
        assert_eq!(link(&["no such one"]), Some(false));
    }
}
