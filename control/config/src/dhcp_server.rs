//! DHCP server of a port: the words of `--dhcp-server`, and the keys of `[[dhcp-server]]`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use towpath_uplink::{POOL_MAX, Reservation, ServerConfig};
use towpath_wire::{MacAddr, Prefix};

use crate::port::{PortSettings, check_port_name};

/// Default duration of leases in seconds: a day, as is usual in home networks.
pub(crate) const LEASE_S: u32 = 86_400;
/// Valid durations of leases in seconds. The maximum is a year.
const LEASE_RANGE: std::ops::RangeInclusive<u32> = 60..=31_536_000;
/// Maximum number of nameservers. Each takes four bytes of a DHCP message.
const NAMESERVERS_MAX: usize = 8;

/// Pool of a server whose pool was not set yet.
const NO_POOL: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);

const FORM: &str = "expected PORT,pool=FIRST-LAST, for example lan,pool=10.1.0.100-10.1.0.199";

/// DHCP server of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpServerSettings {
    /// Name of the port on which the server answers.
    pub port: String,
    /// First and last address of the pool.
    pub pool: (Ipv4Addr, Ipv4Addr),
    /// Duration of leases in seconds.
    pub lease_s: u32,
    /// Nameservers that the server announces. If empty, those that the router itself has learned by
    /// DHCP.
    pub nameservers: Vec<Ipv4Addr>,
    /// Domain of the hosts.
    pub domain: Option<String>,
    /// Addresses that only one host obtains.
    pub reservations: Vec<Reservation>,
    /// File in which the leases are kept for the next start.
    pub leases: Option<PathBuf>,
}

impl DhcpServerSettings {
    /// Creates a server without a pool for the port `name`.
    ///
    /// # Errors
    /// Returns a sentence for the user if this is not a name of a port.
    pub fn new(name: &str) -> Result<Self, String> {
        check_port_name(name)?;
        Ok(Self {
            port: name.to_owned(),
            pool: NO_POOL,
            lease_s: LEASE_S,
            nameservers: Vec::new(),
            domain: None,
            reservations: Vec::new(),
            leases: None,
        })
    }

    /// Parses `PORT,pool=FIRST-LAST[,OPTION...]`.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let mut server = Self::new(words.next().unwrap_or_default())?;
        let mut seen = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?}: {FORM}"))?;
            if key != "reserve" && seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            server.set(key, value)?;
        }
        server.has_pool()
    }

    /// Returns the server, if it has a pool.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn has_pool(self) -> Result<Self, String> {
        match self.pool == NO_POOL {
            true => Err(format!("the pool is missing: {FORM}")),
            false => Ok(self),
        }
    }

    /// Sets an option. Several reservations are possible.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "pool" => self.pool = parse_pool(value)?,
            "lease" => {
                let seconds = value.parse().ok().filter(|it| LEASE_RANGE.contains(it));
                self.lease_s = seconds.ok_or_else(|| {
                    let (least, most) = (LEASE_RANGE.start(), LEASE_RANGE.end());
                    format!("lease={value}: expected {least} to {most} seconds")
                })?;
            }
            "dns" => {
                self.nameservers = value.split('+').map(parse_ip).collect::<Result<_, _>>()?;
                if self.nameservers.len() > NAMESERVERS_MAX {
                    return Err(format!("dns: at most {NAMESERVERS_MAX} nameservers are possible"));
                }
            }
            "domain" => self.domain = Some(towpath_uplink::parse_hostname(value)?),
            "reserve" => self.reserve(parse_reservation(value)?)?,
            "leases" if !value.is_empty() => self.leases = Some(value.into()),
            _ => {
                return Err(format!(
                    "{key:?} is no option of --dhcp-server: pool, lease, dns, domain, reserve or \
                     leases"
                ));
            }
        }
        Ok(())
    }

    /// Adds a reservation. Returns an error if the host or the address already has one.
    fn reserve(&mut self, new: Reservation) -> Result<(), String> {
        let Reservation { mac, address } = new;
        if self.reservations.iter().any(|it| it.mac == mac || it.address == address) {
            return Err(format!("reserve={mac}@{address}: the host or address has a reservation"));
        }
        self.reservations.push(new);
        Ok(())
    }

    /// Returns the configuration of a DHCP server on its port. `has_client` tells whether the
    /// router obtains nameservers by DHCP itself.
    ///
    /// # Errors
    /// Returns an error message if the port has no network that contains the pool of addresses.
    pub(crate) fn config(
        &self,
        port: &PortSettings,
        mac: [u8; 6],
        has_client: bool,
    ) -> Result<ServerConfig, String> {
        let name = &self.port;
        let is_v4 = |address: &&Prefix| address.addr().is_ipv4();
        let Some(address) = port.addresses.iter().find(is_v4) else {
            return Err(format!("--dhcp-server {name}: the port needs an IPv4 address"));
        };
        let all = [self.pool.0, self.pool.1].into_iter();
        let all = all.chain(self.reservations.iter().map(|it| it.address));
        let is_host = |ip: &Ipv4Addr| {
            address.contains(IpAddr::V4(*ip))
                && IpAddr::V4(*ip) != address.network()
                && Some(*ip) != address.broadcast()
        };
        if let Some(outside) = all.into_iter().find(|ip| !is_host(ip)) {
            return Err(format!(
                "--dhcp-server {name}: {outside} is not an address of a host in {}",
                address.trunc()
            ));
        }
        let is_own = |ip: Ipv4Addr| port.addresses.iter().any(|it| it.addr() == IpAddr::V4(ip));
        if let Some(own) = self.reservations.iter().find(|it| is_own(it.address)) {
            let address = own.address;
            return Err(format!("--dhcp-server {name}: {address} is an address of the router"));
        }
        Ok(ServerConfig {
            mac: MacAddr(mac),
            address: *address,
            pool: self.pool,
            reservations: self.reservations.clone(),
            lease_s: self.lease_s,
            nameservers: self.nameservers.clone(),
            awaits_nameservers: has_client && self.nameservers.is_empty(),
            domain: self.domain.clone(),
        })
    }
}

