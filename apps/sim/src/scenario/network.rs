//! Hosts, switches and links: those of the file, and those that a generator makes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use toml::Spanned;
use towpath_link::{Chance, LinkConfig, Loss, Probability, RingConfig};
use towpath_qdisc::QueueLimitsConfig;

use super::error::{ScenarioError, unknown_name};
use super::file::{DeviceKeys, File, HostKeys, LoseKeys, Shape, TopologyKeys, Way};
use super::plan::{DevicePlan, HostPlan, LinkPlan, Outage, Place, WayPlan};
use crate::queue::QueueSpec;
use crate::units::Size;

/// Most hosts and switches of a scenario, together: addresses are made of 16 bits.
const PLACES_MAX: usize = 20_000;

/// Most links in a row of a parking lot. Each switch knows the way to each host, so that memory
/// grows with the square of their number.
const HOPS_MAX: usize = 1_000;

/// Receive buffer for which nothing else is said: larger than what links of scenarios hold, so that
/// congestion control decides and not the window.
const RECV_BUFFER: u32 = 4 << 20;
/// Smallest buffer of a connection.
const BUFFER_MIN: u32 = 512;
/// Largest receive buffer: a window of 16 bits with the stack's scale of 7.
const RECV_BUFFER_MAX: u32 = 8128 << 10;

/// A network in the making.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub hosts: Vec<HostPlan>,
    pub switches: Vec<String>,
    pub links: Vec<LinkPlan>,
    places: BTreeMap<String, Place>,
}

impl Network {
    pub fn new(text: &str, file: &File) -> Result<Self, ScenarioError> {
        let mut network = Self::default();
        if let Some(topology) = &file.topology {
            network.generate(text, topology)?;
        }
        for host in &file.hosts {
            network.add_host(text, host)?;
        }
        for switch in &file.switches {
            let number = network.switches.len();
            network.name(text, &switch.name, Place::Switch(number))?;
            network.switches.push(switch.name.get_ref().clone());
        }
        for link in &file.links {
            let names = link.between.get_ref();
            let at = link.between.span().start;
            let ends = [network.place(text, at, &names[0])?, network.place(text, at, &names[1])?];
            let name = match &link.name {
                Some(name) => name.get_ref().clone(),
                None => names.join("-"),
            };
            let at = link.name.as_ref().map_or(at, |name| name.span().start);
            if name.contains(['/', '\n']) || name.is_empty() {
                let message = format!("the link `{name}` has a slash or no name; rename it");
                return Err(ScenarioError::at(text, at, message));
            }
            if network.links.iter().any(|link| link.name == name) {
                let message = format!("two links have the name `{name}`; give one of them another");
                return Err(ScenarioError::at(text, at, message));
            }
            let [there, back] = link.ways();
            let ways = [way(text, &there)?, way(text, &back)?];
            network.links.push(LinkPlan { name, ends, ways });
        }
        network.check()?;
        Ok(network)
    }

