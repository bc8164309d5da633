//! Thread-local variables, either of the standard library or, in models, of loom.

/// Defines a thread-local variable: `thread_local_value! { NAME: Type = value }`. Access its value
/// by `NAME.with`.
#[cfg(not(loom))]
macro_rules! thread_local_value {
    ($name:ident: $type:ty = $value:expr) => {
        std::thread_local! {
            static $name: $type = const { $value };
        }
    };
}

#[cfg(loom)]
macro_rules! thread_local_value {
    ($name:ident: $type:ty = $value:expr) => {
        loom::thread_local! {
            static $name: $type = $value;
        }
    };
}

#[cfg(not(loom))]
pub(crate) fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns a unique number for each of loom's threads, which all run on one thread of the operating
/// system.
#[cfg(loom)]
pub(crate) fn gettid() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) % 1024 + 1
}
