//! The grammar of ip(8), as far as the stack has its objects.

use std::net::IpAddr;

use towpath_model::{Change, How, MacAddr, Prefix, Route, Word};

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Prints something.
    Show(Look),
    /// Changes something.
    Change(Vec<Change>),
}

/// Part of the net that is printed.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// `ip addr show`.
    Addresses { dev: Option<String>, to: Option<Prefix> },
    /// `ip link show`.
    Links { dev: Option<String> },
    /// `ip route show`.
    Routes { dev: Option<String>, to: Option<Prefix>, via: Option<IpAddr> },
    /// `ip neigh show`.
    Neighbors { dev: Option<String>, to: Option<IpAddr> },
}

impl Look {
    /// The interface that is asked for.
    pub fn dev(&self) -> Option<&str> {
        match self {
            Self::Addresses { dev, .. }
            | Self::Links { dev }
            | Self::Routes { dev, .. }
            | Self::Neighbors { dev, .. } => dev.as_deref(),
        }
    }
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Whether an address is of it.
    pub fn has(self, addr: IpAddr) -> bool {
        (self == Self::V4) == addr.is_ipv4()
    }
}

/// An object of ip(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    Address,
    Route,
    Neighbor,
    Link,
}

/// The object that a word names, or the beginning of whose name it is.
pub fn object(word: &str) -> Option<Object> {
    // In ip's order, by which `n` is a neighbour and `l` a link.
    let objects = [
        ("address", Object::Address),
        ("neighbor", Object::Neighbor),
        ("neighbour", Object::Neighbor),
        ("link", Object::Link),
        ("route", Object::Route),
    ];
    let found = objects.iter().find(|(name, _)| !word.is_empty() && name.starts_with(word));
    found.map(|(_, object)| *object)
}

/// Words that are not read yet.
struct Words<'a>(std::slice::Iter<'a, &'a str>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.next().copied()
    }

    /// The value of a word.
    fn value(&mut self) -> Result<&'a str, String> {
        self.next().ok_or_else(|| "Command line is not complete. Try option \"help\"".to_owned())
    }
}

type Parsed<T> = Result<T, String>;

/// The command that the words are, after the options.
pub fn parse(words: &[&str], family: Option<Family>) -> Parsed<Command> {
    let mut words = Words(words.iter());
    let name = words.next().unwrap_or_default();
    let object = object(name).ok_or_else(|| {
        format!("Object \"{name}\" is unknown: expected addr, route, neigh or link")
    })?;
    let verb = words.next();
    match object {
        Object::Address => addresses(verb, words, family),
        Object::Route => routes(verb, words, family),
        Object::Neighbor => neighbors(verb, words),
        Object::Link => links(verb, words),
    }
}

