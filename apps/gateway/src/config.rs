//! Configuration of a gateway.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use towpath_shm::{Fd, opened};
use towpath_tcp::KeepAliveConfig;

use crate::client::Client;
use crate::egress::Egress;
use crate::nameservers::{self, Nameserver};

/// Addresses, DNS, host-socket options and limits of a gateway.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GatewayConfig {
    /// IPv4 address of the program's stack; `None` if the program has no IPv4.
    pub program_v4: Option<Ipv4Addr>,
    /// IPv6 address of the program's stack; `None` if the program has no IPv6.
    pub program_v6: Option<Ipv6Addr>,
    /// IPv4 address of the gateway; `None` without IPv4. If `host_loopback` is set, connections to
    /// this address lead to the host's 127.0.0.1.
    pub gateway_v4: Option<Ipv4Addr>,
    /// IPv6 address of the gateway; `None` without IPv6. If `host_loopback` is set, connections to
    /// this address lead to the host's ::1.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Whether connections to the gateway's addresses lead to 127.0.0.1 and ::1 of the host, so
    /// that the program can use services there. Otherwise, they are refused.
    pub host_loopback: bool,
    /// IPv4 address at which the DNS forwarder answers on port 53; `None` if it has no such
    /// address.
    pub dns_v4: Option<Ipv4Addr>,
    /// IPv6 address at which the DNS forwarder answers on port 53; `None` if it has no such
    /// address.
    pub dns_v6: Option<Ipv6Addr>,
    /// Nameservers that the DNS forwarder queries. Nameservers on the host's loopback are queried
    /// even without `host_loopback`.
    pub nameserver: Nameserver,
    /// Whether the DNS forwarder answers queries to port 53 of every address.
    pub dns_everywhere: bool,
    /// SO_MARK and SO_BINDTODEVICE of the gateway's sockets on the host.
    pub egress: Egress,
    /// MTU of the link to the program in bytes.
    pub mtu: u32,
    /// Number of descriptors that flows may use; `None` means the process's limit (RLIMIT_NOFILE).
    pub descriptors: Option<u32>,
    /// Random secret for the gateway's own TCP/IP stack and for DNS queries. Initial sequence
    /// numbers and hash keys are derived from it.
    pub seed: [u8; 32],
}

impl Default for GatewayConfig {
    /// Returns a configuration that uses 10.0.2.15 and fd00:2::15 for the program, 10.0.2.2 and
    /// fd00:2::2 for the gateway, and 10.0.2.3 and fd00:2::3 for DNS. The host's loopback is
    /// reachable. The seed must be replaced by a random one.
    fn default() -> Self {
        Self {
            program_v4: Some(Ipv4Addr::new(10, 0, 2, 15)),
            program_v6: Some(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 0x15)),
            gateway_v4: Some(Ipv4Addr::new(10, 0, 2, 2)),
            gateway_v6: Some(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 2)),
            host_loopback: true,
            dns_v4: Some(Ipv4Addr::new(10, 0, 2, 3)),
            dns_v6: Some(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 3)),
            nameserver: Nameserver::OfHost,
            dns_everywhere: false,
            egress: Egress::default(),
            mtu: 65_520,
            descriptors: None,
            seed: [0; 32],
        }
    }
}

impl GatewayConfig {
    /// Returns the gateway's addresses, IPv4 first.
    pub fn gateways(&self) -> Vec<IpAddr> {
        let v6 = self.gateway_v6.map(IpAddr::V6);
        self.gateway_v4.map(IpAddr::V4).into_iter().chain(v6).collect()
    }

