//! Rules of bind(2): the sockets bound to each local address and port (the holders), and the
//! conditions for sharing a port. Each protocol has a table.
//!
//! A bind is compared with one holder of each group of equivalent holders, so its time does not
//! grow with their number.

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use crate::net::IfaceId;
use crate::ports::bind_addr::{BindAddr, PortProtocol, Sharing};
use crate::ports::port_set::PortSet;

/// A socket that is bound to a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortHolder {
    /// Index of the socket. In a table that several shards (stacks) share, it is combined with the
    /// number of the shard, so that it is unique.
    pub socket: u32,
    pub addr: BindAddr,
    pub sharing: Sharing,
    /// Whether the socket is a TCP listener. If so, SO_REUSEADDR alone does not permit to share its
    /// port.
    pub listening: bool,
    /// Interface to which the socket is restricted (SO_BINDTODEVICE). Sockets on different
    /// interfaces do not conflict.
    pub device: Option<IfaceId>,
}

impl PortHolder {
    fn class(&self) -> HolderClass {
        HolderClass { sharing: self.sharing, listening: self.listening }
    }

    /// Returns whether this TCP socket may share a port with a bound socket of the given class.
    /// Both must have set SO_REUSEPORT. Or both must have set SO_REUSEADDR, and the bound socket
    /// must not be a listener.
    pub fn may_join(&self, HolderClass { sharing: theirs, listening }: HolderClass) -> bool {
        self.sharing.both_reuse_addr(theirs) && !listening || self.sharing.both_reuse_port(theirs)
    }
}

/// Properties of a bound socket that determine whether other sockets may share its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HolderClass {
    pub sharing: Sharing,
    pub listening: bool,
}

impl HolderClass {
    const COUNT: usize = 8;

    fn all() -> impl Iterator<Item = HolderClass> {
        (0..Self::COUNT).map(|n| HolderClass {
            sharing: Sharing { reuse_addr: n & 1 != 0, reuse_port: n & 2 != 0 },
            listening: n & 4 != 0,
        })
    }

    /// Returns the index of the class in [`HolderClass::all`].
    fn number(self) -> usize {
        let HolderClass { sharing: Sharing { reuse_addr, reuse_port }, listening } = self;
        usize::from(reuse_addr) | usize::from(reuse_port) << 1 | usize::from(listening) << 2
    }
}

/// Key of a bound socket. Sockets with equal keys conflict with the same binds. In the order of
/// keys, sockets of one port and class with overlapping addresses are adjacent, so that a range
/// search finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    port: u16,
    class: u8,
    addr: BindAddr,
    device: Option<u16>,
}

impl Spot {
    fn of(port: u16, holder: &PortHolder) -> Self {
        let class = holder.class().number() as u8;
        Self { port, class, addr: holder.addr, device: holder.device.map(|device| device.0) }
    }

    /// Returns whether a packet can match both this bound socket and a socket on `device`: the two
    /// are not restricted to different interfaces.
    fn meets(&self, device: Option<IfaceId>) -> bool {
        self.device.zip(device).is_none_or(|(theirs, own)| theirs == own.0)
    }
}

/// A socket that is bound to a port, with the port.
#[derive(Debug)]
struct Hold {
    port: u16,
    /// Number of binds in this table before this one.
    number: u64,
    holder: PortHolder,
}

/// Sockets that may bind to a TCP port without a check against the sockets already bound to it.
/// Linux stores in each port how the last sockets were bound (`fastreuseport` of the bind bucket).
/// A socket with only SO_REUSEPORT may therefore follow a socket with both options, although an
/// earlier socket has only SO_REUSEADDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Welcome {
    /// No socket may bind without a check, because the last socket was bound without SO_REUSEPORT.
    #[default]
    Nobody,
    /// Sockets with SO_REUSEPORT may bind without a check. The last sockets were bound with this
    /// option, the first of them to this address.
    ReusePortAt(BindAddr),
}

impl Welcome {
    fn is_for(self, wanted: &PortHolder) -> bool {
        wanted.sharing.reuse_port
            && match self {
                Self::Nobody => false,
                Self::ReusePortAt(addr) => addr.covers(wanted.addr),
            }
    }

    fn after(self, holder: &PortHolder) -> Self {
        match self {
            _ if !holder.sharing.reuse_port => Self::Nobody,
            welcome if welcome.is_for(holder) => welcome,
            _ => Self::ReusePortAt(holder.addr),
        }
    }
}

