//! Which network a TAP device joins to the stack, so that several runs fit on one host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use towpath_wire::Prefix;

use crate::error::{ExitCode, Failure};
use crate::uplink::other_host;

/// An address of this host, and the interface that has it.
type Held = (String, IpAddr);

/// How long the run that is choosing may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Its name, in the network namespace that the addresses are of.
const LOCK: &[u8] = b"towpath-tap-network";

/// The right to choose: two runs that start at once must not choose the same network. Held until the
/// addresses are set.
#[derive(Debug)]
pub struct Choosing(#[expect(dead_code, reason = "held, not used")] Option<UnixListener>);

impl Choosing {
    /// Waits for another run to have chosen. Who takes longer than that is not waited for.
    pub fn begin() -> Result<Self> {
        let name = SocketAddr::from_abstract_name(LOCK)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match UnixListener::bind_addr(&name) {
                Ok(lock) => return Ok(Self(Some(lock))),
                Err(_) if Instant::now() > end => return Ok(Self(None)),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// The addresses of the stack behind `device`: those that were `asked` for, if the host can have
    /// the other end; otherwise of the first network that it is not in yet.
    pub fn addresses(&self, device: &str, asked: &[Prefix]) -> Result<Vec<Prefix>> {
        let held = held_by_host()?;
        if asked.is_empty() {
            return choose(&held, device).map(Vec::from).ok_or_else(|| {
                let message =
                    "this host is in all of 10.77.0.0/24 to 10.77.255.0/24: give an --address";
                Failure::error(ExitCode::Failed, message)
            });
        }
        match asked.iter().find_map(|own| Some((own, collision(&held, device, own)?))) {
            None => Ok(asked.to_vec()),
            Some((own, (interface, ip))) => {
                let network = format!("{}/{}", own.addr(), own.len());
                let message = format!(
                    "--address {network}: {ip} is on {interface} already; choose another network"
                );
                Err(Failure::error(ExitCode::Failed, message))
            }
        }
    }
}

/// The stack's addresses in the network of number `n`: the host has the first of each.
fn network(n: u8) -> [Prefix; 2] {
    let v4 = Ipv4Addr::new(10, 77, n, 2);
    let v6 = Ipv6Addr::new(0xfd00, 0x77, n.into(), 0, 0, 0, 0, 2);
    let prefix = |ip: IpAddr, len| Prefix::new(ip, len).expect("shorter than an address");
    [prefix(v4.into(), 24), prefix(v6.into(), 64)]
}

/// A network that an administrator gave the device already, or the first that is free.
fn choose(held: &[Held], device: &str) -> Option<[Prefix; 2]> {
    let is_in = |networks: &[Prefix; 2], own: bool| {
        let of_interest = held.iter().filter(|(interface, _)| (interface == device) == own);
        of_interest.into_iter().any(|(_, ip)| networks.iter().any(|network| network.contains(*ip)))
    };
    let free = || (0..=u8::MAX).map(network).filter(|networks| !is_in(networks, false));
    free().find(|networks| is_in(networks, true)).or_else(|| free().next())
}

/// Who else has the host's address beside `own`, or `own` itself.
fn collision<'a>(held: &'a [Held], device: &str, own: &Prefix) -> Option<&'a Held> {
    let host = other_host(own);
    let is_taken = |ip: IpAddr| ip == own.addr() || Some(ip) == host;
    held.iter().find(|(interface, ip)| interface != device && is_taken(*ip))
}

fn held_by_host() -> Result<Vec<Held>> {
    let all = nix::ifaddrs::getifaddrs().context("the addresses of this host")?;
    let held = all.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some((entry.interface_name, v4.or_else(v6)?))
    });
    Ok(held.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(list: &[(&str, &str)]) -> Vec<Held> {
        list.iter().map(|(name, ip)| ((*name).to_owned(), ip.parse().unwrap())).collect()
    }

    #[test]
    fn the_first_network_that_the_host_is_not_in() {
        let first = |list: &[(&str, &str)]| {
            let [v4, v6] = choose(&held(list), "tp1").unwrap();
            format!("{} {}", v4.addr(), v6.addr())
        };
        assert_eq!(first(&[("lo", "127.0.0.1"), ("lo", "::1")]), "10.77.0.2 fd00:77::2");
        assert_eq!(first(&[("tp0", "10.77.0.1")]), "10.77.1.2 fd00:77:1::2");
        assert_eq!(first(&[("a", "10.77.0.9"), ("b", "fd00:77:1::1")]), "10.77.2.2 fd00:77:2::2");
        // Prepared by an administrator.
        assert_eq!(first(&[("tp1", "10.77.0.1")]), "10.77.0.2 fd00:77::2");
        assert_eq!(first(&[("tp0", "10.77.0.1"), ("tp1", "10.77.9.1")]), "10.77.9.2 fd00:77:9::2");
        let all: Vec<_> = (0..=255).map(|n| ("tp0".to_owned(), [10, 77, n, 1].into())).collect();
        assert!(choose(&all, "tp1").is_none());
    }

    #[test]
    fn what_was_asked_for_may_be_taken() {
        let held = held(&[("eth0", "192.168.5.1"), ("tp1", "192.168.6.1")]);
        let taken = |own: &str| collision(&held, "tp1", &own.parse().unwrap()).is_some();
        assert!(taken("192.168.5.2/24"));
        assert!(taken("192.168.5.1/24"));
        assert!(!taken("192.168.5.130/25"));
        assert!(!taken("192.168.6.2/24"));
    }
}
