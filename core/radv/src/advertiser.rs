//! The state machine of a sender of router advertisements. Read RFC 4861 §6.2 first.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use std::collections::VecDeque;

use towpath_dice::Dice;
use towpath_dns::Name;
use towpath_tcp::Instant;
use towpath_wire::ndp::{Preference, PrefixInfo, RouterAdvert};
use towpath_wire::{MacAddr, Prefix, addr};

use crate::frame::{self, AdvertContent, PREFIXES_MAX};

/// Constants of RFC 4861 §10.
const INITIAL_ADVERTS: u32 = 3;
const INITIAL_INTERVAL: Duration = Duration::from_secs(16);
const MIN_DELAY_BETWEEN_RAS: Duration = Duration::from_secs(3);
const MAX_RA_DELAY_TIME: Duration = Duration::from_millis(500);
/// Maximum number of frames that wait in `frames` to be sent. A call adds one frame, and the caller
/// sends it at once.
const FRAMES_MAX: usize = 4;

/// Configuration of a sender of router advertisements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertConfig {
    /// Ethernet address of the router.
    pub mac: MacAddr,
    /// Maximum time in seconds between two unsolicited advertisements.
    pub interval_max_s: u16,
    /// Time in seconds for which the router is a default router; 0 if it is not one.
    pub lifetime_s: u16,
    /// Valid lifetime in seconds of prefixes.
    pub valid_s: u32,
    /// Preferred lifetime in seconds of prefixes.
    pub preferred_s: u32,
    /// MTU of the link in bytes; `None` to leave out the option.
    pub mtu: Option<u32>,
    /// Whether addresses are available by DHCPv6 (flag M).
    pub managed: bool,
    /// Whether other configuration is available by DHCPv6 (flag O).
    pub other: bool,
    /// Nameservers of the hosts.
    pub servers: Vec<Ipv6Addr>,
    /// Whether the router itself is the first nameserver of the hosts.
    pub is_nameserver: bool,
    /// Search domains of the hosts.
    pub search: Vec<Name>,
}

/// Addresses of the router on the link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkAddresses {
    /// Link-local address; `None` as long as its uniqueness is not verified.
    pub link_local: Option<Ipv6Addr>,
    /// Other addresses, with the prefix lengths of their networks.
    pub addresses: Vec<Prefix>,
}

/// Counters of a sender of router advertisements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdvertCounters {
    /// Valid router solicitations received.
    pub rx_solicitations: u64,
    /// Advertisements sent.
    pub tx_advertisements: u64,
}

impl AdvertCounters {
    /// Returns all counters with their names.
    pub fn list(&self) -> [(&'static str, u64); 2] {
        let Self { rx_solicitations, tx_advertisements } = *self;
        [("rx_solicitations", rx_solicitations), ("tx_advertisements", tx_advertisements)]
    }
}

/// A prefix whose addresses the router no longer has.
#[derive(Debug, Clone, Copy)]
struct WithdrawnPrefix {
    network: Prefix,
    /// Number of advertisements that still contain it, with lifetime 0.
    left: u32,
}

/// A sender of router advertisements. Call [`Self::on_frame`] for each received frame for which
/// [`concerns`](crate::concerns) returns true, and [`Self::on_timeout`] at [`Self::next_timeout`].
/// After each call, send the frames.
#[derive(Debug)]
pub struct RouterAdvertiser {
    config: AdvertConfig,
    on_link: LinkAddresses,
    withdrawn: Vec<WithdrawnPrefix>,
    /// Time of the next advertisement; `None` without a link-local address.
    next_at: Option<Instant>,
    sent_at: Option<Instant>,
    /// Number of initial advertisements to send, which follow each other sooner.
    initial_left: u32,
    dice: Dice,
    frames: VecDeque<Vec<u8>>,
    counters: AdvertCounters,
}

impl RouterAdvertiser {
    /// Creates a sender, which is silent until the first [`Self::set_addresses`]. `seed` determines
    /// random delays.
    pub fn new(config: AdvertConfig, seed: u64) -> Self {
        Self {
            config,
            on_link: LinkAddresses::default(),
            withdrawn: Vec::new(),
            next_at: None,
            sent_at: None,
            initial_left: 0,
            dice: Dice::new(seed, 0),
            frames: VecDeque::new(),
            counters: AdvertCounters::default(),
        }
    }

    /// Sets the addresses of the router on the link. After a change, several advertisements follow
    /// soon (RFC 4861 §6.2.4).
    pub fn set_addresses(&mut self, now: Instant, on_link: LinkAddresses) {
        if on_link == self.on_link {
            return;
        }
        let before = networks(&self.on_link);
        self.on_link = on_link;
        let current = networks(&self.on_link);
        self.withdrawn.retain(|withdrawn| !current.contains(&withdrawn.network));
        for network in before.into_iter().filter(|network| !current.contains(network)) {
            self.withdrawn.push(WithdrawnPrefix { network, left: INITIAL_ADVERTS });
        }
        self.initial_left = INITIAL_ADVERTS;
        match self.on_link.link_local {
            Some(_) => self.advertise_soon(now),
            None => self.next_at = None,
        }
    }

