//! Reads the configuration of a router from a TOML file.

use std::net::IpAddr;
use std::path::PathBuf;

use toml::de::DeTable;
use towpath_conntrack::NatRule;
use towpath_filter::{RuleList, rule_of_line};
use towpath_nat64::{Nat64Config, POOL};
use towpath_router::PlannedNeighbor;
use towpath_uplink::{DhcpSettings, parse_cidr};

use crate::advert::AdvertSettings;
use crate::config::{ConfigConflict, ConfigPart, NAT64_PORT, RouterConfig};
use crate::dhcp_client::{DhcpClientSettings, set_dhcp_option};
use crate::dhcp_server::DhcpServerSettings;
use crate::dns::DnsSettings;
use crate::document::{DocumentValue, Section};
use crate::error::ConfigError;
use crate::keys::{FileOption, FileOptionKind};
use crate::port::{PortDevice, PortSettings, check_port_name, parse_mtu};
use crate::route::parse_route;

/// Content of a configuration file.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// The configuration, without the rules of the file that `acl` names.
    pub config: RouterConfig,
    /// File of rules.
    pub acl: Option<PathBuf>,
    places: ConfigPlaces,
}

/// Byte offsets at which the parts of a file begin. Used for messages about errors that are found
/// after parsing.
#[derive(Debug, Clone)]
struct ConfigPlaces {
    text: String,
    /// Byte at which the name of the file of rules begins.
    acl: usize,
    starts: Vec<(ConfigPart, usize)>,
}

