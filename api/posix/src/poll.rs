//! Implements poll(2) and select(2).

use std::time::Duration;

use towpath_client::descriptors::DescriptorKind;
use towpath_client::driver::DriverLock;
use towpath_client::interrupt::{Handled, SleepLimit};
use towpath_client::reactor::{self, LockedReactor};
use towpath_client::syscall::syscall;
use towpath_client::{Client, Error, Socket, UnderWay, ready};
use towpath_client::{Deadline, wait};

use crate::errno::fail;
use crate::turning::{ThreadTurning, WaitStep};
use crate::{Errno, Posix, Result, epoll};

/// Maximum number of descriptors for which poll and select use an array on the stack. More
/// descriptors need an allocation.
const SMALL: usize = 64;
/// Number of descriptors that this library appends to a ppoll(2) list: for notifications, the
/// control socket, wake-ups, and an engine in this process.
const OWN: usize = 4;
const EMPTY: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

/// Converts a program's timeout to a `Duration`.
///
/// # Errors
/// EINVAL for a negative time, and for a nanosecond field of a second or more, as ppoll(2) returns.
pub fn duration(limit: &libc::timespec) -> Result<Duration> {
    if limit.tv_sec < 0 || !(0..1_000_000_000).contains(&limit.tv_nsec) {
        return fail(libc::EINVAL);
    }
    Ok(Duration::new(limit.tv_sec as u64, limit.tv_nsec as u32))
}

/// Returns whether the list of a poll(2) call contains a socket or epoll set of the stack.
pub fn any_ours(posix: &'static Posix, fds: &[libc::pollfd]) -> bool {
    fds.iter().any(|entry| {
        entry.fd >= 0 && posix.process.descriptors.lookup(entry.fd) != DescriptorKind::Kernel
    })
}

/// Implements poll(2) and ppoll(2) for lists that contain descriptors of the stack. Asks the kernel
/// about the remaining descriptors. Without `deadline` the call waits without limit. `sigmask` may
/// be null. Returns the number of entries with events, or 0 when the deadline has passed.
///
/// # Safety
/// `sigmask` must point to a kernel signal mask or be null.
pub unsafe fn poll(
    posix: &'static Posix,
    fds: &mut [libc::pollfd],
    deadline: Option<Deadline>,
    sigmask: *const libc::c_void,
) -> Result<i32> {
    let since = Handled::so_far();
    let client = posix.client()?;
    let mut small = [EMPTY; SMALL + OWN];
    let mut large = Vec::new();
    let kernel = if fds.len() <= SMALL {
        &mut small[..fds.len() + OWN]
    } else {
        large.resize(fds.len() + OWN, EMPTY);
        &mut large[..]
    };
    let any_kernel = split(posix, fds, kernel);
    let mut few = Few::of(posix, fds).filter(|_| sigmask.is_null());
    let (terms, mut turning) = (Terms { deadline, since, sigmask }, ThreadTurning::default());
    let mut awaited = false;
    loop {
        let ours = look(posix, client, fds, false);
        let expired = deadline.is_some_and(|deadline| deadline.left().is_zero());
        if expired && !std::mem::replace(&mut awaited, true) && await_senders(posix, client, fds) {
            continue;
        }
        if ours > 0 || expired {
            if take_back(posix, fds, kernel) || any_kernel {
                kernel_look(&mut kernel[..fds.len()])?;
            }
            return Ok(merge(fds, kernel));
        }
        if since.is_interrupted(true) {
            return fail(libc::EINTR);
        }
        if let Some(sockets) = &few {
            if !sleep_on_few(posix, client, sockets.list(), fds, deadline, since)? {
                few = None;
            }
            continue;
        }
        if !turning.turn(client, deadline)
            && let Ok(mut hub) = posix.process.lock_reactor()
        {
            hub.drain(client);
            continue;
        }
        // SAFETY: `sigmask` is null or points to a kernel signal mask, by the contract of this
        // function.
        if unsafe { sleep(posix, client, fds, kernel, &mut turning, terms) }? {
            look(posix, client, fds, false);
            if take_back(posix, fds, kernel) {
                kernel_look(&mut kernel[..fds.len()])?;
            }
            return Ok(merge(fds, kernel));
        }
    }
}

