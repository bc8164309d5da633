//! Validates ports that are built on other ports: VLANs and bridges.

use towpath_uplink::DEVICES;

use crate::port::{PortDevice, PortSettings};

/// Returns the VLAN ports on the port `name`, with their tags.
pub fn vlans_of<'a>(
    ports: &'a [PortSettings],
    name: &'a str,
) -> impl Iterator<Item = (&'a PortSettings, u16)> {
    ports.iter().filter_map(move |port| match &port.device {
        PortDevice::Vlan(parent, id) if parent == name => Some((port, *id)),
        _ => None,
    })
}

/// Returns the names of the VLANs and bridges that are built on the port `name`.
pub fn users_of<'a>(ports: &'a [PortSettings], name: &'a str) -> impl Iterator<Item = &'a str> {
    let stands_on = move |port: &&PortSettings| match &port.device {
        PortDevice::Vlan(parent, _) => parent == name,
        PortDevice::Bridge { members, .. } => members.iter().any(|member| member == name),
        PortDevice::Device(_) | PortDevice::Nat64(_) => false,
    };
    ports.iter().filter(stands_on).map(|port| port.name.as_str())
}

/// Returns the names of all ports that are removed together with the port `name`. A port without
/// addresses is also removed if no remaining port is built on it.
pub fn without(ports: &[PortSettings], name: &str) -> Vec<String> {
    let mut left = ports.to_vec();
    let mut lost = vec![name.to_owned()];
    loop {
        left.retain(|port| !lost.contains(&port.name));
        let is_unused = |port: &&PortSettings| {
            !port.is_interface() && users_of(&left, &port.name).next().is_none()
        };
        let unused: Vec<_> = left.iter().filter(is_unused).map(|port| port.name.clone()).collect();
        if unused.is_empty() {
            return lost;
        }
        lost.extend(unused);
    }
}

/// Returns whether a port is a member of a bridge.
pub fn is_member(ports: &[PortSettings], name: &str) -> bool {
    ports.iter().any(|port| match &port.device {
        PortDevice::Bridge { members, .. } => members.iter().any(|member| member == name),
        _ => false,
    })
}

/// A port that is inconsistent with another port.
#[derive(Debug, PartialEq, Eq)]
pub struct Misplaced<'a> {
    /// Name of the port.
    pub port: &'a str,
    /// Error message about the port.
    pub why: String,
}

/// Checks whether VLANs and bridges refer to existing ports that may be used for them.
///
/// # Errors
/// Returns the first port that is invalid.
pub fn check(ports: &[PortSettings]) -> Result<(), Misplaced<'_>> {
    let mut members = Vec::new();
    for port in ports {
        check_port(ports, port, &mut members).map_err(|why| Misplaced { port: &port.name, why })?;
    }
    Ok(())
}

/// Validates one port. `members_of_all` contains the members of all bridges validated so far.
fn check_port<'a>(
    ports: &'a [PortSettings],
    port: &'a PortSettings,
    members_of_all: &mut Vec<&'a str>,
) -> Result<(), String> {
    let names = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    let find = |by: &str, name: &str| {
        let found = ports.iter().find(|port| port.name == name);
        found.ok_or_else(|| format!("{by} stands on the port {name:?}; there are {}", names()))
    };
    let name = &port.name;
    match &port.device {
        PortDevice::Vlan(parent, id) => {
            let below = find(name, parent)?;
            if !has_all_frames(below) {
                let kinds = kinds_with_all_frames().join(" and ");
                return Err(format!("{name}: VLANs stand on {kinds}, not on {parent}"));
            }
            if vlans_of(ports, parent).filter(|(_, other)| other == id).count() > 1 {
                return Err(format!("two ports are the VLAN {id} of {parent}: leave one out"));
            }
        }
        PortDevice::Bridge { members, .. } => {
            for member in members {
                let below = find(name, member)?;
                if below.device.device().is_some() && !has_all_frames(below) {
                    let (kind, kinds) = (below.device.words().0, kinds_with_all_frames());
                    return Err(format!(
                        "{member}: a bridge needs all frames, and a port of {kind} does not have \
                         them: make it {}",
                        kinds.join(" or ")
                    ));
                }
                if matches!(below.device, PortDevice::Bridge { .. }) {
                    return Err(format!("{name}: a bridge cannot be part of another, {member}"));
                }
                if below.is_interface() {
                    return Err(format!(
                        "{member} is part of the bridge {name}, which has the addresses: give \
                         {member} none"
                    ));
                }
                if members_of_all.contains(&member.as_str()) {
                    return Err(format!("{member} is part of two bridges, or of one twice"));
                }
                members_of_all.push(member);
            }
        }
        PortDevice::Device(_) | PortDevice::Nat64(_) => {}
    }
    let carries = is_member(ports, name) || vlans_of(ports, name).next().is_some();
    if !port.is_interface() && !carries {
        return Err(format!(
            "the port {name} has no address: expected ADDRESS/LENGTH behind a comma, or --dhcp \
             {name}, unless a VLAN or a bridge stands on it"
        ));
    }
    if port.by_dhcp { check_link_service("dhcp", port) } else { Ok(()) }
}

