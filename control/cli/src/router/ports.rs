//! Ports of a running router. The commands of `towpath ip link` add and delete them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_engine::{Change, Remote};
use towpath_model::{RequestFault, Word};
use towpath_pcap::CaptureFile;
use towpath_stack::IfaceId;
use towpath_uplink::MtuFollower;

use super::open::{self, Left, PortQueues};
use super::port_arg::{PortArg, parse_port};
use super::{layers, mtu};
use crate::messages::Messages;
use crate::served::{PortList, ServedPort, gone};

/// Maximum number of ports of a router. Limited because each port is polled in every turn of the
/// event loop.
pub const PORTS_MAX: usize = 64;

/// List of a router's ports, shared by all threads that use it.
#[derive(Clone, Default)]
pub struct RouterPorts(Arc<Mutex<Vec<RouterPort>>>);

/// A port of a running router.
#[derive(Clone)]
struct RouterPort {
    words: PortArg,
    /// Interface of the stack on this port; `None` if the port is only a member of other ports.
    iface: Option<IfaceId>,
    /// Names of the kernel interfaces on which the port is built.
    below: Vec<String>,
    /// Whether the port's device was removed.
    is_gone: bool,
    counters: Left,
    /// Number of the port's interface in the capture file.
    recorded_as: u32,
    /// Thread that adopts MTU changes of the kernel interface below this port. Only for ports that
    /// were added while the router runs.
    follower: Option<Arc<MtuFollower>>,
}

impl RouterPorts {
    /// Creates the list of the ports with which the router starts.
    pub fn new(words: &[PortArg], counters: &[Left]) -> Self {
        let mut next = 1;
        let ports = words.iter().zip(counters).map(|(port, counters)| {
            let iface = port.is_interface().then_some(IfaceId(next));
            next += u16::from(iface.is_some());
            RouterPort {
                words: port.clone(),
                iface,
                below: layers::kernel_interfaces(words, port),
                is_gone: false,
                counters: Arc::clone(counters),
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

    /// Records that the device of an interface was removed. Returns the name of its port, or `None`
    /// if the removal was already recorded.
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

/// Adds and deletes ports of a running router, for requests of the control socket.
pub struct PortChanger {
    ports: RouterPorts,
    remote: Remote,
    seed: [u8; 32],
    messages: Messages,
    /// The capture file, and the number of the next interface in it. Locked during a change, so
    /// that changes are made one after another.
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
    ) -> Self {
        let next = ports.list().iter().map(|port| port.recorded_as).max().unwrap_or(0) + 1;
        let (ports, messages) = (ports.clone(), messages.clone());
        Self { ports, remote, seed, messages, recording: Mutex::new((capture.cloned(), next)) }
    }

    /// Parses the arguments of a new port. Returns an error if the port cannot be added.
    fn parse(&self, name: &Word, device: &str) -> Result<PortArg, RequestFault> {
        let port = parse_port(&format!("{name}={device}")).map_err(refused)?;
        let list = self.ports.list();
        if list.iter().any(|known| known.words.name == port.name) || name.as_str() == "lo" {
            let why = format!("File exists: a port is called {name} already");
            return Err(refused(why));
        }
        if list.len() >= PORTS_MAX {
            return Err(refused(format!("{PORTS_MAX} ports are there: more are not possible")));
        }
        let Some(device) = port.device.device() else {
            let why = "vlan and bridge stand on ports that are not in use yet, so they are made \
                       when the router starts: see --port of towpath router";
            return Err(refused(why.to_owned()));
        };
        if port.addresses.is_empty() && device.driver().traits.needs_address.is_some() {
            let why = format!(
                "{device} needs an address of the router: type {device},ADDRESS/LENGTH, for \
                 example type {device},10.3.0.1/24"
            );
            return Err(refused(why));
        }
        drop(list);
        open::refuse_queues(std::slice::from_ref(&port), self.remote.shards()).map_err(failed)?;
        open::refuse_own_addresses(std::slice::from_ref(&port)).map_err(failed)?;
        Ok(port)
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

impl PortList for PortChanger {
    fn ports(&self) -> Vec<ServedPort> {
        self.ports.served()
    }

    fn add(&self, name: &Word, device: &str) -> Result<(), RequestFault> {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let port = self.parse(name, device)?;
        let queues = PortQueues { count: self.remote.shards(), is_auto: false, seed: &self.seed };
        let (recorded_as, words) = (recording.1, std::slice::from_ref(&port));
        let opened = open::ports(words, queues, recording.0.as_ref());
        let open::Opened { mut ports, mut counters, followed } = opened.map_err(failed)?;
        recording.1 += u32::from(recording.0.is_some());
        let (Some(open), Some(counters)) = (ports.pop(), counters.pop()) else {
            return Err(refused(format!("the port {name} has no device")));
        };
        let config = open.interface(&port.name, port.addresses.clone());
        let config = config.ok_or_else(|| refused(format!("the port {name} has no queue")))?;
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

    fn delete(&self, name: &Word) -> Result<(), RequestFault> {
        let _recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let iface = self.find(name)?;
        // The engine returns its port, which is dropped on this thread. So a device that closes
        // slowly delays no packets.
        let removed = self.remote.apply(vec![Change::RemoveInterface { iface }]).map_err(gone)?;
        removed.map_err(|why| refused(why.why.to_string()))?;
        let mut list = self.ports.list();
        let words: Vec<_> = list.iter().map(|port| port.words.clone()).collect();
        let unused = layers::without(&words, name.as_str());
        let deleted: Vec<_> =
            list.extract_if(.., |port| unused.contains(&port.words.name)).collect();
        drop(list);
        // Drop after the list is unlocked: this ends threads that may wait for the list.
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
