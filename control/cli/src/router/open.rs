//! The devices of a router's ports.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use towpath_bpf::Claim;
use towpath_packet::PacketSocket;
use towpath_pcap::CaptureFile;
use towpath_pool::Port;
use towpath_router::OpenPort;
use towpath_tap::{Options, Tap, set_up_host};
use towpath_uplink::{Counted, Counting, PortCounters, station_mac};
use towpath_wire::Prefix;

use super::args::{Device, PortWords};
use crate::error::{ExitCode, Failure};

/// Longest packet of an Ethernet, which TAP devices have.
const TAP_MTU: u32 = 1500;

/// Counters of a port, there once the port has gone.
pub type Left = Arc<Mutex<PortCounters>>;

/// Ports in order, and where each leaves its counters.
pub struct Opened {
    pub ports: Vec<OpenPort>,
    pub counters: Vec<Left>,
}

/// Refuses addresses that this host has itself on an interface: two hosts would answer for one.
///
/// # Errors
/// With the sentence for the user.
pub fn refuse_own_addresses(ports: &[PortWords]) -> Result<()> {
    let own: Vec<_> = nix::ifaddrs::getifaddrs().context("getifaddrs")?.collect();
    let ip_of = |address: &nix::ifaddrs::InterfaceAddress| -> Option<IpAddr> {
        let address = address.address?;
        let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
    };
    for address in ports.iter().flat_map(|port| &port.addresses) {
        let taken = own.iter().find(|mine| ip_of(mine) == Some(address.addr()));
        if let Some(mine) = taken {
            let message = format!(
                "{} is an address of this host itself, on {}: give the router another one",
                address.addr(),
                mine.interface_name
            );
            return Err(Failure::error(ExitCode::Usage, message));
        }
    }
    Ok(())
}

/// Opens all devices.
///
/// # Errors
/// The first that cannot be; those before it are closed.
pub fn ports(words: &[PortWords], capture: Option<&CaptureFile>) -> Result<Opened> {
    let mut opened = Opened { ports: Vec::new(), counters: Vec::new() };
    for port in words {
        let left = Left::default();
        let open = |device: Box<dyn Port + Send>, mac, mtu| OpenPort { port: device, mac, mtu };
        opened.ports.push(match &port.device {
            Device::Packet(interface) => {
                let addresses = port.addresses.iter().map(Prefix::addr).collect();
                let station = |found: &towpath_interface::Interface| Claim::Station {
                    mac: station_mac(&found.mac, &port.addresses),
                    addresses,
                };
                let socket =
                    PacketSocket::open(interface, station).map_err(|e| of_port(port, e))?;
                let (mac, mtu) = (socket.interface().mac, socket.interface().mtu);
                let mac = station_mac(&mac, &port.addresses);
                open(counted(socket, &left, &port.name, capture)?, mac, mtu)
            }
            Device::Tap(name) => {
                let options = Options { name: Some(name.clone()) };
                let tap = Tap::open(&options).map_err(|e| of_port(port, e))?;
                set_up_host(tap.name(), TAP_MTU, &[]).map_err(|e| of_port(port, e))?;
                let mac = station_mac(name.as_bytes(), &port.addresses);
                open(counted(tap, &left, &port.name, capture)?, mac, TAP_MTU)
            }
        });
        opened.counters.push(left);
    }
    Ok(opened)
}

fn of_port(port: &PortWords, error: impl std::fmt::Display) -> anyhow::Error {
    Failure::error(ExitCode::Failed, format!("port {}: {error}", port.name))
}

/// A device that leaves its counters behind, recorded if there is a capture.
fn counted<P: Port + Counted + 'static>(
    device: P,
    left: &Left,
    name: &str,
    capture: Option<&CaptureFile>,
) -> Result<Box<dyn Port + Send>> {
    let counting = Counting::new(device, left);
    Ok(match capture {
        Some(file) => Box::new(file.capture(name, counting).context("--pcap")?),
        None => Box::new(counting),
    })
}
