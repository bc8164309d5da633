//! The host name configured for the run, cached in the process.
//!
//! The cache uses neither malloc nor locks, because signal handlers may call uname(2).

use std::sync::atomic::{AtomicU8, Ordering};

/// Maximum length in bytes of a host name (`__NEW_UTS_LEN` of Linux).
const MAX: usize = 64;
/// State of the cache: the engine has not yet answered.
const UNKNOWN: u8 = 0;
/// State of the cache if the user has configured no host name, so that the kernel's host name is
/// used.
const NOTHING: u8 = 1;
/// State of the cache if the user has configured a host name: this value plus the length of the
/// name in bytes.
const SOMETHING: u8 = 2;

/// A host name. Empty if the kernel's host name applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hostname {
    bytes: [u8; MAX],
    len: usize,
}

impl Hostname {
    /// Creates a host name from the first [`MAX`] bytes of `name`.
    pub(crate) fn new(name: &[u8]) -> Self {
        let len = name.len().min(MAX);
        let mut bytes = [0; MAX];
        bytes[..len].copy_from_slice(&name[..len]);
        Self { bytes, len }
    }

    /// Returns the bytes of the host name, without a NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Cache of the run's host name, which does not change during a run.
#[derive(Debug)]
pub(crate) struct MachineName {
    /// State of the cache: [`UNKNOWN`], [`NOTHING`], or [`SOMETHING`] plus the length of the name.
    known: AtomicU8,
    bytes: [AtomicU8; MAX],
}

impl MachineName {
    /// Creates an empty cache, which consists of zero bytes only.
    pub const fn new() -> Self {
        Self { known: AtomicU8::new(UNKNOWN), bytes: [const { AtomicU8::new(0) }; MAX] }
    }

    /// Returns the run's host name. None: the run has no configured names. Calls `ask` if the
    /// answer is not cached. If the engine does not answer, `ask` returns `None`, and the next call
    /// asks again.
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

    /// Caches the host name that the engine returned. Concurrent calls store the same name.
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
