//! A network namespace whose only link is a device. The gateway runs at the other end of the
//! device.

use std::net::IpAddr;

use towpath_gateway::{Bound, ForwardProtocol, Gateway, GatewayConfig, Notice, PolledPorts};
use towpath_wire::Prefix;

use crate::facts::facts;
use crate::plan::Plan;
use crate::plan_error::PlanError;
use crate::rootless::Rootless;

/// Configuration of the gateway, and of the namespace at the other end of the device.
#[derive(Debug, Clone)]
pub struct Namespaced {
    /// Configuration of the gateway.
    pub config: GatewayConfig,
    /// Addresses in the namespace, each with its prefix length.
    pub addresses: Vec<Prefix>,
    /// Addresses of the gateway, one for each family.
    pub routers: Vec<IpAddr>,
    /// Addresses of the DNS forwarder, one for each family. Empty if programs use the nameservers
    /// of the host's /etc/resolv.conf.
    pub nameservers: Vec<IpAddr>,
    /// Lines in the format of hosts(5) that are added for programs in the namespace.
    pub hosts: String,
}

/// Host sockets that are bound for ports to be forwarded to a namespace.
pub struct BoundPorts {
    bound: Vec<Bound>,
    /// Line of text for the user about the ports; empty if no port is published.
    pub facts: String,
}

impl BoundPorts {
    /// Returns whether a port of this protocol is published.
    pub fn has(&self, protocol: ForwardProtocol) -> bool {
        self.bound.iter().any(|bound| bound.which.protocol == protocol)
    }
}

impl Plan {
    /// Returns the configuration for a namespace. The addresses are the same as for a stack behind
    /// the gateway.
    ///
    /// # Errors
    /// Fails if the kernel returns no random bytes.
    pub fn namespaced(&self) -> Result<Namespaced, PlanError> {
        let Rootless { config, shape, .. } = self.rootless()?;
        let hosts = self.names.lines(shape.addresses.iter().map(Prefix::addr), &config.gateways());
        let both = |v4: Option<IpAddr>, v6: Option<IpAddr>| v4.into_iter().chain(v6).collect();
        Ok(Namespaced {
            routers: config.gateways(),
            nameservers: both(config.dns_v4.map(IpAddr::V4), config.dns_v6.map(IpAddr::V6)),
            hosts,
            addresses: shape.addresses,
            config,
        })
    }

    /// Binds the host sockets of the ports to publish.
    ///
    /// # Errors
    /// Returns the error of the first port that cannot be bound.
    pub fn bind(&self, namespaced: &Namespaced) -> Result<BoundPorts, PlanError> {
        let bound = self.bound()?;
        let places: Vec<_> = bound.iter().map(|bound| bound.host).collect();
        let config = &namespaced.config;
        let program = config.program_v4.map(IpAddr::V4).or(config.program_v6.map(IpAddr::V6));
        let program = program.expect("an address is given or there is a default");
        Ok(BoundPorts { bound, facts: facts(&self.ports_of_host(), &places, program) })
    }

    /// Passes the bound ports to the gateway. Each refuses clients until the result of
    /// [`Self::polled`] opens it.
    ///
    /// # Errors
    /// Fails if a port cannot be polled because of insufficient memory.
    pub fn serve(&self, gateway: &mut Gateway, published: BoundPorts) -> Result<(), PlanError> {
        let served = Gateway::serve_bound(std::slice::from_mut(gateway), published.bound);
        served.map_err(|error| self.port_taken(error))
    }

    /// Returns the ports that must be polled, because they are open only while programs in the
    /// namespace listen. If the namespace's kernel cannot be queried for a protocol, the ports of
    /// that protocol are opened permanently.
    ///
    /// # Errors
    /// Fails if the host cannot listen on a port because of insufficient memory.
    pub fn polled(
        &self,
        namespaced: &Namespaced,
        published: &BoundPorts,
        answers: impl Fn(ForwardProtocol) -> bool,
        tell: impl Fn(Notice) + Send + 'static,
    ) -> Result<PolledPorts, PlanError> {
        let (asked, others): (Vec<_>, Vec<_>) =
            published.bound.iter().partition(|bound| answers(bound.which.protocol));
        let opened = others.into_iter().try_for_each(Bound::open);
        opened.map_err(|error| self.port_taken(error))?;
        Ok(PolledPorts::new(&namespaced.config, asked, tell))
    }
}