/// Numbers of the sockets bound to one port, by class.
#[derive(Debug, Default)]
struct HolderCrowd {
    /// Number of bound sockets of each class.
    holders: [u32; HolderClass::COUNT],
    welcome: Welcome,
}

impl HolderCrowd {
    /// Returns the classes to which at least one bound socket belongs.
    fn classes(&self) -> impl Iterator<Item = HolderClass> + use<> {
        let holders = self.holders;
        HolderClass::all().filter(move |class| holders[class.number()] > 0)
    }

    fn is_held(&self) -> bool {
        self.holders.iter().any(|count| *count > 0)
    }
}

/// Table of the sockets that are bound to ports of one protocol.
#[derive(Debug)]
pub(crate) struct PortHolds {
    of: PortProtocol,
    ports: BTreeMap<u16, HolderCrowd>,
    /// Set of the ports in `ports`, which can be read without a lock.
    occupied: Arc<PortSet>,
    /// Bound sockets, by the number of the socket.
    holds: BTreeMap<u32, Hold>,
    /// Bound sockets in the order of their keys. The number states how many binds preceded each
    /// one.
    spots: BTreeSet<(Spot, u64)>,
    /// Number of binds to ports of this table so far.
    held: u64,
    /// Number of keys that were compared so far, as a measure of the work of searches.
    compared: Cell<u64>,
}

impl PortHolds {
    /// Creates an empty table. The table also stores the ports in use in the set `occupied`.
    pub fn new(of: PortProtocol, occupied: Arc<PortSet>) -> Self {
        Self {
            of,
            ports: BTreeMap::new(),
            occupied,
            holds: BTreeMap::new(),
            spots: BTreeSet::new(),
            held: 0,
            compared: Cell::new(0),
        }
    }

    /// Returns the number of ports to which sockets are bound.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns whether binding a socket to `port` as `wanted` conflicts with a bound socket
    /// (holder). An earlier bind of the same socket is ignored. `is_used` returns whether a
    /// connection conflicts. By the rules of Linux, exactly the following holders conflict:
    ///
    /// * TCP: any holder that [overlaps](Spot::meets) `wanted` and does not
    ///   [share](PortHolder::may_join) the port, unless the port is [open](Welcome) to `wanted`;
    /// * UDP: the newest holder that overlaps `wanted` and does not share by SO_REUSEADDR. If both
    ///   have SO_REUSEPORT there is no conflict, regardless of the options of older holders;
    /// * echo: any holder of the identifier, at any address, that does not share by SO_REUSEADDR.
    pub fn conflicts(
        &self,
        port: u16,
        wanted: &PortHolder,
        is_used: impl FnOnce() -> bool,
    ) -> bool {
        let none = HolderCrowd::default();
        let crowd = self.ports.get(&port).unwrap_or(&none);
        let meeting =
            |class: HolderClass| self.meeting(port, class, wanted).map(move |at| (at, class));
        let unshared = |class: &HolderClass| !wanted.sharing.both_reuse_addr(class.sharing);
        match self.of {
            PortProtocol::Tcp => {
                let mut in_way = crowd.classes().filter(|class| !wanted.may_join(*class));
                !crowd.welcome.is_for(wanted)
                    && (in_way.any(|class| meeting(class).next().is_some()) || is_used())
            }
            PortProtocol::Udp => {
                let mut in_way = crowd.classes().filter(unshared).flat_map(meeting);
                match wanted.sharing.reuse_port {
                    false => in_way.next().is_some(),
                    true => in_way
                        .max_by_key(|(at, _)| *at)
                        .is_some_and(|(_, class)| !class.sharing.reuse_port),
                }
            }
            PortProtocol::Echo => {
                let anywhere = PortHolder { addr: BindAddr::AnyDual, device: None, ..*wanted };
                let mut in_way = crowd.classes().filter(unshared);
                in_way.any(|class| self.meeting(port, class, &anywhere).next().is_some())
            }
        }
    }

