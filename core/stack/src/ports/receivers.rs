//! Sockets that receive packets for a local address and port: listeners, and datagram sockets
//! without a peer. Each protocol has its own table.
//!
//! Any number of sockets may share an address and port (SO_REUSEPORT, SO_REUSEADDR), on any number
//! of devices. The time for a packet, an insertion or a removal does not depend on the number of
//! sockets.

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;

use crate::net::IfaceId;
use crate::net::hash::Keyed;
use crate::ports::bind_addr::{BindAddr, PortProtocol, Sharing};
use crate::tables::flow::on_device;
use crate::tables::lines::SocketLines;

/// Table of the sockets that receive packets of one protocol from new peers.
#[derive(Debug)]
pub(crate) struct Receivers {
    key: Keyed,
    of: PortProtocol,
    groups: HashTable<ReceiverGroup>,
    members: SocketLines<GroupReceiver>,
    /// Number of sockets that are bound to an interface. If it is 0, lookups do not search for such
    /// sockets.
    on_device: usize,
    /// Number of receiver groups for each kind of bound address: a single address, all of IPv4,
    /// only IPv6, and both IP versions.
    bound: [usize; 4],
    /// Number of sockets that were inserted into this table so far.
    joined: u64,
    /// Number of sockets with SO_INCOMING_CPU. If it is 0, lookups ignore the CPU on which a packet
    /// arrived.
    with_processor: usize,
    /// CPU on which packets arrive; the owner of the stack sets it.
    here: Option<u32>,
    /// Number of groups of sockets that lookups have compared so far, as a measure of their work.
    pub compared: Cell<u64>,
}

/// Sockets that receive packets to the same address and port. All of them are bound to the same
/// interface, or to none.
#[derive(Debug)]
struct ReceiverGroup {
    hash: u64,
    addr: BindAddr,
    port: u16,
    device: Option<IfaceId>,
    /// Socket of the group that was bound last.
    newest: Option<u32>,
    /// Number of the reuseport group of the newest socket. `None` if the newest socket shares no
    /// packets, and receives all of them.
    shares: Option<u64>,
    /// Sockets of each of Linux's reuseport groups, by the number of the group's first socket. A
    /// socket remains in its group until it is closed. Usually there is only one group. A new one
    /// begins if no older socket has SO_REUSEPORT when a socket is added.
    sharing: BTreeMap<u64, Vec<u32>>,
    /// Sockets of the group that currently have SO_REUSEPORT, in the order in which they were
    /// bound.
    willing: BTreeSet<(u64, u32)>,
    /// Number of sockets of the group with SO_INCOMING_CPU.
    with_processor: usize,
}

/// A socket in a group of sockets that are bound to the same address, port and interface.
#[derive(Debug)]
struct GroupReceiver {
    /// Number of sockets that were inserted into the table before this one.
    number: u64,
    device: Option<IfaceId>,
    /// Position of the socket in its reuseport group. `None` if the socket does not share packets
    /// by SO_REUSEPORT.
    slot: Option<SharingSlot>,
    /// Preferred CPU of the socket (SO_INCOMING_CPU).
    processor: Option<u32>,
}

/// Position of a socket in a reuseport group, whose sockets share packets.
#[derive(Debug, Clone, Copy)]
struct SharingSlot {
    /// Number of the first socket of the reuseport group.
    began: u64,
    at: usize,
}

impl ReceiverGroup {
    fn is(&self, addr: BindAddr, port: u16, device: Option<IfaceId>) -> bool {
        self.addr == addr && self.port == port && self.device == device
    }

    /// Chooses the socket of a group that receives a packet. As on Linux this is the newest socket,
    /// because SO_REUSEADDR permitted it to replace the older ones.
    ///
    /// If the newest socket has SO_REUSEPORT, the uniformly random number `pick` selects a position
    /// in its reuseport group. The first socket from this position on that prefers the CPU `here`
    /// receives the packet, if there is one.
    #[inline]
    fn choose(
        &self,
        pick: u32,
        members: &SocketLines<GroupReceiver>,
        here: Option<u32>,
    ) -> Option<u32> {
        let Some(shares) = self.shares else { return self.newest };
        let sharing = self.sharing.get(&shares)?;
        // Linux's `reciprocal_scale`: scale the 32-bit number `pick` to a position among the
        // sockets.
        let slot = (u64::from(pick) * sharing.len() as u64) >> u32::BITS;
        let slot = slot as usize;
        if self.with_processor > 0 && here.is_some() {
            // Prefer a socket with the CPU `here`, as in `reuseport_select_sock_by_hash`.
            let is_here =
                |socket: &&u32| members.get(**socket).is_some_and(|it| it.processor == here);
            let (before, from) = sharing.split_at(slot);
            if let Some(socket) = from.iter().chain(before).find(is_here) {
                return Some(*socket);
            }
        }
        sharing.get(slot).copied()
    }

