//! Implements `towpath port`, which shows the ports of a running router or run with their counters.
//!
//! `answer` answers the requests in the process that runs the stack.

mod answer;

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};
use towpath_model::Port;

use crate::error::{ExitCode, Failure};
use crate::ip::{WhichRun, no_answer};

pub use answer::{Device, OfTally, carriers, put_carriers, shown};

/// Options of `towpath port`.
#[derive(Debug, Args)]
pub struct PortArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print a JSON array, with every counter
    #[arg(short, long)]
    pub json: bool,
    /// show, optionally followed by the name of one port (default: all ports)
    #[arg(value_name = "COMMAND")]
    pub words: Vec<String>,
}

/// Text of `towpath port --help` before the options.
pub const ABOUT: &str = "\
Show the ports of a running router or run.

Each port has its device, the state of the link, the MTU and the Ethernet address, what the stack \
received and sent there, and the counters of the device itself as far as they are not zero. \
Packets that the device merged count as one where they are received; those that it cuts count as \
their segments where they are sent. Parts \
of a bridge are ports without an interface of the stack. The state of the link is unknown where \
the device has none that the kernel knows.";

/// Text of `towpath port --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath port
  towpath port --name office show wan
  towpath port -j | jq '.[] | {name, link, rx_dropped}'

Exit status:
  0  shown
  1  words that are wrong, no such port, or no such run
  2  the run does not answer";

/// Runs the command `towpath port`.
///
/// # Errors
/// Returns any error with a message for the user.
pub fn port(args: &PortArgs) -> Result<()> {
    let usage = |why: String| Failure::error(ExitCode::IpUsage, why);
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let wanted = match words[..] {
        [] | ["show" | "list"] => None,
        ["show" | "list", name] | [name] => Some(name),
        _ => {
            let words = words.join(" ");
            return Err(usage(format!("\"{words}\": expected show, and the name of one port")));
        }
    };
    let client = args.which.client_to_look().map_err(no_answer)?;
    let mut ports = client.ports().map_err(no_answer)?;
    if let Some(name) = wanted {
        let names: Vec<_> = ports.iter().map(|port| port.name.to_string()).collect();
        ports.retain(|port| port.name.as_str() == name);
        if ports.is_empty() {
            let names = names.join(", ");
            return Err(usage(format!("there is no port \"{name}\"; there are {names}")));
        }
    }
    match args.json {
        true => crate::output::write_json(&json(&ports)?),
        false => crate::output::write_text(&ports.iter().map(text).collect::<String>()),
    }
}

/// Returns the word that describes the link state of a port.
fn link(port: &Port) -> &'static str {
    match port.link {
        Some(true) => "up",
        Some(false) => "down",
        None => "unknown",
    }
}

/// Formats a port as text.
fn text(port: &Port) -> String {
    let mut out = format!("{}: {}", port.name, port.driver);
    // Ignore errors: writing to a String cannot fail.
    if let Some(device) = &port.device {
        let _ = write!(out, " {device}");
    }
    let _ = write!(out, ", link {}", link(port));
    if let Some(interface) = &port.interface {
        let _ = write!(out, ", mtu {}", interface.mtu);
        if let Some(mac) = interface.mac {
            let _ = write!(out, ", mac {mac}");
        }
        if !interface.up {
            out += ", set down";
        }
        let traffic = interface.traffic;
        let ways = [
            // Packets are counted as the stack passes them: several merged packets as one on
            // receive. On transmit, they are counted after segmentation.
            ("rx", traffic.rx_packets, "merged", traffic.rx_bytes, traffic.rx_dropped),
            ("tx", traffic.tx_packets, "segments", traffic.tx_bytes, traffic.tx_dropped),
        ];
        for (way, packets, kind, bytes, dropped) in ways {
            let _ = write!(out, "\n    {way} {packets} packets ({kind}), ");
            let _ = write!(out, "{bytes} bytes, {dropped} dropped");
        }
    }
    out.push('\n');
    for (name, value) in port.counters.iter().filter(|(_, value)| *value > 0) {
        let _ = writeln!(out, "    {name}: {value}");
    }
    out
}

/// Formats the ports as JSON, with an object per port.
fn json(ports: &[Port]) -> Result<String> {
    let ports = ports.iter().map(|port| {
        let mut all = Map::new();
        let mut put = |key: &str, value: Value| drop(all.insert(key.to_owned(), value));
        put("name", port.name.as_str().into());
        put("driver", port.driver.as_str().into());
        if let Some(device) = &port.device {
            put("device", device.as_str().into());
        }
        put("link", link(port).into());
        if let Some(interface) = &port.interface {
            put("up", interface.up.into());
            put("mtu", interface.mtu.into());
            if let Some(mac) = interface.mac {
                put("mac", mac.to_string().into());
            }
            let traffic = interface.traffic;
            put("rx_packets", traffic.rx_packets.into());
            put("rx_bytes", traffic.rx_bytes.into());
            put("rx_dropped", traffic.rx_dropped.into());
            put("tx_packets", traffic.tx_packets.into());
            put("tx_bytes", traffic.tx_bytes.into());
            put("tx_dropped", traffic.tx_dropped.into());
        }
        let counters = port.counters.iter();
        let counters = counters.map(|(name, value)| (name.to_string(), Value::from(*value)));
        put("counters", Value::Object(counters.collect()));
        Value::Object(all)
    });
    Ok(serde_json::to_string(&Value::Array(ports.collect()))? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_model::{Interface, Kind, Traffic, Word};

    fn lan() -> Port {
        let traffic = Traffic { rx_packets: 3, rx_bytes: 200, tx_dropped: 1, ..Traffic::default() };
        Port {
            name: Word::known("lan"),
            driver: Word::known("packet"),
            device: Some(Word::known("veth1")),
            link: Some(true),
            interface: Some(Interface {
                index: 2,
                name: Word::known("lan"),
                kind: Kind::Ethernet,
                mac: Some("02:00:00:00:00:01".parse().unwrap()),
                mtu: 1500,
                up: false,
                carrier: Some(true),
                addresses: Vec::new(),
                traffic,
            }),
            counters: vec![(Word::known("rx_frames"), 4), (Word::known("rx_lost"), 0)],
        }
    }

    #[test]
    fn people_see_what_is_not_zero() {
        let wanted = "lan: packet veth1, link up, mtu 1500, mac 02:00:00:00:00:01, set down\n    \
                      rx 3 packets (merged), 200 bytes, 0 dropped\n    \
                      tx 0 packets (segments), 0 bytes, 1 dropped\n    rx_frames: 4\n";
        assert_eq!(text(&lan()), wanted);
        let part = Port { link: None, device: None, interface: None, ..lan() };
        assert_eq!(text(&part), "lan: packet, link unknown\n    rx_frames: 4\n");
    }

    #[test]
    fn programs_see_every_counter() {
        let value: Value = serde_json::from_str(&json(&[lan()]).unwrap()).unwrap();
        let wanted = serde_json::json!([{
            "name": "lan", "driver": "packet", "device": "veth1", "link": "up", "up": false,
            "mtu": 1500, "mac": "02:00:00:00:00:01", "rx_packets": 3, "rx_bytes": 200,
            "rx_dropped": 0, "tx_packets": 0, "tx_bytes": 0, "tx_dropped": 1,
            "counters": {"rx_frames": 4, "rx_lost": 0},
        }]);
        assert_eq!(value, wanted);
    }
}
