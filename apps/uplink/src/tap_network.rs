//! Chooses the network between this host and the stack behind a TAP device. Each run on a host gets
//! a different network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_wire::Prefix;

use crate::host_routes::{self, HostRoute};
use crate::plan_error::{PlanError, Result};
use crate::turns::NamespaceLock;

/// A network that this host uses: that of an interface address, or the destination of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    interface: String,
    network: Prefix,
    /// Address of this host in the network; `None` if the entry is a route.
    own: Option<IpAddr>,
}

/// Name of the lock, which is shared by all runs in this network namespace.
const LOCK: &str = "towpath-tap-network";

/// Lock that is held from choosing a network until its addresses are set. Otherwise two runs that
/// start at the same time could choose the same network.
#[derive(Debug)]
pub struct Choosing(#[expect(dead_code, reason = "held, not used")] NamespaceLock);

impl Choosing {
    /// Waits until no other run is choosing a network.
    pub fn begin() -> Result<Self> {
        NamespaceLock::wait(LOCK).map(Self).map_err(system)
    }

    /// Returns the addresses of the stack behind `device`. If the user `asked` for addresses,
    /// returns these, unless they conflict with the host's. Otherwise returns those of the first
    /// network that the host does not use.
    pub fn addresses(&self, device: &str, asked: &[Prefix]) -> Result<Vec<Prefix>> {
        let held = held_by_host()?;
        if asked.is_empty() {
            return choose(&held, device).map(Vec::from).ok_or(PlanError::NoNetwork);
        }
        match asked.iter().find_map(|own| refusal(&held, device, own)) {
            None => Ok(asked.to_vec()),
            Some(error) => Err(error),
        }
    }
}

/// Private blocks (RFC 1918) that are searched in this order for a free network.
const BLOCKS: [[u8; 2]; 3] = [[10, 77], [172, 31], [192, 168]];

/// Iterates over the stack's addresses, one IPv4 and one IPv6 address, in all networks that may be
/// chosen. The host gets the first address of each network.
fn networks() -> impl Iterator<Item = [Prefix; 2]> {
    let prefix = |ip: IpAddr, len| Prefix::new(ip, len).expect("shorter than an address");
    let all = BLOCKS.into_iter().flat_map(|block| (0..=u8::MAX).map(move |n| (block, n)));
    all.zip(0u16..).map(move |(([a, b], n), number)| {
        let v4 = Ipv4Addr::new(a, b, n, 2);
        let v6 = Ipv6Addr::new(0xfd00, 0x77, number, 0, 0, 0, 0, 2);
        [prefix(v4.into(), 24), prefix(v6.into(), 64)]
    })
}

/// Returns the stack's addresses in the networks that an administrator has assigned to the device.
/// If there are none, returns those in the first free networks.
fn choose(held: &[Held], device: &str) -> Option<[Prefix; 2]> {
    let (ours, others): (Vec<_>, Vec<_>) = held.iter().partition(|held| held.interface == device);
    let meets = |held: &[&Held], networks: &[Prefix; 2]| {
        held.iter().any(|held| networks.iter().any(|network| overlap(network, &held.network)))
    };
    let free = || networks().filter(|networks| !meets(&others, networks));
    free().find(|networks| meets(&ours, networks)).or_else(|| free().next())
}

/// Returns an error if the stack behind `device` cannot have the address `own`.
fn refusal(held: &[Held], device: &str, own: &Prefix) -> Option<PlanError> {
    let own = *own;
    if of_host(held, &own).is_some_and(|held| held.interface == device) {
        return Some(PlanError::AddressOfHost { own, interface: device.to_owned() });
    }
    let held = collision(held, device, &own)?;
    let (interface, network) = (&held.interface, held.network.trunc());
    let why = match held.own {
        Some(ip) => format!("{ip} is on {interface} already"),
        None => format!("{network} is reached by {interface} already"),
    };
    Some(PlanError::AddressTaken { own, why })
}

/// Returns the network or route of this host that conflicts with the requested network. A requested
/// network inside a larger network behind a router is allowed, because the user may intend this.
fn collision<'a>(held: &'a [Held], device: &str, asked: &Prefix) -> Option<&'a Held> {
    held.iter().find(|held| {
        let taken = held.own.is_some() || held.network.len() >= asked.len();
        held.interface != device && taken && overlap(asked, &held.network)
    })
}

fn overlap(a: &Prefix, b: &Prefix) -> bool {
    a.contains(b.network()) || b.contains(a.network())
}

fn system(source: std::io::Error) -> PlanError {
    PlanError::System { step: "read the addresses of this host", source }
}

/// Returns an error if an interface of this host has one of the addresses. Both this host and the
/// stack would then answer packets to the address.
pub(crate) fn refuse_own_address(addresses: &[Prefix]) -> Result<()> {
    let held = held_by_host()?;
    let taken = |own: &Prefix| Some((*own, of_host(&held, own)?.interface.clone()));
    match addresses.iter().find_map(taken) {
        Some((own, interface)) => {
            let why = format!("this host has it on {interface} already");
            Err(PlanError::AddressTaken { own, why })
        }
        None => Ok(()),
    }
}

/// Returns the network of this host in which the host's own address equals that of `own`.
fn of_host<'a>(held: &'a [Held], own: &Prefix) -> Option<&'a Held> {
    held.iter().find(|held| held.own == Some(own.addr()))
}

