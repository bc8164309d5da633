//! DNS forwarder of a router: the words of `--dns`, and the keys of `[dns]`.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use towpath_siit::TranslationPrefix;
use towpath_uplink::parse_hostname;

use crate::port::check_port_name;

/// UDP and TCP port of DNS.
pub(crate) const DNS_PORT: u16 = 53;
/// Domain of local names unless another one is given (RFC 8375).
const DOMAIN: &str = "home.arpa";
/// Maximum number of upstream servers and of static names.
const UPSTREAMS_MAX: usize = 8;
const HOSTS_MAX: usize = 4096;

const FORM: &str = "expected PORT[+PORT...][,OPTION...], for example lan,upstream=9.9.9.9";
const OPTIONS: &str =
    "port, upstream, entries, memory, ttl-min, ttl-max, pending, domain, dns64 or host";

/// Settings of a DNS forwarder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Names of the ports whose hosts may use the forwarder.
    pub listen: Vec<String>,
    /// UDP and TCP port.
    pub port: u16,
    /// Upstream servers. If empty, those that the router itself has learned by DHCP, or those of
    /// the host.
    pub upstreams: Vec<SocketAddr>,
    /// Maximum number of cached answers.
    pub entries: u32,
    /// Maximum number of bytes of cached answers.
    pub memory: u32,
    /// Minimum time in seconds for which an answer is cached.
    pub ttl_min: u32,
    /// Maximum time in seconds for which an answer is cached.
    pub ttl_max: u32,
    /// Maximum number of pending queries of one client.
    pub pending: u32,
    /// Domain of local names; `None` for `home.arpa`.
    pub domain: Option<String>,
    /// Static names.
    pub hosts: Vec<StaticHost>,
    /// Synthesized IPv6 addresses for names with IPv4 addresses alone; `None` without them.
    pub dns64: Option<Dns64Prefix>,
}

/// Prefix of the IPv6 addresses that the forwarder synthesizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns64Prefix {
    /// Prefix of the router's port of the kind nat64.
    OfPort,
    /// Prefix of another translator.
    Given(TranslationPrefix),
}

/// A name with its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticHost {
    /// Name of the host. Without a dot, it is in the domain of local names.
    pub name: String,
    /// Address of the host.
    pub address: IpAddr,
}

impl Default for DnsSettings {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            port: DNS_PORT,
            upstreams: Vec::new(),
            entries: 10_000,
            memory: 4 << 20,
            ttl_min: 0,
            ttl_max: 86_400,
            pending: 150,
            domain: None,
            hosts: Vec::new(),
            dns64: None,
        }
    }
}

impl DnsSettings {
    /// Parses `PORT[+PORT...][,OPTION...]`.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let mut settings = Self::default();
        for port in words.next().unwrap_or_default().split('+') {
            settings.set("listen", port)?;
        }
        let mut seen = Vec::new();
        for word in words {
            let flag = (word == "dns64").then_some(("dns64", "true"));
            let (key, value) =
                flag.or_else(|| word.split_once('=')).ok_or_else(|| format!("{word:?}: {FORM}"))?;
            if key != "host" && seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            match key {
                "upstream" => value.split('+').try_for_each(|it| settings.set("upstreams", it))?,
                "host" => settings.set("hosts", value)?,
                "listen" | "upstreams" | "hosts" => return Err(unknown_option(key)),
                key => settings.set(key, value)?,
            }
        }
        settings.check_times()
    }

    /// Sets a key, or adds an element to a key whose value is an array.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "listen" => {
                check_port_name(value).map_err(|why| format!("{why}; {FORM}"))?;
                if self.listen.iter().any(|known| known == value) {
                    return Err(format!("the port {value} is given twice"));
                }
                self.listen.push(value.to_owned());
            }
            "port" => self.port = number(key, value, 1..=u16::MAX)?,
            "upstreams" => self.add_upstream(value)?,
            "entries" => self.entries = number(key, value, 0..=1_000_000)?,
            "memory" => self.memory = number(key, value, 0..=1 << 30)?,
            "ttl-min" => self.ttl_min = number(key, value, 0..=3600)?,
            "ttl-max" => self.ttl_max = number(key, value, 0..=604_800)?,
            "pending" => self.pending = number(key, value, 1..=1000)?,
            "domain" => self.domain = Some(parse_hostname(value)?),
            "hosts" => self.add_host(value)?,
            "dns64" => {
                self.dns64 = match value {
                    "true" => Some(Dns64Prefix::OfPort),
                    "false" => None,
                    prefix => Some(Dns64Prefix::Given(prefix.parse()?)),
                }
            }
            _ => return Err(unknown_option(key)),
        }
        Ok(())
    }

    /// Returns the settings, if the times to live are consistent.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn check_times(self) -> Result<Self, String> {
        let Self { ttl_min, ttl_max, .. } = self;
        match ttl_min > ttl_max {
            true => Err(format!("ttl-min={ttl_min} is above ttl-max={ttl_max}")),
            false => Ok(self),
        }
    }

    /// Returns the domain of local names.
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(DOMAIN)
    }

    fn add_upstream(&mut self, text: &str) -> Result<(), String> {
        let plain = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, DNS_PORT));
        let upstream = plain.or_else(|_| text.parse::<SocketAddr>()).map_err(|_| {
            format!("{text:?} is not an address of a nameserver: ADDRESS or ADDRESS:PORT")
        })?;
        if self.upstreams.len() == UPSTREAMS_MAX {
            return Err(format!("at most {UPSTREAMS_MAX} upstream servers are possible"));
        }
        self.upstreams.push(upstream);
        Ok(())
    }

    fn add_host(&mut self, text: &str) -> Result<(), String> {
        let form = "expected NAME@ADDRESS, for example nas@10.1.0.5";
        let (name, address) = text.split_once('@').ok_or_else(|| format!("{text:?}: {form}"))?;
        let name = parse_hostname(name)?;
        let address =
            address.parse().map_err(|_| format!("{address:?} is not an IP address; {form}"))?;
        if self.hosts.len() == HOSTS_MAX {
            return Err(format!("at most {HOSTS_MAX} hosts are possible"));
        }
        self.hosts.push(StaticHost { name, address });
        Ok(())
    }
}

