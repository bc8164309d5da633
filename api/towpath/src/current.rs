//! The current stack: the one that socket calls use if they do not name a stack.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock};

use crate::shared::SharedStack;

static DEFAULT: RwLock<Option<Arc<SharedStack>>> = RwLock::new(None);

std::thread_local! {
    /// Stacks that this thread has entered, the innermost last. An entry is `None` if its guard was
    /// dropped before the guard of a stack that was entered later.
    static ENTERED: RefCell<Vec<Option<Arc<SharedStack>>>> = const { RefCell::new(Vec::new()) };
}

/// Guard for the current stack of a thread: see [`Stack::enter`](crate::Stack::enter).
#[must_use = "the thread leaves the stack when this is dropped"]
pub struct Entered {
    /// Index of this guard's stack in [`ENTERED`].
    place: usize,
    /// Makes the guard `!Send`, because [`ENTERED`] is a list of the thread that entered the stack.
    of_thread: PhantomData<*const ()>,
}

/// Sets or clears the default stack of the process.
pub(crate) fn set_default(stack: Option<Arc<SharedStack>>) {
    let mut default = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *default, stack);
    // Drop the previous default stack after unlocking, because dropping its last handle may wait
    // for the linger time.
    drop(default);
    drop(before);
}

pub(crate) fn enter(stack: Arc<SharedStack>) -> Entered {
    let place = ENTERED.with_borrow_mut(|all| {
        all.push(Some(stack));
        all.len() - 1
    });
    Entered { place, of_thread: PhantomData }
}

/// Returns the stack that this thread has entered, or else the default stack of the process.
///
/// # Errors
/// Returns `NotConnected` if there is no such stack. The message says how to set one.
pub(crate) fn current() -> io::Result<Arc<SharedStack>> {
    let entered =
        ENTERED.try_with(|all| all.borrow().iter().rev().flatten().next().cloned()).ok().flatten();
    let default = || DEFAULT.read().unwrap_or_else(PoisonError::into_inner).clone();
    entered.or_else(default).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotConnected,
            "this thread has no towpath stack: call Stack::set_default for the whole process, \
             or Stack::enter on this thread, or name the stack as in stack.connect(address)",
        )
    })
}

impl Drop for Entered {
    fn drop(&mut self) {
        // `try_with` fails if the thread is ending, and its thread-local list was already dropped.
        let left = ENTERED.try_with(|all| {
            let mut all = all.borrow_mut();
            let left = all.get_mut(self.place).and_then(Option::take);
            while all.last().is_some_and(Option::is_none) {
                all.pop();
            }
            left
        });
        // Drop the stack only after the borrow of the list has ended, because dropping its last
        // handle waits for unsent data.
        drop(left);
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stack;

    fn stack() -> Stack {
        Stack::builder().loopback().start().expect("a stack")
    }

    fn is_current(stack: &Stack) -> bool {
        current().is_ok_and(|current| Arc::ptr_eq(&current, &stack.shared))
    }

    #[test]
    fn the_innermost_stack_of_a_thread_goes_before_that_of_the_process() {
        let error = current().expect_err("none");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert!(error.to_string().contains("Stack::set_default"), "{error}");
        let (default, outer, inner) = (stack(), stack(), stack());
        default.set_default();
        assert!(is_current(&default));
        let outer_guard = outer.enter();
        let inner_guard = inner.enter();
        assert!(is_current(&inner));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(is_current(&default))).join().expect("no panic");
        });
        // The outer guard is dropped first, and the inner stack stays current.
        drop(outer_guard);
        assert!(is_current(&inner));
        drop(inner_guard);
        assert!(is_current(&default));
        Stack::clear_default();
        assert!(current().is_err());
    }
}
