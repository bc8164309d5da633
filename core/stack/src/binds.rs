//! Who holds which local address and port: the rules of bind. One table a protocol.
//!
//! Two questions with different needs: "may this socket have the port?" (rare: of holders that are alike one is
//! looked at) and "whose is this packet?" (always: [`crate::receivers`]).

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

use crate::ephemeral::PortSet;
use crate::net::IfaceId;
use crate::net::hash::Keyed;
use crate::receivers::Receivers;

/// The local address of a bind. Ordered so that those that overlap are few [stretches](BindAddr::stretches).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

    /// All addresses that overlap, the two that come last being empty at times.
    fn stretches(self) -> [Option<(BindAddr, BindAddr)>; 3] {
        use BindAddr::{AnyDual, AnyV4, AnyV6, Ip};
        const V4_LAST: BindAddr = Ip(IpAddr::V4(Ipv4Addr::BROADCAST));
        const V6_FIRST: BindAddr = Ip(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        const V6_LAST: BindAddr = Ip(IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)));
        match self {
            AnyDual => [Some((AnyV4, V6_LAST)), None, None],
            AnyV4 => [Some((AnyV4, AnyV4)), Some((AnyDual, V4_LAST)), None],
            AnyV6 => [Some((AnyV6, AnyDual)), Some((V6_FIRST, V6_LAST)), None],
            Ip(ip) => {
                let any = if ip.is_ipv4() { AnyV4 } else { AnyV6 };
                [Some((any, any)), Some((AnyDual, AnyDual)), Some((self, self))]
            }
        }
    }

    /// Whether a port that is open as far as this one is open to the other: by `sk_reuseport_match` an any-address is
    /// open to `::` with IPv4 as well.
    fn covers(self, other: BindAddr) -> bool {
        self == other || !matches!(self, BindAddr::Ip(_)) && self.overlaps(other)
    }
}

/// What the holder of a port shares it with.
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
    /// A listening TCP socket: SO_REUSEADDR alone does not let others share its port.
    pub listening: bool,
    /// SO_BINDTODEVICE. Holders on different devices do not conflict.
    pub device: Option<IfaceId>,
}

impl Holder {
    fn class(&self) -> Class {
        Class { sharing: self.sharing, listening: self.listening }
    }

    /// Whether TCP lets this one in beside somebody: both said SO_REUSEADDR and the other does not listen,
    /// or both said SO_REUSEPORT.
    fn may_join(&self, Class { sharing: theirs, listening }: Class) -> bool {
        self.sharing.both_reuse_addr(theirs) && !listening || self.sharing.both_reuse_port(theirs)
    }
}

/// What decides whether others may join a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Class {
    sharing: Sharing,
    listening: bool,
}

impl Class {
    const COUNT: usize = 8;

    fn all() -> impl Iterator<Item = Class> {
        (0..Self::COUNT).map(|n| Class {
            sharing: Sharing { reuse_addr: n & 1 != 0, reuse_port: n & 2 != 0 },
            listening: n & 4 != 0,
        })
    }

    /// Where it is in [`Class::all`].
    fn number(self) -> usize {
        let Class { sharing: Sharing { reuse_addr, reuse_port }, listening } = self;
        usize::from(reuse_addr) | usize::from(reuse_port) << 1 | usize::from(listening) << 2
    }
}

/// What a bind sees of a holder: holders with the same spot conflict with the same binds. The order puts the spots of
/// one port and class whose addresses overlap a given one side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    port: u16,
    class: u8,
    addr: BindAddr,
    device: Option<u16>,
}

impl Spot {
    fn of(port: u16, holder: &Holder) -> Self {
        let class = holder.class().number() as u8;
        Self { port, class, addr: holder.addr, device: holder.device.map(|device| device.0) }
    }

    /// Whether the devices allow a packet that is for both this spot and a socket on `device`.
    fn meets(&self, device: Option<IfaceId>) -> bool {
        self.device.zip(device).is_none_or(|(theirs, own)| theirs == own.0)
    }
}

/// A holder, and what it holds.
#[derive(Debug)]
struct Hold {
    port: u16,
    /// How many holds there were before.
    number: u64,
    holder: Holder,
}

/// Which sockets may bind a TCP port without a look at its holders. Linux remembers with each port how the
/// last ones came to hold it (`fastreuseport` of its bind bucket). So a socket with SO_REUSEPORT alone may bind
/// after one with both options, although an earlier holder has SO_REUSEADDR alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Welcome {
    /// The last one came without SO_REUSEPORT.
    #[default]
    Nobody,
    /// The last ones had it when they came, and the first of these was bound so.
    ReusePortAt(BindAddr),
}

