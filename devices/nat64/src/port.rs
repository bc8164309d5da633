//! The port: translates sent packets, and returns them as received ones.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use towpath_dice::Dice;
use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port, PortCounters};
use towpath_siit::{
    AddressMap, AddressPool, PoolRefusal, TranslationPrefix, Untranslatable, split_v6, v4_to_v6,
    v6_to_v4,
};
use towpath_wire::{Prefix, addr, ipv4, ipv6};

/// Default pool: half of the addresses for benchmarks (RFC 2544), which no network uses.
pub const POOL: &str = "198.18.0.0/16";
/// Maximum number of translated packets that wait for the router, which polls in every turn.
pub const QUEUE_MAX: usize = 1024;

/// Settings of a translator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nat64Config {
    /// Prefix of the IPv6 addresses that contain IPv4 addresses.
    pub prefix: TranslationPrefix,
    /// IPv4 addresses for IPv6 hosts.
    pub pool: Prefix,
}

impl Nat64Config {
    /// Parses `PREFIX[=POOL]`.
    ///
    /// # Errors
    /// Returns a sentence for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (prefix, pool) = text.split_once('=').unwrap_or((text, POOL));
        let prefix = prefix.parse()?;
        let known = pool.parse::<Prefix>().ok().filter(|pool| AddressPool::new(*pool).is_some());
        let pool = known.ok_or_else(|| {
            format!(
                "{pool:?} is not a pool of addresses: expected an IPv4 network of at least four \
                 addresses, as {POOL}"
            )
        })?;
        let config = Self { prefix, pool };
        let own = config.own().map(|(own, _)| own);
        match own.is_some_and(|own| prefix.represents(own)) {
            true => Ok(config),
            false => Err(format!(
                "{prefix} represents no private addresses (RFC 6052), and so not those of {pool}"
            )),
        }
    }

    /// Returns the addresses of the router on the port: its own one of the pool, and the IPv6
    /// address that contains it.
    #[must_use]
    pub fn addresses(&self) -> Vec<Prefix> {
        let Some((own, len)) = self.own() else { return Vec::new() };
        let v6 = Prefix::new(self.prefix.embed(own).into(), self.prefix.prefix().len());
        Prefix::new(own.into(), len).into_iter().chain(v6).collect()
    }

    fn own(&self) -> Option<(Ipv4Addr, u8)> {
        AddressPool::new(self.pool).map(|pool| (pool.own(), self.pool.len()))
    }
}

impl core::fmt::Display for Nat64Config {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.prefix)?;
        if self.pool.to_string() == POOL { Ok(()) } else { write!(f, "={}", self.pool) }
    }
}

towpath_pool::counters! {
    /// Counters of a translator.
    #[non_exhaustive]
    pub struct Counters {
        /// Packets translated to IPv4.
        to_v4,
        /// Packets translated to IPv6, before they were divided into fragments.
        to_v6,
        /// Packets dropped because no IPv4 address was free for their host.
        pool_exhausted,
        /// Packets dropped because the hosts of a /64 had a quarter of the pool.
        network_full,
        /// Packets dropped because their destination or source is not translated.
        no_address,
        /// Packets dropped because both ends are IPv6 hosts.
        hairpin,
        /// Packets dropped because too many translated ones were waiting.
        queue_full,
    }
}

/// A translator between IPv6 hosts and IPv4 servers.
#[derive(Debug)]
pub struct Nat64Port {
    hosts: TranslatedHosts,
    queue: Batch,
    idents: Dice,
    buffer: Vec<u8>,
    counters: Counters,
    untranslatable: [u64; Untranslatable::ALL.len()],
}

/// Addresses of both versions: embedded ones of servers, and those of hosts that have one.
#[derive(Debug)]
struct TranslatedHosts {
    prefix: TranslationPrefix,
    pool: AddressPool,
}

impl AddressMap for TranslatedHosts {
    fn v4_of(&self, addr: Ipv6Addr) -> Option<Ipv4Addr> {
        self.prefix.extract(addr).or_else(|| self.pool.v4_of(addr))
    }

    fn v6_of(&self, addr: Ipv4Addr) -> Option<Ipv6Addr> {
        if addr == self.pool.own() || !self.pool.contains(addr) {
            return Some(self.prefix.embed(addr));
        }
        self.pool.v6_of(addr)
    }
}

/// Reason why a packet is dropped.
#[derive(Debug, Clone, Copy)]
enum Nat64Drop {
    Pool(PoolRefusal),
    NoAddress,
    Hairpin,
    Untranslatable(Untranslatable),
}

impl From<Untranslatable> for Nat64Drop {
    fn from(reason: Untranslatable) -> Self {
        Self::Untranslatable(reason)
    }
}

impl Nat64Port {
    /// Creates a translator. `seed` determines the identifications of fragments. Returns `None` if
    /// the pool has no address.
    #[must_use]
    pub fn new(config: &Nat64Config, seed: u64) -> Option<Self> {
        let pool = AddressPool::new(config.pool)?;
        Some(Self {
            hosts: TranslatedHosts { prefix: config.prefix, pool },
            queue: Batch::new(),
            idents: Dice::new(seed, 0),
            buffer: Vec::new(),
            counters: Counters::default(),
            untranslatable: [0; Untranslatable::ALL.len()],
        })
    }

