//! Parser for the commands of ip(8), limited to the objects that a stack has.

use std::net::IpAddr;

use super::monitored::{self, Monitored};
use towpath_model::{Change, How, MacAddr, Origin, Prefix, Route, RouteKind, RouteLookup, Word};

/// A parsed command of `towpath ip`.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Prints objects, such as addresses or routes.
    Show(Look),
    /// Looks up a route: `ip route get`.
    Get(RouteLookup),
    /// Prints changes as they happen: `ip monitor`.
    Monitor(Monitored),
    /// Changes objects, such as addresses or routes.
    Change(Vec<Change>),
}

/// Table that `ip … show` prints, with the conditions that select its rows.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// `ip addr show`.
    Addresses { dev: Option<String>, to: Option<Prefix>, scope: Option<&'static str>, up: bool },
    /// `ip link show`.
    Links { dev: Option<String>, up: bool },
    /// `ip route show`.
    Routes(Selection),
    /// `ip neigh show`.
    Neighbors { dev: Option<String>, to: Option<IpAddr> },
}

/// Conditions on routes to print.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Outgoing interface; `None` for any.
    pub dev: Option<String>,
    /// Destination prefix, and how a route's prefix is compared with it; `None` for any.
    pub to: Option<(Prefix, PrefixMatch)>,
    /// Address of the router; `None` for any.
    pub via: Option<IpAddr>,
    /// Kind of the route; `None` for any.
    pub kind: Option<RouteKind>,
    /// How the route was created; `None` for any.
    pub origin: Option<Origin>,
}

/// How the destination prefix of a route is compared with the given prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrefixMatch {
    /// Matches routes whose prefix is equal to the given one.
    #[default]
    Exact,
    /// `root`: matches routes whose prefix is equal to the given one, or contained in it.
    Within,
    /// `match`: matches routes whose prefix is equal to the given one, or contains it.
    Around,
}

impl PrefixMatch {
    /// Returns whether a route to the prefix `route` matches the given prefix `asked`.
    pub fn takes(self, route: Prefix, asked: Prefix) -> bool {
        let contains = |outer: Prefix, inner: Prefix| {
            outer.len() <= inner.len() && outer.contains(inner.addr())
        };
        match self {
            Self::Exact => route == asked,
            Self::Within => contains(asked, route),
            Self::Around => contains(route, asked),
        }
    }
}

impl Look {
    /// Returns the name of the interface to which the command is limited, if any.
    pub fn dev(&self) -> Option<&str> {
        match self {
            Self::Addresses { dev, .. } | Self::Links { dev, .. } | Self::Neighbors { dev, .. } => {
                dev.as_deref()
            }
            Self::Routes(selection) => selection.dev.as_deref(),
        }
    }
}

/// Address family, IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns whether an address belongs to this address family.
    pub fn has(self, addr: IpAddr) -> bool {
        (self == Self::V4) == addr.is_ipv4()
    }
}

/// Kind of object that a command of ip(8) refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    Address,
    Route,
    Neighbor,
    Link,
    Monitor,
}

/// Returns the kind of object whose name begins with `word`, which may be abbreviated.
pub fn object(word: &str) -> Option<Object> {
    // Keep the order of ip(8): the first match counts, so `n` means neighbour and `l` means link.
    let objects = [
        ("address", Object::Address),
        ("neighbor", Object::Neighbor),
        ("neighbour", Object::Neighbor),
        ("link", Object::Link),
        ("route", Object::Route),
        ("monitor", Object::Monitor),
    ];
    let found = objects.iter().find(|(name, _)| !word.is_empty() && name.starts_with(word));
    found.map(|(_, object)| *object)
}

/// Returns the names of all kinds of objects, for shell completion.
pub fn objects() -> [&'static str; 5] {
    ["addr", "route", "neigh", "link", "monitor"]
}

