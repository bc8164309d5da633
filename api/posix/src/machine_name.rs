//! The machine's name in a run, cached in the process.
//!
//! The cache uses neither malloc nor locks, because signal handlers may call uname(2).

use std::sync::atomic::{AtomicU8, Ordering};

/// Maximum length of a machine's name in bytes (`__NEW_UTS_LEN`).
const MAX: usize = 64;
/// State: the engine was not asked yet, or did not answer.
const UNKNOWN: u8 = 0;
/// State: the run has no names of its own.
const NOTHING: u8 = 1;
/// State of a known name: this value plus the length of the name.
const SOMETHING: u8 = 2;

/// A machine's name; empty if the kernel's name applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hostname {
    bytes: [u8; MAX],
    len: usize,
}

impl Hostname {
    /// Creates a name from the first [`MAX`] bytes of `name`.
    pub(crate) fn new(name: &[u8]) -> Self {
        let len = name.len().min(MAX);
        let mut bytes = [0; MAX];
        bytes[..len].copy_from_slice(&name[..len]);
        Self { bytes, len }
    }

    /// Returns the name's bytes, without a NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Cache of the machine's name, which stays the same until the run ends.
#[derive(Debug)]
pub(crate) struct MachineName {
    /// [`UNKNOWN`], [`NOTHING`], or the length of the name and [`SOMETHING`].
    known: AtomicU8,
    bytes: [AtomicU8; MAX],
}

impl MachineName {
    /// Creates an empty cache, which is zeroed memory.
    pub const fn new() -> Self {
        Self { known: AtomicU8::new(UNKNOWN), bytes: [const { AtomicU8::new(0) }; MAX] }
    }

    /// Returns the machine's name; None: the run has no names. Calls `ask` unless the answer is
    /// cached. `ask` returns `None` if the engine does not answer; the next call then asks again.
    pub fn get_or_ask(&self, ask: impl FnOnce() -> Option<Option<Hostname>>) -> Option<Hostname> {
        match self.known.load(Ordering::Acquire) {
            UNKNOWN => {
                let answer = ask()?;
                self.keep(answer);
                answer
            }
            NOTHING => None,
            some => {
                let len = usize::from(some - SOMETHING);
                let mut name = Hostname { bytes: [0; MAX], len };
                for (to, from) in name.bytes.iter_mut().zip(&self.bytes[..len]) {
                    *to = from.load(Ordering::Relaxed);
                }
                Some(name)
            }
        }
    }

    /// Caches an answer. Threads that ask concurrently store the same name.
    fn keep(&self, answer: Option<Hostname>) {
        let Some(name) = answer else { return self.known.store(NOTHING, Ordering::Release) };
        for (to, from) in self.bytes.iter().zip(name.bytes()) {
            to.store(*from, Ordering::Relaxed);
        }
        self.known.store(SOMETHING + name.len as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_asked_for_until_there_is_one() {
        let names = [None, Some(Hostname::new(b"")), Some(Hostname::new(&[b'a'; MAX + 1]))];
        for answer in names {
            let kept = MachineName::new();
            assert_eq!(kept.get_or_ask(|| None), None);
            assert_eq!(kept.get_or_ask(|| Some(answer)), answer);
            assert_eq!(kept.get_or_ask(|| unreachable!("it is known")), answer);
        }
    }
}
