//! Creates the configuration of the stack behind a link, and its ports.

use std::io;

use towpath_pool::{LinkType, Port};
use towpath_wire::Prefix;

use crate::address::other_host;
use crate::device::DeviceSpec;
use crate::device::driver::{DeviceSite, MTU_ETHERNET, OpenDevice, counted};
use crate::dhcp::LeaseClient;
use crate::netem::NetemSpec;
use crate::plan::{Connected, Dns, Plan};
use crate::plan_error::{PlanError, Result, system};
use crate::shape::{Resolver, Route, Shape};

/// Default MTU of the link to the gateway, in bytes. A link in memory has no limit of its own, and
/// larger segments need less work. But an initial receive window (64 KiB) should hold several
/// segments; otherwise the sender waits for window updates.
const MTU_ROOTLESS: u32 = 16_384;

impl Plan {
    /// Returns the MTU in bytes of a link for which no device determines the MTU.
    pub(crate) fn mtu(&self) -> u32 {
        let is_ethernet = self.netem.is_some() || self.device.is_some();
        self.mtu.unwrap_or(if is_ethernet { MTU_ETHERNET } else { MTU_ROOTLESS })
    }

    /// Opens the device, and creates the configuration of the stack behind it.
    pub(crate) fn over_device(&self, device: &DeviceSpec, seed: &[u8; 32]) -> Result<Connected> {
        let OpenDevice { ports, site, receivers, replay } = device.open(&self.request(seed))?;
        let mut connected = self.finish(ports, &self.behind(&site), site.facts)?;
        connected.config.stack.receivers = receivers;
        if let Some(settings) = &self.dhcp {
            let client = LeaseClient::new(settings.clone(), site.mac)?;
            let ports = std::mem::take(&mut connected.ports).into_iter();
            connected.ports = ports.map(|ports| client.serve(ports)).collect();
            // Report the addresses only when the DHCP client has obtained them.
            (connected.dhcp, connected.facts) = (Some(client), String::new());
        }
        Ok(Connected { followed: site.followed, replay, ..connected })
    }

    /// Returns the configuration of a stack that uses a device. Its default router is the one that
    /// the kernel uses on this link. Otherwise, it is the first address of the network that the
    /// stack itself does not have.
    pub(crate) fn behind(&self, site: &DeviceSite) -> Shape {
        // A device has no DNS forwarder, so the stack queries the nameserver itself.
        let resolver = match self.dns {
            Some(Dns::At(address)) => Some(Resolver { address, only_loopback: false }),
            _ => None,
        };
        let router = |own: &Prefix| {
            let known = site.routers.iter().copied().find(|router| own.contains(*router));
            known.or_else(|| other_host(own)).filter(|_| site.link == LinkType::Ethernet)
        };
        let routes = Shape::default_routes(&site.addresses, site.link, router);
        let shape = self.shape(site.mac, site.addresses.clone(), site.mtu, routes, resolver);
        Shape { in_process: false, ..shape }
    }

    pub(crate) fn shape(
        &self,
        mac: [u8; 6],
        addresses: Vec<Prefix>,
        mtu: u32,
        routes: Vec<Route>,
        resolver: Option<Resolver>,
    ) -> Shape {
        let netem = self.netem.clone();
        let hosts: Vec<_> = routes.iter().filter_map(|route| route.next_hop).collect();
        Shape {
            // For a TAP device, `hosts` are this host's addresses at the other end of the link.
            names: self.names.text(&addresses, &hosts),
            mac,
            addresses,
            mtu,
            routes,
            resolver,
            tcp: self.tcp,
            busy_poll_us: self.busy_poll_us,
            local_ports: self.local_ports,
            netem,
            in_process: true,
        }
    }

    /// Creates the configuration of a stack with these ports. Each shard (thread) of the stack has
    /// one port.
    pub(crate) fn finish(
        &self,
        ports: Vec<Box<dyn Port + Send>>,
        shape: &Shape,
        facts: String,
    ) -> Result<Connected> {
        let config = shape.config(ports.first().expect("each shard has a port"));
        let ports = match &shape.netem {
            Some(netem) => self.recorded(self.shaped(netem, ports)?)?,
            None => self.recorded(ports)?,
        };
        let (addresses, published) = (shape.addresses.clone(), Vec::new());
        let (notices, followed, replay, dhcp) = (None, None, None, None);
        Ok(Connected {
            config,
            ports,
            addresses,
            published,
            facts,
            notices,
            followed,
            replay,
            dhcp,
        })
    }

    /// Wraps each port in an emulated link with delay and loss.
    fn shaped(
        &self,
        netem: &NetemSpec,
        ports: Vec<Box<dyn Port + Send>>,
    ) -> Result<Vec<Box<dyn Port + Send>>> {
        let shaped = |port| Ok(counted(netem.shaped(port)?, &self.port_counters));
        ports.into_iter().map(shaped).collect::<io::Result<_>>().map_err(system("read netem"))
    }

    /// Returns a list with the only port of each shard. If a capture was requested, wraps each port
    /// so that its packets are recorded.
    fn recorded(&self, ports: Vec<Box<dyn Port + Send>>) -> Result<Vec<Vec<Box<dyn Port + Send>>>> {
        Ok(match &self.capture {
            Some(file) => {
                let name = Shape::INTERFACE_NAME;
                let recorded = file.capture_queues(name, ports).map_err(PlanError::Capture)?;
                recorded.into_iter().map(|port| vec![Box::new(port) as _]).collect()
            }
            None => ports.into_iter().map(|port| vec![port]).collect(),
        })
    }
}