    /// For each key of the class `class` that overlaps `wanted`, returns the number of its newest
    /// bind. An earlier bind of the socket in `wanted` is left out.
    fn meeting(
        &self,
        port: u16,
        class: HolderClass,
        wanted: &PortHolder,
    ) -> impl Iterator<Item = u64> {
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

    /// Returns how many keys were compared so far, as a measure of the work of lookups.
    #[cfg(test)]
    pub fn compared(&self) -> u64 {
        self.compared.get()
    }

    /// Returns whether a socket is bound to `port` at `local`, so that connections of unbound
    /// sockets must not use the port.
    pub fn is_held(&self, port: u16, local: IpAddr) -> bool {
        let Some(crowd) = self.ports.get(&port) else { return false };
        let stretches = BindAddr::Ip(local).stretches().into_iter().flatten();
        crowd.classes().any(|class| {
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

    /// Adds the bind of a socket to `port`.
    pub fn hold(&mut self, port: u16, holder: PortHolder) {
        self.occupied.set(port, true);
        let crowd = self.ports.entry(port).or_default();
        crowd.welcome = crowd.welcome.after(&holder);
        crowd.holders[holder.class().number()] += 1;
        let number = self.held;
        self.held += 1;
        self.spots.insert((Spot::of(port, &holder), number));
        self.holds.insert(holder.socket, Hold { port, number, holder });
    }

    /// Marks a bound socket as a listener.
    pub fn set_listening(&mut self, port: u16, socket: u32) {
        self.change(port, socket, |holder| holder.listening = true);
        let Some(hold) = self.holds.get(&socket).filter(|hold| hold.port == port) else { return };
        if let Some(crowd) = self.ports.get_mut(&port) {
            crowd.welcome = crowd.welcome.after(&hold.holder);
        }
    }

    /// Changes the properties of a bound socket, because connect(2) fixed its address or its
    /// options were changed. Has no effect on an unbound socket.
    pub fn change(&mut self, port: u16, socket: u32, change: impl FnOnce(&mut PortHolder)) {
        let Some(hold) = self.holds.get_mut(&socket).filter(|hold| hold.port == port) else {
            return;
        };
        let Some(crowd) = self.ports.get_mut(&port) else { return };
        self.spots.remove(&(Spot::of(port, &hold.holder), hold.number));
        crowd.holders[hold.holder.class().number()] -= 1;
        change(&mut hold.holder);
        crowd.holders[hold.holder.class().number()] += 1;
        self.spots.insert((Spot::of(port, &hold.holder), hold.number));
    }

    /// Removes the bind of a socket to `port`.
    pub fn release(&mut self, port: u16, socket: u32) {
        let Entry::Occupied(hold) = self.holds.entry(socket) else { return };
        if hold.get().port != port {
            return;
        }
        let Hold { number, holder, .. } = hold.remove();
        self.spots.remove(&(Spot::of(port, &holder), number));
        let Some(crowd) = self.ports.get_mut(&port) else { return };
        crowd.holders[holder.class().number()] -= 1;
        if !crowd.is_held() {
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

    fn table(of: PortProtocol) -> PortHolds {
        PortHolds::new(of, Arc::default())
    }

    fn v4() -> BindAddr {
        Ip(IpAddr::from([10, 0, 0, 1]))
    }

    fn v6() -> BindAddr {
        Ip("2001:db8::1".parse().unwrap())
    }

    /// Expected results of bind(2), each verified on Linux 6.x.
    #[test]
    fn conflicts_are_those_of_linux() {
        let rows = [
            // Columns: address, options and listening state of the first socket; address and
            // options of the second socket; whether the two conflict.
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
            let mut holds = table(PortProtocol::Tcp);
            holds.hold(80, PortHolder { socket: 1, addr, sharing, listening, device: None });
            let wanted = PortHolder {
                socket: 2,
                addr: wanted,
                sharing: theirs,
                listening: false,
                device: None,
            };
            assert_eq!(holds.conflicts(80, &wanted, || false), conflict, "row {n}");
            assert!(!holds.conflicts(81, &wanted, || false));
            holds.release(80, 1);
            assert_eq!(holds.len(), 0);
        }
    }

    /// Tests sockets that clear SO_REUSEPORT after their bind. Each row states whether a later bind
    /// with this option fails; verified on Linux 6.18.
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
            let mut holds = table(PortProtocol::Tcp);
            let holder = |socket, addr| PortHolder {
                socket,
                addr,
                sharing: PORT,
                listening: false,
                device: None,
            };
            holds.hold(80, holder(1, addr));
            assert!(!holds.conflicts(80, &holder(2, wanted), || false), "{addr:?} {wanted:?}");
            holds.change(80, 1, |holder| holder.sharing = PLAIN);
            assert_eq!(
                holds.conflicts(80, &holder(2, wanted), || false),
                conflict,
                "{addr:?} {wanted:?}"
            );
        }
    }

    #[test]
    fn devices_keep_to_themselves() {
        let mut holds = table(PortProtocol::Tcp);
        let holder = |socket, device| PortHolder {
            socket,
            addr: AnyV4,
            sharing: PLAIN,
            listening: false,
            device,
        };
        holds.hold(53, holder(1, Some(ETH)));
        assert!(holds.conflicts(53, &holder(2, Some(ETH)), || false));
        assert!(holds.conflicts(53, &holder(2, None), || false));
        assert!(!holds.conflicts(53, &holder(2, Some(IfaceId::LOOPBACK)), || false));
    }

    /// Applies the rules of [`PortHolds::conflicts`] to a list of all bound sockets, to verify the
    /// table.
    fn conflicts_in(all: &[PortHolder], of: PortProtocol, wanted: &PortHolder) -> bool {
        let mut others = all.iter().rev().filter(|holder| holder.socket != wanted.socket);
        let meets = |holder: &PortHolder| {
            holder.addr.overlaps(wanted.addr)
                && holder.device.zip(wanted.device).is_none_or(|(a, b)| a == b)
        };
        let unshared = |holder: &PortHolder| !wanted.sharing.both_reuse_addr(holder.sharing);
        match of {
            PortProtocol::Tcp => {
                others.any(|holder| meets(holder) && !wanted.may_join(holder.class()))
            }
            PortProtocol::Udp => others
                .find(|holder| meets(holder) && unshared(holder))
                .is_some_and(|holder| !wanted.sharing.both_reuse_port(holder.sharing)),
            PortProtocol::Echo => others.any(unshared),
        }
    }

    /// The table gives the same answers as a scan of all bound sockets, while random sockets are
    /// added, changed and removed.
    #[test]
    fn holders_that_are_alike_answer_for_each_other() {
        let addrs = [AnyV4, AnyV6, AnyDual, v4(), v6(), Ip(IpAddr::from([127, 0, 0, 9]))];
        let mut dice = towpath_dice::Dice::new(1, 0);
        let mut random = move |below: usize| dice.index(below);
        for of in [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo] {
            let mut holds = table(of);
            let mut all: Vec<PortHolder> = Vec::new();
            let (mut conflicts, mut count) = (0, 0);
            for step in 0..20_000 {
                let class = HolderClass::all().nth(random(HolderClass::COUNT)).unwrap();
                let wanted = PortHolder {
                    socket: random(12) as u32,
                    addr: addrs[random(addrs.len())],
                    sharing: class.sharing,
                    listening: class.listening && of == PortProtocol::Tcp,
                    device: [None, Some(ETH), Some(IfaceId::LOOPBACK)][random(3)],
                };
                let expected = conflicts_in(&all, of, &wanted);
                // Skip TCP ports that all sockets with SO_REUSEPORT may share, because the model of
                // this test does not cover them.
                let entry = holds.ports.get(&53);
                if of != PortProtocol::Tcp
                    || !entry.is_some_and(|crowd| crowd.welcome.is_for(&wanted))
                {
                    assert_eq!(
                        holds.conflicts(53, &wanted, || false),
                        expected,
                        "{of:?} {step} {wanted:?}"
                    );
                    (conflicts, count) = (conflicts + u32::from(expected), count + 1);
                }
                if let Ip(ip) = wanted.addr {
                    let held = all.iter().any(|holder| holder.addr.overlaps(Ip(ip)));
                    assert_eq!(holds.is_held(53, ip), held, "{of:?} {step} {ip}");
                }
                match all.iter().position(|holder| holder.socket == wanted.socket) {
                    Some(at) if random(2) == 0 => {
                        all.remove(at);
                        holds.release(53, wanted.socket);
                    }
                    Some(at) => {
                        all[at] = wanted;
                        holds.change(53, wanted.socket, |holder| *holder = wanted);
                    }
                    None if all.len() < 1 + step / 50 % 6 => {
                        all.push(wanted);
                        holds.hold(53, wanted);
                    }
                    None => {}
                }
            }
            // Check that both results (conflict and no conflict) occur often enough for the test to
            // be meaningful.
            let often = count / 50;
            assert!(conflicts > often && conflicts < count - often, "{conflicts} of {count}");
            for holder in &all {
                holds.release(53, holder.socket);
            }
            assert_eq!((holds.len(), holds.holds.len(), holds.spots.len()), (0, 0, 0));
        }
    }
}
