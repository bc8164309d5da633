//! How programs learn that the engine has ended, whatever ended it.
//!
//! A thread that waits for one socket sleeps on a futex. When the engine is killed, the futex is
//! not woken, and a thread cannot sleep on it together with a descriptor. The kernel does wake
//! threads by *robust lists* (set_robust_list(2), Documentation/locking/robust-futexes.rst). When a
//! thread ends, in whatever way, the kernel walks the list that the thread has registered. In each
//! word that holds the thread's id it sets FUTEX_OWNER_DIED, and wakes one sleeper. So the engine's
//! thread has a list of words in the status page, which it never gives back while it lives.
//! Programs sleep on such a word and the socket's at once (futex_waitv(2)).
//!
//! ```text
//!   private memory:  head ──► entry 0 ──► entry 1 ──► … ──► head    (addresses: not for programs)
//!                               ┊ offset    ┊ offset
//!   status page:              word 0      word 1      …             (tid | FUTEX_WAITERS)
//! ```
//!
//! The kernel wakes one thread a word, and that thread may be stopped, or leave its call by
//! siglongjmp. So each process has a word of its own, as far as there are words ([`LIVES`]). The
//! first thread of a process that sees the engine's end, in whatever call, wakes the word's other
//! sleepers ([`crate::StatusPage::wake`]).
//!
//! The word also tells of the end those that do not sleep, without a system call.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};
use towpath_shm::Mapping;
use towpath_shm::layout::{ENGINE_ENDED, LIVES, LifeWord as Word, StatusPage};
use towpath_shm::syscall::syscall;

/// FUTEX_WAITERS of linux/futex.h: the kernel is to wake somebody when the owner dies.
const WAITERS: u32 = 0x8000_0000;

/// The life of the engine's thread, as programs see it. The life ends when `Life` is dropped, or
/// when the thread ends in any other way.
///
/// `Life` belongs to the thread that made it, and cannot be sent to another.
#[derive(Debug)]
pub struct Life {
    mapping: Arc<Mapping>,
    /// Where the status page begins in the mapping.
    at: usize,
    /// None: the kernel has no robust lists.
    list: Option<Box<RobustList>>,
    /// The thread's list before, which is libc's: address and length.
    before: (usize, usize),
    _of_this_thread: PhantomData<*const ()>,
}

/// struct robust_list_head, and behind it the entries. The kernel reads it when the thread ends.
#[derive(Debug)]
#[repr(C)]
struct RobustList {
    first: usize,
    /// From an entry to its word.
    offset: isize,
    /// An entry that is about to be added or removed: never, here.
    pending: usize,
    /// Each is the address of the next; that of the last is the head's.
    entries: [usize; LIVES],
}

/// Length that set_robust_list(2) expects: that of the head alone, without the entries.
const HEAD_LEN: usize = std::mem::offset_of!(RobustList, entries);

impl Life {
    /// From here on the calling thread is the engine's.
    pub(crate) fn begin(mapping: &Arc<Mapping>, at: usize) -> Self {
        let mapping = Arc::clone(mapping);
        let before = robust_list();
        let mut life = Self { mapping, at, list: None, before, _of_this_thread: PhantomData };
        let list = life.make_list();
        let alive = crate::thread_id() | WAITERS;
        if before.1 == HEAD_LEN && set_robust_list(std::ptr::from_ref(&*list).addr(), HEAD_LEN) {
            life.list = Some(list);
            life.words().for_each(|word| word.store(alive, Ordering::Release));
        }
        life
    }

    fn make_list(&self) -> Box<RobustList> {
        let mut list =
            Box::new(RobustList { first: 0, offset: 0, pending: 0, entries: [0; LIVES] });
        let head = std::ptr::from_ref(&*list).addr();
        let entry = |at: usize| head + HEAD_LEN + at * size_of::<usize>();
        let words = std::ptr::from_ref(&self.status().lives).addr();
        list.first = entry(0);
        list.offset = words.wrapping_sub(entry(0)).cast_signed();
        for at in 0..LIVES {
            list.entries[at] = if at + 1 < LIVES { entry(at + 1) } else { head };
        }
        list
    }

