//! Bindings of a DHCP server: which client has which address.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeMap;

use towpath_dice::mix;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::{LeaseRecord, Reservation, ServerConfig};

/// Maximum number of addresses in the pool. A request may search all addresses, so this bounds the
/// time to answer it.
pub const POOL_MAX: usize = 4096;
/// Maximum number of addresses per Ethernet address, including addresses that this host reported as
/// in use. Otherwise a host with many client identifiers could use up the pool.
const PER_MAC_MAX: usize = 4;

/// State of the binding of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BindingState {
    /// The address was offered, and the client has not requested it yet.
    Offered,
    /// The address was leased to the client.
    Leased,
    /// A host uses the address without a lease, so the server does not offer the address.
    Blocked,
}

/// An address that is bound to a client until a certain time. After that time the client still gets
/// the same address, unless the server has assigned it to another client.
#[derive(Debug, Clone)]
pub(super) struct Binding {
    pub client: Vec<u8>,
    pub mac: MacAddr,
    pub until: Instant,
    pub state: BindingState,
    pub host_name: Option<String>,
}

/// Result of choosing an address for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chosen {
    /// An address that is bound to the client now.
    Known(Ipv4Addr),
    /// An address that is not bound to the client, or whose binding has ended.
    New(Ipv4Addr),
    /// No address: the client already has the maximum number of addresses.
    ClientFull,
    /// No address: all addresses of the pool are bound.
    PoolFull,
}

#[derive(Debug)]
pub(super) struct Bindings {
    first: u32,
    last: u32,
    own: Ipv4Addr,
    reservations: Vec<Reservation>,
    key: u64,
    by_address: BTreeMap<Ipv4Addr, Binding>,
    by_client: BTreeMap<Vec<u8>, Ipv4Addr>,
    /// Time before which no address of the pool becomes free, unless a binding changes. Until then
    /// requests need no search of the pool.
    full_until: Instant,
}

impl Bindings {
    pub fn new(config: &ServerConfig, key: u64) -> Self {
        let mut bindings = Self {
            first: 0,
            last: 0,
            own: Ipv4Addr::UNSPECIFIED,
            reservations: Vec::new(),
            key,
            by_address: BTreeMap::new(),
            by_client: BTreeMap::new(),
            full_until: Instant::ZERO,
        };
        bindings.reconfigure(config);
        bindings
    }

    /// Replaces the pool and the reservations. Bindings of other addresses are removed.
    pub fn reconfigure(&mut self, config: &ServerConfig) {
        let (first, last) = (config.pool.0.to_bits(), config.pool.1.to_bits());
        self.first = first;
        self.last = last.min(first.saturating_add(POOL_MAX as u32 - 1));
        self.own = match config.address.addr() {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        self.reservations.clone_from(&config.reservations);
        self.full_until = Instant::ZERO;
        let bindings = std::mem::take(&mut self.by_address);
        self.by_client.clear();
        bindings.into_iter().for_each(|(address, binding)| self.restore(address, binding));
    }

    /// Removes all bindings.
    pub fn clear(&mut self) {
        self.by_address.clear();
        self.by_client.clear();
        self.full_until = Instant::ZERO;
    }

    /// Returns the number of addresses with a binding, including bindings that have ended.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        assert!(self.by_client.len() <= self.by_address.len());
        self.by_address.len()
    }

    /// Returns the address that is, or was last, bound to a client.
    pub fn of_client(&self, client: &[u8]) -> Option<Ipv4Addr> {
        self.by_client.get(client).copied()
    }

    /// Returns whether an address is bound to the given client at the time `now`.
    pub fn is_of(&self, now: Instant, client: &[u8], address: Ipv4Addr) -> bool {
        let is_bound = |binding: &Binding| binding.client == client && now < binding.until;
        self.by_address.get(&address).is_some_and(is_bound)
    }

    /// Returns whether a client may extend the binding of [`Self::of_client`], even if that binding
    /// has ended.
    pub fn is_extendable(&self, now: Instant, client: &[u8], mac: MacAddr) -> bool {
        let is_bound = |address| self.is_of(now, client, address);
        self.of_client(client).is_some_and(is_bound) || self.has_room(now, client, mac)
    }

    /// Returns whether `client` may have an address. Clients with the same Ethernet address share
    /// one limit on the number of addresses.
    fn has_room(&self, now: Instant, client: &[u8], mac: MacAddr) -> bool {
        let is_others = |binding: &&Binding| {
            binding.mac == mac && binding.client != client && now < binding.until
        };
        self.by_address.values().filter(is_others).count() < PER_MAC_MAX
    }

    pub fn is_leased(&self, now: Instant, address: Ipv4Addr) -> bool {
        let is_leased =
            |binding: &Binding| binding.state == BindingState::Leased && now < binding.until;
        self.by_address.get(&address).is_some_and(is_leased)
    }

    pub fn leases(&self, now: Instant) -> impl Iterator<Item = LeaseRecord> {
        let leased = move |(_, binding): &(&Ipv4Addr, &Binding)| {
            binding.state == BindingState::Leased && now < binding.until
        };
        self.by_address.iter().filter(leased).map(|(address, binding)| LeaseRecord {
            address: *address,
            mac: binding.mac,
            client: binding.client.clone(),
            until: binding.until,
            host_name: binding.host_name.clone(),
        })
    }

