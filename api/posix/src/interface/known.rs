//! Cache of the engine's answers about network interfaces.

use std::collections::BTreeSet;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use towpath_client::ProcessLock;

/// Cache of the engine's answers about the stack's interfaces.
#[derive(Debug)]
pub(crate) struct KnownInterfaces {
    /// Pairs of source address and interface with which datagrams may be sent. Signals must be
    /// blocked whenever this lock is held.
    pub sources: ProcessLock<Sources>,
    /// All IPv4 broadcast addresses of the stack, in a leaked allocation. Null until the first
    /// answer of the engine. Interfaces keep their IPv4 addresses while the engine runs, so the
    /// cache stays valid.
    broadcasts: AtomicPtr<Vec<[u8; 4]>>,
}

/// Pairs of interface index and an address of the interface.
pub(crate) type Sources = BTreeSet<(u32, [u8; 16])>;

impl KnownInterfaces {
    /// Creates a cache that contains no answer of the engine yet.
    pub const fn new() -> Self {
        Self { sources: ProcessLock::new(BTreeSet::new()), broadcasts: AtomicPtr::new(null_mut()) }
    }

    /// Returns the IPv4 broadcast addresses of the stack. None: the engine has not been asked for
    /// them yet.
    #[inline]
    pub fn broadcasts(&self) -> Option<&[[u8; 4]]> {
        // SAFETY: the pointer is null or was leaked by `keep_broadcasts`.
        unsafe { self.broadcasts.load(Ordering::Acquire).as_ref() }.map(Vec::as_slice)
    }

    /// Caches the IPv4 broadcast addresses, unless another thread has already done so, and returns
    /// the cached ones. Threads do not wait for each other: after fork(2), a child would wait for
    /// ever for a thread of its parent.
    pub fn keep_broadcasts(&self, said: Vec<[u8; 4]>) -> &[[u8; 4]] {
        let said = Box::into_raw(Box::new(said));
        let set = Ordering::AcqRel;
        let kept = match self.broadcasts.compare_exchange(null_mut(), said, set, Ordering::Acquire)
        {
            Ok(_) => said,
            Err(kept) => {
                // SAFETY: the box was leaked above, and no other thread has seen the pointer.
                drop(unsafe { Box::from_raw(said) });
                kept
            }
        };
        // SAFETY: the pointer is published, and is never freed from now on.
        unsafe { &*kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_first_is_kept() {
        let known = KnownInterfaces::new();
        assert_eq!(known.broadcasts(), None);
        assert_eq!(known.keep_broadcasts(vec![[10, 0, 2, 255]]), [[10, 0, 2, 255]]);
        assert_eq!(known.keep_broadcasts(Vec::new()), [[10, 0, 2, 255]]);
        assert_eq!(known.broadcasts(), Some(&[[10, 0, 2, 255]][..]));
    }
}
