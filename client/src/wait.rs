//! Lets a thread wait for an event of one or a few sockets.
//!
//! A waiting thread sleeps on several futex words at once by futex_waitv(2), since Linux 5.16. The
//! shared state of each socket has such a word. Another word changes when the engine (the network
//! stack) ends ([`towpath_ring::Life`]). A waiting thread takes no CPU time.
//!
//! If the kernel lacks futex_waitv, or the program filters its system calls, a thread can wait for
//! one socket only. The thread sleeps on the word in the socket's slot by futex(2). Every
//! [`LIVENESS_SLICE`] it checks that the engine is alive, so that it does not wait for ever.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;
use std::thread::LocalKey;
use std::time::Duration;

use towpath_ring::{Spin, Waiter};
use towpath_shm::spin::{LOOKS, LOOKS_FOR_ANSWER};

use crate::driver::{Following, Patience, Who};
use crate::interrupt::{Handled, SleepLimit};
use crate::syscall::{nr, syscall};
use crate::{Client, Deadline, Error, Socket};

/// Time between two checks whether the engine is alive, if the engine's end would not wake the
/// thread.
pub const LIVENESS_SLICE: Duration = Duration::from_millis(500);

/// Maximum number of sockets of one wait. For each sleep, a socket costs a write to its shared
/// state and an entry in a kernel table. Threads that wait for more sockets use the
/// [`crate::reactor`] instead.
pub const SOCKETS_MAX: usize = 16;

/// Repeats `attempt` while it returns [`Error::WouldBlock`], after each event of `socket`.
///
/// # Errors
/// - errors of `attempt`;
/// - `TimedOut` when the deadline passed;
/// - `Interrupted` when a signal handler ran after `since`. As on Linux, a handler with SA_RESTART
///   does not interrupt a wait without deadline;
/// - `Forked` when a signal handler has forked and this is the child, which has its own connection
///   to the engine;
/// - `Dead` when the engine has ended or the socket was closed.
pub fn until<T>(
    client: &Client,
    socket: Socket,
    deadline: Option<Deadline>,
    since: Handled,
    attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    until_any(client, &[socket], deadline, since, attempt)
}

/// Repeats `attempt` as [`until`] does, after each event of any of `sockets`, which are at most
/// [`SOCKETS_MAX`].
///
/// # Errors
/// As for [`until`]. `Dead` if one of the sockets was closed, or if there are several and
/// futex_waitv(2) is missing.
pub fn until_any<T>(
    client: &Client,
    sockets: &[Socket],
    deadline: Option<Deadline>,
    since: Handled,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    debug_assert!((1..=SOCKETS_MAX).contains(&sockets.len()), "{}", sockets.len());
    // Do not poll if the engine is in this process: waiting threads run it, so polling would only
    // delay it.
    if client.driver().is_none()
        // Poll only with more than two processors, because the engine and the sender need one each.
        && client.processors() > 2
        && let Some(done) = look_for_a_moment(&SPIN, LOOKS / sockets.len() as u32, || {
            let done = attempt();
            (!matches!(done, Err(Error::WouldBlock))).then_some(done)
        })
    {
        return done;
    }
    // Remember the number of forks: a signal handler may fork, and in the child the attachment
    // belongs to the parent.
    let began = client.process().forks();
    let (mut has_slept, mut patience) = (false, Patience::default());
    loop {
        // If this thread may run the engine itself, the engine need not wake it.
        let turns = !patience.has_ended()
            && client.driver().is_some_and(|driver| driver.is_free_for(Who::Waits));
        let mut waiters = [const { None }; SOCKETS_MAX];
        for (waiter, &socket) in waiters.iter_mut().zip(sockets) {
            *waiter = client.slot(socket).map(if turns { Waiter::unasked } else { Waiter::new });
        }
        match attempt() {
            Err(Error::WouldBlock) => {}
            done => {
                // Check whether the engine has ended. Its end may have woken only this thread, and
                // `is_dead` then wakes all others.
                let _ = has_slept && client.is_dead();
                return done;
            }
        }
        if client.is_dead() || sockets.iter().any(|&socket| client.slot(socket).is_none()) {
            return Err(Error::Dead);
        }
        let waiters = &waiters[..sockets.len()];
        let slept = sleep(client, waiters, !turns, &mut patience, deadline, since);
        has_slept = true;
        // A signal handler has forked, and this is the child. A wait with a deadline is interrupted
        // by every signal handler, so return `Interrupted`.
        if client.process().forks() != began {
            return Err(if deadline.is_some() { Error::Interrupted } else { Error::Forked });
        }
        match slept {
            Err(Error::TimedOut) => {
                if !client.check_alive() {
                    return Err(Error::Dead);
                }
                if deadline.is_some_and(|deadline| deadline.left().is_zero()) {
                    return Err(Error::TimedOut);
                }
            }
            other => other?,
        }
    }
}

