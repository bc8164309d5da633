//! Files that are written and read again, for any configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use towpath_config::{
    AdvertSettings, ConfigDelta, ConfigFile, DhcpClientSettings, DhcpServerSettings, DnsSettings,
    PortDevice, PortSettings, RouteSetting, RouterConfig, Setting,
};
use towpath_filter::{Action, AddressMatch, Hooks, Rule, RuleList};
use towpath_router::{Hop, PlannedNeighbor, PlannedRoute, Target};
use towpath_stack::net::{RouteKind, metric_unless_given};
use towpath_wire::{MacAddr, Prefix};

use super::{HOME, is_list, options, read};

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_-]{0,14}"
}

fn host() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (1..=9u8, 1..=254u8).prop_map(|(b, d)| IpAddr::V4(Ipv4Addr::new(10, b, 0, d))),
        (1..=9u16, 1..=99u16)
            .prop_map(|(b, d)| IpAddr::V6(Ipv6Addr::new(0xfd00, b, 0, 0, 0, 0, 0, d))),
    ]
}

fn address() -> impl Strategy<Value = Prefix> {
    host().prop_map(|ip| Prefix::new(ip, if ip.is_ipv4() { 24 } else { 64 }).expect("it fits"))
}

fn device() -> impl Strategy<Value = PortDevice> {
    let number = 1..=9000u32;
    prop_oneof![
        "(packet|tap|xdp):[a-z]{1,9}[0-9]"
            .prop_map(|text| PortDevice::parse(&text).expect("valid")),
        "stream:/[a-z\"' ]{1,9}".prop_map(|text| PortDevice::parse(&text).expect("valid")),
        (name(), 1..=4094u16).prop_map(|(port, id)| PortDevice::Vlan(port, id)),
        (vec(name(), 2..4), option::of(number.clone()), option::of(number)).prop_map(
            |(members, ageing, addresses)| PortDevice::Bridge { members, ageing, addresses }
        ),
    ]
}

prop_compose! {
    fn port()(
        name in name(),
        device in device(),
        addresses in option::of(vec(address(), 0..3)),
        mtu in option::of(1280..=9000u32),
        is_down: bool,
        neighbors in vec((host(), any::<[u8; 6]>()), 0..3),
    ) -> PortSettings {
        let mut port = PortSettings::new(name, device);
        if let Some(addresses) = addresses {
            port.set_addresses(addresses);
        }
        let neighbor = |(addr, mac)| PlannedNeighbor { addr, mac: MacAddr(mac) };
        let neighbors = neighbors.into_iter().map(neighbor).collect();
        PortSettings { mtu, is_down, neighbors, ..port }
    }
}

fn hop() -> impl Strategy<Value = Hop> {
    (host(), option::of(name()), 1..=256u16).prop_map(|(addr, port, weight)| Hop {
        addr,
        port,
        weight,
    })
}

fn route() -> impl Strategy<Value = PlannedRoute> {
    let kind = prop_oneof![
        Just(RouteKind::Blackhole),
        Just(RouteKind::Unreachable),
        Just(RouteKind::Prohibit)
    ];
    let target = prop_oneof![
        vec(hop(), 1..4).prop_map(Target::Via),
        name().prop_map(Target::Link),
        kind.prop_map(Target::Kind),
    ];
    (address(), target, option::of(0..2000u32), option::of(1280..=9000u16)).prop_map(
        |(prefix, target, metric, mtu)| {
            let mtu = mtu.filter(|_| !matches!(target, Target::Kind(_)));
            let metric = metric.filter(|metric| *metric != metric_unless_given(prefix));
            PlannedRoute { prefix: prefix.trunc(), target, metric, mtu }
        },
    )
}

fn rules() -> impl Strategy<Value = RuleList> {
    let rule =
        (1..=99u32, option::of(name()), option::of(address())).prop_map(|(id, port, src)| {
            let src = src.map(|prefix| prefix.trunc().into());
            Rule { iface_in: port, src, ..Rule::new(id, Action::Drop) }
        });
    let set = (name(), "10\\.[1-9]\\.0\\.0/16(,2001:db8:[1-9]::/48)?|80,44[3-9]|none");
    (vec(rule, 0..4), any::<bool>(), vec(set, 0..3)).prop_map(|(rules, drops, sets)| {
        let mut list = RuleList::new();
        for (name, members) in sets {
            if list.members(&name).is_some() {
                continue;
            }
            let set = AddressMatch::Set(name.clone());
            list.set_members(&name, members.parse().expect("valid members"));
            if members.contains('.') {
                list.insert(Rule { src: Some(set), ..Rule::new(100, Action::Drop) });
            }
        }
        rules.into_iter().for_each(|rule| drop(list.insert(rule)));
        if drops {
            list.set_default(Hooks::INCOMING, Action::Reject);
        }
        list
    })
}

fn server() -> impl Strategy<Value = DhcpServerSettings> {
    let words = "[a-z]{1,9},pool=10\\.1\\.0\\.[1-9]-10\\.1\\.0\\.[1-9]0(,lease=6[0-9]{2})?\
                 (,dns=9\\.9\\.9\\.9(\\+1\\.1\\.1\\.1)?)?(,domain=[a-z]{2,9})?\
                 (,reserve=02:00:00:00:00:0[1-9]@10\\.1\\.0\\.[1-9])?(,leases=/[a-z\"]{1,9})?";
    words.prop_map(|words| DhcpServerSettings::parse(&words).expect(&words))
}

