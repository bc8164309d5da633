//! Local ports, and the sockets and connections that use them. All shards of a host share one table
//! per protocol. A shard locks the table when a socket is bound, and when a connection begins or
//! ends, but not for each packet.
//!
//! The tables answer two questions:
//!
//! - "May this socket have the port?": `holds` has the sockets bound to a port, and `users` the
//!   connections on a port without a bind.
//! - "Which socket receives this packet?": `receivers`; each shard has its own.
//!
//! All binds are in one table behind one lock, so each bind is checked against all earlier ones.
//! There may be many connections for which the stack chose the port, or which a listener accepted.
//! Each shard therefore has a table of its own connections, and only that shard adds to it. A bind
//! locks all tables. If two shards compete for a port, one of them therefore sees the other:
//!
//! ```text
//!  bind:    lock holds, lock the users of every shard, check them, hold the port
//!  connect: lock the own users, check that the port is not held, use it
//! ```

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_tcp::Instant;

use crate::limits::{SHARDS_MAX, TIME_WAIT_REUSE_AFTER};
use crate::net::hash::Keyed;
use crate::ports::bind_addr::{BindAddr, PortProtocol, Sharing};
use crate::ports::ephemeral::{Ephemeral, PortChoice};
use crate::ports::holds::{PortHolder, PortHolds};
use crate::ports::port_set::{PortSet, PortSets};
use crate::ports::receivers::Receivers;
use crate::ports::users::Users;
use crate::shards::{Announced, Common, ShardId};

/// Ports of one protocol. All shards (stacks) of a host share this table.
#[derive(Debug)]
pub(crate) struct SharedPorts {
    holds: Mutex<PortHolds>,
    /// Set of the ports to which at least one socket is bound.
    held: Arc<PortSet>,
    /// Connections that use a port, by shard (stack). Only used for TCP, because other protocols
    /// have no connections.
    users: Vec<(Mutex<Users>, Arc<PortSet>)>,
    /// For each shard and port, the last connection that entered TIME-WAIT, or 0. The upper half is
    /// its time ([`stamp`]), the lower half identifies its flow ([`tag`]). Another shard reserves
    /// the connection's flow for reuse by compare-exchange. Empty if there is only one shard.
    waiting: Vec<Box<[AtomicU32]>>,
}

/// Converts a time to the unit of [`SharedPorts::waiting`], about 17 ms.
fn stamp(at: Instant) -> u16 {
    (at.0 >> 24) as u16
}

/// Returns bits of a flow's hash that identify the flow in [`SharedPorts::waiting`]. The lowest bit
/// is always set. A shard that reserves the TIME-WAIT connection for reuse clears the bit.
fn tag(flow: u64) -> u16 {
    (flow >> 32) as u16 | 1
}

impl SharedPorts {
    /// Creates the table of a host with `shards` shards.
    fn new(of: PortProtocol, shards: usize) -> Arc<Self> {
        let held = Arc::new(PortSet::default());
        let users = || {
            let occupied = Arc::new(PortSet::default());
            (Mutex::new(Users::new(Arc::clone(&occupied))), occupied)
        };
        let users: Vec<_> =
            (0..if of == PortProtocol::Tcp { shards } else { 0 }).map(|_| users()).collect();
        let times = || (0..=u16::MAX).map(|_| AtomicU32::new(0)).collect();
        let waiting = (0..if users.len() > 1 { users.len() } else { 0 }).map(|_| times()).collect();
        let holds = Mutex::new(PortHolds::new(of, Arc::clone(&held)));
        Arc::new(Self { holds, held, users, waiting })
    }

    /// Returns the sets of ports in use: the ports to which sockets are bound, and the ports with
    /// connections of the selected shards. Also returns the number of sets; the remaining elements
    /// of the array are padding.
    fn occupied(&self, of_shard: impl Fn(usize) -> bool) -> ([&PortSet; SHARDS_MAX + 1], usize) {
        let mut occupied = [&*self.held; SHARDS_MAX + 1];
        let mut count = 1;
        for (shard, (_, users)) in self.users.iter().enumerate() {
            if of_shard(shard) {
                occupied[count] = users;
                count += 1;
            }
        }
        (occupied, count)
    }

