//! Ports of a running router. The commands of `towpath ip link` add and delete them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_config::{PORTS_MAX, PortSettings, layers, parse_port};
use towpath_engine::{Change, Remote};
use towpath_model::{RequestFault, Word};
use towpath_pcap::CaptureFile;
use towpath_router::DnsControl;
use towpath_stack::IfaceId;
use towpath_uplink::{DeviceSpec, Lease, MtuFollower};
use towpath_wire::Prefix;

use super::mtu;
use super::open::{self, Left, PortQueues};
use crate::messages::Messages;
use crate::served::{PortList, ServedPort, gone};

/// List of a router's ports, shared by all threads that use it.
#[derive(Clone, Default)]
pub struct RouterPorts(Arc<Mutex<Vec<RouterPort>>>);

/// A port of a running router.
#[derive(Clone)]
struct RouterPort {
    words: PortSettings,
    /// Interface of the stack on this port; `None` if the port is only a member of other ports.
    iface: Option<IfaceId>,
    /// Names of the kernel interfaces on which the port is built.
    below: Vec<String>,
    /// Whether the port's device was removed.
    is_gone: bool,
    counters: Left,
    /// Maximum MTU of the device in bytes.
    device_mtu: u32,
    /// Address that the port has obtained by DHCP.
    lease: Option<Prefix>,
    /// Number of the port's interface in the packet capture.
    recorded_as: u32,
    /// Thread that adopts MTU changes of the kernel interface below this port. Only for ports that
    /// were added while the router runs.
    follower: Option<Arc<MtuFollower>>,
}

impl RouterPorts {
    /// Creates the list of the ports with which the router starts.
    /// `mtus` are those of the devices of the ports with an interface.
    pub fn new(words: &[PortSettings], counters: &[Left], mtus: impl Iterator<Item = u32>) -> Self {
        let (mut next, mut mtus) = (1, mtus);
        let ports = words.iter().zip(counters).map(|(port, counters)| {
            let iface = port.is_interface().then_some(IfaceId(next));
            next += u16::from(iface.is_some());
            let device_mtu = iface.and_then(|_| mtus.next()).unwrap_or_default();
            RouterPort {
                words: port.clone(),
                iface,
                below: layers::kernel_interfaces(words, port),
                is_gone: false,
                counters: Arc::clone(counters),
                device_mtu,
                lease: None,
                recorded_as: iface.map_or(0, |iface| iface.0.into()),
                follower: None,
            }
        });
        Self(Arc::new(Mutex::new(ports.collect())))
    }

    /// Returns the ports in the form in which requests of the control socket show them.
    pub fn served(&self) -> Vec<ServedPort> {
        let served = |port: &RouterPort| {
            let (driver, device) = port.words.device.words();
            ServedPort {
                name: port.words.name.clone(),
                words: Some((driver.to_owned(), device)),
                links: Some(port.below.clone()),
                tally: Arc::clone(&port.counters),
            }
        };
        self.list().iter().map(served).collect()
    }

    /// Returns the interfaces of the stack, each with the names of the kernel interfaces below it.
    pub fn interfaces(&self) -> Vec<(IfaceId, Vec<String>)> {
        let list = self.list();
        list.iter().filter_map(|port| Some((port.iface?, port.below.clone()))).collect()
    }

    /// Returns the name of the port with this interface of the stack.
    pub fn name_of(&self, iface: IfaceId) -> Option<String> {
        let list = self.list();
        let port = list.iter().find(|port| port.iface == Some(iface))?;
        Some(port.words.name.clone())
    }

    /// Returns the number that an interface of the stack has in the capture file.
    pub fn recorded_as(&self, iface: IfaceId) -> u32 {
        let list = self.list();
        let port = list.iter().find(|port| port.iface == Some(iface));
        port.map_or(iface.0.into(), |port| port.recorded_as)
    }

    /// Returns the interface of the port `name`.
    pub fn named(&self, name: &str) -> Option<IfaceId> {
        self.list().iter().find(|port| port.words.name == name)?.iface
    }

    /// Sets the address that a port has obtained by DHCP.
    pub fn set_lease(&self, iface: IfaceId, lease: &Lease) {
        let mut list = self.list();
        if let Some(port) = list.iter_mut().find(|port| port.iface == Some(iface)) {
            port.lease = Some(lease.address);
        }
    }

    /// Sets the maximum MTU of the device of an interface.
    pub fn set_device_mtu(&self, iface: IfaceId, mtu: u32) {
        let mut list = self.list();
        if let Some(port) = list.iter_mut().find(|port| port.iface == Some(iface)) {
            port.device_mtu = mtu;
        }
    }