impl Welcome {
    fn is_for(self, wanted: &Holder) -> bool {
        wanted.sharing.reuse_port
            && match self {
                Self::Nobody => false,
                Self::ReusePortAt(addr) => addr.covers(wanted.addr),
            }
    }

    fn after(self, holder: &Holder) -> Self {
        match self {
            _ if !holder.sharing.reuse_port => Self::Nobody,
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
    /// How many holders there are of each class.
    holders: [u32; Class::COUNT],
    /// How many of each. There may be many, for a port may be used with every address of a host.
    users: BTreeMap<User, u32>,
    welcome: Welcome,
}

const _: () = assert!(size_of::<Port>() <= 24);

impl Crowd {
    fn is_held(&self) -> bool {
        self.holders.iter().any(|count| *count > 0)
    }
}

impl Port {
    /// Of which classes there are holders.
    fn classes(&self) -> impl Iterator<Item = Class> + use<> {
        let holders = match self {
            Port::Users(..) => [0; Class::COUNT],
            Port::Crowd(crowd) => crowd.holders,
        };
        Class::all().filter(move |class| holders[class.number()] > 0)
    }

    fn welcome(&self) -> Welcome {
        match self {
            Port::Users(..) => Welcome::Nobody,
            Port::Crowd(crowd) => crowd.welcome,
        }
    }

    /// Whether `is` holds for one of the users whose address `wanted` may overlap.
    fn any_user(&self, wanted: &Holder, mut is: impl FnMut(&User) -> bool) -> bool {
        match self {
            Port::Users(user, _) => is(user),
            Port::Crowd(crowd) => match wanted.addr {
                BindAddr::Ip(ip) => {
                    let all = Sharing { reuse_addr: true, reuse_port: true };
                    crowd
                        .users
                        .range((ip, Sharing::default())..=(ip, all))
                        .any(|(user, _)| is(user))
                }
                _ => crowd.users.keys().any(is),
            },
        }
    }

    fn is_unused(&self) -> bool {
        match self {
            Port::Users(_, count) => *count == 0,
            Port::Crowd(crowd) => !crowd.is_held() && crowd.users.is_empty(),
        }
    }

    /// The list of all who are on the port, in place of the short form for users of one address.
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
    entry.any_user(wanted, |(local, sharing)| {
        BindAddr::Ip(*local).overlaps(wanted.addr)
            && !wanted.may_join(Class { sharing: *sharing, listening: false })
    })
}

/// The table of one protocol.
#[derive(Debug)]
pub(crate) struct Binds {
    of: Table,
    ports: BTreeMap<u16, Port>,
    /// The keys of `ports`.
    occupied: PortSet,
    /// By socket.
    holds: BTreeMap<u32, Hold>,
    /// The holds in the order of their spots, with their numbers.
    spots: BTreeSet<(Spot, u64)>,
    /// Holds so far.
    held: u64,
    /// Who takes packets.
    pub receivers: Receivers,
    /// Spots looked at so far.
    compared: Cell<u64>,
}

impl Binds {
    /// An empty table.
    pub fn new(key: Keyed, of: Table) -> Self {
        Self {
            of,
            ports: BTreeMap::new(),
            occupied: PortSet::default(),
            holds: BTreeMap::new(),
            spots: BTreeSet::new(),
            held: 0,
            receivers: Receivers::new(key, of),
            compared: Cell::new(0),
        }
    }

    /// Ports that a socket or a connection is on, at whatever address.
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
    /// * TCP: whoever [meets](Spot::meets) it and does not [share](Holder::may_join), unless the port
    ///   is [open](Welcome) to it;
    /// * UDP: the newest of those who meet it and do not share by SO_REUSEADDR, unless that one shares
    ///   by SO_REUSEPORT: then older ones are not asked;
    /// * echo: whoever has the ident, at whatever address, and does not share by SO_REUSEADDR.
    pub fn conflicts(&self, port: u16, wanted: &Holder) -> bool {
        let Some(entry) = self.ports.get(&port) else { return false };
        let meeting = |class: Class| self.meeting(port, class, wanted).map(move |at| (at, class));
        let unshared = |class: &Class| !wanted.sharing.both_reuse_addr(class.sharing);
        match self.of {
            Table::Tcp => {
                let mut in_way = entry.classes().filter(|class| !wanted.may_join(*class));
                !entry.welcome().is_for(wanted)
                    && (in_way.any(|class| meeting(class).next().is_some())
                        || is_in_use(entry, wanted))
            }
            Table::Udp => {
                let mut in_way = entry.classes().filter(unshared).flat_map(meeting);
                match wanted.sharing.reuse_port {
                    false => in_way.next().is_some(),
                    true => in_way
                        .max_by_key(|(at, _)| *at)
                        .is_some_and(|(_, class)| !class.sharing.reuse_port),
                }
            }
            Table::Echo => {
                let anywhere = Holder { addr: BindAddr::AnyDual, device: None, ..*wanted };
                let mut in_way = entry.classes().filter(unshared);
                in_way.any(|class| self.meeting(port, class, &anywhere).next().is_some())
            }
        }
    }

    /// The newest hold of each spot of a class that `wanted` meets: its number. The own hold of `wanted` does not count.
    fn meeting(&self, port: u16, class: Class, wanted: &Holder) -> impl Iterator<Item = u64> {
        let (socket, device, class) = (wanted.socket, wanted.device, class.number() as u8);
        let own = self.holds.get(&socket).map(|hold| hold.number);
        let stretches = wanted.addr.stretches().into_iter().flatten();
        let spots = stretches.flat_map(move |(first, last)| {
            let first = Spot { port, class, addr: first, device: None };
            let last = (Spot { port, class, addr: last, device: Some(u16::MAX) }, u64::MAX);
            let mut from = Bound::Included((first, 0));
            std::iter::from_fn(move || {
                let (spot, _) = self.spots.range((from, Bound::Included(last))).next()?;
                self.compared.set(self.compared.get() + 1);
                from = Bound::Excluded((*spot, u64::MAX));
                Some(*spot)
            })
        });
        spots.filter(move |spot| spot.meets(device)).filter_map(move |spot| {
            let mut numbers = self.spots.range((spot, 0)..=(spot, u64::MAX)).map(|(_, at)| *at);
            numbers.rfind(|at| Some(*at) != own)
        })
    }

    /// Holders that are not alike, and groups of receivers, compared so far: the work done by look-ups.
    #[cfg(test)]
    pub fn compared(&self) -> u64 {
        self.compared.get() + self.receivers.compared.get()
    }

    /// Whether a connect may take `port` on `local` without having bound it.
    pub fn is_held(&self, port: u16, local: IpAddr) -> bool {
        let Some(entry) = self.ports.get(&port) else { return false };
        let stretches = BindAddr::Ip(local).stretches().into_iter().flatten();
        entry.classes().any(|class| {
            let class = class.number() as u8;
            stretches.clone().any(|(addr, last)| {
                debug_assert_eq!(addr, last);
                self.compared.set(self.compared.get() + 1);
                let first = Spot { port, class, addr, device: None };
                let last = Spot { device: Some(u16::MAX), ..first };
                self.spots.range((first, 0)..=(last, u64::MAX)).next().is_some()
            })
        })
    }

    /// Notes that a socket holds `port`.
    pub fn hold(&mut self, port: u16, holder: Holder) {
        self.occupied.set(port, true);
        let entry = self.ports.entry(port).or_insert_with(|| Port::Crowd(Box::default()));
        let crowd = entry.crowd();
        crowd.welcome = crowd.welcome.after(&holder);
        crowd.holders[holder.class().number()] += 1;
        let number = self.held;
        self.held += 1;
        self.spots.insert((Spot::of(port, &holder), number));
        self.holds.insert(holder.socket, Hold { port, number, holder });
    }

    /// The socket listens from now on.
    pub fn set_listening(&mut self, port: u16, socket: u32) {
        self.change(port, socket, |holder| holder.listening = true);
        let Some(hold) = self.holds.get(&socket).filter(|hold| hold.port == port) else { return };
        if let Some(Port::Crowd(crowd)) = self.ports.get_mut(&port) {
            crowd.welcome = crowd.welcome.after(&hold.holder);
        }
    }

    /// Changes the socket's hold, if it has one (a connect fixed its address, or options were set).
    pub fn change(&mut self, port: u16, socket: u32, change: impl FnOnce(&mut Holder)) {
        let Some(hold) = self.holds.get_mut(&socket).filter(|hold| hold.port == port) else {
            return;
        };
        let Some(Port::Crowd(crowd)) = self.ports.get_mut(&port) else { return };
        self.spots.remove(&(Spot::of(port, &hold.holder), hold.number));
        crowd.holders[hold.holder.class().number()] -= 1;
        change(&mut hold.holder);
        crowd.holders[hold.holder.class().number()] += 1;
        self.spots.insert((Spot::of(port, &hold.holder), hold.number));
    }

    /// The socket is connected from `local`: its hold is for that address alone.
    pub fn narrow(&mut self, port: u16, socket: u32, local: IpAddr) {
        self.change(port, socket, |holder| holder.addr = BindAddr::Ip(local));
    }

    /// Ends the socket's hold.
    pub fn release(&mut self, port: u16, socket: u32) {
        let Entry::Occupied(hold) = self.holds.entry(socket) else { return };
        if hold.get().port != port {
            return;
        }
        let Hold { number, holder, .. } = hold.remove();
        self.spots.remove(&(Spot::of(port, &holder), number));
        if let Some(Port::Crowd(crowd)) = self.ports.get_mut(&port) {
            crowd.holders[holder.class().number()] -= 1;
            if !crowd.is_held() {
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

    /// The first holder took SO_REUSEPORT back after it was bound: which binds with the option still get in. Each row
    /// was tried on Linux 6.18.
    #[test]
    fn a_port_is_open_as_far_as_the_address_of_the_one_that_opened_it() {
        for (addr, wanted, conflict) in [
            (v4(), AnyV4, true),
            (v4(), AnyDual, true),
            (v6(), AnyDual, true),
            (v4(), v4(), false),
            (AnyV4, AnyV4, false),
            (AnyV4, v4(), false),
            (AnyV4, AnyDual, false),
            (AnyDual, AnyV4, false),
        ] {
            let mut binds = Binds::new(Keyed([0, 0]), Table::Tcp);
            let holder = |socket, addr| Holder {
                socket,
                addr,
                sharing: PORT,
                listening: false,
                device: None,
            };
            binds.hold(80, holder(1, addr));
            assert!(!binds.conflicts(80, &holder(2, wanted)), "{addr:?} {wanted:?}");
            binds.change(80, 1, |holder| holder.sharing = PLAIN);
            assert_eq!(binds.conflicts(80, &holder(2, wanted)), conflict, "{addr:?} {wanted:?}");
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

    /// By the rules that [`Binds::conflicts`] names, of a list of all holders.
    fn conflicts_in(all: &[Holder], of: Table, wanted: &Holder) -> bool {
        let mut others = all.iter().rev().filter(|holder| holder.socket != wanted.socket);
        let meets = |holder: &Holder| {
            holder.addr.overlaps(wanted.addr)
                && holder.device.zip(wanted.device).is_none_or(|(a, b)| a == b)
        };
        let unshared = |holder: &Holder| !wanted.sharing.both_reuse_addr(holder.sharing);
        match of {
            Table::Tcp => others.any(|holder| meets(holder) && !wanted.may_join(holder.class())),
            Table::Udp => others
                .find(|holder| meets(holder) && unshared(holder))
                .is_some_and(|holder| !wanted.sharing.both_reuse_port(holder.sharing)),
            Table::Echo => others.any(unshared),
        }
    }

    /// Any number of holders, which come, change and go: the answers are those that a look at all of them gives.
    #[test]
    fn holders_that_are_alike_answer_for_each_other() {
        let addrs = [AnyV4, AnyV6, AnyDual, v4(), v6(), Ip(IpAddr::from([127, 0, 0, 9]))];
        let mut state = 1u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for of in [Table::Tcp, Table::Udp, Table::Echo] {
            let mut binds = Binds::new(Keyed([0, 0]), of);
            let mut all: Vec<Holder> = Vec::new();
            let (mut conflicts, mut count) = (0, 0);
            for step in 0..20_000 {
                let class = Class::all().nth(random(Class::COUNT)).unwrap();
                let wanted = Holder {
                    socket: random(12) as u32,
                    addr: addrs[random(addrs.len())],
                    sharing: class.sharing,
                    listening: class.listening && of == Table::Tcp,
                    device: [None, Some(ETH), Some(IfaceId::LOOPBACK)][random(3)],
                };
                let expected = conflicts_in(&all, of, &wanted);
                // A port that is open to all with SO_REUSEPORT is another rule.
                let entry = binds.ports.get(&53);
                if of != Table::Tcp || !entry.is_some_and(|port| port.welcome().is_for(&wanted)) {
                    assert_eq!(binds.conflicts(53, &wanted), expected, "{of:?} {step} {wanted:?}");
                    (conflicts, count) = (conflicts + u32::from(expected), count + 1);
                }
                if let Ip(ip) = wanted.addr {
                    let held = all.iter().any(|holder| holder.addr.overlaps(Ip(ip)));
                    assert_eq!(binds.is_held(53, ip), held, "{of:?} {step} {ip}");
                }
                match all.iter().position(|holder| holder.socket == wanted.socket) {
                    Some(at) if random(2) == 0 => {
                        all.remove(at);
                        binds.release(53, wanted.socket);
                    }
                    Some(at) => {
                        all[at] = wanted;
                        binds.change(53, wanted.socket, |holder| *holder = wanted);
                    }
                    None if all.len() < 1 + step / 50 % 6 => {
                        all.push(wanted);
                        binds.hold(53, wanted);
                    }
                    None => {}
                }
            }
            // Both answers come often enough to tell.
            let often = count / 50;
            assert!(conflicts > often && conflicts < count - often, "{conflicts} of {count}");
            for holder in &all {
                binds.release(53, holder.socket);
            }
            assert_eq!((binds.len(), binds.holds.len(), binds.spots.len()), (0, 0, 0));
        }
    }
}
