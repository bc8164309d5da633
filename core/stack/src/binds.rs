//! Who holds which local address and port: the rules of bind. One table a protocol.
//!
//! Two questions with different needs: "may this socket have the port?" (rare: holders of the port are looked at,
//! until one decides) and "whose is this packet?" (always: [`crate::receivers`]).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::ephemeral::PortSet;
use crate::lines::Lines;
use crate::net::IfaceId;
use crate::net::hash::Keyed;
use crate::receivers::Receivers;

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

/// A holder, and what it holds.
#[derive(Debug)]
struct Hold {
    port: u16,
    holder: Holder,
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
    /// The holder that came last.
    newest: Option<u32>,
    /// How many of each. There may be many, for a port may be used with every address of a host.
    users: BTreeMap<User, u32>,
    welcome: Welcome,
}

const _: () = assert!(size_of::<Port>() <= 24);

impl Port {
    fn newest(&self) -> Option<u32> {
        match self {
            Port::Users(..) => None,
            Port::Crowd(crowd) => crowd.newest,
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
            Port::Crowd(crowd) => crowd.newest.is_none() && crowd.users.is_empty(),
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

/// The table of one protocol.
#[derive(Debug)]
pub(crate) struct Binds {
    of: Table,
    ports: BTreeMap<u16, Port>,
    /// The keys of `ports`.
    occupied: PortSet,
    holds: Lines<Hold>,
    /// Who takes packets.
    pub receivers: Receivers,
    /// Holders looked at so far.
    compared: Cell<u64>,
}

impl Binds {
    /// An empty table.
    pub fn new(key: Keyed, of: Table) -> Self {
        Self {
            of,
            ports: BTreeMap::new(),
            occupied: PortSet::default(),
            holds: Lines::default(),
            receivers: Receivers::new(key, of),
            compared: Cell::new(0),
        }
    }

    /// Ports that somebody is on, at whatever address.
    pub fn occupied(&self) -> &PortSet {
        &self.occupied
    }

    /// Ports in use, and addresses that packets are taken for: zero when nothing is left.
    pub fn len(&self) -> usize {
        self.ports.len() + self.receivers.len()
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
        let mut others = self.holders(entry).filter(|holder| holder.socket != wanted.socket);
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

    /// Holders of a port, the newest first.
    fn holders(&self, port: &Port) -> impl Iterator<Item = &Holder> {
        self.holds.iter(port.newest()).map(|(_, hold)| {
            self.compared.set(self.compared.get() + 1);
            &hold.holder
        })
    }

    /// Holders and groups of receivers compared so far: the work done by look-ups.
    #[cfg(test)]
    pub fn compared(&self) -> u64 {
        self.compared.get() + self.receivers.compared.get()
    }

    /// Whether a connect may take `port` on `local` without having bound it.
    pub fn is_held(&self, port: u16, local: IpAddr) -> bool {
        let held = |entry: &Port| self.holders(entry).any(|h| h.addr.overlaps(BindAddr::Ip(local)));
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
        self.holds.push(&mut crowd.newest, holder.socket, Hold { port, holder });
    }

    /// The socket listens from now on.
    pub fn set_listening(&mut self, port: u16, socket: u32) {
        let Some(Port::Crowd(crowd)) = self.ports.get_mut(&port) else { return };
        let Some(hold) = self.holds.get_mut(socket).filter(|hold| hold.port == port) else {
            return;
        };
        hold.holder.listening = true;
        crowd.welcome = crowd.welcome.after(&hold.holder, false);
    }

    /// The socket's hold, to be changed (a connect fixed its address, or options were set).
    pub fn holder_mut(&mut self, port: u16, socket: u32) -> Option<&mut Holder> {
        let hold = self.holds.get_mut(socket).filter(|hold| hold.port == port)?;
        Some(&mut hold.holder)
    }

    /// The socket is connected from `local`: its hold is for that address alone.
    pub fn narrow(&mut self, port: u16, socket: u32, local: IpAddr) {
        if let Some(holder) = self.holder_mut(port, socket) {
            holder.addr = BindAddr::Ip(local);
        }
    }

    /// Ends the socket's hold.
    pub fn release(&mut self, port: u16, socket: u32) {
        if self.holds.get(socket).is_none_or(|hold| hold.port != port) {
            return;
        }
        if let Some(Port::Crowd(crowd)) = self.ports.get_mut(&port) {
            self.holds.remove(&mut crowd.newest, socket);
            if crowd.newest.is_none() {
                crowd.welcome = Welcome::Nobody;
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
    }
}