    fn lock(&self) -> LockedPorts<'_> {
        // Lock order: `holds` first, then `users` in the order of shards. With different orders,
        // two shards could deadlock.
        let holds = lock(&self.holds);
        LockedPorts { holds, users: self.users.iter().map(|(users, _)| lock(users)).collect() }
    }
}

/// The tables of all shards (stacks) for one protocol, while they are locked.
struct LockedPorts<'a> {
    holds: MutexGuard<'a, PortHolds>,
    users: Vec<MutexGuard<'a, Users>>,
}

impl LockedPorts<'_> {
    fn conflicts(&self, port: u16, wanted: &PortHolder) -> bool {
        let is_used = || self.users.iter().any(|users| users.are_in_way(port, wanted));
        self.holds.conflicts(port, wanted, is_used)
    }
}

/// Ports of one protocol, as one shard (stack) sees them.
#[derive(Debug)]
pub(crate) struct Binds {
    ports: Arc<SharedPorts>,
    shard: ShardId,
    /// Table in which this shard announces its receiving sockets to the other shards; `None` if
    /// there are no other shards.
    announced: Option<Arc<Mutex<Announced>>>,
    /// Sockets of this shard (stack) that receive packets from new peers.
    pub receivers: Receivers,
}

/// A connection that uses a local port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortUse {
    pub local: IpAddr,
    /// Options for sharing the port. `None` if the connection does not count as a user of the port.
    pub sharing: Option<Sharing>,
}

/// Bit position of the shard number in a socket number that is unique among all shards.
const SHARD_SHIFT: u32 = 28;

const _: () = assert!(crate::limits::SOCKETS_MAX <= 1 << SHARD_SHIFT);
const _: () = assert!(crate::limits::SHARDS_MAX <= 1 << (u32::BITS - SHARD_SHIFT));

impl Binds {
    /// Creates the table of a stack without other shards.
    pub fn alone(key: Keyed, of: PortProtocol) -> Self {
        Self::of_shard(SharedPorts::new(of, 1), ShardId::FIRST, key, of)
    }

    /// Creates one table for each shard (stack) of a host. The shards exchange information through
    /// `common`.
    pub fn of_shards(common: &Arc<Common>, key: Keyed, of: PortProtocol) -> Vec<Self> {
        let count = common.owners.count();
        let ports = SharedPorts::new(of, count);
        let announced = Arc::new(Mutex::new(Announced::new(of, Arc::clone(common))));
        let shard = |n| {
            let binds = Self::of_shard(Arc::clone(&ports), ShardId(n as u8), key, of);
            Self { announced: Some(Arc::clone(&announced)), ..binds }
        };
        (0..count).map(shard).collect()
    }

    fn of_shard(ports: Arc<SharedPorts>, shard: ShardId, key: Keyed, of: PortProtocol) -> Self {
        Self { ports, shard, announced: None, receivers: Receivers::new(key, of) }
    }

    /// Returns the table in which this shard announces its receiving sockets to the other shards;
    /// `None` if there are no other shards.
    pub fn announced(&self) -> Option<Arc<Mutex<Announced>>> {
        self.announced.clone()
    }

    /// Returns a number for the socket that is unique among all shards (stacks) of the host, and
    /// the number of this shard.
    pub fn seat(&self, socket: u32) -> (u32, ShardId) {
        (Self::seat_of(self.shard, socket), self.shard)
    }

    /// Returns a number for a socket of the shard `shard` that is unique among all shards.
    pub fn seat_of(shard: ShardId, socket: u32) -> u32 {
        u32::from(shard.0) << SHARD_SHIFT | socket
    }

