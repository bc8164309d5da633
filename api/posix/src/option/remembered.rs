//! Values of socket options that are stored only in this process, and not in the engine (the
//! network stack).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use towpath_client::syscall::SignalsBlocked;
use towpath_client::{LockGuard, ProcessLock, Socket};

use super::table::{TCP_INQ, UDP_SEGMENT};

/// Option values by (slot, level, name), where the slot is the number of a socket. Each value is
/// preceded by the generation of the slot, which changes when the slot is reused.
pub(crate) type Values = BTreeMap<(u32, i32, i32), (u32, i32)>;

/// Values of socket options as set by this process.
#[derive(Debug)]
pub(crate) struct Remembered {
    values: ProcessLock<Values>,
    /// Whether any option value is stored. `segments` and `inq` tell the same for UDP_SEGMENT and
    /// TCP_INQ, which each send or receive reads. If false, calls need not take the lock.
    any: AtomicBool,
    segments: AtomicBool,
    inq: AtomicBool,
}

impl Remembered {
    /// Creates the state without option values.
    pub const fn new() -> Self {
        Self {
            values: ProcessLock::new(BTreeMap::new()),
            any: AtomicBool::new(false),
            segments: AtomicBool::new(false),
            inq: AtomicBool::new(false),
        }
    }

    /// Returns the segment size of a socket in bytes (UDP_SEGMENT). 0: not set.
    pub fn segment_size(&self, socket: Socket) -> u16 {
        if !self.segments.load(Relaxed) {
            return 0;
        }
        self.value(socket, libc::IPPROTO_UDP, UDP_SEGMENT).map_or(0, |size| size as u16)
    }

    /// Returns whether recvmsg(2) must report the number of unread bytes of a socket (TCP_INQ).
    pub fn wants_inq(&self, socket: Socket) -> bool {
        self.inq.load(Relaxed) && self.value(socket, libc::IPPROTO_TCP, TCP_INQ) == Some(1)
    }

    /// Copies option values from a listener to an accepted connection, which inherits them.
    pub fn inherit(&self, from: Socket, to: Socket) {
        if !self.any.load(Relaxed) {
            return;
        }
        let _signals = SignalsBlocked::new();
        let mut map = self.values.lock();
        let range = (from.slot, i32::MIN, i32::MIN)..=(from.slot, i32::MAX, i32::MAX);
        let own = |level, name| {
            [(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT), (libc::SOL_SOCKET, libc::SO_PRIORITY)]
                .contains(&(level, name))
        };
        let found = map.range(range).filter(|((_, level, name), (generation, _))| {
            *generation == from.generation && !own(*level, *name)
        });
        let found: Vec<_> = found.map(|(&key, &(_, value))| (key, value)).collect();
        for ((_, level, name), value) in found {
            map.insert((to.slot, level, name), (to.generation, value));
        }
    }

    /// Returns whether the socket may send from addresses that the stack does not have (IP_FREEBIND
    /// or IPV6_FREEBIND).
    pub fn may_use_any_address(&self, socket: Socket) -> bool {
        let set = |level, name| self.value(socket, level, name).is_some_and(|value| value != 0);
        set(libc::IPPROTO_IP, libc::IP_FREEBIND) || set(libc::IPPROTO_IPV6, libc::IPV6_FREEBIND)
    }

    /// Locks the option values during fork(2), so that the child gets a consistent copy. Every
    /// holder of this lock must block signals.
    pub fn lock(&self) -> LockGuard<'_, Values> {
        self.values.lock()
    }

    /// Removes the option values of a socket that is being closed.
    pub fn forget(&self, socket: Socket) {
        if !self.any.load(Relaxed) {
            return;
        }
        let _signals = SignalsBlocked::new();
        let mut map = self.values.lock();
        let range = (socket.slot, i32::MIN, i32::MIN)..=(socket.slot, i32::MAX, i32::MAX);
        let keys: Vec<_> = map.range(range).map(|(&key, _)| key).collect();
        for key in keys {
            map.remove(&key);
        }
    }

    /// Returns the value to which this process last set an option of a socket; `None` if it has not
    /// set it.
    pub fn value(&self, socket: Socket, level: i32, name: i32) -> Option<i32> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let _signals = SignalsBlocked::new();
        let map = self.values.lock();
        let &(generation, value) = map.get(&(socket.slot, level, name))?;
        (generation == socket.generation).then_some(value)
    }

    /// Stores the value to which the program has set an option of a socket.
    pub fn set(&self, socket: Socket, level: i32, name: i32, value: i32) {
        let _signals = SignalsBlocked::new();
        self.any.store(true, Relaxed);
        match (level, name) {
            (libc::IPPROTO_UDP, UDP_SEGMENT) => self.segments.store(true, Relaxed),
            (libc::IPPROTO_TCP, TCP_INQ) => self.inq.store(true, Relaxed),
            _ => {}
        }
        self.values.lock().insert((socket.slot, level, name), (socket.generation, value));
    }
}
