//! Implements epoll(7) for sets with sockets of both the kernel and the stack. The program's
//! descriptor is a kernel epoll set, which contains the kernel descriptors. The [`reactor`]
//! contains the sockets of the stack.

use towpath_client::Deadline;
use towpath_client::descriptors::{self, DescriptorKind};
use towpath_client::driver::DriverLock;
use towpath_client::interrupt::{Handled, SleepLimit};
use towpath_client::reactor::{
    self, KernelChange, LockedReactor, LookOrder, NestedSet, ReadySocket, SetCall, cookie,
};
use towpath_client::syscall::{self, syscall};
use towpath_client::{Client, Socket, ready};

use crate::errno::fail;
use crate::turning::{ThreadTurning, WaitStep};
use crate::{Errno, Posix, Result, table};

/// epoll_create1(2). Creates a kernel epoll set for the kernel descriptors, and a set of the
/// reactor for sockets of the stack. [`wait`] reports both.
///
/// # Errors
/// As epoll_create1(2): EINVAL for unknown flags, EMFILE and ENFILE. EDEADLK in a signal handler if
/// the interrupted call holds the lock of the epoll sets.
pub fn create(posix: &'static Posix, flags: i32) -> Result<i32> {
    let mut hub = posix.process.lock_reactor()?;
    let _table = table::lock(posix);
    // SAFETY: epoll_create1 takes an integer.
    let fd = unsafe { syscall(libc::SYS_epoll_create1 as usize, [flags as usize, 0, 0, 0, 0, 0]) };
    let fd = fd.map_err(Errno)? as i32;
    if !descriptors::fits(fd) {
        syscall::close(fd);
        return fail(libc::EMFILE);
    }
    posix.process.descriptors.set_epoll(fd, hub.make_set());
    Ok(fd)
}

pub(crate) fn retain(posix: &'static Posix, number: u32) {
    count(posix, number, 1);
}

pub(crate) fn release(posix: &'static Posix, number: u32) {
    count(posix, number, -1);
}

fn count(posix: &'static Posix, number: u32, descriptors: i32) {
    match posix.process.lock_reactor() {
        Ok(mut hub) => hub.count(number, descriptors),
        Err(_) => posix.process.reactor.defer_count(number, descriptors),
    }
}

fn number_of(posix: &'static Posix, epfd: i32) -> Result<u32> {
    match posix.process.descriptors.lookup(epfd) {
        DescriptorKind::Epoll(number) => Ok(number),
        DescriptorKind::Socket(_) => fail(libc::EINVAL),
        _ => fail(libc::EBADF),
    }
}

/// Implements epoll_ctl(2) for a set that [`create`] made.
///
/// # Safety
/// `event` must point to an epoll_event (or be null for EPOLL_CTL_DEL).
pub unsafe fn ctl(
    posix: &'static Posix,
    epfd: i32,
    op: i32,
    fd: i32,
    event: *mut libc::epoll_event,
) -> Result<()> {
    let number = number_of(posix, epfd)?;
    if fd == epfd {
        return fail(libc::EINVAL);
    }
    let (events, data) = if op == libc::EPOLL_CTL_DEL {
        (0, 0)
    } else if event.is_null() {
        return fail(libc::EFAULT);
    } else {
        // SAFETY: `event` is not null, and points to an epoll_event.
        let event = unsafe { event.read_unaligned() };
        (event.events, event.u64)
    };
    match posix.process.descriptors.lookup(fd) {
        DescriptorKind::Internal => fail(libc::EBADF),
        DescriptorKind::Socket(socket) => ctl_socket(posix, number, op, fd, socket, events, data),
        entry => {
            let mut hub = posix.process.lock_reactor()?;
            let args = [epfd as usize, op as usize, fd as usize, event as usize, 0, 0];
            // SAFETY: `event` points to an epoll_event, or is null for EPOLL_CTL_DEL.
            unsafe { syscall(libc::SYS_epoll_ctl as usize, args) }.map_err(Errno)?;
            note_kernel(&mut hub, number, op, fd, entry, events, data);
            Ok(())
        }
    }
}