impl ConfigFile {
    /// Parses a file. `options` are the command-line options that the file may set.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn parse(text: &str, options: &[FileOption]) -> Result<Self, ConfigError> {
        let document = DeTable::parse(text).map_err(|error| ConfigError::of_toml(text, &error))?;
        let places = ConfigPlaces { text: text.to_owned(), acl: 0, starts: Vec::new() };
        let mut file = Self { config: RouterConfig::default(), acl: None, places };
        let mut top = Section::new(text, 0, document.get_ref());
        for option in options {
            if let Some(value) = top.take(&option.name) {
                file.read_option(option, &value)?;
            }
        }
        top.take("port").map_or(Ok(()), |value| file.read_ports(&value))?;
        top.take("nat64").map_or(Ok(()), |value| file.read_translator(&value))?;
        top.take("routes").map_or(Ok(()), |value| file.read_routes(&value))?;
        let acl = top.take("acl");
        let rules = top.take("rules");
        if let Some((_, rules)) = acl.zip(rules) {
            return Err(rules.error("`rules` and `acl` exclude each other: leave one out"));
        }
        file.places.acl = acl.map_or(0, |value| value.start);
        file.acl = acl.map(|value| value.string().map(PathBuf::from)).transpose()?;
        rules.map_or(Ok(()), |value| file.read_rules(&value))?;
        for (key, kind) in [("nat", ""), ("forwards", "dnat ")] {
            top.take(key).map_or(Ok(()), |value| file.read_nat(&value, kind))?;
        }
        top.take("dhcp").map_or(Ok(()), |value| file.read_clients(&value))?;
        top.take("dhcp-server").map_or(Ok(()), |value| file.read_servers(&value))?;
        top.take("ra").map_or(Ok(()), |value| file.read_adverts(&value))?;
        top.take("dns").map_or(Ok(()), |value| file.read_dns(&value))?;
        top.finish()?;
        file.config.mark_clients();
        Ok(file)
    }

    /// Returns the error for a conflict, with its place in the file. If two parts have the same
    /// name, the place is that of the second one.
    pub fn place(&self, conflict: &ConfigConflict) -> ConfigError {
        let ConfigPlaces { text, acl, starts } = &self.places;
        let start = starts.iter().rfind(|(part, _)| *part == conflict.part);
        ConfigError::at(text, start.map_or(*acl, |(_, start)| *start), &conflict.why)
    }

    fn begin(&mut self, part: ConfigPart, start: usize) {
        self.places.starts.push((part, start));
    }

    fn read_option(
        &mut self,
        option: &FileOption,
        value: &DocumentValue<'_>,
    ) -> Result<(), ConfigError> {
        let word = |value: &DocumentValue<'_>| {
            let word = value.word()?;
            let named = |why| value.error(format!("`{}`: {why}", option.name));
            (option.check)(&word).map_err(named)?;
            Ok(word)
        };
        let words = match option.kind {
            FileOptionKind::Flag if !value.flag()? => return Ok(()),
            FileOptionKind::Flag => Vec::new(),
            FileOptionKind::Value => vec![word(value)?],
            FileOptionKind::List => value.list()?.iter().map(word).collect::<Result<_, _>>()?,
        };
        // An empty array is the option left out.
        if option.kind == FileOptionKind::Flag || !words.is_empty() {
            self.config.options.insert(option.name.clone(), words);
        }
        Ok(())
    }

    fn read_ports(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        for mut table in value.tables()? {
            let name = table.require("name")?;
            name.parse(check_port_name)?;
            let device = table.require("device")?.parse(PortDevice::parse)?;
            let mut port = PortSettings::new(name.string()?, device);
            if let Some(addresses) = table.take("addresses") {
                port.set_addresses(list(Some(addresses), parse_cidr)?);
            } else if let Some(config) = port.device.translator() {
                port.set_addresses(config.addresses());
            }
            port.neighbors = list(table.take("neighbors"), parse_neighbor)?;
            if let Some(mtu) = table.take("mtu") {
                port.mtu = Some(parse_mtu(&mtu.word()?).map_err(|why| mtu.error(why))?);
            }
            if let Some(up) = table.take("up") {
                port.is_down = !up.flag()?;
            }
            self.begin(ConfigPart::Port(port.name.clone()), table.start);
            table.finish()?;
            self.config.ports.push(port);
        }
        Ok(())
    }

    /// Reads the table of a translator, which is a port with fixed names.
    fn read_translator(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        let mut table = value.table()?;
        let prefix = table.require("prefix")?;
        let pool = table.take("pool");
        let pool = pool.as_ref().map_or(Ok(POOL), DocumentValue::string)?;
        let config = Nat64Config::parse(&format!("{}={pool}", prefix.string()?));
        let config = config.map_err(|why| prefix.error(why))?;
        self.begin(ConfigPart::Port(NAT64_PORT.to_owned()), table.start);
        table.finish()?;
        self.config.add_translator(&config).map_err(|why| value.error(why))
    }

    fn read_routes(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        for value in value.list()? {
            let route = value.parse(parse_route)?;
            self.begin(ConfigPart::Route(route.prefix.trunc()), value.start);
            self.config.routes.push(route);
        }
        Ok(())
    }

    /// Reads the lines of an access list, one string for each.
    fn read_rules(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        let (values, mut text) = (value.list()?, String::new());
        for value in &values {
            let line = value.string()?;
            if line.contains(['\n', '\r']) {
                return Err(value.error("a rule is one line: give each rule a string of its own"));
            }
            text.push_str(line);
            text.push('\n');
        }
        let rules = RuleList::parse(&text).map_err(|error| {
            let place = values.get(error.line - 1).unwrap_or(value);
            place.error(format!("{}; {}", error.what, error.expected))
        })?;
        for (line, value) in text.lines().zip(&values) {
            if let Some(rule) = rule_of_line(line) {
                self.begin(ConfigPart::Rule(rule.id), value.start);
            }
        }
        self.config.rules = rules;
        Ok(())
    }

    /// Reads rules of address translation. `kind` is written in front of each.
    fn read_nat(&mut self, value: &DocumentValue<'_>, kind: &str) -> Result<(), ConfigError> {
        for value in value.list()? {
            let rule = value.parse(|text| {
                let rule = format!("{kind}{text}").parse::<NatRule>();
                rule.map_err(|error| error.to_string())
            })?;
            let id = self.config.add_nat(rule).map_err(|why| value.error(why))?;
            self.begin(ConfigPart::Nat(id), value.start);
        }
        Ok(())
    }

    fn read_clients(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        for mut table in value.tables()? {
            let port = table.require("port")?;
            port.parse(check_port_name)?;
            let mut settings = DhcpSettings::default();
            for key in ["lease", "hostname"] {
                let Some(value) = table.take(key) else { continue };
                value.parse(|text| set_dhcp_option(&mut settings, key, text))?;
            }
            let port = port.string()?.to_owned();
            self.begin(ConfigPart::Dhcp(port.clone()), table.start);
            table.finish()?;
            self.config.dhcp.push(DhcpClientSettings { port, settings });
        }
        Ok(())
    }

    fn read_servers(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        for mut table in value.tables()? {
            let port = table.require("port")?;
            let mut server = port.parse(DhcpServerSettings::new)?;
            let pool = table.require("pool")?;
            pool.parse(|text| server.set("pool", text))?;
            for key in ["lease", "domain", "leases"] {
                let Some(value) = table.take(key) else { continue };
                server.set(key, &value.word()?).map_err(|why| value.error(why))?;
            }
            if let Some(value) = table.take("dns") {
                let all = value.list()?;
                let all: Vec<_> =
                    all.iter().map(DocumentValue::string).collect::<Result<_, _>>()?;
                server.set("dns", &all.join("+")).map_err(|why| value.error(why))?;
            }
            for value in table.take("reserve").map_or(Ok(Vec::new()), |value| value.list())? {
                value.parse(|text| server.set("reserve", text))?;
            }
            self.begin(ConfigPart::DhcpServer(server.port.clone()), table.start);
            table.finish()?;
            self.config.dhcp_servers.push(server);
        }
        Ok(())
    }

    fn read_adverts(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        for mut table in value.tables()? {
            let mut advert = table.require("port")?.parse(AdvertSettings::new)?;
            for key in ["interval", "lifetime", "valid", "preferred", "mtu"] {
                let Some(value) = table.take(key) else { continue };
                advert.set(key, &value.word()?).map_err(|why| value.error(why))?;
            }
            for (key, flag) in [("managed", &mut advert.managed), ("other", &mut advert.other)] {
                if let Some(value) = table.take(key) {
                    *flag = value.flag()?;
                }
            }
            for key in ["dns", "search"] {
                for value in table.take(key).map_or(Ok(Vec::new()), |value| value.list())? {
                    value.parse(|text| advert.set(key, text))?;
                }
            }
            self.begin(ConfigPart::Advert(advert.port.clone()), table.start);
            let start = table.start;
            table.finish()?;
            let wrong = |why| ConfigError::at(&self.places.text, start, why);
            self.config.adverts.push(advert.check().map_err(wrong)?);
        }
        Ok(())
    }

    fn read_dns(&mut self, value: &DocumentValue<'_>) -> Result<(), ConfigError> {
        let mut table = value.table()?;
        let mut dns = DnsSettings::default();
        let listen = table.require("listen")?;
        if listen.list()?.is_empty() {
            return Err(listen.error("`listen` names no port"));
        }
        let (upstreams, hosts) = (table.take("upstreams"), table.take("hosts"));
        for (key, value) in [("listen", Some(listen)), ("upstreams", upstreams), ("hosts", hosts)] {
            for value in value.map_or(Ok(Vec::new()), |value| value.list())? {
                value.parse(|text| dns.set(key, text))?;
            }
        }
        for key in ["port", "entries", "memory", "ttl-min", "ttl-max", "pending", "domain"] {
            let Some(value) = table.take(key) else { continue };
            dns.set(key, &value.word()?).map_err(|why| value.error(why))?;
        }
        if let Some(value) = table.take("dns64") {
            // Either a flag, or the prefix of another translator.
            let word = value.flag().map(|flag| flag.to_string()).or_else(|_| value.word())?;
            dns.set("dns64", &word).map_err(|why| value.error(why))?;
        }
        self.begin(ConfigPart::Dns, table.start);
        table.finish()?;
        self.config.dns = Some(dns.check_times().map_err(|why| value.error(why))?);
        Ok(())
    }
}

/// Parses the strings of an array; none if there is no array.
fn list<T>(
    value: Option<DocumentValue<'_>>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, ConfigError> {
    let values = value.map_or(Ok(Vec::new()), |value| value.list())?;
    values.iter().map(|value| value.parse(&parse)).collect()
}

/// Parses `ADDRESS@MAC`.
fn parse_neighbor(text: &str) -> Result<PlannedNeighbor, String> {
    let form = "expected ADDRESS@MAC, for example 10.1.0.7@02:00:00:00:00:07";
    let (addr, mac) = text.split_once('@').ok_or_else(|| format!("{text:?}: {form}"))?;
    let addr: IpAddr =
        addr.parse().map_err(|_| format!("{addr:?} is not an IP address; {form}"))?;
    let mac = mac.parse().map_err(|_| format!("{mac:?} is not an Ethernet address; {form}"))?;
    Ok(PlannedNeighbor { addr, mac })
}
