//! Stacks on an Ethernet interface that the kernel uses as well: by packet sockets, or by XDP.

use std::net::IpAddr;
use std::os::fd::AsFd;

use towpath_bpf::{Claim, PortRange, Steering};
use towpath_interface::{Interface, Rights};
use towpath_packet::PacketSocket;
use towpath_pool::LinkType;
use towpath_stack::Owners;
use towpath_wire::Prefix;
use towpath_xdp::{Mode, XdpProperties, XdpSocket};

use crate::address::{other_host, station_mac};
use crate::claims::{Claims, PortWords};
use crate::coalescing::Coalescing;
use crate::host_routes;
use crate::kernel_ports;
use crate::mtu::Followed;
use crate::plan::{Connected, Parted, Plan, Remark, list, system};
use crate::plan_error::PlanError;
use crate::shape::{Link, Shape};
use crate::tap_network::{own_address, own_addresses};

type Result<T> = std::result::Result<T, PlanError>;

/// The stack's place in the network of an interface.
struct StackSite {
    addresses: Vec<Prefix>,
    /// Whether the stack has an Ethernet address of its own, and not the interface's.
    is_station: bool,
    ports: Vec<PortRange>,
}

impl StackSite {
    fn mac(&self, interface: &Interface) -> [u8; 6] {
        match self.is_station {
            true => station_mac(&interface.mac, &self.addresses),
            false => interface.mac,
        }
    }

    fn claim(&self, interface: &Interface) -> Claim {
        let addresses = self.ips();
        match self.is_station {
            true => Claim::Station { mac: self.mac(interface), addresses },
            false => Claim::Ports { addresses, ports: self.ports.clone() },
        }
    }

    fn ips(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(Prefix::addr).collect()
    }

    /// A sentence about programs of the kernel at ports that become the stack's, if there are any.
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