    /// Adds `socket` to the reuseport group with number `began`, or to a new group if this is
    /// `None`. Does nothing if the socket is already in a group. Returns the number of its group.
    fn share(
        &mut self,
        members: &mut SocketLines<GroupReceiver>,
        socket: u32,
        began: Option<u64>,
    ) -> Option<u64> {
        let member = members.get_mut(socket)?;
        if member.slot.is_none() {
            let began = began.unwrap_or(member.number);
            let sharing = self.sharing.entry(began).or_default();
            member.slot = Some(SharingSlot { began, at: sharing.len() });
            sharing.push(socket);
        }
        member.slot.map(|slot| slot.began)
    }

    /// Removes a socket from its reuseport group. As in `__reuseport_detach_sock`, the last socket
    /// of the group takes the position of the removed one.
    fn leave_slot(&mut self, members: &mut SocketLines<GroupReceiver>, slot: SharingSlot) {
        let SharingSlot { began, at } = slot;
        let Entry::Occupied(mut sharing) = self.sharing.entry(began) else { return };
        sharing.get_mut().swap_remove(at);
        let moved = sharing.get().get(at).and_then(|moved| members.get_mut(*moved));
        if let Some(moved) = moved {
            moved.slot = Some(slot);
        }
        if sharing.get().is_empty() {
            sharing.remove();
        }
    }

    /// Determines again which sockets receive packets, after a change of the group.
    fn settle(&mut self, members: &SocketLines<GroupReceiver>) {
        let newest = self.newest.and_then(|socket| Some((socket, members.get(socket)?)));
        self.shares = newest
            .filter(|(socket, member)| self.willing.contains(&(member.number, *socket)))
            .and_then(|(_, member)| member.slot.map(|slot| slot.began));
    }
}

impl Receivers {
    pub fn new(key: Keyed, of: PortProtocol) -> Self {
        Self {
            key,
            of,
            groups: HashTable::new(),
            members: SocketLines::default(),
            on_device: 0,
            bound: [0; 4],
            joined: 0,
            with_processor: 0,
            here: None,
            compared: Cell::new(0),
        }
    }

    /// Returns the number of combinations of address, port and interface at which sockets receive
    /// packets.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Adds a socket that receives packets to `addr` and `port`.
    pub fn insert(
        &mut self,
        addr: BindAddr,
        port: u16,
        socket: u32,
        device: Option<IfaceId>,
        sharing: Sharing,
    ) {
        let hash = self.hash(addr, port, device);
        let entry = self.groups.entry(hash, |group| group.is(addr, port, device), |g| g.hash);
        let new = || ReceiverGroup {
            hash,
            addr,
            port,
            device,
            newest: None,
            shares: None,
            sharing: BTreeMap::new(),
            willing: BTreeSet::new(),
            with_processor: 0,
        };
        self.bound[Self::class(addr)] += usize::from(matches!(entry, Slot::Vacant(_)));
        let group = entry.or_insert_with(new).into_mut();
        let number = self.joined;
        self.joined += 1;
        self.on_device += usize::from(device.is_some());
        let member = GroupReceiver { number, device, slot: None, processor: None };
        self.members.push(&mut group.newest, socket, member);
        if sharing.reuse_port && shares_at_all(self.of) {
            // As in `udp_reuseport_add_sock`, the socket joins the reuseport group of the newest
            // socket with SO_REUSEPORT. If that socket set the option after its bind, it is not in
            // a group yet, so a group is created for it.
            let last = group.willing.last().copied();
            let began = last.and_then(|(_, last)| group.share(&mut self.members, last, None));
            group.share(&mut self.members, socket, began);
            group.willing.insert((number, socket));
        }
        group.settle(&self.members);
    }