/// Returns the verbs for the kind of object that `word` names; empty if there is none.
pub fn object_verbs(word: &str) -> &'static [&'static str] {
    match object(word) {
        Some(Object::Address) => &["show", "add", "del"],
        Some(Object::Route) => &["show", "get", "add", "append", "change", "replace", "del"],
        Some(Object::Neighbor) => &["show", "add", "change", "replace", "del"],
        Some(Object::Link) => &["show", "add", "set", "del"],
        Some(Object::Monitor) => monitored::words(),
        None => &[],
    }
}

/// Words of a command that are not parsed yet.
struct Words<'a>(std::slice::Iter<'a, &'a str>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.next().copied()
    }

    /// Returns the next word without consuming it.
    fn peek(&self) -> Option<&'a str> {
        self.0.clone().next().copied()
    }

    /// Returns the next word, which is the value of the word before it.
    fn value(&mut self) -> Result<&'a str, String> {
        self.next().ok_or_else(|| "Command line is not complete. Try option \"help\"".to_owned())
    }
}

type Parsed<T> = Result<T, String>;

/// Parses the words of a command that follow the options.
pub fn parse(words: &[&str], family: Option<Family>) -> Parsed<Command> {
    let mut words = Words(words.iter());
    let name = words.next().unwrap_or_default();
    let object = object(name).ok_or_else(|| {
        format!("Object \"{name}\" is unknown: expected addr, route, neigh, link or monitor")
    })?;
    if object == Object::Monitor {
        return monitored::parse(words.0.copied()).map(Command::Monitor);
    }
    let verb = words.next();
    match object {
        Object::Address => addresses(verb, words, family),
        Object::Route => routes(verb, words, family),
        Object::Neighbor => neighbors(verb, words),
        Object::Link | Object::Monitor => links(verb, words),
    }
}

/// Returns the verb of `all` that begins with `word`. Without a word, returns "show".
fn verb<'a>(word: Option<&str>, all: &[&'a str], object: &str) -> Parsed<&'a str> {
    let Some(word) = word else { return Ok("show") };
    let shows = ["show", "list", "lst"];
    let names = all.iter().copied().chain(shows);
    let found = names.into_iter().find(|name| !word.is_empty() && name.starts_with(word));
    match found {
        Some(name) if shows.contains(&name) => Ok("show"),
        Some(name) => Ok(name),
        None => Err(format!(
            "Command \"{word}\" is unknown: expected show, {} of {object}",
            all.join(", ")
        )),
    }
}

fn addresses(word: Option<&str>, mut words: Words<'_>, family: Option<Family>) -> Parsed<Command> {
    let verb = verb(word, &["add", "change", "replace", "delete"], "address")?;
    let (mut dev, mut address) = (None, None);
    if verb == "show" {
        let (mut only, mut up) = (None, false);
        while let Some(word) = words.next() {
            match word {
                "to" => address = Some(prefix(words.value()?, family)?),
                "scope" => set(word, &mut only, scope(words.value()?)?)?,
                "up" => up = true,
                "dev" => set(word, &mut dev, words.value()?.to_owned())?,
                other => set(word, &mut dev, other.to_owned())?,
            }
        }
        return Ok(Command::Show(Look::Addresses { dev, to: address, scope: only, up }));
    }
    let mut has_length = false;
    while let Some(word) = words.next() {
        match word {
            "dev" => set(word, &mut dev, words.value()?.to_owned())?,
            "local" => {
                let text = words.value()?;
                has_length = text.contains('/');
                set(word, &mut address, prefix(text, family)?)?;
            }
            "peer" | "broadcast" | "brd" | "anycast" | "label" | "scope" | "valid_lft"
            | "preferred_lft" | "metric" | "proto" | "nodad" | "home" | "noprefixroute" => {
                return Err(format!("\"{word}\" is not among what addresses of a stack have"));
            }
            text => {
                has_length = text.contains('/');
                set(word, &mut address, prefix(text, family)?)?;
            }
        }
    }
    let dev = dev.ok_or("Not enough information: \"dev\" argument is required.")?;
    let dev = device(&dev)?;
    let address = address.ok_or("Not enough information: an address is required.")?;
    match verb {
        "add" => Ok(Command::Change(vec![Change::AddAddress { dev, address }])),
        "delete" => {
            let length = has_length.then_some(address.len());
            let address = address.addr();
            Ok(Command::Change(vec![Change::DeleteAddress { dev, address, length }]))
        }
        verb => Err(format!(
            "addr {verb}: addresses of a stack have nothing to change; use add and del"
        )),
    }
}

