//! Who holds which local address and port: the rules of bind, and the lookup of listeners and
//! datagram sockets. One table a protocol.
//!
//! Two questions with different needs: "may this socket have the port?" (rare; all holders of a port
//! are looked at) and "whose is this packet?" (always; at most three probes, however many holders).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use hashbrown::HashTable;

use crate::ephemeral::PortSet;
use crate::net::IfaceId;
use crate::net::hash::Keyed;

/// The local address of a bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BindAddr {
    /// 0.0.0.0
    AnyV4,
    /// `::` with IPV6_V6ONLY.
    AnyV6,
    /// `::` that takes IPv4 too.
    AnyDual,
    /// This address; never an IPv4-mapped one.
    Ip(IpAddr),
}

impl BindAddr {
    /// Whether some packet could be for both.
    fn overlaps(self, other: BindAddr) -> bool {
        use BindAddr::{AnyDual, AnyV4, AnyV6, Ip};
        match (self, other) {
            (AnyDual, _) | (_, AnyDual) => true,
            (AnyV4, AnyV6) | (AnyV6, AnyV4) => false,
            (AnyV4, AnyV4) | (AnyV6, AnyV6) => true,
            (AnyV4, Ip(ip)) | (Ip(ip), AnyV4) => ip.is_ipv4(),
            (AnyV6, Ip(ip)) | (Ip(ip), AnyV6) => ip.is_ipv6(),
            (Ip(a), Ip(b)) => a == b,
        }
    }

    /// Whether every packet for the other one could be for this one.
    fn covers(self, other: BindAddr) -> bool {
        use BindAddr::{AnyDual, Ip};
        self == other || !matches!(self, Ip(_)) && other != AnyDual && self.overlaps(other)
    }
}

/// What a holder allows others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sharing {
    pub reuse_addr: bool,
    pub reuse_port: bool,
}

impl Sharing {
    fn both_reuse_addr(self, other: Self) -> bool {
        self.reuse_addr && other.reuse_addr
    }

    fn both_reuse_port(self, other: Self) -> bool {
        self.reuse_port && other.reuse_port
    }
}

/// Whose table it is: Linux's rules differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Tcp,
    Udp,
    Echo,
}

/// One socket that holds a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub socket: u32,
    pub addr: BindAddr,
    pub sharing: Sharing,
    /// Listening TCP socket: not even SO_REUSEADDR lets others in.
    pub listening: bool,
    /// SO_BINDTODEVICE: who is bound to another device is in nobody's way.
    pub device: Option<IfaceId>,
}

impl Holder {
    /// Whether some packet could be for both.
    fn meets(&self, other: &Holder) -> bool {
        self.addr.overlaps(other.addr) && self.device.zip(other.device).is_none_or(|(a, b)| a == b)
    }

    /// Whether TCP lets this one in beside somebody: both said SO_REUSEADDR and the other does not listen,
    /// or both said SO_REUSEPORT.
    fn may_join(&self, theirs: Sharing, listening: bool) -> bool {
        self.sharing.both_reuse_addr(theirs) && !listening || self.sharing.both_reuse_port(theirs)
    }
}

/// Whom a TCP port is open to without a look at its holders: Linux remembers of each port how the last
/// ones came in (`fastreuseport` of its bind bucket). So that one with SO_REUSEPORT alone comes in after
/// one with both, although an earlier one has SO_REUSEADDR alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Welcome {
    /// The last one came without SO_REUSEPORT.
    #[default]
    Nobody,
    /// All have it.
    ReusePort,
    /// The last ones have it, and are bound so.
    ReusePortAt(BindAddr),
}

impl Welcome {
    fn is_for(self, wanted: &Holder) -> bool {
        wanted.sharing.reuse_port
            && match self {
                Self::Nobody => false,
                Self::ReusePort => true,
                Self::ReusePortAt(addr) => addr.covers(wanted.addr),
            }
    }