/// Sleeps once, or runs the engine in this process. `is_asked` is true if this thread has requested
/// wake-ups. Otherwise no thread would wake it, so it must not sleep and only runs the engine.
///
/// # Errors
/// `TimedOut` at the deadline, or after [`LIVENESS_SLICE`]; `Dead` if futex_waitv(2) is missing and
/// there are several sockets.
fn sleep(
    client: &Client,
    waiters: &[Option<Waiter<'_>>],
    is_asked: bool,
    patience: &mut Patience,
    deadline: Option<Deadline>,
    since: Handled,
) -> Result<(), Error> {
    let mut handoff = None;
    if let Some(driver) = client.driver().filter(|_| !patience.has_ended()) {
        if let Some(driver_lock) = driver.take(Who::Waits) {
            let has_changed = || {
                let mut words = waiters.iter().flatten().map(Waiter::word);
                words.any(|(word, expected)| word.load(Acquire) != expected)
            };
            return driver_lock.drive(patience, deadline, since, has_changed);
        }
        match driver.follow() {
            Some(following) if is_asked => handoff = Some(following),
            _ => return Ok(()),
        }
    }
    let limited = deadline.is_some();
    if !client.process().is_without_waitv()
        && let Some(life) = client.life()
    {
        let mut words = [Wait::NOTHING; SOCKETS_MAX + 2];
        let passed = handoff.as_ref().map(Following::word);
        let wanted = waiters.iter().flatten().map(Waiter::word).chain([life]).chain(passed);
        let count = words
            .iter_mut()
            .zip(wanted)
            .map(|(wait, word)| *wait = Wait::new(word.0, word.1))
            .count();
        let limit = deadline.map_or(SleepLimit::NEVER, SleepLimit::until);
        let slept = since.sleep(limited, limit, |limit| wait_for_any(&words[..count], limit));
        if let Some(following) = &handoff {
            following.has_slept(patience);
        }
        // ENOSYS comes from an older kernel, EPERM from a seccomp filter that does not know
        // futex_waitv(2).
        if !matches!(slept, Some(Err(ENOSYS | EPERM))) {
            return outcome(slept);
        }
        client.process().calls_are_filtered();
    }
    let [Some(waiter)] = waiters else {
        return Err(Error::Dead);
    };
    let (word, expected) = waiter.word();
    let slice = Deadline::after(LIVENESS_SLICE);
    let limit = SleepLimit::until(deadline.map_or(slice, |deadline| deadline.min(slice)));
    match since.sleep(limited, limit, |limit| wait_for_one(word, expected, limit)) {
        // Only signal handlers with SA_RESTART have run, which do not interrupt the wait.
        Some(Err(EINTR)) if since.is_restarted(limited) => Ok(()),
        slept => outcome(slept),
    }
}

/// Sleeps until `word` in shared memory differs from `expected`, or the engine ends. The caller
/// must have blocked signals. Wake-ups may be spurious. If `is_asked` is false, no thread would
/// wake this one, so it only runs the engine in this process. Returns whether the caller must check
/// that the engine is alive ([`Client::check_alive`]).
pub(crate) fn sleep_on(client: &Client, word: &AtomicU32, expected: u32, is_asked: bool) -> bool {
    const NO_LIMIT: usize = 0;
    let mut handoff = None;
    if let Some(driver) = client.driver() {
        if let Some(driver_lock) = driver.take(Who::Asks) {
            driver_lock.drive_blocked(None, || word.load(Acquire) != expected);
            return false;
        }
        match driver.follow() {
            Some(following) if is_asked => handoff = Some(following),
            _ => return false,
        }
    }
    if !client.process().is_without_waitv()
        && let Some(life) = client.life()
    {
        let ends = Wait::new(life.0, life.1);
        let mut words = [Wait::new(word, expected), ends, ends];
        let count = match &handoff {
            Some(following) => {
                let (word, expected) = following.word();
                words[2] = Wait::new(word, expected);
                3
            }
            None => 2,
        };
        match wait_for_any(&words[..count], NO_LIMIT) {
            Err(ENOSYS | EPERM) => client.process().calls_are_filtered(),
            _ => return false,
        }
    }
    let (seconds, ns) = Deadline::after(LIVENESS_SLICE).parts();
    // Ignore the result, because the caller checks the word in any case.
    let _ = wait_for_one(word, expected, [seconds, ns].as_ptr().addr());
    true
}

fn outcome(slept: Option<Result<usize, i32>>) -> Result<(), Error> {
    match slept {
        Some(Ok(_) | Err(EAGAIN)) => Ok(()),
        Some(Err(ETIMEDOUT)) => Err(Error::TimedOut),
        None | Some(Err(EINTR)) => Err(Error::Interrupted),
        Some(Err(errno)) => Err(Error::Refused(errno)),
    }
}

const EPERM: i32 = 1;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOSYS: i32 = 38;
const ETIMEDOUT: i32 = 110;

/// An entry of futex_waitv(2): struct futex_waitv.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wait {
    expected: u64,
    word: u64,
    flags: u32,
    reserved: u32,
}

