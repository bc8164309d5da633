//! What options take: ports, addresses, sizes, times. What is wrong with a value is said in the words of the user,
//! with what was expected.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use towpath_pcap::SNAPLEN_DEFAULT;
use towpath_stack::limits::SHARDS_MAX;
use towpath_wire::Prefix;

/// `--dns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns {
    /// This nameserver.
    At(IpAddr),
    /// The program is left with what it finds.
    None,
}

/// One `-p`: a port, or as many as stand in a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports(pub Vec<Publish>);

/// One port of `-p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish {
    /// Of the port on both sides.
    pub protocol: Protocol,
    /// Where the host listens; port 0: at a free port, which the host chooses.
    pub host: SocketAddr,
    /// The program's port.
    pub port: u16,
}

/// What a port is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 9293; `/tcp`, or nothing.
    Tcp,
    /// RFC 768; `/udp`.
    Udp,
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, host, port } = self;
        if !self.at_free_port() {
            return write!(f, "{host}:{port}{}", protocol.suffix());
        }
        match host.ip() {
            IpAddr::V4(ip) => write!(f, "{ip}::{port}{}", protocol.suffix()),
            IpAddr::V6(ip) => write!(f, "[{ip}]::{port}{}", protocol.suffix()),
        }
    }
}

impl Protocol {
    /// What follows a port: nothing for TCP.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Tcp => "",
            Self::Udp => "/udp",
        }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ports, protocol) = match text.rsplit_once('/') {
            None => (text, Protocol::Tcp),
            Some((ports, "tcp")) => (ports, Protocol::Tcp),
            Some((ports, "udp")) => (ports, Protocol::Udp),
            Some((_, other)) => return Err(format!("{other:?} is not a protocol: /tcp or /udp")),
        };
        let Some((front, port)) = ports.rsplit_once(':') else {
            let form = "the form is [[HOSTADDR:]HOSTPORT:]PORT, for example 8080:80";
            let ports = parse_range(ports).map_err(|error| format!("{error}; {form}"))?;
            return Ok(Self::at_free_ports(IpAddr::V4(Ipv4Addr::LOCALHOST), ports, protocol));
        };
        if is_address(front) {
            return Err(format!(
                "{front} is an address, not a port of this host: {front}::{port} takes a free one there"
            ));
        }
        let (host, host_port) = match front.rsplit_once(':') {
            None => (IpAddr::V4(Ipv4Addr::LOCALHOST), front),
            Some((host, "")) => {
                return Ok(Self::at_free_ports(parse_host(host)?, parse_range(port)?, protocol));
            }
            Some((host, host_port)) => (parse_host(host)?, host_port),
        };
        let (outside, inside) = (parse_range(host_port)?, parse_range(port)?);
        if outside.len() != inside.len() {
            let (outside, inside) = (outside.len(), inside.len());
            return Err(format!(
                "{host_port} is {outside} ports and {port} is {inside}: give ranges of the same length"
            ));
        }
        let publish =
            |(outside, port)| Publish { protocol, host: SocketAddr::new(host, outside), port };
        Ok(Self(outside.zip(inside).map(publish).collect()))
    }
}

impl Ports {
    fn at_free_ports(host: IpAddr, ports: RangeInclusive<u16>, protocol: Protocol) -> Self {
        let host = SocketAddr::new(host, 0);
        Self(ports.map(|port| Publish { protocol, host, port }).collect())
    }
}

impl Publish {
    /// Whether the host chooses its port.
    pub fn at_free_port(&self) -> bool {
        self.host.port() == 0
    }

    /// Whether both are the same port of this host.
    pub fn collides(&self, other: &Self) -> bool {
        if self.at_free_port() || other.at_free_port() {
            return false;
        }
        let (a, b) = (self.host.ip(), other.host.ip());
        let overlaps =
            a == b || a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified());
        overlaps && (self.protocol, self.host.port()) == (other.protocol, other.host.port())
    }
}

