//! Detects the removal of an interface.

use std::os::fd::BorrowedFd;

use crate::sys;

/// Number of further checks after an error. The kernel reports an interface as down before it
/// removes the name, so the first check may still find a removed interface.
const LOOKS: u32 = 5;
/// Time in nanoseconds from an error to the second check. The time doubles with each further check.
const FIRST_NS: u64 = 10_000_000;

/// Detects whether an interface was removed, by checks after errors.
pub struct Presence {
    index: u32,
    gone: bool,
    on_gone: Option<Box<dyn FnOnce() + Send>>,
    /// Number of remaining checks whether the interface exists, and the time of the next one in
    /// nanoseconds.
    left: u32,
    due_ns: u64,
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Presence");
        out.field("index", &self.index).field("gone", &self.gone).finish_non_exhaustive()
    }
}

impl Presence {
    /// Creates the state for the existing interface with this index.
    pub fn new(index: u32) -> Self {
        Self { index, gone: false, on_gone: None, left: 0, due_ns: 0 }
    }

    /// Calls `tell` once after the interface was removed, on the thread that performs the check.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.on_gone = Some(Box::new(tell));
    }

    /// Returns whether the interface was removed.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Checks whether the interface exists after the kernel has returned an error, and schedules
    /// further checks for [`again`](Self::again). `socket` can be any socket.
    pub fn look(&mut self, now_ns: u64, socket: BorrowedFd<'_>) {
        self.look_with(now_ns, |index| sys::exists(socket, index));
    }

    /// Checks again whether the interface exists, if a check is due.
    pub fn again(&mut self, now_ns: u64, socket: BorrowedFd<'_>) {
        self.again_with(now_ns, |index| sys::exists(socket, index));
    }

    /// Returns the time in nanoseconds at which [`again`](Self::again) must be called; `None` if no
    /// check is scheduled.
    pub fn due_ns(&self) -> Option<u64> {
        (self.left > 0).then_some(self.due_ns)
    }

    fn look_with(&mut self, now_ns: u64, exists: impl FnOnce(u32) -> bool) {
        self.find(exists);
        if !self.gone {
            (self.left, self.due_ns) = (LOOKS, now_ns + FIRST_NS);
        }
    }

    fn again_with(&mut self, now_ns: u64, exists: impl FnOnce(u32) -> bool) {
        if self.left == 0 || now_ns < self.due_ns {
            return;
        }
        self.left -= 1;
        self.due_ns = now_ns + (FIRST_NS << (LOOKS - self.left));
        self.find(exists);
    }

    fn find(&mut self, exists: impl FnOnce(u32) -> bool) {
        if self.gone || exists(self.index) {
            return;
        }
        (self.gone, self.left) = (true, 0);
        if let Some(tell) = self.on_gone.take() {
            tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn an_interface_that_goes_after_the_first_look_is_found_gone() {
        let mut presence = Presence::new(7);
        let told = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&told);
        presence.on_gone(move || _ = count.fetch_add(1, Relaxed));
        presence.look_with(1000, |_| true);
        assert_eq!(presence.due_ns(), Some(1000 + FIRST_NS));
        presence.again_with(1001, |_| panic!("too early"));
        presence.again_with(1000 + FIRST_NS, |index| index != 7);
        assert!(presence.is_gone() && presence.due_ns().is_none());
        presence.look_with(2000, |_| panic!("known"));
        assert_eq!(told.load(Relaxed), 1);
    }

    #[test]
    fn looks_end_while_the_interface_stays() {
        let mut presence = Presence::new(7);
        let (mut now, mut looks) = (0, 0);
        presence.look_with(now, |_| true);
        while let Some(due) = presence.due_ns() {
            now = due;
            presence.again_with(now, |_| true);
            looks += 1;
        }
        assert_eq!((looks, presence.is_gone()), (LOOKS, false));
        assert_eq!(now, FIRST_NS * (1 + 2 + 4 + 8 + 16));
    }
}
