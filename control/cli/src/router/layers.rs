//! Ports that stand on other ports: VLANs, and bridges.

use super::args::{Device, PortArg};

/// Ports that stand on `name` as VLANs, with their tags.
pub fn vlans_of<'a>(
    ports: &'a [PortArg],
    name: &'a str,
) -> impl Iterator<Item = (&'a PortArg, u16)> {
    ports.iter().filter_map(move |port| match &port.device {
        Device::Vlan(parent, id) if parent == name => Some((port, *id)),
        _ => None,
    })
}

/// Whether a port is part of a bridge.
pub fn is_member(ports: &[PortArg], name: &str) -> bool {
    ports.iter().any(|port| match &port.device {
        Device::Bridge { members, .. } => members.iter().any(|member| member == name),
        _ => false,
    })
}

/// A port that does not fit the others.
#[derive(Debug, PartialEq, Eq)]
pub struct Misplaced<'a> {
    /// Name of the port.
    pub port: &'a str,
    /// The sentence for the user.
    pub why: String,
}

/// Checks that the ports which others name are there, and can be named so.
///
/// # Errors
/// With the first port that is not in order.
pub fn check(ports: &[PortArg]) -> Result<(), Misplaced<'_>> {
    let mut members = Vec::new();
    for port in ports {
        check_port(ports, port, &mut members).map_err(|why| Misplaced { port: &port.name, why })?;
    }
    Ok(())
}

/// `members_of_all`: ports that are parts of the bridges looked at so far.
fn check_port<'a>(
    ports: &'a [PortArg],
    port: &'a PortArg,
    members_of_all: &mut Vec<&'a str>,
) -> Result<(), String> {
    let names = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    let find = |by: &str, name: &str| {
        let found = ports.iter().find(|port| port.name == name);
        found.ok_or_else(|| format!("{by} stands on the port {name:?}; there are {}", names()))
    };
    let name = &port.name;
    match &port.device {
        Device::Vlan(parent, id) => {
            let below = find(name, parent)?;
            if !matches!(below.device, Device::Packet(_) | Device::Tap(_)) {
                return Err(format!("{name}: VLANs stand on packet and tap, not on {parent}"));
            }
            if vlans_of(ports, parent).filter(|(_, other)| other == id).count() > 1 {
                return Err(format!("two ports are the VLAN {id} of {parent}: leave one out"));
            }
        }
        Device::Bridge { members, .. } => {
            for member in members {
                let below = find(name, member)?;
                if matches!(below.device, Device::Xdp(_)) {
                    return Err(format!(
                        "{member}: an xdp port has the router's frames alone, and a bridge needs \
                         all: make it packet"
                    ));
                }
                if matches!(below.device, Device::Bridge { .. }) {
                    return Err(format!("{name}: a bridge cannot be part of another, {member}"));
                }
                if !below.addresses.is_empty() {
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
        Device::Packet(_) | Device::Xdp(_) | Device::Tap(_) => {}
    }
    let carries = is_member(ports, name) || vlans_of(ports, name).next().is_some();
    if port.addresses.is_empty() && !carries {
        return Err(format!(
            "the port {name} has no address: expected ADDRESS/LENGTH behind a comma, unless a \
             VLAN or a bridge stands on it"
        ));
    }
    Ok(())
}

/// Interfaces of the host that a port stands on, directly or by others.
pub fn kernel_interfaces(ports: &[PortArg], port: &PortArg) -> Vec<String> {
    let below = |name: &String| ports.iter().find(|port| port.name == *name);
    let through = |names: &[String]| -> Vec<String> {
        let ports_below = names.iter().filter_map(below);
        ports_below.flat_map(|port| kernel_interfaces(ports, port)).collect()
    };
    match &port.device {
        Device::Packet(name) | Device::Xdp(name) | Device::Tap(name) => vec![name.clone()],
        Device::Vlan(parent, _) => through(std::slice::from_ref(parent)),
        Device::Bridge { members, .. } => through(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, device: Device, has_address: bool) -> PortArg {
        let addresses = has_address.then(|| "10.1.0.1/24".parse().unwrap());
        PortArg { name: name.to_owned(), device, addresses: addresses.into_iter().collect() }
    }

    fn packet(name: &str, has_address: bool) -> PortArg {
        port(name, Device::Packet("eth0".into()), has_address)
    }

    fn vlan(name: &str, parent: &str, id: u16) -> PortArg {
        port(name, Device::Vlan(parent.into(), id), true)
    }

    fn bridge(name: &str, members: &[&str]) -> PortArg {
        let members = members.iter().map(|name| (*name).to_owned()).collect();
        port(name, Device::Bridge { members, ageing: None, addresses: None }, true)
    }

    #[test]
    fn the_interfaces_below_are_the_hosts() {
        let below = |ports: &[PortArg]| kernel_interfaces(ports, &ports[0]);
        let tap = port("b", Device::Tap("t0".into()), false);
        assert_eq!(below(&[bridge("br", &["a", "b"]), packet("a", false), tap]), ["eth0", "t0"]);
        assert_eq!(below(&[vlan("office", "lan", 10), packet("lan", false)]), ["eth0"]);
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
            (vec![packet("a", true), packet("b", false), bridge("c", &["a", "b"])], "give a none"),
            (vec![packet("a", false), bridge("c", &["a", "a"])], "of one twice"),
        ];
        for (ports, wanted) in wrong {
            let error = check(&ports).unwrap_err().why;
            assert!(error.contains(wanted), "{error}");
        }
    }
}
