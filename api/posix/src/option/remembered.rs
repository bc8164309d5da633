//! What options were set to, where only this process asks for it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use towpath_client::syscall::SignalsBlocked;
use towpath_client::{Lock, LockGuard, Socket};

use super::table::{TCP_INQ, UDP_SEGMENT};

/// Values of options by (slot, level, name), each with its socket's generation.
pub(crate) type Remembered = BTreeMap<(u32, i32, i32), (u32, i32)>;

static REMEMBERED: Lock<Remembered> = Lock::new(BTreeMap::new());
// So that those who never set such an option take no lock: any at all, and those that sends and receives ask
// for.
static ANY: AtomicBool = AtomicBool::new(false);
static SEGMENTS: AtomicBool = AtomicBool::new(false);
static INQ: AtomicBool = AtomicBool::new(false);

/// UDP_SEGMENT of a socket, 0: none.
pub(crate) fn segment_size(socket: Socket) -> u16 {
    if !SEGMENTS.load(Relaxed) {
        return 0;
    }
    value(socket, libc::IPPROTO_UDP, UDP_SEGMENT).map_or(0, |size| size as u16)
}

/// Whether recvmsg tells what is left to be read (TCP_INQ).
pub(crate) fn wants_inq(socket: Socket) -> bool {
    INQ.load(Relaxed) && value(socket, libc::IPPROTO_TCP, TCP_INQ) == Some(1)
}

/// What an accepted connection has from its listener.
pub(crate) fn inherit(from: Socket, to: Socket) {
    if !ANY.load(Relaxed) {
        return;
    }
    let _signals = SignalsBlocked::new();
    let mut map = REMEMBERED.lock();
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

/// IP_FREEBIND or IPV6_FREEBIND: it may send from addresses that are not there.
pub(crate) fn may_use_any_address(socket: Socket) -> bool {
    let set = |level, name| value(socket, level, name).is_some_and(|value| value != 0);
    set(libc::IPPROTO_IP, libc::IP_FREEBIND) || set(libc::IPPROTO_IPV6, libc::IPV6_FREEBIND)
}

/// For fork. Signals must be blocked, as they are whenever this lock is held.
pub(crate) fn lock() -> LockGuard<'static, Remembered> {
    REMEMBERED.lock()
}

/// The socket is closed.
pub(crate) fn forget(socket: Socket) {
    if !ANY.load(Relaxed) {
        return;
    }
    let _signals = SignalsBlocked::new();
    let mut map = REMEMBERED.lock();
    let range = (socket.slot, i32::MIN, i32::MIN)..=(socket.slot, i32::MAX, i32::MAX);
    let keys: Vec<_> = map.range(range).map(|(&key, _)| key).collect();
    for key in keys {
        map.remove(&key);
    }
}

/// What an option was set to last; None: it never was.
pub(super) fn value(socket: Socket, level: i32, name: i32) -> Option<i32> {
    if !ANY.load(Relaxed) {
        return None;
    }
    let _signals = SignalsBlocked::new();
    let map = REMEMBERED.lock();
    let &(generation, value) = map.get(&(socket.slot, level, name))?;
    (generation == socket.generation).then_some(value)
}

/// An option was set.
pub(super) fn set(socket: Socket, level: i32, name: i32, value: i32) {
    let _signals = SignalsBlocked::new();
    ANY.store(true, Relaxed);
    match (level, name) {
        (libc::IPPROTO_UDP, UDP_SEGMENT) => SEGMENTS.store(true, Relaxed),
        (libc::IPPROTO_TCP, TCP_INQ) => INQ.store(true, Relaxed),
        _ => {}
    }
    REMEMBERED.lock().insert((socket.slot, level, name), (socket.generation, value));
}