    /// A warning about an interface that does not receive frames to a further Ethernet address.
    fn unreachable(&self, interface: &Interface) -> Option<String> {
        let Interface { name, driver, .. } = interface;
        // A macvlan in passthru mode receives all frames, but the driver does not tell its mode.
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

    /// A sentence for the user, with a word about how frames come.
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

/// Ports of the kernel's programs that a warning names.
const PORTS_NAMED: usize = 8;

impl Plan {
    /// Where the stack is in the network of an interface.
    fn host(&self, name: &str) -> Result<StackSite> {
        let ports = self.ports.clone();
        if ports.is_empty() {
            if let Some((own, interface)) = own_address(&self.addresses)? {
                let why = format!("this host has it on {interface} already");
                return Err(PlanError::AddressTaken { own, why });
            }
            return Ok(StackSite { addresses: self.addresses.clone(), is_station: true, ports });
        }
        let kernels = own_addresses(name)?;
        if let Some(&own) = self.addresses.iter().find(|own| !kernels.contains(own)) {
            return Err(PlanError::AddressMissing { own, interface: name.into() });
        }
        let addresses = if self.addresses.is_empty() { kernels } else { self.addresses.clone() };
        if addresses.is_empty() {
            return Err(PlanError::NoKernelAddress { interface: name.into() });
        }
        Ok(StackSite { addresses, is_station: false, ports })
    }

    /// The stack of a host on an interface that carries IP packets of up to `most` bytes.
    fn on_interface(&self, host: &StackSite, interface: &Interface, most: u32) -> Result<Shape> {
        let name = &interface.name;
        let mtu = self.mtu.unwrap_or(most);
        if mtu > most {
            return Err(PlanError::Mtu { mtu, most, link: name.clone() });
        }
        if let Some(warning) = host.unreachable(interface) {
            self.tell.remark(Remark::Warning(warning));
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

    /// Refuses what another run on the interface has, and warns of programs of the kernel.
    fn claims(&self, name: &str, host: &StackSite) -> Result<Claims> {
        let claims = Claims::begin(name, host.ips(), host.ports.clone())?;
        if let Some(warning) = host.kernel_programs(name) {
            self.tell.remark(Remark::Warning(warning));
        }
        Ok(claims)
    }

    fn gone(&self, name: &str) -> impl FnOnce() + Send + use<> {
        let (tell, gone) = (self.tell.clone(), format!("the interface {name}"));
        move || tell.remark(Remark::DeviceGone(gone))
    }

    /// A socket for each shard, if the kernel can divide flows among them.
    fn packet_sockets(
        &self,
        name: &str,
        host: &StackSite,
        seed: &[u8; 32],
    ) -> Result<Vec<PacketSocket>> {
        if self.shards > 1 {
            let owners = Owners::new(seed, self.shards);
            let steering = Steering { key: owners.key(), queues: owners.count() as u32 };
            match PacketSocket::open_group(name, |found| host.claim(found), Some(&steering)) {
                Err(towpath_packet::OpenError::NotSteered { .. }) if self.auto => {}
                opened => return opened.map_err(|error| error.naming(self.rights(host)).into()),
            }
        }
        Ok(vec![self.packet_socket(name, host)?])
    }

    /// The only socket of a stack.
    fn packet_socket(&self, name: &str, host: &StackSite) -> Result<PacketSocket> {
        let opened = PacketSocket::open(name, |found| host.claim(found));
        opened.map_err(|error| error.naming(self.rights(host)).into())
    }

    /// Capabilities that the packet sockets of a stack need.
    fn rights(&self, host: &StackSite) -> Rights {
        match (host.is_station, self.shards > 1 && !self.auto) {
            (false, _) => Rights(&["NET_RAW", "NET_ADMIN", "BPF"]),
            (true, true) => Rights(&["NET_RAW", "BPF"]),
            (true, false) => Rights(&["NET_RAW"]),
        }
    }

    pub(crate) fn by_packets(&self, name: &str, seed: &[u8; 32]) -> Result<Connected> {
        let host = self.host(name)?;
        let claims = self.claims(name, &host)?;
        let mut sockets = self.packet_sockets(name, &host, seed)?;
        let socket = sockets.first_mut().expect("there is a socket for each shard");
        let interface = socket.interface().clone();
        let held = claims.hold(socket.as_fd())?;
        socket.keep(held);
        let shape = self.on_interface(&host, &interface, interface.mtu)?;
        socket.on_gone(self.gone(name));
        let mut connected = self.finish(sockets, &shape, host.facts(name, ""))?;
        connected.followed = Some(Followed::new(&interface, self.mtu));
        Ok(connected)
    }

    pub(crate) fn parted_packets(&self, name: &str) -> Result<Parted> {
        let host = self.host(name)?;
        let claims = self.claims(name, &host)?;
        let mut socket = self.packet_socket(name, &host)?;
        let held = claims.hold(socket.as_fd())?;
        socket.keep(held);
        let parts = socket.into_parts();
        let shape = self.on_interface(&host, &parts.interface, parts.interface.mtu)?;
        let descriptors = parts.descriptors.into_iter().map(Into::into).collect();
        let (link, facts) = (Link::Packet(parts.interface), host.facts(name, ""));
        Ok(Parted { link, shape, descriptors, facts })
    }

    fn xdp(&self, name: &str) -> Result<(towpath_xdp::Parts, Shape, String)> {
        let host = self.host(name)?;
        let claims = self.claims(name, &host)?;
        let mut parts = XdpSocket::open(name, |found| host.claim(found))?;
        let held = claims.hold(parts.packet_socket())?;
        parts.descriptors.extend(held);
        let XdpProperties { interface, mode, mtu_max, .. } = &parts.facts;
        let shape = self.on_interface(&host, interface, *mtu_max)?;
        let facts = host.facts(name, mode_words(*mode));
        Ok((parts, shape, facts))
    }

    /// The interface of an XDP socket, which has a limit of its own.
    pub(crate) fn followed_xdp(&self, facts: &XdpProperties) -> Followed {
        let most = self.mtu.map_or(facts.frame_mtu, |mtu| mtu.min(facts.frame_mtu));
        Followed::new(&facts.interface, Some(most))
    }

    pub(crate) fn by_xdp(&self, name: &str) -> Result<Connected> {
        let (parts, shape, facts) = self.xdp(name)?;
        let followed = self.followed_xdp(&parts.facts);
        let mut socket = XdpSocket::from_parts(parts).map_err(system("map an XDP socket"))?;
        socket.on_gone(self.gone(name));
        let mut connected = self.finish(vec![Coalescing::new(socket)], &shape, facts)?;
        connected.followed = Some(followed);
        Ok(connected)
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
