//! Local ports and their holders, in one table a protocol for all shards of a host. A shard takes
//! the locks when a bind or a connection begins or ends, and for no packet.
//!
//! The tables answer two questions:
//!
//! - "May this socket have the port?": `holds` for binds, and `users` for connections without a
//!   bind.
//! - "Which socket takes this packet?": `receivers`, which each shard has for itself.
//!
//! Holds are in one table behind one lock, so a bind sees all of them in the order of their binds.
//! Connections that chose their port, and children of listeners, may be many. Their table is that
//! of their shard, which alone adds to it. A bind takes the locks of all, so one of two shards that
//! meet on a port sees the other:
//!
//! ```text
//!  bind:    lock holds, lock the users of every shard, look at all, hold the port
//!  connect: lock the own users, look whether the port is held, use it
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

/// The ports of one protocol, as the shards of a host share them.
#[derive(Debug)]
pub(crate) struct SharedPorts {
    holds: Mutex<PortHolds>,
    /// Ports with a holder.
    held: Arc<PortSet>,
    /// Users of each shard; connections have ports of TCP alone.
    users: Vec<(Mutex<Users>, Arc<PortSet>)>,
    /// Latest TIME-WAIT of each shard, by port: [`stamp`] in the upper half, [`tag`] in the lower;
    /// 0 without TIME-WAIT. Other shards take one by compare-exchange. Empty with one shard.
    waiting: Vec<Box<[AtomicU32]>>,
}

/// A time for [`SharedPorts::waiting`], in units of about 17 ms.
fn stamp(at: Instant) -> u16 {
    (at.0 >> 24) as u16
}

/// Identifies a flow in [`SharedPorts::waiting`] by bits of its hash. The lowest bit is set until a
/// shard takes the TIME-WAIT.
fn tag(flow: u64) -> u16 {
    (flow >> 32) as u16 | 1
}

impl SharedPorts {
    /// The ports of a host with `shards` shards.
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

    /// Sets of ports in use: those with a holder, and those with connections of some shards.
    /// Returns the number of sets; the rest of the array is padding.
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
        // Lock order: holds, then users by shard; otherwise two shards deadlock.
        let holds = lock(&self.holds);
        LockedPorts { holds, users: self.users.iter().map(|(users, _)| lock(users)).collect() }
    }
}

/// Everything about the ports of a protocol.
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

/// The ports of a protocol, as one shard sees them.
#[derive(Debug)]
pub(crate) struct Binds {
    ports: Arc<SharedPorts>,
    shard: ShardId,
    /// Receivers of this shard as other shards know them, when there are any.
    announced: Option<Arc<Mutex<Announced>>>,
    /// Sockets of this shard that take packets.
    pub receivers: Receivers,
}

/// Connection as a user of a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortUse {
    pub local: IpAddr,
    /// `None`: the connection does not count as a user.
    pub sharing: Option<Sharing>,
}

/// Where the number of a shard is in that of a socket.
const SHARD_SHIFT: u32 = 28;

const _: () = assert!(crate::limits::SOCKETS_MAX <= 1 << SHARD_SHIFT);
const _: () = assert!(crate::limits::SHARDS_MAX <= 1 << (u32::BITS - SHARD_SHIFT));

impl Binds {
    /// The table of a stack that is alone.
    pub fn alone(key: Keyed, of: PortProtocol) -> Self {
        Self::of_shard(SharedPorts::new(of, 1), ShardId::FIRST, key, of)
    }

    /// The tables of shards that know of each other by `common`.
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

    /// Receivers of this shard as other shards know them; `None` without other shards.
    pub fn announced(&self) -> Option<Arc<Mutex<Announced>>> {
        self.announced.clone()
    }

    /// The number of a socket among those of all shards, and whose it is.
    pub fn seat(&self, socket: u32) -> (u32, ShardId) {
        (Self::seat_of(self.shard, socket), self.shard)
    }

