//! Variables of a thread: the system's, or a model's, whose threads are one thread of the system.

/// `thread_local_cell!(NAME: Type = value)`, with `get` and `set`.
#[cfg(not(loom))]
macro_rules! thread_local_cell {
    ($name:ident: $type:ty = $value:expr) => {
        std::thread_local! {
            static $name: std::cell::Cell<$type> = const { std::cell::Cell::new($value) };
        }
    };
}

#[cfg(loom)]
macro_rules! thread_local_cell {
    ($name:ident: $type:ty = $value:expr) => {
        static $name: crate::tls::Local<$type> = {
            loom::thread_local! {
                static CELL: std::cell::Cell<$type> = std::cell::Cell::new($value);
            }
            crate::tls::Local(&CELL)
        };
    };
}

/// What a `Cell` in std's `thread_local!` can do, for one in loom's.
#[cfg(loom)]
pub(crate) struct Local<T: 'static>(pub &'static loom::thread::LocalKey<std::cell::Cell<T>>);

#[cfg(loom)]
impl<T: Copy> Local<T> {
    pub fn get(&self) -> T {
        self.0.with(std::cell::Cell::get)
    }

    pub fn set(&self, value: T) {
        self.0.with(|cell| cell.set(value));
    }
}

#[cfg(not(loom))]
pub(crate) fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// A model's threads are one thread of the system.
#[cfg(loom)]
pub(crate) fn gettid() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) % 1024 + 1
}