    fn after(self, holder: &Holder, is_first: bool) -> Self {
        match self {
            _ if !holder.sharing.reuse_port => Self::Nobody,
            _ if is_first => Self::ReusePort,
            welcome if welcome.is_for(holder) => welcome,
            _ => Self::ReusePortAt(holder.addr),
        }
    }
}

/// Connections and TIME-WAITs on a port that no socket of the table holds (any more), from one address.
type User = (IpAddr, Sharing);

/// Who is on a port. As a rule these are connections from one address, which need no list.
#[derive(Debug)]
enum Port {
    /// So many connections, all alike.
    Users(User, u32),
    Crowd(Box<Crowd>),
}

/// Holders, or users of several kinds.
#[derive(Debug, Default)]
struct Crowd {
    /// In the order in which they came.
    holders: Vec<Holder>,
    /// How many of each. There may be many, for a port may be used with every address of a host.
    users: BTreeMap<User, u32>,
    welcome: Welcome,
}

const _: () = assert!(size_of::<Port>() <= 24);

impl Port {
    fn holders(&self) -> &[Holder] {
        match self {
            Port::Users(..) => &[],
            Port::Crowd(crowd) => &crowd.holders,
        }
    }

    fn welcome(&self) -> Welcome {
        match self {
            Port::Users(..) => Welcome::Nobody,
            Port::Crowd(crowd) => crowd.welcome,
        }
    }

    fn any_user(&self, mut wanted: impl FnMut(&User) -> bool) -> bool {
        match self {
            Port::Users(user, _) => wanted(user),
            Port::Crowd(crowd) => crowd.users.keys().any(wanted),
        }
    }

    fn is_unused(&self) -> bool {
        match self {
            Port::Users(_, count) => *count == 0,
            Port::Crowd(crowd) => crowd.holders.is_empty() && crowd.users.is_empty(),
        }
    }

    /// Makes room for more than the users of one address.
    fn crowd(&mut self) -> &mut Crowd {
        if let Port::Users(user, count) = *self {
            let users = BTreeMap::from([(user, count)]);
            *self = Port::Crowd(Box::new(Crowd { users, ..Crowd::default() }));
        }
        match self {
            Port::Crowd(crowd) => crowd,
            Port::Users(..) => unreachable!("it was just changed"),
        }
    }
}

/// Sockets that take packets for the same address and port.
#[derive(Debug)]
struct Group {
    hash: u64,
    addr: BindAddr,
    port: u16,
    members: Vec<Member>,
    /// Those bound to a device, which come before the others.
    on_device: Vec<(Member, IfaceId)>,
}

impl Group {
    fn all_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        let on_device = self.on_device.iter_mut().map(|(member, _)| member);
        self.members.iter_mut().chain(on_device)
    }
}

/// One that takes packets, in the order of binding.
#[derive(Debug, Clone, Copy)]
struct Member {
    socket: u32,
    /// It has SO_REUSEPORT now.
    reuse_port: bool,
    /// It shares with the others of which this is true: it had SO_REUSEPORT when it, or a later one that has it,
    /// was bound. As with Linux's groups (`reuseport_add_sock`), which a socket does not leave.
    shares: bool,
}

/// Who of those that are bound alike takes a packet. As on Linux it is the last one bound, which
/// SO_REUSEADDR allowed to take the place of the others; if it has SO_REUSEPORT, `pick` chooses among those
/// that have.
fn choose(members: impl DoubleEndedIterator<Item = Member> + Clone, pick: usize) -> Option<u32> {
    let last = members.clone().next_back()?;
    if !last.reuse_port || !last.shares {
        return Some(last.socket);
    }
    let mut sharing = members.filter(|member| member.shares);
    let n = pick % sharing.clone().count();
    sharing.nth(n).map(|member| member.socket)
}