fn ctl_socket(
    posix: &'static Posix,
    number: u32,
    op: i32,
    fd: i32,
    socket: Socket,
    events: u32,
    data: u64,
) -> Result<()> {
    const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
    const EXCLUSIVE_OK: u32 =
        EXCLUSIVE | 0x1 | 0x4 | 0x8 | 0x10 | libc::EPOLLWAKEUP as u32 | libc::EPOLLET as u32;
    let client = posix.client()?;
    let mut hub = posix.process.lock_reactor()?;
    let wanted = events | reactor::ALWAYS;
    match op {
        libc::EPOLL_CTL_ADD if events & EXCLUSIVE != 0 && events & !EXCLUSIVE_OK != 0 => {
            return fail(libc::EINVAL);
        }
        libc::EPOLL_CTL_ADD => hub.add(client, number, fd, socket, wanted, data)?,
        libc::EPOLL_CTL_MOD if events & EXCLUSIVE != 0 => return fail(libc::EINVAL),
        libc::EPOLL_CTL_MOD => hub.modify(client, number, fd, socket, wanted, data)?,
        libc::EPOLL_CTL_DEL => hub.delete(number, fd, socket)?,
        _ => return fail(libc::EINVAL),
    }
    Ok(())
}

/// Updates the reactor after the kernel has accepted an epoll_ctl(2) change: the number of kernel
/// descriptors in the set, and its nested sets.
fn note_kernel(
    hub: &mut LockedReactor<'_>,
    number: u32,
    op: i32,
    fd: i32,
    entry: DescriptorKind,
    events: u32,
    data: u64,
) {
    let change = match op {
        libc::EPOLL_CTL_ADD => KernelChange::Added,
        libc::EPOLL_CTL_DEL => KernelChange::Removed,
        _ => KernelChange::Modified,
    };
    let nested = match entry {
        DescriptorKind::Epoll(set) => Some(NestedSet { set, fd, events, data, fresh: true }),
        _ => None,
    };
    hub.note_kernel(number, change, nested);
}

/// The program's buffer for events (epoll_wait(2)), and the number of events in it.
struct FoundEvents {
    at: *mut libc::epoll_event,
    most: usize,
    len: usize,
    /// User data of nested epoll sets for which the buffer already contains an event of the stack's
    /// sockets. Events that the kernel reports for such a set are merged into this event.
    nested: Vec<u64>,
}

impl FoundEvents {
    fn add(&mut self, found: ReadySocket) {
        match found.is_set {
            true => self.push_nested(found.events, found.data),
            false => self.push(found.events, found.data),
        }
    }

    fn push(&mut self, events: u32, data: u64) {
        debug_assert!(self.len < self.most);
        // SAFETY: the caller of `wait` has room for `most` events, and `len` is less than `most`.
        unsafe { self.at.add(self.len).write_unaligned(libc::epoll_event { events, u64: data }) };
        self.len += 1;
    }

    /// Adds the events of the kernel's epoll set without waiting. Called once in an epoll_wait: a
    /// second call would return level-triggered events again.
    fn add_kernel(&mut self, epfd: i32, stay: &SetCall<'_>, most: usize) {
        let most = most.min(self.most - self.len);
        if most > 0 {
            // SAFETY: the buffer has room for `most` events after the first `len`.
            let at = unsafe { self.at.add(self.len) } as usize;
            let args = [epfd as usize, at, most, 0, 0, 8];
            // SAFETY: `at` has room for `most` events, and a null signal mask changes nothing.
            let count = unsafe { syscall(libc::SYS_epoll_pwait as usize, args) }.unwrap_or(0);
            self.keep(count);
            stay.saw_kernel(count);
        }
    }

    /// Adds the event of a nested epoll set with ready sockets. If the kernel has already reported
    /// the set, merges the events.
    fn push_nested(&mut self, events: u32, data: u64) {
        for n in 0..self.len {
            // SAFETY: the first `len` events of the buffer are written.
            let mut event = unsafe { self.at.add(n).read_unaligned() };
            if event.u64 == data {
                event.events |= events;
                // SAFETY: `n` is less than `len`, so this event is inside the buffer.
                unsafe { self.at.add(n).write_unaligned(event) };
                return;
            }
        }
        self.push(events, data);
        self.nested.push(data);
    }