/// Whether it is an address as `-p` takes them.
fn is_address(text: &str) -> bool {
    text.contains(['.', '[']) && parse_host(text).is_ok()
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(ip) => {
            ip.parse().map(IpAddr::V6).map_err(|_| format!("{ip:?} is not an IPv6 address"))
        }
        None if text.contains(':') => Err(format!("an IPv6 address stands in brackets: [{text}]")),
        None => text.parse().map(IpAddr::V4).map_err(|_| {
            format!("{text:?} is not an IPv4 address (a name is not looked up: give an address)")
        }),
    }
}

fn parse_port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a valid port: expected 1 to 65535")),
        Ok(port) => Ok(port),
    }
}

/// The least MTU of IPv6 (RFC 8200, section 5), and the longest packet of IPv4 (RFC 791).
const MTUS: RangeInclusive<u32> = 1280..=65535;
/// 64 bytes hold the headers of Ethernet, IPv4 and TCP without options.
const SNAPLENS: RangeInclusive<u32> = 64..=SNAPLEN_DEFAULT;

/// `--mtu`: bytes.
pub fn parse_mtu(text: &str) -> Result<u32, String> {
    parse_bytes(text, MTUS, 1500)
}

/// `--pcap-snaplen`: bytes.
pub fn parse_snaplen(text: &str) -> Result<u32, String> {
    parse_bytes(text, SNAPLENS, 128)
}

fn parse_bytes(text: &str, range: RangeInclusive<u32>, example: u32) -> Result<u32, String> {
    text.parse().ok().filter(|bytes| range.contains(bytes)).ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        format!("expected a number of bytes from {least} to {most}, for example {example}")
    })
}

/// `--shards`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shards {
    /// So many.
    Count(usize),
    /// As many as this machine may have use for, and threads as they are needed.
    Auto,
}

impl Shards {
    /// How many.
    pub fn count(self) -> usize {
        match self {
            Self::Count(count) => count,
            // Of those that this process may use; 1 where that is not told.
            Self::Auto => Self::for_processors(
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            ),
        }
    }

    /// A program does more for its packets than the stack does, and needs the other processors.
    fn for_processors(processors: usize) -> usize {
        match processors / 4 {
            0 => 1,
            quarter => (1 << quarter.ilog2()).min(SHARDS_MAX),
        }
    }
}

pub(super) fn parse_shards(text: &str) -> Result<Shards, String> {
    if text == "auto" {
        return Ok(Shards::Auto);
    }
    let count = text.parse().ok();
    let count = count.filter(|count: &usize| count.is_power_of_two() && *count <= SHARDS_MAX);
    count.map(Shards::Count).ok_or_else(|| format!("expected 1, 2, 4, 8, {SHARDS_MAX} or auto"))
}

/// A day is longer than anybody waits, and its milliseconds fit 32 bits.
const STOP_TIMEOUT_MAX: u64 = 86_400;

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds <= STOP_TIMEOUT_MAX);
    let wrong = || format!("{text:?} is not a number of seconds from 0 to {STOP_TIMEOUT_MAX}");
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

pub fn parse_size(text: &str) -> Result<u64, String> {
    let unit = |unit: char| match unit.to_ascii_uppercase() {
        'K' => Some(1 << 10),
        'M' => Some(1 << 20),
        'G' => Some(1u64 << 30),
        _ => None,
    };
    let (number, unit) = match text.chars().next_back().and_then(unit) {
        Some(unit) => (&text[..text.len() - 1], unit),
        None => (text, 1),
    };
    let size = number.parse().ok().and_then(|number: u64| number.checked_mul(unit));
    size.ok_or_else(|| {
        format!("{text:?} is not a size: expected a number of bytes, or one as 500K, 100M, 2G")
    })
}

/// `8000` or `8000-8010`.
fn parse_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let Some((first, last)) = text.split_once('-') else {
        return parse_port(text).map(|port| port..=port);
    };
    let (first, last) = (parse_port(first)?, parse_port(last)?);
    if first > last {
        return Err(format!("{text:?} is not a range: the first port must be the lower one"));
    }
    if usize::from(last - first) >= RANGE_MAX {
        return Err(format!("{text:?} is too many ports: at most {RANGE_MAX} in a range"));
    }
    Ok(first..=last)
}