/// Whether a connection, or what is left of one, is in the way of a bind.
fn is_in_use(entry: &Port, wanted: &Holder) -> bool {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# an OPEN call that will functionally allow an application to LISTEN on a port while a
    //# connection block with the same local port is in SYN-SENT or SYN-RECEIVED state
    //# (MUST-42).
    entry.any_user(|(local, sharing)| {
        BindAddr::Ip(*local).overlaps(wanted.addr) && !wanted.may_join(*sharing, false)
    })
}

impl Group {
    #[inline]
    fn choose(&self, iface: IfaceId, pick: usize) -> Option<u32> {
        if !self.on_device.is_empty() {
            let here = self.on_device.iter().filter(|(_, device)| *device == iface);
            if let Some(socket) = choose(here.map(|(member, _)| *member), pick) {
                return Some(socket);
            }
        }
        choose(self.members.iter().copied(), pick)
    }
}

/// The table of one protocol.
#[derive(Debug)]
pub(crate) struct Binds {
    key: Keyed,
    of: Table,
    ports: BTreeMap<u16, Port>,
    /// The keys of `ports`.
    occupied: PortSet,
    groups: HashTable<Group>,
    /// Groups compared so far: the work done by lookups.
    pub compared: Cell<u64>,
}

impl Binds {
    /// An empty table.
    pub fn new(key: Keyed, of: Table) -> Self {
        Self {
            key,
            of,
            ports: BTreeMap::new(),
            occupied: PortSet::default(),
            groups: HashTable::new(),
            compared: Cell::new(0),
        }
    }

    /// Ports that somebody is on, at whatever address.
    pub fn occupied(&self) -> &PortSet {
        &self.occupied
    }

    /// Ports in use and groups of receivers: zero when nothing is left.
    pub fn len(&self) -> usize {
        self.ports.len() + self.groups.len()
    }

    /// Whether somebody is in the way of a socket that is to hold `port` as `wanted` says (its own present
    /// hold does not count). By Linux's rules, which are these and no others:
    ///
    /// * TCP: whoever [meets](Holder::meets) it and does not [share](Holder::may_join), unless the port
    ///   is [open](Welcome) to it;
    /// * UDP: the newest of those who meet it and do not share by SO_REUSEADDR, unless that one shares
    ///   by SO_REUSEPORT: then older ones are not asked;
    /// * echo: whoever has the ident, at whatever address, and does not share by SO_REUSEADDR.
    pub fn conflicts(&self, port: u16, wanted: &Holder) -> bool {
        let Some(entry) = self.ports.get(&port) else { return false };
        let mut others =
            entry.holders().iter().rev().filter(|holder| holder.socket != wanted.socket);
        match self.of {
            Table::Tcp => {
                !entry.welcome().is_for(wanted)
                    && (others.any(|holder| {
                        holder.meets(wanted) && !wanted.may_join(holder.sharing, holder.listening)
                    }) || is_in_use(entry, wanted))
            }
            Table::Udp => others
                .find(|holder| {
                    holder.meets(wanted) && !wanted.sharing.both_reuse_addr(holder.sharing)
                })
                .is_some_and(|holder| !wanted.sharing.both_reuse_port(holder.sharing)),
            Table::Echo => others.any(|holder| !wanted.sharing.both_reuse_addr(holder.sharing)),
        }
    }

    /// Whether a connect may take `port` on `local` without having bound it.
    pub fn is_held(&self, port: u16, local: IpAddr) -> bool {
        let held =
            |entry: &Port| entry.holders().iter().any(|h| h.addr.overlaps(BindAddr::Ip(local)));
        self.ports.get(&port).is_some_and(held)
    }

    /// Notes that a socket holds `port`.
    pub fn hold(&mut self, port: u16, holder: Holder) {
        self.occupied.set(port, true);
        let mut is_first = false;
        let entry = self.ports.entry(port).or_insert_with(|| {
            is_first = true;
            Port::Crowd(Box::default())
        });
        let crowd = entry.crowd();
        crowd.welcome = crowd.welcome.after(&holder, is_first);
        crowd.holders.push(holder);
    }