/// Copies the entries with kernel descriptors from `fds` to `kernel`. Returns whether there are
/// any.
fn split(posix: &'static Posix, fds: &mut [libc::pollfd], kernel: &mut [libc::pollfd]) -> bool {
    let mut any = false;
    for (entry, copy) in fds.iter_mut().zip(kernel.iter_mut()) {
        entry.revents = 0;
        *copy = *entry;
        let known = || posix.process.descriptors.lookup(entry.fd);
        if entry.fd >= 0 && matches!(known(), DescriptorKind::Socket(_) | DescriptorKind::Internal)
        {
            copy.fd = -1;
        }
        any |= copy.fd >= 0;
    }
    any
}

/// Adds to `kernel` each entry whose descriptor is no longer a socket of the stack, usually because
/// another thread closed it during the call. As on Linux, the result then shows this. Returns
/// whether any entry was added.
fn take_back(posix: &'static Posix, fds: &[libc::pollfd], kernel: &mut [libc::pollfd]) -> bool {
    let mut any = false;
    for (entry, copy) in fds.iter().zip(kernel).filter(|(entry, _)| entry.fd >= 0) {
        if copy.fd < 0 && posix.process.descriptors.lookup(entry.fd) == DescriptorKind::Kernel {
            copy.fd = entry.fd;
            any = true;
        }
    }
    any
}

/// Fills in the readiness of the stack's descriptors, and returns how many are ready. If `arm` is
/// set, requests an event for each full send buffer that the program wants to write to.
fn look(posix: &'static Posix, client: &Client, fds: &mut [libc::pollfd], arm: bool) -> usize {
    let mut count = 0;
    for entry in fds.iter_mut().filter(|entry| entry.fd >= 0) {
        let wanted = u32::from(entry.events as u16) | reactor::ALWAYS;
        let mask = match posix.process.descriptors.lookup(entry.fd) {
            DescriptorKind::Kernel => {
                // Clear the events of a kernel descriptor: its number may have been a socket of the
                // stack at an earlier check.
                entry.revents = 0;
                continue;
            }
            DescriptorKind::Internal => libc::POLLNVAL as u32,
            DescriptorKind::Epoll(number) if epoll::is_ready(posix, client, number) => {
                epoll::READY & wanted
            }
            DescriptorKind::Epoll(_) => 0,
            DescriptorKind::Socket(socket) => {
                let mut mask = socket.readiness(client);
                if arm && wanted & ready::OUT != 0 && mask & ready::OUT == 0 {
                    socket.want_room(client);
                    mask = socket.readiness(client);
                }
                mask & wanted
            }
        };
        entry.revents = mask as u16 as i16;
        count += usize::from(mask != 0);
    }
    count
}

/// Waits for bytes that other programs using the stack have sent, and that are about to arrive.
/// Called before poll returns 0. Returns whether the caller must check the sockets again.
fn await_senders(posix: &'static Posix, client: &Client, fds: &[libc::pollfd]) -> bool {
    let mut under_way = UnderWay::new(client);
    for entry in fds.iter().filter(|entry| entry.fd >= 0 && entry.revents & libc::POLLIN == 0) {
        if let DescriptorKind::Socket(socket) = posix.process.descriptors.lookup(entry.fd) {
            under_way.add(socket);
        }
    }
    under_way.wait()
}

/// A poll(2) list with only a few sockets of the stack. The thread waits for futexes in the shared
/// state of these sockets. For example, language runtimes with timeouts call poll(2) for one socket
/// before each recv. In the reactor, events of other sockets could wake the thread as well, and
/// each wake-up would cost the engine more.
struct Few {
    sockets: [Socket; wait::SOCKETS_MAX],
    count: usize,
}

impl Few {
    fn of(posix: &'static Posix, fds: &[libc::pollfd]) -> Option<Self> {
        let mut named = fds.iter().filter(|entry| entry.fd >= 0).map(|entry| {
            match posix.process.descriptors.lookup(entry.fd) {
                DescriptorKind::Socket(socket) => Some(socket),
                _ => None,
            }
        });
        let first = named.next()??;
        let mut few = Self { sockets: [first; wait::SOCKETS_MAX], count: 1 };
        for socket in named {
            *few.sockets.get_mut(few.count)? = socket?;
            few.count += 1;
        }
        Some(few)
    }

    fn list(&self) -> &[Socket] {
        &self.sockets[..self.count]
    }
}