    /// Sets or clears SO_REUSEPORT of a socket. Has no effect if the socket does not receive
    /// packets.
    pub fn set_reuse_port(&mut self, addr: BindAddr, port: u16, socket: u32, reuse_port: bool) {
        let Some(member) = self.members.get(socket) else { return };
        let (number, device) = (member.number, member.device);
        let hash = self.hash(addr, port, device);
        let group = self.groups.find_mut(hash, |group| group.is(addr, port, device));
        let Some(group) = group.filter(|_| shares_at_all(self.of)) else { return };
        match reuse_port {
            true => group.willing.insert((number, socket)),
            false => group.willing.remove(&(number, socket)),
        };
        group.settle(&self.members);
    }

    /// Sets SO_INCOMING_CPU of a socket. Has no effect if the socket does not receive packets.
    pub fn set_processor(
        &mut self,
        addr: BindAddr,
        port: u16,
        socket: u32,
        processor: Option<u32>,
    ) {
        let Some(member) = self.members.get_mut(socket) else { return };
        let before = std::mem::replace(&mut member.processor, processor);
        let device = member.device;
        let hash = self.hash(addr, port, device);
        let group = self.groups.find_mut(hash, |group| group.is(addr, port, device));
        let Some(group) = group else { return };
        for count in [&mut group.with_processor, &mut self.with_processor] {
            *count += usize::from(processor.is_some());
            *count -= usize::from(before.is_some());
        }
    }

    /// Returns whether the CPU on which a packet arrives affects which socket receives it.
    pub fn minds_processor(&self) -> bool {
        self.with_processor > 0
    }

    /// Sets the CPU on which packets arrive.
    pub fn runs_on(&mut self, processor: u32) {
        self.here = Some(processor);
    }

    /// Removes a socket that [`Receivers::insert`] added. Has no effect if the socket is not in the
    /// table.
    pub fn remove(&mut self, addr: BindAddr, port: u16, socket: u32) {
        let Some(device) = self.members.get(socket).map(|member| member.device) else { return };
        let hash = self.hash(addr, port, device);
        let entry = self.groups.find_entry(hash, |group| group.is(addr, port, device));
        let Ok(mut entry) = entry else { return };
        let group = entry.get_mut();
        let Some(gone) = self.members.remove(&mut group.newest, socket) else { return };
        self.on_device -= usize::from(device.is_some());
        self.with_processor -= usize::from(gone.processor.is_some());
        if group.newest.is_none() {
            entry.remove();
            self.bound[Self::class(addr)] -= 1;
            return;
        }
        group.willing.remove(&(gone.number, socket));
        group.with_processor -= usize::from(gone.processor.is_some());
        if let Some(slot) = gone.slot {
            group.leave_slot(&mut self.members, slot);
        }
        group.settle(&self.members);
    }

    /// Returns the socket that receives a packet to `addr` and `port` that arrived on the interface
    /// `iface`. The random number `pick` chooses among sockets that share packets.
    #[inline]
    pub fn find(&self, addr: IpAddr, port: u16, iface: IfaceId, pick: u32) -> Option<u32> {
        self.candidates(addr, port, iface)
            .find_map(|group| group.choose(pick, &self.members, self.here))
    }

