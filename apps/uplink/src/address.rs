//! Parses addresses in the user's notation, and chooses further addresses in their networks.

use std::net::IpAddr;

use towpath_wire::Prefix;

/// Parses the address of a host with the prefix length of its network, such as `10.0.0.2/24`.
///
/// # Errors
/// Returns an error message if the syntax is invalid, or no host can have the address.
pub fn parse_cidr(text: &str) -> Result<Prefix, String> {
    let Some((ip, len)) = text.split_once('/') else {
        return Err("expected ADDRESS/LENGTH, for example 10.0.0.2/24".into());
    };
    let ip: IpAddr = ip.parse().map_err(|_| format!("{ip:?} is not an IP address"))?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let no_length = || format!("{len:?} is not a prefix length: expected 1 to {bits}");
    let len = len.parse().ok().filter(|len| (1..=bits).contains(len)).ok_or_else(no_length)?;
    if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
        return Err(format!("{ip} is not an address that an interface can have"));
    }
    let prefix = Prefix::new(ip, len).ok_or_else(no_length)?;
    if ip.is_ipv4() && len < 31 && (ip == prefix.network() || ip == prefix.last()) {
        return Err(format!(
            "{ip} is the network or broadcast address of {}, not one of its hosts",
            prefix.trunc()
        ));
    }
    Ok(prefix)
}

/// Returns the first host address in the network of `own` other than `own` itself; `None` if there
/// is none.
pub fn other_host(own: &Prefix) -> Option<IpAddr> {
    hosts(own).take(2).find(|ip| *ip != own.addr())
}

/// Iterates over the host addresses in the network of `own`, in ascending order.
fn hosts(own: &Prefix) -> impl Iterator<Item = IpAddr> + '_ {
    let next = |ip: IpAddr, n: u8| match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(n.into()).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_add(n.into()).map(|bits| IpAddr::V6(bits.into())),
    };
    let bits = if own.addr().is_ipv4() { 32 } else { 128 };
    // In a network of two addresses, both belong to hosts (RFC 3021, RFC 6164). In larger networks,
    // the first one is the network's own address.
    let first = u8::from(own.len() != bits - 1);
    let is_host = move |ip: &IpAddr| {
        let broadcast = ip.is_ipv4() && own.len() < 31 && *ip == own.last();
        own.contains(*ip) && !broadcast
    };
    (first..=u8::MAX).map_while(move |n| next(own.network(), n)).take_while(is_host)
}

/// Chooses the address of the DNS forwarder in the network of `own`. Returns the default if it is
/// free in this network, otherwise the first free address.
pub(crate) fn forwarder(own: &Prefix, gateway: IpAddr, default: Option<IpAddr>) -> Option<IpAddr> {
    let free = |ip: &IpAddr| own.contains(*ip) && *ip != own.addr() && *ip != gateway;
    default.filter(free).or_else(|| hosts(own).take(3).find(free))
}

/// Formats addresses as a list in a sentence, such as "10.0.0.2 and fd00::2".
pub(crate) fn list(ips: impl Iterator<Item = IpAddr>) -> String {
    ips.map(|ip| ip.to_string()).collect::<Vec<_>>().join(" and ")
}

/// Returns the Ethernet address of a stack that shares a device with the kernel. The address is the
/// same at each start, so that neighbors that have cached it reach the next run at once. The
/// address also depends on the IP addresses, so that two stacks on one device have different ones.
///
/// The first byte, 02, means locally administered and unicast. The remaining bytes are an FNV-1a
/// hash.
pub fn station_mac(device: &[u8], addresses: &[Prefix]) -> [u8; 6] {
    let words = addresses.iter().map(|prefix| prefix.addr().to_string());
    let words = words.flat_map(|text| [text, " ".into()]).collect::<String>();
    let hash = device.iter().chain(words.as_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_host_of_a_network() {
        let cases = [
            ("10.77.0.2/24", Some("10.77.0.1")),
            ("10.77.0.1/24", Some("10.77.0.2")),
            ("10.77.0.200/25", Some("10.77.0.129")),
            ("10.0.0.0/31", Some("10.0.0.1")),
            ("10.0.0.1/31", Some("10.0.0.0")),
            ("10.0.0.1/30", Some("10.0.0.2")),
            ("10.0.0.1/32", None),
            ("fd00:77::2/64", Some("fd00:77::1")),
            ("fd00:77::1/64", Some("fd00:77::2")),
            ("fd00::1/127", Some("fd00::")),
            ("fd00::1/128", None),
        ];
        for (own, wanted) in cases {
            let wanted = wanted.map(|ip| ip.parse::<IpAddr>().unwrap());
            assert_eq!(other_host(&own.parse().unwrap()), wanted, "{own}");
        }
    }

    #[test]
    fn the_forwarder_is_beside_the_gateway() {
        let at = |own: &str, gateway: &str| {
            let default = Some(IpAddr::from([10, 0, 2, 3]));
            let ip = forwarder(&own.parse().unwrap(), gateway.parse().unwrap(), default)?;
            Some(ip.to_string())
        };
        assert_eq!(at("10.0.2.15/24", "10.0.2.2").as_deref(), Some("10.0.2.3"));
        assert_eq!(at("10.0.2.3/24", "10.0.2.2").as_deref(), Some("10.0.2.1"));
        assert_eq!(at("192.168.7.1/24", "192.168.7.2").as_deref(), Some("192.168.7.3"));
        assert_eq!(at("192.168.7.1/30", "192.168.7.2"), None);
    }

    #[test]
    fn cidr() {
        for good in ["10.0.2.15/24", "10.0.0.0/31", "10.0.0.1/32", "fd00::15/64", "2001:db8::/128"]
        {
            assert!(parse_cidr(good).is_ok(), "{good}");
        }
        let bad = [
            ("10.0.2.15", "ADDRESS/LENGTH"),
            ("10.0.2/24", "\"10.0.2\" is not an IP address"),
            ("10.0.2.15/33", "\"33\" is not a prefix length: expected 1 to 32"),
            ("fd00::1/129", "expected 1 to 128"),
            ("10.0.2.15/", "\"\" is not a prefix length"),
            ("10.0.2.0/24", "network or broadcast"),
            ("10.0.2.255/24", "broadcast address of 10.0.2.0/24"),
            ("127.0.0.1/8", "not an address that an interface"),
            ("ff02::1/64", "not an address that an interface"),
            ("0.0.0.0/8", "not an address that an interface"),
        ];
        for (text, wanted) in bad {
            let error = parse_cidr(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