    /// The place of a name.
    pub fn place(&self, text: &str, at: usize, name: &str) -> Result<Place, ScenarioError> {
        self.places.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.places.keys().map(String::as_str).collect();
            ScenarioError::at(text, at, unknown_name("host or switch", name, &known))
        })
    }

    fn name(&mut self, text: &str, name: &Spanned<String>, at: Place) -> Result<(), ScenarioError> {
        let error = |message: String| Err(ScenarioError::at(text, name.span().start, message));
        let name = name.get_ref();
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || matches!(c, '*' | '/')) {
            return error(format!("the name `{name}` is empty or has a blank, a star or a slash"));
        }
        if self.places.insert(name.clone(), at).is_some() {
            return error(format!("the name `{name}` is given twice; rename one of them"));
        }
        if self.places.len() > PLACES_MAX {
            return error(format!("more than {PLACES_MAX} hosts and switches, which is the limit"));
        }
        Ok(())
    }

    fn add_host(&mut self, text: &str, host: &HostKeys) -> Result<(), ScenarioError> {
        let number = self.hosts.len();
        // Keys of a host that a generator made are added to it.
        if let Some(Place::Host(known)) = self.places.get(host.name.get_ref()).copied()
            && self.hosts[known].is_generated
        {
            self.hosts[known].is_generated = false;
            return self.set_host(text, known, host);
        }
        self.name(text, &host.name, Place::Host(number))?;
        self.hosts.push(default_host(host.name.get_ref(), number, false));
        self.set_host(text, number, host)
    }

    fn set_host(&mut self, text: &str, at: usize, host: &HostKeys) -> Result<(), ScenarioError> {
        if let Some(address) = &host.address {
            let parsed: Option<Ipv4Addr> = address.get_ref().parse().ok();
            let parsed = parsed.filter(|ip| ip.octets()[0] == 10 && ip.octets()[3] != 255);
            let Some(parsed) = parsed else {
                let message = format!(
                    "the address `{}` is no IPv4 address in 10.0.0.0/8, on which all hosts are",
                    address.get_ref()
                );
                return Err(ScenarioError::at(text, address.span().start, message));
            };
            let same = self.hosts.iter().position(|other| other.address == parsed);
            if let Some(other) = same.filter(|other| *other != at) {
                let other = &self.hosts[other].name;
                let message =
                    format!("the address {parsed} is that of `{other}`, too; change one of them");
                return Err(ScenarioError::at(text, address.span().start, message));
            }
            self.hosts[at].address = parsed;
        }
        if let Some(window) = host.initial_window {
            self.hosts[at].initial_window = window.max(1);
        }
        if let Some(buffer) = &host.recv_buffer {
            let bytes = buffer_bytes(text, "recv_buffer", buffer)?;
            (self.hosts[at].recv_buffer, self.hosts[at].recv_buffer_max) = (bytes, bytes);
        }
        if let Some(buffer) = &host.recv_buffer_max {
            let bytes = buffer_bytes(text, "recv_buffer_max", buffer)?;
            let least = self.hosts[at].recv_buffer;
            if bytes < least {
                let message = format!("`recv_buffer_max` is {bytes} bytes, `recv_buffer` {least}");
                return Err(ScenarioError::at(text, buffer.span().start, message));
            }
            self.hosts[at].recv_buffer_max = bytes;
        }
        if let Some(buffer) = &host.send_buffer {
            self.hosts[at].send_buffer = Some(buffer_bytes(text, "send_buffer", buffer)?);
        }
        if let Some(delay) = host.delayed_ack {
            self.hosts[at].delayed_ack = Duration::from_nanos(delay.0);
        }
        Ok(())
    }

    fn generate(
        &mut self,
        text: &str,
        topology: &Spanned<TopologyKeys>,
    ) -> Result<(), ScenarioError> {
        let at = topology.span().start;
        let keys = topology.get_ref();
        let n = keys.n.unwrap_or(1);
        let most = match keys.kind {
            Shape::Pair => 1,
            Shape::Dumbbell | Shape::Star => PLACES_MAX / 2,
            Shape::ParkingLot => HOPS_MAX,
        };
        if !(1..=most).contains(&n) {
            let message = match most {
                1 => format!("`n = {n}`: a pair has one link; leave `n` out"),
                most => format!("`n = {n}`: expected 1 to {most}"),
            };
            return Err(ScenarioError::at(text, at, message));
        }
        if keys.kind == Shape::Pair && (keys.edge_rate.is_some() || keys.edge_delay.is_some()) {
            let message = "a pair has no edges: leave `edge_rate` and `edge_delay` out";
            return Err(ScenarioError::at(text, at, message));
        }
        let [there, back] = keys.ways();
        let middle = [way(text, &there)?, way(text, &back)?];
        let edge = Way { rate: keys.edge_rate, delay: keys.edge_delay, ..Way::default() };
        let edge = [way(text, &edge)?, way(text, &edge)?];
        match keys.kind {
            Shape::Pair => {
                let ends = [self.generated("a"), self.generated("b")];
                self.join("link", ends, middle);
            }
            Shape::Dumbbell => {
                let middles = [self.generated_switch("west"), self.generated_switch("east")];
                self.join("bottleneck", middles, middle);
                for number in 1..=n {
                    for (side, switch) in [("left", middles[0]), ("right", middles[1])] {
                        let name = format!("{side}{number}");
                        let host = self.generated(&name);
                        self.join(&name, [host, switch], edge.clone());
                    }
                }
            }
            Shape::Star => {
                let hub = self.generated_switch("hub");
                let server = self.generated("server");
                self.join("server", [hub, server], middle);
                for number in 1..=n {
                    let name = format!("host{number}");
                    let host = self.generated(&name);
                    self.join(&name, [host, hub], edge.clone());
                }
            }
            Shape::ParkingLot => self.generate_parking_lot(n, &middle, &edge),
        }
        Ok(())
    }

    /// Switches in a row, with a host at either end of the row, and of each link in it.
    fn generate_parking_lot(&mut self, hops: usize, middle: &[WayPlan; 2], edge: &[WayPlan; 2]) {
        let host = |network: &mut Self, name: &str, switch: Place| {
            let host = network.generated(name);
            network.join(name, [host, switch], edge.clone());
        };
        let mut here = self.generated_switch("switch1");
        host(self, "left", here);
        for hop in 1..=hops {
            let next = self.generated_switch(&format!("switch{}", hop + 1));
            self.join(&format!("hop{hop}"), [here, next], middle.clone());
            host(self, &format!("in{hop}"), here);
            host(self, &format!("out{hop}"), next);
            here = next;
        }
        host(self, "right", here);
    }

    fn generated(&mut self, name: &str) -> Place {
        let number = self.hosts.len();
        self.hosts.push(default_host(name, number, true));
        self.places.insert(name.to_owned(), Place::Host(number));
        Place::Host(number)
    }

    fn generated_switch(&mut self, name: &str) -> Place {
        let place = Place::Switch(self.switches.len());
        self.switches.push(name.to_owned());
        self.places.insert(name.to_owned(), place);
        place
    }

    fn join(&mut self, name: &str, ends: [Place; 2], ways: [WayPlan; 2]) {
        self.links.push(LinkPlan { name: name.to_owned(), ends, ways });
    }

    /// A number for each place: hosts first.
    fn number(&self, place: Place) -> usize {
        match place {
            Place::Host(host) => host,
            Place::Switch(switch) => self.hosts.len() + switch,
        }
    }

    /// Every host has one link, and all are joined without a loop: a switch would send a broadcast
    /// around a loop for ever.
    fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |message: String| Err(ScenarioError::without_line(message));
        if self.hosts.len() < 2 {
            return wrong(
                "the scenario has fewer than two hosts; add [topology] or [[host]]".into(),
            );
        }
        let mut joined: Vec<usize> = (0..self.hosts.len() + self.switches.len()).collect();
        let root = |joined: &[usize], mut at: usize| {
            while joined[at] != at {
                at = joined[at];
            }
            at
        };
        for link in &self.links {
            let [a, b] = link.ends.map(|end| root(&joined, self.number(end)));
            if a == b {
                let name = &link.name;
                return wrong(format!("the link `{name}` closes a loop; remove a link of it"));
            }
            joined[a] = b;
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let is_end = |link: &&LinkPlan| link.ends.contains(&Place::Host(number));
            let links = self.links.iter().filter(is_end).count();
            if links != 1 {
                let name = &host.name;
                return wrong(format!(
                    "the host `{name}` has {links} links, and needs one; join hosts by a [[switch]]"
                ));
            }
        }
        let first = root(&joined, 0);
        let apart = (0..joined.len()).find(|at| root(&joined, *at) != first);
        if let Some(apart) = apart {
            let names = self.hosts.iter().map(|host| &host.name).chain(&self.switches);
            let name = names.into_iter().nth(apart).map_or("", String::as_str);
            return wrong(format!(
                "`{name}` is not joined with `{}`; add a link",
                self.hosts[0].name
            ));
        }
        Ok(())
    }
}

