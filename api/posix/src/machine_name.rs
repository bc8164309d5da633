//! The name of the machine in a run, as a process keeps it.
//!
//! Without malloc and locks: signal handlers call uname(2).

use std::sync::atomic::{AtomicU8, Ordering};

/// Longest name of a machine (`__NEW_UTS_LEN`).
const MAX: usize = 64;
/// No answer yet.
const UNKNOWN: u8 = 0;
/// The run was given no names.
const NOTHING: u8 = 1;
/// Added to the length of a name.
const SOMETHING: u8 = 2;

/// A name of the machine, empty for the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hostname {
    bytes: [u8; MAX],
    len: usize,
}

impl Hostname {
    /// At most [`MAX`] bytes are taken.
    pub(crate) fn new(name: &[u8]) -> Self {
        let len = name.len().min(MAX);
        let mut bytes = [0; MAX];
        bytes[..len].copy_from_slice(&name[..len]);
        Self { bytes, len }
    }

    /// Its bytes, without NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The name, once somebody was asked. A run keeps it to its end.
#[derive(Debug)]
pub(crate) struct MachineName {
    /// [`UNKNOWN`], [`NOTHING`], or the length of the name and [`SOMETHING`].
    known: AtomicU8,
    bytes: [AtomicU8; MAX],
}

impl MachineName {
    /// Zeroed memory.
    pub const fn new() -> Self {
        Self { known: AtomicU8::new(UNKNOWN), bytes: [const { AtomicU8::new(0) }; MAX] }
    }

    /// The name; None: the run was given no names. `ask` gives None where nobody answers: it is
    /// asked again then.
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

    /// Threads that ask at once store the same.
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