    /// Translates a packet, and writes the result to `buffer`.
    fn translate(&mut self, now_ns: u64, packet: &[u8]) -> Result<(), Nat64Drop> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => self.translate_to_v6(packet),
            Some(6) => self.translate_to_v4(now_ns, packet),
            _ => Err(Untranslatable::Malformed.into()),
        }
    }

    fn translate_to_v4(&mut self, now_ns: u64, packet: &[u8]) -> Result<(), Nat64Drop> {
        let parsed = ipv6::Header::parse(packet).map_err(|_| Untranslatable::Malformed);
        let (ipv6::Header { src, dst, .. }, _) = parsed?;
        let TranslatedHosts { prefix, pool } = &mut self.hosts;
        let server = prefix.extract(dst).filter(|server| prefix.represents(*server));
        let server = server.ok_or(Nat64Drop::NoAddress)?;
        if pool.contains(server) {
            return Err(Nat64Drop::Hairpin);
        }
        let own = prefix.extract(src);
        let host = match own {
            Some(own) if own == pool.own() => pool.reporter(),
            // A packet of a loop, or with a forged source (RFC 6146 section 3.5).
            Some(_) => return Err(Nat64Drop::Hairpin),
            None if !is_host(src) => return Err(Nat64Drop::NoAddress),
            None => pool.take(src, now_ns).map_err(Nat64Drop::Pool)?,
        };
        let ident = self.idents.next_u32() as u16;
        v6_to_v4(packet, host, server, &self.hosts, ident, &mut self.buffer)?;
        self.counters.to_v4 += 1;
        Ok(())
    }

    fn translate_to_v6(&mut self, packet: &[u8]) -> Result<(), Nat64Drop> {
        let parsed = ipv4::Header::parse(packet).map_err(|_| Untranslatable::Malformed);
        let (ipv4::Header { src, dst, .. }, _) = parsed?;
        let TranslatedHosts { prefix, pool } = &self.hosts;
        if pool.contains(src) && src != pool.own() {
            return Err(Nat64Drop::Hairpin);
        }
        if !prefix.represents(src) {
            return Err(Nat64Drop::NoAddress);
        }
        let host = pool.v6_of(dst).ok_or(Nat64Drop::NoAddress)?;
        let server = if src == pool.own() { pool.reporter() } else { src };
        v4_to_v6(packet, prefix.embed(server), host, &self.hosts, &mut self.buffer)?;
        self.counters.to_v6 += 1;
        Ok(())
    }

    /// Adds the packet in `buffer` to the queue. `divides` tells whether the packet may be divided
    /// into fragments.
    fn enqueue(&mut self, now_ns: u64, divides: bool, pool: &mut Pool) {
        let Self { queue, counters, buffer, idents, .. } = self;
        let mut add = |bytes: &[u8]| {
            if queue.len() >= QUEUE_MAX {
                counters.queue_full += 1;
                return;
            }
            let mut packet = pool.take(bytes.len());
            match packet.push_back(bytes.len()) {
                Some(space) => space.copy_from_slice(bytes),
                None => return pool.give(packet),
            }
            packet.meta.arrival_ns = now_ns;
            queue.push_back(packet);
        };
        match divides {
            true => split_v6(buffer, idents.next_u32(), add),
            false => add(buffer),
        }
    }

    fn count(&mut self, reason: Nat64Drop) {
        let counter = match reason {
            Nat64Drop::Pool(PoolRefusal::Exhausted) => &mut self.counters.pool_exhausted,
            Nat64Drop::Pool(PoolRefusal::NetworkFull) => &mut self.counters.network_full,
            Nat64Drop::NoAddress => &mut self.counters.no_address,
            Nat64Drop::Hairpin => &mut self.counters.hairpin,
            Nat64Drop::Untranslatable(reason) => {
                let place = Untranslatable::ALL.iter().position(|known| *known == reason);
                &mut self.untranslatable[place.unwrap_or_default()]
            }
        };
        *counter += 1;
    }

    /// Translates a packet of the router, and adds the result to the queue.
    fn take(&mut self, now_ns: u64, mut packet: Packet, pool: &mut Pool) {
        packet.linearize(pool);
        let bytes = packet.linear();
        // A packet that routers must not fragment stays whole. The IPv6 router in front of a link
        // with a lower MTU reports the MTU.
        let divides =
            bytes.first().is_some_and(|first| first >> 4 == 4) && !ipv4::forbids_fragments(bytes);
        match self.translate(now_ns, packet.linear()) {
            Ok(()) => self.enqueue(now_ns, divides, pool),
            Err(reason) => self.count(reason),
        }
        pool.give(packet);
    }
}

/// Returns whether an address can be that of an IPv6 host whose packets are translated.
fn is_host(src: Ipv6Addr) -> bool {
    let is_global = !src.is_unspecified() && !addr::is_link_local(IpAddr::V6(src));
    addr::is_valid_source_v6(src) && is_global
}

impl Port for Nat64Port {
    fn poll(&mut self, _now_ns: u64, _pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let count = self.queue.len().min(max);
        out.extend(self.queue.drain(..count));
        count
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let count = batch.len();
        while let Some(packet) = batch.pop_front() {
            self.take(now_ns, packet, pool);
        }
        count
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        (!self.queue.is_empty()).then_some(0)
    }

    fn counters(&self) -> PortCounters {
        let hosts = ("hosts", self.hosts.pool.len() as u64);
        let reasons = Untranslatable::ALL.iter().zip(self.untranslatable);
        let reasons = reasons.map(|(reason, count)| (reason.name(), count));
        vec![("nat64", std::iter::once(hosts).chain(self.counters.iter()).chain(reasons).collect())]
    }
}
