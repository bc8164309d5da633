//! Snapshot of the configuration that packets need: interfaces, addresses, routes and rules.
//!
//! A snapshot is immutable. Each change creates a new one, which shares the unchanged parts:
//!
//! - a router that stops answering copies the list of such routers;
//! - a route copies the nodes on the way to its network;
//! - an address copies the table of addresses, a group that of groups.

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

/// Configuration of the host at one time.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Incremented with each change that may invalidate a route ([`super::Net::route_generation`]).
    pub generation: u64,
    pub host: Arc<Host>,
    pub fib: Fib,
    /// Rules that packets are checked against; `None` accepts all packets.
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

/// Several threads share a snapshot.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Snapshot>();
};

/// Interfaces and addresses of the host.
#[derive(Debug)]
pub(super) struct Host {
    /// Interfaces by index, including removed ones.
    pub links: Vec<Link>,
    pub locals: Locals,
    /// At least one interface accepts packets to every unicast address as local.
    pub any_address: bool,
    /// Minimum MTU in bytes of all interfaces except loopback.
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

    /// Returns an interface, unless it was removed.
    #[inline]
    pub(super) fn link(&self, iface: IfaceId) -> Option<&Link> {
        self.links.get(iface.index()).filter(|link| !link.removed)
    }

    /// Returns the interfaces that exist.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| !link.removed)
    }
}

/// State of an interface at one time.
#[derive(Debug)]
pub struct Link {
    pub(super) id: IfaceId,
    /// Time of the addition; distinguishes interfaces with the same index.
    pub(super) added_at: Instant,
    /// Whether the interface was removed. Then `down` is set, too.
    pub(super) removed: bool,
    pub(super) name: Arc<str>,
    pub(super) kind: LinkType,
    pub(super) mac: MacAddr,
    pub(super) mtu: u32,
    pub(super) mtu_v6: u32,
    pub(super) down: bool,
    /// Hop limit of packets whose socket sets none.
    pub(super) hop_limit: u8,
    pub(super) offloads: Offloads,
    pub(super) any_address: bool,
    pub(super) kernel_cuts: bool,
    pub(super) in_process: bool,
    pub(super) addresses: Arc<[Address]>,
}

impl Link {
    /// Returns the interface's id.
    pub fn id(&self) -> IfaceId {
        self.id
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the link.
    pub fn link(&self) -> LinkType {
        self.kind
    }

    /// Returns the interface's MAC address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Returns the MTU in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns whether the operator set the interface down, so that it sends and receives no
    /// packets.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Returns the offloads of the device.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Returns the addresses, in the order of addition.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns whether the interface accepts packets to every unicast address as local.
    pub fn is_any_address(&self) -> bool {
        self.any_address
    }

    /// Returns the MTU in bytes for packets to `dst`. For IPv6, a router can advertise a smaller
    /// one.
    pub(crate) fn mtu_for(&self, dst: IpAddr) -> u32 {
        if dst.is_ipv6() { self.mtu_v6 } else { self.mtu }
    }
}