/// Sleeps until one of a few sockets is ready or the timeout has passed. Returns false if the
/// caller must wait in the reactor instead, because a socket was closed meanwhile, or the kernel
/// cannot wait for several futexes.
fn sleep_on_few(
    posix: &'static Posix,
    client: &Client,
    sockets: &[Socket],
    fds: &mut [libc::pollfd],
    deadline: Option<Deadline>,
    since: Handled,
) -> Result<bool> {
    // Set a distant deadline if there is none. A signal handler must interrupt poll even with
    // SA_RESTART. Waits of this library without a deadline would be restarted.
    let deadline = deadline.unwrap_or_else(|| Deadline::after(Duration::MAX));
    let attempt = || match look(posix, client, fds, true) {
        0 => Err(Error::WouldBlock),
        _ => Ok(()),
    };
    match wait::until_any(client, sockets, Some(deadline), since, attempt) {
        Ok(()) | Err(Error::TimedOut) => Ok(true),
        Err(Error::Dead) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Copies the events that the kernel reported to the program's list. Returns the number of entries
/// with events.
fn merge(fds: &mut [libc::pollfd], kernel: &[libc::pollfd]) -> i32 {
    let mut count = 0;
    for (entry, copy) in fds.iter_mut().zip(kernel) {
        if copy.fd >= 0 {
            entry.revents |= copy.revents;
        }
        count += i32::from(entry.revents != 0);
    }
    count
}

/// When a sleep ends, apart from events of descriptors.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Deadline of the sleep. None: no limit.
    deadline: Option<Deadline>,
    since: Handled,
    /// Signal mask during the sleep. Null: the mask of the thread is not changed.
    sigmask: *const libc::c_void,
}

/// Sleeps until an event of a descriptor in `kernel`. The first `count` entries are the program's;
/// the others wake this thread.
///
/// # Safety
/// As for [`sleep`].
unsafe fn sleep_on(
    client: &Client,
    kernel: &mut [libc::pollfd],
    count: usize,
    wakeup: i32,
    turning: &mut ThreadTurning<'_>,
    terms: Terms,
) -> Result<usize> {
    let driver_lock = turning.driver_lock.as_ref();
    let at_wheel = |driver_lock: &DriverLock<'_>| Terms {
        deadline: driver_lock.until(terms.deadline),
        sigmask: if terms.sigmask.is_null() {
            std::ptr::without_provenance(driver_lock.mask())
        } else {
            terms.sigmask
        },
        ..terms
    };
    let terms = driver_lock.map_or(terms, at_wheel);
    let own = |fd, events| libc::pollfd { fd, events, revents: 0 };
    kernel[count] = own(client.notifier().get(), libc::POLLIN);
    kernel[count + 1] = own(client.control().get(), ready::RDHUP as i16);
    kernel[count + 2] = own(wakeup, libc::POLLIN);
    kernel[count + 3] = own(driver_lock.map_or(-1, DriverLock::descriptor), libc::POLLIN);
    // SAFETY: the mask is that of the caller, or that of the driver lock, which outlives the call.
    let result = turning.sleep(|| unsafe { kernel_sleep(kernel, terms) });
    if result.is_ok() && kernel[count].revents != 0 {
        reactor::clear(client.notifier().get());
    }
    if result.is_ok() && kernel[count + 1].revents != 0 {
        client.check_alive();
    }
    result
}

/// Registers the sockets and epoll sets of a poll(2) list in the reactor, whose events then wake
/// this thread.
fn watch(posix: &'static Posix, hub: &mut LockedReactor<'_>, at: usize, fds: &[libc::pollfd]) {
    for entry in fds.iter().filter(|entry| entry.fd >= 0) {
        match posix.process.descriptors.lookup(entry.fd) {
            DescriptorKind::Socket(socket) => {
                let mut wanted = u32::from(entry.events as u16) | reactor::ALWAYS;
                if wanted & ready::WRBAND != 0 {
                    // The engine reports free send buffer space with the same event for POLLOUT and
                    // POLLWRBAND.
                    wanted |= ready::OUT;
                }
                hub.watch_in_list(at, socket, wanted);
            }
            DescriptorKind::Epoll(_) => hub.watch_all_in_list(at),
            DescriptorKind::Kernel | DescriptorKind::Internal => {}
        }
    }
}