fn scope(word: &str) -> Parsed<&'static str> {
    let known = ["global", "link", "host"].into_iter().find(|known| *known == word);
    known.ok_or_else(|| wrong("scope", word))
}

/// Parses the words that follow `ip route show`.
fn routes_shown(mut words: Words<'_>, family: Option<Family>) -> Parsed<Command> {
    let mut shown = Selection::default();
    let mut compared = PrefixMatch::Exact;
    while let Some(word) = words.next() {
        match word {
            "via" => set(word, &mut shown.via, router(&mut words)?)?,
            "dev" | "oif" => set(word, &mut shown.dev, words.value()?.to_owned())?,
            "to" | "exact" => {}
            "root" => compared = PrefixMatch::Within,
            "match" => compared = PrefixMatch::Around,
            "type" => {
                let kind = words.value()?;
                set(word, &mut shown.kind, kind_of(kind).ok_or_else(|| wrong("type", kind))?)?;
            }
            "proto" => {
                let maker = words.value()?;
                set(
                    word,
                    &mut shown.origin,
                    maker_of(maker).ok_or_else(|| wrong("proto", maker))?,
                )?;
            }
            "scope" | "table" | "src" | "mtu" | "onlink" | "nexthop" | "nhid" | "metric"
            | "cache" | "vrf" => {
                return Err(format!("\"{word}\" is not among what `towpath ip route` knows"));
            }
            word if kind_of(word).is_some() => {
                set(word, &mut shown.kind, kind_of(word).unwrap_or_default())?;
            }
            "default" | "any" | "all" => {
                let v6 = family == Some(Family::V6) || shown.via.is_some_and(|via| via.is_ipv6());
                let to = if v6 { Prefix::ALL_V6 } else { Prefix::ALL_V4 };
                set(word, &mut shown.to, (to, compared))?;
            }
            text => set(word, &mut shown.to, (prefix(text, family)?, compared))?,
        }
    }
    Ok(Command::Show(Look::Routes(shown)))
}

fn kind_of(word: &str) -> Option<RouteKind> {
    match word {
        "unicast" => Some(RouteKind::Unicast),
        "blackhole" => Some(RouteKind::Blackhole),
        "unreachable" => Some(RouteKind::Unreachable),
        "prohibit" => Some(RouteKind::Prohibit),
        _ => None,
    }
}

/// Returns how routes were created that Linux shows with the given protocol. `boot` means routes
/// that the operator added.
fn maker_of(protocol: &str) -> Option<Origin> {
    match protocol {
        "boot" => Some(Origin::Static),
        "kernel" => Some(Origin::Link),
        "ra" => Some(Origin::Router),
        _ => Origin::of_protocol(protocol),
    }
}