fn unknown_option(key: &str) -> String {
    format!("{key:?} is no option of --dns: {OPTIONS}")
}

/// Parses the number of an option.
///
/// # Errors
/// Returns a sentence for the user if the number is not in `range`.
pub(crate) fn number<T: FromStr + PartialOrd + Display>(
    key: &str,
    value: &str,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        format!("{key}={value}: expected a number from {} to {}", range.start(), range.end())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_words_of_a_forwarder() {
        let words = "lan+guests,port=5353,upstream=9.9.9.9+[2620:fe::fe]:853+2620:fe::9,entries=9,\
                     memory=65536,ttl-min=5,ttl-max=600,pending=20,domain=lan,host=nas@10.1.0.5,\
                     host=nas@fd00::5";
        let settings = DnsSettings::parse(words).expect("valid");
        assert_eq!((settings.listen.len(), settings.port, settings.domain()), (2, 5353, "lan"));
        let upstreams: Vec<_> = settings.upstreams.iter().map(ToString::to_string).collect();
        assert_eq!(upstreams, ["9.9.9.9:53", "[2620:fe::fe]:853", "[2620:fe::9]:53"]);
        assert_eq!((settings.entries, settings.memory, settings.pending), (9, 65_536, 20));
        assert_eq!((settings.ttl_min, settings.ttl_max, settings.hosts.len()), (5, 600, 2));
        let dns64 = |words: &str| DnsSettings::parse(words).expect("valid").dns64;
        assert_eq!((dns64("lan"), dns64("lan,dns64")), (None, Some(Dns64Prefix::OfPort)));
        let given = Some(Dns64Prefix::Given(TranslationPrefix::WELL_KNOWN));
        assert_eq!(dns64("lan,dns64=64:ff9b::/96"), given);
        let plain = DnsSettings::parse("lan").expect("valid");
        assert_eq!((plain.port, plain.domain(), plain.upstreams.len()), (53, "home.arpa", 0));
    }

    #[test]
    fn names_wrong_words() {
        let wrong = [
            ("", "is not a name of a port"),
            ("lan+lan", "the port lan is given twice"),
            ("lan,", "expected PORT[+PORT...]"),
            ("lan,port=0", "port=0: expected a number from 1 to 65535"),
            ("lan,port=53,port=54", "port is given twice"),
            ("lan,upstream=dns", "\"dns\" is not an address of a nameserver"),
            ("lan,ttl-min=9,ttl-max=8", "ttl-min=9 is above ttl-max=8"),
            ("lan,domain=-", "is not a name"),
            ("lan,host=nas", "expected NAME@ADDRESS"),
            ("lan,dns64=64:ff9b::/95", "is not a prefix for translation"),
            ("lan,dns64,dns64", "dns64 is given twice"),
            ("lan,host=nas@x", "\"x\" is not an IP address"),
            ("lan,hosts=nas@10.1.0.5", "\"hosts\" is no option of --dns"),
        ];
        for (text, wanted) in wrong {
            let error = DnsSettings::parse(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
