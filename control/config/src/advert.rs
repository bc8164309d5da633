//! Router advertisements of a port: the words of `--ra`, and the keys of `[[ra]]`.

use std::net::Ipv6Addr;

use towpath_dns::Name;
use towpath_uplink::{AdvertConfig, parse_hostname};
use towpath_wire::MacAddr;

use crate::dns::number;
use crate::port::check_port_name;

/// Maximum number of nameservers and of search domains.
const NAMES_MAX: usize = 8;
/// Maximum length in bytes of all encoded search domains. Advertisements leave out further ones.
const SEARCH_LEN_MAX: usize = 256;
/// Default of the maximum interval between advertisements in seconds (RFC 4861 §6.2.1). The
/// lifetime of a default router is three intervals.
const INTERVAL_S: u16 = 600;
const LIFETIME_S: u16 = 3 * INTERVAL_S;
/// Default lifetimes of prefixes in seconds (RFC 9096 §4), so that hosts soon leave prefixes that
/// the router no longer has.
const VALID_S: u32 = 5400;
const PREFERRED_S: u32 = 2700;

const OPTIONS: &str = "interval, lifetime, valid, preferred, mtu, managed, other, dns or search";

/// Router advertisements of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertSettings {
    /// Name of the port.
    pub port: String,
    /// Maximum time in seconds between two advertisements.
    pub interval: u16,
    /// Time in seconds for which the router is a default router.
    pub lifetime: u16,
    /// Valid lifetime in seconds of prefixes.
    pub valid: u32,
    /// Preferred lifetime in seconds of prefixes.
    pub preferred: u32,
    /// MTU of the link; `None`: that of the port if the port has one.
    pub mtu: Option<u32>,
    /// Whether hosts obtain addresses by DHCPv6.
    pub managed: bool,
    /// Whether hosts obtain other configuration by DHCPv6.
    pub other: bool,
    /// Nameservers. If empty, the router itself if it forwards DNS for the port.
    pub servers: Vec<Ipv6Addr>,
    /// Search domains. If empty, the domain of the DNS forwarder if it serves the port.
    pub search: Vec<String>,
}

/// Names that the DNS forwarder of a port contributes to advertisements.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForwarderNames<'a> {
    /// Domain of local names; `None` if there is no forwarder.
    pub domain: Option<&'a str>,
}

impl AdvertSettings {
    /// Creates settings with default values for the port `name`.
    ///
    /// # Errors
    /// Returns a sentence for the user if this is not a name of a port.
    pub fn new(name: &str) -> Result<Self, String> {
        check_port_name(name)?;
        Ok(Self {
            port: name.to_owned(),
            interval: INTERVAL_S,
            lifetime: LIFETIME_S,
            valid: VALID_S,
            preferred: PREFERRED_S,
            mtu: None,
            managed: false,
            other: false,
            servers: Vec::new(),
            search: Vec::new(),
        })
    }