    /// The socket listens from now on.
    pub fn set_listening(&mut self, port: u16, socket: u32) {
        let Some(Port::Crowd(crowd)) = self.ports.get_mut(&port) else { return };
        let Some(holder) = crowd.holders.iter_mut().find(|h| h.socket == socket) else { return };
        holder.listening = true;
        crowd.welcome = crowd.welcome.after(holder, false);
    }

    /// The socket's hold, to be changed (a connect fixed its address, or options were set).
    pub fn holder_mut(&mut self, port: u16, socket: u32) -> Option<&mut Holder> {
        self.ports.get_mut(&port)?.crowd().holders.iter_mut().find(|holder| holder.socket == socket)
    }

    /// The socket is connected from `local`: its hold is for that address alone.
    pub fn narrow(&mut self, port: u16, socket: u32, local: IpAddr) {
        if let Some(holder) = self.holder_mut(port, socket) {
            holder.addr = BindAddr::Ip(local);
        }
    }

    /// Ends the socket's hold.
    pub fn release(&mut self, port: u16, socket: u32) {
        if let Some(Port::Crowd(entry)) = self.ports.get_mut(&port) {
            entry.holders.retain(|holder| holder.socket != socket);
            if entry.holders.is_empty() {
                entry.welcome = Welcome::Nobody;
            }
        }
        self.forget_if_unused(port);
    }

    /// A connection, or what is left of one, uses `port` on `local`.
    pub fn use_port(&mut self, port: u16, local: IpAddr, sharing: Sharing) {
        self.occupied.set(port, true);
        let new = (local, sharing);
        match self.ports.entry(port) {
            Entry::Vacant(entry) => {
                entry.insert(Port::Users(new, 1));
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Port::Users(user, count) if *user == new => *count += 1,
                port => *port.crowd().users.entry(new).or_default() += 1,
            },
        }
    }