/// Parses the words that follow `ip route get`.
fn route_looked_up(mut words: Words<'_>, family: Option<Family>) -> Parsed<Command> {
    let (mut to, mut from, mut dev) = (None, None, None);
    while let Some(word) = words.next() {
        match word {
            "from" => set(word, &mut from, lookup_end(words.value()?, family)?)?,
            "dev" | "oif" => {
                let name = words.value()?;
                set(
                    word,
                    &mut dev,
                    Word::try_from(name.to_owned()).map_err(|_| wrong(word, name))?,
                )?;
            }
            "to" => set(word, &mut to, lookup_end(words.value()?, family)?)?,
            "iif" | "mark" | "vrf" | "tos" | "dsfield" | "uid" | "ipproto" | "sport" | "dport"
            | "fibmatch" | "connected" | "notify" => {
                return Err(format!("\"{word}\" is not among what `towpath ip route get` knows"));
            }
            text => set("to", &mut to, lookup_end(text, family)?)?,
        }
    }
    let to = to.ok_or("need at least a destination address")?;
    Ok(Command::Get(RouteLookup { to, from, dev }))
}

/// Parses an address for `ip route get`. As in ip(8), a prefix of full length is accepted, too.
fn lookup_end(text: &str, family: Option<Family>) -> Parsed<IpAddr> {
    let prefix = prefix(text, family)?;
    let full = if prefix.addr().is_ipv4() { 32 } else { 128 };
    (prefix.len() == full).then_some(prefix.addr()).ok_or_else(|| wrong("address", text))
}

fn routes(word: Option<&str>, mut words: Words<'_>, family: Option<Family>) -> Parsed<Command> {
    let verbs = ["add", "append", "change", "chg", "replace", "delete", "get"];
    let verb = verb(word, &verbs, "route")?;
    match verb {
        "show" => return routes_shown(words, family),
        "get" => return route_looked_up(words, family),
        _ => {}
    }
    let mut route = Route::default();
    let (mut to, mut via, mut metric) = (None, None, None);
    let mut dev: Option<&str> = None;
    let mut default = false;
    let mut hops = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "via" => set(word, &mut via, router(&mut words)?)?,
            "nexthop" => hops.push(next_hop(&mut words)?),
            _ if !hops.is_empty() => {
                return Err(format!(
                    "\"nexthop\" or end of line is expected instead of \"{word}\""
                ));
            }
            "mtu" => {
                let text = words.value()?;
                if text == "lock" {
                    return Err(
                        "mtu lock: path MTU discovery cannot be locked; leave \"lock\" out"
                            .to_owned(),
                    );
                }
                set(word, &mut route.mtu, text.parse().map_err(|_| wrong("mtu", text))?)?;
            }
            "dev" | "oif" => set(word, &mut dev, words.value()?)?,
            "metric" | "priority" | "preference" => {
                let text = words.value()?;
                let number = text.parse::<u32>();
                set(word, &mut metric, number.map_err(|_| wrong("metric", text))?)?;
            }
            word if kind_of(word).is_some() => {
                set(word, &mut route.kind, kind_of(word).unwrap_or_default())?;
            }
            "to" | "exact" => {}
            "default" | "any" | "all" => default = true,
            "proto" | "scope" | "table" | "src" | "onlink" | "nhid" | "root" | "match" | "type" => {
                return Err(format!("\"{word}\" is not among what `towpath ip route` knows"));
            }
            text => set(word, &mut to, prefix(text, family)?)?,
        }
    }
    if default {
        let first = via.or(hops.first().and_then(|hop: &NextHopWords| hop.via));
        let v6 = family == Some(Family::V6) || first.is_some_and(|via: IpAddr| via.is_ipv6());
        set("default", &mut to, if v6 { Prefix::ALL_V6 } else { Prefix::ALL_V4 })?;
    }
    route.to = to.ok_or("Not enough information: the destination of the route is required.")?;
    route.via = via;
    route.dev = dev.map(device).transpose()?;
    // Use the default metric for IPv6 metric 0, as Linux does.
    route.metric = metric.filter(|metric| *metric > 0 || route.to.addr().is_ipv4());
    if hops.is_empty() {
        return Ok(Command::Change(vec![route_change(verb, route, true)]));
    }
    if via.is_some() || route.dev.is_some() {
        return Err("\"via\" and \"dev\" belong to each \"nexthop\", not in front of them".into());
    }
    let changes = hops.into_iter().enumerate().map(|(nth, NextHopWords { via, dev, weight })| {
        let dev = dev.map(device).transpose()?;
        Ok(route_change(verb, Route { via, dev, weight, ..route.clone() }, nth == 0))
    });
    changes.collect::<Parsed<Vec<_>>>().map(Command::Change)
}