fn advert() -> impl Strategy<Value = AdvertSettings> {
    let words = "[a-z]{1,9}(,interval=[1-9]{2})?(,lifetime=[1-9]{3})?(,mtu=14[0-9]{2})?(,managed)?\
                 (,other)?(,dns=fd00::[1-9])?(,search=[a-z]{1,9}(\\+[a-z]{1,9})?)?";
    let words = words.prop_filter("a short lifetime", |text| AdvertSettings::parse(text).is_ok());
    words.prop_map(|words| AdvertSettings::parse(&words).expect(&words))
}

fn dns() -> impl Strategy<Value = DnsSettings> {
    let words = "[a-z]{1,9}(,port=53[0-9]{2})?(,upstream=9\\.9\\.9\\.9(\\+\\[fd00::1\\]:54)?)?\
                 (,entries=[1-9]{1,3})?(,memory=[1-9]{4})?(,ttl-min=[1-9])?(,ttl-max=[1-9]{3})?\
                 (,pending=[1-9])?(,domain=[a-z]{2,9})?(,dns64(=64:ff9b::/96)?)?\
                 (,host=[a-z]{1,9}@10\\.1\\.0\\.[1-9])?";
    words.prop_map(|words| DnsSettings::parse(&words).expect(&words))
}

fn client() -> impl Strategy<Value = DhcpClientSettings> {
    let words = "[a-z]{1,9}(,lease=/[a-z \"]{1,9})?";
    words.prop_map(|words| DhcpClientSettings::parse(&words).expect(&words))
}

prop_compose! {
    fn config()(
        ports in vec(port(), 0..4),
        routes in vec(route(), 0..4),
        rules in rules(),
        nat in vec("(id [1-9] )?masquerade out [a-z]{1,9}", 0..4),
        dhcp in vec(client(), 0..2),
        dhcp_servers in vec(server(), 0..2),
        adverts in vec(advert(), 0..2),
        dns in option::of(dns()),
        shards in option::of("[0-9]{1,3}|.{1,9}"),
        is_quiet: bool,
        tags in btree_map(Just("tags".to_owned()), vec("[0-9]{1,3}|.{1,9}", 1..3), 0..2),
    ) -> RouterConfig {
        let mut config =
            RouterConfig { ports, routes, rules, dhcp, dhcp_servers, ..RouterConfig::default() };
        (config.adverts, config.dns) = (adverts, dns);
        for rule in nat {
            // A number that another rule has is refused.
            let _ = config.add_nat(rule.parse().expect("valid"));
        }
        config.options = tags;
        if let Some(shards) = shards.filter(|word| word != "wrong") {
            config.options.insert("shards".to_owned(), vec![shards]);
        }
        config.options.extend(is_quiet.then(|| ("quiet".to_owned(), Vec::new())));
        config.mark_clients();
        config
    }
}

proptest! {
    #[test]
    fn a_written_file_is_read_as_the_same_configuration(config in config()) {
        let text = config.to_toml(is_list);
        let read = ConfigFile::parse(&text, &options());
        let read = read.unwrap_or_else(|error| panic!("{error}\n{text}")).config;
        prop_assert_eq!(&read, &config, "{}", text);
        prop_assert!(ConfigDelta::between(&config, &read).is_empty());
    }

    /// A running router has its routes as single next hops, of which the configuration is made.
    #[test]
    fn routes_are_the_same_after_a_router_has_them(config in config()) {
        let routes = |config: &RouterConfig| -> Vec<RouteSetting> {
            config.settings().into_iter().filter_map(|setting| match setting {
                Setting::Route(route) => Some(route),
                _ => None,
            }).collect()
        };
        let mut again = RouterConfig { routes: Vec::new(), ..config.clone() };
        again.add_routes(routes(&config));
        prop_assert_eq!(routes(&again), routes(&config));
    }
}

#[test]
fn a_difference_has_both_sides() {
    let config = |text: &str| read(text).expect("valid").config;
    let from = config(HOME);
    let text = HOME.replace("mtu = 1400\n", "").replace("10.1.0.8*3", "10.1.0.8*2");
    let delta = ConfigDelta::between(&from, &config(&text));
    let lines = |settings: &[Setting]| settings.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        lines(&delta.removed),
        ["port.lan.mtu = 1400", "routes = 10.9.0.0/16@10.1.0.8%lan*3 metric 5 mtu 1400",]
    );
    assert_eq!(lines(&delta.added), ["routes = 10.9.0.0/16@10.1.0.8%lan*2 metric 5 mtu 1400"]);
}

#[test]
fn a_written_file_has_every_key() {
    let config = read(HOME).expect("valid").config;
    let text = config.to_toml(is_list);
    for key in towpath_config::KEYS {
        // Files of rules and forwarded ports are written as rules.
        let is_other_form = matches!(key.name, "acl" | "forwards")
            || [key.table, key.name].contains(&"nat64")
            || key.name == "dns64";
        let is_absent = matches!(
            (key.table, key.name),
            ("dhcp", "lease") | ("dhcp-server", "domain" | "leases")
        );
        let line = match key.name {
            "dns" if key.table.is_empty() => "[dns]".to_owned(),
            "port" | "dhcp" | "dhcp-server" | "ra" if key.table.is_empty() => {
                format!("[[{}]]", key.name)
            }
            name => format!("{name} = "),
        };
        assert!(is_other_form || is_absent || text.contains(&line), "{line}\n{text}");
    }
}