    /// Removes events from the last `count`, which the kernel appended, if their nested set already
    /// has an event in the buffer.
    fn keep(&mut self, count: usize) {
        let first = self.len;
        for n in first..first + count {
            // SAFETY: the kernel has written `count` events after the first `first`.
            let event = unsafe { self.at.add(n).read_unaligned() };
            if !self.nested.contains(&{ event.u64 }) {
                self.push(event.events, event.u64);
            }
        }
    }
}

/// Adds the ready descriptors of an epoll set to `out`, kernel descriptors first or last as `turn`
/// says.
fn look(
    turn: LookOrder,
    epfd: i32,
    stay: &SetCall<'_>,
    client: &Client,
    expired: bool,
    out: &mut FoundEvents,
) -> Result<()> {
    match turn {
        LookOrder::Ours => collect(stay, client, out)?,
        LookOrder::KernelFirst => {
            out.add_kernel(epfd, stay, (out.most / 2).max(1));
            collect(stay, client, out)?;
        }
        LookOrder::OursFirst { eager } => {
            collect(stay, client, out)?;
            // If no socket is ready, skip the kernel's epoll set here: the thread will sleep in it,
            // and the kernel then checks its descriptors.
            if expired || eager && out.len > 0 {
                out.add_kernel(epfd, stay, out.most);
            }
        }
    }
    Ok(())
}

/// Implements epoll_wait(2) and its variants for a set that [`create`] made. Without `deadline` the
/// call waits for ever. `sigmask` may be null. Returns the number of events, or 0 when the deadline
/// has passed.
///
/// # Errors
/// EINVAL if `most` is not positive, EFAULT if `events` is null. EINTR if a signal handler ran,
/// even with SA_RESTART (signal(7)).
///
/// # Safety
/// `events` must have room for `most` events, `sigmask` must point to a kernel signal mask or be
/// null.
pub unsafe fn wait(
    posix: &'static Posix,
    epfd: i32,
    events: *mut libc::epoll_event,
    most: i32,
    deadline: Option<Deadline>,
    sigmask: *const libc::c_void,
) -> Result<i32> {
    let since = Handled::so_far();
    let number = number_of(posix, epfd)?;
    if most <= 0 || most as usize > i32::MAX as usize / size_of::<libc::epoll_event>() {
        return fail(libc::EINVAL);
    }
    if events.is_null() {
        return fail(libc::EFAULT);
    }
    let client = posix.client()?;
    let mut out = FoundEvents { at: events, most: most as usize, len: 0, nested: Vec::new() };
    let mut stay = SetCall::new(&posix.process, number);
    let (mut turning, mut awaited) = (ThreadTurning::default(), false);
    loop {
        let expired = deadline.is_some_and(|deadline| deadline.left().is_zero());
        let turn = stay.turn(out.len > 0)?;
        look(turn, epfd, &stay, client, expired, &mut out)?;
        let looks_again = out.len == 0 && expired && !std::mem::replace(&mut awaited, true);
        if looks_again && stay.await_senders(client)? {
            continue;
        }
        if out.len > 0 || expired {
            return Ok(out.len as i32);
        }
        if since.is_interrupted(true) {
            return fail(libc::EINTR);
        }
        if !turning.turn(client, deadline) {
            continue;
        }
        let Some(place) = stay.go_to_sleep(client, epfd, turning.is_willing())? else {
            continue;
        };
        let woken = match turning.next(client) {
            // SAFETY: `sigmask` is null or points to a kernel signal mask, as the caller of `wait`
            // ensures.
            WaitStep::Sleep(_sleeper) => unsafe {
                sleep(posix, place, &mut turning, deadline, since, sigmask)
            },
            WaitStep::Look => Ok(0),
        };
        stay.get_up(client);
        let woken = woken?;
        if woken & 1 << cookie::WAKEUP != 0 {
            // If several threads wait in one epoll set, this wake-up may be meant for a different
            // thread.
            turning.on_wakeup();
        }
        if woken & 1 << cookie::PROGRAM != 0 {
            out.add_kernel(epfd, &stay, out.most);
        }
    }
}

