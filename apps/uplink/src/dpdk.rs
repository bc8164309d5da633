//! A link by a port of DPDK, where the feature `dpdk` is.

use crate::plan::{Connected, Plan};
use crate::plan_error::PlanError;

type Result<T> = std::result::Result<T, PlanError>;

/// A build without DPDK.
#[cfg(not(feature = "dpdk"))]
impl Plan {
    pub(crate) fn over_dpdk(&self, _arguments: &str) -> Result<Connected> {
        Err(PlanError::NoDpdk)
    }
}

#[cfg(feature = "dpdk")]
impl Plan {
    /// Starts DPDK with the arguments of EAL, and makes the stack a host behind its port.
    pub(crate) fn over_dpdk(&self, arguments: &str) -> Result<Connected> {
        use towpath_dpdk::{Opened, Options, open};

        use crate::address::other_host;
        use crate::plan::{Remark, list, random_mac};
        use crate::tap_network::own_address;

        if let Some((own, interface)) = own_address(&self.addresses)? {
            let why = format!("this host has it on {interface} already");
            return Err(PlanError::AddressTaken { own, why });
        }
        // Threads by need would leave queues of the port to shards that come later.
        let queues = if self.auto { 1 } else { self.shards };
        let options = Options { eal: arguments.to_owned(), queues, mtu: self.mtu };
        let Opened { mut queues, info } =
            open(&options).map_err(|error| PlanError::Dpdk(Box::new(error)))?;
        let mac = info.mac.map_or_else(random_mac, Ok)?;
        let own = list(self.addresses.iter().map(towpath_wire::Prefix::addr));
        let mut facts = format!("{own} on {} of DPDK", info.name);
        if let Some(interface) = &info.interface {
            facts = format!("{facts} ({interface})");
        }
        if let Some(interface) = &info.tap {
            let hosts: Vec<_> = self
                .addresses
                .iter()
                .filter_map(|own| Some((other_host(own)?, own.len())))
                .collect();
            towpath_tap::set_up_host(interface, info.mtu, &hosts)?;
            let host = list(hosts.iter().map(|(ip, _)| *ip));
            facts = format!("{own} on {interface} of DPDK (this host is {host})");
        }
        let (tell, gone) = (self.tell.clone(), info.interface.or(info.tap));
        if let (Some(queue), Some(interface)) = (queues.first_mut(), gone) {
            let gone = Remark::DeviceGone(format!("the interface {interface}"));
            queue.on_gone(move || tell.remark(gone));
        }
        let shape = self.on_ethernet(mac, self.addresses.clone(), info.mtu);
        self.finish(queues, &shape, facts)
    }
}
