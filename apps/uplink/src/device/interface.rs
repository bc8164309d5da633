//! Stacks on an Ethernet interface that the kernel's own stack uses as well.

use std::net::IpAddr;

use towpath_bpf::{Claim, PortRange};
use towpath_interface::Interface;
use towpath_pool::LinkType;
use towpath_wire::Prefix;

use super::driver::{DeviceRequest, DeviceSite};
use crate::address::{list, station_mac};
use crate::claims::{Claims, DHCP_CLAIM, PortWords};
use crate::host_routes;
use crate::kernel_ports;
use crate::mtu::Followed;
use crate::plan_error::{PlanError, Result};
use crate::remark::Remark;
use crate::tap_network::{own_addresses, refuse_own_address};

/// Error message if the user gave no address for the stack; `{}` is the interface.
pub(super) const NEEDS_ADDRESS: &str =
    "the stack needs an address in the network of {} that no other host has";
/// Maximum number of ports in use by kernel sockets that a warning lists.
const PORTS_NAMED: usize = 8;

/// Addresses and ports of a stack on an interface that the kernel's own stack uses as well.
pub(super) struct StackSite {
    addresses: Vec<Prefix>,
    /// Whether the stack has its own Ethernet address. Otherwise it uses that of the interface.
    pub(super) is_station: bool,
    ports: Vec<PortRange>,
}

impl StackSite {
    /// Determines the addresses of the stack on the interface `name`.
    pub(super) fn new(name: &str, request: &DeviceRequest<'_>) -> Result<Self> {
        let ports = request.ports.to_vec();
        if ports.is_empty() {
            refuse_own_address(request.addresses)?;
            return Ok(Self { addresses: request.addresses.to_vec(), is_station: true, ports });
        }
        let kernels = own_addresses(name)?;
        if let Some(&own) = request.addresses.iter().find(|own| !kernels.contains(own)) {
            return Err(PlanError::AddressMissing { own, interface: name.into() });
        }
        let given = request.addresses;
        let addresses = if given.is_empty() { kernels } else { given.to_vec() };
        if addresses.is_empty() {
            return Err(PlanError::NoKernelAddress { interface: name.into() });
        }
        Ok(Self { addresses, is_station: false, ports })
    }

    /// Describes the stack on an interface with a maximum MTU of `most` bytes. `how` tells the user
    /// how frames are received.
    pub(super) fn on_interface(
        &self,
        interface: &Interface,
        most: u32,
        followed: Followed,
        how: &str,
        request: &DeviceRequest<'_>,
    ) -> Result<DeviceSite> {
        let name = &interface.name;
        let mtu = request.mtu.unwrap_or(most);
        if mtu > most {
            return Err(PlanError::Mtu { mtu, most, link: name.clone() });
        }
        if let Some(warning) = self.unreachable(interface) {
            request.tell.remark(Remark::Warning(warning));
        }
        let all = host_routes::all().into_iter();
        let kernels = all.filter(|route| route.interface == *name && route.prefix.len() == 0);
        Ok(DeviceSite {
            name: format!("the interface {name}"),
            link: LinkType::Ethernet,
            mac: self.mac(interface),
            addresses: self.addresses.clone(),
            mtu,
            routers: kernels.filter_map(|route| route.gateway).collect(),
            facts: self.facts(name, how),
            followed: Some(followed),
        })
    }

    /// Claims the addresses and ports, which fails if another run has claimed them. Warns if
    /// programs that use the kernel's own stack already receive on the ports.
    pub(super) fn claims(&self, name: &str, request: &DeviceRequest<'_>) -> Result<Claims> {
        let mut addresses = self.ips();
        if request.has_dhcp {
            // All clients on an interface have the same Ethernet address, so their leases would be
            // the same as well.
            addresses.push(DHCP_CLAIM);
        }
        let claims = Claims::begin(name, addresses, self.ports.clone())?;
        if let Some(warning) = self.kernel_programs(name) {
            request.tell.remark(Remark::Warning(warning));
        }
        Ok(claims)
    }

    fn mac(&self, interface: &Interface) -> [u8; 6] {
        match self.is_station {
            true => station_mac(&interface.mac, &self.addresses),
            false => interface.mac,
        }
    }

    /// Returns the rule by which frames on the interface belong to the stack.
    pub(super) fn claim(&self, interface: &Interface) -> Claim {
        let addresses = self.ips();
        match self.is_station {
            true => Claim::Station { mac: self.mac(interface), addresses },
            false => Claim::Ports { addresses, ports: self.ports.clone() },
        }
    }

    fn ips(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(Prefix::addr).collect()
    }

    /// Returns a warning if programs that use the kernel's own stack receive on ports that the
    /// stack is about to take.
    fn kernel_programs(&self, interface: &str) -> Option<String> {
        let found = kernel_ports::in_use(&self.ips(), &self.ports);
        let word = |(transport, port): &(_, u16)| {
            let (transport, first, last) = (*transport, *port, *port);
            PortWords(PortRange { transport, first, last }).to_string()
        };
        let mut words: Vec<_> = found.iter().take(PORTS_NAMED).map(word).collect();
        if found.len() > PORTS_NAMED {
            words.push(format!("{} more", found.len() - PORTS_NAMED));
        }
        (!words.is_empty()).then(|| {
            let words = words.join(", ");
            format!(
                "a program of this host's kernel receives at {words} already: until this run ends, \
                 clients on {interface} reach the run instead, and open TCP connections to that \
                 program are reset"
            )
        })
    }

    /// Returns a warning if the interface cannot receive frames for a second Ethernet address.
    fn unreachable(&self, interface: &Interface) -> Option<String> {
        let Interface { name, driver, .. } = interface;
        // The warning mentions the exception: a macvlan in passthru mode receives all frames. The
        // driver does not report its mode.
        let unless = match driver.as_str() {
            "macvlan" => ", unless its mode is passthru",
            "ipvlan" => "",
            _ => return None,
        };
        self.is_station.then(|| {
            format!(
                "{name} is of the kind {driver} and receives frames to its own Ethernet address \
                 alone{unless}: other hosts do not reach the stack. Use the interface below \
                 {name}, or --ports"
            )
        })
    }

    /// Returns a line of text for the user about the stack's addresses. `how` tells how frames are
    /// received.
    fn facts(&self, interface: &str, how: &str) -> String {
        let addresses = list(self.addresses.iter().map(Prefix::addr));
        match self.is_station {
            true => format!("{addresses} on {interface}{how}"),
            false => {
                let ports = self.ports.iter().map(|range| PortWords(*range).to_string());
                let ports: Vec<_> = ports.collect();
                format!("{} of {addresses} on {interface}{how}", ports.join(", "))
            }
        }
    }
}
