//! Stacks on an Ethernet interface that the kernel uses as well: by packet sockets, or by XDP.

use std::net::IpAddr;

use towpath_bpf::{Claim, PortRange, Steering, Transport};
use towpath_interface::Interface;
use towpath_packet::PacketSocket;
use towpath_pool::LinkType;
use towpath_stack::Owners;
use towpath_wire::Prefix;
use towpath_xdp::{Facts, Mode, XdpSocket};

use crate::address::{other_host, station_mac};
use crate::coalescing::Coalescing;
use crate::host_routes;
use crate::plan::{Connected, Parted, Plan, Remark, list, system};
use crate::plan_error::PlanError;
use crate::shape::{Link, Shape};
use crate::tap_network::{own_address, own_addresses};

type Result<T> = std::result::Result<T, PlanError>;

/// The stack's place in the network of an interface.
struct Host {
    addresses: Vec<Prefix>,
    /// Whether the stack has an Ethernet address of its own, and not the interface's.
    is_station: bool,
    ports: Vec<PortRange>,
}

impl Host {
    fn mac(&self, interface: &Interface) -> [u8; 6] {
        match self.is_station {
            true => station_mac(&interface.mac, &self.addresses),
            false => interface.mac,
        }
    }

    fn claim(&self, interface: &Interface) -> Claim {
        let addresses = self.addresses.iter().map(Prefix::addr).collect();
        match self.is_station {
            true => Claim::Station { mac: self.mac(interface), addresses },
            false => Claim::Ports { addresses, ports: self.ports.clone() },
        }
    }

    /// A sentence for the user, with a word about how frames come.
    fn facts(&self, interface: &str, how: &str) -> String {
        let addresses = list(self.addresses.iter().map(Prefix::addr));
        match self.is_station {
            true => format!("{addresses} on {interface}{how}"),
            false => {
                let ports: Vec<_> = self.ports.iter().map(port_words).collect();
                format!("{} of {addresses} on {interface}{how}", ports.join(", "))
            }
        }
    }
}

/// A range as `--ports` takes it.
fn port_words(range: &PortRange) -> String {
    let transport = match range.transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    let PortRange { first, last, .. } = range;
    match first == last {
        true => format!("{transport}:{first}"),
        false => format!("{transport}:{first}-{last}"),
    }
}

impl Plan {
    /// Where the stack is in the network of an interface.
    fn host(&self, name: &str) -> Result<Host> {
        let ports = self.ports.clone();
        if ports.is_empty() {
            if let Some((own, interface)) = own_address(&self.addresses)? {
                let why = format!("this host has it on {interface} already");
                return Err(PlanError::AddressTaken { own, why });
            }
            return Ok(Host { addresses: self.addresses.clone(), is_station: true, ports });
        }
        let kernels = own_addresses(name)?;
        if let Some(&own) = self.addresses.iter().find(|own| !kernels.contains(own)) {
            return Err(PlanError::AddressMissing { own, interface: name.into() });
        }
        let addresses = if self.addresses.is_empty() { kernels } else { self.addresses.clone() };
        if addresses.is_empty() {
            return Err(PlanError::NoKernelAddress { interface: name.into() });
        }
        Ok(Host { addresses, is_station: false, ports })
    }

    /// The stack of a host on an interface that carries IP packets of up to `most` bytes.
    fn on_interface(&self, host: &Host, interface: &Interface, most: u32) -> Result<Shape> {
        let name = &interface.name;
        let mtu = self.mtu.unwrap_or(most);
        if mtu > most {
            return Err(PlanError::Mtu { mtu, most, link: name.clone() });
        }
        // The router that the kernel uses there, or the one that networks usually have.
        let all = host_routes::all();
        let kernels =
            all.iter().filter(|route| route.interface == *name && route.prefix.len() == 0);
        let routers: Vec<IpAddr> = kernels.filter_map(|route| route.gateway).collect();
        let router = |own: &Prefix| {
            let known = routers.iter().copied().find(|router| own.contains(*router));
            known.or_else(|| other_host(own))
        };
        let mut shape = self.on_ethernet(host.mac(interface), host.addresses.clone(), mtu);
        shape.routes = Shape::default_routes(&host.addresses, LinkType::Ethernet, router);
        Ok(shape)
    }