fn default_host(name: &str, number: usize, is_generated: bool) -> HostPlan {
    let tcp = towpath_tcp::Config::default();
    // From 10.0.0.1 on, with 250 hosts in each 256 addresses.
    let (high, low) = (number / 250, number % 250 + 1);
    HostPlan {
        name: name.to_owned(),
        address: Ipv4Addr::new(10, 0, high as u8, low as u8),
        initial_window: tcp.initial_window,
        recv_buffer: RECV_BUFFER,
        recv_buffer_max: RECV_BUFFER,
        send_buffer: None,
        delayed_ack: tcp.delayed_ack,
        is_generated,
    }
}

/// Bytes of a buffer, within what a connection may have.
fn buffer_bytes(text: &str, key: &str, size: &Spanned<Size>) -> Result<u32, ScenarioError> {
    let bytes = size.get_ref().0;
    let fits = u32::try_from(bytes).ok();
    fits.filter(|bytes| (BUFFER_MIN..=RECV_BUFFER_MAX).contains(bytes)).ok_or_else(|| {
        let message = format!("`{key}` is {bytes} bytes; expected {BUFFER_MIN} B to 8128 KiB");
        ScenarioError::at(text, size.span().start, message)
    })
}

/// The properties of a direction.
fn way(text: &str, keys: &Way) -> Result<WayPlan, ScenarioError> {
    let probability = |share: Option<crate::units::Share>| share.unwrap_or_default().0;
    let chance = |share| Chance::independent(probability(share));
    let has_chance = keys.burst.is_some() || keys.loss.is_some();
    if let Some(lose) = keys.lose.as_ref().filter(|_| has_chance) {
        let message = "`lose` says which packets are lost: leave `loss` and `burst` out";
        return Err(ScenarioError::at(text, lose.span().start, message));
    }
    let numbered = keys.lose.as_ref().map(|lose| *lose.get_ref());
    let loss = match (numbered, keys.burst) {
        (Some(LoseKeys { first, count }), _) => Loss::Numbered { first, count },
        (None, Some(burst)) => Loss::GilbertElliott {
            to_bad: burst.enter.0,
            to_good: burst.leave.0,
            in_bad: burst.lost.map_or(Probability::ALWAYS, |lost| lost.0),
            in_good: probability(keys.loss),
        },
        (None, None) => Loss::Random(chance(keys.loss)),
    };
    let config = LinkConfig {
        rate: keys.rate.map(|rate| rate.0),
        delay_ns: keys.delay.unwrap_or_default().0,
        jitter_ns: keys.jitter.unwrap_or_default().0,
        keeps_order: true,
        loss,
        duplicate: chance(keys.duplicate),
        corrupt: chance(keys.corrupt),
        reorder: chance(keys.reorder),
        ..LinkConfig::default()
    };
    let queue = match &keys.qdisc {
        None => None,
        Some(words) => match QueueSpec::parse(words.get_ref()) {
            Ok(queue) => Some(queue),
            Err(message) => return Err(ScenarioError::at(text, words.span().start, message)),
        },
    };
    if queue.is_some() && config.rate.is_none() {
        let at = keys.qdisc.as_ref().map_or(0, |words| words.span().start);
        let message = "`qdisc` on a link without `rate` never has a queue; give the link a rate";
        return Err(ScenarioError::at(text, at, message));
    }
    let device = match &keys.device {
        None => None,
        Some(device) => {
            let error = |message| ScenarioError::at(text, device.span().start, message);
            Some(device_plan(device.get_ref(), config.rate).map_err(error)?)
        }
    };
    Ok(WayPlan { config, queue, outages: outages(keys)?, device })
}

