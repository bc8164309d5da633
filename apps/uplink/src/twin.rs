//! Twins of a router's ports: TAP devices in a network namespace, with the address of the port.

use std::io;

use towpath_bridge::{OwnAddresses, TwinPort, TwinRule, TwinSelection};
use towpath_netlink::NetNamespace;
use towpath_pool::Port;
use towpath_tap::{Options, Tap, TapCarrier};
use towpath_wire::Prefix;

use crate::device::{DEVICES, driver::DeviceDriver};
use crate::plan_error::{PlanError, Result, system};

/// Twin of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwinSpec {
    /// Name of the TAP device.
    pub tap: String,
    /// Network namespace of the device.
    pub namespace: NetNamespace,
    /// Packets that go to the twin; the usual routing protocols if empty.
    pub rules: Vec<TwinRule>,
}

/// Port that gets a twin.
pub struct TwinSite<'a> {
    /// Queues of the port.
    pub queues: Vec<Box<dyn Port + Send>>,
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// MTU of the port in bytes.
    pub mtu: u32,
    /// Addresses of the port.
    pub addresses: &'a [Prefix],
    /// Addresses of the router.
    pub own: &'a OwnAddresses,
}

/// Queues of a port with a twin, and the switch for the twin's carrier.
pub type Twinned = (Vec<Box<dyn Port + Send>>, TapCarrier);

impl TwinSpec {
    /// Creates the device, and joins it with the port. The device is removed with the queues.
    ///
    /// # Errors
    /// Fails if the namespace cannot be entered, or if the device cannot be created.
    pub fn attach(&self, site: TwinSite<'_>) -> Result<Twinned> {
        let mut taps = self.open(&site)?;
        let first = taps.first_mut().expect("a device is opened with a queue");
        let carrier = first.carrier().map_err(system("duplicate a descriptor"))?;
        let selection = TwinSelection::new(&self.rules, site.mac);
        let join = |(queue, tap): (Box<dyn Port + Send>, Tap)| -> io::Result<Box<dyn Port + Send>> {
            let (selection, own) = (selection.clone(), site.own.clone());
            Ok(Box::new(TwinPort::new(queue, Box::new(tap), selection, own)?))
        };
        let joined: io::Result<_> = site.queues.into_iter().zip(taps).map(join).collect();
        Ok((joined.map_err(system("wait for a twin"))?, carrier))
    }

    /// Opens the device in its namespace with a queue for each of the port's.
    fn open(&self, site: &TwinSite<'_>) -> Result<Vec<Tap>> {
        let options = Options { name: Some(self.tap.clone()) };
        let (count, mac, mtu) = (site.queues.len(), site.mac, site.mtu);
        let addresses: Vec<_> = site.addresses.iter().map(|it| (it.addr(), it.len())).collect();
        let open = || -> Result<Vec<Tap>> {
            let taps = Tap::open_queues(&options, count).map_err(PlanError::of_device(driver()))?;
            for tap in &taps {
                // Routing daemons send few packets, which leave by devices without offloads too.
                tap.clear_offloads().map_err(system("clear the offloads of a twin"))?;
            }
            taps[0].set_mac(mac).map_err(system("set the Ethernet address of a twin"))?;
            towpath_tap::set_up_host(taps[0].name(), mtu, &addresses)?;
            Ok(taps)
        };
        self.namespace.run(open).map_err(system("enter the network namespace of a twin"))?
    }
}

/// Returns the driver of TAP devices, for errors.
fn driver() -> &'static DeviceDriver {
    DEVICES.iter().find(|driver| driver.name == "tap").expect("the table has TAP devices")
}