/// Sleeps once until an event, a wake-up or the deadline. Returns whether a kernel descriptor has
/// an event.
///
/// # Safety
/// The signal mask in `terms` must be a kernel signal mask or null.
unsafe fn sleep<'a>(
    posix: &'static Posix,
    client: &'a Client,
    fds: &mut [libc::pollfd],
    kernel: &mut [libc::pollfd],
    turning: &mut ThreadTurning<'a>,
    terms: Terms,
) -> Result<bool> {
    let count = fds.len();
    let began = posix.process.forks();
    let (at, wakeup) = {
        let Ok(mut hub) = posix.process.lock_reactor() else {
            // SAFETY: the mask in `terms` is null or a kernel signal mask, by the contract of this
            // function.
            return unsafe { nap(&mut kernel[..count], terms) };
        };
        if client.is_abandoned() {
            return fail(libc::ERESTART);
        }
        // Add this thread to the list of threads to be woken after reading the rings. Otherwise the
        // thread would wake itself.
        hub.begin_sleep(client);
        let at =
            hub.join_list(client, turning.is_willing()).inspect_err(|_| hub.end_sleep(client))?;
        watch(posix, &mut hub, at, fds);
        (at, hub.wakeup_of(at))
    };
    let mut result = Ok(0);
    if look(posix, client, fds, true) == 0
        && let WaitStep::Sleep(_sleeper) = turning.next(client)
    {
        // SAFETY: the mask in `terms` is null or a kernel signal mask, by the contract of this
        // function.
        result = unsafe { sleep_on(client, kernel, count, wakeup, turning, terms) };
    }
    if posix.process.forks() != began {
        // A signal handler has called fork, and this is the child. The reactor's counts are those
        // of the parent's threads, so do not update them.
        return fail(libc::EINTR);
    }
    // Taking the lock cannot deadlock, because this thread does not hold it here.
    let mut hub = posix.process.lock_reactor()?;
    hub.leave_list(at);
    hub.end_sleep(client);
    drop(hub);
    result?;
    Ok(kernel[..count].iter().any(|entry| entry.fd >= 0 && entry.revents != 0))
}

/// Interval at which poll checks its sockets if it runs in a signal handler that cannot take the
/// reactor's lock.
const NAP: Duration = Duration::from_millis(1);

/// Sleeps for at most [`NAP`], in a signal handler that interrupted a holder of the reactor's lock.
/// Events cannot wake the handler, so its caller checks the sockets after each sleep.
///
/// # Safety
/// As for [`sleep`].
unsafe fn nap(kernel: &mut [libc::pollfd], terms: Terms) -> Result<bool> {
    let nap = Deadline::after(NAP);
    let deadline = terms.deadline.map_or(nap, |deadline| deadline.min(nap));
    // SAFETY: the mask in `terms` is null or a kernel signal mask, by the contract of this
    // function.
    Ok(unsafe { kernel_sleep(kernel, Terms { deadline: Some(deadline), ..terms }) }? > 0)
}

/// Waits in ppoll(2). Fails with EINTR if a signal handler has run since the beginning of the call.
///
/// # Safety
/// As for [`sleep`].
unsafe fn kernel_sleep(list: &mut [libc::pollfd], terms: Terms) -> Result<usize> {
    let Terms { deadline, since, sigmask } = terms;
    // SAFETY: the mask is null or a kernel signal mask, and `since.sleep` passes the address of a
    // timespec.
    let sleep = |limit| unsafe { kernel_poll(list, limit, sigmask) };
    since.sleep(true, SleepLimit::within(deadline), sleep).unwrap_or(fail(libc::EINTR))
}

/// Checks the kernel's descriptors without waiting.
fn kernel_look(list: &mut [libc::pollfd]) -> Result<usize> {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that outlives the call, and the mask is null.
    unsafe { kernel_poll(list, (&raw const now).addr(), std::ptr::null()) }
}

/// Calls ppoll(2).
///
/// # Safety
/// `limit` must be the address of a timespec, and `sigmask` must point to a kernel signal mask or
/// be null.
unsafe fn kernel_poll(
    list: &mut [libc::pollfd],
    limit: usize,
    sigmask: *const libc::c_void,
) -> Result<usize> {
    let args = [list.as_mut_ptr() as usize, list.len(), limit, sigmask as usize, 8, 0];
    // SAFETY: `list` outlives the call. The limit and the mask are valid by the contract of this
    // function.
    unsafe { syscall(libc::SYS_ppoll as usize, args) }.map_err(Errno)
}

/// Returns whether all descriptors of a poll(2) list are open. Internal descriptors of this library
/// count as closed.
fn are_open(posix: &'static Posix, list: &[libc::pollfd]) -> Result<bool> {
    let (mut small, mut large) = ([EMPTY; SMALL], Vec::new());
    let kernel = if list.len() <= SMALL {
        &mut small[..list.len()]
    } else {
        large.resize(list.len(), EMPTY);
        &mut large[..]
    };
    let mut count = 0;
    for entry in list {
        match posix.process.descriptors.lookup(entry.fd) {
            DescriptorKind::Internal => return Ok(false),
            DescriptorKind::Socket(_) | DescriptorKind::Epoll(_) => {}
            DescriptorKind::Kernel => {
                kernel[count] = libc::pollfd { fd: entry.fd, events: 0, revents: 0 };
                count += 1;
            }
        }
    }
    let kernel = &mut kernel[..count];
    let found = if count > 0 { kernel_look(kernel)? } else { 0 };
    Ok(found == 0 || kernel.iter().all(|entry| entry.revents & libc::POLLNVAL == 0))
}

