//! Snapshot of the configuration that packets need: interfaces, addresses, routes and rules.
//!
//! A snapshot is immutable. Each change creates a new snapshot, which shares the unchanged parts
//! with the previous one:
//!
//! - if a router stops answering, the list of such routers is copied;
//! - if a route changes, the trie nodes on the path to its network are copied;
//! - if an address or a multicast group changes, the table of addresses or of groups is copied.

use core::net::IpAddr;
use std::sync::Arc;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::fib::Fib;
use super::hash::{Cheap, Keyed};
use super::iface::{Address, IfaceId};
use super::limits::LOOPBACK_MTU;
use super::locals::Locals;
use super::rule_set::RuleSet;

/// IP configuration of the host at one point in time.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Number that increases with each change that may invalidate a route
    /// ([`super::Net::route_generation`]).
    pub generation: u64,
    pub host: Arc<Host>,
    pub fib: Fib,
    /// Rules of the packet filter; if this is `None`, all packets are accepted.
    pub rules: Option<Arc<RuleSet>>,
}

impl Snapshot {
    /// Creates the snapshot of a host without interfaces.
    pub(super) fn empty(hash: Cheap) -> Self {
        let host = Host::new(Vec::new(), Locals::new(hash));
        Self {
            generation: 0,
            host: Arc::new(host),
            fib: Fib::new(Keyed([0; 2]), false),
            rules: None,
        }
    }
}

/// Checks at compile time that several threads can share a snapshot.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Snapshot>();
};

/// Interfaces and addresses of the host.
#[derive(Debug)]
pub(super) struct Host {
    /// Interfaces by their index. Removed interfaces are included.
    pub links: Vec<Link>,
    pub locals: Locals,
    /// Whether at least one interface accepts packets to every unicast address as if it were an
    /// address of the interface.
    pub any_address: bool,
    /// Minimum of the MTUs of all interfaces except loopback, in bytes.
    pub mtu_min: u32,
}

impl Host {
    pub(super) fn new(links: Vec<Link>, locals: Locals) -> Self {
        let any_address = links.iter().any(|link| link.any_address);
        let mtus =
            links.iter().skip(1).filter(|link| !link.removed).map(|link| link.mtu.min(link.mtu_v6));
        let mtu_min = mtus.min().unwrap_or(LOOPBACK_MTU);
        Self { links, locals, any_address, mtu_min }
    }

    /// Returns an interface; `None` if it was removed.
    #[inline]
    pub(super) fn link(&self, iface: IfaceId) -> Option<&Link> {
        self.links.get(iface.index()).filter(|link| !link.removed)
    }

    /// Returns the interfaces that exist.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| !link.removed)
    }
}

/// State of a network interface at one time.
#[derive(Debug)]
pub struct Link {
    pub(super) id: IfaceId,
    /// Time at which the interface was added. Distinguishes it from an earlier interface with the
    /// same index.
    pub(super) added_at: Instant,
    /// Whether the interface was removed. If so, `down` is set as well.
    pub(super) removed: bool,
    pub(super) name: Arc<str>,
    pub(super) kind: LinkType,
    pub(super) mac: MacAddr,
    pub(super) mtu: u32,
    pub(super) mtu_v6: u32,
    pub(super) down: bool,
    /// Hop limit of packets for which the socket sets none.
    pub(super) hop_limit: u8,
    pub(super) offloads: Offloads,
    pub(super) any_address: bool,
    pub(super) kernel_cuts: bool,
    pub(super) in_process: bool,
    pub(super) addresses: Arc<[Address]>,
}

impl Link {
    /// Returns the identifier of the interface.
    pub fn id(&self) -> IfaceId {
        self.id
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the link: Ethernet or IP.
    pub fn link(&self) -> LinkType {
        self.kind
    }

    /// Returns the interface's MAC address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Returns the MTU of the interface in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns whether the operator has set the interface down, so that it neither sends nor
    /// receives packets.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Returns the offloads that the interface's device supports.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Returns the addresses of the interface, in the order in which they were added.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns whether the interface accepts packets to every unicast address as if it were an
    /// address of the interface.
    pub fn is_any_address(&self) -> bool {
        self.any_address
    }

    /// Returns the MTU in bytes for packets to `dst`. The MTU for IPv6 may be smaller, if a router
    /// advertises it.
    pub(crate) fn mtu_for(&self, dst: IpAddr) -> u32 {
        if dst.is_ipv6() { self.mtu_v6 } else { self.mtu }
    }
}