    /// Sets the settings of the configuration of a port, whose device stays.
    pub fn set_settings(&self, settings: &PortSettings) {
        let mut list = self.list();
        if let Some(port) = list.iter_mut().find(|port| port.words.name == settings.name) {
            port.words = PortSettings { device: port.words.device.clone(), ..settings.clone() };
        }
    }

    /// Returns whether the port with these counters was not deleted.
    pub fn has(&self, counters: &Left) -> bool {
        self.list().iter().any(|port| Arc::ptr_eq(&port.counters, counters))
    }

    /// Returns the ports with their state.
    pub fn known(&self) -> Vec<KnownPort> {
        let list = self.list();
        let known = |port: &RouterPort| {
            let RouterPort { ref words, iface, device_mtu, lease, is_gone, .. } = *port;
            KnownPort { words: words.clone(), iface, device_mtu, lease, is_gone }
        };
        list.iter().map(known).collect()
    }

    /// Records that the device of an interface was removed. Returns the name of the port, or `None`
    /// if another shard has already reported the removal.
    pub fn set_gone(&self, iface: IfaceId) -> Option<String> {
        let mut list = self.list();
        let port = list.iter_mut().find(|port| port.iface == Some(iface))?;
        let was_known = std::mem::replace(&mut port.is_gone, true);
        (!was_known).then(|| port.words.name.clone())
    }

    /// Returns whether the devices of all ports with an interface were removed.
    pub fn are_gone(&self) -> bool {
        self.list().iter().filter(|port| port.iface.is_some()).all(|port| port.is_gone)
    }

    fn list(&self) -> MutexGuard<'_, Vec<RouterPort>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port with its state.
pub struct KnownPort {
    /// Settings of the configuration.
    pub words: PortSettings,
    /// Interface of the stack.
    pub iface: Option<IfaceId>,
    /// Maximum MTU of the device in bytes.
    pub device_mtu: u32,
    /// Address that the port has obtained by DHCP.
    pub lease: Option<Prefix>,
    /// Whether the port's device was removed.
    pub is_gone: bool,
}

/// Adds and deletes ports of a running router.
pub struct PortChanger {
    ports: RouterPorts,
    remote: Remote,
    seed: [u8; 32],
    messages: Messages,
    /// DNS forwarder, which stops to listen on deleted ports.
    dns: Option<DnsControl>,
    /// The capture file, and the interface number that the next added port gets in it. Locked
    /// during a change, so that changes are made one after another.
    recording: Mutex<(Option<CaptureFile>, u32)>,
}

impl PortChanger {
    /// Creates the object that changes the ports of the router whose engine is `remote`.
    pub fn new(
        ports: &RouterPorts,
        remote: Remote,
        seed: [u8; 32],
        capture: Option<&CaptureFile>,
        messages: &Messages,
        dns: Option<DnsControl>,
    ) -> Self {
        let next = ports.list().iter().map(|port| port.recorded_as).max().unwrap_or(0) + 1;
        let (ports, messages) = (ports.clone(), messages.clone());
        let recording = Mutex::new((capture.cloned(), next));
        Self { ports, remote, seed, messages, dns, recording }
    }

    /// Returns an error if a port cannot be added, for example because its name is in use.
    fn check(&self, port: &PortSettings) -> Result<(), RequestFault> {
        let (list, name) = (self.ports.list(), &port.name);
        if list.iter().any(|known| known.words.name == *name) || name == "lo" {
            let why = format!("File exists: a port is called {name} already");
            return Err(refused(why));
        }
        if list.len() >= PORTS_MAX {
            return Err(refused(format!("{PORTS_MAX} ports are there: more are not possible")));
        }
        if port.device.device().is_none() && port.device.translator().is_none() {
            let why = "vlan and bridge stand on ports that are not in use yet, so they are made \
                       when the router starts: see --port of towpath router";
            return Err(refused(why.to_owned()));
        }
        drop(list);
        open::refuse_queues(std::slice::from_ref(port), self.remote.shards()).map_err(failed)?;
        open::refuse_own_addresses(std::slice::from_ref(port)).map_err(failed)
    }

    /// Returns an error if a port has no address, although its device needs one.
    fn check_address(&self, port: &PortSettings) -> Result<(), RequestFault> {
        let needs_address = |device: &&DeviceSpec| device.driver().traits.needs_address.is_some();
        match port.device.device().filter(needs_address) {
            Some(device) if port.addresses.is_empty() => Err(refused(format!(
                "{device} needs an address of the router: type {device},ADDRESS/LENGTH, for \
                 example type {device},10.3.0.1/24"
            ))),
            _ => Ok(()),
        }
    }