    fn status(&self) -> &StatusPage {
        // SAFETY: Status is all atomics, and this mapping is the engine's writable one.
        unsafe { self.mapping.view(self.at) }
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU32> {
        self.status().lives.iter().map(|Word { word, .. }| word)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(list) = self.list.take()
            && !set_robust_list(self.before.0, self.before.1)
        {
            // `set_robust_list` cannot fail here: it accepted the same length before. If it did,
            // the kernel would still read the list.
            Box::leak(list);
        }
        for word in self.words() {
            word.store(ENGINE_ENDED | WAITERS, Ordering::Release);
            wake(word);
        }
    }
}

/// Wakes all that sleep on a word of the page.
pub(crate) fn wake(word: &AtomicU32) {
    // A wake-up fails only where there is no memory at the address.
    let _ = futex::wake(word, Flags::empty(), u32::MAX >> 1);
}

/// The list of this thread; (0, 0) where there are none.
fn robust_list() -> (usize, usize) {
    let (mut at, mut len) = (0usize, 0usize);
    let args = [0, (&raw mut at).expose_provenance(), (&raw mut len).expose_provenance(), 0, 0, 0];
    // SAFETY: for thread 0, which is the calling one, the kernel writes two words.
    let got = unsafe { syscall(libc::SYS_get_robust_list as usize, args) };
    if got.is_ok() { (at, len) } else { (0, 0) }
}

/// Whether the kernel has taken it.
fn set_robust_list(at: usize, len: usize) -> bool {
    // SAFETY: the kernel reads the list when this thread ends; the caller keeps it until then, or
    // sets another one before.
    unsafe { syscall(libc::SYS_set_robust_list as usize, [at, len, 0, 0, 0, 0]) }.is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{EngineStatus, Status as View};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn view(engine: &EngineStatus) -> View {
        View::map(engine.file().expect("a memfd").try_clone().expect("a descriptor")).expect("ours")
    }

    /// Sleeps as a thread of a process does; the value that the word has in the end.
    fn sleep_until_the_end(status: &View, channel: u32) {
        while let Some((word, alive)) = status.life(channel) {
            let _ = futex::wait(word, Flags::empty(), alive, None);
        }
    }

    /// As after kill -9: nothing of the engine's own runs any more.
    #[test]
    fn the_kernel_tells_when_the_engines_thread_ends() {
        let engine = EngineStatus::create().expect("memory");
        let status = view(&engine);
        assert!(!status.has_ended(1) && status.life(1).is_none(), "it has not begun");
        let (begun, end) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                std::mem::forget(engine.live());
                begun.wait();
                end.wait();
            });
            begun.wait();
            assert!(status.life(1).is_some());
            // Some have a word of their own, and some have not.
            let channels = [1, 2, 3, LIVES as u32 + 3, 4000];
            for &channel in &channels {
                let status = &status;
                scope.spawn(move || {
                    sleep_until_the_end(status, channel);
                    status.wake(channel);
                });
            }
            end.wait();
        });
        // The kernel goes through a dead thread's locks one after the other; who sleeps on the
        // first does not wait for the last.
        let start = std::time::Instant::now();
        while !(1..4096).all(|channel| status.has_ended(channel)) {
            assert!(start.elapsed().as_secs() < 50, "some were not told");
            thread::yield_now();
        }
    }

    #[test]
    fn an_engine_that_stops_tells_everybody_and_leaves_libc_its_list() {
        let engine = EngineStatus::create().expect("memory");
        let status = view(&engine);
        let before = robust_list();
        let life = engine.live();
        assert_ne!(robust_list(), before);
        let asleep = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    asleep.store(true, Ordering::Relaxed);
                    sleep_until_the_end(&status, 7);
                });
            }
            while !asleep.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            drop(life);
        });
        assert!(status.has_ended(7));
        assert_eq!(robust_list(), before);
    }
}