fn parse_ip(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an IPv4 address"))
}

fn parse_pool(text: &str) -> Result<(Ipv4Addr, Ipv4Addr), String> {
    let (first, last) = text.split_once('-').ok_or_else(|| format!("pool={text}: {FORM}"))?;
    let (first, last) = (parse_ip(first)?, parse_ip(last)?);
    let size = u64::from(last.to_bits()) + 1;
    match size.checked_sub(first.to_bits().into()) {
        Some(1..) if size - u64::from(first.to_bits()) <= POOL_MAX as u64 => Ok((first, last)),
        Some(1..) => Err(format!("pool={text}: at most {POOL_MAX} addresses are possible")),
        _ => Err(format!("pool={text}: the last address is before the first")),
    }
}

fn parse_reservation(text: &str) -> Result<Reservation, String> {
    let form = "expected reserve=MAC@ADDRESS, for example reserve=02:00:00:00:00:07@10.1.0.7";
    let (mac, address) = text.split_once('@').ok_or_else(|| format!("{text:?}: {form}"))?;
    let mac = mac.parse().map_err(|_| format!("{mac:?} is not an Ethernet address: {form}"))?;
    Ok(Reservation { mac, address: parse_ip(address)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::parse_port;

    #[test]
    fn words_of_a_server() {
        let words = "lan,pool=10.1.0.100-10.1.0.199,lease=600,dns=9.9.9.9+1.1.1.1,\
                     domain=home.arpa,reserve=02:00:00:00:00:07@10.1.0.7,leases=/var/lib/lan";
        let arg = DhcpServerSettings::parse(words).expect("valid");
        assert_eq!((arg.lease_s, arg.nameservers.len(), arg.reservations.len()), (600, 2, 1));
        let port = parse_port("lan=packet:eth1,fd00::1/64,10.1.0.1/24").expect("valid");
        let config = arg.config(&port, [2; 6], false).expect("valid");
        assert_eq!(config.address.to_string(), "10.1.0.1/24");
        let wrong = [
            ("lan", "the pool is missing"),
            ("l an,pool=1.1.1.1-1.1.1.2", "is not a name of a port"),
            ("lan,pool", "expected PORT,pool=FIRST-LAST"),
            ("lan,pool=10.1.0.1", "expected PORT,pool=FIRST-LAST"),
            ("lan,pool=10.1.0.2-10.1.0.1", "the last address is before the first"),
            ("lan,pool=10.1.0.0-10.1.16.0", "at most 4096 addresses"),
            ("lan,pool=10.1.0.1-x", "\"x\" is not an IPv4 address"),
            ("lan,pool=10.1.0.1-10.1.0.2,lease=5", "expected 60 to 31536000 seconds"),
            ("lan,pool=10.1.0.1-10.1.0.2,dns=x", "\"x\" is not an IPv4 address"),
            ("lan,pool=10.1.0.1-10.1.0.2,domain=-", "is not a name"),
            ("lan,pool=10.1.0.1-10.1.0.2,reserve=10.1.0.7", "expected reserve=MAC@ADDRESS"),
            (
                "lan,pool=10.1.0.1-10.1.0.2,reserve=02:00:00:00:00:07@10.1.0.7,\
                 reserve=02:00:00:00:00:08@10.1.0.7",
                "the host or address has a reservation",
            ),
            ("lan,pool=10.1.0.1-10.1.0.2,mtu=1", "\"mtu\" is no option of --dhcp-server"),
            ("lan,lease=60,lease=60", "lease is given twice"),
        ];
        for (text, wanted) in wrong {
            let error = DhcpServerSettings::parse(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let words = "lan,pool=10.1.0.2-10.1.0.9,reserve=02:00:00:00:00:07@10.1.0.1";
        let arg = DhcpServerSettings::parse(words).expect("valid");
        let error = arg.config(&port, [2; 6], false).expect_err("the router's own");
        assert!(error.contains("10.1.0.1 is an address of the router"), "{error}");
        for pool in ["10.2.0.100-10.2.0.101", "10.1.0.0-10.1.0.9", "10.1.0.250-10.1.0.255"] {
            let arg = DhcpServerSettings::parse(&format!("lan,pool={pool}")).expect("valid");
            let error = arg.config(&port, [2; 6], false).expect_err(pool);
            assert!(error.contains("is not an address of a host in 10.1.0.0/24"), "{error}");
        }
    }
}
