//! Opens the real devices of a simulation.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use towpath_pool::Port;
use towpath_sim::{RealPort, RealPorts};
use towpath_uplink::{
    BorrowedDevice, DeviceRequest, DeviceSpec, DeviceUse, Lender, Remark, Tally, Tell,
};
use towpath_wire::Prefix;

use super::args::LendArgs;
use crate::error::{ExitCode, Failure};
use crate::messages;
use crate::uplink::device_gone;

/// MTU of the simulated hosts in bytes.
const MTU: u32 = 1500;

/// Open devices, and the Ethernet addresses of the simulated hosts on their networks.
pub struct OpenDevices {
    pub ports: RealPorts,
    /// First bytes of the addresses.
    pub macs: [u8; 4],
}

impl OpenDevices {
    /// Opens the devices for simulated hosts with these addresses.
    ///
    /// # Errors
    /// Fails with a sentence for the user.
    pub fn open(words: &BTreeSet<&str>, addresses: &[Prefix]) -> Result<Self> {
        let mut devices = Self { ports: RealPorts::new(), macs: [2, 0, 0, 0] };
        for &words in words {
            devices.add(words, addresses)?;
        }
        Ok(devices)
    }

    fn add(&mut self, words: &str, addresses: &[Prefix]) -> Result<()> {
        let (tally, tell) = (Arc::new(Tally::default()), listener());
        let failed = |why: String| Failure::error(ExitCode::Failed, format!("{words}: {why}"));
        let OpenedDevice { port, mac, mtu, is_station } = match words.strip_prefix(LENT) {
            Some(path) => {
                let device = BorrowedDevice::request(Path::new(path), addresses, &tally, &tell);
                let BorrowedDevice { port, mac, mtu } =
                    device.map_err(|error| failed(error.to_string()))?;
                OpenedDevice { port, mac, mtu, is_station: false }
            }
            None => {
                let wrong = |why| Failure::error(ExitCode::Usage, format!("device {why}"));
                let spec = DeviceSpec::parse(words).map_err(wrong)?;
                // A device of a station receives frames to its own address alone.
                let is_station = !spec.driver().traits.has_all_frames;
                let usage = if is_station { DeviceUse::Router } else { DeviceUse::Bridge };
                let request = DeviceRequest::new(usage, addresses, &tally, &tell);
                let mut opened = spec.open(&request).map_err(|error| failed(error.to_string()))?;
                let port = opened.ports.pop().ok_or_else(|| failed("it has no queue".into()))?;
                OpenedDevice { port, mac: opened.site.mac, mtu: opened.site.mtu, is_station }
            }
        };
        if mtu < MTU {
            return Err(failed(format!(
                "its MTU is {mtu} bytes, and simulated hosts send packets of {MTU}; raise it: ip \
                 link set mtu {MTU}"
            )));
        }
        if self.ports.is_empty() {
            // Derive the MAC addresses of simulated hosts from that of the interface. Neighbors
            // then know them from the last run.
            let [_, _, _, a, b, c] = mac;
            self.macs = [2, a, b, c];
        }
        let shared_mac = is_station.then_some(mac);
        self.ports.insert(words.to_owned(), RealPort { port, shared_mac });
        Ok(())
    }
}

/// An open device.
struct OpenedDevice {
    port: Box<dyn Port + Send>,
    mac: [u8; 6],
    mtu: u32,
    /// Whether the device receives frames to `mac` alone.
    is_station: bool,
}

/// Prefix of a device argument for a device that another process has opened.
const LENT: &str = "lent:";

/// Opens a device, and passes it to a simulation of another user.
///
/// # Errors
/// Fails with a sentence for the user.
pub fn lend(args: &LendArgs) -> Result<()> {
    let LendArgs { device, socket, user } = args;
    let caller = || std::env::var("SUDO_UID").ok()?.parse().ok();
    let own = || rustix::process::getuid().as_raw();
    let user = user.or_else(caller).unwrap_or_else(own);
    let failed = |error: std::io::Error| {
        Failure::error(ExitCode::Failed, format!("{device}, {}: {error}", socket.display()))
    };
    let lender = Lender::listen(socket, device.clone(), user).map_err(failed)?;
    lender.lend(&listener()).map_err(failed)
}

/// Returns a callback that prints remarks about a device.
fn listener() -> Tell {
    Tell::new(|remark| match remark {
        Remark::Warning(text) => messages::write(&format!("towpath: {text}\n")),
        Remark::DeviceGone(device) => {
            messages::write(&format!("towpath: {}\n", device_gone(&device)));
        }
        _ => {}
    })
}