/// The times in which a direction is down, which have to be apart and in order.
fn outages(keys: &Way) -> Result<Vec<Outage>, ScenarioError> {
    let mut outages: Vec<Outage> = Vec::new();
    for keys in keys.down.iter().flatten() {
        let until_ns = keys.length.map_or(u64::MAX, |length| keys.at.0.saturating_add(length.0));
        let last = outages.last().map_or(0, |last| last.until_ns);
        if keys.at.0 < last || keys.at.0 == until_ns {
            let message = format!(
                "`down` at {}: outages have a length, and each begins after the one before",
                keys.at
            );
            return Err(ScenarioError::without_line(message));
        }
        outages.push(Outage { from_ns: keys.at.0, until_ns });
    }
    Ok(outages)
}

/// Most descriptors of a ring: more than network cards have.
const RING_MAX: usize = 65_536;

fn device_plan(keys: &DeviceKeys, rate: Option<u64>) -> Result<DevicePlan, String> {
    let base = RingConfig::default();
    let Some(rate) = rate else {
        return Err("`device` on a link without `rate` is never full; give the link a rate".into());
    };
    let descriptors = keys.ring.unwrap_or(base.descriptors);
    if !(1..=RING_MAX).contains(&descriptors) {
        return Err(format!("`ring = {descriptors}`: expected 1 to {RING_MAX} descriptors"));
    }
    let frames = keys.frames.unwrap_or(base.frames);
    if !(1..=descriptors).contains(&frames) {
        return Err(format!(
            "`frames = {frames}`: expected 1 to {descriptors}, the descriptors of the ring"
        ));
    }
    let delay_ns = keys.delay.map_or(base.delay_ns, |delay| delay.0);
    if (frames > 1) != (delay_ns > 0) {
        return Err(format!(
            "`frames = {frames}` and `delay = {}`: an interrupt for several packets needs both, \
             the number and the longest wait for it",
            crate::units::Time(delay_ns)
        ));
    }
    let overhead = keys.overhead.map_or(base.overhead, |bytes| bytes.0);
    if overhead > 1_000 {
        return Err(format!("`overhead = {overhead}`: expected up to 1000 bytes for each packet"));
    }
    let ring = RingConfig { descriptors, rate, overhead, frames, delay_ns };
    Ok(DevicePlan { ring, limits: keys.bql.then(QueueLimitsConfig::default) })
}
