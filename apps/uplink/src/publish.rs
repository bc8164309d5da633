//! Ports of the host that are forwarded to a stack, in the user's notation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The published ports of one `-p` option: a single port, or a range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedRange(pub Vec<Publish>);

/// A published port: a port of the host that is forwarded to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish {
    /// Transport protocol of the host's port and of the program's port.
    pub protocol: Protocol,
    /// Address on which the host listens. Port 0 means that the host's kernel chooses a free port.
    pub host: SocketAddr,
    /// Port of the program to which connections or datagrams are forwarded.
    pub port: u16,
}

/// Transport protocol of a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP (RFC 9293): suffix `/tcp`, or no suffix.
    Tcp,
    /// UDP (RFC 768): suffix `/udp`.
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
    /// Returns the suffix that denotes the protocol of a port; empty for TCP.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Tcp => "",
            Self::Udp => "/udp",
        }
    }
}

impl FromStr for PublishedRange {
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
                "{front} is an address, not a port of this host: {front}::{port} takes a free one \
                 there"
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
                "{host_port} is {outside} ports and {port} is {inside}: give ranges of the same \
                 length"
            ));
        }
        let publish =
            |(outside, port)| Publish { protocol, host: SocketAddr::new(host, outside), port };
        Ok(Self(outside.zip(inside).map(publish).collect()))
    }
}

impl PublishedRange {
    fn at_free_ports(host: IpAddr, ports: RangeInclusive<u16>, protocol: Protocol) -> Self {
        let host = SocketAddr::new(host, 0);
        Self(ports.map(|port| Publish { protocol, host, port }).collect())
    }
}

impl Publish {
    /// Returns whether the host's kernel chooses the host port.
    pub fn at_free_port(&self) -> bool {
        self.host.port() == 0
    }

    /// Returns whether both published ports would bind the same port of this host.
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

/// Returns whether the text is an IP address in the notation of the option `-p`.
fn is_address(text: &str) -> bool {
    text.contains(['.', '[']) && parse_host(text).is_ok()
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(ip) => {
            ip.parse().map(IpAddr::V6).map_err(|_| format!("{ip:?} is not an IPv6 address"))
        }
        None if text.parse::<Ipv6Addr>().is_ok() => {
            Err(format!("an IPv6 address stands in brackets: [{text}]"))
        }
        None if text.contains(':') => Err(format!(
            "{text:?} is not a HOSTADDR: the form is [[HOSTADDR:]HOSTPORT:]PORT, for example \
             127.0.0.1:8080:80"
        )),
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

/// Parses a port such as `8000`, or a range such as `8000-8010`.
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

/// Maximum number of ports in a range. Each port needs a descriptor, and the limit of most users is
/// 1024 descriptors (RLIMIT_NOFILE).
const RANGE_MAX: usize = 512;

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
            assert_eq!(text.parse(), Ok(PublishedRange(vec![wanted])), "{text}");
            let shown = wanted.to_string();
            assert_eq!(shown.parse(), Ok(PublishedRange(vec![wanted])), "{text}, shown as {shown}");
        }
        let range = "127.0.0.2:8000-8002:80-82".parse::<PublishedRange>().unwrap();
        let wanted = [(8000, 80), (8001, 81), (8002, 82)]
            .map(|(outside, port)| tcp(&format!("127.0.0.2:{outside}"), port));
        assert_eq!(range.0, wanted);
        for (text, host) in [("80-82", "127.0.0.1:0"), ("[::1]::80-82", "[::1]:0")] {
            let wanted = [80, 81, 82].map(|port| tcp(host, port));
            assert_eq!(text.parse::<PublishedRange>().unwrap().0, wanted, "{text}");
        }
        let bad = [
            ("8000-8002:80", "8000-8002 is 3 ports and 80 is 1"),
            ("8002-8000:80-82", "\"8002-8000\" is not a range"),
            ("1-9999:1-9999", "at most 512"),
            ("8000-:80-81", "\"\" is not a valid port"),
            ("", "[[HOSTADDR:]HOSTPORT:]PORT"),
            (
                "80x",
                "\"80x\" is not a valid port: expected 1 to 65535; \
                 the form is [[HOSTADDR:]HOSTPORT:]PORT",
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
            ("8080:80:80:80", "\"8080:80\" is not a HOSTADDR: the form is"),
            ("[10.0.0.1]:8080:80", "is not an IPv6 address"),
        ];
        for (text, wanted) in bad {
            let error = text.parse::<PublishedRange>().expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn the_same_port_twice() {
        let port = |text: &str| text.parse::<PublishedRange>().unwrap().0[0];
        let same = |a: &str, b: &str| port(a).collides(&port(b));
        assert!(same("8080:80", "8080:81") && same("0.0.0.0:8080:80", "8080:80"));
        assert!(same("[::1]:8080:80", "[::]:8080:80"));
        assert!(!same("8080:80", "8081:80") && !same("8080:80", "8080:80/udp"));
        assert!(!same("0.0.0.0:8080:80", "[::]:8080:80"));
        assert!(!same("127.0.0.1:8080:80", "127.0.0.2:8080:80"));
        assert!(!same("80", "80") && !same("80", "8080:80"));
    }
}