/// Returns the change of the network configuration for a verb. The first next hop creates the
/// route, and further ones are appended to it.
fn route_change(verb: &str, route: Route, is_first: bool) -> Change {
    let how = match verb {
        "delete" => return Change::DeleteRoute { route },
        "append" => How::Append,
        _ if !is_first => How::Append,
        "add" => How::Add,
        "replace" => How::Replace,
        _ => How::Change,
    };
    Change::SetRoute { route, how }
}

/// Parsed words of one next hop of a multipath route.
struct NextHopWords<'a> {
    via: Option<IpAddr>,
    dev: Option<&'a str>,
    weight: Option<u16>,
}

/// Parses the words of a next hop, up to the next `nexthop`.
fn next_hop<'a>(words: &mut Words<'a>) -> Parsed<NextHopWords<'a>> {
    let (mut via, mut dev, mut weight) = (None, None, None);
    while let Some(word) = words.peek() {
        match word {
            "via" => {
                words.next();
                set(word, &mut via, router(words)?)?;
            }
            "dev" | "oif" => {
                words.next();
                set(word, &mut dev, words.value()?)?;
            }
            "weight" => {
                words.next();
                let text = words.value()?;
                let number = text.parse().ok().filter(|weight| (1..=256).contains(weight));
                set(word, &mut weight, number.ok_or_else(|| wrong("weight", text))?)?;
            }
            _ => break,
        }
    }
    match via {
        None => Err("\"via\" and an address are expected after \"nexthop\"".to_owned()),
        via => Ok(NextHopWords { via, dev, weight }),
    }
}

/// Parses the address that follows `via`, possibly preceded by an address family.
fn router(words: &mut Words<'_>) -> Parsed<IpAddr> {
    let mut text = words.value()?;
    if ["inet", "inet6"].contains(&text) {
        text = words.value()?;
    }
    address(text)
}

fn neighbors(word: Option<&str>, mut words: Words<'_>) -> Parsed<Command> {
    let verb = verb(word, &["add", "change", "chg", "replace", "delete"], "neighbor")?;
    let (mut to, mut mac) = (None, None);
    let mut dev: Option<&str> = None;
    while let Some(word) = words.next() {
        match word {
            "dev" => set(word, &mut dev, words.value()?)?,
            "lladdr" => {
                let text = words.value()?;
                let parsed = text.parse::<MacAddr>();
                set(word, &mut mac, parsed.map_err(|_| format!("\"{text}\" is invalid lladdr."))?)?;
            }
            "nud" => match words.value()? {
                "permanent" => {}
                state => {
                    return Err(format!("nud {state}: entries of the operator are permanent"));
                }
            },
            "to" => {}
            "proxy" | "router" | "extern_learn" | "unused" | "vrf" => {
                return Err(format!("\"{word}\" is not among what `towpath ip neigh` knows"));
            }
            text => set(word, &mut to, address(text)?)?,
        }
    }
    if verb == "show" {
        return Ok(Command::Show(Look::Neighbors { dev: dev.map(str::to_owned), to }));
    }
    let (Some(dev), Some(address)) = (dev, to) else {
        return Err("Device and destination are required arguments.".to_owned());
    };
    let dev = device(dev)?;
    if verb == "delete" {
        return Ok(Command::Change(vec![Change::DeleteNeighbor { dev, address }]));
    }
    let mac = mac.ok_or("Not enough information: \"lladdr\" argument is required.")?;
    let how = match verb {
        "add" => How::Add,
        "replace" => How::Replace,
        _ => How::Change,
    };
    Ok(Command::Change(vec![Change::SetNeighbor { dev, address, mac, how }]))
}

