//! Answers control requests about the ports of the stack in this process.

use nix::net::if_::InterfaceFlags;
use towpath_model::{Interface, Port, Word};
use towpath_uplink::{PortCounters, Tally};

/// Description of a port of a stack, given by the run or router that has opened it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Name of the port.
    pub name: String,
    /// Kind of the port's device, such as `tap`.
    pub driver: String,
    /// Name of the host's device, or names of the ports on which this port is built.
    pub device: Option<String>,
    /// Names of the kernel interfaces below the port; empty if there are none. The port has a link
    /// if any of them does.
    pub links: Vec<String>,
    /// Counters of the device.
    pub counters: Vec<(String, u64)>,
}

/// Kind, name and counters of a port's device, taken from a tally.
pub struct OfTally {
    /// Kind of the device.
    pub driver: String,
    /// Name of the device on the host.
    pub device: Option<String>,
    /// Counters of the port. Names of counters of other layers are prefixed by the layer's name.
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

/// Converts ports to the type of the control protocol, and adds their interfaces.
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

/// Sets the carrier state of each interface whose port has a known link state.
pub fn put_carriers(links: &[(String, Vec<String>)], interfaces: &mut [Interface]) {
    let running = running();
    for interface in interfaces {
        let below = links.iter().find(|(name, _)| *name == interface.name.as_str());
        interface.carrier = below.and_then(|(_, below)| has_link(&running, below));
    }
}

/// Returns the link state of each port, given the names of the kernel interfaces below it. The
/// state is `None` if there are none.
pub fn carriers(below: &[Vec<String>]) -> Vec<Option<bool>> {
    let running = running();
    below.iter().map(|below| has_link(&running, below)).collect()
}

/// Returns whether any of the kernel interfaces `below` has a link; `None` if `below` is empty.
fn has_link(running: &[String], below: &[String]) -> Option<bool> {
    (!below.is_empty()).then(|| below.iter().any(|name| running.contains(name)))
}

/// Returns the names of the kernel interfaces that have a link.
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