    /// Converts a destination of the program to an address on the host. Returns `None` if
    /// connections to it are refused.
    pub(crate) fn host_addr(&self, dst: IpAddr) -> Option<IpAddr> {
        let (own, loopback): (bool, IpAddr) = match dst {
            IpAddr::V4(dst) => (self.gateway_v4 == Some(dst), Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(dst) => (self.gateway_v6 == Some(dst), Ipv6Addr::LOCALHOST.into()),
        };
        if self.is_dns(dst) {
            return None;
        }
        match own {
            false => Some(dst),
            true if self.host_loopback => Some(loopback),
            true => None,
        }
    }

    /// Returns the client that has an address on the link. The program's IPv4 and IPv6 address
    /// belong to one client.
    pub(crate) fn client(&self, ip: IpAddr) -> Client {
        let own = [self.program_v4.map(IpAddr::V4), self.program_v6.map(IpAddr::V6)];
        if own.contains(&Some(ip)) { Client::PROGRAM } else { Client::at(ip) }
    }

    /// Returns the keepalive times for connections between the gateway and its clients: those of
    /// the host's kernel. Returns `None` if the only client is a program on this host, because it
    /// cannot vanish silently.
    pub(crate) fn keepalive(&self) -> Option<KeepAliveConfig> {
        let has_program = self.program_v4.is_some() || self.program_v6.is_some();
        (!has_program).then(keepalive_of_host)
    }

    /// Returns whether the gateway has a DNS forwarder.
    pub(crate) fn has_forwarder(&self) -> bool {
        self.dns_everywhere || self.dns_v4.is_some() || self.dns_v6.is_some()
    }

    /// Returns whether `dst` is an address and port of the DNS forwarder.
    pub(crate) fn is_forwarder(&self, dst: SocketAddr) -> bool {
        dst.port() == nameservers::PORT && (self.dns_everywhere || self.is_dns(dst.ip()))
    }

    /// Returns whether this address is reserved for the DNS forwarder.
    fn is_dns(&self, dst: IpAddr) -> bool {
        match dst {
            IpAddr::V4(dst) => self.dns_v4 == Some(dst),
            IpAddr::V6(dst) => self.dns_v6 == Some(dst),
        }
    }

    /// Returns the source address of an ICMP error for the program. Returns `None` if the address
    /// of the host that reported the error belongs to another host in the program's network.
    pub(crate) fn reporter_seen(&self, reporter: IpAddr) -> Option<IpAddr> {
        // Do not use addresses that belong to the program itself, or to another host, in the
        // program's network.
        let (hidden, gateway) = match reporter {
            IpAddr::V4(ip) => {
                let own = ip.is_loopback() || ip.is_unspecified() || self.program_v4 == Some(ip);
                (own, self.gateway_v4.map(IpAddr::V4))
            }
            IpAddr::V6(ip) => {
                let own = ip.is_loopback() || ip.is_unspecified() || self.program_v6 == Some(ip);
                (own, self.gateway_v6.map(IpAddr::V6))
            }
        };
        if hidden { gateway } else { Some(reporter) }
    }

    /// Returns the address pairs with which a connection from `client` to a forwarded port may
    /// appear to the program, the preferred pair first. The program listens on `port`. Client port
    /// 0 means any port.
    ///
    /// The program sees the client's own address if the program has an address of this family.
    /// Clients on the host itself appear as the gateway, whichever family they use. IPv4 is
    /// preferred, because single-family programs usually listen on IPv4.
    pub(crate) fn presented(&self, client: SocketAddr, port: u16) -> [Option<Presented>; 2] {
        let seen = Some(client).filter(|client| self.can_be_seen(client.ip()));
        let v4 = self.program_v4.zip(self.gateway_v4).map(|(program, gateway)| Presented {
            client: seen.filter(SocketAddr::is_ipv4).unwrap_or(SocketAddr::new(gateway.into(), 0)),
            program: SocketAddr::new(program.into(), port),
        });
        let v6 = self.program_v6.zip(self.gateway_v6).map(|(program, gateway)| Presented {
            client: seen.filter(SocketAddr::is_ipv6).unwrap_or(SocketAddr::new(gateway.into(), 0)),
            program: SocketAddr::new(program.into(), port),
        });
        match (seen, v4, v6) {
            (Some(SocketAddr::V6(_)), v4, Some(v6)) => [Some(v6), v4],
            (_, Some(v4), v6) => [Some(v4), v6],
            (_, None, v6) => [v6, None],
        }
    }

    /// Returns whether the program may see a client's own address. Loopback, link-local and the
    /// program's own addresses would refer to other hosts for the program. The DNS forwarder's
    /// address is excluded, because replies to it would be handled as DNS queries.
    fn can_be_seen(&self, client: IpAddr) -> bool {
        match client {
            IpAddr::V4(ip) => {
                let taken = [self.program_v4, self.gateway_v4, self.dns_v4];
                !ip.is_loopback() && !taken.contains(&Some(ip))
            }
            IpAddr::V6(ip) => {
                let taken = [self.program_v6, self.gateway_v6, self.dns_v6];
                let local = ip.is_loopback() || ip.is_unicast_link_local();
                !local && !taken.contains(&Some(ip))
            }
        }
    }
}

/// Returns the host's keepalive times (tcp(7)), or the defaults of RFC 9293 if they cannot be read.
fn keepalive_of_host() -> KeepAliveConfig {
    let default = KeepAliveConfig::default();
    let seconds = |name| sysctl(name).map(Duration::from_secs);
    KeepAliveConfig {
        idle: seconds("tcp_keepalive_time").unwrap_or(default.idle),
        interval: seconds("tcp_keepalive_intvl").unwrap_or(default.interval),
        probes: sysctl("tcp_keepalive_probes").map_or(default.probes, |n| n.min(255) as u8),
    }
}

/// Reads a positive number from the sysctl net.ipv4.`name` in this thread's network namespace.
fn sysctl(name: &str) -> Option<u64> {
    let (path, flags) = (format!("/proc/sys/net/ipv4/{name}"), OFlags::RDONLY | OFlags::CLOEXEC);
    // Avoid std::fs, because our engine may intercept the libc functions that it calls.
    let file = Fd::from(opened(|| rustix::fs::open(&path, flags, Mode::empty())).ok()?);
    let mut text = [0; 32];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(&text[..len]).ok()?;
    text.trim().parse().ok().filter(|number| *number > 0)
}

/// Addresses that a connection from a client of a forwarded port has for the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Presented {
    /// Address of the client as seen by the program.
    pub(crate) client: SocketAddr,
    /// Address on which the program listens.
    pub(crate) program: SocketAddr,
}