impl Wait {
    const NOTHING: Self = Self { expected: 0, word: 0, flags: 0, reserved: 0 };

    fn new(word: &AtomicU32, expected: u32) -> Self {
        const FUTEX2_SIZE_U32: u32 = 2;
        let word = word.as_ptr().addr() as u64;
        Self { expected: expected.into(), word, flags: FUTEX2_SIZE_U32, reserved: 0 }
    }
}

/// Sleeps until one of the futex words changes. After a signal handler with SA_RESTART, the kernel
/// restarts the call and reads the timeout again. The handler has set the timeout to 0 (see
/// [`crate::interrupt`]), so the call returns.
fn wait_for_any(words: &[Wait], until: usize) -> Result<usize, i32> {
    const CLOCK_MONOTONIC: usize = 1;
    let args = [words.as_ptr().addr(), words.len(), 0, until, CLOCK_MONOTONIC, 0];
    // SAFETY: `args` contains the number of structures, whose words are mapped. The structures and
    // the timeout outlive the call.
    unsafe { syscall(nr::FUTEX_WAITV, args) }
}

/// Sleeps until `word` changes. Fails with EINTR after each signal handler, even with SA_RESTART,
/// because the call has a timeout.
fn wait_for_one(word: &AtomicU32, expected: u32, until: usize) -> Result<usize, i32> {
    // Use FUTEX_WAIT_BITSET, because it takes a point in time of CLOCK_MONOTONIC, unlike
    // FUTEX_WAIT.
    const FUTEX_WAIT_BITSET: usize = 9;
    const ANY: usize = u32::MAX as usize;
    let args = [word.as_ptr().addr(), FUTEX_WAIT_BITSET, expected as usize, until, 0, ANY];
    // SAFETY: the word and the timeout outlive the call.
    unsafe { syscall(nr::FUTEX, args) }
}

std::thread_local! {
    // If a signal handler waits while the interrupted thread updates the value, the handler's
    // update is lost, which does no harm.
    static SPIN: Cell<Spin> = const { Cell::new(Spin::new()) };
    static SPIN_FOR_ANSWER: Cell<Spin> = const { Cell::new(Spin::new()) };
}

/// Polls for the engine's reply for a short time before the thread sleeps. Returns the reply if it
/// arrives within this time.
pub(crate) fn look_for_answer<T>(client: &Client, answer: impl FnMut() -> Option<T>) -> Option<T> {
    // Do not poll on a single processor, because that would delay the engine.
    if client.processors() < 2 {
        return None;
    }
    look_for_a_moment(&SPIN_FOR_ANSWER, LOOKS_FOR_ANSWER, answer)
}

/// Repeats `attempt` for about the time of a sleep and wake-up, if this has often avoided a sleep
/// before. Returns the result of `attempt`, or `None` after this time.
fn look_for_a_moment<T>(
    spin: &'static LocalKey<Cell<Spin>>,
    looks: u32,
    mut attempt: impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut learnt = spin.get();
    let is_worthwhile = learnt.is_worthwhile();
    spin.set(learnt);
    if !is_worthwhile {
        return None;
    }
    let done = (0..looks).find_map(|_| {
        let done = attempt();
        if done.is_none() {
            std::hint::spin_loop();
        }
        done
    });
    learnt.learn(done.is_some());
    spin.set(learnt);
    done
}