    fn seated(&self, holder: &PortHolder) -> PortHolder {
        PortHolder { socket: self.seat(holder.socket).0, ..*holder }
    }

    fn own_users(&self) -> Option<MutexGuard<'_, Users>> {
        self.ports.users.get(self.shard.index()).map(|(users, _)| lock(users))
    }

    /// Returns the number of ports in use plus the number of receiving sockets. Binds of all shards
    /// are included. 0 if there are no sockets.
    pub fn len(&self) -> usize {
        let users = self.own_users().map_or(0, |users| users.len());
        lock(&self.ports.holds).len() + users + self.receivers.len()
    }

    /// Returns whether a socket or connection uses `port`, at any address.
    pub fn is_taken(&self, port: u16) -> bool {
        let used = || self.ports.users.iter().any(|(_, occupied)| occupied.contains(port));
        self.ports.held.contains(port) || used()
    }

    /// Returns how many groups of sockets were compared so far, as a measure of the work of
    /// lookups.
    #[cfg(test)]
    pub fn compared(&self) -> u64 {
        lock(&self.ports.holds).compared() + self.receivers.compared.get()
    }

    /// Binds a socket to `port`, unless there is a [conflict](PortHolds::conflicts). Returns
    /// whether the socket was bound.
    pub fn try_hold(&self, port: u16, holder: &PortHolder) -> bool {
        let (holder, mut all) = (self.seated(holder), self.ports.lock());
        let free = !all.conflicts(port, &holder);
        if free {
            all.holds.hold(port, holder);
        }
        free
    }

    /// Chooses a free port, and binds a socket to it.
    ///
    /// As on Linux, the chosen port is not shared: SO_REUSEADDR and SO_REUSEPORT apply to ports
    /// that the program specifies. Only if all ports are in use, and `shared` is set, may the port
    /// be shared (`udp_lib_get_port`).
    pub fn hold_any(
        &self,
        ephemeral: &mut Ephemeral,
        hash: u64,
        holder: &PortHolder,
        shared: bool,
    ) -> PortChoice {
        let (holder, mut all) = (self.seated(holder), self.ports.lock());
        let alone = PortHolder { sharing: Sharing::default(), ..holder };
        let (occupied, count) = self.ports.occupied(|_| true);
        let mut choose = |holder: &PortHolder| {
            let sets = PortSets(&occupied[..count]);
            ephemeral.choose(hash, &sets, |port| !all.conflicts(port, holder))
        };
        let mut choice = choose(&alone);
        if choice.port.is_none() && shared && holder.sharing != Sharing::default() {
            let again = choose(&holder);
            choice = PortChoice { port: again.port, tried: choice.tried + again.tried };
        }
        if let Some(port) = choice.port {
            all.holds.hold(port, holder);
        }
        choice
    }

    /// Makes the socket that is bound to `port` a listener, unless there is a conflict.
    pub fn try_listen(&self, port: u16, holder: &PortHolder) -> bool {
        let (holder, mut all) = (self.seated(holder), self.ports.lock());
        let free = !all.conflicts(port, &holder);
        if free {
            all.holds.set_listening(port, holder.socket);
        }
        free
    }

    /// Moves the bind of the socket `from` to the socket of `holder`. The port remains in use
    /// during the change.
    pub fn hand_over(&self, port: u16, from: u32, holder: &PortHolder) {
        let mut holds = lock(&self.ports.holds);
        holds.hold(port, self.seated(holder));
        holds.release(port, self.seat(from).0);
    }

    /// Changes the properties of a bound socket, because connect(2) fixed its address or its
    /// options were changed. Has no effect on an unbound socket.
    pub fn change(&self, port: u16, socket: u32, change: impl FnOnce(&mut PortHolder)) {
        lock(&self.ports.holds).change(port, self.seat(socket).0, change);
    }

    /// Restricts the bind of a connected socket to its local address `local`.
    pub fn narrow(&self, port: u16, socket: u32, local: IpAddr) {
        self.change(port, socket, |holder| holder.addr = BindAddr::Ip(local));
    }

    /// Removes the bind of a socket to `port`.
    pub fn release(&self, port: u16, socket: u32) {
        lock(&self.ports.holds).release(port, self.seat(socket).0);
    }

    /// Counts a connection, possibly in TIME-WAIT, as a user of `port` at the address `local`. The
    /// connection already had the port, because of a bind, or because a listener accepted it.
    pub fn use_port(&self, port: u16, local: IpAddr, sharing: Sharing) {
        if let Some(mut users) = self.own_users() {
            users.add(port, local, sharing);
        }
    }

    /// Reverts one call of [`Binds::use_port`] or [`Binds::use_any`].
    pub fn unuse_port(&self, port: u16, local: IpAddr, sharing: Sharing) {
        if let Some(mut users) = self.own_users() {
            users.remove(port, local, sharing);
        }
    }

    /// Publishes the time at which a connection on the local port `port` entered TIME-WAIT. `flow`
    /// is the hash of its addresses and ports. `None` withdraws the time.
    pub fn note_time_wait(&self, port: u16, flow: u64, since: Option<Instant>) {
        let Some(times) = self.ports.waiting.get(self.shard.index()) else { return };
        let noted = &times[usize::from(port)];
        match since {
            Some(at) => {
                let note = u32::from(stamp(at)) << 16 | u32::from(tag(flow));
                noted.store(note, Ordering::Relaxed);
            }
            // Remove the entry only if it belongs to this flow, and not to a later connection on
            // the same port.
            None if noted.load(Ordering::Relaxed) as u16 | 1 == tag(flow) => {
                noted.store(0, Ordering::Relaxed);
            }
            None => {}
        }
    }

    /// Reserves a connection of another shard that is in TIME-WAIT on `port`, so that this shard
    /// can reuse its flow. The connection must have been in TIME-WAIT for at least
    /// [`TIME_WAIT_REUSE_AFTER`]. Only one shard succeeds. The other shard ends the TIME-WAIT when
    /// this shard claims the flow.
    pub fn take_time_wait(&self, port: u16, flow: u64, now: Instant) -> bool {
        let least = (TIME_WAIT_REUSE_AFTER.as_nanos() >> 24) as i16 + 2;
        (0..).zip(&self.ports.waiting).any(|(shard, times)| {
            let noted = &times[usize::from(port)];
            let note = noted.load(Ordering::Relaxed);
            // The difference is negative if the time in `note` is later than `now`, because the
            // turns of two shards begin at different times.
            let lasted = stamp(now).wrapping_sub((note >> 16) as u16) as i16;
            let is_due = shard != self.shard.0 && note as u16 == tag(flow) && lasted >= least;
            is_due && Self::mark_taken(noted, note)
        })
    }

    /// Reserves a connection of this shard that is in TIME-WAIT, so that its flow can be reused.
    /// Returns false if another shard has already reserved the connection.
    pub fn keep_time_wait(&self, port: u16, flow: u64) -> bool {
        let Some(times) = self.ports.waiting.get(self.shard.index()) else { return true };
        let noted = &times[usize::from(port)];
        let note = noted.load(Ordering::Relaxed);
        let is_unknown = note == 0 || note as u16 | 1 != tag(flow);
        is_unknown || note & 1 == 1 && Self::mark_taken(noted, note)
    }

    fn mark_taken(noted: &AtomicU32, note: u32) -> bool {
        noted.compare_exchange(note, note & !1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns whether another shard has chosen the same port since this shard found it free. If
    /// so, the caller must choose another port.
    fn is_contested(&self, port: u16, user: PortUse) -> bool {
        // Each shard registers its use of the port before this check, with a fence in between. If
        // two shards choose the same port, at least one of them therefore sees both uses.
        fence(Ordering::SeqCst);
        let mut users = self.ports.users.iter().enumerate();
        let own = self.shard.index();
        let contested = users.any(|(shard, (_, used))| shard != own && used.contains(port));
        if let Some(sharing) = user.sharing.filter(|_| contested) {
            self.unuse_port(port, user.local, sharing);
        }
        contested
    }

    /// Chooses a port for a connection from the address `user.local`. No socket may be bound to the
    /// port at this address, and `is_free` must return true for it.
    ///
    /// If `user.sharing` is given, the connection is counted as a user of the port. With `vacant`,
    /// ports on which any shard has connections are excluded.
    pub fn use_any(
        &self,
        ephemeral: &mut Ephemeral,
        hash: u64,
        user: PortUse,
        vacant: bool,
        is_free: impl Fn(u16) -> bool,
    ) -> PortChoice {
        let own = self.shard.index();
        let (occupied, count) = self.ports.occupied(|shard| vacant || shard == own);
        ephemeral.choose(hash, &PortSets(&occupied[..count]), |port| {
            !(vacant && self.is_taken(port))
                && is_free(port)
                && self.use_if_not_held(port, user)
                && !(vacant && self.is_contested(port, user))
        })
    }

    fn use_if_not_held(&self, port: u16, user: PortUse) -> bool {
        let PortUse { local, sharing } = user;
        let add = |users: Option<MutexGuard<'_, Users>>| {
            if let (Some(mut users), Some(sharing)) = (users, sharing) {
                users.add(port, local, sharing);
            }
            true
        };
        // Usually no socket is bound to the port. No socket can be bound to it before the
        // connection is registered, because every bind takes the lock that is taken here.
        let users = self.own_users();
        if !self.ports.held.contains(port) {
            return add(users);
        }
        drop(users);
        let holds = lock(&self.ports.holds);
        !holds.is_held(port, local) && add(self.own_users())
    }
}