    /// Opens the device of a port, and adds an interface with these addresses.
    ///
    /// # Errors
    /// Returns the fault of the device or of the interface. Nothing was added.
    pub fn open(&self, port: PortSettings, addresses: Vec<Prefix>) -> Result<(), RequestFault> {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(&port)?;
        let queues = PortQueues { count: self.remote.shards(), is_auto: false, seed: &self.seed };
        let (recorded_as, words) = (recording.1, std::slice::from_ref(&port));
        let opened = open::ports(words, queues, recording.0.as_ref());
        let open::Opened { mut ports, mut counters, followed } = opened.map_err(failed)?;
        recording.1 += u32::from(recording.0.is_some());
        let (Some(open), Some(counters)) = (ports.pop(), counters.pop()) else {
            return Err(refused(format!("the port {} has no device", port.name)));
        };
        let config = open.interface(&port.name, addresses);
        let config =
            config.ok_or_else(|| refused(format!("the port {} has no queue", port.name)))?;
        let device_mtu = open.mtu;
        let added = self.remote.add_interface(config, open.queues);
        let iface = added.map_err(|why| refused(why.to_string()))?;
        let below = layers::kernel_interfaces(words, &port);
        let (is_gone, remote) = (false, self.remote.clone());
        let port = RouterPort {
            words: port,
            iface: Some(iface),
            below,
            is_gone,
            counters,
            device_mtu,
            lease: None,
            recorded_as,
            follower: None,
        };
        self.ports.list().push(port);
        let follower = mtu::follow(&self.ports, followed, remote, &self.messages).map(Arc::new);
        if let Some(port) = self.ports.list().last_mut() {
            port.follower = follower;
        }
        Ok(())
    }

    /// Returns the interface of the port `name`, or an error if the port cannot be deleted.
    fn find(&self, name: &Word) -> Result<IfaceId, RequestFault> {
        let list = self.ports.list();
        let Some(port) = list.iter().find(|port| port.words.name == name.as_str()) else {
            let why = format!("Cannot find device \"{name}\"");
            return Err(RequestFault { at: Some(0), ..RequestFault::new("no-device", why) });
        };
        let words: Vec<_> = list.iter().map(|port| port.words.clone()).collect();
        let users: Vec<_> = layers::users_of(&words, name.as_str()).collect();
        match port.iface {
            Some(iface) if users.is_empty() => Ok(iface),
            _ => Err(refused(format!(
                "Device or resource busy: the port {name} carries {}; delete these first",
                users.join(", ")
            ))),
        }
    }
}

impl PortList for Arc<PortChanger> {
    fn ports(&self) -> Vec<ServedPort> {
        self.ports.served()
    }

    fn add(&self, name: &Word, device: &str) -> Result<(), RequestFault> {
        let mut port = parse_port(&format!("{name}={device}")).map_err(refused)?;
        self.check_address(&port)?;
        port.is_routed = true;
        let (addresses, mtu) = (port.addresses.clone(), port.mtu);
        self.open(port, addresses)?;
        let Some((iface, mtu)) = self.ports.named(name.as_str()).zip(mtu) else { return Ok(()) };
        let applied = self.remote.apply(vec![Change::SetMtu { iface, mtu }]).map_err(gone)?;
        applied.map(drop).or_else(|why| {
            self.delete(name)?;
            Err(refused(why.why.to_string()))
        })
    }

    fn delete(&self, name: &Word) -> Result<(), RequestFault> {
        let _recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let iface = self.find(name)?;
        // The engine returns the port, which is dropped on this thread. Closing a slow device
        // therefore delays no packets.
        let removed = self.remote.apply(vec![Change::RemoveInterface { iface }]).map_err(gone)?;
        removed.map_err(|why| refused(why.why.to_string()))?;
        self.dns.iter().for_each(|dns| dns.leave(iface));
        let mut list = self.ports.list();
        let words: Vec<_> = list.iter().map(|port| port.words.clone()).collect();
        let unused = layers::without(&words, name.as_str());
        let deleted: Vec<_> =
            list.extract_if(.., |port| unused.contains(&port.words.name)).collect();
        drop(list);
        // Drop only after the list is unlocked: this waits for threads that may themselves wait for
        // the list.
        drop(deleted);
        Ok(())
    }
}

fn refused(why: String) -> RequestFault {
    RequestFault { at: Some(0), ..RequestFault::new("refused", why) }
}

fn failed(error: anyhow::Error) -> RequestFault {
    refused(format!("{error:#}"))
}
