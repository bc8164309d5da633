//! Writes the configuration of a router as TOML, which [`crate::ConfigFile::parse`] reads.

use std::fmt::Write as _;

use toml::Value;
use towpath_uplink::Reservation;

use crate::advert::AdvertSettings;
use crate::config::RouterConfig;
use crate::dhcp_client::DhcpClientSettings;
use crate::dhcp_server::{DhcpServerSettings, LEASE_S};
use crate::dns::{DNS_PORT, Dns64Prefix, DnsSettings};
use crate::port::PortSettings;
use crate::route::RouteText;

impl RouterConfig {
    /// Formats the configuration as TOML. `is_list` tells options whose value is an array.
    pub fn to_toml(&self, is_list: impl Fn(&str) -> bool) -> String {
        let mut out = String::new();
        for (name, words) in &self.options {
            let value = match &words[..] {
                [] => Value::Boolean(true),
                all if is_list(name) => Value::Array(all.iter().map(|word| number(word)).collect()),
                [first, ..] => number(first),
            };
            put(&mut out, name, value);
        }
        let routes = self.routes.iter().map(|route| RouteText(route).to_string());
        put_list(&mut out, "routes", routes);
        put_list(&mut out, "rules", self.rules.to_string().lines().map(str::to_owned));
        put_list(&mut out, "nat", self.nat.iter().map(ToString::to_string));
        self.ports.iter().for_each(|port| put_port(&mut out, port));
        self.dhcp.iter().for_each(|client| put_client(&mut out, client));
        self.dhcp_servers.iter().for_each(|server| put_server(&mut out, server));
        self.adverts.iter().for_each(|advert| put_advert(&mut out, advert));
        self.dns.iter().for_each(|dns| put_dns(&mut out, dns));
        out
    }
}

fn put_port(out: &mut String, port: &PortSettings) {
    let PortSettings { name, device, addresses, is_routed, mtu, is_down, neighbors, by_dhcp: _ } =
        port;
    out.push_str("\n[[port]]\n");
    put(out, "name", name.as_str());
    put(out, "device", device.to_string());
    if *is_routed {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        put(out, "addresses", addresses);
    }
    if let Some(mtu) = mtu {
        put(out, "mtu", i64::from(*mtu));
    }
    if *is_down {
        put(out, "up", false);
    }
    put_array(out, "neighbors", neighbors.iter().map(|it| format!("{}@{}", it.addr, it.mac)));
}

fn put_client(out: &mut String, client: &DhcpClientSettings) {
    let DhcpClientSettings { port, settings } = client;
    out.push_str("\n[[dhcp]]\n");
    put(out, "port", port.as_str());
    if let Some(file) = &settings.lease_file {
        put(out, "lease", file.to_string_lossy().into_owned());
    }
    if let Some(name) = &settings.host_name {
        put(out, "hostname", name.as_str());
    }
}

fn put_server(out: &mut String, server: &DhcpServerSettings) {
    let DhcpServerSettings { port, pool, lease_s, nameservers, domain, reservations, leases } =
        server;
    out.push_str("\n[[dhcp-server]]\n");
    put(out, "port", port.as_str());
    put(out, "pool", format!("{}-{}", pool.0, pool.1));
    if *lease_s != LEASE_S {
        put(out, "lease", i64::from(*lease_s));
    }
    put_array(out, "dns", nameservers.iter().map(ToString::to_string));
    if let Some(domain) = domain {
        put(out, "domain", domain.as_str());
    }
    let reserved = |it: &Reservation| format!("{}@{}", it.mac, it.address);
    put_array(out, "reserve", reservations.iter().map(reserved));
    if let Some(file) = leases {
        put(out, "leases", file.to_string_lossy().into_owned());
    }
}

fn put_advert(out: &mut String, advert: &AdvertSettings) {
    let Ok(unset) = AdvertSettings::new(&advert.port) else { return };
    let AdvertSettings { port, interval, lifetime, valid, preferred, .. } = advert;
    let AdvertSettings { mtu, managed, other, servers, search, .. } = advert;
    out.push_str("\n[[ra]]\n");
    put(out, "port", port.as_str());
    let numbers = [
        ("interval", u32::from(*interval), u32::from(unset.interval)),
        ("lifetime", u32::from(*lifetime), u32::from(unset.lifetime)),
        ("valid", *valid, unset.valid),
        ("preferred", *preferred, unset.preferred),
        ("mtu", mtu.unwrap_or_default(), 0),
    ];
    put_numbers(out, &numbers);
    for (key, flag) in [("managed", managed), ("other", other)] {
        if *flag {
            put(out, key, true);
        }
    }
    put_array(out, "dns", servers.iter().map(ToString::to_string));
    put_array(out, "search", search.iter().cloned());
}

/// Writes numbers that differ from their default.
fn put_numbers(out: &mut String, numbers: &[(&str, u32, u32)]) {
    for (key, number, _) in numbers.iter().filter(|(_, number, default)| number != default) {
        put(out, key, i64::from(*number));
    }
}

fn put_dns(out: &mut String, dns: &DnsSettings) {
    let unset = DnsSettings::default();
    let DnsSettings { listen, port, upstreams, entries, memory, .. } = dns;
    let DnsSettings { ttl_min, ttl_max, pending, domain, hosts, dns64, .. } = dns;
    out.push_str("\n[dns]\n");
    put_array(out, "listen", listen.iter().cloned());
    put_array(
        out,
        "upstreams",
        upstreams.iter().map(|it| match it.port() {
            DNS_PORT => it.ip().to_string(),
            _ => it.to_string(),
        }),
    );
    let numbers = [
        ("port", u32::from(*port), u32::from(unset.port)),
        ("entries", *entries, unset.entries),
        ("memory", *memory, unset.memory),
        ("ttl-min", *ttl_min, unset.ttl_min),
        ("ttl-max", *ttl_max, unset.ttl_max),
        ("pending", *pending, unset.pending),
    ];
    put_numbers(out, &numbers);
    if let Some(domain) = domain {
        put(out, "domain", domain.as_str());
    }
    put_array(out, "hosts", hosts.iter().map(|it| format!("{}@{}", it.name, it.address)));
    match dns64 {
        None => {}
        Some(Dns64Prefix::OfPort) => put(out, "dns64", true),
        Some(Dns64Prefix::Given(prefix)) => put(out, "dns64", prefix.to_string()),
    }
}

/// Returns a number for digits without leading zeros, otherwise a string.
fn number(word: &str) -> Value {
    let number = word.parse::<i64>().ok().filter(|number| number.to_string() == word);
    number.map_or_else(|| Value::from(word), Value::from)
}

fn put(out: &mut String, key: &str, value: impl Into<Value>) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{key} = {}", value.into());
}

/// Writes an array on one line, unless it is empty.
fn put_array(out: &mut String, key: &str, values: impl Iterator<Item = String>) {
    let values: Vec<_> = values.map(Value::from).collect();
    if !values.is_empty() {
        put(out, key, values);
    }
}

/// Writes an array with a line for each element, unless it is empty.
fn put_list(out: &mut String, key: &str, values: impl Iterator<Item = String>) {
    let values: Vec<_> = values.map(|value| format!("    {},\n", Value::from(value))).collect();
    if !values.is_empty() {
        let _ = writeln!(out, "{key} = [\n{}]", values.concat());
    }
}