/// Ports in a range. Each takes a descriptor of towpath, of which most users may have 1024 at once (RLIMIT_NOFILE).
const RANGE_MAX: usize = 512;

pub(super) fn parse_dns(text: &str) -> Result<Dns, String> {
    if text == "none" {
        return Ok(Dns::None);
    }
    let ip: IpAddr = text.parse().map_err(|_| {
        format!("{text:?} is not an IP address, for example 9.9.9.9, or the word none")
    })?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(format!("{ip} cannot be the address of a nameserver"));
    }
    Ok(Dns::At(ip))
}

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
            "{ip} is the network or broadcast address of {ip}/{len}, not one of its hosts"
        ));
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish() {
        let tcp = |host: &str, port| Publish {
            protocol: Protocol::Tcp,
            host: host.parse().unwrap(),
            port,
        };
        let good = [
            ("8080:80", tcp("127.0.0.1:8080", 80)),
            ("8080:80/tcp", tcp("127.0.0.1:8080", 80)),
            ("5353:53/udp", Publish { protocol: Protocol::Udp, ..tcp("127.0.0.1:5353", 53) }),
            ("0.0.0.0:1:65535", tcp("0.0.0.0:1", 65535)),
            ("[::1]:8080:80", tcp("[::1]:8080", 80)),
            ("[::]:53:53/udp", Publish { protocol: Protocol::Udp, ..tcp("[::]:53", 53) }),
            ("80", tcp("127.0.0.1:0", 80)),
            ("53/udp", Publish { protocol: Protocol::Udp, ..tcp("127.0.0.1:0", 53) }),
            ("127.0.0.2::80", tcp("127.0.0.2:0", 80)),
            ("[::1]::80/tcp", tcp("[::1]:0", 80)),
        ];
        for (text, wanted) in good {
            assert_eq!(text.parse(), Ok(Ports(vec![wanted])), "{text}");
            let shown = wanted.to_string();
            assert_eq!(shown.parse(), Ok(Ports(vec![wanted])), "{text}, shown as {shown}");
        }
        let range = "127.0.0.2:8000-8002:80-82".parse::<Ports>().unwrap();
        let wanted = [(8000, 80), (8001, 81), (8002, 82)]
            .map(|(outside, port)| tcp(&format!("127.0.0.2:{outside}"), port));
        assert_eq!(range.0, wanted);
        for (text, host) in [("80-82", "127.0.0.1:0"), ("[::1]::80-82", "[::1]:0")] {
            let wanted = [80, 81, 82].map(|port| tcp(host, port));
            assert_eq!(text.parse::<Ports>().unwrap().0, wanted, "{text}");
        }
        let bad = [
            ("8000-8002:80", "8000-8002 is 3 ports and 80 is 1"),
            ("8002-8000:80-82", "\"8002-8000\" is not a range"),
            ("1-9999:1-9999", "at most 512"),
            ("8000-:80-81", "\"\" is not a valid port"),
            ("", "[[HOSTADDR:]HOSTPORT:]PORT"),
            (
                "80x",
                "\"80x\" is not a valid port: expected 1 to 65535; the form is [[HOSTADDR:]HOSTPORT:]PORT",
            ),
            ("0", "\"0\" is not a valid port"),
            ("1-9999", "at most 512"),
            ("127.0.0.1:80", "127.0.0.1::80 takes a free one there"),
            ("[::1]:80", "[::1]::80 takes a free one there"),
            ("::80", "\"\" is not an IPv4 address"),
            ("127.0.0.1::", "\"\" is not a valid port"),
            ("80x:80", "\"80x\" is not a valid port"),
            ("8080:0", "\"0\" is not a valid port"),
            ("8080:65536", "\"65536\" is not a valid port"),
            (":80", "\"\" is not a valid port"),
            ("8080:80/sctp", "\"sctp\" is not a protocol"),
            ("localhost:8080:80", "\"localhost\" is not an IPv4 address"),
            ("::1:8080:80", "in brackets: [::1]"),
            ("[10.0.0.1]:8080:80", "is not an IPv6 address"),
        ];
        for (text, wanted) in bad {
            let error = text.parse::<Ports>().expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn the_same_port_twice() {
        let port = |text: &str| text.parse::<Ports>().unwrap().0[0];
        let same = |a: &str, b: &str| port(a).collides(&port(b));
        assert!(same("8080:80", "8080:81") && same("0.0.0.0:8080:80", "8080:80"));
        assert!(same("[::1]:8080:80", "[::]:8080:80"));
        assert!(!same("8080:80", "8081:80") && !same("8080:80", "8080:80/udp"));
        assert!(!same("0.0.0.0:8080:80", "[::]:8080:80"));
        assert!(!same("127.0.0.1:8080:80", "127.0.0.2:8080:80"));
        assert!(!same("80", "80") && !same("80", "8080:80"));
    }

    #[test]
    fn dns() {
        assert_eq!(parse_dns("none"), Ok(Dns::None));
        assert_eq!(parse_dns("9.9.9.9"), Ok(Dns::At([9, 9, 9, 9].into())));
        for bad in ["", "localhost", "0.0.0.0", "9.9.9.9:53"] {
            assert!(parse_dns(bad).is_err(), "{bad}");
        }
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
            ("10.0.2.255/24", "network or broadcast"),
            ("127.0.0.1/8", "not an address that an interface"),
            ("ff02::1/64", "not an address that an interface"),
            ("0.0.0.0/8", "not an address that an interface"),
        ];
        for (text, wanted) in bad {
            let error = parse_cidr(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn numbers_of_bytes() {
        assert_eq!(parse_mtu("1280").and(parse_mtu("65535")), Ok(65535));
        assert_eq!(parse_snaplen("64").and(parse_snaplen("262144")), Ok(262_144));
        for bad in ["", "1279", "65536", "-1", "1.5", "1500B", "99999999999999999999"] {
            let error = parse_mtu(bad).expect_err(bad);
            assert_eq!(error, "expected a number of bytes from 1280 to 65535, for example 1500");
        }
        assert!(parse_snaplen("63").expect_err("63").contains("from 64 to 262144"));
    }

    #[test]
    fn numbers_of_shards() {
        for count in [1, 2, 4, 8, 16] {
            assert_eq!(parse_shards(&count.to_string()).map(Shards::count), Ok(count));
        }
        for bad in ["", "0", "3", "32", "-1", "two", "Auto"] {
            assert_eq!(parse_shards(bad).expect_err(bad), "expected 1, 2, 4, 8, 16 or auto");
        }
        let auto =
            [(1, 1), (4, 1), (7, 1), (8, 2), (15, 2), (16, 4), (64, 16), (96, 16), (256, 16)];
        for (processors, count) in auto {
            assert_eq!(Shards::for_processors(processors), count, "{processors}");
        }
        assert!(parse_shards("auto").is_ok_and(|auto| auto.count().is_power_of_two()));
    }

    #[test]
    fn sizes_and_times() {
        let good = [("0", 0), ("5000", 5000), ("1K", 1024), ("2m", 2 << 20), ("3G", 3 << 30)];
        for (text, size) in good {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for bad in ["", "G", "-1", "1T", "17179869184G", "1 M", "1\u{e9}"] {
            assert!(parse_size(bad).expect_err(bad).contains("is not a size"), "{bad}");
        }
        assert_eq!(parse_seconds("0"), Ok(Duration::ZERO));
        assert_eq!(parse_seconds("10"), Ok(Duration::from_secs(10)));
        for bad in ["", "-1", "1.5", "86401", "10s"] {
            assert!(parse_seconds(bad).expect_err(bad).contains("0 to 86400"), "{bad}");
        }
    }
}