    /// Undoes one [`Binds::use_port`].
    pub fn unuse_port(&mut self, port: u16, local: IpAddr, sharing: Sharing) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        let gone = (local, sharing);
        match entry {
            Port::Users(user, count) if *user == gone => *count -= 1,
            Port::Users(..) => {}
            Port::Crowd(crowd) => {
                if let Some(count) = crowd.users.get_mut(&gone) {
                    *count -= 1;
                    if *count == 0 {
                        crowd.users.remove(&gone);
                    }
                }
            }
        }
        self.forget_if_unused(port);
    }

    fn forget_if_unused(&mut self, port: u16) {
        if self.ports.get(&port).is_some_and(Port::is_unused) {
            self.ports.remove(&port);
            self.occupied.set(port, false);
        }
    }

    /// From now on the socket takes packets for `addr` and `port`.
    pub fn receive(
        &mut self,
        addr: BindAddr,
        port: u16,
        socket: u32,
        device: Option<IfaceId>,
        sharing: Sharing,
    ) {
        let hash = self.hash(addr, port);
        let entry = self.groups.entry(hash, |g| g.addr == addr && g.port == port, |g| g.hash);
        let (members, on_device) = (Vec::new(), Vec::new());
        let group = entry.or_insert(Group { hash, addr, port, members, on_device }).into_mut();
        let shares = sharing.reuse_port;
        let member = Member { socket, reuse_port: shares, shares };
        match device {
            None => group.members.push(member),
            Some(device) => group.on_device.push((member, device)),
        }
        for member in group.all_mut().filter(|_| shares) {
            member.shares |= member.reuse_port;
        }
    }

    /// SO_REUSEPORT was set, or taken back, on a socket that takes packets for `addr` and `port`.
    pub fn set_reuse_port(&mut self, addr: BindAddr, port: u16, socket: u32, reuse_port: bool) {
        let hash = self.hash(addr, port);
        let group = self.groups.find_mut(hash, |g| g.addr == addr && g.port == port);
        let Some(group) = group else { return };
        if let Some(member) = group.all_mut().find(|member| member.socket == socket) {
            member.reuse_port = reuse_port;
        }
    }

    /// Undoes [`Binds::receive`].
    pub fn stop_receiving(&mut self, addr: BindAddr, port: u16, socket: u32) {
        let hash = self.hash(addr, port);
        let Ok(mut entry) = self.groups.find_entry(hash, |g| g.addr == addr && g.port == port)
        else {
            return;
        };
        let group = entry.get_mut();
        group.members.retain(|member| member.socket != socket);
        group.on_device.retain(|(member, _)| member.socket != socket);
        if group.members.is_empty() && group.on_device.is_empty() {
            entry.remove();
        }
    }

    /// The socket that takes a packet for `addr` and `port` that came in on `iface`: one bound to the
    /// address before those bound to its family before those bound to everything; among equals one bound
    /// to the device; of several the last one bound, or `pick` chooses among those that share.
    #[inline]
    pub fn receiver(&self, addr: IpAddr, port: u16, iface: IfaceId, pick: usize) -> Option<u32> {
        self.candidates(addr, port).find_map(|group| group.choose(iface, pick))
    }

    /// All sockets that take a packet for `addr` and `port` on some interface, most specific first
    /// (multicast).
    pub fn all_receivers(&self, addr: IpAddr, port: u16) -> impl Iterator<Item = u32> + '_ {
        self.candidates(addr, port).flat_map(|group| {
            let on_device = group.on_device.iter().map(|(member, _)| member);
            on_device.chain(&group.members).map(|member| member.socket)
        })
    }

    fn candidates(&self, addr: IpAddr, port: u16) -> impl Iterator<Item = &Group> {
        let any = if addr.is_ipv4() { BindAddr::AnyV4 } else { BindAddr::AnyV6 };
        [BindAddr::Ip(addr), any, BindAddr::AnyDual].into_iter().filter_map(move |addr| {
            let hash = self.hash(addr, port);
            self.groups.find(hash, |group| {
                self.compared.set(self.compared.get() + 1);
                group.addr == addr && group.port == port
            })
        })
    }

    fn hash(&self, addr: BindAddr, port: u16) -> u64 {
        let port = u32::from(port);
        match addr {
            BindAddr::Ip(ip) => self.key.addr(ip, port),
            BindAddr::AnyV4 => self.key.addr(IpAddr::from([0; 4]), port),
            BindAddr::AnyV6 => self.key.addr(IpAddr::from([0; 16]), port),
            BindAddr::AnyDual => self.key.addr(IpAddr::from([0; 16]), port | 1 << 16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BindAddr::{AnyDual, AnyV4, AnyV6, Ip};

    const ETH: IfaceId = IfaceId(1);
    const PLAIN: Sharing = Sharing { reuse_addr: false, reuse_port: false };
    const ADDR: Sharing = Sharing { reuse_addr: true, reuse_port: false };
    const PORT: Sharing = Sharing { reuse_addr: false, reuse_port: true };

    fn v4() -> BindAddr {
        Ip(IpAddr::from([10, 0, 0, 1]))
    }

    fn v6() -> BindAddr {
        Ip("2001:db8::1".parse().unwrap())
    }

    /// As bind(2) on Linux 6.x answers; each row was tried there.
    #[test]
    fn conflicts_are_those_of_linux() {
        let rows = [
            // first holder, listening, second, conflict
            (AnyV4, PLAIN, false, AnyV4, PLAIN, true),
            (AnyV4, PLAIN, false, v4(), PLAIN, true),
            (v4(), PLAIN, false, Ip(IpAddr::from([10, 0, 0, 2])), PLAIN, false),
            (AnyV4, PLAIN, false, AnyV6, PLAIN, false),
            (AnyV4, PLAIN, false, AnyDual, PLAIN, true),
            (AnyDual, PLAIN, false, v4(), PLAIN, true),
            (AnyV6, PLAIN, false, v6(), PLAIN, true),
            (AnyV6, PLAIN, false, v4(), PLAIN, false),
            (v4(), PLAIN, false, v6(), PLAIN, false),
            (AnyV4, ADDR, false, AnyV4, ADDR, false),
            (AnyV4, ADDR, true, AnyV4, ADDR, true),
            (AnyV4, ADDR, false, AnyV4, PLAIN, true),
            (AnyV4, PLAIN, false, AnyV4, ADDR, true),
            (AnyV4, PORT, true, AnyV4, PORT, false),
            (AnyV4, PORT, true, AnyV4, ADDR, true),
            (AnyDual, PORT, true, AnyV4, PORT, false),
        ];
        for (n, (addr, sharing, listening, wanted, theirs, conflict)) in
            rows.into_iter().enumerate()
        {
            let mut binds = Binds::new(Keyed([0, 0]), Table::Tcp);
            binds.hold(80, Holder { socket: 1, addr, sharing, listening, device: None });
            let wanted =
                Holder { socket: 2, addr: wanted, sharing: theirs, listening: false, device: None };
            assert_eq!(binds.conflicts(80, &wanted), conflict, "row {n}");
            assert!(!binds.conflicts(81, &wanted));
            binds.release(80, 1);
            assert_eq!(binds.len(), 0);
        }
    }

    #[test]
    fn what_is_left_of_connections_blocks_unless_both_reuse() {
        let mut binds = Binds::new(Keyed([0, 0]), Table::Tcp);
        let local = IpAddr::from([10, 0, 0, 1]);
        binds.use_port(80, local, ADDR);
        let wanted =
            |sharing| Holder { socket: 2, addr: AnyV4, sharing, listening: false, device: None };
        assert!(binds.conflicts(80, &wanted(PLAIN)));
        assert!(!binds.conflicts(80, &wanted(ADDR)));
        binds.unuse_port(80, local, ADDR);
        assert!(!binds.conflicts(80, &wanted(PLAIN)));
        assert_eq!(binds.len(), 0);
    }

    #[test]
    fn the_most_specific_bind_receives() {
        let mut binds = Binds::new(Keyed([0, 0]), Table::Tcp);
        let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), "2001:db8::1".parse().unwrap());
        binds.receive(AnyDual, 53, 1, None, PLAIN);
        assert_eq!(binds.receiver(v4, 53, ETH, 7), Some(1));
        assert_eq!(binds.receiver(v6, 53, ETH, 7), Some(1));
        binds.receive(AnyV4, 53, 2, None, PLAIN);
        assert_eq!(binds.receiver(v4, 53, ETH, 7), Some(2));
        binds.receive(Ip(v4), 53, 3, None, PLAIN);
        assert_eq!(binds.receiver(v4, 53, ETH, 7), Some(3));
        assert_eq!(binds.all_receivers(v4, 53).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(binds.receiver(v4, 54, ETH, 7), None);
        binds.stop_receiving(AnyDual, 53, 1);
        assert_eq!(binds.receiver(v6, 53, ETH, 7), None);
    }

    #[test]
    fn the_last_one_bound_takes_what_comes_unless_it_shares() {
        let mut binds = Binds::new(Keyed([0, 0]), Table::Udp);
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let taker = |binds: &Binds, pick| binds.receiver(v4, 53, ETH, pick);
        for socket in 1..=3 {
            binds.receive(AnyV4, 53, socket, None, ADDR);
            assert!((0..5).all(|pick| taker(&binds, pick) == Some(socket)));
        }
        binds.stop_receiving(AnyV4, 53, 3);
        assert!((0..5).all(|pick| taker(&binds, pick) == Some(2)));
        binds.receive(AnyV4, 53, 4, None, PORT);
        binds.receive(AnyV4, 53, 5, None, PORT);
        let taken: Vec<_> = (0..4).filter_map(|pick| taker(&binds, pick)).collect();
        assert_eq!(taken, [4, 5, 4, 5]);
        binds.receive(AnyV4, 53, 6, Some(ETH), ADDR);
        binds.receive(AnyV4, 53, 7, Some(ETH), ADDR);
        assert_eq!(taker(&binds, 0), Some(7));
    }

    /// SO_REUSEPORT before and after bind; each row was tried on Linux 6.18.
    #[test]
    fn when_reuse_port_is_set_decides_who_shares_as_on_linux() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let takers = |binds: &Binds| -> Vec<u32> {
            (0..4).filter_map(|pick| binds.receiver(v4, 53, ETH, pick)).collect()
        };
        // The first one after its bind, the second one before.
        let mut binds = Binds::new(Keyed([0, 0]), Table::Udp);
        binds.receive(AnyV4, 53, 1, None, ADDR);
        binds.set_reuse_port(AnyV4, 53, 1, true);
        assert_eq!(takers(&binds), [1; 4]);
        binds.receive(AnyV4, 53, 2, None, PORT);
        assert_eq!(takers(&binds), [1, 2, 1, 2]);
        // The first one takes it back, then the second.
        binds.set_reuse_port(AnyV4, 53, 1, false);
        assert_eq!(takers(&binds), [1, 2, 1, 2]);
        binds.set_reuse_port(AnyV4, 53, 2, false);
        assert_eq!(takers(&binds), [2; 4]);
        // Both after both were bound.
        let mut binds = Binds::new(Keyed([0, 0]), Table::Udp);
        binds.receive(AnyV4, 53, 1, None, ADDR);
        binds.receive(AnyV4, 53, 2, None, ADDR);
        binds.set_reuse_port(AnyV4, 53, 1, true);
        binds.set_reuse_port(AnyV4, 53, 2, true);
        assert_eq!(takers(&binds), [2; 4]);
    }

    /// Connections from as many addresses as a host has, or pretends to (IP_FREEBIND).
    #[test]
    fn users_of_a_port_are_counted_by_address() {
        let mut binds = Binds::new(Keyed([0, 0]), Table::Tcp);
        let local = |n: u32| IpAddr::from(n.to_be_bytes());
        let wanted = |n| Holder {
            socket: 1,
            addr: Ip(local(n)),
            sharing: PLAIN,
            listening: false,
            device: None,
        };
        for n in 0..1000 {
            binds.use_port(80, local(n), PLAIN);
            binds.use_port(80, local(n), PLAIN);
        }
        for n in 0..1000 {
            assert!(!binds.conflicts(80, &wanted(1000)));
            binds.unuse_port(80, local(n), PLAIN);
            assert!(binds.conflicts(80, &wanted(n)), "one is left");
            binds.unuse_port(80, local(n), PLAIN);
            assert!(!binds.conflicts(80, &wanted(n)));
        }
        assert_eq!(binds.len(), 0);
    }

    #[test]
    fn devices_keep_to_themselves() {
        let mut binds = Binds::new(Keyed([0, 0]), Table::Tcp);
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let holder = |socket, device| Holder {
            socket,
            addr: AnyV4,
            sharing: PLAIN,
            listening: false,
            device,
        };
        binds.hold(53, holder(1, Some(ETH)));
        assert!(binds.conflicts(53, &holder(2, Some(ETH))));
        assert!(binds.conflicts(53, &holder(2, None)));
        assert!(!binds.conflicts(53, &holder(2, Some(IfaceId::LOOPBACK))));
        binds.receive(AnyV4, 53, 1, Some(ETH), PLAIN);
        assert_eq!(binds.receiver(v4, 53, ETH, 0), Some(1));
        assert_eq!(binds.receiver(v4, 53, IfaceId::LOOPBACK, 0), None);
        binds.receive(AnyV4, 53, 2, None, PLAIN);
        assert_eq!(binds.receiver(v4, 53, ETH, 1), Some(1));
        assert_eq!(binds.receiver(v4, 53, IfaceId::LOOPBACK, 1), Some(2));
        binds.stop_receiving(AnyV4, 53, 1);
        assert_eq!(binds.receiver(v4, 53, ETH, 1), Some(2));
    }
}
