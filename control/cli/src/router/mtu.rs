//! Keeps the MTU of the ports equal to that of the kernel's interfaces.

use towpath_engine::Remote;
use towpath_stack::net::{Change, IfaceId};
use towpath_uplink::{Followed, MtuFollower};

use super::args::PortArg;
use super::layers;
use crate::messages::Messages;

/// Starts a thread that adopts MTU changes of the kernel's interfaces. Returns `None` if there are
/// no such interfaces, or no thread can be created.
pub fn follow(
    words: &[PortArg],
    followed: Vec<Followed>,
    remote: Remote,
    messages: &Messages,
) -> Option<MtuFollower> {
    if followed.is_empty() {
        return None;
    }
    let (words, tells) = (words.to_vec(), messages.clone());
    let follower = MtuFollower::start(followed, move |all, place| {
        let changes = changes(&words, all, &all[place].interface);
        // Fails only if the router has ended, which then forwards no packets.
        let _ = remote.apply(changes);
        tells.post(&all[place].sentence());
    });
    let say = |error| messages.say(&format!("the MTU of interfaces is not followed: {error}"));
    follower.map_err(say).ok()
}

/// Returns the changes for ports that use the interface. A bridge has the lowest MTU of its
/// members.
fn changes(words: &[PortArg], all: &[Followed], interface: &str) -> Vec<Change> {
    let with_address = words.iter().filter(|port| !port.addresses.is_empty());
    let below = with_address.map(|port| layers::kernel_interfaces(words, port));
    let touched = (1..)
        .map(IfaceId)
        .zip(below)
        .filter(|(_, below)| below.iter().any(|name| name == interface));
    let change = |(iface, below): (IfaceId, Vec<String>)| {
        let known = all.iter().filter(|known| below.contains(&known.interface));
        Some(Change::SetMtuMost { iface, mtu: known.map(Followed::stack_mtu).min()? })
    };
    touched.filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use towpath_uplink::DeviceSpec;

    use super::super::args::PortDevice;
    use super::*;

    #[test]
    fn ports_have_the_least_mtu_below_them() {
        let port = |name: &str, device, has_address: bool| PortArg {
            name: name.to_owned(),
            device,
            addresses: has_address.then(|| "10.1.0.1/24".parse().unwrap()).into_iter().collect(),
        };
        let device = |text: &str| PortDevice::Device(DeviceSpec::parse(text).unwrap());
        let members = vec!["a".to_owned(), "b".to_owned()];
        let words = [
            port("a", device("packet:eth0"), false),
            port("b", device("packet:eth1"), false),
            port("br", PortDevice::Bridge { members, ageing: None, addresses: None }, true),
            port("c", device("xdp:eth2"), true),
            port("v", PortDevice::Vlan("a".into(), 7), true),
        ];
        let followed = |interface: &str, mtu| Followed {
            interface: interface.to_owned(),
            index: 1,
            mtu,
            most: 65_535,
        };
        let all = [followed("eth0", 9000), followed("eth1", 1400), followed("eth2", 1500)];
        let set = |iface, mtu| Change::SetMtuMost { iface: IfaceId(iface), mtu };
        assert_eq!(changes(&words, &all, "eth0"), [set(1, 1400), set(3, 9000)]);
        assert_eq!(changes(&words, &all, "eth2"), [set(2, 1500)]);
    }
}