    /// Parses `PORT[,OPTION...]`.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let mut settings = Self::new(words.next().unwrap_or_default())?;
        let mut seen = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, "true"));
            if seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            match key {
                "dns" | "search" => value.split('+').try_for_each(|it| settings.set(key, it))?,
                "managed" | "other" if word != key => {
                    return Err(format!("{key} of --ra has no value"));
                }
                key => settings.set(key, value)?,
            }
        }
        settings.check()
    }

    /// Sets a key, or adds an element to a key whose value is an array.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "interval" => self.interval = number(key, value, 4..=1800)?,
            "lifetime" => self.lifetime = number(key, value, 0..=9000)?,
            "valid" => self.valid = number(key, value, 0..=u32::MAX)?,
            "preferred" => self.preferred = number(key, value, 0..=u32::MAX)?,
            "mtu" => self.mtu = Some(number(key, value, 1280..=65_535)?),
            "managed" => self.managed = value == "true",
            "other" => self.other = value == "true",
            "dns" => {
                let server = value.parse();
                self.servers.push(server.map_err(|_| format!("{value:?} is not an IPv6 address"))?);
            }
            "search" => self.search.push(parse_hostname(value)?),
            _ => return Err(format!("{key:?} is no option of --ra: {OPTIONS}")),
        }
        if self.servers.len() > NAMES_MAX || self.search.len() > NAMES_MAX {
            return Err(format!("{key}: at most {NAMES_MAX} are possible"));
        }
        Ok(())
    }

    /// Returns the settings, if the times are consistent.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn check(self) -> Result<Self, String> {
        let Self { interval, lifetime, valid, preferred, .. } = self;
        // An encoded name has a length byte in front of each label, and ends with a zero byte.
        let search_len: usize = self.search.iter().map(|name| name.len() + 2).sum();
        if search_len > SEARCH_LEN_MAX {
            return Err(format!("search: more than {SEARCH_LEN_MAX} bytes of domains"));
        }
        if lifetime != 0 && lifetime < interval {
            return Err(format!("lifetime={lifetime} is below interval={interval}"));
        }
        match preferred > valid {
            true => Err(format!("preferred={preferred} is above valid={valid}")),
            false => Ok(self),
        }
    }

    /// Returns the configuration of a sender with this Ethernet address. `mtu` is that of the port
    /// if it is configured.
    pub fn config(
        &self,
        mac: [u8; 6],
        mtu: Option<u32>,
        forwarder: ForwarderNames<'_>,
    ) -> AdvertConfig {
        let own = self.search.iter().map(String::as_str);
        let default = forwarder.domain.filter(|_| self.search.is_empty());
        let names = own.chain(default);
        AdvertConfig {
            mac: MacAddr(mac),
            interval_max_s: self.interval,
            lifetime_s: self.lifetime,
            valid_s: self.valid,
            preferred_s: self.preferred,
            mtu: self.mtu.or(mtu),
            managed: self.managed,
            other: self.other,
            servers: self.servers.clone(),
            is_nameserver: self.servers.is_empty() && forwarder.domain.is_some(),
            search: names.filter_map(|name| Name::new(name.as_bytes(), b"")).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_words_of_a_sender() {
        let words = "lan,interval=30,lifetime=90,valid=600,preferred=300,mtu=1400,managed,other,\
                     dns=fd00::53+fd00::54,search=home.arpa+lan";
        let settings = AdvertSettings::parse(words).expect("valid");
        assert_eq!((settings.interval, settings.lifetime, settings.mtu), (30, 90, Some(1400)));
        assert!(settings.managed && settings.other);
        let forwarder = ForwarderNames { domain: Some("home.arpa") };
        let config = settings.config([2; 6], Some(1500), forwarder);
        assert_eq!((config.servers.len(), config.search.len(), config.mtu), (2, 2, Some(1400)));
        assert!(!config.is_nameserver);
        let plain = AdvertSettings::parse("lan").expect("valid");
        let config = plain.config([2; 6], Some(1500), forwarder);
        assert!(config.is_nameserver && config.search.len() == 1 && config.mtu == Some(1500));
        let config = plain.config([2; 6], None, ForwarderNames::default());
        assert!(!config.is_nameserver && config.search.is_empty() && config.mtu.is_none());
    }

    #[test]
    fn names_wrong_words() {
        let wrong = [
            ("l an", "is not a name of a port"),
            ("lan,interval=3", "interval=3: expected a number from 4 to 1800"),
            ("lan,lifetime=599", "lifetime=599 is below interval=600"),
            ("lan,preferred=6000", "preferred=6000 is above valid=5400"),
            ("lan,mtu=1000", "mtu=1000: expected a number from 1280"),
            ("lan,managed=no", "managed of --ra has no value"),
            ("lan,dns=10.1.0.1", "\"10.1.0.1\" is not an IPv6 address"),
            ("lan,other,other", "other is given twice"),
            ("lan,prefix=fd00::/64", "\"prefix\" is no option of --ra"),
        ];
        let domains = ["a", "b", "c", "d", "e"].map(|letter| letter.repeat(60));
        let long = format!("lan,search={}", domains.join("+"));
        let all = wrong.into_iter().chain([(&*long, "search: more than 256 bytes")]);
        for (text, wanted) in all {
            let error = AdvertSettings::parse(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
