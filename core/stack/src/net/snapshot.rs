//! The configuration that packets go by: interfaces, addresses, routes and rules at one time.
//!
//! A snapshot never changes. Each change makes a new one, which shares the unchanged parts:
//!
//! - a router that stops answering copies the list of such routers;
//! - a route copies the nodes on the way to its network;
//! - an address copies the table of addresses, a group that of groups.

use core::net::IpAddr;
use std::sync::Arc;

use towpath_pool::{LinkType, Offloads};
use towpath_wire::MacAddr;

use super::fib::Fib;
use super::hash::{Cheap, Keyed};
use super::iface::{Address, IfaceId};
use super::limits::LOOPBACK_MTU;
use super::locals::Locals;
use super::rule_set::RuleSet;

/// The host at one time.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Goes up with each change that may void a route ([`super::Net::route_generation`]).
    pub generation: u64,
    pub host: Arc<Host>,
    pub fib: Fib,
    /// Rules that packets are judged by; `None` lets all pass.
    pub rules: Option<Arc<RuleSet>>,
}

impl Snapshot {
    /// The snapshot of a host without interfaces.
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

/// Several threads may look at one.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Snapshot>();
};

/// Interfaces and addresses.
#[derive(Debug)]
pub(super) struct Host {
    /// By number of the interface.
    pub links: Vec<Link>,
    pub locals: Locals,
    /// Some interface takes every unicast destination for its own.
    pub any_address: bool,
    /// Least MTU of any interface but loopback, in bytes.
    pub mtu_min: u32,
}

impl Host {
    pub(super) fn new(links: Vec<Link>, locals: Locals) -> Self {
        let any_address = links.iter().any(|link| link.any_address);
        let mtus = links.iter().skip(1).map(|link| link.mtu.min(link.mtu_v6));
        let mtu_min = mtus.min().unwrap_or(LOOPBACK_MTU);
        Self { links, locals, any_address, mtu_min }
    }
}

/// An interface as it was at one time.
#[derive(Debug)]
pub struct Link {
    pub(super) id: IfaceId,
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
    /// Its id.
    pub fn id(&self) -> IfaceId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Header that its packets begin with.
    pub fn link(&self) -> LinkType {
        self.kind
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Longest IP packet in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Whether the operator set it down: nothing is sent or received.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Work that its device takes over.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Its addresses, in order of adding.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Whether every unicast destination is local on it.
    pub fn is_any_address(&self) -> bool {
        self.any_address
    }

    /// Longest IP packet in bytes that may be sent to `dst`: routers may ask for less with IPv6.
    pub(crate) fn mtu_for(&self, dst: IpAddr) -> u32 {
        if dst.is_ipv6() { self.mtu_v6 } else { self.mtu }
    }
}
