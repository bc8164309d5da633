//! Implements fork(2). The child gets its own channel (connection to the engine), with references
//! to all sockets of the parent.
//!
//! The locks of the library are held while the process is copied, so that the child's copies of the
//! protected data are consistent. The program's pthread_atfork(3) handlers may use sockets, or wait
//! for threads that do. If the locks were held, they would wait for ever. Therefore handlers of
//! this library take and release the locks ([`prepare`], [`parent`], [`child`]). The handlers are
//! registered first, so that libc runs them closest to the fork. Steps that can make fork fail come
//! before all handlers ([`fork`]). If libc forks internally, [`prepare`] executes these steps. If
//! it cannot open a channel, the child's socket calls fail.

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
    /// The fork in progress on this thread, from before the first pthread_atfork handler until
    /// after the last one. A leaked box, or null.
    static UNDER_WAY: Cell<*mut Fork> = const { Cell::new(null_mut()) };
}

struct Fork {
    client: &'static Client,
    cloned: Option<Cloned>,
    held: Option<ForkLocks>,
}

/// Locks held while fork(2) copies the process, in the order in which they are released.
struct ForkLocks {
    /// Lock of the descriptor table. Ensures that the child's copies of the table and of the kernel
    /// descriptors match.
    _table: table::TableGuard,
    _handlers: Option<LockGuard<'static, ()>>,
    _netlink: LockGuard<'static, Option<HighFd>>,
    _interfaces: LockGuard<'static, known::Sources>,
    _options: LockGuard<'static, remembered::Values>,
    _corked: LockGuard<'static, cork::Map>,
    hub: LockedReactor<'static>,
    /// Lock for starting programs. Without it, the child could inherit the control socket of a
    /// program that another thread is starting.
    _spawns: LockGuard<'static, spawns::Started>,
    _signals: SignalsBlocked,
}

impl Fork {
    /// Opens a channel to the engine for the child. Returns `None` if the engine already serves the
    /// maximum number of processes. Also returns `None` in a signal handler that interrupted a
    /// fork, a holder of a lock, or a user of a FIFO. Otherwise both parent and child would
    /// continue the interrupted call.
    fn begin(posix: &'static Posix, client: &'static Client) -> Option<Self> {
        // Take the lock. Otherwise the list of inheritable sockets that another thread sends for
        // exec would apply to this channel.
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
            // The engine has ended, or no descriptor is free for the child's channel. Continue,
            // because fork(2) itself needs no descriptor. The child's socket calls will fail.
            Err(_) => None,
        };
        Some(Self { client, cloned, held: None })
    }

    fn announce(self) {
        UNDER_WAY.set(Box::into_raw(Box::new(self)));
    }

    /// Removes and returns the state of the fork that is in progress on this thread.
    fn take() -> Option<Box<Self>> {
        let fork = UNDER_WAY.replace(null_mut());
        // SAFETY: `announce` has leaked this box on this thread, and `replace` sets the cell to
        // null, so the box is taken only once.
        (!fork.is_null()).then(|| unsafe { Box::from_raw(fork) })
    }
}

impl ForkLocks {
    /// Takes the locks in the same order as all other calls, to avoid deadlocks. For example, a
    /// call that begins a corked datagram (MSG_MORE) holds the cork lock while it takes those of
    /// options, interfaces and requests.
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

/// Implements fork(2). `real` is libc's fork, which runs the pthread_atfork handlers. Fails with
/// EAGAIN if the run has its maximum number of processes, or in a signal handler that must not
/// fork.
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

/// Implements a fork for which `real` runs no pthread_atfork handlers. Otherwise as [`fork`].
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

/// Takes the library's locks, so that the child gets a consistent copy of its state. If libc forks
/// without calling [`fork`], prepares the fork first. Registered by pthread_atfork(3), as the
/// prepare handler that runs last.
pub fn prepare(posix: &'static Posix) {
    let Ok(client) = posix.client() else { return };
    if UNDER_WAY.get().is_null() {
        // No fork is in progress, so libc forks internally, without calling [`fork`].
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

/// Releases the locks of the library in the parent. Registered with pthread_atfork(3) as the parent
/// handler that runs first.
pub fn parent() {
    // Drop the parent's locks. The clone of the channel is used by the child only.
    drop(Fork::take());
}

/// Attaches the child to the engine over the child's new channel, and releases the locks.
/// Registered by pthread_atfork(3), as the child handler that runs first.
pub fn child(posix: &'static Posix) {
    if !posix.is_active() {
        return;
    }
    let mut fork = Fork::take();
    // Update the thread ID, which differs in the child.
    posix.process.forked();
    posix.ends_no_more();
    exec::leave_host(posix);
    limit::settle(posix);
    let Some(fork) = fork.as_mut() else { return };
    let Some(held) = fork.held.as_mut() else { return };
    // Without a cloned channel, the child has no attachment, and every socket call fails with
    // ENETDOWN.
    if let Some(Ok(own)) = fork.cloned.take().map(|cloned| fork.client.forked(cloned)) {
        settle(posix, &own);
        posix.attachment.install(own);
    }
    fork.client.abandon();
    held.hub.forked();
}

/// Tells the engine the child's process ID and sockets. The sockets may differ from the list at the
/// creation of the channel, because other threads may have opened or closed sockets since.
fn settle(posix: &'static Posix, client: &Client) {
    for (_, entry) in posix.process.descriptors.ours(0) {
        if let DescriptorKind::Socket(socket) = entry {
            client.socket_command(socket, op::LIST, 0, 0);
        }
    }
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    client.command_to_all(&Command { op: op::SETTLED, a: pid, ..Command::default() });
}