    fn gone(&self, name: &str) -> impl FnOnce() + Send + use<> {
        let (tell, gone) = (self.tell.clone(), format!("the interface {name}"));
        move || tell.remark(Remark::DeviceGone(gone))
    }

    /// A socket for each shard, if the kernel can divide flows among them.
    fn packet_sockets(
        &self,
        name: &str,
        host: &Host,
        seed: &[u8; 32],
    ) -> Result<Vec<PacketSocket>> {
        if self.shards > 1 {
            let owners = Owners::new(seed, self.shards);
            let steering = Steering { key: owners.key(), queues: owners.count() as u32 };
            match PacketSocket::open_group(name, |found| host.claim(found), Some(&steering)) {
                Err(towpath_packet::OpenError::NotSteered { .. }) if self.auto => {}
                opened => return Ok(opened?),
            }
        }
        Ok(vec![PacketSocket::open(name, |found| host.claim(found))?])
    }

    pub(crate) fn by_packets(&self, name: &str, seed: &[u8; 32]) -> Result<Connected> {
        let host = self.host(name)?;
        let mut sockets = self.packet_sockets(name, &host, seed)?;
        let socket = sockets.first_mut().expect("there is a socket for each shard");
        let interface = socket.interface().clone();
        let shape = self.on_interface(&host, &interface, interface.mtu)?;
        socket.on_gone(self.gone(name));
        self.finish(sockets, &shape, host.facts(name, ""))
    }

    pub(crate) fn parted_packets(&self, name: &str) -> Result<Parted> {
        let host = self.host(name)?;
        let socket = PacketSocket::open(name, |found| host.claim(found))?;
        let parts = socket.into_parts();
        let shape = self.on_interface(&host, &parts.interface, parts.interface.mtu)?;
        let descriptors = parts.descriptors.into_iter().map(Into::into).collect();
        let (link, facts) = (Link::Packet(parts.interface), host.facts(name, ""));
        Ok(Parted { link, shape, descriptors, facts })
    }

    fn xdp(&self, name: &str) -> Result<(towpath_xdp::Parts, Shape, String)> {
        let host = self.host(name)?;
        let parts = XdpSocket::open(name, |found| host.claim(found))?;
        let Facts { interface, mode, mtu_max, .. } = &parts.facts;
        let shape = self.on_interface(&host, interface, *mtu_max)?;
        let facts = host.facts(name, mode_words(*mode));
        Ok((parts, shape, facts))
    }

    pub(crate) fn by_xdp(&self, name: &str) -> Result<Connected> {
        let (parts, shape, facts) = self.xdp(name)?;
        let mut socket = XdpSocket::from_parts(parts).map_err(system("map an XDP socket"))?;
        socket.on_gone(self.gone(name));
        self.finish(vec![Coalescing::new(socket)], &shape, facts)
    }

    pub(crate) fn parted_xdp(&self, name: &str) -> Result<Parted> {
        let (parts, shape, facts) = self.xdp(name)?;
        let descriptors = parts.descriptors.into_iter().map(Into::into).collect();
        Ok(Parted { link: Link::Xdp(parts.facts), shape, descriptors, facts })
    }
}

/// How frames come to an XDP socket, behind the name of its interface.
fn mode_words(mode: Mode) -> &'static str {
    match (mode.in_driver, mode.zero_copy) {
        (true, true) => " (XDP in the driver, without copies)",
        (false, true) => " (XDP behind the driver, without copies)",
        (true, false) => " (XDP in the driver, the kernel copies)",
        (false, false) => " (XDP behind the driver, the kernel copies)",
    }
}
