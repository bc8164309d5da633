//! fork(2): the child gets a channel of its own, on which it holds what the parent holds.
//!
//! The locks of the library are held while the process is copied, so that the child's copies of the
//! protected data are whole. Handlers of pthread_atfork(3), which libc runs before and after, may
//! use sockets. The handlers may also wait for threads that use sockets or start programs; with the
//! locks held they would wait for ever. So such handlers take and release the locks, too
//! ([`prepare`], [`parent`], [`child`]). The library registers them first, because libc runs the
//! first ones innermost. Steps that can make fork fail come before all handlers ([`fork`]). Where
//! libc forks by itself, [`prepare`] does these steps, and a child that cannot have a channel finds
//! none.

use std::cell::Cell;
use std::ptr::null_mut;

use towpath_client::descriptors::DescriptorKind;
use towpath_client::reactor::LockedReactor;
use towpath_client::syscall::SignalsBlocked;
use towpath_client::{Client, Cloned, Error, HighFd, LockGuard};
use towpath_shm::control::purpose;
use towpath_shm::layout::{Command, op};

use crate::interface::known;
use crate::option::remembered;
use crate::{Posix, cork, exec, limit, signal, spawns, table};

thread_local! {
    /// Fork that this thread has begun: set before the first pthread_atfork handler runs, until the
    /// last one. Leaked, or null.
    static UNDER_WAY: Cell<*mut Fork> = const { Cell::new(null_mut()) };
}

struct Fork {
    client: &'static Client,
    cloned: Option<Cloned>,
    held: Option<ForkLocks>,
}

/// Locks held while the process is copied, in the order in which they are released.
struct ForkLocks {
    /// Ensures that the child's copies of the entries and of the descriptors are of the same
    /// moment.
    _table: table::TableGuard,
    _handlers: Option<LockGuard<'static, ()>>,
    _netlink: LockGuard<'static, Option<HighFd>>,
    _interfaces: LockGuard<'static, known::Sources>,
    _options: LockGuard<'static, remembered::Values>,
    _corked: LockGuard<'static, cork::Map>,
    hub: LockedReactor<'static>,
    /// Ensures that no other thread is starting a program, whose control socket the child would
    /// inherit.
    _spawns: LockGuard<'static, spawns::Started>,
    _signals: SignalsBlocked,
}

impl Fork {
    /// Clones the channel for the child. Returns `None` if the run has its maximum number of
    /// processes, or in a signal handler that must not fork. The handler has then interrupted a
    /// fork, a holder of a lock, or a user of a FIFO. Otherwise both parent and child would
    /// continue the interrupted call.
    fn begin(posix: &'static Posix, client: &'static Client) -> Option<Self> {
        // Lock, because requests of other threads for clones of their own must not apply to this
        // one.
        let _spawns = posix.spawns.lock()?;
        let _signals = SignalsBlocked::new();
        let nested = !UNDER_WAY.get().is_null()
            || posix.process.reactor.is_mine()
            || table::is_mine(posix)
            || client.is_in_midst()
            || towpath_client::is_inside();
        if nested {
            return None;
        }
        let cloned = match client.clone_channel(purpose::FORK) {
            Ok(cloned) => Some(cloned),
            Err(Error::Refused(libc::EAGAIN)) => return None,
            // The engine has ended, or this process has no free descriptor for a channel, which
            // fork itself does not need. The child then has no attachment, and its calls fail.
            Err(_) => None,
        };
        Some(Self { client, cloned, held: None })
    }

    fn announce(self) {
        UNDER_WAY.set(Box::into_raw(Box::new(self)));
    }

    /// Takes and returns the fork of this thread, to end it.
    fn take() -> Option<Box<Self>> {
        let fork = UNDER_WAY.replace(null_mut());
        // SAFETY: `announce` has leaked this box on this thread, and it is taken once, because the
        // cell is null now.
        (!fork.is_null()).then(|| unsafe { Box::from_raw(fork) })
    }
}