    /// Adds a binding from before a restart of the server.
    pub fn restore(&mut self, address: Ipv4Addr, binding: Binding) {
        let is_reserved = self.reserved(binding.mac) == Some(address);
        if is_reserved || self.is_in_pool(address) {
            self.hold(address, binding);
        }
    }

    /// Binds an address to a client. A client has only one address, so the address that it had
    /// before becomes free.
    pub fn hold(&mut self, address: Ipv4Addr, binding: Binding) {
        self.full_until = Instant::ZERO;
        if let Some(old) = self.by_address.remove(&address) {
            self.by_client.remove(&old.client);
        }
        if !binding.client.is_empty()
            && let Some(earlier) = self.by_client.insert(binding.client.clone(), address)
        {
            self.by_address.remove(&earlier);
        }
        self.by_address.insert(address, binding);
    }

    /// Ends the binding of a client that releases its lease. The client later gets the same address
    /// again, if the address is still free.
    pub fn release(&mut self, now: Instant, client: &[u8], address: Ipv4Addr) -> bool {
        let is_of = self.is_of(now, client, address);
        if let Some(binding) = self.by_address.get_mut(&address).filter(|_| is_of) {
            binding.until = now;
            self.full_until = Instant::ZERO;
        }
        is_of
    }

    /// Ends the binding of an address that was offered, and that the client has not requested.
    pub fn withdraw(&mut self, now: Instant, client: &[u8]) {
        let Some(address) = self.of_client(client) else { return };
        if let Some(binding) = self.by_address.get_mut(&address)
            && binding.state == BindingState::Offered
        {
            binding.until = binding.until.min(now);
            self.full_until = Instant::ZERO;
        }
    }

    /// Chooses an address for a client.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.3.1
    //# If an address is available, the new address
    //# SHOULD be chosen as follows:
    pub fn choose(
        &mut self,
        now: Instant,
        client: &[u8],
        mac: MacAddr,
        requested: Option<Ipv4Addr>,
    ) -> Chosen {
        let reserved = self.reserved(mac);
        let may_keep = |known: &Ipv4Addr| {
            reserved.is_none_or(|it| it == *known) && !self.is_reserved_for_other(mac, *known)
        };
        let known = self.of_client(client).filter(may_keep);
        if let Some(address) = known.filter(|known| self.is_of(now, client, *known)) {
            return Chosen::Known(address);
        }
        if reserved.is_none() && now < self.full_until {
            return Chosen::PoolFull;
        }
        if !self.has_room(now, client, mac) {
            return Chosen::ClientFull;
        }
        if let Some(address) = known {
            return Chosen::New(address);
        }
        let is_possible =
            |address: &Ipv4Addr| self.is_in_pool(*address) && self.is_free(now, *address);
        let address = reserved
            .filter(|address| self.is_free(now, *address))
            .or_else(|| requested.filter(is_possible))
            .or_else(|| self.unused(mac))
            .or_else(|| self.longest_ended(now));
        let Some(address) = address else {
            self.full_until = self.first_end();
            return Chosen::PoolFull;
        };
        Chosen::New(address)
    }

    /// Returns the earliest time at which a binding of the pool ends.
    fn first_end(&self) -> Instant {
        let in_pool = self.by_address.iter().filter(|(address, _)| self.is_in_pool(**address));
        in_pool.map(|(_, binding)| binding.until).min().unwrap_or(Instant::FAR)
    }

    fn reserved(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.reservations.iter().find(|it| it.mac == mac).map(|it| it.address)
    }

    /// Returns whether an address is reserved for an Ethernet address other than `mac`.
    pub fn is_reserved_for_other(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        self.reservations.iter().any(|it| it.address == address && it.mac != mac)
    }

    fn is_free(&self, now: Instant, address: Ipv4Addr) -> bool {
        self.by_address.get(&address).is_none_or(|binding| binding.until <= now)
    }

    /// Returns whether the address is in the pool and not reserved, so that any client can obtain
    /// it.
    fn is_in_pool(&self, address: Ipv4Addr) -> bool {
        let is_reserved = || self.reservations.iter().any(|it| it.address == address);
        (self.first..=self.last).contains(&address.to_bits())
            && address != self.own
            && !is_reserved()
    }

    /// Returns an address that was never bound to a client. The search begins at a position that is
    /// computed from the client's Ethernet address. A server that lost its bindings therefore
    /// assigns the same addresses again.
    fn unused(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        let [a, b, c, d, e, f] = mac.0.map(u64::from);
        let number = a << 40 | b << 32 | c << 24 | d << 16 | e << 8 | f;
        let size = u64::from(self.last.checked_sub(self.first)?) + 1;
        let start = mix(self.key ^ number) % size;
        let all =
            (start..size).chain(0..start).map(|at| Ipv4Addr::from_bits(self.first + at as u32));
        let is_unused = |address: &Ipv4Addr| {
            self.is_in_pool(*address) && !self.by_address.contains_key(address)
        };
        all.into_iter().find(is_unused)
    }

    /// Returns the address whose binding ended the longest time ago.
    fn longest_ended(&self, now: Instant) -> Option<Ipv4Addr> {
        let ended = self
            .by_address
            .iter()
            .filter(|(address, binding)| binding.until <= now && self.is_in_pool(**address));
        ended.min_by_key(|(_, binding)| binding.until).map(|(address, _)| *address)
    }
}