    /// The number of a socket of `shard` among those of all.
    pub fn seat_of(shard: ShardId, socket: u32) -> u32 {
        u32::from(shard.0) << SHARD_SHIFT | socket
    }

    fn seated(&self, holder: &PortHolder) -> PortHolder {
        PortHolder { socket: self.seat(holder.socket).0, ..*holder }
    }

    fn own_users(&self) -> Option<MutexGuard<'_, Users>> {
        self.ports.users.get(self.shard.index()).map(|(users, _)| lock(users))
    }

    /// Ports in use, and addresses that packets are taken for: zero when nothing is left. Sockets
    /// of all shards count.
    pub fn len(&self) -> usize {
        let users = self.own_users().map_or(0, |users| users.len());
        lock(&self.ports.holds).len() + users + self.receivers.len()
    }

    /// Whether any socket or connection is on `port`, at any address.
    pub fn is_taken(&self, port: u16) -> bool {
        let used = || self.ports.users.iter().any(|(_, occupied)| occupied.contains(port));
        self.ports.held.contains(port) || used()
    }

    /// Holders that are not alike, and groups of receivers, compared so far: the work done by
    /// look-ups.
    #[cfg(test)]
    pub fn compared(&self) -> u64 {
        lock(&self.ports.holds).compared() + self.receivers.compared.get()
    }

    /// Gives `port` to a socket, unless there is a [conflict](Holds::conflicts).
    pub fn try_hold(&self, port: u16, holder: &PortHolder) -> bool {
        let (holder, mut all) = (self.seated(holder), self.ports.lock());
        let free = !all.conflicts(port, &holder);
        if free {
            all.holds.hold(port, holder);
        }
        free
    }

    /// Gives a socket a port without a conflict.
    ///
    /// As on Linux the port is not shared: SO_REUSEADDR and SO_REUSEPORT are for ports that the
    /// program names. Only where all are taken is it, if it may be `shared` (udp_lib_get_port).
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

    /// Lets the holder of `port` listen, unless there is a conflict.
    pub fn try_listen(&self, port: u16, holder: &PortHolder) -> bool {
        let (holder, mut all) = (self.seated(holder), self.ports.lock());
        let free = !all.conflicts(port, &holder);
        if free {
            all.holds.set_listening(port, holder.socket);
        }
        free
    }

    /// Gives the hold of `from` on `port` to the socket of `holder`: the port is never free.
    pub fn hand_over(&self, port: u16, from: u32, holder: &PortHolder) {
        let mut holds = lock(&self.ports.holds);
        holds.hold(port, self.seated(holder));
        holds.release(port, self.seat(from).0);
    }

    /// Changes the socket's hold, if it has one (a connect fixed its address, or options were set).
    pub fn change(&self, port: u16, socket: u32, change: impl FnOnce(&mut PortHolder)) {
        lock(&self.ports.holds).change(port, self.seat(socket).0, change);
    }

    /// The socket is connected from `local`: its hold is for that address alone.
    pub fn narrow(&self, port: u16, socket: u32, local: IpAddr) {
        self.change(port, socket, |holder| holder.addr = BindAddr::Ip(local));
    }

    /// Ends the socket's hold.
    pub fn release(&self, port: u16, socket: u32) {
        lock(&self.ports.holds).release(port, self.seat(socket).0);
    }

    /// Notes that a connection, or its remains, uses `port` on `local`. The connection had the port
    /// before: by a hold, or as the child of a listener.
    pub fn use_port(&self, port: u16, local: IpAddr, sharing: Sharing) {
        if let Some(mut users) = self.own_users() {
            users.add(port, local, sharing);
        }
    }

    /// Undoes one [`Binds::use_port`] or [`Binds::use_any`].
    pub fn unuse_port(&self, port: u16, local: IpAddr, sharing: Sharing) {
        if let Some(mut users) = self.own_users() {
            users.remove(port, local, sharing);
        }
    }

    /// Publishes that the flow with this hash, on local `port`, is in TIME-WAIT since a time.
    /// `None` withdraws the note.
    pub fn note_time_wait(&self, port: u16, flow: u64, since: Option<Instant>) {
        let Some(times) = self.ports.waiting.get(self.shard.index()) else { return };
        let noted = &times[usize::from(port)];
        match since {
            Some(at) => {
                let note = u32::from(stamp(at)) << 16 | u32::from(tag(flow));
                noted.store(note, Ordering::Relaxed);
            }
            // The note may belong to a later flow on the port, which keeps it.
            None if noted.load(Ordering::Relaxed) as u16 | 1 == tag(flow) => {
                noted.store(0, Ordering::Relaxed);
            }
            None => {}
        }
    }

    /// Takes a TIME-WAIT of another shard on `port` if it has lasted for [`TIME_WAIT_REUSE_AFTER`].
    /// Only one shard succeeds. The owner gives the TIME-WAIT up when the flow is claimed.
    pub fn take_time_wait(&self, port: u16, flow: u64, now: Instant) -> bool {
        let least = (TIME_WAIT_REUSE_AFTER.as_nanos() >> 24) as u16 + 2;
        (0..).zip(&self.ports.waiting).any(|(shard, times)| {
            let noted = &times[usize::from(port)];
            let note = noted.load(Ordering::Relaxed);
            let lasted = stamp(now).wrapping_sub((note >> 16) as u16);
            let is_due = shard != self.shard.0 && note as u16 == tag(flow) && lasted >= least;
            is_due && Self::mark_taken(noted, note)
        })
    }

    /// Takes a TIME-WAIT of this shard. Returns false if another shard has taken it.
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

    /// Whether another shard chose the port as well since this shard saw it free. If so, the use by
    /// this shard ends.
    fn is_contested(&self, port: u16, user: PortUse) -> bool {
        // Both shards noted their use before, so at least one of them sees both notes.
        fence(Ordering::SeqCst);
        let mut users = self.ports.users.iter().enumerate();
        let own = self.shard.index();
        let contested = users.any(|(shard, (_, used))| shard != own && used.contains(port));
        if let Some(sharing) = user.sharing.filter(|_| contested) {
            self.unuse_port(port, user.local, sharing);
        }
        contested
    }

    /// Gives a connection from `user.local` a port that is not held there and that `is_free`.
    ///
    /// The port is noted as used if `user.sharing` is given. With `vacant`, ports with connections
    /// of any shard are excluded.
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
        // Usually the port has no holder at any address. A bind takes this lock, too, from its look
        // until it holds the port.
        let users = self.own_users();
        if !self.ports.held.contains(port) {
            return add(users);
        }
        drop(users);
        let holds = lock(&self.ports.holds);
        !holds.is_held(port, local) && add(self.own_users())
    }
}

/// A thread that panics ends the run, so no thread can see its half-done work.
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
        // Its holder shares it, too.
        assert_eq!(hold(of(3, ADDR), true), Some(first));
    }

    fn connect(binds: &Binds, ephemeral: &mut Ephemeral) -> Option<u16> {
        let user = PortUse { local: LOCAL, sharing: Some(PLAIN) };
        binds.use_any(ephemeral, 0, user, false, |_| true).port
    }

    /// The sockets have the same number, each in its shard.
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
        // The port that is held goes to no connection; the other one's may be shared.
        assert_eq!(connect(&shards[0], &mut ephemeral), Some(100));
        shards[0].unuse_port(100, LOCAL, PLAIN);
        assert!(!shards[1].try_hold(100, &holder(PLAIN)));
        shards[0].unuse_port(100, LOCAL, PLAIN);
        assert!(shards[1].try_hold(100, &holder(PLAIN)));
        assert_eq!(connect(&shards[0], &mut ephemeral), None);
    }

    /// A bind and a connect of two shards compete for a port: the second one does not get it.
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
