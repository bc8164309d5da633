//! Texts of `--port` in `--help`.

use towpath_uplink::DEVICES;

/// Returns the first line of the help for `--port`.
pub fn port_help() -> String {
    let kinds = DEVICES.iter().map(|driver| format!("{}:{}", driver.name, driver.parameters));
    let kinds: Vec<_> = kinds.collect();
    format!(
        "A port: NAME=DEVICE,CIDR[,CIDR], where DEVICE is {}, vlan:PORT.ID, bridge:PORT+PORT or \
         nat64:PREFIX[=POOL]",
        kinds.join(", ")
    )
}

/// Returns the text of `--port` in the long help.
pub fn port_long_help() -> String {
    let devices: Vec<_> = DEVICES.iter().map(|driver| driver.port_help).collect();
    format!("{}\n\n{PORT_NAME} {}\n\n{PORT_LAYERS}", port_help(), devices.join(" "))
}

const PORT_NAME: &str = "\
NAME is for rules, routes and counters. CIDR is an address of the router on the link, with the \
length of its network. May be given up to 64 times.";

const PORT_LAYERS: &str = "\
vlan is the VLAN with the tag ID on another port. All VLANs of a port share its device. Its own \
CIDR are for frames without a tag, and may be left out.

bridge joins other ports to one link; these have no CIDR. A host's place is forgotten \
ageing=SECONDS (300) after its last frame. Each port has room for addresses=NUMBER (4096). Both \
stand in front of the CIDR: lan=bridge:a+b,ageing=60,10.1.0.1/24.

nat64 translates between IPv6 hosts and IPv4 servers, as --nat64 does, and needs no CIDR.

mtu=BYTES in front of the CIDR limits IP packets; unless given, that of the device does.";