    /// Handles a received frame. A solicitation is answered by an advertisement to all hosts.
    pub fn on_frame(&mut self, now: Instant, frame: &[u8], is_verified: bool) {
        if frame::is_solicitation(frame, is_verified) {
            self.counters.rx_solicitations += 1;
            if self.on_link.link_local.is_some() {
                self.advertise_soon(now);
            }
        }
    }

    /// Schedules an advertisement after a random delay, but not sooner than three seconds after the
    /// latest one (RFC 4861 §6.2.6).
    fn advertise_soon(&mut self, now: Instant) {
        let earliest = self.sent_at.map_or(now, |at| (at + MIN_DELAY_BETWEEN_RAS).max(now));
        let at = earliest + self.random(MAX_RA_DELAY_TIME);
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }

    /// Sends the advertisement that is due, and schedules the next one.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.next_at.is_none_or(|at| at > now) {
            return;
        }
        self.send(false);
        self.sent_at = Some(now);
        let max = Duration::from_secs(self.config.interval_max_s.into());
        // The minimum interval is a third of the maximum (RFC 4861 §6.2.1).
        let min = (max / 3).max(MIN_DELAY_BETWEEN_RAS);
        let mut interval = min + self.random(max.saturating_sub(min));
        self.initial_left = self.initial_left.saturating_sub(1);
        if self.initial_left > 0 {
            interval = interval.min(INITIAL_INTERVAL);
        }
        self.next_at = Some(now + interval);
    }

    /// Tells the hosts that the router is no longer their router (RFC 4861 §6.2.5).
    pub fn stop(&mut self) {
        if self.sent_at.is_some() {
            self.send(true);
        }
        self.next_at = None;
    }

    /// Returns the time at which [`Self::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.next_at
    }

    /// Removes and returns the oldest frame that is to be sent.
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &AdvertCounters {
        &self.counters
    }

    /// Queues an advertisement. If it is the last one before the router stops, the lifetimes of the
    /// router, nameservers and search domains are 0.
    fn send(&mut self, is_last: bool) {
        let Some(source) = self.on_link.link_local else { return };
        let prefixes = self.prefixes();
        let own = self.on_link.addresses.iter().find_map(global);
        let own = own.unwrap_or(source);
        let config = &self.config;
        let own = config.is_nameserver.then_some(own);
        let servers: Vec<_> = own.into_iter().chain(config.servers.iter().copied()).collect();
        let fields = RouterAdvert {
            hop_limit: 64,
            managed: config.managed,
            other: config.other,
            preference: Preference::Medium,
            lifetime_s: if is_last { 0 } else { config.lifetime_s },
            reachable_ms: 0,
            retrans_ms: 0,
            source_ll: Some(config.mac),
            mtu: config.mtu,
        };
        // Three intervals are the default of RFC 8106 §5.1.
        let names_lifetime_s = if is_last { 0 } else { u32::from(config.interval_max_s) * 3 };
        let content = AdvertContent {
            mac: config.mac,
            source,
            fields,
            prefixes: &prefixes,
            servers: &servers,
            search: &config.search,
            names_lifetime_s,
        };
        let frame = frame::advertisement(&content);
        if self.frames.len() < FRAMES_MAX {
            self.frames.push_back(frame);
            self.counters.tx_advertisements += 1;
        }
        self.withdrawn.iter_mut().for_each(|withdrawn| withdrawn.left -= 1);
        self.withdrawn.retain(|withdrawn| withdrawn.left > 0);
    }

    /// Returns the prefixes of the link, followed by withdrawn ones.
    fn prefixes(&self) -> Vec<PrefixInfo> {
        let AdvertConfig { valid_s, preferred_s, .. } = self.config;
        let info = |network: Prefix, valid_s, preferred_s| {
            let IpAddr::V6(prefix) = network.addr() else { return None };
            // Hosts can only configure addresses from prefixes of 64 bits (RFC 4862 §5.5.3).
            let (len, autonomous) = (network.len(), network.len() == 64);
            Some(PrefixInfo { prefix, len, on_link: true, autonomous, valid_s, preferred_s })
        };
        let current = networks(&self.on_link).into_iter();
        let current = current.filter_map(|network| info(network, valid_s, preferred_s));
        let withdrawn = self.withdrawn.iter().filter_map(|it| info(it.network, 0, 0));
        current.chain(withdrawn).take(PREFIXES_MAX).collect()
    }

    fn random(&mut self, below: Duration) -> Duration {
        Duration::from_nanos(self.dice.below(below.as_nanos() as u64))
    }
}

/// Returns an IPv6 address that is not link-local.
fn global(prefix: &Prefix) -> Option<Ipv6Addr> {
    match prefix.addr() {
        IpAddr::V6(ip) if !addr::is_link_local(ip.into()) => Some(ip),
        _ => None,
    }
}

/// Returns the IPv6 networks of the addresses, each once.
fn networks(on_link: &LinkAddresses) -> Vec<Prefix> {
    let mut networks = Vec::new();
    for prefix in on_link.addresses.iter().filter(|prefix| global(prefix).is_some()) {
        let network = prefix.trunc();
        // An address with the length 128 has no network.
        if network.len() < 128 && !networks.contains(&network) {
            networks.push(network);
        }
    }
    networks
}