/// Forwards a port of the host to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// Address on which the gateway listens on the host. An unspecified address means all addresses
    /// of its family; port 0 lets the kernel choose.
    pub host: SocketAddr,
    /// Port on which the program listens, at its own address.
    pub port: u16,
    /// Transport protocol of the forwarded port.
    pub protocol: ForwardProtocol,
}

/// Protocol of a [`Forward`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForwardProtocol {
    /// TCP: after a client has connected to the host's port, the gateway connects to the program.
    Tcp,
    /// UDP: each client is a separate flow, which ends by idle timeout.
    Udp,
}

/// Error of binding or listening on a forwarded port.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {} of the host", which.host)]
pub struct ForwardError {
    /// First forwarded port on which the gateway could not listen.
    pub which: Forward,
    /// Error of the host's kernel, such as EADDRINUSE, or EACCES for a port below
    /// `net.ipv4.ip_unprivileged_port_start`.
    pub source: std::io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_seen_as_themselves_unless_local() {
        let config = GatewayConfig::default();
        let seen = |client: &str| config.presented(client.parse().unwrap(), 80);
        let addr = |s: &str| s.parse::<SocketAddr>().unwrap();
        let [first, second] = seen("192.0.2.1:5000").map(Option::unwrap);
        assert_eq!((first.client, first.program), (addr("192.0.2.1:5000"), addr("10.0.2.15:80")));
        assert_eq!(
            (second.client, second.program),
            (addr("[fd00:2::2]:0"), addr("[fd00:2::15]:80"))
        );
        let [first, second] = seen("[2001:db8::1]:5000").map(Option::unwrap);
        assert_eq!(first.client, addr("[2001:db8::1]:5000"));
        assert_eq!(second.client, addr("10.0.2.2:0"));
        let [first, _] = seen("[::1]:5000").map(Option::unwrap);
        assert_eq!((first.client, first.program), (addr("10.0.2.2:0"), addr("10.0.2.15:80")));
        // The program's network assigns these addresses to the program, the gateway and the DNS
        // forwarder. Clients in the host's networks may have the same addresses.
        let ours =
            ["10.0.2.15:53", "10.0.2.2:53", "10.0.2.3:53", "[fd00:2::2]:53", "[fd00:2::3]:53"];
        for other in ["[fe80::1%3]:5000"].into_iter().chain(ours) {
            assert_eq!(seen(other)[0].unwrap().client, addr("10.0.2.2:0"), "{other}");
        }
    }

    #[test]
    fn reporters_are_seen_as_themselves_unless_local() {
        let config = GatewayConfig::default();
        let seen = |ip: &str| config.reporter_seen(ip.parse().unwrap()).unwrap().to_string();
        for router in ["192.0.2.1", "10.0.2.3", "2001:db8::1", "fe80::1"] {
            assert_eq!(seen(router), router);
        }
        for local in ["127.0.0.1", "10.0.2.15", "0.0.0.0"] {
            assert_eq!(seen(local), "10.0.2.2");
        }
        assert_eq!((seen("::1"), seen("fd00:2::15")), ("fd00:2::2".into(), "fd00:2::2".into()));
    }

    #[test]
    fn own_address_is_the_hosts_loopback_or_nothing() {
        let mut config = GatewayConfig::default();
        let own: IpAddr = "10.0.2.2".parse().unwrap();
        assert_eq!(config.host_addr(own), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        config.host_loopback = false;
        assert_eq!(config.host_addr(own), None);
        let other: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(config.host_addr(other), Some(other));
    }
}