    /// Returns all sockets that receive a multicast datagram to `addr` and `port` that arrived on
    /// the interface `iface`. The most specific sockets come first.
    pub fn all(&self, addr: IpAddr, port: u16, iface: IfaceId) -> impl Iterator<Item = u32> + '_ {
        let groups = self.candidates(addr, port, iface);
        groups.flat_map(|group| self.members.iter(group.newest)).map(|(socket, _)| socket)
    }

    /// Returns the groups of sockets that match a packet. The order is: bound to the address, to
    /// the wildcard of its IP version, and to the dual-stack wildcard. If two groups have the same
    /// kind of address, the group that is bound to the interface comes first.
    ///
    /// For UDP, a bind to the interface takes precedence over the IP version, as in Linux's
    /// `compute_score`. For TCP, both are equal.
    #[inline]
    fn candidates(&self, addr: IpAddr, port: u16, iface: IfaceId) -> Candidates<'_> {
        let any = if addr.is_ipv4() { BindAddr::AnyV4 } else { BindAddr::AnyV6 };
        let (here, exact, dual) = (Some(iface), BindAddr::Ip(addr), BindAddr::AnyDual);
        let wanted = match self.of {
            PortProtocol::Udp => [(any, here), (dual, here), (any, None), (dual, None)],
            PortProtocol::Tcp | PortProtocol::Echo => {
                [(any, here), (any, None), (dual, here), (dual, None)]
            }
        };
        let wanted = [(exact, here), (exact, None), wanted[0], wanted[1], wanted[2], wanted[3]];
        Candidates { receivers: self, port, wanted, next: 0 }
    }

    /// Returns false if no socket is bound to this kind of address and interface, so that the
    /// lookup can be skipped.
    #[inline]
    fn may_have(&self, addr: BindAddr, device: Option<IfaceId>) -> bool {
        self.bound[Self::class(addr)] > 0 && (device.is_none() || self.on_device > 0)
    }

    /// Returns the index in `bound` for this kind of address.
    #[inline]
    fn class(addr: BindAddr) -> usize {
        match addr {
            BindAddr::Ip(_) => 0,
            BindAddr::AnyV4 => 1,
            BindAddr::AnyV6 => 2,
            BindAddr::AnyDual => 3,
        }
    }

    #[inline]
    fn group(&self, addr: BindAddr, port: u16, device: Option<IfaceId>) -> Option<&ReceiverGroup> {
        self.groups.find(self.hash(addr, port, device), |group| {
            self.compared.set(self.compared.get() + 1);
            group.is(addr, port, device)
        })
    }

    fn hash(&self, addr: BindAddr, port: u16, device: Option<IfaceId>) -> u64 {
        let port = u32::from(port);
        let hash = match addr {
            BindAddr::Ip(ip) => self.key.addr(ip, port),
            BindAddr::AnyV4 => self.key.addr(IpAddr::from([0; 4]), port),
            BindAddr::AnyV6 => self.key.addr(IpAddr::from([0; 16]), port),
            BindAddr::AnyDual => self.key.addr(IpAddr::from([0; 16]), port | 1 << 16),
        };
        on_device(hash, device)
    }
}

/// Iterator over the groups of sockets that match a packet, the most specific group first.
struct Candidates<'a> {
    receivers: &'a Receivers,
    port: u16,
    /// Addresses and interfaces to look up, in order of preference.
    wanted: [(BindAddr, Option<IfaceId>); 6],
    next: usize,
}

impl<'a> Iterator for Candidates<'a> {
    type Item = &'a ReceiverGroup;

    #[inline]
    fn next(&mut self) -> Option<&'a ReceiverGroup> {
        while let Some((addr, device)) = self.wanted.get(self.next).copied() {
            self.next += 1;
            if self.receivers.may_have(addr, device)
                && let Some(group) = self.receivers.group(addr, self.port, device)
            {
                return Some(group);
            }
        }
        None
    }
}

/// Returns whether several sockets can share the packets to one port. Linux's ICMP echo sockets do
/// not: the last socket bound to an identifier receives all packets.
fn shares_at_all(of: PortProtocol) -> bool {
    of != PortProtocol::Echo
}

#[cfg(test)]
mod tests {
    use super::*;
    use BindAddr::{AnyDual, AnyV4, Ip};

    const ETH: IfaceId = IfaceId(1);
    const PLAIN: Sharing = Sharing { reuse_addr: false, reuse_port: false };
    const ADDR: Sharing = Sharing { reuse_addr: true, reuse_port: false };
    const PORT: Sharing = Sharing { reuse_addr: false, reuse_port: true };
    /// Evenly spaced values of the random number `pick`.
    const QUARTERS: [u32; 4] = [0, 1 << 30, 2 << 30, 3 << 30];

