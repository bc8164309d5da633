//! The stack behind a link and its ports, which all kinds of links have in common.

use std::io;

use towpath_pool::{LinkType, Port};
use towpath_wire::Prefix;

use crate::address::other_host;
use crate::counting::Counting;
use crate::plan::{Connected, Dns, LinkKind, Plan, Result, system};
use crate::plan_error::PlanError;
use crate::shape::{Resolver, Route, Shape};

/// Longest packet through the gateway. Memory has no limit of its own, and large segments save
/// work. A fresh receive window (64 KiB) should hold several, or the sender waits for window
/// updates.
const MTU_ROOTLESS: u32 = 16_384;
/// Longest packet of an Ethernet.
const MTU_TAP: u32 = 1500;

impl Plan {
    /// Longest IP packet of a link that has no limit of its own, in bytes.
    pub(crate) fn mtu(&self) -> u32 {
        let is_ethernet = self.netem.is_some() || self.link != LinkKind::Gateway;
        self.mtu.unwrap_or(if is_ethernet { MTU_TAP } else { MTU_ROOTLESS })
    }

    /// A host on an Ethernet, whose router has the first other address of a network.
    pub(crate) fn on_ethernet(&self, mac: [u8; 6], addresses: Vec<Prefix>, mtu: u32) -> Shape {
        // There is no forwarder: the nameserver is reached as other hosts are.
        let resolver = match self.dns {
            Some(Dns::At(address)) => Some(Resolver { address, only_loopback: false }),
            _ => None,
        };
        let routes = Shape::default_routes(&addresses, LinkType::Ethernet, other_host);
        self.shape(mac, addresses, mtu, routes, resolver)
    }

    pub(crate) fn shape(
        &self,
        mac: [u8; 6],
        addresses: Vec<Prefix>,
        mtu: u32,
        routes: Vec<Route>,
        resolver: Option<Resolver>,
    ) -> Shape {
        let (congestion, busy_poll_us) = (self.congestion, self.busy_poll_us);
        let netem = self.netem.clone();
        let hosts: Vec<_> = routes.iter().filter_map(|route| route.next_hop).collect();
        Shape {
            // The other end of a TAP device is this host.
            names: self.names.text(&addresses, &hosts),
            mac,
            addresses,
            mtu,
            routes,
            resolver,
            congestion,
            busy_poll_us,
            local_ports: self.local_ports,
            netem,
            in_process: true,
        }
    }

    /// A stack whose shards have these ports.
    pub(crate) fn finish<P: Port + Send + 'static>(
        &self,
        ports: Vec<P>,
        shape: &Shape,
        facts: String,
    ) -> Result<Connected> {
        let config = shape.config(ports.first().expect("each shard has a port"));
        let ports = self.counted(ports);
        let ports = match &shape.netem {
            Some(netem) => {
                let shaped = ports.into_iter().map(|port| netem.shaped(port));
                let shaped = shaped.collect::<io::Result<_>>().map_err(system("read netem"))?;
                self.recorded(self.counted(shaped))?
            }
            None => self.recorded(ports)?,
        };
        let (addresses, published) = (shape.addresses.clone(), Vec::new());
        let (notices, followed, replay) = (None, None, None);
        Ok(Connected { config, ports, addresses, published, facts, notices, followed, replay })
    }

    /// Ports that leave behind their counts.
    fn counted<P: Port>(&self, ports: Vec<P>) -> Vec<Counting<P>> {
        ports.into_iter().map(|port| Counting::new(port, &self.port_counters)).collect()
    }

    /// The only port of each shard, recorded if that was asked for.
    fn recorded(
        &self,
        ports: Vec<impl Port + Send + 'static>,
    ) -> Result<Vec<Vec<Box<dyn Port + Send>>>> {
        Ok(match &self.capture {
            Some(file) => boxed(
                file.capture_queues(Shape::INTERFACE_NAME, ports).map_err(PlanError::Capture)?,
            ),
            None => boxed(ports),
        })
    }
}

/// The only port of each shard.
fn boxed(ports: Vec<impl Port + Send + 'static>) -> Vec<Vec<Box<dyn Port + Send>>> {
    ports.into_iter().map(|port| vec![Box::new(port) as Box<dyn Port + Send>]).collect()
}