/// The three descriptor sets of select(2). Each is an array of 64-bit words, or null.
#[derive(Debug, Clone, Copy)]
pub struct Sets {
    /// Pointers to the sets for reading, writing and exceptional conditions.
    pub at: [*mut u64; 3],
    /// Number of bits in each set: the highest descriptor number plus one.
    pub count: usize,
}

const WANTED: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
    libc::POLLPRI,
];
/// Events of poll(2) that make a descriptor ready in each of the three sets (POLLIN_SET,
/// POLLOUT_SET and POLLEX_SET of Linux's fs/select.c).
const GIVEN: [i16; 3] =
    [WANTED[0] | libc::POLLHUP | libc::POLLERR, WANTED[1] | libc::POLLERR, libc::POLLPRI];

impl Sets {
    /// Returns whether set number `which` contains `fd`.
    ///
    /// # Safety
    /// The sets must hold `count` bits.
    unsafe fn has(&self, which: usize, fd: usize) -> bool {
        // SAFETY: the set is not null, and has `count` bits, of which `fd` is one.
        !self.at[which].is_null() && unsafe { *self.at[which].add(fd / 64) } >> (fd % 64) & 1 == 1
    }

    /// Returns whether the sets contain any descriptor of the stack.
    ///
    /// # Safety
    /// The sets must hold `count` bits.
    pub unsafe fn any_ours(&self, posix: &'static Posix) -> bool {
        // SAFETY: the sets have `count` bits, and `fd` is below `count`.
        (0..self.count).any(|fd| unsafe {
            (0..3).any(|which| self.has(which, fd))
                && posix.process.descriptors.lookup(fd as i32) != DescriptorKind::Kernel
        })
    }

    /// Implements select(2).
    ///
    /// # Safety
    /// The sets must hold `count` bits, and `sigmask` must point to a kernel signal mask or be
    /// null.
    pub unsafe fn select(
        &self,
        posix: &'static Posix,
        deadline: Option<Deadline>,
        sigmask: *const libc::c_void,
    ) -> Result<i32> {
        // Do not allocate memory for short lists, because signal handlers may call select(2).
        let mut small = [EMPTY; SMALL];
        let mut large = Vec::new();
        let wanted = |fd| {
            // SAFETY: the sets have `count` bits, and `fd` is below `count`.
            let events = (0..3).filter(|&which| unsafe { self.has(which, fd) });
            events.fold(0, |events, which| events | WANTED[which])
        };
        let entry = |fd| libc::pollfd { fd: fd as i32, events: wanted(fd), revents: 0 };
        let entries = || (0..self.count).map(entry).filter(|entry| entry.events != 0);
        let len = entries().count();
        let list = if len <= SMALL {
            small.iter_mut().zip(entries()).for_each(|(to, entry)| *to = entry);
            &mut small[..len]
        } else {
            large.extend(entries());
            &mut large[..]
        };
        if !are_open(posix, list)? {
            return fail(libc::EBADF);
        }
        // SAFETY: `sigmask` is null or points to a kernel signal mask, by the contract of this
        // function.
        unsafe { poll(posix, list, deadline, sigmask) }?;
        for entry in list.iter_mut().filter(|entry| entry.revents & libc::POLLNVAL != 0) {
            // The descriptor was closed during the call. Report it as ready in all sets, as Linux
            // does since 5.17, because an operation on it would fail at once.
            entry.revents = GIVEN[0] | GIVEN[1] | GIVEN[2];
        }
        let mut count = 0;
        for entry in list {
            let fd = entry.fd as usize;
            for (which, given) in GIVEN.iter().enumerate() {
                // SAFETY: the entry was made from a bit of the sets, so `fd` is below `count`.
                if unsafe { self.has(which, fd) } {
                    if entry.revents & given != 0 {
                        count += 1;
                    } else {
                        // SAFETY: `has` found the bit, so the set is not null and contains `fd`.
                        unsafe { *self.at[which].add(fd / 64) &= !(1 << (fd % 64)) };
                    }
                }
            }
        }
        Ok(count)
    }
}