fn collect(stay: &SetCall<'_>, client: &Client, out: &mut FoundEvents) -> Result<()> {
    Ok(stay.collect(client, out.most - out.len, |found| out.add(found))?)
}

/// Sleeps until an event of the epoll set, a wake-up or the deadline. Returns a bit mask of the
/// sources that woke the thread.
///
/// # Safety
/// `sigmask` must point to a kernel signal mask or be null.
unsafe fn sleep(
    posix: &'static Posix,
    place: i32,
    turning: &mut ThreadTurning<'_>,
    deadline: Option<Deadline>,
    since: Handled,
    sigmask: *const libc::c_void,
) -> Result<u32> {
    const MOST: usize = 4;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
    let at = events.as_mut_ptr() as usize;
    let driver_lock = turning.driver_lock.as_ref();
    let engine = driver_lock.map_or(-1, DriverLock::descriptor);
    let deadline = driver_lock.map_or(deadline, |driver_lock| driver_lock.until(deadline));
    let mask = driver_lock.filter(|_| sigmask.is_null()).map_or(sigmask.addr(), DriverLock::mask);
    // Use ppoll(2), which can wait for an epoll set. The call takes a pointer to its time limit,
    // which `SleepLimit` may shorten.
    let poll = |limit| {
        let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list = [wanted(place), wanted(engine)];
        let args = [list.as_mut_ptr().expose_provenance(), list.len(), limit, mask, 8, 0];
        // SAFETY: `list` has two entries, `limit` is the address of a timespec, and the mask is
        // null or a kernel signal mask.
        unsafe { syscall(libc::SYS_ppoll as usize, args) }?;
        if list[0].revents == 0 {
            return Ok(0);
        }
        let args = [place as usize, at, MOST, 0, 0, 8];
        // SAFETY: `events` has room for four events, and a null mask changes nothing.
        unsafe { syscall(libc::SYS_epoll_pwait as usize, args) }
    };
    let is_at_wheel = driver_lock.is_some();
    let sleep = |limit| {
        if is_at_wheel {
            return poll(limit);
        }
        let args = [place as usize, at, MOST, limit, mask, 8];
        // SAFETY: `events` has room for four events, `limit` is the address of a timespec, and the
        // mask is null or a kernel signal mask.
        match unsafe { syscall(libc::SYS_epoll_pwait2 as usize, args) } {
            // Linux before 5.11 does not have epoll_pwait2(2). ppoll(2) also takes a pointer to the
            // time limit.
            Err(libc::ENOSYS) => poll(limit),
            result => result,
        }
    };
    let slept = turning.sleep(|| since.sleep(true, SleepLimit::within(deadline), sleep));
    let count = slept.unwrap_or(Err(libc::EINTR)).map_err(Errno)?;
    let mut woken = 0;
    for event in &events[..count] {
        match event.u64 {
            cookie::CONTROL => {
                if let Ok(client) = posix.client() {
                    client.check_alive();
                }
            }
            cookie @ (cookie::PROGRAM | cookie::NOTIFIER | cookie::WAKEUP) => woken |= 1 << cookie,
            // Without an engine, the thread sleeps in the program's own epoll set, so that set woke
            // the thread.
            _ => woken |= 1 << cookie::PROGRAM,
        }
    }
    Ok(woken)
}

/// Returns whether an epoll set contains ready sockets of the stack. Called by poll(2).
pub(crate) fn is_ready(posix: &'static Posix, client: &Client, number: u32) -> bool {
    // In a signal handler that interrupted a holder of the lock, report no events. poll(2) calls
    // this function again every millisecond.
    let Ok(mut hub) = posix.process.lock_reactor() else { return false };
    hub.drain(client);
    hub.is_ready(client, number)
}

/// Event that poll(2) reports for an epoll descriptor with ready descriptors.
pub(crate) const READY: u32 = ready::IN;
