//! A running stack with its ports, as needed to answer control requests.

use std::sync::Arc;

use towpath_engine::{Counters, Gone, Remote};
use towpath_model::{RequestFault, Word};
use towpath_router::{DnsControl, TrackerSettings};
use towpath_stack::net;
use towpath_uplink::{Shape, Tally};

use crate::port::{Device, OfTally};

/// The stack of a run or a router, for which the control socket's thread answers requests.
pub struct ServedStack {
    /// Handle by which the engine is queried and changed.
    pub remote: Remote,
    /// Ports of the stack.
    pub ports: Box<dyn PortList>,
    /// Whether packets that match rules with logging are printed.
    pub logs: bool,
    /// Settings of a connection tracker; `None` if this stack cannot track connections.
    pub tracker: Option<TrackerSettings>,
    /// DNS forwarder; `None` if this stack has none.
    pub dns: Option<DnsControl>,
    /// Function that groups the counters by layer.
    pub layers: Layers,
}

/// Function that groups the counters of the stack, the rules and the ports by layer.
pub type Layers = fn(&Counters, Option<&net::RuleSet>, &[ServedPort]) -> Vec<towpath_uplink::Layer>;

/// Ports of a running stack, which control requests may add and delete.
pub trait PortList: Send + Sync {
    /// Returns the current ports.
    fn ports(&self) -> Vec<ServedPort>;

    /// Opens a device, and adds an interface with this name.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened, or the interface cannot be added. Nothing
    /// is added then.
    fn add(&self, name: &Word, device: &str) -> Result<(), RequestFault>;

    /// Deletes an interface, and closes its device.
    ///
    /// # Errors
    /// Fails if there is no such interface, or if other ports need it.
    fn delete(&self, name: &Word) -> Result<(), RequestFault>;
}

/// The only port of a run, which cannot be deleted.
struct PortOfRun(ServedPort);

impl PortList for PortOfRun {
    fn ports(&self) -> Vec<ServedPort> {
        vec![self.0.clone()]
    }

    fn add(&self, _: &Word, _: &str) -> Result<(), RequestFault> {
        Err(has_one_interface())
    }

    fn delete(&self, _: &Word) -> Result<(), RequestFault> {
        Err(has_one_interface())
    }
}

fn has_one_interface() -> RequestFault {
    let why = "a run keeps the interface of its start: links are added to and deleted from a \
               router (`towpath router`) alone";
    RequestFault { at: Some(0), ..RequestFault::new("refused", why) }
}

/// A port of a running stack, as control requests show it.
#[derive(Clone)]
pub struct ServedPort {
    /// Name of the port.
    pub name: String,
    /// Kind and name of the device as the user gave them; `None` to use the device's own
    /// description.
    pub words: Option<(String, String)>,
    /// Names of the kernel interfaces below the port. `None` means the device itself, if it is a
    /// kernel interface.
    pub links: Option<Vec<String>>,
    /// Counters of the device, summed over all shards.
    pub tally: Arc<Tally>,
}

impl ServedPort {
    fn links(&self) -> Vec<String> {
        self.links.clone().unwrap_or_else(|| self.tally.device().into_iter().collect())
    }

    pub fn device(&self) -> Device {
        let OfTally { driver, device, counters } = OfTally::from(&*self.tally);
        let (name, links) = (self.name.clone(), self.links());
        match &self.words {
            Some((driver, device)) => {
                let (driver, device) = (driver.clone(), Some(device.clone()));
                Device { name, driver, device, links, counters }
            }
            None => Device { name, driver, device, links, counters },
        }
    }
}

impl ServedStack {
    /// Creates the description of the stack of a run. Its only port reports its counters to
    /// `tally`.
    pub fn of_run(remote: Remote, tally: Arc<Tally>) -> Self {
        let name = Shape::INTERFACE_NAME.to_owned();
        let port = ServedPort { name, words: None, links: None, tally };
        let ports = Box::new(PortOfRun(port));
        Self { remote, ports, logs: false, tracker: None, dns: None, layers: run_layers }
    }

    /// Returns the names of the ports, each with the names of its kernel interfaces.
    pub fn links(&self) -> Vec<(String, Vec<String>)> {
        self.ports.ports().iter().map(|port| (port.name.clone(), port.links())).collect()
    }

    /// Returns the counters of the stack, after the ports have reported theirs to their tallies.
    pub fn counters(&self) -> Result<Counters, Gone> {
        let ports = self.ports.ports();
        let asked: Vec<_> = ports.iter().map(|port| (port, port.tally.ask())).collect();
        let is_told = || asked.iter().all(|(port, asked)| port.tally.is_told(*asked));
        // Query the engine, which causes an iteration of its event loop. Ports report their
        // counters in each iteration.
        until_notified(is_told, || self.remote.counters().map(drop))?;
        self.remote.counters()
    }
}

/// Groups the counters of a run, which has one port.
fn run_layers(
    counters: &Counters,
    _: Option<&net::RuleSet>,
    ports: &[ServedPort],
) -> Vec<towpath_uplink::Layer> {
    let port = ports.first().map(|port| port.tally.counted()).unwrap_or_default();
    towpath_uplink::layers(counters, &port)
}

/// Maximum number of iterations of the event loop to wait for the counters of ports. A port that is
/// not polled never reports them.
const TURNS_MAX: usize = 100;

/// Calls `turn` until the ports have reported their counters. Each call causes an iteration of the
/// engine's event loop.
fn until_notified(
    is_told: impl Fn() -> bool,
    mut turn: impl FnMut() -> Result<(), Gone>,
) -> Result<(), Gone> {
    (0..TURNS_MAX).take_while(|_| !is_told()).try_for_each(|_| turn())
}

pub fn gone(_: Gone) -> RequestFault {
    RequestFault::new("gone", "the stack has ended")
}
