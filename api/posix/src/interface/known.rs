//! Answers of the engine about its interfaces, kept so that it need not be asked again.

use std::collections::BTreeSet;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use towpath_client::ProcessLock;

/// Kept answers about the stack's interfaces.
#[derive(Debug)]
pub(crate) struct KnownInterfaces {
    /// Source addresses and interfaces of datagrams sent before. Signals must be blocked whenever
    /// this lock is held.
    pub sources: ProcessLock<Sources>,
    /// Leaked; null until the engine was asked. Interfaces keep their IPv4 addresses as long as it
    /// runs.
    broadcasts: AtomicPtr<Vec<[u8; 4]>>,
}

/// Numbers of interfaces, each with an address that it has.
pub(crate) type Sources = BTreeSet<(u32, [u8; 16])>;

impl KnownInterfaces {
    /// Nothing.
    pub const fn new() -> Self {
        Self { sources: ProcessLock::new(BTreeSet::new()), broadcasts: AtomicPtr::new(null_mut()) }
    }

    /// The broadcast addresses of IPv4. None: they were not asked for yet.
    #[inline]
    pub fn broadcasts(&self) -> Option<&[[u8; 4]]> {
        // SAFETY: null, or leaked by `keep_broadcasts`.
        unsafe { self.broadcasts.load(Ordering::Acquire).as_ref() }.map(Vec::as_slice)
    }

    /// Keeps what the engine has said of them, unless another thread was faster. No thread waits
    /// for another one's question here: that one may not exist in a child that is forked meanwhile.
    pub fn keep_broadcasts(&self, said: Vec<[u8; 4]>) -> &[[u8; 4]] {
        let said = Box::into_raw(Box::new(said));
        let set = Ordering::AcqRel;
        let kept = match self.broadcasts.compare_exchange(null_mut(), said, set, Ordering::Acquire)
        {
            Ok(_) => said,
            Err(kept) => {
                // SAFETY: made above, and not published.
                drop(unsafe { Box::from_raw(said) });
                kept
            }
        };
        // SAFETY: it stays where it is from now on.
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