    #[test]
    fn the_most_specific_bind_receives() {
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Tcp);
        let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), "2001:db8::1".parse().unwrap());
        receivers.insert(AnyDual, 53, 1, None, PLAIN);
        assert_eq!(receivers.find(v4, 53, ETH, 7), Some(1));
        assert_eq!(receivers.find(v6, 53, ETH, 7), Some(1));
        receivers.insert(AnyV4, 53, 2, None, PLAIN);
        assert_eq!(receivers.find(v4, 53, ETH, 7), Some(2));
        receivers.insert(Ip(v4), 53, 3, None, PLAIN);
        assert_eq!(receivers.find(v4, 53, ETH, 7), Some(3));
        assert_eq!(receivers.all(v4, 53, ETH).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(receivers.find(v4, 54, ETH, 7), None);
        receivers.remove(AnyDual, 53, 1);
        assert_eq!(receivers.find(v6, 53, ETH, 7), None);
    }

    #[test]
    fn the_last_one_bound_takes_what_comes_unless_it_shares() {
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Udp);
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let taker = |receivers: &Receivers, pick| receivers.find(v4, 53, ETH, pick);
        for socket in 1..=3 {
            receivers.insert(AnyV4, 53, socket, None, ADDR);
            assert!(QUARTERS.iter().all(|pick| taker(&receivers, *pick) == Some(socket)));
        }
        receivers.remove(AnyV4, 53, 3);
        assert!(QUARTERS.iter().all(|pick| taker(&receivers, *pick) == Some(2)));
        receivers.insert(AnyV4, 53, 4, None, PORT);
        receivers.insert(AnyV4, 53, 5, None, PORT);
        let taken: Vec<_> = QUARTERS.iter().filter_map(|pick| taker(&receivers, *pick)).collect();
        assert_eq!(taken, [4, 4, 5, 5]);
        receivers.insert(AnyV4, 53, 6, Some(ETH), ADDR);
        receivers.insert(AnyV4, 53, 7, Some(ETH), ADDR);
        assert_eq!(taker(&receivers, 0), Some(7));
    }

    /// SO_REUSEPORT may be set before or after the bind; results verified on Linux 6.18.
    #[test]
    fn when_reuse_port_is_set_decides_who_shares_as_on_linux() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let takers = |receivers: &Receivers| -> Vec<u32> {
            QUARTERS.iter().filter_map(|pick| receivers.find(v4, 53, ETH, *pick)).collect()
        };
        // Case 1: the first socket sets SO_REUSEPORT after its bind, and the second socket before
        // its bind.
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Udp);
        receivers.insert(AnyV4, 53, 1, None, ADDR);
        receivers.set_reuse_port(AnyV4, 53, 1, true);
        assert_eq!(takers(&receivers), [1; 4]);
        receivers.insert(AnyV4, 53, 2, None, PORT);
        assert_eq!(takers(&receivers), [1, 1, 2, 2]);
        // The first socket clears SO_REUSEPORT, and then the second socket clears it.
        receivers.set_reuse_port(AnyV4, 53, 1, false);
        assert_eq!(takers(&receivers), [1, 1, 2, 2]);
        receivers.set_reuse_port(AnyV4, 53, 2, false);
        assert_eq!(takers(&receivers), [2; 4]);
        // Case 2: both sockets set SO_REUSEPORT after both were bound.
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Udp);
        receivers.insert(AnyV4, 53, 1, None, ADDR);
        receivers.insert(AnyV4, 53, 2, None, ADDR);
        receivers.set_reuse_port(AnyV4, 53, 1, true);
        receivers.set_reuse_port(AnyV4, 53, 2, true);
        assert_eq!(takers(&receivers), [2; 4]);
    }

    #[test]
    fn devices_keep_to_themselves() {
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Tcp);
        let v4 = IpAddr::from([10, 0, 0, 1]);
        receivers.insert(AnyV4, 53, 1, Some(ETH), PLAIN);
        assert_eq!(receivers.find(v4, 53, ETH, 0), Some(1));
        assert_eq!(receivers.find(v4, 53, IfaceId::LOOPBACK, 0), None);
        receivers.insert(AnyV4, 53, 2, None, PLAIN);
        assert_eq!(receivers.find(v4, 53, ETH, 1), Some(1));
        assert_eq!(receivers.find(v4, 53, IfaceId::LOOPBACK, 1), Some(2));
        receivers.remove(AnyV4, 53, 1);
        assert_eq!(receivers.find(v4, 53, ETH, 1), Some(2));
    }

    /// Tests that only the newest of the sockets that set SO_REUSEPORT after their bind shares
    /// packets with new sockets; verified on Linux 6.18.
    #[test]
    fn who_came_to_share_late_and_who_leaves() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let takers = |receivers: &Receivers| -> Vec<u32> {
            QUARTERS.iter().filter_map(|pick| receivers.find(v4, 53, ETH, *pick)).collect()
        };
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Udp);
        for socket in [1, 2] {
            receivers.insert(AnyV4, 53, socket, None, ADDR);
        }
        for socket in [1, 2] {
            receivers.set_reuse_port(AnyV4, 53, socket, true);
        }
        receivers.insert(AnyV4, 53, 3, None, PORT);
        assert_eq!(takers(&receivers), [2, 2, 3, 3]);
        receivers.insert(AnyV4, 53, 4, None, PORT);
        receivers.insert(AnyV4, 53, 5, None, PORT);
        assert_eq!(takers(&receivers), [2, 3, 4, 5]);
        receivers.remove(AnyV4, 53, 2);
        assert_eq!(takers(&receivers), [5, 5, 3, 4], "the last one takes the place");
        receivers.remove(AnyV4, 53, 5);
        assert_eq!(takers(&receivers), [4, 4, 3, 3]);
        for socket in [4, 3] {
            receivers.remove(AnyV4, 53, socket);
        }
        assert_eq!(takers(&receivers), [1; 4]);
        receivers.remove(AnyV4, 53, 1);
        assert_eq!((takers(&receivers).len(), receivers.len()), (0, 0));
    }

    /// Tests that a socket that cleared SO_REUSEPORT shares packets with the sockets of its group,
    /// but not with a new socket. The behaviour was verified on Linux 6.18.
    #[test]
    fn one_that_took_reuse_port_back_shares_with_no_newcomer() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let takers = |receivers: &Receivers| -> Vec<u32> {
            QUARTERS.iter().filter_map(|pick| receivers.find(v4, 53, ETH, *pick)).collect()
        };
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Udp);
        for socket in [1, 2] {
            receivers.insert(AnyV4, 53, socket, None, PORT);
        }
        for socket in [1, 2] {
            receivers.set_reuse_port(AnyV4, 53, socket, false);
        }
        receivers.insert(AnyV4, 53, 3, None, PORT);
        assert_eq!(takers(&receivers), [3; 4]);
        receivers.insert(AnyV4, 53, 4, None, PORT);
        assert_eq!(takers(&receivers), [3, 3, 4, 4]);
        for socket in [4, 3] {
            receivers.remove(AnyV4, 53, socket);
        }
        assert_eq!(takers(&receivers), [2; 4]);
        receivers.set_reuse_port(AnyV4, 53, 2, true);
        assert_eq!(takers(&receivers), [1, 1, 2, 2]);
    }

    #[test]
    fn the_processor_chooses_among_those_that_share() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let takers = |receivers: &Receivers| -> Vec<u32> {
            QUARTERS.iter().filter_map(|pick| receivers.find(v4, 53, ETH, *pick)).collect()
        };
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Udp);
        for socket in 1..=4 {
            receivers.insert(AnyV4, 53, socket, None, PORT);
        }
        assert!(!receivers.minds_processor());
        receivers.set_processor(AnyV4, 53, 3, Some(7));
        assert!(receivers.minds_processor());
        assert_eq!(takers(&receivers), [1, 2, 3, 4], "not known yet");
        receivers.runs_on(7);
        assert_eq!(takers(&receivers), [3; 4]);
        receivers.set_processor(AnyV4, 53, 1, Some(7));
        assert_eq!(takers(&receivers), [1, 3, 3, 1], "the next one from the pick on");
        receivers.runs_on(8);
        assert_eq!(takers(&receivers), [1, 2, 3, 4], "nobody is here");
        receivers.runs_on(7);
        receivers.set_processor(AnyV4, 53, 1, None);
        receivers.remove(AnyV4, 53, 3);
        assert_eq!((takers(&receivers), receivers.minds_processor()), (vec![1, 1, 2, 4], false));
    }

    #[test]
    fn ping_sockets_share_nothing() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let mut receivers = Receivers::new(Keyed([0, 0]), PortProtocol::Echo);
        receivers.insert(AnyV4, 7, 1, None, PORT);
        receivers.insert(AnyV4, 7, 2, None, PORT);
        receivers.set_reuse_port(AnyV4, 7, 2, true);
        assert!(QUARTERS.iter().all(|pick| receivers.find(v4, 7, ETH, *pick) == Some(2)));
    }
}
