//! A network namespace whose only way out is a device with the gateway behind it.

use std::net::IpAddr;

use towpath_gateway::{Bound, ForwardProtocol, Gateway, GatewayConfig, Notice, PolledPorts};
use towpath_wire::Prefix;

use crate::facts::facts;
use crate::plan::Plan;
use crate::plan_error::PlanError;
use crate::rootless::Rootless;

/// Words for both ends of the device.
#[derive(Debug, Clone)]
pub struct Namespaced {
    /// Configuration of the gateway.
    pub config: GatewayConfig,
    /// Addresses in the namespace, each with the length of its network.
    pub addresses: Vec<Prefix>,
    /// Addresses of the gateway, one of each family.
    pub routers: Vec<IpAddr>,
    /// Addresses of the forwarder of DNS, one of each family; none where programs are left with
    /// the nameservers that they find.
    pub nameservers: Vec<IpAddr>,
    /// Lines of hosts(5) for programs.
    pub hosts: String,
}

/// Ports of the host that lead into a namespace.
pub struct BoundPorts {
    bound: Vec<Bound>,
    /// A line for the user. Empty where no port is published.
    pub facts: String,
}

impl BoundPorts {
    /// Whether a port of this protocol is published.
    pub fn has(&self, protocol: ForwardProtocol) -> bool {
        self.bound.iter().any(|bound| bound.which.protocol == protocol)
    }
}

impl Plan {
    /// The same addresses and the same gateway as without a namespace.
    ///
    /// # Errors
    /// There are no random bytes.
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

    /// Binds the ports that are to be published.
    ///
    /// # Errors
    /// The first that cannot be had.
    pub fn bind(&self, namespaced: &Namespaced) -> Result<BoundPorts, PlanError> {
        let bound = self.bound()?;
        let places: Vec<_> = bound.iter().map(|bound| bound.host).collect();
        let config = &namespaced.config;
        let program = config.program_v4.map(IpAddr::V4).or(config.program_v6.map(IpAddr::V6));
        let program = program.expect("an address is given or there is a default");
        Ok(BoundPorts { bound, facts: facts(&self.ports_of_host(), &places, program) })
    }

    /// Has the gateway serve ports that are bound. Each refuses clients until [`Self::polled`]
    /// opens it.
    ///
    /// # Errors
    /// The host cannot watch one, for want of memory.
    pub fn serve(&self, gateway: &mut Gateway, published: BoundPorts) -> Result<(), PlanError> {
        let served = Gateway::serve_bound(std::slice::from_mut(gateway), published.bound);
        served.map_err(|error| self.port_taken(error))
    }

    /// Ports to be opened and shut as the kernel of the namespace says. Where this kernel does not
    /// answer for a protocol, ports of that are opened for good.
    ///
    /// # Errors
    /// The host cannot listen on one, for want of memory.
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