/// Returns the addresses of an interface of this host, except link-local ones.
pub(crate) fn own_addresses(interface: &str) -> Result<Vec<Prefix>> {
    let held = held_by_host()?;
    let own = held.iter().filter(|held| held.interface == interface && held.own.is_some());
    let link_local = |prefix: &&Prefix| match prefix.addr() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    Ok(own.map(|held| &held.network).filter(|prefix| !link_local(prefix)).copied().collect())
}

/// Returns the networks of this host's interfaces, and its routes except default routes.
fn held_by_host() -> Result<Vec<Held>> {
    let all = nix::ifaddrs::getifaddrs().map_err(|errno| system(errno.into()))?;
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let of_interface = all.filter_map(|entry| {
        let (own, mask) = (ip(entry.address?)?, ip(entry.netmask?)?);
        let len = match mask {
            IpAddr::V4(mask) => mask.to_bits().leading_ones(),
            IpAddr::V6(mask) => mask.to_bits().leading_ones(),
        };
        let network = Prefix::new(own, len as u8)?;
        Some(Held { interface: entry.interface_name, network, own: Some(own) })
    });
    let routes = host_routes::all().into_iter().filter(|route| route.prefix.len() > 0);
    let routes = routes.map(|route| {
        let HostRoute { interface, prefix: network, .. } = route;
        Held { interface, network, own: None }
    });
    Ok(of_interface.chain(routes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses addresses with prefix lengths, given with their interface. A text that begins with
    /// `via` is a route.
    fn held(list: &[(&str, &str)]) -> Vec<Held> {
        let entry = |(name, text): &(&str, &str)| {
            let (route, text) = match text.strip_prefix("via ") {
                Some(text) => (true, text),
                None => (false, *text),
            };
            let network: Prefix = text.parse().unwrap();
            let own = (!route).then_some(network.addr());
            Held { interface: (*name).to_owned(), network, own }
        };
        list.iter().map(entry).collect()
    }

    #[test]
    fn the_first_network_that_the_host_is_not_in() {
        let first = |list: &[(&str, &str)]| {
            let [v4, v6] = choose(&held(list), "tp1").unwrap();
            format!("{} {}", v4.addr(), v6.addr())
        };
        assert_eq!(first(&[("lo", "127.0.0.1/8"), ("lo", "::1/128")]), "10.77.0.2 fd00:77::2");
        assert_eq!(first(&[("tp0", "10.77.0.1/24")]), "10.77.1.2 fd00:77:1::2");
        let both = [("a", "10.77.0.9/32"), ("b", "fd00:77:1::1/64")];
        assert_eq!(first(&both), "10.77.2.2 fd00:77:2::2");
        // The interface has an address, so an administrator has assigned this network to the
        // device.
        assert_eq!(first(&[("tp1", "10.77.0.1/24")]), "10.77.0.2 fd00:77::2");
        let prepared = [("tp0", "10.77.0.1/24"), ("tp1", "10.77.9.1/24")];
        assert_eq!(first(&prepared), "10.77.9.2 fd00:77:9::2");
        // Networks that are reached through routers are in use, too, and must not be chosen.
        assert_eq!(first(&[("vpn", "via 10.77.0.0/22")]), "10.77.4.2 fd00:77:4::2");
        assert_eq!(first(&[("vpn", "via 10.0.0.0/8")]), "172.31.0.2 fd00:77:100::2");
        assert_eq!(
            first(&[("vpn", "via 10.77.1.7/32"), ("vpn", "via 10.77.0.3/32")]),
            "10.77.2.2 fd00:77:2::2"
        );
        let all = [("a", "10.0.0.1/8"), ("b", "via 172.16.0.0/12"), ("c", "192.168.0.1/16")];
        assert!(choose(&held(&all), "tp1").is_none());
    }

    #[test]
    fn an_address_that_the_host_has_on_the_device_is_refused() {
        let held = held(&[("tp1", "192.168.6.1/24"), ("tp1", "fd00::1/64")]);
        let why = |own: &str| refusal(&held, "tp1", &own.parse().unwrap()).map(|it| it.to_string());
        let refused = why("192.168.6.1/24").expect("it is refused");
        assert!(refused.contains("192.168.6.1/24: this host has that address on tp1 itself"));
        assert!(why("192.168.6.1/16").is_some() && why("fd00::1/64").is_some());
        assert_eq!((why("192.168.6.2/24"), why("fd00::2/64")), (None, None));
    }

    #[test]
    fn what_was_asked_for_may_be_taken() {
        let held = held(&[
            ("eth0", "192.168.5.1/25"),
            ("tp1", "192.168.6.1/24"),
            ("vpn", "via 10.0.0.0/8"),
            ("eth0", "via 172.16.9.0/28"),
        ]);
        let taken = |own: &str| collision(&held, "tp1", &own.parse().unwrap()).is_some();
        assert!(taken("192.168.5.2/24"));
        assert!(taken("192.168.5.1/24"));
        // Refused, because the new network contains this host's own network.
        assert!(taken("192.168.5.50/25") && taken("192.168.5.50/28"));
        assert!(!taken("192.168.5.130/25"));
        assert!(!taken("192.168.6.2/24"));
        // Allowed: a part of a network behind a router. Refused: a network that contains a used
        // one.
        assert!(!taken("10.9.0.2/24"));
        assert!(taken("172.16.9.2/24") && taken("10.0.0.2/8"));
    }
}
