//! [`MappedPosix`]: the state of one stack's socket calls, in a separate memory mapping.

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use towpath_shm::Fd;

use crate::{Posix, Result, attach};

/// A [`Posix`] in its own memory mapping, attached to an engine (network stack). Dropping it
/// detaches from the engine and unmaps the memory, so that a process can open and close any number
/// of stacks.
///
/// The state has tables of several megabytes. In a mapping, only pages that are written take
/// memory.
#[derive(Debug)]
pub struct MappedPosix(NonNull<Posix>);

/// Length of the mapping in bytes. The kernel rounds it up to a page.
const LEN: usize = size_of::<Posix>();

const _: () = assert!(align_of::<Posix>() <= 4096, "a page is not aligned enough");

// SAFETY: the mapping belongs to this value alone, and `Posix` is Send.
unsafe impl Send for MappedPosix {}
// SAFETY: shared references give access to the `Posix` only, which is Sync.
unsafe impl Sync for MappedPosix {}

impl MappedPosix {
    /// Attaches to the engine (network stack) that is the peer of the control socket. The engine
    /// must be running to answer.
    ///
    /// # Errors
    /// As for [`attach::over`].
    pub fn attach(control: Fd) -> Result<Self> {
        let mapped = Self::new()?;
        // SAFETY: if attaching fails, no reference is kept. Otherwise the attachment keeps one, and
        // `drop` removes the attachment before it unmaps the memory.
        attach::over(unsafe { mapped.get() }, control, None)?;
        Ok(mapped)
    }

    fn new() -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address of the new mapping.
        let base =
            unsafe { mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        tell_leak_sanitizer(c"__lsan_register_root_region", base);
        // A new mapping is zeroed, and the result of `Posix::new` is all zeros by its contract.
        let posix = NonNull::new(base.cast::<Posix>());
        posix.map(Self).ok_or(crate::Errno(libc::ENOMEM))
    }

    /// Returns the state that functions of this crate take as their first argument.
    ///
    /// # Safety
    /// Neither the reference nor a value derived from it may be used after `self` is dropped.
    pub unsafe fn get(&self) -> &'static Posix {
        // SAFETY: the mapping is initialized, aligned as a page, and valid until `drop`.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for MappedPosix {
    fn drop(&mut self) {
        // SAFETY: this function unmaps the memory only after the last use of this reference.
        let posix = unsafe { self.get() };
        // SAFETY: no call is in progress, because the contract of `get` requires this when `self`
        // is dropped.
        unsafe { posix.attachment.remove() };
        posix.process.close();
        // SAFETY: the `Posix` is initialized, and is not used afterwards.
        unsafe { self.0.drop_in_place() };
        tell_leak_sanitizer(c"__lsan_unregister_root_region", self.0.as_ptr().cast());
        // SAFETY: `new` has created the mapping with this length, and no references remain.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LEN) };
    }
}

/// Calls a function of LeakSanitizer for the mapping at `at`, if the program contains
/// LeakSanitizer. Otherwise LeakSanitizer would report memory that is only referenced from the
/// mapping.
fn tell_leak_sanitizer(name: &CStr, at: *mut c_void) {
    // SAFETY: `name` is a NUL-terminated string.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: both functions have this type in <sanitizer/lsan_interface.h>, and a null pointer is
    // `None`.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*const c_void, usize)>>(
            function,
        )
    };
    if let Some(function) = function {
        // SAFETY: the mapping at `at` is `LEN` bytes long.
        unsafe { function(at, LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_posix_is_what_new_makes() {
        static NEW: Posix = Posix::new();
        let words = |posix: &Posix| {
            let at = std::ptr::from_ref(posix).cast::<u64>();
            // SAFETY: the value is aligned to 64 bytes, and its memory is initialized.
            (0..LEN / 8).position(|n| unsafe { at.add(n).read_volatile() } != 0)
        };
        let mapped = MappedPosix::new().expect("address space");
        // SAFETY: `mapped` is dropped at the end of this test.
        assert_eq!([words(unsafe { mapped.get() }), words(&NEW)], [None; 2]);
    }
}