/// Locks a mutex, even if it is poisoned. A panic of any thread ends the process, so no other
/// thread uses inconsistent data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const PLAIN: Sharing = Sharing { reuse_addr: false, reuse_port: false };
    const PORT: Sharing = Sharing { reuse_addr: false, reuse_port: true };

    fn shards(of: PortProtocol, count: u8) -> Vec<Binds> {
        let ports = SharedPorts::new(of, count.into());
        let binds = |n| Binds::of_shard(Arc::clone(&ports), ShardId(n), Keyed([0, 0]), of);
        (0..count).map(binds).collect()
    }

    fn holder(sharing: Sharing) -> PortHolder {
        PortHolder { socket: 7, addr: BindAddr::AnyV4, sharing, listening: false, device: None }
    }

    #[test]
    fn a_chosen_port_of_udp_is_shared_when_all_are_taken() {
        const ADDR: Sharing = Sharing { reuse_addr: true, reuse_port: false };
        let of = |socket, sharing| PortHolder { socket, ..holder(sharing) };
        let mut ephemeral = Ephemeral::new(&(100..=101));
        let binds = &shards(PortProtocol::Udp, 1)[0];
        let mut hold =
            |holder: PortHolder, shared| binds.hold_any(&mut ephemeral, 0, &holder, shared).port;
        let first = hold(of(1, ADDR), true).expect("a free port");
        let second = hold(of(2, PLAIN), true).expect("a free port");
        assert_ne!(first, second);
        assert_eq!(hold(of(3, ADDR), false), None);
        assert_eq!(hold(of(3, PLAIN), true), None);
        // The port can be shared, because the first socket permits it as well.
        assert_eq!(hold(of(3, ADDR), true), Some(first));
    }

    fn connect(binds: &Binds, ephemeral: &mut Ephemeral) -> Option<u16> {
        let user = PortUse { local: LOCAL, sharing: Some(PLAIN) };
        binds.use_any(ephemeral, 0, user, false, |_| true).port
    }

    /// Tests two sockets that have the same index, each in its own shard.
    #[test]
    fn a_port_is_held_in_all_shards() {
        for of in [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo] {
            let shards = shards(of, 2);
            assert!(shards[0].try_hold(80, &holder(PLAIN)));
            assert!(!shards[1].try_hold(80, &holder(PLAIN)), "{of:?}");
            assert!(shards[1].is_taken(80));
            shards[1].release(80, 7);
            assert!(!shards[1].try_hold(80, &holder(PLAIN)), "that was another socket's");
            shards[0].release(80, 7);
            assert!(shards[1].try_hold(80, &holder(PLAIN)));
        }
        let shards = shards(PortProtocol::Tcp, 4);
        assert!(shards.iter().all(|shard| shard.try_hold(80, &holder(PORT))));
        assert!(!shards[2].try_hold(80, &holder(PLAIN)));
    }

    #[test]
    fn a_bind_sees_the_connections_of_other_shards() {
        let shards = shards(PortProtocol::Tcp, 2);
        let mut ephemeral = Ephemeral::new(&(100..=101));
        assert_eq!(connect(&shards[0], &mut ephemeral), Some(100));
        assert!(!shards[1].try_hold(100, &holder(PLAIN)));
        let chosen =
            shards[1].hold_any(&mut Ephemeral::new(&(100..=101)), 0, &holder(PLAIN), false);
        assert_eq!(chosen, PortChoice { port: Some(101), tried: 1 });
        // No connection gets the port to which a socket is bound. The port with a connection may be
        // shared.
        assert_eq!(connect(&shards[0], &mut ephemeral), Some(100));
        shards[0].unuse_port(100, LOCAL, PLAIN);
        assert!(!shards[1].try_hold(100, &holder(PLAIN)));
        shards[0].unuse_port(100, LOCAL, PLAIN);
        assert!(shards[1].try_hold(100, &holder(PLAIN)));
        assert_eq!(connect(&shards[0], &mut ephemeral), None);
    }

    /// Tests times at which the shard that reserves the TIME-WAIT connection has an older time than
    /// the shard of the connection.
    #[test]
    fn a_time_wait_is_taken_once_and_when_it_has_lasted_long_enough() {
        let shards = shards(PortProtocol::Tcp, 2);
        let at = |ms: u64| Instant(ms * 1_000_000);
        for since in [100_000, 16_777 * 66] {
            shards[0].note_time_wait(100, 7, Some(at(since)));
            for now in [since - 20, since, since + 900] {
                assert!(!shards[1].take_time_wait(100, 7, at(now)), "{since} {now}");
            }
            assert!(shards[1].take_time_wait(100, 7, at(since + 1100)));
            assert!(!shards[1].take_time_wait(100, 7, at(since + 1100)));
            assert!(!shards[0].keep_time_wait(100, 7));
        }
    }

    /// A bind and a connect in two shards compete for a port, and only one of them succeeds.
    #[test]
    #[allow(clippy::disallowed_methods)] // Two shards bind and connect at the same moment.
    fn of_a_bind_and_a_connect_at_once_one_gets_the_port() {
        let mut shards = shards(PortProtocol::Tcp, 2);
        let [one, other] = &mut shards[..] else { unreachable!("two were made") };
        let start = Barrier::new(2);
        for round in 0..2000 {
            let (held, used) = thread::scope(|scope| {
                let (one, start) = (&mut *one, &start);
                let bind = scope.spawn(move || {
                    start.wait();
                    one.try_hold(100, &holder(PLAIN))
                });
                start.wait();
                let used = connect(other, &mut Ephemeral::new(&(100..=100))).is_some();
                (bind.join().unwrap(), used)
            });
            assert!(held != used, "{round}: held {held}, used {used}");
            one.release(100, 7);
            other.unuse_port(100, LOCAL, PLAIN);
            assert!(!one.is_taken(100), "{round}");
        }
    }
}
