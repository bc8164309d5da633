//! Lets programs detect that the engine (the process with the network stack) has ended for any
//! reason.
//!
//! A thread that waits for one socket sleeps on a futex. If the engine is killed, it does not wake
//! the futex. A thread cannot wait for a futex and a descriptor at the same time. However, the
//! kernel wakes futexes by *robust lists* (set_robust_list(2),
//! Documentation/locking/robust-futexes.rst). When a thread ends for any reason, the kernel walks
//! the list that the thread registered. In each word that contains the thread's id, it sets
//! FUTEX_OWNER_DIED and wakes one waiter. Therefore the engine's thread registers words in the
//! status page, memory that programs can read. The words contain the thread's id. Programs wait for
//! one of these words and for the socket's word at once (futex_waitv(2)).
//!
//! ```text
//!   private memory:  head ──► entry 0 ──► entry 1 ──► … ──► head    (addresses: not for programs)
//!                               ┊ offset    ┊ offset
//!   status page:              word 0      word 1      …             (tid | FUTEX_WAITERS)
//! ```
//!
//! The kernel wakes only one thread per word, and that thread may be stopped, or leave its call by
//! siglongjmp. Each process therefore has its own word, as long as there are enough ([`LIVES`]).
//! The first thread of a process that detects the engine's end wakes all other waiters of the word
//! ([`crate::StatusPage::wake`]).
//!
//! Threads that do not sleep can read the word to check for the engine's end without a system call.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};
use towpath_shm::Mapping;
use towpath_shm::layout::{ENGINE_ENDED, LIVES, LifeWord as Word, StatusPage};
use towpath_shm::syscall::syscall;

/// FUTEX_WAITERS of linux/futex.h. With this bit, the kernel wakes a waiter when the thread that
/// owns the futex ends.
const WAITERS: u32 = 0x8000_0000;

/// Shows programs that the engine's thread is alive, until this value is dropped or the thread ends
/// for any reason.
///
/// The type is not `Send`, because a value belongs to the thread that created it.
#[derive(Debug)]
pub struct Life {
    mapping: Arc<Mapping>,
    /// Offset of the status page in the mapping, in bytes.
    at: usize,
    /// The robust list of this thread (set_robust_list(2)); `None` if the kernel does not support
    /// it.
    list: Option<Box<RobustList>>,
    /// The robust list that the thread had before (libc's): address and length.
    before: (usize, usize),
    _of_this_thread: PhantomData<*const ()>,
}

/// `struct robust_list_head` and its entries. The kernel reads them when the thread ends.
#[derive(Debug)]
#[repr(C)]
struct RobustList {
    first: usize,
    /// Offset in bytes from an entry to its futex word.
    offset: isize,
    /// Entry that is being added or removed. Unused, so always 0.
    pending: usize,
    /// Each entry is the address of the next one; the last points to the head of the list.
    entries: [usize; LIVES],
}

/// Length in bytes that set_robust_list(2) expects: the head without the entries.
const HEAD_LEN: usize = std::mem::offset_of!(RobustList, entries);

impl Life {
    /// Registers the calling thread as the thread of the engine.
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
        // SAFETY: `StatusPage` consists of atomics, and this mapping is the engine's, which is
        // writable.
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
            // The kernel accepted a list of this length before, so this failure is impossible. If
            // it happened, the kernel would still read the list when the thread ends, so leak the
            // list.
            Box::leak(list);
        }
        for word in self.words() {
            word.store(ENGINE_ENDED | WAITERS, Ordering::Release);
            wake(word);
        }
    }
}

/// Wakes all threads that wait on a futex word of the status page.
pub(crate) fn wake(word: &AtomicU32) {
    // The call fails only if the address is not mapped.
    let _ = futex::wake(word, Flags::empty(), u32::MAX >> 1);
}

/// Returns address and length of the calling thread's robust list, or (0, 0) if the kernel does not
/// support them.
fn robust_list() -> (usize, usize) {
    let (mut at, mut len) = (0usize, 0usize);
    let args = [0, (&raw mut at).expose_provenance(), (&raw mut len).expose_provenance(), 0, 0, 0];
    // SAFETY: the kernel writes two words for thread 0, which means the calling thread.
    let got = unsafe { syscall(libc::SYS_get_robust_list as usize, args) };
    if got.is_ok() { (at, len) } else { (0, 0) }
}

/// Registers the calling thread's robust list. Returns false if the kernel rejects it.
fn set_robust_list(at: usize, len: usize) -> bool {
    // SAFETY: the kernel reads the list when this thread ends. The caller keeps the list until
    // then, or registers another one first.
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

    /// Waits like a thread of a program until the engine has ended.
    fn sleep_until_the_end(status: &View, channel: u32) {
        while let Some((word, alive)) = status.life(channel) {
            let _ = futex::wait(word, Flags::empty(), alive, None);
        }
    }

    /// Tests that the kernel reports the end of the engine's thread. As after kill -9, no code of
    /// the engine runs.
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
            // Channel numbers of programs. The first three have a word of their own; the last two
            // share words with other programs.
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
        // When a thread dies, the kernel processes its words one by one. A waiter of the first word
        // may wake before the last word is set.
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