/// The verb among those of an object that a word names, or the beginning of whose name it is.
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
        while let Some(word) = words.next() {
            match word {
                "to" => address = Some(prefix(words.value()?, family)?),
                "dev" => set(&mut dev, words.value()?.to_owned())?,
                other => set(&mut dev, other.to_owned())?,
            }
        }
        return Ok(Command::Show(Look::Addresses { dev, to: address }));
    }
    let mut has_length = false;
    while let Some(word) = words.next() {
        match word {
            "dev" => set(&mut dev, words.value()?.to_owned())?,
            "local" => {
                let text = words.value()?;
                has_length = text.contains('/');
                set(&mut address, prefix(text, family)?)?;
            }
            "peer" | "broadcast" | "brd" | "anycast" | "label" | "scope" | "valid_lft"
            | "preferred_lft" | "metric" | "proto" | "nodad" | "home" | "noprefixroute" => {
                return Err(format!("\"{word}\" is not among what addresses of a stack have"));
            }
            text => {
                has_length = text.contains('/');
                set(&mut address, prefix(text, family)?)?;
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

fn routes(word: Option<&str>, mut words: Words<'_>, family: Option<Family>) -> Parsed<Command> {
    let verb = verb(word, &["add", "change", "chg", "replace", "delete"], "route")?;
    let mut route = Route { origin: Default::default(), ..Route::default() };
    let (mut to, mut via, mut metric) = (None, None, None);
    let mut dev: Option<&str> = None;
    let mut default = false;
    while let Some(word) = words.next() {
        match word {
            "via" => {
                let mut text = words.value()?;
                if ["inet", "inet6"].contains(&text) {
                    text = words.value()?;
                }
                set(&mut via, address(text)?)?;
            }
            "dev" | "oif" => set(&mut dev, words.value()?)?,
            "metric" | "priority" | "preference" if verb != "show" => {
                let text = words.value()?;
                let number = text.parse::<u32>();
                set(&mut metric, number.map_err(|_| wrong("metric", text))?)?;
            }
            "to" | "exact" | "unicast" => {}
            "default" | "any" | "all" => default = true,
            "proto" | "scope" | "table" | "src" | "mtu" | "onlink" | "nexthop" | "nhid"
            | "append" | "blackhole" | "unreachable" | "prohibit" | "root" | "match" | "type" => {
                return Err(format!("\"{word}\" is not among what `towpath ip route` knows"));
            }
            text => set(&mut to, prefix(text, family)?)?,
        }
    }
    if default {
        let v6 = family == Some(Family::V6) || via.is_some_and(|via: IpAddr| via.is_ipv6());
        set(&mut to, if v6 { Prefix::ALL_V6 } else { Prefix::ALL_V4 })?;
    }
    if verb == "show" {
        let dev = dev.map(str::to_owned);
        return Ok(Command::Show(Look::Routes { dev, to, via }));
    }
    route.to = to.ok_or("Not enough information: the destination of the route is required.")?;
    route.via = via;
    route.dev = dev.map(device).transpose()?;
    // Linux takes 0 for the default of IPv6.
    route.metric = metric.filter(|metric| *metric > 0 || route.to.addr().is_ipv4());
    let change = match verb {
        "add" => Change::SetRoute { route, how: How::Add },
        "replace" => Change::SetRoute { route, how: How::Replace },
        "delete" => Change::DeleteRoute { route },
        _ => Change::SetRoute { route, how: How::Change },
    };
    Ok(Command::Change(vec![change]))
}

fn neighbors(word: Option<&str>, mut words: Words<'_>) -> Parsed<Command> {
    let verb = verb(word, &["add", "change", "chg", "replace", "delete"], "neighbor")?;
    let (mut to, mut mac) = (None, None);
    let mut dev: Option<&str> = None;
    while let Some(word) = words.next() {
        match word {
            "dev" => set(&mut dev, words.value()?)?,
            "lladdr" => {
                let text = words.value()?;
                let parsed = text.parse::<MacAddr>();
                set(&mut mac, parsed.map_err(|_| format!("\"{text}\" is invalid lladdr."))?)?;
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
            text => set(&mut to, address(text)?)?,
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
    if verb(word, &["set"], "link")? == "show" {
        while let Some(word) = words.next() {
            let name = if word == "dev" { words.value()? } else { word };
            set(&mut dev, name.to_owned())?;
        }
        return Ok(Command::Show(Look::Links { dev }));
    }
    let (mut up, mut mtu) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "up" => set(&mut up, true)?,
            "down" => set(&mut up, false)?,
            "mtu" => {
                let text = words.value()?;
                set(&mut mtu, text.parse::<u32>().map_err(|_| wrong("mtu", text))?)?;
            }
            "dev" => set(&mut dev, words.value()?.to_owned())?,
            name => set(&mut dev, name.to_owned())
                .map_err(|_| format!("either \"dev\" is duplicate, or \"{name}\" is a garbage."))?,
        }
    }
    let dev = dev.ok_or("Not enough information: \"dev\" argument is required.")?;
    let dev = device(&dev)?;
    let mtu = mtu.map(|mtu| Change::SetMtu { dev: dev.clone(), mtu });
    let up = up.map(|up| Change::SetLink { dev, up });
    Ok(Command::Change(mtu.into_iter().chain(up).collect()))
}

/// Sets a value that may be given once.
fn set<T>(to: &mut Option<T>, value: T) -> Parsed<()> {
    match to.replace(value) {
        None => Ok(()),
        Some(_) => {
            Err("a word is duplicate, or a garbage: an argument stands there twice".to_owned())
        }
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

/// A prefix, or an address alone.
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
