//! Keeps the MTU of the ports equal to the MTU of the kernel interfaces below them.

use towpath_engine::Remote;
use towpath_stack::net::{Change, IfaceId};
use towpath_uplink::{Followed, LinkChange, MtuFollower};

use super::ports::RouterPorts;
use crate::messages::Messages;

/// Starts a thread that adopts MTU changes of kernel interfaces. Returns `None` if the ports use no
/// such interfaces, or if no thread can be created.
pub fn follow(
    ports: &RouterPorts,
    followed: Vec<Followed>,
    remote: Remote,
    messages: &Messages,
) -> Option<MtuFollower> {
    if followed.is_empty() {
        return None;
    }
    let (ports, tells) = (ports.clone(), messages.clone());
    let follower = MtuFollower::start(followed, move |all, place, change| {
        // The router follows carriers by a watch of its own, also those of added ports.
        if change != LinkChange::Mtu {
            return;
        }
        let changes = changes(&ports.interfaces(), all, &all[place].interface);
        for change in &changes {
            if let Change::SetMtuMost { iface, mtu } = change {
                ports.set_device_mtu(*iface, *mtu);
            }
        }
        // Ignore errors: this fails only if the router has ended, and so forwards no packets.
        let _ = remote.apply(changes);
        tells.post(&all[place].sentence());
    });
    let say = |error| messages.say(&format!("the MTU of interfaces is not followed: {error}"));
    follower.map_err(say).ok()
}

/// Returns the MTU changes for interfaces of the stack that use the kernel interface `interface`.
/// The MTU of a bridge is the lowest MTU of its members.
fn changes(ports: &[(IfaceId, Vec<String>)], all: &[Followed], interface: &str) -> Vec<Change> {
    let touched = ports.iter().filter(|(_, below)| below.iter().any(|name| name == interface));
    let change = |(iface, below): &(IfaceId, Vec<String>)| {
        let known = all.iter().filter(|known| below.contains(&known.interface));
        Some(Change::SetMtuMost { iface: *iface, mtu: known.map(Followed::stack_mtu).min()? })
    };
    touched.filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_the_least_mtu_below_them() {
        let port = |iface, below: &[&str]| {
            (IfaceId(iface), below.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        // Three ports: a bridge, an interface, and a VLAN on a member of the bridge.
        let words = [port(1, &["eth0", "eth1"]), port(2, &["eth2"]), port(3, &["eth0"])];
        let followed = |interface: &str, mtu| Followed {
            interface: interface.to_owned(),
            index: 1,
            mtu,
            most: 65_535,
            has_carrier: true,
        };
        let all = [followed("eth0", 9000), followed("eth1", 1400), followed("eth2", 1500)];
        let set = |iface, mtu| Change::SetMtuMost { iface: IfaceId(iface), mtu };
        assert_eq!(changes(&words, &all, "eth0"), [set(1, 1400), set(3, 9000)]);
        assert_eq!(changes(&words, &all, "eth2"), [set(2, 1500)]);
    }
}