fn links(word: Option<&str>, mut words: Words<'_>) -> Parsed<Command> {
    let mut dev = None;
    let verb = verb(word, &["set", "add", "delete"], "link")?;
    if verb == "add" {
        return new_link(words);
    }
    if verb == "show" {
        let mut up = false;
        while let Some(word) = words.next() {
            match word {
                "up" => up = true,
                "dev" => set(word, &mut dev, words.value()?.to_owned())?,
                name => set(word, &mut dev, name.to_owned())?,
            }
        }
        return Ok(Command::Show(Look::Links { dev, up }));
    }
    let (mut up, mut mtu) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "dev" => set(word, &mut dev, words.value()?.to_owned())?,
            name if verb == "delete" => set(name, &mut dev, name.to_owned())?,
            "up" => set(word, &mut up, true)?,
            "down" => set(word, &mut up, false)?,
            "mtu" => {
                let text = words.value()?;
                set(word, &mut mtu, text.parse::<u32>().map_err(|_| wrong("mtu", text))?)?;
            }
            name => set(name, &mut dev, name.to_owned())?,
        }
    }
    let dev = dev.ok_or("Not enough information: \"dev\" argument is required.")?;
    let dev = device(&dev)?;
    if verb == "delete" {
        return Ok(Command::Change(vec![Change::DeleteLink { dev }]));
    }
    let mtu = mtu.map(|mtu| Change::SetMtu { dev: dev.clone(), mtu });
    let up = up.map(|up| Change::SetLink { dev, up });
    Ok(Command::Change(mtu.into_iter().chain(up).collect()))
}

/// Parses the words of `ip link add`: a name, `type`, a device in the syntax of `towpath router
/// --port`, and addresses.
fn new_link(mut words: Words<'_>) -> Parsed<Command> {
    let mut name = None;
    let kind = loop {
        match words.next() {
            Some("type") => break words.value()?,
            Some(word @ ("name" | "dev")) => set(word, &mut name, words.value()?)?,
            Some(word) => set(word, &mut name, word)?,
            None => return Err("Not enough information: \"type\" argument is required".to_owned()),
        }
    };
    let name = device(name.ok_or("Not enough information: a name is required")?)?;
    let mut port = match kind.contains(':') {
        true => kind.to_owned(),
        false => format!("{kind}:{}", words.value()?),
    };
    while let Some(address) = words.next() {
        port = format!("{port},{address}");
    }
    towpath_config::parse_port(&format!("{name}={port}"))?;
    Ok(Command::Change(vec![Change::AddLink { name, device: port }]))
}

/// Sets the value of the keyword `word`. Returns an error if it was already set.
fn set<T>(word: &str, to: &mut Option<T>, value: T) -> Parsed<()> {
    match to.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("an argument stands there twice, or \"{word}\" is a garbage.")),
    }
}

fn wrong(what: &str, text: &str) -> String {
    format!("argument \"{text}\" is wrong: Invalid \"{what}\" value")
}

fn device(text: &str) -> Parsed<Word> {
    Word::try_from(text).map_err(|_| format!("\"{}\" not a valid ifname", text.escape_debug()))
}

fn address(text: &str) -> Parsed<IpAddr> {
    text.parse().map_err(|_| format!("any valid address is expected rather than \"{text}\"."))
}