/// Checks whether a port of `--dhcp`, `--dhcp-server` or `--ra` receives broadcasts.
///
/// # Errors
/// Returns an error message if it does not.
pub fn check_link_service(option: &str, port: &PortSettings) -> Result<(), String> {
    let is_made = port.device.device().is_none() && port.device.translator().is_none();
    if is_made || has_all_frames(port) {
        return Ok(());
    }
    Err(format!(
        "--{option} {}: the option needs broadcasts, which {} does not receive: use {}",
        port.name,
        port.device.words().0,
        kinds_with_all_frames().join(" or ")
    ))
}

/// Returns whether the port's device receives frames of all VLANs and to all Ethernet addresses.
fn has_all_frames(port: &PortSettings) -> bool {
    port.device.device().is_some_and(|spec| spec.driver().traits.has_all_frames)
}

/// Returns the names of the drivers whose devices receive frames of all VLANs and to all Ethernet
/// addresses.
fn kinds_with_all_frames() -> Vec<&'static str> {
    let all = DEVICES.iter().filter(|driver| driver.traits.has_all_frames);
    all.map(|driver| driver.name).collect()
}

/// Returns the names of the kernel interfaces that a port uses, directly or through other ports.
pub fn kernel_interfaces(ports: &[PortSettings], port: &PortSettings) -> Vec<String> {
    let below = |name: &String| ports.iter().find(|port| port.name == *name);
    let through = |names: &[String]| -> Vec<String> {
        let ports_below = names.iter().filter_map(below);
        ports_below.flat_map(|port| kernel_interfaces(ports, port)).collect()
    };
    match &port.device {
        PortDevice::Device(spec) => spec.link().map(str::to_owned).into_iter().collect(),
        PortDevice::Vlan(parent, _) => through(std::slice::from_ref(parent)),
        PortDevice::Bridge { members, .. } => through(members),
        PortDevice::Nat64(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use towpath_uplink::DeviceSpec;

    use super::*;

    fn device(text: &str) -> PortDevice {
        PortDevice::Device(DeviceSpec::parse(text).unwrap())
    }

    fn port(name: &str, device: PortDevice, has_address: bool) -> PortSettings {
        let mut port = PortSettings::new(name, device);
        if has_address {
            port.set_addresses(vec!["10.1.0.1/24".parse().unwrap()]);
        }
        port
    }

    fn packet(name: &str, has_address: bool) -> PortSettings {
        port(name, device("packet:eth0"), has_address)
    }

    fn vlan(name: &str, parent: &str, id: u16) -> PortSettings {
        port(name, PortDevice::Vlan(parent.into(), id), true)
    }

    fn bridge(name: &str, members: &[&str]) -> PortSettings {
        let members = members.iter().map(|name| (*name).to_owned()).collect();
        port(name, PortDevice::Bridge { members, ageing: None, addresses: None }, true)
    }

    #[test]
    fn the_interfaces_below_are_the_hosts() {
        let below = |ports: &[PortSettings]| kernel_interfaces(ports, &ports[0]);
        let tap = port("b", device("tap:t0"), false);
        assert_eq!(below(&[bridge("br", &["a", "b"]), packet("a", false), tap]), ["eth0", "t0"]);
        assert_eq!(below(&[vlan("office", "lan", 10), packet("lan", false)]), ["eth0"]);
    }

    #[test]
    fn dhcp_needs_broadcasts() {
        let error =
            check_link_service("dhcp-server", &port("l", device("xdp:eth0"), true)).unwrap_err();
        assert!(error.starts_with("--dhcp-server l: the option needs broadcasts"), "{error}");
        assert_eq!(check_link_service("dhcp-server", &packet("l", true)), Ok(()));
        assert_eq!(check_link_service("dhcp", &bridge("b", &["l"])), Ok(()));
    }

    #[test]
    fn ports_stand_on_ports_that_can_carry_them() {
        let good = [
            vec![packet("lan", false), vlan("office", "lan", 10), vlan("guests", "lan", 20)],
            vec![vlan("office", "lan", 10), packet("lan", true)],
            vec![packet("a", false), packet("b", false), bridge("br", &["a", "b"])],
        ];
        good.iter().for_each(|ports| assert_eq!(check(ports), Ok(())));
        let wrong = [
            (vec![packet("lan", false)], "the port lan has no address"),
            (vec![packet("lan", true), vlan("o", "lam", 10)], "\"lam\"; there are lan, o"),
            (
                vec![packet("l", true), vlan("o", "l", 1), vlan("p", "l", 1)],
                "two ports are the VLAN",
            ),
            (vec![packet("l", true), vlan("o", "l", 1), vlan("p", "o", 2)], "not on o"),
            (vec![port("l", device("xdp:eth0"), true), vlan("o", "l", 1)], "on tap and packet"),
            (
                vec![
                    port("a", device("xdp:e"), false),
                    packet("b", false),
                    bridge("c", &["a", "b"]),
                ],
                "a port of xdp does not have them: make it tap or packet",
            ),
            (vec![packet("a", true), packet("b", false), bridge("c", &["a", "b"])], "give a none"),
            (vec![packet("a", false), bridge("c", &["a", "a"])], "of one twice"),
        ];
        for (ports, wanted) in wrong {
            let error = check(&ports).unwrap_err().why;
            assert!(error.contains(wanted), "{error}");
        }
    }
}