impl ForkLocks {
    /// Takes the locks in the order in which other calls take them. A call that begins a datagram
    /// in parts (MSG_MORE) holds the cork lock, reads options and interfaces, and may send the
    /// engine a request.
    fn new(posix: &'static Posix) -> Option<Self> {
        let signals = SignalsBlocked::new();
        let spawns = posix.spawns.lock()?;
        let hub = posix.process.lock_reactor().ok()?;
        let corked = posix.cork.lock();
        let options = posix.remembered.lock();
        let interfaces = posix.known.sources.lock();
        let netlink = posix.answering.lock();
        let handlers = signal::lock(posix);
        Some(Self {
            _table: table::lock(posix),
            _handlers: handlers,
            _netlink: netlink,
            _interfaces: interfaces,
            _options: options,
            _corked: corked,
            hub,
            _spawns: spawns,
            _signals: signals,
        })
    }
}

/// fork(2). `real` is libc's fork, which runs the pthread_atfork handlers. Fails with EAGAIN if
/// there can be no further process, or in a signal handler that must not fork.
pub fn fork(posix: &'static Posix, real: impl FnOnce() -> i32) -> i32 {
    let Ok(client) = posix.client() else {
        return real();
    };
    let Some(fork) = Fork::begin(posix, client) else {
        // SAFETY: libc's errno of this thread is always valid for writes.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    };
    fork.announce();
    real()
}

/// As [`fork`], for a `real` that runs no pthread_atfork handlers.
pub fn fork_without_handlers(posix: &'static Posix, real: impl FnOnce() -> i32) -> i32 {
    fork(posix, || {
        prepare(posix);
        let pid = real();
        if pid == 0 {
            child(posix)
        } else {
            parent()
        }
        pid
    })
}

/// Takes the library's locks, so that the child copies consistent state; first begins the fork if
/// libc forks without calling [`fork`]. Runs as the last pthread_atfork prepare handler.
pub fn prepare(posix: &'static Posix) {
    let Ok(client) = posix.client() else { return };
    if UNDER_WAY.get().is_null() {
        // libc forks by itself, not through [`fork`].
        match Fork::begin(posix, client) {
            Some(fork) => fork.announce(),
            None => return,
        }
    }
    // SAFETY: this thread has announced the fork, and only this thread takes it.
    if let Some(fork) = unsafe { UNDER_WAY.get().as_mut() } {
        fork.held = ForkLocks::new(posix);
    }
}

/// Releases the locks. Runs as the first pthread_atfork handler in the parent.
pub fn parent() {
    // The child uses the clone of the channel; this drops the parent's locks.
    drop(Fork::take());
}

/// Attaches the child over the cloned channel, and releases the locks. Runs as the first
/// pthread_atfork handler in the child.
pub fn child(posix: &'static Posix) {
    if !posix.is_active() {
        return;
    }
    let mut fork = Fork::take();
    // The thread has a different thread ID in the child.
    posix.process.forked();
    posix.ends_no_more();
    exec::leave_host(posix);
    limit::settle(posix);
    let Some(fork) = fork.as_mut() else { return };
    let Some(held) = fork.held.as_mut() else { return };
    // Without a cloned channel there is no attachment, and every call fails with ENETDOWN.
    if let Some(Ok(own)) = fork.cloned.take().map(|cloned| fork.client.forked(cloned)) {
        settle(posix, &own);
        posix.attachment.install(own);
    }
    fork.client.abandon();
    held.hub.forked();
}

/// Tells the engine the process ID of the child and the sockets that it has. Other threads of the
/// parent may have opened and closed sockets since the channel was cloned.
fn settle(posix: &'static Posix, client: &Client) {
    for (_, entry) in posix.process.descriptors.ours(0) {
        if let DescriptorKind::Socket(socket) = entry {
            client.socket_command(socket, op::LIST, 0, 0);
        }
    }
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    client.command_to_all(&Command { op: op::SETTLED, a: pid, ..Command::default() });
}