/// Parses a prefix, or an address without a prefix length.
fn prefix(text: &str, family: Option<Family>) -> Parsed<Prefix> {
    if text == "default" {
        let v6 = family == Some(Family::V6);
        return Ok(if v6 { Prefix::ALL_V6 } else { Prefix::ALL_V4 });
    }
    let parsed = match text.contains('/') {
        true => text.parse().ok(),
        false => text.parse().ok().map(Prefix::host),
    };
    let parsed = parsed.filter(|prefix: &Prefix| family.is_none_or(|it| it.has(prefix.addr())));
    let name = match family {
        None => "any valid",
        Some(Family::V4) => "inet",
        Some(Family::V6) => "inet6",
    };
    parsed.ok_or_else(|| format!("{name} prefix is expected rather than \"{text}\"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(line: &str) -> Change {
        let words: Vec<_> = line.split_whitespace().collect();
        match parse(&words, None) {
            Ok(Command::Change(mut changes)) if changes.len() == 1 => changes.remove(0),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn error(line: &str) -> String {
        let words: Vec<_> = line.split_whitespace().collect();
        parse(&words, None).expect_err(line)
    }

    #[test]
    fn words_may_be_shortened_and_stand_in_any_order() {
        let added = change("address add 10.5.0.1/24 dev eth0");
        assert_eq!(change("a a dev eth0 local 10.5.0.1/24"), added);
        let host = change("addr del 10.5.0.1 dev eth0");
        assert!(matches!(host, Change::DeleteAddress { length: None, .. }), "{host:?}");
        let route = change("route add default via fe80::1 dev eth0 metric 0");
        let Change::SetRoute { route, how: How::Add } = route else { panic!("{route:?}") };
        assert_eq!((route.to, route.metric), (Prefix::ALL_V6, None));
        let hole = change("r d blackhole 10.0.0.0/8");
        let Change::DeleteRoute { route } = hole else { panic!("{hole:?}") };
        assert_eq!(route.kind, Some(RouteKind::Blackhole));
        let words = ["link", "set", "eth0", "mtu", "1400", "up"];
        let Ok(Command::Change(both)) = parse(&words, None) else { panic!("{words:?}") };
        assert_eq!(both.len(), 2);
        assert_eq!(parse(&["n"], None), parse(&["neighbour", "show"], None));
    }

    #[test]
    fn each_next_hop_after_the_first_joins_its_route() {
        let changes = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let Ok(Command::Change(changes)) = parse(&words, None) else { panic!("{line}") };
            let hop = |change: &Change| match change {
                Change::SetRoute { route, how } => (route.clone(), Some(*how)),
                Change::DeleteRoute { route } => (route.clone(), None),
                other => panic!("{other:?}"),
            };
            changes.iter().map(hop).collect::<Vec<_>>()
        };
        let two = "default metric 5 mtu 1400 nexthop via fe80::1 dev a weight 3 \
                   nexthop via inet6 fe80::2 dev b";
        for (verb, hows) in [
            ("add", [Some(How::Add), Some(How::Append)]),
            ("append", [Some(How::Append), Some(How::Append)]),
            ("replace", [Some(How::Replace), Some(How::Append)]),
            ("change", [Some(How::Change), Some(How::Append)]),
            ("del", [None, None]),
        ] {
            let found = changes(&format!("route {verb} {two}"));
            assert_eq!(found.iter().map(|(_, how)| *how).collect::<Vec<_>>(), hows, "{verb}");
            for ((route, _), (via, dev)) in found.iter().zip([("fe80::1", "a"), ("fe80::2", "b")]) {
                assert_eq!((route.to, route.via), (Prefix::ALL_V6, via.parse().ok()));
                assert_eq!(route.dev.as_ref().map(Word::as_str), Some(dev));
                assert_eq!((route.metric, route.mtu), (Some(5), Some(1400)));
                assert_eq!(route.weight, (dev == "a").then_some(3));
            }
        }
        assert_eq!(changes("r ap 10.9.0.0/16 via 10.0.0.1")[0].1, Some(How::Append));
    }

    #[test]
    fn shown_routes_and_addresses_are_chosen_as_ip_does() {
        let shown = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let Ok(Command::Show(look)) = parse(&words, None) else { panic!("{line}") };
            look
        };
        let to = |text: &str| text.parse::<Prefix>().unwrap();
        let routes = |selection| Look::Routes(selection);
        let within = Some((to("10.0.0.0/8"), PrefixMatch::Within));
        assert_eq!(
            shown("route show root 10.0.0.0/8 type blackhole proto boot"),
            routes(Selection {
                to: within,
                kind: Some(RouteKind::Blackhole),
                origin: Some(Origin::Static),
                ..Selection::default()
            })
        );
        let around = Some((to("10.1.2.3/32"), PrefixMatch::Around));
        assert_eq!(
            shown("r s match 10.1.2.3 proto kernel"),
            routes(Selection { to: around, origin: Some(Origin::Link), ..Selection::default() })
        );
        assert!(PrefixMatch::Within.takes(to("10.1.0.0/16"), to("10.0.0.0/8")));
        assert!(!PrefixMatch::Within.takes(to("0.0.0.0/0"), to("10.0.0.0/8")));
        assert!(PrefixMatch::Around.takes(to("0.0.0.0/0"), to("10.1.2.3/32")));
        assert!(!PrefixMatch::Around.takes(to("10.1.2.3/32"), to("10.1.0.0/16")));
        let (dev, scope) = (None, Some("global"));
        let wanted = Look::Addresses { dev, to: None, scope, up: true };
        assert_eq!(shown("addr show up scope global"), wanted);
        assert_eq!(shown("link show up"), Look::Links { dev: None, up: true });
    }

    #[test]
    fn words_that_mean_nothing_here_are_refused_by_name() {
        for (line, wanted) in [
            ("addr add 10.0.0.1/24 dev eth0 scope link", "\"scope\""),
            ("addr add 10.0.0.1/24 10.0.0.2/24 dev eth0", "stands there twice"),
            ("addr change 10.0.0.1/24 dev eth0", "use add and del"),
            ("route add 10.0.0.0/8 via 10.0.0.1 src 10.0.0.2", "\"src\""),
            ("route add 10.0.0.0/8 metric x", "argument \"x\" is wrong"),
            ("route add 10.0.0.0/8 10.1.0.0/16", "twice, or \"10.1.0.0/16\" is a garbage"),
            ("link set eth0 frob", "twice, or \"frob\" is a garbage"),
            ("route add 10.0.0.0/8 nexthop via 10.0.0.1 weight 257", "\"257\" is wrong"),
            ("route add 10.0.0.0/8 nexthop via 10.0.0.1 weight 0", "argument \"0\" is wrong"),
            ("route add 10.0.0.0/8 nexthop dev eth0", "expected after \"nexthop\""),
            ("route add 10.0.0.0/8 nexthop via 10.0.0.1 mtu 1400", "instead of \"mtu\""),
            ("route add 10.0.0.0/8 via 10.0.0.1 nexthop via 10.0.0.2", "to each \"nexthop\""),
            ("route add 10.0.0.0/8 via 10.0.0.1 mtu lock 1400", "mtu lock"),
            ("route add 10.0.0.0/8 via 10.0.0.1 mtu x", "argument \"x\" is wrong"),
            ("route show table main", "\"table\" is not among"),
            ("route show type throw", "argument \"throw\" is wrong"),
            ("addr show scope site", "argument \"site\" is wrong"),
            ("route get 10.0.0.1 iif eth0", "\"iif\" is not among"),
            ("route get 10.0.0.0/8", "\"10.0.0.0/8\""),
            ("route get", "destination address"),
            ("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud stale", "nud stale"),
            ("neigh add 10.0.0.1 dev eth0", "\"lladdr\""),
            ("link set eth0 address 02:00:00:00:00:01", "\"address\" is a garbage"),
            ("link add dummy0 type dummy", "Command line is not complete"),
            ("rule", "Object \"rule\" is unknown"),
        ] {
            let why = error(line);
            assert!(why.contains(wanted), "{line}: {why}");
        }
    }
}
